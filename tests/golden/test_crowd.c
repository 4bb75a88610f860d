/* Conversations in one step: every row's logits are those of the conversation alone. */
#include <stdio.h>
#include <string.h>

#include "support/crowd.h"
#include "support/mirror.h"

/* The fast kernels add in another order for other numbers of rows. */
static double error_max_of(const golden_family *f, bool reference)
{
    return mirror_name() ? 1e-3 : reference ? f->error_max : 2e-4;
}

static void run_crowds(const golden_family *f, const char *cpu, const golden_options *placed, uint32_t seeds)
{
    golden g;
    if (!golden_open(&g, f->name)) skip();
    crowd c = {.g = &g, .name = f->name, .rows_max = 48, .length_max = g.token_count};
    if (placed) c.options = *placed;
    c.options.kv_type = ST_TYPE_F32;
    c.options.threads = 2;
    c.options.cpu = cpu;
    c.options.nextn = g.nextn_logits != NULL;
    c.error_max = error_max_of(f, cpu && strcmp(cpu, "ref") == 0);
    double worst = 0;
    for (uint32_t seed = 1; seed <= seeds; seed++) {
        double error = crowd_run(&c, seed);
        if (worst < error) worst = error;
    }
    print_message("# %s, %s: largest error %.2g\n", f->name, cpu ? cpu : "fast", worst);
    golden_close(&g);
}

static void crowds_on_the_reference_path(void **state)
{
    if (kit_is_slow()) kit_skip("crowds on a GPU run the reference path too");
    run_crowds(*state, "ref", NULL, crowd_seeds(5));
}

static void crowds_on_the_fast_path(void **state)
{
    run_crowds(*state, NULL, NULL, crowd_seeds(kit_is_slow() ? 1 : 5));
}

/* Long contexts, in steps of 512. */
enum { LONG_MAX = 4096 };

static void long_crowds(void **state)
{
    const golden_family *f = *state;
    golden g;
    if (kit_is_slow() || !golden_open(&g, f->name)) skip();
    bool runs = g.token_count <= LONG_MAX || crowd_seeds(0) > 0;
    if (!runs) golden_close(&g);
    if (!runs) kit_skip("make crowd runs the longest one");
    crowd c = {.g = &g, .name = f->name, .rows_max = 512, .length_max = g.token_count, .check_every = 97,
               .error_max = error_max_of(f, false),
               .options = {.kv_type = ST_TYPE_F32, .threads = 2, .page_tokens = 64, .conversations = CROWD, .nextn = g.nextn_logits != NULL}};
    print_message("# %s: largest error %.2g\n", f->name, crowd_run(&c, 1));
    golden_close(&g);
}

/* Half of the layers on a simulated GPU; experts in all modes. */
static void crowds_on_a_gpu(void **state)
{
    static const st_moe_mode modes[] = {ST_MOE_RESIDENT, ST_MOE_CACHE, ST_MOE_CPU};
    const golden_family *f = *state;
    golden g;
    if (!golden_open(&g, f->name)) skip();
    uint32_t layers = g.desc->layer_count;
    bool experts = false;
    for (uint32_t i = 0; i < layers; i++) experts = experts || g.desc->layers[i].ffn.experts > 0;
    golden_close(&g);
    for (size_t i = 0; i < (experts ? 3 : 2); i++) {
        st_plan_options plan = st_plan_options_default();
        plan.layers = !experts && i == 1 ? (int32_t)(layers / 2) : ST_LAYERS_ALL;
        if (experts) plan.moe = modes[i];
        if (experts && modes[i] == ST_MOE_CACHE) plan.expert_slots = 2;
        golden_options placed = {.placed = &plan};
        run_crowds(f, "ref", &placed, crowd_seeds(1));
    }
}

/* A real model: its quantised rows round differently alone and in a batch. */
static void crowd_of_the_default_model(void **state)
{
    (void)state;
    enum { TEXT = 64 };
    const char *path = kit_default_model();
    strata_model *model;
    strata_token *tokens;
    st_buf text = {0};
    size_t count;
    golden g;
    if (!path || kit_is_slow()) kit_skip(path ? "a whole model takes too long here" : KIT_NO_MODEL);
    kit_read(kit_path("smollm2/text.txt"), &text);
    assert_int_equal(strata_model_open(path, NULL, &model, NULL), STRATA_OK);
    assert_int_equal(strata_tokenize(model, text.data, text.length, 0, &tokens, &count, NULL), STRATA_OK);
    strata_model_close(model);
    assert_true(count >= TEXT);
    golden_open_file(&g, path, tokens, TEXT);
    crowd c = {.g = &g, .name = "SmolLM2", .rows_max = 48, .length_max = TEXT, .check_every = 5, .error_max = 2e-2, .mean = true,
               .options = {.kv_type = ST_TYPE_F32, .threads = 2}};
    print_message("# SmolLM2: largest error %.2g\n", crowd_run(&c, 1));
    golden_close(&g);
    strata_free(tokens);
    st_buf_free(&text);
}

enum { FAMILIES_MAX = 64, KINDS = 3 };

int main(int argc, char **argv)
{
    static struct CMUnitTest tests[KINDS * FAMILIES_MAX + 1];
    static char names[KINDS * FAMILIES_MAX][80];
    static const struct { const char *name; CMUnitTestFunction function; } kinds[KINDS] = {
        {"reference", crowds_on_the_reference_path}, {"fast", crowds_on_the_fast_path}, {"gpu", crowds_on_a_gpu}};
    size_t count = 0;
    for (size_t i = 0; i < golden_family_count && i < FAMILIES_MAX; i++) {
        const golden_family *f = &golden_families[i];
        for (size_t k = 0; k < (golden_is_long(f) ? 1 : KINDS); k++, count++) {
            snprintf(names[count], sizeof names[count], "crowd, %s, %s", golden_is_long(f) ? "long" : kinds[k].name, f->name);
            tests[count] = (struct CMUnitTest){names[count], golden_is_long(f) ? long_crowds : kinds[k].function, NULL, NULL,
                                               (void *)(uintptr_t)f};
        }
    }
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(crowd_of_the_default_model);
    return kit_run("crowd", tests, count, NULL, NULL, argc, argv);
}
