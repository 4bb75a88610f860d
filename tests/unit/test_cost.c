/* src/plan/cost.c, timeline.c: predictions. Small programs with round rates and seconds computed by hand; then
 * invariants for every model and every split. */
#include "support/golden.h"

#include <math.h>

#include "base/fault.h"
#include "moe/split.h"
#include "plan/plan.h"

static void close_to(double a, double b)
{
    if (!(fabs(a - b) < 1e-9)) fail_msg("%.12g is not %.12g", a, b);
}

/* Predicts after rebuilding the plan's stages: a test may have changed its slots. */
static st_plan_speed predict(const st_plan_source *source, const st_plan *plan, uint32_t depth, uint32_t tokens, double rate)
{
    st_arena arena = {0};
    st_plan scheduled = *plan;
    strata_error error;
    if (st_plan_schedule(source, &scheduled, &arena, &error) != STRATA_OK) fail_msg("%s", error.message);
    st_plan_speed speed = st_plan_predict(source, &scheduled, depth, tokens, rate);
    st_arena_free(&arena);
    return speed;
}

/* ---- by hand ----------------------------------------------------------------------------------------------------- */

static const st_gguf_tensor tensor = {.type = ST_TYPE_F32};

enum { TABLE, MATRIX, OUTPUT, GATE, UP, DOWN, WEIGHTS };

static const st_weight hand_weights[WEIGHTS] = {
    [TABLE] = {.tensor = &tensor, .ne = {8, 100, 1}, .bytes = 3200},
    [MATRIX] = {.tensor = &tensor, .ne = {8, 8, 1}, .bytes = 1000},
    [OUTPUT] = {.tensor = &tensor, .ne = {8, 100, 1}, .bytes = 4000},
    [GATE] = {.tensor = &tensor, .ne = {8, 8, 4}, .bytes = 4000},
    [UP] = {.tensor = &tensor, .ne = {8, 8, 4}, .bytes = 4000},
    [DOWN] = {.tensor = &tensor, .ne = {8, 8, 4}, .bytes = 4000},
};
static const st_binding hand_binding = {.weights = hand_weights, .count = WEIGHTS};
static const st_desc hand_desc = {.layer_count = 1};

enum { X, H, IDS, CHOSEN, E, O, LOGITS, VALUES };

static const st_value hand_values[VALUES] = {
    [X] = {.name = "x", .width = 8},
    [H] = {.name = "h", .width = 8, .offset_bytes = 64},
    [IDS] = {.name = "ids", .width = 2, .offset_bytes = 128},
    [CHOSEN] = {.name = "chosen", .width = 2, .offset_bytes = 192},
    [E] = {.name = "e", .width = 8, .offset_bytes = 256},
    [O] = {.name = "o", .width = 8, .rows = ST_ROWS_OUT},
    [LOGITS] = {.name = "logits", .width = 100, .rows = ST_ROWS_OUT, .offset_bytes = 64},
};

#define NONE ST_NO_VALUE
#define OP_OF(k, l, i0, i1, i2, o, o2, w0, w1, w2)                                                                     \
    {.kind = k, .layer = l, .in = {i0, i1, i2, NONE, NONE}, .out = o, .out2 = o2, .weight = {w0, w1, w2, -1, -1, -1, -1}}

/* Bytes for one row: 64, 1000, 96; then 64, 4000. */
static const st_op dense_ops[] = {
    OP_OF(ST_OP_EMBED, -1, NONE, NONE, NONE, X, NONE, TABLE, -1, -1),
    OP_OF(ST_OP_MATMUL, 0, X, NONE, NONE, H, NONE, MATRIX, -1, -1),
    OP_OF(ST_OP_ADD, 0, X, H, NONE, X, NONE, -1, -1, -1),
    OP_OF(ST_OP_GATHER, -1, X, NONE, NONE, O, NONE, -1, -1, -1),
    OP_OF(ST_OP_MATMUL, -1, O, NONE, NONE, LOGITS, NONE, OUTPUT, -1, -1),
};
static const st_program dense = {
    .ops = dense_ops, .op_count = 5, .values = hand_values, .value_count = VALUES,
    .main = {.body = {0, 3}, .head = {3, 2}, .input = NONE, .hidden = X, .logits = LOGITS}};

/* Bytes for one row: 64, 1000, 48, 6000 (2 of 4 experts), 96; then 64, 4000. */
static const st_op moe_ops[] = {
    OP_OF(ST_OP_EMBED, -1, NONE, NONE, NONE, X, NONE, TABLE, -1, -1),
    OP_OF(ST_OP_MATMUL, 0, X, NONE, NONE, H, NONE, MATRIX, -1, -1),
    OP_OF(ST_OP_ROUTE, 0, H, NONE, NONE, IDS, CHOSEN, -1, -1, -1),
    {.kind = ST_OP_EXPERTS, .layer = 0, .in = {X, IDS, CHOSEN, NONE, NONE}, .out = E, .out2 = NONE,
     .weight = {GATE, UP, DOWN, -1, -1, -1, -1}, .p.experts = {.experts = 4, .used = 2, .width = 8}},
    OP_OF(ST_OP_ADD, 0, X, E, NONE, X, NONE, -1, -1, -1),
    OP_OF(ST_OP_GATHER, -1, X, NONE, NONE, O, NONE, -1, -1, -1),
    OP_OF(ST_OP_MATMUL, -1, O, NONE, NONE, LOGITS, NONE, OUTPUT, -1, -1),
};
static const st_program moe = {
    .ops = moe_ops, .op_count = 7, .values = hand_values, .value_count = VALUES,
    .main = {.body = {0, 5}, .head = {5, 2}, .input = NONE, .hidden = X, .logits = LOGITS}};

/* Bytes and seconds. */
static const st_profile slow_devices[2] = {
    {.kind = ST_DEVICE_HOST, .memory_rate = 1000, .disk_rate = 100},
    {.kind = ST_DEVICE_CARD, .memory_rate = 10000, .link_up = 500, .link_down = 250, .handover_seconds = 0.5,
     .launch_seconds = 0.25},
};

/* Seconds of the step block to the GPU: 104 bytes with one row, 116 with two; its header and an output row are 48. The
 * embedding runs beside it and is shorter. */
static const double step_of_one = 0.208, step_of_two = 0.232, step_of_head = 0.096;

static const uint8_t all_host[7] = {0}, but_embedding[7] = {0, 1, 1, 1, 1, 1, 1};

typedef struct rig {
    st_profile devices[2];
    st_plan_source source;
    st_plan plan;
} rig;

static void set_up(rig *r, const st_program *program, const uint8_t *op_device)
{
    memset(r, 0, sizeof *r);
    memcpy(r->devices, slow_devices, sizeof r->devices);
    r->source = (st_plan_source){.desc = &hand_desc, .binding = &hand_binding, .program = program,
                                 .devices = r->devices, .device_count = 2};
    r->plan = (st_plan){.context = 1000, .batch = 2, .device_count = 2, .op_device = op_device};
}

/* Decoding a token and a prompt of `tokens` take so many seconds. */
static void takes(const rig *r, double decode, uint32_t tokens, double prefill, const char *limit)
{
    st_plan_speed speed = predict(&r->source, &r->plan, 10, tokens, -1);
    close_to(1 / speed.decode_tps, decode);
    close_to(tokens / speed.prefill_tps, prefill);
    assert_string_equal(speed.limit, limit);
    assert_int_equal(speed.depth, 10);
    assert_int_equal(speed.prefill, tokens);
}

/* A step without logits takes 1 s, and 0.16 s a row. */
static void steps_of_prompts_have_enough_rows(void **state)
{
    (void)state;
    rig r;
    st_arena arena = {0};
    strata_error error;
    set_up(&r, &dense, all_host);
    r.plan.batch = 512; /* 0.162 s a row; 32 rows take 0.191 each, 64 take 0.176 */
    if (st_plan_schedule(&r.source, &r.plan, &arena, &error) != STRATA_OK) fail_msg("%s", error.message);
    assert_int_equal(st_plan_prompt_rows(&r.source, &r.plan), 64);
    r.devices[ST_HOST].memory_rate = 1e6; /* operations take the time: rows are all the same */
    r.devices[ST_HOST].op_rate = 10;
    assert_int_equal(st_plan_prompt_rows(&r.source, &r.plan), ST_PROMPT_ROWS_MIN);
    r.plan.batch = 5;
    assert_int_equal(st_plan_prompt_rows(&r.source, &r.plan), 5);
    st_arena_free(&arena);
}

/* Each operation has the time of its class, on either device; the last product of a token is another one. */
static void operations_take_the_time_of_their_class(void **state)
{
    (void)state;
    rig r;
    set_up(&r, &dense, but_embedding);
    double before = 1 / predict(&r.source, &r.plan, 10, 1, -1).decode_tps;
    r.devices[ST_CARD].classes[ST_CLASS_PLAIN_PRODUCT].seconds = 3;
    close_to(1 / predict(&r.source, &r.plan, 10, 1, -1).decode_tps, before + 6);
    r.devices[ST_CARD].classes[ST_CLASS_ROWS].seconds = 0.5;  /* the sum and the gathered row */
    r.devices[ST_CARD].classes[ST_CLASS_ROUTE].seconds = 100; /* of no operation */
    close_to(1 / predict(&r.source, &r.plan, 10, 1, -1).decode_tps, before + 7);
    assert_string_equal(predict(&r.source, &r.plan, 10, 1, -1).limit, "small operations");
    set_up(&r, &dense, all_host);
    before = 1 / predict(&r.source, &r.plan, 10, 1, -1).decode_tps;
    r.devices[ST_HOST].classes[ST_CLASS_PLAIN_PRODUCT].seconds = 3;
    close_to(1 / predict(&r.source, &r.plan, 10, 1, -1).decode_tps, before + 6);
}

static void all_on_the_host(void **state)
{
    (void)state;
    rig r;
    set_up(&r, &dense, all_host);
    takes(&r, 5.224, 3, 1.320 + 1.160 + 4.064, "RAM");
    r.devices[ST_HOST].type_share[ST_TYPE_F32] = 0.5;
    takes(&r, 10.448, 3, 2 * (1.320 + 1.160 + 4.064), "RAM");
    r.devices[ST_HOST].op_rate = 10; /* 8, 128, 32; 32, 1600 operations */
    takes(&r, 0.8 + 12.8 + 3.2 + 3.2 + 160, 1, 0.8 + 12.8 + 3.2 + 3.2 + 160, "arithmetic");
}

/* Two rows: weights are read once for both. */
static void conversations_read_weights_once(void **state)
{
    (void)state;
    rig r;
    set_up(&r, &dense, all_host);
    st_arena arena = {0};
    strata_error error;
    assert_int_equal(st_plan_schedule(&r.source, &r.plan, &arena, &error), STRATA_OK);
    close_to(st_plan_together_tps(&r.source, &r.plan, 10, 1, -1), 1 / 5.224);
    close_to(st_plan_together_tps(&r.source, &r.plan, 10, 2, -1), 2 / (0.128 + 1 + 0.192 + 0.128 + 4));
    r.devices[ST_HOST].row_seconds = 0.5; /* between two steps */
    close_to(st_plan_together_tps(&r.source, &r.plan, 10, 1, -1), 1 / (5.224 + 0.5));
    close_to(st_plan_together_tps(&r.source, &r.plan, 10, 2, -1), 2 / (5.448 + 1));
    r.devices[ST_HOST].row_seconds = 0;
    assert_true(st_plan_predict(&r.source, &r.plan, 10, 1, -1).together_tps == 0);
    r.plan.conversations = 2;
    close_to(st_plan_predict(&r.source, &r.plan, 10, 1, -1).together_tps, 2 / 5.448);
    st_arena_free(&arena);
}

/* The step goes up, the embedding follows, two segments run, logits come down. In the prompt the second batch's
 * embedding waits until the first has left the host's memory. */
static void all_but_the_embedding_on_the_gpu(void **state)
{
    (void)state;
    rig r;
    set_up(&r, &dense, but_embedding);
    double head = step_of_head + 0.25 + 0.4064 + 1.6 + 0.5;
    double first = step_of_two + 0.128 + 0.5, second = first + step_of_one + 0.064 + 0.25 + 0.1096 + head;
    takes(&r, step_of_one + 0.064 + 0.25 + 0.1096 + head, 3, second, "the link");
    r.devices[ST_CARD].link_up = r.devices[ST_CARD].link_down = 1e6; /* copies are then limited by the host's memory */
    double quick = 0.048 + 0.25 + 0.4064 + 0.4 + 0.5;
    close_to(1 / predict(&r.source, &r.plan, 10, 3, -1).decode_tps, 0.104 + 0.032 + 0.25 + 0.1096 + quick);
    assert_string_equal(predict(&r.source, &r.plan, 10, 3, -1).limit, "hand-overs");
}

/* A conversation's page tables grow with its positions, up to its part of the tables that the plan has room for. */
static void page_tables_are_sent_with_the_step(void **state)
{
    (void)state;
    rig r;
    set_up(&r, &dense, but_embedding);
    double before = 1 / predict(&r.source, &r.plan, 0, 1, -1).decode_tps;
    r.plan.conversations = 2;
    r.plan.step = (st_step_limits){.rows = 2, .out_rows = 3, .conversations = 2, .tables = 40};
    static const struct { uint32_t depth, entries; } rows[] = {{0, 1}, {49, 1}, {50, 2}, {499, 10}, {999, 20}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double seconds = 1 / predict(&r.source, &r.plan, rows[i].depth, 1, -1).decode_tps;
        close_to(seconds, before + 4 * (3 + rows[i].entries) / 500.0);
    }
}

/* The host's matrix runs while x goes up; the head waits for it to come back. */
static void host_and_gpu_alternate(void **state)
{
    (void)state;
    static const uint8_t devices[] = {0, 0, 1, 0, 0};
    rig r;
    set_up(&r, &dense, devices);
    double decode = 1.064 + 0.064 + 0.25 + 0.0096 + 0.128 + 0.5 + 4.064;
    takes(&r, decode, 1, decode, "RAM");
}

/* Weights that do not fit in RAM are read from disk at every step: here half of them. */
static void weights_read_from_disk(void **state)
{
    (void)state;
    rig r;
    set_up(&r, &dense, all_host);
    r.plan.device_count = 1;
    r.plan.devices[ST_HOST] = (st_plan_device){.capacity_bytes = 6000, .margin_bytes = 1000};
    r.plan.devices[ST_HOST].owners[ST_OWNER_KV] = 700;
    r.plan.devices[ST_HOST].owners[ST_OWNER_SCRATCH] = 200;
    r.plan.devices[ST_HOST].owners[ST_OWNER_WEIGHTS] = 4100; /* weights do not reduce the memory left for weights */
    takes(&r, 5.224, 1, 5.224, "RAM");
    r.plan.on_disk = true;
    takes(&r, 5.224 + 25.32, 1, 5.224 + 25.32, "the disk");
    r.plan.devices[ST_HOST].owners[ST_OWNER_KV] = 100000;
    takes(&r, 5.224 + 50.64, 1, 5.224 + 50.64, "the disk");
    r.plan.devices[ST_HOST].capacity_bytes = 200000;
    takes(&r, 5.224, 1, 5.224, "RAM");
}

/* --- experts --- */

static void experts_on_the_host(void **state)
{
    (void)state;
    static const uint8_t devices[] = {0, 1, 1, 0, 1, 1, 1};
    rig r;
    set_up(&r, &moe, devices);
    r.plan.experts.mode = ST_MOE_CPU;
    double head = step_of_head + 0.25 + 0.4064 + 1.6 + 0.5;
    double routed = step_of_one + 0.064 + 0.25 + 0.1048; /* x is on the host already */
    double decode = routed + 0.064 + 0.5 + 6 + 0.064 + 0.25 + 0.0096 + head;
    takes(&r, decode, 1, decode, "RAM");
    /* As a chain: one launch, half a round trip for each hand-over. A prompt is no chain. */
    r.devices[ST_CARD].round_trip_seconds = 0.1;
    double half = 0.05, chain = step_of_one + 0.25 + half + 0.064 + 0.1048 + half + 0.064 + 6 + half + 0.064 + 0.0096;
    takes(&r, chain + head, 1, decode, "RAM");
    r.devices[ST_CARD].round_trip_seconds = 0;
    r.devices[ST_HOST].op_rate = 128; /* experts: 768 operations, 6 s as well */
    takes(&r, decode, 1, decode, "RAM");
    r.devices[ST_HOST].classes[ST_CLASS_EXPERTS].op_share = 0.5;
    takes(&r, decode + 6, 1, decode + 6, "arithmetic");
}

static const double cached_head = 0.25 + 0.0096 + 0.096 + 0.25 + 0.4064 + 1.6 + 0.5;

/* Seconds of a token's two experts, from the GPU's launch to the launch that adds the host's sum. Each expert is a hit
 * with probability `hit`; the GPU takes 0.6 s, and the host `all` seconds if both miss. */
static double cached(double hit, double all)
{
    double none = hit * hit, one = 2 * hit * (1 - hit), both = (1 - hit) * (1 - hit), back = 0.064 + 0.25;
    return none * (0.25 + 0.6) + one * (0.5 + all / 2 + back) + both * (0.5 + all + back);
}

/* One of four experts has a slot: the hit rate is a quarter. */
static void experts_in_a_cache(void **state)
{
    (void)state;
    uint32_t slots = 1;
    rig r;
    set_up(&r, &moe, but_embedding);
    r.plan.experts = (st_plan_experts){.mode = ST_MOE_CACHE, .slots = &slots};
    double forked = step_of_one + 0.064 + 0.25 + 0.1048 + 0.064; /* x is on the host already: ids and weights are moved */
    takes(&r, forked + cached(0.25, 6) + cached_head, 1, forked + cached(0.25, 6) + cached_head, "RAM");

    /* other rates; the GPU's part is the longer one in the end */
    close_to(1 / predict(&r.source, &r.plan, 0, 1, 0.9).decode_tps, forked + cached(0.9, 6) + cached_head);
    close_to(1 / predict(&r.source, &r.plan, 0, 1, 1).decode_tps, forked + cached(1, 6) + cached_head);
    close_to(1 / predict(&r.source, &r.plan, 0, 1, 0).decode_tps, forked + cached(0, 6) + cached_head);

    /* As a chain: the last link of the layer, the sum, has half a round trip even if no expert is missing. */
    r.devices[ST_CARD].round_trip_seconds = 0.1;
    double start = step_of_one + 0.25 + 0.05 + 0.064 + 0.1048 + 0.05 + 0.064, rest = 0.05 + 0.0096 + cached_head - 0.2596;
    close_to(1 / predict(&r.source, &r.plan, 0, 1, 1).decode_tps, start + 0.6 + rest);
    close_to(1 / predict(&r.source, &r.plan, 0, 1, 0).decode_tps, start + 6 + 0.064 + rest);
    r.devices[ST_CARD].round_trip_seconds = 0;
    /* what an operation takes beside its bytes comes once, and not at all on a host without a miss; of two misses one is fetched
     * meanwhile, in 6 s */
    r.devices[ST_HOST].classes[ST_CLASS_EXPERTS].seconds = 7;
    close_to(1 / predict(&r.source, &r.plan, 0, 1, 1).decode_tps, forked + cached(1, 6) + cached_head);
    close_to(1 / predict(&r.source, &r.plan, 0, 1, 0).decode_tps, forked + cached(0, 3) + 7 + cached_head);
    r.devices[ST_HOST].classes[ST_CLASS_EXPERTS].seconds = 0;

    /* no slots: no hits; a slot for each expert: nothing is copied, and the layer is one stage */
    slots = 0;
    close_to(1 / predict(&r.source, &r.plan, 0, 1, -1).decode_tps, forked + cached(0, 6) + cached_head);
    slots = 4;
    double found = step_of_one + 0.064 + 0.25 + 0.1048 + 0.6 + cached_head - 0.25;
    close_to(1 / predict(&r.source, &r.plan, 0, 1, -1).decode_tps, found);
    slots = 1;
    r.plan.on_disk = true; /* host weights: the table and the experts, 15200 bytes; half of them fit */
    r.plan.devices[ST_HOST].capacity_bytes = 7600;
    double embedded = 0.064 + 0.32 - step_of_one; /* longer than the copy of the step */
    close_to(1 / predict(&r.source, &r.plan, 0, 1, 0.9).decode_tps,
             forked + embedded + cached(0.9, 6 + 30) + cached_head);
}

/* A prompt of two tokens uses three of four experts on average. Of these three quarters are fetched (13.5 s), computed on the host
 * (6.75 s, as reading them takes), or divided. */
static void experts_of_a_prompt(void **state)
{
    (void)state;
    uint32_t slots = 1;
    rig r;
    set_up(&r, &moe, but_embedding);
    r.plan.experts = (st_plan_experts){.mode = ST_MOE_CACHE, .slots = &slots};
    double routed = step_of_two + 0.128 + 0.25 + 0.1096, rest = cached_head + 0.0096; /* two rows; the head has one */
    close_to(2 / predict(&r.source, &r.plan, 0, 2, -1).prefill_tps, routed + 0.128 + 0.5 + 6.75 + 0.128 + 0.25 + rest);
    st_arena arena = {0};
    st_plan scheduled = r.plan;
    strata_error error;
    if (st_plan_schedule(&r.source, &scheduled, &arena, &error) != STRATA_OK) fail_msg("%s", error.message);
    close_to(st_plan_prompt_seconds(&r.source, &scheduled, 2, -1), routed + 0.128 + 0.5 + 6.75 + 0.128 + 0.25 + rest);
    close_to(st_plan_prompt_seconds(&r.source, &scheduled, 2, 0.5), routed + 0.128 + 0.5 + 4.5 + 0.128 + 0.25 + rest); /* half of them hit */
    double none = 0.25 + 0.9, one = 0.5 + 3 + 0.128 + 0.25; /* missing: the GPU's time, and the host's after the routing has come */
    close_to(st_plan_prompt_seconds(&r.source, &scheduled, 2, 1), routed + 0.128 + none + rest);
    close_to(st_plan_prompt_seconds(&r.source, &scheduled, 2, 5.0 / 6), routed + 0.128 + none / 2 + one / 2 + rest);
    st_arena_free(&arena);
    r.devices[ST_HOST].op_rate = 128; /* 9 s: 1,152 operations; the memory is the limit of both together */
    r.devices[ST_HOST].classes[ST_CLASS_EXPERTS].op_share = 0.9;
    close_to(2 / predict(&r.source, &r.plan, 0, 2, -1).prefill_tps, routed + 0.128 + 0.5 + 6.75 + 2 * 0.25 + 0.128 + rest);
    r.devices[ST_HOST].classes[ST_CLASS_EXPERTS].op_share = 0.225; /* 40 s for 2.25 experts, of which two are fetched, in 6 s each */
    double last = 0.3, add = 0.128 + 0.25; /* of the expert that arrives last; of the host's sum */
    close_to(2 / predict(&r.source, &r.plan, 0, 2, -1).prefill_tps, routed + 0.128 + 0.5 + 2 * 6 + last + add + 0.25 + rest);
    r.devices[ST_HOST].classes[ST_CLASS_EXPERTS].op_share = 1e-15; /* the GPU fetches all of them */
    close_to(2 / predict(&r.source, &r.plan, 0, 2, -1).prefill_tps, routed + 0.128 + 0.5 + 13.5 + last + 0.25 + rest);
    r.devices[ST_HOST].op_rate = 0;
    r.devices[ST_HOST].memory_rate = 500; /* 13.5 s either way; the host's sum takes less than the GPU's last expert */
    double told = 0.256 - step_of_two + 0.128 + 0.5; /* the embedding is slower; the routing reaches the host */
    close_to(2 / predict(&r.source, &r.plan, 0, 2, -1).prefill_tps, routed + told + 13.5 + add + rest);
    r.devices[ST_CARD].memory_rate = 600; /* 15 s of work on the GPU hide the host's */
    double slow = 10000.0 / 600 * (0.1096 + 0.0192 + 0.4064) - (0.1096 + 0.0192 + 0.4064);
    close_to(2 / predict(&r.source, &r.plan, 0, 2, -1).prefill_tps, routed + told - 0.5 + 0.25 + 15 + 0.128 + 0.25 + rest + slow);
}

/* 2 s of the host's memory for each expert, 5 s over the link for the first; experts that compute slowly are fetched. */
static void slow_experts_are_fetched(void **state)
{
    (void)state;
    static const uint32_t tokens[] = {1, 1};
    st_profile host = {.memory_rate = 1000, .op_rate = 100}, card = {.memory_rate = 10000, .link_up = 400};
    st_split_demand demand = {.missing = 2, .tokens = tokens, .expert_bytes = 2000, .token_ops = 200};
    assert_int_equal(st_split_fetch(&host, &card, &demand), 0);
    demand.host_factor = 4; /* they were measured */
    assert_int_equal(st_split_fetch(&host, &card, &demand), 1);
    demand.host_factor = 0;
    host.classes[ST_CLASS_EXPERTS].op_share = 0.25; /* 8 s each */
    assert_int_equal(st_split_fetch(&host, &card, &demand), 1);
}

/* 1 s beside the experts' bytes and 2 s each. Copies take up to half of the memory's rate while the CPU reads, so that a CPU
 * that took longer may be as fast as before. */
static void fetches_may_slow_the_cpu_down(void **state)
{
    (void)state;
    static const uint32_t tokens[] = {1, 1, 1, 1};
    st_profile host = {.memory_rate = 1000, .op_rate = 1e6, .classes[ST_CLASS_EXPERTS] = {.seconds = 1}};
    st_profile card = {.memory_rate = 10000, .link_up = 1000};
    st_split_demand demand = {.missing = 4, .tokens = tokens, .expert_bytes = 2000, .token_ops = 200, .host_factor = 1};
    close_to(st_split_host_factor(&host, &card, &demand, 0, 9), 1);
    close_to(st_split_host_factor(&host, &card, &demand, 0, 18), 2);
    close_to(st_split_host_factor(&host, &card, &demand, 0, 4.5), 0.5);
    close_to(st_split_host_factor(&host, &card, &demand, 1, 8), 1);
    close_to(st_split_host_factor(&host, &card, &demand, 1, 16), 2); /* the copy takes 2 s of the memory's */
    close_to(st_split_host_factor(&host, &card, &demand, 3, 5), 1); /* the copies last longer: 2 s become 4 */
    close_to(st_split_host_factor(&host, &card, &demand, 3, 8), 2);
    demand.host_factor = 3;
    close_to(st_split_host_factor(&host, &card, &demand, 3, 8), 8.0 / 3);
    close_to(st_split_host_factor(&host, &card, &demand, 3, 10), 3);
    close_to(st_split_host_factor(&host, &card, &demand, 4, 1), 3); /* it has computed nothing */
    host.op_rate = 10; /* arithmetic takes 20 s each, and no memory */
    close_to(st_split_host_factor(&host, &card, &demand, 3, 42), 2);
    host.memory_rate = 0;
    close_to(st_split_host_factor(&host, &card, &demand, 3, 42), 2);
}

/* What the experts on the CPU take beside their bytes is saved if all are fetched. */
static void all_are_fetched_if_beginning_is_slow(void **state)
{
    (void)state;
    static const uint32_t tokens[] = {1, 1};
    st_profile host = {.memory_rate = 1000, .op_rate = 1e6}, card = {.memory_rate = 10000, .link_up = 500};
    st_split_demand demand = {.missing = 2, .tokens = tokens, .expert_bytes = 2000, .token_ops = 200};
    assert_int_equal(st_split_fetch(&host, &card, &demand), 0);
    host.classes[ST_CLASS_EXPERTS].seconds = 30;
    assert_int_equal(st_split_fetch(&host, &card, &demand), 2);
}

/* A hit rate is an average over all layers. Layers with no slots or with all of them have rates of 0 and 1; the others
 * get the remainder. */
static void a_hit_rate_is_over_all_layers(void **state)
{
    (void)state;
    st_op ops[11]; /* the embedding, two layers, the head */
    uint32_t slots[2] = {2, 0};
    st_desc desc = {.layer_count = 2};
    memcpy(ops, moe_ops, 5 * sizeof *ops);
    memcpy(ops + 5, moe_ops + 1, 6 * sizeof *ops);
    for (int i = 5; i < 9; i++) ops[i].layer = 1;
    st_program program = moe;
    program.ops = ops;
    program.op_count = 11;
    program.main.body.count = 9;
    program.main.head.first = 9;
    static const uint8_t devices[11] = {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    rig r;
    set_up(&r, &program, devices);
    r.source.desc = &desc;
    r.plan.experts = (st_plan_experts){.mode = ST_MOE_CACHE, .slots = slots};
    /* the first layer's end and the second's beginning are one segment */
    double layer = 0.25 + 0.1048 + 0.192 + 0.25 + 0.0096, rest = cached_head - 0.2596 + step_of_one + 0.064 - 0.25;
    rest -= 0.128; /* the first layer's x is on the host already */
    close_to(1 / predict(&r.source, &r.plan, 0, 1, -1).decode_tps, 2 * layer + cached(0.5, 6) + cached(0, 6) + rest); /* half of 4 */
    close_to(1 / predict(&r.source, &r.plan, 0, 1, 0.4).decode_tps, 2 * layer + cached(0.8, 6) + cached(0, 6) + rest);
    slots[1] = 4; /* the second layer always hits */
    double found = 0.1048 + 0.6 + 0.25 + 0.0096;
    close_to(1 / predict(&r.source, &r.plan, 0, 1, 0.6).decode_tps, layer + cached(0.2, 6) + found + rest);
    close_to(1 / predict(&r.source, &r.plan, 0, 1, 0.4).decode_tps, layer + cached(0, 6) + found + rest);
}

static void assumed_hit_rates(void **state)
{
    (void)state;
    static const double few[][2] = {{-1, 0}, {0, 0}, {0.25, 0.25}, {0.9, 0.9}, {1, 1}, {2, 1}};
    for (size_t i = 0; i < sizeof few / sizeof *few; i++) close_to(st_hit_rate_assumed(63, few[i][0]), few[i][1]);
    static const double many[][2] = {{-1, 0},        {0, 0},       {0.03, 0.18},   {0.06, 0.36}, {0.125, 0.55},
                                     {0.19, 0.74},   {0.285, 0.815}, {0.38, 0.89}, {0.505, 0.925}, {0.63, 0.96},
                                     {0.815, 0.98},  {1, 1},       {2, 1}};
    for (size_t i = 0; i < sizeof many / sizeof *many; i++) {
        close_to(st_hit_rate_assumed(64, many[i][0]), many[i][1]);
        close_to(st_hit_rate_assumed(512, many[i][0]), many[i][1]);
    }
}

static void depth_and_prefill_are_clamped(void **state)
{
    (void)state;
    rig r;
    set_up(&r, &dense, all_host);
    r.plan.batch = 512;
    st_plan_speed speed = predict(&r.source, &r.plan, 5000, 0, -1);
    assert_int_equal(speed.depth, 999); /* the token itself needs a position */
    assert_int_equal(speed.prefill, 512);
    assert_false(speed.estimate);
    r.plan.context = 100;
    assert_int_equal(predict(&r.source, &r.plan, 99, 0, -1).depth, 99);
    assert_int_equal(predict(&r.source, &r.plan, 99, 0, -1).prefill, 100);
    r.plan.context = 100000;
    r.plan.batch = 2048;
    assert_int_equal(predict(&r.source, &r.plan, 99, 0, -1).prefill, 2048);
    assert_int_equal(predict(&r.source, &r.plan, 99, 7, -1).prefill, 7);
    r.devices[ST_CARD].estimate = true;
    assert_true(predict(&r.source, &r.plan, 0, 1, -1).estimate);
    r.plan.device_count = 1; /* an unused GPU does not make it an estimate */
    assert_false(predict(&r.source, &r.plan, 0, 1, -1).estimate);
    r.devices[ST_HOST].estimate = true;
    assert_true(predict(&r.source, &r.plan, 0, 1, -1).estimate);
    r.devices[ST_HOST].memory_rate = 0; /* nothing is known */
    assert_true(predict(&r.source, &r.plan, 0, 1, -1).decode_tps == 0);
}

/* ---- for every model and split ----------------------------------------------------------------------------------- */

static const char *const families[] = {"llama",    "mixtral",      "qwen2",      "qwen3",  "qwen2moe",
                                       "qwen3moe", "olmoe",        "llama4",     "gemma4-e", "gemma4-dense",
                                       "gemma4-moe", "qwen35",     "qwen35moe"};

enum { FAMILIES = sizeof families / sizeof *families, OPS_MAX = 1024, LAYERS_MAX = 64, SPLITS = 12, TOKENS = 70 };

static uint64_t seed;

static double draw(double from, double to)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return from + (to - from) * (double)(seed >> 33) / (double)(1u << 31);
}

typedef struct model_rig {
    golden g;
    st_profile devices[2];
    st_plan_source source;
    st_plan plan;
    uint8_t op_device[OPS_MAX];
    uint32_t slots[LAYERS_MAX];
} model_rig;

static void draw_devices(model_rig *r)
{
    r->devices[ST_HOST] = st_profile_default(ST_DEVICE_HOST);
    r->devices[ST_CARD] = st_profile_default(ST_DEVICE_CARD);
    for (int d = 0; d < 2; d++) {
        r->devices[d].memory_rate = exp(draw(20, 28));
        r->devices[d].op_rate = exp(draw(20, 28));
        for (int c = 0; c < ST_CLASS_COUNT; c++)
            r->devices[d].classes[c] = (st_class_rates){.seconds = draw(0, 1e-5), .deep_seconds = draw(1e-5, 2e-5),
                                                        .memory_share = draw(0.2, 1), .op_share = draw(0.2, 1),
                                                        .fill = draw(0, 100)};
        r->devices[d].type_share[ST_TYPE_F32] = draw(0.2, 1);
    }
    r->devices[ST_HOST].disk_rate = exp(draw(18, 22));
    r->devices[ST_CARD].link_up = exp(draw(20, 25));
    r->devices[ST_CARD].link_down = exp(draw(20, 25));
}

static void draw_plan(model_rig *r)
{
    const st_program *p = r->g.program;
    assert_true(p->op_count <= OPS_MAX && r->g.desc->layer_count + r->g.desc->nextn_count <= LAYERS_MAX);
    for (uint32_t i = 0; i < p->op_count; i++) {
        const st_op *op = &p->ops[i];
        bool same = i > 0 && p->ops[i - 1].layer == op->layer && p->ops[i - 1].block == op->block;
        r->op_device[i] = same ? r->op_device[i - 1] : draw(0, 1) < 0.6;
        if (op->kind == ST_OP_EXPERTS) r->slots[op->layer] = (uint32_t)draw(0, op->p.experts.experts + 0.99);
    }
    r->plan = (st_plan){.context = 4096, .batch = 32, .device_count = 2, .op_device = r->op_device,
                        .kv_type = ST_TYPE_BF16, .on_disk = draw(0, 1) < 0.3};
    r->plan.devices[ST_HOST].capacity_bytes = (uint64_t)draw(0, 1e6);
    r->plan.experts = (st_plan_experts){.mode = draw(0, 1) < 0.6 ? ST_MOE_CACHE : ST_MOE_RESIDENT, .slots = r->slots};
}

static void open_model(model_rig *r, const char *name)
{
    memset(r, 0, sizeof *r);
    assert_true(golden_open(&r->g, name));
    r->source = (st_plan_source){.desc = r->g.desc, .binding = r->g.binding, .program = r->g.program,
                                 .devices = r->devices, .device_count = 2};
}

typedef struct seconds {
    double decode, prefill;
} seconds;

static seconds ask(const model_rig *r, uint32_t depth, uint32_t tokens)
{
    st_plan_speed speed = predict(&r->source, &r->plan, depth, tokens, -1);
    assert_true(speed.decode_tps > 0 && isfinite(speed.decode_tps));
    assert_true(speed.prefill_tps > 0 && isfinite(speed.prefill_tps));
    return (seconds){1 / speed.decode_tps, tokens / speed.prefill_tps};
}

static void not_slower(seconds than, seconds now, const char *what)
{
    if (now.decode > than.decode * (1 + 1e-12))
        fail_msg("%s: a token: %.9g s, then %.9g", what, than.decode, now.decode);
    if (now.prefill > than.prefill * (1 + 1e-12))
        fail_msg("%s: a prompt: %.9g s, then %.9g", what, than.prefill, now.prefill);
}

static void better_devices_are_not_slower(model_rig *r)
{
    st_profile *host = &r->devices[ST_HOST], *card = &r->devices[ST_CARD];
    double *const rates[] = {&host->memory_rate, &host->op_rate,  &host->disk_rate, &card->memory_rate,
                             &card->op_rate,     &card->link_up, &card->link_down};
    double *const times[] = {&card->launch_seconds, &card->handover_seconds};
    seconds before = ask(r, 100, TOKENS);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        double kept = *rates[i];
        *rates[i] *= draw(1, 3);
        not_slower(before, ask(r, 100, TOKENS), "a higher rate");
        *rates[i] = kept;
    }
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        double kept = *times[i];
        *times[i] *= draw(0, 1);
        not_slower(before, ask(r, 100, TOKENS), "a shorter time");
        *times[i] = kept;
    }
}

static void more_work_is_not_faster(model_rig *r)
{
    seconds before = ask(r, 0, 1);
    for (uint32_t depth = 1; depth < 4096; depth *= 4) {
        seconds now = ask(r, depth, 1);
        not_slower((seconds){now.decode, before.prefill}, before, "an earlier token");
        before = now;
    }
    before = ask(r, 4095, 2); /* the experts of a single row are never streamed */
    for (uint32_t tokens = 7; tokens < 32; tokens += 5) { /* up to a batch */
        seconds now = ask(r, 4095, tokens);
        not_slower((seconds){before.decode, now.prefill}, (seconds){before.decode, before.prefill}, "a shorter prompt");
        before.prefill = now.prefill;
    }
}

static void more_slots_are_not_slower(model_rig *r)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < r->g.program->op_count; i++)
        if (r->g.program->ops[i].kind == ST_OP_EXPERTS) most = r->g.program->ops[i].p.experts.experts;
    memset(r->slots, 0, sizeof r->slots);
    for (uint32_t n = 0; n < most * r->g.desc->layer_count; n++) {
        seconds before = ask(r, 100, TOKENS);
        r->slots[n / most]++;
        not_slower(before, ask(r, 100, TOKENS), "a slot");
    }
    if (!most || r->plan.experts.mode != ST_MOE_CACHE) return;
    seconds cached = ask(r, 100, TOKENS); /* with a slot for each, but for launches, as without a cache */
    r->plan.experts.mode = ST_MOE_RESIDENT;
    not_slower(cached, ask(r, 100, TOKENS), "residence");
}

static void predictions_are_monotonic(void **state)
{
    static model_rig r;
    open_model(&r, *state);
    for (uint64_t i = 0; i < (kit_is_slow() ? 2 : SPLITS); i++) {
        seed = i + 1;
        draw_devices(&r);
        draw_plan(&r);
        better_devices_are_not_slower(&r);
        more_work_is_not_faster(&r);
        more_slots_are_not_slower(&r);
    }
    golden_close(&r.g);
}

static void the_decode_prediction_equals_that_of_both(void **state)
{
    (void)state;
    static model_rig r;
    open_model(&r, "qwen3moe");
    for (uint64_t i = 0; i < 8; i++) {
        seed = i + 1;
        draw_devices(&r);
        draw_plan(&r);
        st_arena arena = {0};
        strata_error error;
        double tps;
        assert_int_equal(st_plan_schedule(&r.source, &r.plan, &arena, &error), STRATA_OK);
        assert_int_equal(st_plan_decode_tps(&r.source, &r.plan, 100, &tps, &error), STRATA_OK);
        assert_true(tps == st_plan_predict(&r.source, &r.plan, 100, TOKENS, -1).decode_tps);
        st_arena_free(&arena);
    }
    golden_close(&r.g);
}

/* Each conversation has its own positions before it: those of four take four times as long. */
static void conversations_have_their_own_kv(void **state)
{
    (void)state;
    static model_rig r;
    open_model(&r, "llama");
    r.devices[ST_HOST] = (st_profile){.kind = ST_DEVICE_HOST, .memory_rate = 1e6};
    r.plan = (st_plan){.context = 4096, .batch = 32, .device_count = 1, .op_device = r.op_device, .kv_type = ST_TYPE_F16};
    st_arena arena = {0};
    strata_error error;
    assert_int_equal(st_plan_schedule(&r.source, &r.plan, &arena, &error), STRATA_OK);
    double took[2][2]; /* for one and for four, at two depths */
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t d = 0; d < 2; d++)
            took[i][d] = (i ? 4 : 1) / st_plan_together_tps(&r.source, &r.plan, 10 + 2000 * d, i ? 4 : 1, -1);
    double deeper = took[0][1] - took[0][0];
    assert_true(deeper > 0 && fabs(took[1][1] - took[1][0] - 4 * deeper) < 1e-9 * took[1][1]);
    st_arena_free(&arena);
    golden_close(&r.g);
}

static void failed_allocations_are_errors(void **state)
{
    (void)state;
    static model_rig r;
    open_model(&r, "qwen35moe");
    seed = 3;
    draw_devices(&r);
    draw_plan(&r);
    strata_status status = STRATA_MEMORY;
    st_arena plan_arena = {0};
    strata_error error;
    for (uint64_t n = 1; status != STRATA_OK; n++) {
        st_fault_arm(ST_FAULT_ALLOC, n, false);
        status = st_plan_schedule(&r.source, &r.plan, &plan_arena, &error);
        st_fault_arm(ST_FAULT_ALLOC, 0, false);
        assert_true(n < 200 && (n > 2 || status != STRATA_OK) && (status == STRATA_OK || status == STRATA_MEMORY));
    }
    status = STRATA_MEMORY;
    for (uint64_t n = 1; status != STRATA_OK; n++) {
        double tps = 0;
        st_fault_arm(ST_FAULT_ALLOC, n, false);
        status = st_plan_decode_tps(&r.source, &r.plan, 100, &tps, &error);
        st_fault_arm(ST_FAULT_ALLOC, n, false);
        st_plan_speed speed = st_plan_predict(&r.source, &r.plan, 100, TOKENS, -1);
        st_fault_arm(ST_FAULT_ALLOC, 0, false);
        assert_true(status == STRATA_OK ? tps > 0 : tps == 0 && status == STRATA_MEMORY);
        if (status == STRATA_OK) assert_true(speed.decode_tps > 0);
        else assert_true(speed.decode_tps == 0 && !strcmp(speed.limit, "unknown"));
        assert_true(n < 200 && (n > 2 || status != STRATA_OK));
    }
    st_arena_free(&plan_arena);
    golden_close(&r.g);
}

int main(void)
{
    static struct CMUnitTest tests[FAMILIES + 20];
    size_t n = 0;
    for (; n < FAMILIES; n++)
        tests[n] = (struct CMUnitTest){.name = families[n], .test_func = predictions_are_monotonic,
                                       .initial_state = (void *)(uintptr_t)families[n]};
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(steps_of_prompts_have_enough_rows);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(operations_take_the_time_of_their_class);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(all_on_the_host);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(all_but_the_embedding_on_the_gpu);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(page_tables_are_sent_with_the_step);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(host_and_gpu_alternate);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(weights_read_from_disk);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(experts_on_the_host);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(experts_in_a_cache);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(experts_of_a_prompt);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(slow_experts_are_fetched);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(fetches_may_slow_the_cpu_down);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(all_are_fetched_if_beginning_is_slow);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(a_hit_rate_is_over_all_layers);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(assumed_hit_rates);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(depth_and_prefill_are_clamped);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(the_decode_prediction_equals_that_of_both);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(conversations_read_weights_once);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(conversations_have_their_own_kv);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(failed_allocations_are_errors);
    return _cmocka_run_group_tests("cost", tests, n, NULL, NULL);
}
