/* How long a conversation takes to come back from the RAM tier, in virtual time, for a model of Qwen3.6-35B-A3B's shape on a
 * described machine: the time of its bytes on the link, also beside the traffic of an expert cache. */
#include "support/clock_rig.h"

#include "support/random.h"

enum { TOKENS = 32768, STEP = 2048, EXPERTS = 256, LINK = 25, PAGE = ST_KV_PAGE_TOKENS };

static const plan_shape shape = {.arch = "qwen35moe", .layers = 40, .embedding = 2048, .heads = 16, .kv_heads = 2,
                                 .head = 256, .vocab = 248320, .context = 262144, .experts = EXPERTS, .used = 8,
                                 .expert_width = 512, .shared_width = 512, .delta_keys = 16, .delta_values = 32,
                                 .delta_size = 128, .type = ST_TYPE_Q4_K, .big = ST_TYPE_Q6_K};

typedef struct scene {
    clock_rig rig;
    st_conversation *waits; /* while it arrives, every routing looks whether it has */
    double arrived;         /* when it had */
    double expert_bytes;    /* copied to the GPU until then */
} scene;

static double expert_bytes(const scene *s)
{
    const st_stats *stats = s->rig.watch.stats;
    uint64_t moved = 0;
    for (int decoding = 0; decoding < 2; decoding++)
        moved += st_stats_total(stats, decoding, ST_STAT_UPLOADS) + st_stats_total(stats, decoding, ST_STAT_FETCHES);
    return (double)moved * (double)s->rig.plan.plan->experts.slot_bytes[0];
}

/* The next expert from `expert` on that the GPU has. */
static uint32_t next_resident(const scene *s, uint32_t layer, uint32_t expert)
{
    const void *const *parts = s->rig.stream ? st_stream_card_parts(s->rig.stream, layer, 0) : NULL;
    for (uint32_t i = 0; parts && i < EXPERTS && !parts[expert]; i++) expert = (expert + 1) % EXPERTS;
    return expert;
}

/* Distinct experts. Rows of a prompt choose resident ones: a prompt needs no traffic here, and a batch with misses is slow
 * to check for races. */
static void choose(void *context, uint32_t layer, uint32_t rows, uint32_t used, int32_t *ids, float *weights)
{
    scene *s = context;
    for (uint32_t i = 0; i < rows * used; i++) {
        uint32_t before = i % used ? (uint32_t)ids[i - 1] + 1 : 0;
        ids[i] = (int32_t)(i % used * (EXPERTS / used) + between(0, EXPERTS / used - 1));
        if (rows > 1) ids[i] = (int32_t)next_resident(s, layer, before % EXPERTS);
        weights[i] = 1.0f / (float)used;
    }
    if (!s->waits || s->arrived > 0 || st_conversation_arriving(s->waits)) return;
    s->arrived = st_sim_world_seconds(s->rig.world);
    s->expert_bytes = expert_bytes(s);
}

static void tokens_of(strata_token *tokens, uint32_t count, uint32_t seed)
{
    for (uint32_t i = 0; i < count; i++) tokens[i] = (strata_token)((i * 7919u + seed * 104729u) % 248320);
}

static st_conversation *new_conversation(scene *s)
{
    st_conversation *c;
    strata_error error;
    clock_must(st_conversation_new(st_run_kv(s->rig.run), &c, &error), &error);
    return c;
}

/* Runs a prompt from its start, with a restore point a page before its end. */
static void fill(scene *s, st_conversation *c, uint32_t count, uint32_t seed)
{
    static strata_token tokens[TOKENS];
    st_seek seek;
    strata_error error;
    tokens_of(tokens, count, seed);
    st_conversation_run(c, true);
    clock_must(st_conversation_seek(c, tokens, count, true, &seek, &error), &error);
    assert_int_equal(seek.kept, 0);
    for (uint32_t at = 0, rows; at < count; at += rows) {
        uint32_t end = at < count - PAGE ? count - PAGE : count;
        rows = end - at < STEP ? end - at : STEP;
        clock_rig_step(&s->rig, c, rows);
        if (at + rows == count - PAGE) st_conversation_keep(c, ST_RESTORE_MARK);
    }
    st_conversation_run(c, false);
}

/* Seeks the conversation that was lost. Returns the bytes that come back. */
static double seek_lost(scene *s, st_conversation *c, uint32_t count, uint32_t seed)
{
    static strata_token tokens[TOKENS];
    st_seek seek;
    strata_error error;
    const st_plan *plan = s->rig.plan.plan;
    tokens_of(tokens, count, seed);
    assert_int_equal(st_conversation_position(c), 0);
    st_conversation_run(c, true);
    clock_must(st_conversation_seek(c, tokens, count, true, &seek, &error), &error);
    assert_int_equal(seek.kept, count - PAGE);
    double page = (double)(plan->memory[ST_HOST].kv->pools[0].page_bytes + plan->memory[ST_CARD].kv->pools[0].page_bytes);
    return page * (double)(seek.kept / PAGE) + (double)plan->memory[ST_CARD].kv->point_bytes;
}

static void open_scene(scene *s, st_moe_mode mode, uint64_t card_bytes, uint32_t running, const st_sim_routing *routing)
{
    clock_rig_open(&s->rig, &shape, card_bytes);
    st_plan_options *options = &s->rig.plan.options;
    options->context = TOKENS + PAGE;
    options->conversations = running;
    options->batch = STEP;
    options->moe = mode;
    options->watch = mode == ST_MOE_CACHE;
    clock_rig_load(&s->rig, &(st_stream_options){0}, routing);
}

static void all_weights_on_the_gpu(void **state)
{
    (void)state;
    scene s = {0};
    st_sim_routing routing = {.choose = choose, .context = &s};
    strata_error error;
    open_scene(&s, ST_MOE_RESIDENT, (uint64_t)48 << 30, 1, &routing);
    st_conversation *a = new_conversation(&s), *b = new_conversation(&s);
    fill(&s, a, TOKENS, 1);
    fill(&s, b, TOKENS, 2);
    clock_must(st_run_wait(s.rig.run, &error), &error);
    double start = st_sim_world_seconds(s.rig.world), bytes = seek_lost(&s, a, TOKENS, 1);
    clock_must(st_conversation_await(a, &error), &error);
    double took = st_sim_world_seconds(s.rig.world) - start, least = bytes / (LINK * 1e9);
    print_message("%.0f MB came back in %.2f ms; the link takes %.2f ms\n", bytes / 1e6, 1e3 * took, 1e3 * least);
    assert_true(took >= 0.8 * least && took <= 1.1 * least);
    clock_rig_step(&s.rig, a, PAGE);
    st_conversation_free(a);
    st_conversation_free(b);
    clock_rig_close(&s.rig);
}

static void beside_the_traffic_of_experts(void **state)
{
    (void)state;
    scene s = {0};
    st_sim_routing routing = {.choose = choose, .context = &s};
    strata_error error;
    open_scene(&s, ST_MOE_CACHE, (uint64_t)12 << 30, 2, &routing);
    st_conversation *a = new_conversation(&s), *b = new_conversation(&s), *c = new_conversation(&s);
    fill(&s, a, TOKENS, 1);
    fill(&s, b, TOKENS, 2);
    fill(&s, c, TOKENS, 3); /* the pool has room for two */
    st_conversation_free(b);
    st_conversation_free(c);
    c = new_conversation(&s);
    fill(&s, c, STEP, 4);
    st_conversation_run(c, true);
    clock_must(st_run_wait(s.rig.run, &error), &error);
    double before = expert_bytes(&s), start = st_sim_world_seconds(s.rig.world);
    double bytes = seek_lost(&s, a, TOKENS, 1);
    s.waits = a;
    uint32_t steps = 0;
    for (; s.arrived == 0; steps++) {
        st_conversation_tokens(c)[st_conversation_position(c)] = 1;
        clock_rig_step(&s.rig, c, 1);
    }
    double moved = s.expert_bytes - before, took = s.arrived - start, least = (bytes + moved) / (LINK * 1e9);
    print_message("%.0f MB came back in %.2f ms beside %.0f MB of experts; the link takes %.2f ms; %u tokens were decoded\n",
                  bytes / 1e6, 1e3 * took, moved / 1e6, 1e3 * least, steps);
    assert_true(moved > 0.05 * bytes);
    assert_true(took <= 1.1 * least);
    clock_rig_step(&s.rig, a, PAGE);
    st_conversation_free(a);
    st_conversation_free(c);
    clock_rig_close(&s.rig);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_weights_on_the_gpu), cmocka_unit_test(beside_the_traffic_of_experts),
    };
    return kit_run("return, virtual time", tests, sizeof tests / sizeof *tests, NULL, NULL, argc, argv);
}
