/* src/plan/schedule.c: the stages of split programs. A simulated machine runs them: every cell of its two memories
 * holds a tag (which value, and how often that was written), and the GPU runs its stages at once or much later. Each
 * operation must read the tags that it would read on one device. */
#include "support/golden.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "plan/schedule.h"

static const char *const families[] = {"llama",    "mixtral",      "qwen2",      "qwen3",  "qwen2moe",
                                       "qwen3moe", "olmoe",        "llama4",     "gemma4-e", "gemma4-dense",
                                       "gemma4-moe", "qwen35",     "qwen35moe",
                                       "more/deepseek2", "more/gpt-oss-clamp", "more/kimi-linear", "more/granitehybrid",
                                       "more/nemotron_h_moe", "more/lfm2moe", "more/qwen3next", "more/phi3",
                                       "more/mistral3"};

enum {
    FAMILIES = sizeof families / sizeof *families,
    MAPS = 400,
    MAPS_SLOW = 6,
    OPS_MAX = 1024,
    VALUES_MAX = 1024,
    STAGES_MAX = 4 * OPS_MAX,
    STEPS_MAX = 8,
    QUEUE_MAX = STEPS_MAX * STAGES_MAX,
};

static uint64_t seed;

static uint32_t draw(uint32_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % below);
}

/* ---- the machine of tags ----------------------------------------------------------------------------------------- */

typedef enum pace { PACE_AT_ONCE, PACE_LATE, PACE_RANDOM, PACES } pace;

/* A range run once on one device: the tags that each operation reads and writes. */
typedef struct step {
    const st_stages *stages;
    uint64_t wants[OPS_MAX][ST_OP_INPUTS], gives[OPS_MAX][2];
} step;

typedef struct queued {
    const step *step;
    const st_stage *stage;
} queued;

typedef struct machine {
    const st_program *program;
    pace pace;
    uint64_t *cells[2][2];        /* [device][st_rows]: one row, four bytes each */
    uint32_t version[VALUES_MAX]; /* number of writes once all issued stages are done */
    step steps[STEPS_MAX];
    uint32_t step_count;
    queued queue[QUEUE_MAX];      /* the GPU's */
    uint32_t queue_count, queue_done;
    bool wrong;
} machine;

static machine m;

static void machine_open(const st_program *program)
{
    memset(&m, 0, sizeof m);
    m.program = program;
    assert_true(program->op_count <= OPS_MAX && program->value_count <= VALUES_MAX);
    for (int d = 0; d < 2; d++)
        for (int r = 0; r < 2; r++) {
            m.cells[d][r] = st_alloc_zero(program->row_bytes[r] / 4 + 1, sizeof(uint64_t));
            assert_non_null(m.cells[d][r]);
        }
}

static void machine_close(void)
{
    for (int d = 0; d < 2; d++)
        for (int r = 0; r < 2; r++) st_free(m.cells[d][r]);
}

static void machine_begin(pace at)
{
    m.pace = at;
    m.wrong = false;
    m.queue_count = m.queue_done = m.step_count = 0;
}

static uint64_t *place(uint32_t device, int32_t value)
{
    const st_value *v = &m.program->values[value];
    return m.cells[device][v->rows] + v->offset_bytes / 4;
}

static uint64_t tag(int32_t value)
{
    return (uint64_t)(value + 1) << 32 | m.version[value];
}

static void fill(uint32_t device, int32_t value, uint64_t with)
{
    uint64_t *to = place(device, value);
    for (uint32_t i = 0; i < m.program->values[value].width; i++) to[i] = with;
}

static bool holds(uint32_t device, int32_t value, uint64_t what)
{
    const uint64_t *at = place(device, value);
    for (uint32_t i = 0; i < m.program->values[value].width; i++)
        if (at[i] != what) return false;
    return true;
}

static void expect(step *s, st_op_range range)
{
    for (uint32_t i = range.first; i < range.first + range.count; i++) {
        const st_op *op = &m.program->ops[i];
        for (int k = 0; k < ST_OP_INPUTS; k++)
            if (op->in[k] != ST_NO_VALUE) s->wants[i][k] = tag(op->in[k]);
        int32_t outs[] = {op->out, op->out2};
        for (int k = 0; k < 2; k++) {
            if (outs[k] == ST_NO_VALUE) continue;
            m.version[outs[k]]++;
            s->gives[i][k] = tag(outs[k]);
        }
    }
}

static void execute(const step *s, const st_stage *stage)
{
    if (stage->kind == ST_STAGE_MOVE) {
        memcpy(place(stage->device, stage->value), place(stage->from, stage->value),
               m.program->values[stage->value].width * sizeof(uint64_t));
        return;
    }
    for (uint32_t i = stage->ops.first; i < stage->ops.first + stage->ops.count; i++) {
        const st_op *op = &m.program->ops[i];
        for (int k = 0; k < ST_OP_INPUTS; k++)
            if (op->in[k] != ST_NO_VALUE && !holds(stage->device, op->in[k], s->wants[i][k])) m.wrong = true;
        if (op->out != ST_NO_VALUE) fill(stage->device, op->out, s->gives[i][0]);
        if (op->out2 != ST_NO_VALUE) fill(stage->device, op->out2, s->gives[i][1]);
    }
}

static void card_works(uint32_t until)
{
    for (; m.queue_done < until; m.queue_done++) execute(m.queue[m.queue_done].step, m.queue[m.queue_done].stage);
}

static void wait_for(const step *s, int32_t stage)
{
    if (stage == ST_NO_STAGE) return;
    for (uint32_t i = m.queue_done; i < m.queue_count; i++)
        if (m.queue[i].step == s && m.queue[i].stage == &s->stages->stages[stage]) card_works(i + 1);
}

static void wait_for_all(void)
{
    card_works(m.queue_count);
}

static step *add_step(st_op_range range, const st_stages *stages)
{
    assert_true(m.step_count < STEPS_MAX);
    step *s = &m.steps[m.step_count++];
    s->stages = stages;
    expect(s, range);
    return s;
}

/* Runs a range as the executor does. */
static step *issue(st_op_range range, const st_stages *stages)
{
    step *s = add_step(range, stages);
    for (uint32_t i = 0; i < stages->count; i++) {
        const st_stage *stage = &stages->stages[i];
        if (stage->kind == ST_STAGE_RUN && stage->device == ST_HOST) {
            wait_for(s, stage->wait);
            execute(s, stage);
        } else {
            assert_true(m.queue_count < QUEUE_MAX);
            m.queue[m.queue_count++] = (queued){s, stage};
        }
        if (m.pace == PACE_AT_ONCE) wait_for_all();
        else if (m.pace == PACE_RANDOM) card_works(m.queue_done + draw(m.queue_count - m.queue_done + 1));
    }
    return s;
}

/* How far the GPU may go in a chain: to the first value of the host that is not answered. */
static uint32_t chain_limit(const step *s, uint32_t answered)
{
    uint32_t i = m.queue_done;
    while (i < m.queue_count) {
        const st_stage *stage = m.queue[i].stage;
        bool up = stage->kind == ST_STAGE_MOVE && (stage->device == ST_CARD || stage->guarded);
        if (m.queue[i].step == s && up && (uint32_t)(stage - s->stages->stages) >= answered) break;
        i++;
    }
    return i;
}

/* Runs a range as a chain: the GPU's stages are launched at once, and the GPU is as far ahead of the host as the answers
 * let it. */
static void issue_chain(st_op_range range, const st_stages *stages)
{
    const step *s = add_step(range, stages);
    for (uint32_t i = 0; i < stages->count; i++) {
        const st_stage *stage = &stages->stages[i];
        assert_true(m.queue_count < QUEUE_MAX);
        if (stage->kind == ST_STAGE_MOVE || stage->device == ST_CARD) m.queue[m.queue_count++] = (queued){s, stage};
    }
    for (uint32_t i = 0; i <= stages->count; i++) { /* before stage i, all before it are answered */
        uint32_t most = chain_limit(s, i), ahead = most - m.queue_done;
        if (m.pace == PACE_AT_ONCE) card_works(most);
        else if (m.pace == PACE_RANDOM) card_works(m.queue_done + draw(ahead + 1));
        const st_stage *stage = i < stages->count ? &stages->stages[i] : NULL;
        if (!stage || stage->kind != ST_STAGE_RUN || stage->device != ST_HOST) continue;
        wait_for(s, stage->wait);
        assert_true(m.queue_done <= most); /* it does not wait for what waits for it */
        execute(s, stage);
    }
}

/* ---- ways to split a program ------------------------------------------------------------------------------------- */

static void split_ops(const st_program *p, uint32_t change_in, uint8_t *op_device)
{
    uint8_t device = (uint8_t)draw(2);
    for (uint32_t i = 0; i < p->op_count; i++) {
        if (draw(change_in) == 0) device ^= 1;
        op_device[i] = device;
    }
}

/* Devices by layer and block, as in plans. */
static void split_blocks(const st_program *p, uint8_t *op_device)
{
    for (uint32_t i = 0; i < p->op_count; i++) {
        const st_op *op = &p->ops[i];
        bool same = i > 0 && p->ops[i - 1].layer == op->layer && p->ops[i - 1].block == op->block;
        op_device[i] = same ? op_device[i - 1] : (uint8_t)draw(2);
    }
}

static void split_somehow(const st_program *p, uint8_t *op_device)
{
    static const uint32_t changes[] = {2, 3, 4, 16, 64};
    uint32_t way = draw(6);
    if (way == 5) split_blocks(p, op_device);
    else split_ops(p, changes[way], op_device);
}

/* ---- invariants of every schedule -------------------------------------------------------------------------------- */

/* The index after the last writer of the value that is read at `end`, or the start of the range. */
static uint32_t made_at(const st_program *p, st_op_range range, int32_t value, uint32_t end)
{
    uint32_t found = range.first;
    for (uint32_t i = range.first; i < end; i++)
        if (p->ops[i].out == value || p->ops[i].out2 == value) found = i + 1;
    return found;
}

/* Whether an operation on `device` reads the value, from operation `i` on, before it is written again. */
static bool is_read(const st_program *p, const uint8_t *op_device, st_op_range range, uint32_t i, int32_t value,
                    uint32_t device)
{
    for (; i < range.first + range.count; i++) {
        const st_op *op = &p->ops[i];
        for (int k = 0; k < ST_OP_INPUTS; k++)
            if (op->in[k] == value && op_device[i] == device) return true;
        if (op->out == value || op->out2 == value) return false;
    }
    return false;
}

/* An upload directly follows the operation that made the value. Downloads grouped together follow the last operation
 * that made one of their values. */
static void check_moves(const st_program *p, const uint8_t *op_device, st_op_range range, const st_stages *stages)
{
    uint32_t next = range.first, newest = range.first;
    bool down = false;
    for (uint32_t i = 0; i <= stages->count; i++) {
        const st_stage *stage = i < stages->count ? &stages->stages[i] : NULL;
        if (stage && stage->kind == ST_STAGE_MOVE) {
            uint32_t made = made_at(p, range, stage->value, next);
            assert_true(is_read(p, op_device, range, next, stage->value, stage->device)); /* every copy is read */
            if (stage->device == ST_CARD) assert_int_equal(made, next);
            else down = true;
            if (stage->device == ST_HOST && made > newest) newest = made;
            continue;
        }
        if (down) assert_int_equal(newest, next);
        down = false;
        if (stage) next = stage->ops.first + stage->ops.count;
        newest = range.first;
    }
}

static void check_runs(const uint8_t *op_device, st_op_range range, const st_stages *stages)
{
    static bool awaited[STAGES_MAX];
    uint32_t next = range.first;
    assert_true(stages->count <= STAGES_MAX);
    memset(awaited, 0, stages->count);
    for (uint32_t i = 0; i < stages->count; i++) {
        const st_stage *stage = &stages->stages[i];
        if (stage->kind == ST_STAGE_MOVE) {
            assert_int_equal(stage->from, 1 - stage->device);
            assert_int_equal(stage->wait, ST_NO_STAGE);
            continue;
        }
        assert_int_equal(stage->ops.first, next);
        assert_true(stage->ops.count > 0);
        for (uint32_t k = 0; k < stage->ops.count; k++) assert_int_equal(op_device[next + k], stage->device);
        next += stage->ops.count;
        if (stage->wait == ST_NO_STAGE) continue;
        assert_int_equal(stage->device, ST_HOST);
        assert_true(stage->wait < (int32_t)i && stages->stages[stage->wait].kind == ST_STAGE_MOVE);
        awaited[stage->wait] = true;
    }
    assert_int_equal(next, range.first + range.count);
    if (stages->pending != ST_NO_STAGE) awaited[stages->pending] = true;
    for (uint32_t i = 0; i < stages->count; i++) assert_int_equal(stages->stages[i].awaited, awaited[i]);
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

typedef struct part {
    const st_part *of;
    st_stages body, head;
    uint8_t logits_device;
} part;

static void build_range(const st_program *p, const uint8_t *op_device, st_op_range range, uint8_t *valid,
                        st_arena *arena, st_stages *out)
{
    strata_error error;
    assert_int_equal(st_schedule_build(p, op_device, range, valid, arena, out, &error), STRATA_OK);
    check_runs(op_device, range, out);
    check_moves(p, op_device, range, out);
}

static part build_part(const st_program *p, const uint8_t *op_device, const st_part *of, uint32_t input_device,
                       st_arena *arena)
{
    static uint8_t valid[VALUES_MAX];
    part out = {.of = of};
    memset(valid, 0, sizeof valid);
    if (of->input != ST_NO_VALUE) valid[of->input] = (uint8_t)(1u << input_device);
    build_range(p, op_device, of->body, valid, arena, &out.body);
    build_range(p, op_device, of->head, valid, arena, &out.head);
    out.logits_device = op_device[of->head.first + of->head.count - 1];
    assert_int_equal(valid[of->logits], 1 << out.logits_device);
    return out;
}

static void run_head(const part *of)
{
    issue(of->of->head, &of->head);
    if (of->logits_device == ST_CARD) wait_for_all(); /* the caller reads the logits */
    if (!holds(of->logits_device, of->of->logits, tag(of->of->logits))) m.wrong = true;
}

/* A batch without logits, one with two calls for logits, the NextN block if there is one, and another batch. A stage
 * that overwrites a value on the host waits for copies that still read it; there are no other waits in between. */
static bool runs_right(const part *main_part, const part *nextn, uint32_t input_device, pace at)
{
    machine_begin(at);
    const step *s = issue(main_part->of->body, &main_part->body);
    wait_for(s, main_part->body.pending);
    issue(main_part->of->body, &main_part->body);
    run_head(main_part);
    run_head(main_part);
    if (nextn->of) {
        wait_for_all(); /* the executor copies hidden states */
        m.version[nextn->of->input]++;
        fill(input_device, nextn->of->input, tag(nextn->of->input));
        s = issue(nextn->of->body, &nextn->body);
        run_head(nextn);
        wait_for(s, nextn->body.pending);
    } else {
        wait_for(&m.steps[1], main_part->body.pending);
    }
    issue(main_part->of->body, &main_part->body);
    run_head(main_part);
    wait_for_all();
    return !m.wrong;
}

static void every_split_computes_the_same(void **state)
{
    golden g;
    assert_true(golden_open(&g, *state));
    const st_program *p = g.program;
    static uint8_t op_device[OPS_MAX];
    machine_open(p);
    uint32_t maps = kit_is_slow() ? MAPS_SLOW : MAPS;
    for (uint32_t i = 0; i < maps; i++) {
        st_arena arena = {0};
        seed = i + 1;
        split_somehow(p, op_device);
        uint32_t input_device = draw(2);
        part main_part = build_part(p, op_device, &p->main, 0, &arena), nextn = {0};
        if (p->nextn.body.count) nextn = build_part(p, op_device, &p->nextn, input_device, &arena);
        for (int at = 0; at < PACES; at++)
            if (!runs_right(&main_part, &nextn, input_device, (pace)at)) fail_msg("map %u, pace %d", i, at);
        st_arena_free(&arena);
    }
    machine_close();
    golden_close(&g);
}

/* Splits that may run as a chain compute the same as one, at any pace. Of those by blocks, as plans have them, most do. */
static void chains_compute_the_same(void **state)
{
    (void)state;
    uint32_t chains = 0;
    for (uint32_t f = 0; f < FAMILIES; f++) {
        golden g;
        assert_true(golden_open(&g, families[f]));
        static uint8_t op_device[OPS_MAX];
        machine_open(g.program);
        for (uint32_t i = 0; i < (kit_is_slow() ? 4 : 60); i++) {
            st_arena arena = {0};
            seed = 1000 * f + i + 1;
            if (i % 2) split_blocks(g.program, op_device);
            else split_somehow(g.program, op_device);
            part of = build_part(g.program, op_device, &g.program->main, 0, &arena);
            for (int at = 0; at < PACES && of.body.chained; at++) {
                chains++;
                machine_begin((pace)at);
                for (int k = 0; k < 2; k++) {
                    issue_chain(of.of->body, &of.body);
                    wait_for_all(); /* the executor waits for the end of a chain before the host writes values */
                    run_head(&of);
                }
                if (m.wrong) fail_msg("%s, map %u, pace %d", families[f], i, at);
            }
            st_arena_free(&arena);
        }
        machine_close();
        golden_close(&g);
    }
    assert_true(chains > FAMILIES);
}

static bool body_runs_right(const part *of, const st_stages *body)
{
    machine_begin(PACE_LATE);
    issue(of->of->body, body);
    wait_for_all();
    return !m.wrong;
}

/* Every wait is needed: the simulated machine detects each that is removed. Waits before reads and waits before writes
 * both occur. */
static void every_wait_is_needed(void **state)
{
    (void)state;
    uint32_t kinds[2] = {0};
    for (uint32_t f = 0; f < FAMILIES; f++) {
        golden g;
        assert_true(golden_open(&g, families[f]));
        static uint8_t op_device[OPS_MAX];
        static st_stage copy[STAGES_MAX];
        machine_open(g.program);
        for (uint32_t i = 0; i < (kit_is_slow() ? 1 : 12); i++) {
            st_arena arena = {0};
            seed = 1000 * f + i + 1;
            split_somehow(g.program, op_device);
            part of = build_part(g.program, op_device, &g.program->main, 0, &arena);
            st_stages without = {.stages = copy, .count = of.body.count, .pending = of.body.pending};
            memcpy(copy, of.body.stages, of.body.count * sizeof *copy);
            assert_true(body_runs_right(&of, &without));
            for (uint32_t k = 0; k < of.body.count; k++) {
                if (copy[k].wait == ST_NO_STAGE) continue;
                kinds[copy[copy[k].wait].device]++;
                copy[k].wait = ST_NO_STAGE;
                if (body_runs_right(&of, &without)) fail_msg("%s, map %u: stage %u waits for nothing", families[f], i, k);
                copy[k].wait = of.body.stages[k].wait;
            }
            st_arena_free(&arena);
        }
        machine_close();
        golden_close(&g);
    }
    assert_true(kinds[ST_HOST] > 0 && kinds[ST_CARD] > 0);
}

/* ---- by hand ----------------------------------------------------------------------------------------------------- */

enum { X, H, R, S, E, HAND_VALUES };

static st_op hand_op(int32_t in0, int32_t in1, int32_t out)
{
    st_op op = {.kind = in0 == ST_NO_VALUE ? ST_OP_ANGLES : ST_OP_ADD, .out = out, .out2 = ST_NO_VALUE};
    for (int i = 0; i < ST_OP_INPUTS; i++) op.in[i] = ST_NO_VALUE;
    for (int i = 0; i < ST_OP_WEIGHTS; i++) op.weight[i] = ST_NO_WEIGHT;
    op.in[0] = in0;
    op.in[1] = in1;
    return op;
}

typedef struct wanted_stage {
    st_stage_kind kind;
    uint8_t device;
    uint32_t first, count; /* of a RUN */
    int32_t value, wait;
    bool awaited;
} wanted_stage;

static void stages_are(const st_stages *stages, const wanted_stage *wanted, uint32_t count)
{
    assert_int_equal(stages->count, count);
    for (uint32_t i = 0; i < count; i++) {
        const st_stage *s = &stages->stages[i];
        assert_int_equal(s->kind, wanted[i].kind);
        assert_int_equal(s->device, wanted[i].device);
        assert_int_equal(s->awaited, wanted[i].awaited);
        assert_int_equal(s->wait, wanted[i].wait);
        if (s->kind == ST_STAGE_MOVE) {
            assert_int_equal(s->value, wanted[i].value);
            continue;
        }
        assert_int_equal(s->ops.first, wanted[i].first);
        assert_int_equal(s->ops.count, wanted[i].count);
    }
}

#define RUN(device, first, count, wait) {ST_STAGE_RUN, device, first, count, ST_NO_VALUE, wait, false}
#define MOVE(device, value, awaited) {ST_STAGE_MOVE, device, 0, 0, value, ST_NO_STAGE, awaited}

/* A layer with experts on the host: their inputs are copied down after the router, the GPU runs the shared expert
 * meanwhile, and the sum is copied back. */
static void the_gpu_runs_while_the_host_works(void **state)
{
    (void)state;
    st_value values[HAND_VALUES] = {{.name = "x", .width = 4}, {.name = "h", .width = 4}, {.name = "r", .width = 4},
                                    {.name = "s", .width = 4}, {.name = "e", .width = 4}};
    for (int i = 0; i < HAND_VALUES; i++) values[i].offset_bytes = (size_t)i * 64;
    const st_op ops[] = {hand_op(ST_NO_VALUE, ST_NO_VALUE, X), hand_op(X, ST_NO_VALUE, H), hand_op(H, ST_NO_VALUE, R),
                         hand_op(H, ST_NO_VALUE, S),           hand_op(H, R, E),           hand_op(E, S, X)};
    const uint8_t devices[] = {ST_HOST, ST_CARD, ST_CARD, ST_CARD, ST_HOST, ST_CARD};
    const wanted_stage wanted[] = {RUN(ST_HOST, 0, 1, ST_NO_STAGE), MOVE(ST_CARD, X, false),
                                   RUN(ST_CARD, 1, 2, ST_NO_STAGE), MOVE(ST_HOST, H, false),
                                   MOVE(ST_HOST, R, true),          RUN(ST_CARD, 3, 1, ST_NO_STAGE),
                                   RUN(ST_HOST, 4, 1, 4),           MOVE(ST_CARD, E, true),
                                   RUN(ST_CARD, 5, 1, ST_NO_STAGE)};
    st_program program = {.ops = ops, .op_count = 6, .values = values, .value_count = HAND_VALUES};
    uint8_t valid[HAND_VALUES] = {0};
    st_arena arena = {0};
    st_stages stages;
    strata_error error;
    assert_int_equal(st_schedule_build(&program, devices, (st_op_range){0, 6}, valid, &arena, &stages, &error), 0);
    stages_are(&stages, wanted, sizeof wanted / sizeof *wanted);
    assert_int_equal(stages.pending, 7);
    static const uint8_t after[] = {2, 3, 3, 2, 3};
    assert_memory_equal(valid, after, sizeof after);
    st_arena_free(&arena);
}

/* An operation whose matrices are fetched is a run of its own; the flag moves no value. */
static void fetched_operations_are_runs_of_their_own(void **state)
{
    (void)state;
    const st_value values[] = {{.name = "x", .width = 4}, {.name = "h", .width = 4, .offset_bytes = 64}};
    const st_op ops[] = {hand_op(ST_NO_VALUE, ST_NO_VALUE, 0), hand_op(0, ST_NO_VALUE, 1), hand_op(1, ST_NO_VALUE, 1),
                         hand_op(1, ST_NO_VALUE, 1),           hand_op(1, 0, 0),           hand_op(0, ST_NO_VALUE, 0)};
    const uint8_t placed[] = {ST_CARD, ST_CARD, ST_CARD | ST_FETCHED, ST_CARD | ST_FETCHED, ST_CARD, ST_CARD};
    const wanted_stage wanted[] = {RUN(ST_CARD, 0, 2, ST_NO_STAGE), RUN(ST_CARD, 2, 1, ST_NO_STAGE),
                                   RUN(ST_CARD, 3, 1, ST_NO_STAGE), RUN(ST_CARD, 4, 2, ST_NO_STAGE)};
    st_program program = {.ops = ops, .op_count = 6, .values = values, .value_count = 2};
    uint8_t valid[2] = {0};
    st_arena arena = {0};
    st_stages stages;
    strata_error error;
    assert_int_equal(st_schedule_build(&program, placed, (st_op_range){0, 6}, valid, &arena, &stages, &error), STRATA_OK);
    stages_are(&stages, wanted, 4);
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(stages.stages[i].fetched, i == 1 || i == 2);
    assert_true(valid[0] == 1 << ST_CARD && valid[1] == 1 << ST_CARD);
    st_arena_free(&arena);
}

/* The host waits before it overwrites a value that is still being uploaded, and only then. */
static void memory_is_not_reused_during_a_copy(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) {
        bool apart = way & 1, second = way & 2;
        const st_value values[] = {{.name = "a", .width = 17}, {.name = "b", .width = 4, .offset_bytes = 256},
                                   {.name = "c", .width = 4, .offset_bytes = apart ? 128 : 64}};
        st_op ops[] = {hand_op(ST_NO_VALUE, ST_NO_VALUE, 0), hand_op(0, ST_NO_VALUE, 1),
                       hand_op(ST_NO_VALUE, ST_NO_VALUE, second ? ST_NO_VALUE : 2)};
        if (second) ops[2].out2 = 2;
        const uint8_t devices[] = {ST_HOST, ST_CARD, ST_HOST};
        const wanted_stage wanted[] = {RUN(ST_HOST, 0, 1, ST_NO_STAGE), MOVE(ST_CARD, 0, true),
                                       RUN(ST_CARD, 1, 1, ST_NO_STAGE), RUN(ST_HOST, 2, 1, apart ? ST_NO_STAGE : 1)};
        st_program program = {.ops = ops, .op_count = 3, .values = values, .value_count = 3};
        uint8_t valid[3] = {0};
        st_arena arena = {0};
        st_stages stages;
        strata_error error;
        assert_int_equal(st_schedule_build(&program, devices, (st_op_range){0, 3}, valid, &arena, &stages, &error),
                         STRATA_OK);
        stages_are(&stages, wanted, 4);
        assert_int_equal(stages.pending, apart ? 1 : ST_NO_STAGE);
        st_arena_free(&arena);
    }
}

/* An input that is on no device is an error; one on the other device is copied first; one on both is not copied. An
 * empty range is valid. */
static void a_range_starts_from_valid_inputs(void **state)
{
    (void)state;
    const st_value values[] = {{.name = "a", .width = 4}, {.name = "b", .width = 4, .offset_bytes = 64}};
    const st_op ops[] = {hand_op(ST_NO_VALUE, ST_NO_VALUE, 1), hand_op(0, 1, 1)};
    const uint8_t devices[] = {ST_CARD, ST_CARD};
    const wanted_stage moved[] = {MOVE(ST_CARD, 0, true), RUN(ST_CARD, 0, 2, ST_NO_STAGE)};
    const wanted_stage there[] = {RUN(ST_CARD, 0, 2, ST_NO_STAGE)};
    st_program program = {.ops = ops, .op_count = 2, .values = values, .value_count = 2};
    st_arena arena = {0};
    st_stages stages = {.count = 99};
    strata_error error;
    uint8_t valid[2] = {0};
    assert_int_equal(st_schedule_build(&program, devices, (st_op_range){0, 2}, valid, &arena, &stages, &error),
                     STRATA_RUNTIME);
    assert_string_equal(error.message, "operation 1 (add): its input a is on no device");
    assert_int_equal(stages.count, 99);
    valid[0] = 1 << ST_HOST;
    assert_int_equal(st_schedule_build(&program, devices, (st_op_range){0, 2}, valid, &arena, &stages, &error), 0);
    stages_are(&stages, moved, 2);
    assert_int_equal(valid[0], 3);
    assert_int_equal(st_schedule_build(&program, devices, (st_op_range){0, 2}, valid, &arena, &stages, &error), 0);
    stages_are(&stages, there, 1);
    assert_int_equal(st_schedule_build(&program, devices, (st_op_range){0, 0}, valid, &arena, &stages, &error), 0);
    assert_int_equal(stages.count, 0);
    assert_int_equal(stages.pending, ST_NO_STAGE);
    st_arena_free(&arena);
}

/* A program on one device is one stage, for every model. */
static void one_device_needs_one_stage(void **state)
{
    (void)state;
    for (uint32_t f = 0; f < FAMILIES; f++) {
        golden g;
        assert_true(golden_open(&g, families[f]));
        static uint8_t op_device[OPS_MAX];
        for (int device = 0; device < 2; device++) {
            st_arena arena = {0};
            memset(op_device, device, sizeof op_device);
            part p = build_part(g.program, op_device, &g.program->main, 0, &arena);
            assert_int_equal(p.body.count, 1);
            assert_int_equal(p.head.count, 1);
            st_arena_free(&arena);
        }
        golden_close(&g);
    }
}

static void failed_allocations_are_errors(void **state)
{
    (void)state;
    golden g;
    assert_true(golden_open(&g, "qwen2moe"));
    static uint8_t op_device[OPS_MAX], valid[VALUES_MAX];
    seed = 7;
    split_ops(g.program, 2, op_device);
    strata_status status = STRATA_MEMORY;
    for (uint64_t n = 1; status != STRATA_OK; n++) {
        st_arena arena = {0};
        st_stages stages = {.count = 99};
        strata_error error;
        memset(valid, 0, sizeof valid);
        st_fault_arm(ST_FAULT_ALLOC, n, false);
        status = st_schedule_build(g.program, op_device, g.program->main.body, valid, &arena, &stages, &error);
        st_fault_arm(ST_FAULT_ALLOC, 0, false);
        if (status != STRATA_OK) {
            assert_int_equal(status, STRATA_MEMORY);
            assert_int_equal(stages.count, 99);
        }
        assert_true(n < 100 && (n > 2 || status != STRATA_OK));
        st_arena_free(&arena);
    }
    golden_close(&g);
}

int main(void)
{
    static struct CMUnitTest tests[FAMILIES + 8];
    size_t n = 0;
    for (; n < FAMILIES; n++)
        tests[n] = (struct CMUnitTest){.name = families[n], .test_func = every_split_computes_the_same,
                                       .initial_state = (void *)(uintptr_t)families[n]};
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(chains_compute_the_same);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(every_wait_is_needed);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(the_gpu_runs_while_the_host_works);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(fetched_operations_are_runs_of_their_own);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(memory_is_not_reused_during_a_copy);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(a_range_starts_from_valid_inputs);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(one_device_needs_one_stage);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(failed_allocations_are_errors);
    return _cmocka_run_group_tests("schedule", tests, n, NULL, NULL);
}
