/* src/model/bind.c: the tensors a model must have and their shapes; and that every layout of experts in a file computes
 * the same. */
#include "support/gguf_copy.h"

#include <stdio.h>

#include "base/alloc.h"
#include "support/golden.h"

static const char *const families[] = {"llama",    "mixtral",      "qwen2",      "qwen3",  "qwen2moe",
                                       "qwen3moe", "olmoe",        "llama4",     "gemma4-e", "gemma4-dense",
                                       "gemma4-moe", "qwen35",     "qwen35moe",
                                       "more/deepseek2", "more/gpt-oss-clamp", "more/kimi-linear", "more/granitehybrid",
                                       "more/nemotron_h_moe", "more/lfm2moe", "more/qwen3next", "more/phi3",
                                       "more/mistral3"};

enum { FAMILIES = sizeof families / sizeof *families };

/* Description and binding of a finished copy. */
static strata_status bind_copy(const gguf_copy *copy, strata_error *error)
{
    st_gguf *gguf = NULL;
    st_arena arena = {0};
    const st_desc *desc = NULL;
    const st_binding *binding = NULL;
    strata_status status =
        st_gguf_open_memory("m.gguf", copy->writer.out.data, copy->writer.out.length, &gguf, error);
    if (status == STRATA_OK) status = st_desc_build(gguf, &arena, &desc, error);
    if (status == STRATA_OK) status = st_binding_build(desc, gguf, &arena, &binding, error);
    assert_true((status == STRATA_OK) == (binding != NULL));
    st_arena_free(&arena);
    st_gguf_close(gguf);
    return status;
}

static void expect_refusal(gguf_copy *copy, strata_status expected, const char *tensor, const char *says)
{
    strata_error error = {0};
    gguf_copy_finish(copy, true);
    strata_status status = bind_copy(copy, &error);
    if (status != expected) fail_msg("%s: expected status %d, found %d: %s", tensor, expected, status, error.message);
    if (!strstr(error.message, tensor)) fail_msg("%s: does not name %s", error.message, tensor);
    if (!strstr(error.message, says)) fail_msg("%s: does not say %s", error.message, says);
}

/* ---- every tensor of every family -------------------------------------------------------------------------------- */

static bool is_optional(const char *family, const char *name)
{
    static const char *const endings[] = {"layer_output_scale.weight", "ffn_down_exps.scale", "rope_freqs.weight"};
    if (strcmp(name, "output.weight") == 0) return true;
    if (strncmp(family, "gemma4", 6) == 0 && strstr(name, "attn_v.weight")) return true;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (strstr(name, endings[i])) return true;
    return false;
}

/* A file without a tensor of several matrices must have them one by one. */
static const char *missing_without(const char *name)
{
    static const char *const joined[][2] = {{"ffn_gate_up_exps", "ffn_gate_exps.weight"}, {"ssm_ba", "ssm_alpha.weight"},
                                            {"attn_qkv", "attn_q"}};
    for (size_t i = 0; i < sizeof joined / sizeof *joined; i++)
        if (strstr(name, joined[i][0])) return joined[i][1];
    return name;
}

static void every_missing_tensor_is_an_error(void **state)
{
    const char *family = *state;
    gguf_copy copy;
    gguf_copy_open(&copy, family);
    size_t count = copy.tensor_count;
    gguf_copy_close(&copy);
    for (size_t i = 0; i < count; i++) {
        gguf_copy_open(&copy, family);
        char name[96];
        snprintf(name, sizeof name, "%s", copy.tensors[i].name);
        gguf_copy_remove(&copy, name);
        if (is_optional(family, name)) {
            strata_error error;
            gguf_copy_finish(&copy, true);
            if (bind_copy(&copy, &error) != STRATA_OK) fail_msg("%s", error.message);
        } else if (strcmp(name, "rope_factors_short.weight") == 0) { /* the other list alone */
            expect_refusal(&copy, STRATA_UNSUPPORTED, "rope_factors_long.weight", "expected no such tensor");
        } else {
            expect_refusal(&copy, STRATA_FORMAT, missing_without(name), "found no such tensor");
        }
        gguf_copy_close(&copy);
    }
}

static void every_shape_is_checked(void **state)
{
    const char *family = *state;
    gguf_copy copy;
    gguf_copy_open(&copy, family);
    size_t count = copy.tensor_count;
    gguf_copy_close(&copy);
    for (size_t i = 0; i < count; i++) {
        gguf_copy_open(&copy, family);
        gguf_copy_tensor *tensor = &copy.tensors[i];
        tensor->data = NULL;
        if (i % 3 == 0) tensor->ne[0] *= 2;
        else if (i % 3 == 1 || tensor->dim_count == 4) tensor->ne[tensor->dim_count - 1]++;
        else tensor->ne[tensor->dim_count++] = 2;
        char name[128];
        bool shared = strstr(tensor->name, "ffn_up_shexp"); /* its width is the others', where no key states it */
        snprintf(name, sizeof name, "tensor %s: expected shape [", tensor->name);
        if (shared) snprintf(name, sizeof name, "%.*s.ffn_", (int)strcspn(tensor->name + 4, ".") + 4, tensor->name);
        expect_refusal(&copy, STRATA_FORMAT, name, "], found [");
        gguf_copy_close(&copy);
    }
}

static void every_tensor_is_bound_once(void **state)
{
    golden g;
    assert_true(golden_open(&g, *state));
    size_t bytes = 0;
    for (uint32_t i = 0; i < g.binding->count; i++) {
        const st_weight *w = &g.binding->weights[i];
        bytes += w->bytes;
        assert_int_equal(st_binding_find(g.binding, w->role, w->layer), i);
        assert_ptr_equal(w->parts, NULL);
        uint64_t elements = w->tensor->ne[0] * w->tensor->ne[1] * w->tensor->ne[2] * w->tensor->ne[3];
        assert_int_equal(w->ne[0] * w->ne[1] * w->ne[2], elements);
    }
    assert_int_equal(g.binding->count, st_gguf_tensor_count(g.model));
    assert_int_equal(bytes, st_gguf_tensor_bytes(g.model));
    golden_close(&g);
}

/* The length of their arrays is checked against the layer count. */
static bool has_arrays(const char *family)
{
    static const char *const names[] = {"gemma4", "more/kimi", "more/granitehybrid", "more/nemotron", "more/lfm2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(family, names[i], strlen(names[i])) == 0) return true;
    return false;
}

static void a_wrong_layer_count_is_an_error(void **state)
{
    const char *family = *state;
    golden g;
    assert_true(golden_open(&g, family));
    uint32_t blocks = g.desc->layer_count + g.desc->nextn_count;
    golden_close(&g);
    gguf_copy copy;
    char name[96];
    if (!has_arrays(family)) {
        gguf_copy_open(&copy, family);
        gguf_copy_set_u32(&copy, ".block_count", blocks + 1);
        snprintf(name, sizeof name, "blk.%u.", strncmp(family, "qwen35", 6) == 0 ? blocks - 1 : blocks);
        expect_refusal(&copy, STRATA_FORMAT, name, "found no such tensor");
        gguf_copy_close(&copy);
    }
    gguf_copy_open(&copy, family);
    uint64_t ne[1] = {64};
    snprintf(name, sizeof name, "blk.%u.attn_norm.weight", blocks);
    gguf_copy_add(&copy, name, ST_TYPE_F32, 1, ne, NULL);
    expect_refusal(&copy, STRATA_FORMAT, name, "(block_count)");
    gguf_copy_close(&copy);
}

/* ---- single cases ------------------------------------------------------------------------------------------------ */

/* Tensors that other families compute with, in a family that does not, and biases and factors of any kind. */
static void tensors_of_relatives_are_refused(void **state)
{
    (void)state;
    static const struct { const char *family, *tensor; uint64_t length; } rows[] = {
        {"llama", "blk.1.attn_q_norm.weight", 16},      {"llama", "blk.1.attn_sinks.weight", 4},
        {"llama", "blk.1.post_attention_norm.weight", 64}, {"llama", "blk.1.ffn_up.bias", 128},
        {"llama", "blk.1.ffn_down.scale", 1},           {"llama", "output.bias", 320},
        {"llama", "token_embd_norm.weight", 64},        {"mixtral", "blk.0.exp_probs_b.bias", 4},
        {"mixtral", "blk.0.ffn_up_shexp.weight", 64},   {"qwen35", "blk.0.ssm_conv1d.bias", 128},
        {"more/granitehybrid", "blk.0.attn_q.weight", 64}, {"more/deepseek2", "blk.1.attn_k.weight", 64},
        {"more/gpt-oss-clamp", "blk.0.ffn_norm.weight", 64},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        gguf_copy copy;
        gguf_copy_open(&copy, rows[i].family);
        gguf_copy_add(&copy, rows[i].tensor, ST_TYPE_F32, 1, &rows[i].length, NULL);
        expect_refusal(&copy, STRATA_UNSUPPORTED, rows[i].tensor, "expected no such tensor");
        gguf_copy_close(&copy);
    }
}

static void unused_tensors_are_ignored(void **state)
{
    (void)state;
    gguf_copy copy;
    strata_error error;
    gguf_copy_open(&copy, "llama");
    uint64_t ne[2] = {7, 3};
    gguf_copy_add(&copy, "blk.0.mystery.weight", ST_TYPE_F32, 2, ne, NULL);
    gguf_copy_add(&copy, "mystery", ST_TYPE_F32, 2, ne, NULL);
    gguf_copy_find(&copy, "output_norm.weight")->dim_count = 3; /* trailing dimensions of 1 are ignored */
    gguf_copy_finish(&copy, true);
    if (bind_copy(&copy, &error) != STRATA_OK) fail_msg("%s", error.message);
    gguf_copy_close(&copy);
}

/* Keys may serve as values only if both have the same length: the KV cache has no room for more. */
static void values_shorter_than_keys_need_their_own_tensor(void **state)
{
    (void)state;
    gguf_copy copy;
    gguf_copy_open(&copy, "gemma4-dense");
    gguf_copy_set_u32(&copy, ".attention.value_length", 16);
    expect_refusal(&copy, STRATA_FORMAT, "blk.2.attn_v.weight", "found no such tensor");
    gguf_copy_close(&copy);
}

/* Layers may have heads of different sizes: RoPE factors must cover the pairs of the largest. */
static void rope_factors_cover_the_largest_head(void **state)
{
    (void)state;
    gguf_copy copy;
    gguf_copy_open(&copy, "llama");
    gguf_copy_drop_key(&copy, ".attention.key_length");
    gguf_copy_drop_key(&copy, ".attention.value_length");
    gguf_copy_drop_key(&copy, ".rope.dimension_count");
    gguf_copy_drop_key(&copy, ".attention.head_count");
    gguf_write_key_array(&copy.writer, gguf_copy_key(&copy, ".attention.head_count"), ST_GGUF_U32, 4);
    for (int i = 0; i < 4; i++) gguf_write_u32(&copy.writer, i == 2 ? 2 : 4);
    uint64_t ne[1] = {8};
    gguf_copy_add(&copy, "rope_freqs.weight", ST_TYPE_F32, 1, ne, NULL);
    expect_refusal(&copy, STRATA_FORMAT, "rope_freqs.weight", "expected shape [16], found [8]");
    gguf_copy_close(&copy);
}

/* ---- the same model, kept otherwise, computes the same ----------------------------------------------------------- */

static void all_logits(const golden *g, float *out)
{
    golden_options options = {.kv_type = ST_TYPE_F32, .batch = 16, .threads = 1, .cpu = "ref"};
    golden_run r;
    strata_error error;
    golden_run_open(&r, g, &options);
    for (uint32_t position = 0; position < g->token_count; position++) {
        if (position % options.batch == 0) golden_feed(&r, position, options.batch, NULL);
        uint32_t row = position % options.batch;
        const float *logits;
        assert_int_equal(st_run_logits(r.run, &row, 1, &logits, &error), STRATA_OK);
        memcpy(out + (size_t)position * g->desc->vocab, logits, g->desc->vocab * sizeof *logits);
    }
    golden_run_close(&r);
}

/* The finished copy's logits are those of the golden model, bit by bit; with `differ`, they are not. */
static void compare_copy(const golden *g, gguf_copy *copy, bool differ)
{
    size_t bytes = (size_t)g->token_count * g->desc->vocab * sizeof(float);
    float *expected = st_alloc(bytes), *found = st_alloc(bytes);
    assert_true(expected && found);
    golden other;
    gguf_copy_finish(copy, true);
    golden_open_bytes(&other, g, copy->writer.out.data, copy->writer.out.length);
    all_logits(g, expected);
    all_logits(&other, found);
    if (differ) assert_memory_not_equal(found, expected, bytes);
    else assert_memory_equal(found, expected, bytes);
    golden_close(&other);
    st_free(expected);
    st_free(found);
}

static const char *const expert_stems[] = {"ffn_gate", "ffn_up", "ffn_down"};

/* One tensor per expert, as old files have them. */
static void split_experts(gguf_copy *copy)
{
    for (int layer = 0; layer < 4; layer++)
        for (int s = 0; s < 3; s++) {
            char name[96];
            snprintf(name, sizeof name, "blk.%d.%s_exps.weight", layer, expert_stems[s]);
            gguf_copy_tensor whole = *gguf_copy_find(copy, name);
            gguf_copy_remove(copy, name);
            size_t bytes = (size_t)(whole.ne[0] * whole.ne[1]) * sizeof(float);
            for (uint64_t x = 0; x < whole.ne[2]; x++) {
                snprintf(name, sizeof name, "blk.%d.%s.%d.weight", layer, expert_stems[s], (int)x);
                gguf_copy_add(copy, name, whole.type, 2, whole.ne, (const char *)whole.data + x * bytes);
            }
        }
}

static void one_tensor_per_expert_computes_the_same(void **state)
{
    (void)state;
    golden g;
    gguf_copy copy;
    assert_true(golden_open(&g, "mixtral"));
    gguf_copy_open(&copy, "mixtral");
    split_experts(&copy);
    compare_copy(&g, &copy, false);
    gguf_copy_close(&copy);
    golden_close(&g);
}

static void one_tensor_per_expert_is_checked(void **state)
{
    (void)state;
    gguf_copy copy;
    for (int i = 0; i < 4; i++) {
        gguf_copy_open(&copy, "mixtral");
        split_experts(&copy);
        gguf_copy_tensor *tensor = gguf_copy_find(&copy, "blk.1.ffn_up.2.weight");
        tensor->data = NULL;
        if (i == 0) {
            gguf_copy_remove(&copy, tensor->name);
            expect_refusal(&copy, STRATA_FORMAT, "blk.1.ffn_up.2.weight", "found no such tensor");
        } else if (i == 1) {
            tensor->ne[1] = 97;
            expect_refusal(&copy, STRATA_FORMAT, "blk.1.ffn_up.2.weight", "expected shape [64, 96], found [64, 97]");
        } else if (i == 2) {
            tensor->type = ST_TYPE_F16;
            expect_refusal(&copy, STRATA_UNSUPPORTED, "blk.1.ffn_up.2.weight",
                           "expected type F32 as expert 0, found F16");
        } else {
            gguf_copy_remove(&copy, "blk.1.ffn_up.0.weight");
            expect_refusal(&copy, STRATA_FORMAT, "blk.1.ffn_up_exps.weight", "found no such tensor");
        }
        gguf_copy_close(&copy);
    }
}

/* Gate and up in one tensor per layer. */
static void fused_gate_and_up_compute_the_same(void **state)
{
    (void)state;
    golden g;
    gguf_copy copy;
    assert_true(golden_open(&g, "mixtral"));
    gguf_copy_open(&copy, "mixtral");
    enum { E = 64, F = 96, X = 4, LAYERS = 4 };
    float *fused = st_alloc_array((size_t)LAYERS * X * 2 * F * E, sizeof *fused);
    assert_non_null(fused);
    for (int layer = 0; layer < LAYERS; layer++) {
        char name[3][96];
        snprintf(name[0], sizeof *name, "blk.%d.ffn_gate_exps.weight", layer);
        snprintf(name[1], sizeof *name, "blk.%d.ffn_up_exps.weight", layer);
        snprintf(name[2], sizeof *name, "blk.%d.ffn_gate_up_exps.weight", layer);
        float *mine = fused + (size_t)layer * X * 2 * F * E;
        for (int half = 0; half < 2; half++) {
            const float *from = gguf_copy_find(&copy, name[half])->data;
            for (size_t x = 0; x < X; x++)
                memcpy(mine + (2 * x + (size_t)half) * F * E, from + x * F * E, sizeof(float) * F * E);
            gguf_copy_remove(&copy, name[half]);
        }
        const uint64_t ne[3] = {E, 2 * F, X};
        gguf_copy_add(&copy, name[2], ST_TYPE_F32, 3, ne, mine);
    }
    compare_copy(&g, &copy, false);
    st_free(fused);
    gguf_copy_close(&copy);
    golden_close(&g);
}

/* A model of one expert is the dense model of that expert's matrices. */
static void one_expert_equals_a_dense_layer(void **state)
{
    (void)state;
    golden g, dense_model;
    gguf_copy one, dense;
    assert_true(golden_open(&g, "mixtral"));
    gguf_copy_open(&one, "mixtral");
    gguf_copy_set_u32(&one, ".expert_count", 1);
    gguf_copy_set_u32(&one, ".expert_used_count", 1);
    gguf_copy_open(&dense, "mixtral");
    gguf_copy_drop_key(&dense, ".expert_count");
    gguf_copy_drop_key(&dense, ".expert_used_count");
    for (int layer = 0; layer < 4; layer++) {
        char name[96];
        snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", layer);
        gguf_copy_find(&one, name)->ne[1] = 1;
        gguf_copy_remove(&dense, name);
        for (int s = 0; s < 3; s++) {
            snprintf(name, sizeof name, "blk.%d.%s_exps.weight", layer, expert_stems[s]);
            gguf_copy_find(&one, name)->ne[2] = 1;
            gguf_copy_tensor *tensor = gguf_copy_find(&dense, name);
            tensor->dim_count = 2;
            tensor->ne[2] = 1;
            snprintf(tensor->name, sizeof tensor->name, "blk.%d.%s.weight", layer, expert_stems[s]);
        }
    }
    gguf_copy_finish(&dense, true);
    golden_open_bytes(&dense_model, &g, dense.writer.out.data, dense.writer.out.length);
    compare_copy(&dense_model, &one, false);
    golden_close(&dense_model);
    gguf_copy_close(&dense);
    gguf_copy_close(&one);
    golden_close(&g);
}

/* Biases are optional where the family does not ask for them: zeros change nothing, others do. */
static void optional_biases_are_added(void **state)
{
    (void)state;
    static const struct { const char *name; uint64_t width; } biases[] = {
        {"blk.0.attn_q.bias", 64},
        {"blk.1.attn_k.bias", 32},
        {"blk.2.attn_v.bias", 32},
        {"blk.3.attn_output.bias", 64}};
    static const float zeros[64];
    float ones[64];
    for (int i = 0; i < 64; i++) ones[i] = (float)(i % 7) - 3;
    golden g;
    assert_true(golden_open(&g, "llama"));
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++)
        for (int differ = 0; differ < 2; differ++) {
            gguf_copy copy;
            gguf_copy_open(&copy, "llama");
            gguf_copy_add(&copy, biases[i].name, ST_TYPE_F32, 1, &biases[i].width, differ ? ones : zeros);
            compare_copy(&g, &copy, differ);
            gguf_copy_close(&copy);
        }
    golden_close(&g);
}

/* An output matrix of its own that is the embedding computes what a tied one does; factors of one change nothing. */
static void tied_output_and_unit_factors_change_nothing(void **state)
{
    (void)state;
    golden g;
    gguf_copy copy;
    float ones[8], halves[8];
    for (int i = 0; i < 8; i++) ones[i] = 1, halves[i] = 0.5f;
    const uint64_t pairs[1] = {8};
    assert_true(golden_open(&g, "llama"));
    gguf_copy_open(&copy, "llama");
    gguf_copy_tensor embedding = *gguf_copy_find(&copy, "token_embd.weight");
    gguf_copy_add(&copy, "output.weight", embedding.type, 2, embedding.ne, embedding.data);
    gguf_copy_add(&copy, "rope_freqs.weight", ST_TYPE_F32, 1, pairs, ones);
    compare_copy(&g, &copy, false);
    gguf_copy_close(&copy);
    gguf_copy_open(&copy, "llama");
    gguf_copy_add(&copy, "rope_freqs.weight", ST_TYPE_F32, 1, pairs, halves);
    compare_copy(&g, &copy, true);
    gguf_copy_close(&copy);
    golden_close(&g);
}

int main(void)
{
    static const struct { const char *name; CMUnitTestFunction run; } kinds[] = {
        {"missing", every_missing_tensor_is_an_error},
        {"shapes", every_shape_is_checked},
        {"bound", every_tensor_is_bound_once},
        {"layers", a_wrong_layer_count_is_an_error},
    };
    enum { KINDS = sizeof kinds / sizeof *kinds };
    static char names[FAMILIES * KINDS][64];
    static struct CMUnitTest tests[FAMILIES * KINDS + 16];
    size_t n = 0;
    for (size_t f = 0; f < FAMILIES; f++)
        for (size_t k = 0; k < KINDS; k++, n++) {
            snprintf(names[n], sizeof *names, "%s: %s", families[f], kinds[k].name);
            tests[n] = (struct CMUnitTest){.name = names[n], .test_func = kinds[k].run,
                                           .initial_state = (void *)(uintptr_t)families[f]};
        }
    const struct CMUnitTest singles[] = {
        cmocka_unit_test(tensors_of_relatives_are_refused), cmocka_unit_test(unused_tensors_are_ignored), cmocka_unit_test(values_shorter_than_keys_need_their_own_tensor),
        cmocka_unit_test(rope_factors_cover_the_largest_head),
        cmocka_unit_test(one_tensor_per_expert_computes_the_same), cmocka_unit_test(one_tensor_per_expert_is_checked),
        cmocka_unit_test(fused_gate_and_up_compute_the_same), cmocka_unit_test(one_expert_equals_a_dense_layer),
        cmocka_unit_test(optional_biases_are_added), cmocka_unit_test(tied_output_and_unit_factors_change_nothing),
    };
    for (size_t i = 0; i < sizeof singles / sizeof *singles; i++) tests[n++] = singles[i];
    return _cmocka_run_group_tests("bind", tests, n, NULL, NULL);
}
