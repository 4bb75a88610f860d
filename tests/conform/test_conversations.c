/* Operations that depend on positions, pages and slots, in steps of several conversations: the fast path of every
 * instruction set against the reference, or with STRATA_TEST_BACKEND (support/mirror.h) that backend; and every
 * conversation as if it were alone. Rows and slots that no conversation of the step has are NaN. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/cpu/isa.h"
#include "backend/cpu/scratch.h"
#include "quant/row.h"
#include "support/conform_rig.h"
#include "support/mirror.h"
#include "support/steps.h"

enum { PARTS_MAX = 48, POSITION_MAX = 700, SLOTS = 64 };

static uint32_t rounds;

/* --- steps ---------------------------------------------------------------------------------------------------------------- */

typedef struct crowd {
    step_part parts[PARTS_MAX];
    uint32_t count, rows;
    step_pool pools[2];
    uint32_t pool; /* that the operation uses; the tables of the other lie beside its own */
    size_t gap;    /* bytes between pages */
    st_step *step;
} crowd;

static step_pool random_pool(uint32_t window, uint32_t chunk)
{
    static const uint32_t shifts[] = {0, 2, 6, 6};
    return (step_pool){.page_shift = shifts[random_bits() % 4], .window = window, .chunk = chunk,
                       .shared = random_bits() % 2 ? between(0, POSITION_MAX) : 0, .order = random_bits() % 3 ? random_bits() : 0};
}

/* `count` conversations, each with a slot of its own. */
static crowd make_crowd(uint32_t count, uint32_t window, uint32_t chunk)
{
    crowd c = {.count = count, .pool = random_bits() % 2, .gap = random_bits() % 3 ? 0 : 64};
    uint32_t slot = random_bits();
    for (uint32_t i = 0; i < count; i++) {
        c.parts[i] = (step_part){.rows = random_bits() % 2 ? between(1, 3) : random_rows(), .position = between(0, POSITION_MAX),
                                 .slot = (slot + 5 * i) % SLOTS, .seed = random_bits() + UINT64_C(2)};
        if (count > 8 && i) c.parts[i].rows = 1 + c.parts[i].rows % 2;
        c.rows += c.parts[i].rows;
    }
    c.pools[c.pool] = random_pool(window, chunk);
    c.pools[!c.pool] = random_pool(window ? 0 : 30, 0);
    uint64_t kept = random_state;
    c.step = step_new(c.parts, c.count, c.pools, 2);
    random_state = kept;
    for (uint32_t i = 0; i < c.rows; i++) st_step_rows(c.step)[i].id = (int32_t)between(0, SLOTS - 1);
    return c;
}

/* The i-th conversation alone: contiguous pages, slot 0. */
static crowd alone(const crowd *all, uint32_t i)
{
    crowd c = {.count = 1, .rows = all->parts[i].rows, .parts = {all->parts[i]}};
    c.parts[0].slot = 0;
    c.pools[0] = all->pools[all->pool];
    c.pools[0].order = 0;
    c.step = step_new(c.parts, 1, c.pools, 1);
    for (uint32_t k = 0; k < c.rows; k++)
        st_step_rows(c.step)[k].id = st_step_rows(all->step)[st_step_conversations(all->step)[i].first_row + k].id;
    return c;
}

static st_kv_view cache_of(const crowd *c, st_type type, size_t key_width, size_t value_width, bool rows)
{
    uint64_t kept = random_state;
    st_kv_view view = step_view(&c->pools[c->pool], c->pool, type, key_width, value_width, c->gap);
    step_fill(&view, &c->pools[c->pool], c->step, c->parts, key_width, value_width, rows);
    random_state = kept;
    return view;
}

/* Between 1 and 6 conversations, or many, so that their rows take several groups. */
static uint32_t random_count(uint64_t seed)
{
    return seed % 8 == 0 ? PARTS_MAX : seed % 8 == 1 ? 1 : between(2, 6);
}

/* Compares the rows of the i-th conversation with its rows alone: the same bits, unless another backend chooses its kernel by
 * the number of rows. */
static void compare_rows(const level_case *l, const char *what, const crowd *all, uint32_t i, const float *in_crowd,
                         const float *by_itself, size_t width, uint64_t seed)
{
    const st_step_conversation *c = &st_step_conversations(all->step)[i];
    const float *found = in_crowd + c->first_row * width;
    double error = distance(found, by_itself, c->rows * width);
    bool same = memcmp(found, by_itself, c->rows * width * sizeof *found) == 0;
    if (mirror_name()) note(l->cpu, what, error, 1e-5, c->rows, seed);
    else if (!same || isnan(error))
        fail_msg("%s, %s: conversation %u of %u (%u rows at position %u) differs from itself alone by %g, seed %llu", l->cpu,
                 what, i, all->count, c->rows, c->position, error, (unsigned long long)seed);
}

/* --- attention ------------------------------------------------------------------------------------------------------------ */

/* Whether a batch of rows is multiplied in two bfloat16 numbers for each float: narrow KV, on a CPU with fast ones. */
static bool is_split(const level_case *c)
{
    return (strcmp(c->cpu, "avx512") == 0 || strcmp(c->cpu, "amx") == 0) && st_isa_amx() && c->type != ST_TYPE_F32;
}

/* Float32 products are float-accurate. Two bfloat16 numbers keep a float to 2⁻¹⁷, and low × low is left out, another 2⁻¹⁶
 * at most: a product is off by 2⁻¹⁶ or so. A score of standard deviation σ is then off by σ 2⁻¹⁶, and so is its weight,
 * relatively; the product with the value adds 2⁻¹⁶. If the errors are independent, that is 2⁻¹⁶ √(1 + σ²) for each term of a
 * sum and for the whole. The bound is twice that. */
static double attention_error_max(const level_case *c, uint32_t rows, double deviation)
{
    if (mirror_name()) return 1e-5;
    if (is_split(c) && rows >= ST_FEW_ROWS) return sqrt(1 + deviation * deviation) / 32768;
    /* Against q8_0 the queries of a few rows may have 16 bits: test_q8.c compares with the same ones. */
    return c->type == ST_TYPE_Q8_0 ? 1e-4 : 1e-5;
}

typedef struct attention_case {
    st_op op;
    double deviation; /* of the scores: random floats have a variance of 4 / 3 */
    uint32_t key_width, value_width;
} attention_case;

static attention_case random_attention(uint64_t seed)
{
    uint32_t kv_heads = between(1, 3), heads = kv_heads * between(1, 9);
    uint32_t key = between(1, 5) * (seed % 3 ? 16 : 7), value = between(1, 5) * (seed % 3 ? 16 : 5);
    if (seed % 5 == 0) key = value = 64u << random_bits() % 4; /* as models have them */
    attention_case a = {.op = {.kind = ST_OP_ATTENTION}, .deviation = seed % 2 ? 3 : 0.5, .key_width = kv_heads * key,
                        .value_width = kv_heads * value};
    a.op.p.attention.heads = heads;
    a.op.p.attention.kv_heads = kv_heads;
    a.op.p.attention.key_length = key;
    a.op.p.attention.value_length = value;
    a.op.p.attention.window = seed % 4 == 1 ? between(1, 90) : 0;
    a.op.p.attention.chunk = seed % 4 == 2 ? 64 : 0;
    a.op.p.attention.scale = (float)(a.deviation * 0.75 / sqrt(key));
    return a;
}

static st_bound_op bind_attention(const attention_case *a, const crowd *c, st_type type, float *queries)
{
    uint32_t heads = a->op.p.attention.heads;
    st_bound_op bound = {.op = &a->op, .in[0] = {queries, heads * a->op.p.attention.key_length}};
    bound.out.width = heads * a->op.p.attention.value_length;
    bound.kv = cache_of(c, type, a->key_width, a->value_width, true);
    return bound;
}

/* The distance of each conversation's rows. */
static void attention(void **state)
{
    const level_case *l = *state;
    check_level(l);
    for (uint64_t seed = 1; seed <= 8 * rounds; seed++) {
        random_state = seed * 991 + l->type;
        attention_case a = random_attention(seed);
        crowd c = make_crowd(random_count(seed), a.op.p.attention.window, a.op.p.attention.chunk);
        float *queries = random_floats((size_t)c.rows * a.op.p.attention.heads * a.op.p.attention.key_length);
        st_bound_op bound = bind_attention(&a, &c, (st_type)l->type, queries);
        float *expected = run_plainly(&bound, c.step), *found = random_floats((size_t)c.rows * bound.out.width);
        bound.out.data = found;
        run_op(l->cpu, &bound, c.step);
        for (uint32_t i = 0; i < c.count; i++) {
            size_t first = (size_t)st_step_conversations(c.step)[i].first_row * bound.out.width;
            note(l->cpu, "attention", distance(found + first, expected + first, (size_t)c.parts[i].rows * bound.out.width),
                 attention_error_max(l, c.parts[i].rows, a.deviation), c.parts[i].rows, seed);
        }
        void *const pieces[] = {queries, expected, found, c.step};
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) st_free(pieces[i]);
        step_view_free(&bound.kv);
    }
    conclude();
}

static void attention_alone(void **state)
{
    const level_case *l = *state;
    check_level(l);
    for (uint64_t seed = 1; seed <= 2 * rounds; seed++) {
        random_state = seed * 577 + l->type;
        attention_case a = random_attention(seed);
        crowd c = make_crowd(random_count(seed), a.op.p.attention.window, a.op.p.attention.chunk);
        float *queries = random_floats((size_t)c.rows * a.op.p.attention.heads * a.op.p.attention.key_length);
        st_bound_op bound = bind_attention(&a, &c, (st_type)l->type, queries);
        float *found = bound.out.data = random_floats((size_t)c.rows * bound.out.width);
        run_op(l->cpu, &bound, c.step);
        step_view_free(&bound.kv);
        for (uint32_t i = 0; i < c.count; i++) {
            crowd one = alone(&c, i);
            bound = bind_attention(&a, &one, (st_type)l->type,
                                   queries + (size_t)st_step_conversations(c.step)[i].first_row * bound.in[0].width);
            float *expected = bound.out.data = random_floats((size_t)one.rows * bound.out.width);
            run_op(l->cpu, &bound, one.step);
            compare_rows(l, "attention", &c, i, found, expected, bound.out.width, seed);
            st_free(expected);
            st_free(one.step);
            step_view_free(&bound.kv);
        }
        void *const pieces[] = {queries, found, c.step};
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) st_free(pieces[i]);
    }
    conclude();
}

/* Each row is stored bit by bit as st_row_store does, also beyond the range of the type, and nothing else changes. */
static void kv_store(void **state)
{
    const level_case *l = *state;
    check_level(l);
    for (uint64_t seed = 1; seed <= 4 * rounds; seed++) {
        random_state = seed * 77 + l->type;
        uint32_t width = between(1, 90);
        crowd c = make_crowd(random_count(seed), seed % 3 ? 0 : 20, 0);
        st_op op = {.kind = ST_OP_KV_STORE};
        st_bound_op bound = {.op = &op, .in = {{.width = width}, {.width = width}}};
        size_t count = (size_t)c.rows * width;
        for (int i = 0; i < 2; i++) {
            float *in = bound.in[i].data = random_floats(count);
            for (size_t k = 0; k < count; k++) in[k] *= seed % 2 ? 1 : ldexpf(1, (int)between(0, 60) - 40);
            static const float special[] = {INFINITY, -INFINITY, NAN, -0.0f, 65520, -1e-8f};
            if (l->type != ST_TYPE_Q8_0) in[seed % width] = special[seed % 6]; /* no block has a scale for those */
        }
        bound.kv = cache_of(&c, (st_type)l->type, width, width, false);
        st_kv_view expected = cache_of(&c, (st_type)l->type, width, width, false);
        for (uint32_t i = 0; i < c.rows; i++) {
            const st_step_row *row = &st_step_rows(c.step)[i];
            const st_step_conversation *of = &st_step_conversations(c.step)[row->conversation];
            const float *key = (float *)bound.in[0].data + i * width, *value = (float *)bound.in[1].data + i * width;
            st_row_store(expected.type, key, width, st_kv_key(&expected, of, st_step_tables(c.step), row->position));
            st_row_store(expected.type, value, width, st_kv_value(&expected, of, st_step_tables(c.step), row->position));
        }
        run_op(l->cpu, &bound, c.step);
        assert_memory_equal(bound.kv.keys, expected.keys, expected.pages * expected.key_page_bytes);
        assert_memory_equal(bound.kv.values, expected.values, expected.pages * expected.value_page_bytes);
        step_view_free(&bound.kv);
        step_view_free(&expected);
        for (int i = 0; i < 2; i++) st_free(bound.in[i].data);
        st_free(c.step);
    }
}

/* --- recurrent layers ----------------------------------------------------------------------------------------------------- */

typedef struct recurrent_case {
    st_op op;
    uint32_t channels, value_heads, out_width;
    size_t state_floats, slot_floats;
    st_bound_value in[3];
    st_bound_weight weight[2];
} recurrent_case;

static st_bound_weight vector(size_t width, size_t rows)
{
    return (st_bound_weight){.info = st_type_find(ST_TYPE_F32), .type = ST_TYPE_F32, .ne = {width, rows, 1},
                             .row_bytes = width * sizeof(float), .data = random_floats(width * rows)};
}

static void random_recurrent(recurrent_case *r, uint32_t rows, uint64_t seed)
{
    uint32_t key_heads = between(1, 3), size = seed % 4 < 2 ? between(3, 40) : 16 * between(1, 8), taps = between(2, 5);
    bool conv = seed % 2;
    *r = (recurrent_case){.op = {.kind = conv ? ST_OP_CONV : ST_OP_DELTANET}, .value_heads = key_heads * between(1, 3)};
    r->channels = (2 * key_heads + r->value_heads) * size;
    if (conv) r->op.p.conv.width = taps;
    else {
        r->op.p.deltanet.key_heads = key_heads;
        r->op.p.deltanet.value_heads = r->value_heads;
        r->op.p.deltanet.size = size;
    }
    r->out_width = conv ? r->channels : r->value_heads * size;
    r->state_floats = conv ? (size_t)(taps - 1) * r->channels : (size_t)r->value_heads * size * size;
    r->slot_floats = r->state_floats + between(0, 9);
    r->in[0] = (st_bound_value){random_floats((size_t)rows * r->channels), r->channels};
    for (int i = 1; i < 3 && !conv; i++)
        r->in[i] = (st_bound_value){random_floats((size_t)rows * r->value_heads), r->value_heads};
    r->weight[0] = conv ? vector(taps, r->channels) : vector(r->value_heads, 1);
    if (conv) return;
    r->weight[1] = vector(r->value_heads, 1);
    float *a = (float *)(uintptr_t)r->weight[1].data;
    for (uint32_t i = 0; i < r->value_heads; i++) a[i] = -fabsf(a[i]); /* as files store it: the state decays */
}

static void free_recurrent(recurrent_case *r)
{
    for (int i = 0; i < 3; i++) st_free(r->in[i].data);
    for (int i = 0; i < 2; i++) st_free((void *)(uintptr_t)r->weight[i].data);
}

/* Runs the rows of a step, whose inputs begin at row `first`, from states that follow from the conversations' seeds. Returns
 * the output and the states; the caller frees both. */
static float *run_recurrent(const char *cpu, const recurrent_case *r, const crowd *c, size_t first, float **states)
{
    float *out = random_floats((size_t)c->rows * r->out_width);
    *states = step_slots(SLOTS, r->slot_floats);
    uint64_t kept = random_state;
    for (uint32_t i = 0; i < c->count; i++) {
        random_state = c->parts[i].seed;
        for (size_t k = 0; k < r->state_floats; k++) (*states)[c->parts[i].slot * r->slot_floats + k] = random_float();
    }
    random_state = kept;
    st_bound_op bound = {.op = &r->op, .weight = {r->weight[0], r->weight[1]}, .out = {out, r->out_width}};
    for (int i = 0; i < 3; i++)
        if (r->in[i].data) bound.in[i] = (st_bound_value){(float *)r->in[i].data + first * r->in[i].width, r->in[i].width};
    bound.state = (st_state_view){.slot_floats = r->slot_floats, .slots = SLOTS};
    if (r->op.kind == ST_OP_CONV) bound.state.conv = *states;
    else bound.state.delta = *states;
    run_op(cpu, &bound, c->step);
    return out;
}

/* Slots that no conversation has, and what lies between two slots, are still NaN. */
static void check_other_slots(const recurrent_case *r, const crowd *c, const float *states)
{
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        size_t from = 0;
        for (uint32_t i = 0; i < c->count; i++)
            if (c->parts[i].slot == slot) from = r->state_floats;
        for (size_t k = from; k < r->slot_floats; k++)
            if (!isnan(states[slot * r->slot_floats + k])) fail_msg("slot %u was written at %zu", slot, k);
    }
}

/* Both sides start from the same states and end in the same. */
static void recurrent(void **state)
{
    const level_case *l = *state;
    check_level(l);
    for (uint64_t seed = 1; seed <= 8 * rounds; seed++) {
        random_state = seed * 17;
        crowd c = make_crowd(seed % 16 == 0 ? 20 : between(1, 5), 0, 0);
        recurrent_case r;
        random_recurrent(&r, c.rows, seed);
        bool conv = r.op.kind == ST_OP_CONV;
        float *states[2], *out[2];
        for (int i = 0; i < 2; i++) out[i] = run_recurrent(i ? l->cpu : "ref", &r, &c, 0, &states[i]);
        note(l->cpu, conv ? "conv" : "deltanet", distance(out[1], out[0], (size_t)c.rows * r.out_width), 1e-5, c.rows, seed);
        for (uint32_t i = 0; i < c.count; i++) {
            size_t at = c.parts[i].slot * r.slot_floats;
            note(l->cpu, conv ? "conv state" : "deltanet state", distance(states[1] + at, states[0] + at, r.state_floats), 1e-5,
                 c.parts[i].rows, seed);
        }
        for (int i = 0; i < 2; i++) {
            check_other_slots(&r, &c, states[i]);
            st_free(states[i]);
            st_free(out[i]);
        }
        free_recurrent(&r);
        st_free(c.step);
    }
    conclude();
}

static void recurrent_alone(void **state)
{
    const level_case *l = *state;
    check_level(l);
    for (uint64_t seed = 1; seed <= 4 * rounds; seed++) {
        random_state = seed * 19;
        crowd c = make_crowd(between(2, 6), 0, 0);
        recurrent_case r;
        random_recurrent(&r, c.rows, seed);
        float *states, *own, *found = run_recurrent(l->cpu, &r, &c, 0, &states);
        for (uint32_t i = 0; i < c.count; i++) {
            crowd one = alone(&c, i);
            float *expected = run_recurrent(l->cpu, &r, &one, st_step_conversations(c.step)[i].first_row, &own);
            compare_rows(l, st_op_name(r.op.kind), &c, i, found, expected, r.out_width, seed);
            if (!mirror_name()) assert_memory_equal(own, states + c.parts[i].slot * r.slot_floats, r.state_floats * sizeof *own);
            st_free(expected);
            st_free(own);
            st_free(one.step);
        }
        free_recurrent(&r);
        void *const pieces[] = {states, found, c.step};
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) st_free(pieces[i]);
    }
    conclude();
}

/* --- norm, RoPE, store and attention of a layer: a backend may fuse neighbours --------------------------------------------- */

enum { LAYER = 6, Q = 0, K, V, ANGLES, OUT, LAYER_VALUES };

/* q = rope(norm(q)); k = rope(norm(k)); store k and v; out = attention(q). Without norms: without the first and the third.
 * `weights`: of the norms, and sinks, if there are any. */
static uint32_t make_layer(st_bound_op *ops, const st_op *kinds, const st_bound_value *values, const st_bound_weight weights[2],
                           const st_kv_view *kv, bool normed)
{
    const int of[LAYER] = {Q, Q, K, K, K, Q};
    uint32_t count = 0;
    for (int i = 0; i < LAYER; i++) {
        st_op_kind kind = kinds[i].kind;
        if (kind == ST_OP_RMS_NORM && !normed) continue;
        st_bound_op *b = &ops[count++];
        *b = (st_bound_op){.op = &kinds[i], .in[0] = values[of[i]], .out = values[kind == ST_OP_ATTENTION ? OUT : of[i]], .kv = *kv};
        if (kind == ST_OP_RMS_NORM) b->weight[0] = weights[0];
        if (kind == ST_OP_ATTENTION) b->weight[0] = weights[1];
        if (kind == ST_OP_ROPE) b->in[1] = values[ANGLES];
        if (kind == ST_OP_KV_STORE) b->in[1] = values[V], b->out = (st_bound_value){0};
    }
    return count;
}

static void layer(void **state)
{
    const level_case *l = *state;
    check_level(l);
    for (uint64_t seed = 1; seed <= 4 * rounds; seed++) {
        random_state = seed * 419 + l->type;
        uint32_t head = seed % 7 ? 64u << seed % 4 : 32, kv_heads = between(1, 3), heads = kv_heads * between(1, 9);
        st_op kinds[LAYER] = {{.kind = ST_OP_RMS_NORM}, {.kind = ST_OP_ROPE}, {.kind = ST_OP_RMS_NORM}, {.kind = ST_OP_ROPE},
                              {.kind = ST_OP_KV_STORE}, {.kind = ST_OP_ATTENTION}};
        kinds[0].p.norm.group = kinds[2].p.norm.group = head;
        kinds[0].p.norm.epsilon = kinds[2].p.norm.epsilon = 1e-6f;
        for (int i = 1; i < 4; i += 2) {
            kinds[i].p.rope.heads = i == 1 ? heads : kv_heads;
            kinds[i].p.rope.head_size = head;
            kinds[i].p.rope.dims = seed % 4 ? head : head / 2;
            kinds[i].p.rope.style = seed % 2 ? ST_ROPE_HALVES : ST_ROPE_PAIRS;
        }
        kinds[5].p.attention.heads = heads;
        kinds[5].p.attention.kv_heads = kv_heads;
        kinds[5].p.attention.key_length = kinds[5].p.attention.value_length = head;
        kinds[5].p.attention.scale = (float)(1 / sqrt(head));
        crowd c = make_crowd(seed % 2 ? 1 : between(1, 4), 0, 0);
        const uint32_t widths[LAYER_VALUES] = {heads * head, kv_heads * head, kv_heads * head, kinds[1].p.rope.dims, heads * head};
        st_bound_weight weights[2] = {vector(head, 1), vector(heads, 1)}, none = {0};
        if (seed % 5 < 3) st_free((void *)(uintptr_t)weights[1].data), weights[1] = none;
        st_bound_value values[2][LAYER_VALUES];
        st_kv_view kv[2];
        for (int i = 0; i < LAYER_VALUES; i++)
            for (int run = 0; run < 2; run++) {
                size_t count = (size_t)c.rows * widths[i];
                values[run][i] = (st_bound_value){random_floats(count), widths[i]};
                if (run) memcpy(values[1][i].data, values[0][i].data, count * sizeof(float));
            }
        for (int run = 0; run < 2; run++) {
            st_bound_op ops[LAYER];
            kv[run] = cache_of(&c, (st_type)l->type, widths[K], widths[V], false);
            uint32_t count = make_layer(ops, kinds, values[run], weights, &kv[run], seed % 3 > 0);
            if (run == 0) run_segment(l->cpu, ops, count, c.step);
            for (uint32_t i = 0; i < count && run == 1; i++) run_op(l->cpu, &ops[i], c.step);
        }
        for (int i = 0; i < LAYER_VALUES; i++) { /* a stored number may be rounded the other way */
            double most = i < OUT ? 1e-5 : l->type == ST_TYPE_F32 ? 1e-5 : l->type == ST_TYPE_F16 ? 1e-3 : 1e-2;
            note(l->cpu, "layer", distance(values[0][i].data, values[1][i].data, (size_t)c.rows * widths[i]), most, c.rows, seed);
            for (int run = 0; run < 2; run++) st_free(values[run][i].data);
        }
        for (int run = 0; run < 2; run++) step_view_free(&kv[run]);
        for (int i = 0; i < 2; i++) st_free((void *)(uintptr_t)weights[i].data);
        st_free(c.step);
    }
    conclude();
}

/* --- ids and positions ---------------------------------------------------------------------------------------------------- */

enum { WIDTH = 24 };

/* The temperature works in place: its output starts as ones. */
static float *run_positions(const char *cpu, const st_op *op, const st_bound_weight *w, const crowd *c)
{
    float *out = random_floats((size_t)c->rows * WIDTH);
    for (size_t i = 0; i < (size_t)c->rows * WIDTH; i++) out[i] = 1;
    st_bound_op bound = {.op = op, .out = {out, WIDTH}};
    if (op->kind == ST_OP_TEMPERATURE) bound.in[0] = bound.out;
    if (op->kind == ST_OP_EMBED) bound.weight[0] = *w;
    run_op(cpu, &bound, c->step);
    return out;
}

static void positions_alone(void **state)
{
    const level_case *l = *state;
    check_level(l);
    st_op ops[] = {{.kind = ST_OP_EMBED}, {.kind = ST_OP_ANGLES}, {.kind = ST_OP_TEMPERATURE}};
    ops[0].p.embed.scale = 1.5f;
    ops[1].p.angles.rope = (st_rope){.dims = WIDTH, .base = 10000, .attention_factor = 1};
    ops[2].p.temperature.chunk = 8;
    ops[2].p.temperature.factor = 0.1f;
    for (uint64_t seed = 1; seed <= 2 * rounds; seed++) {
        random_state = seed * 23;
        crowd c = make_crowd(random_count(seed), 0, 0);
        st_bound_weight table = vector(WIDTH, SLOTS);
        for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
            float *found = run_positions(l->cpu, &ops[k], &table, &c);
            for (uint32_t i = 0; i < c.count; i++) {
                crowd one = alone(&c, i);
                float *expected = run_positions(l->cpu, &ops[k], &table, &one);
                compare_rows(l, st_op_name(ops[k].kind), &c, i, found, expected, WIDTH, seed);
                st_free(expected);
                st_free(one.step);
            }
            st_free(found);
        }
        st_free((void *)(uintptr_t)table.data);
        st_free(c.step);
    }
    conclude();
}

static int start(void **state)
{
    (void)state;
    rounds = conform_rounds();
    return 0;
}

static int end(void **state)
{
    (void)state;
    conform_close();
    return 0;
}

enum { TESTS_MAX = 96 };

int main(int argc, char **argv)
{
    const char *levels[] = {"ref", "avx2", "avxvnni", "avx512", "amx"};
    size_t level_count = sizeof levels / sizeof *levels;
    if (mirror_name()) {
        levels[0] = mirror_name();
        level_count = 1;
    }
    static const st_type kv_types[] = {ST_TYPE_F32, ST_TYPE_F16, ST_TYPE_BF16, ST_TYPE_Q8_0};
    static struct CMUnitTest tests[TESTS_MAX];
    static level_case cases[TESTS_MAX];
    static char names[TESTS_MAX][64];
    size_t count = 0;
#define ADD(function, cpu_name, type_number)                                                                     \
    do {                                                                                                         \
        cases[count] = (level_case){cpu_name, type_number};                                                      \
        snprintf(names[count], sizeof *names, #function " %s %s", cpu_name, st_type_find(type_number)->name);    \
        tests[count] = (struct CMUnitTest){.name = names[count], .test_func = function, .initial_state = &cases[count]}; \
        count++;                                                                                                 \
    } while (0)
    for (size_t l = 0; l < level_count; l++) {
        bool itself = strcmp(levels[l], "ref") == 0 && !mirror_name(); /* the reference against the reference says nothing */
        for (size_t t = 0; t < sizeof kv_types / sizeof *kv_types; t++) {
            if (!itself) ADD(attention, levels[l], kv_types[t]);
            ADD(attention_alone, levels[l], kv_types[t]);
            ADD(kv_store, levels[l], kv_types[t]);
            ADD(layer, levels[l], kv_types[t]);
        }
        if (!itself) ADD(recurrent, levels[l], ST_TYPE_F32);
        ADD(recurrent_alone, levels[l], ST_TYPE_F32);
        ADD(positions_alone, levels[l], ST_TYPE_F32);
    }
    return kit_run("conversations", tests, count, start, end, argc, argv);
}
