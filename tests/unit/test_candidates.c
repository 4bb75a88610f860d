/* ST_OP_CANDIDATES and the sampler on its record: the token is the one that the sampler picks from all logits, whatever
 * ties, penalties, biases and bans there are. Runs on the backend of support/mirror.h as well. */
#include "support/op_rig.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "sampler/sampler.h"

enum { VOCAB_MAX = 70000, CASES = 10000, RECENT = 100, BIASES = 6, PICKS = 3 };

static float *logits;          /* [ROWS, vocab] */
static st_adjustments *lists;  /* [ROWS] */
static st_candidates *records; /* [ROWS] */
static unsigned state_of = 7;

static uint32_t below(uint32_t limit)
{
    state_of = state_of * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(state_of >> 4) * limit >> 28);
}

static double uniform(void)
{
    return (double)below(1u << 24) / (1u << 24);
}

static int open_all(void **state)
{
    logits = st_alloc_array((size_t)ROWS * VOCAB_MAX, sizeof *logits);
    lists = st_alloc_zero(ROWS, sizeof *lists);
    records = st_alloc_zero(ROWS, sizeof *records);
    return !logits || !lists || !records || op_rig_open(state);
}

static int close_all(void **state)
{
    st_free(logits);
    st_free(lists);
    st_free(records);
    return op_rig_close(state);
}

static void reduce(uint32_t vocab)
{
    static const st_op op = {.kind = ST_OP_CANDIDATES, .layer = -1};
    op_step->out_count = ROWS;
    st_bound_op bound = {.op = &op, .in = {{logits, vocab}, {lists, sizeof *lists / sizeof(float)}},
                         .out = {records, sizeof *records / sizeof(float)}};
    op_run(&bound, ST_ROWS_OUT);
}

/* --- the operation ------------------------------------------------------------------------------------------------ */

/* The adjustment that a token has; NULL: none. */
static const st_adjustment *adjustment_at(const st_adjustments *list, int32_t id)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (list->items[i].id == id) return &list->items[i];
    return NULL;
}

static float adjusted_at(uint32_t row, uint32_t vocab, int32_t id)
{
    const st_adjustment *a = adjustment_at(&lists[row], id);
    float raw = logits[(size_t)row * vocab + (uint32_t)id];
    return a ? st_adjusted(raw, a) : raw;
}

/* Every candidate ranks before the next, and no other token ranks before the last. */
static void check_record(uint32_t row, uint32_t vocab)
{
    const st_candidates *r = &records[row];
    const float *raw = logits + (size_t)row * vocab;
    double sum = 0, highest = -INFINITY;
    assert_int_equal(r->flags, 0);
    assert_int_equal(r->count, vocab < ST_CANDIDATES_MAX ? vocab : ST_CANDIDATES_MAX);
    for (uint32_t i = 0; i < vocab; i++) highest = fmax(highest, (double)raw[i]);
    for (uint32_t i = 0; i < vocab; i++) sum += exp((double)raw[i] - highest);
    assert_true((double)r->highest == highest);
    if (highest > (double)-FLT_MAX) assert_true(fabs((double)r->log_sum - (highest + log(sum))) < 1e-4);
    bool *chosen = st_alloc_zero(vocab, sizeof *chosen);
    for (uint32_t i = 0; i < r->count; i++) {
        int32_t id = r->ids[i];
        assert_true(id >= 0 && (uint32_t)id < vocab && !chosen[id]);
        chosen[id] = true;
        assert_true(r->logits[i] == adjusted_at(row, vocab, id) && r->raw[i] == raw[id]);
        if (i == 0) continue;
        assert_true(r->logits[i - 1] > r->logits[i] || (r->logits[i - 1] == r->logits[i] && r->ids[i - 1] < id));
    }
    float last = r->logits[r->count - 1];
    int32_t last_id = r->ids[r->count - 1];
    for (uint32_t i = 0; i < vocab; i++)
        if (!chosen[i]) assert_true(adjusted_at(row, vocab, (int32_t)i) < last ||
                                    (adjusted_at(row, vocab, (int32_t)i) == last && (int32_t)i > last_id));
    st_free(chosen);
}

static void draw_row(uint32_t row, uint32_t vocab)
{
    uint32_t shape = below(6);
    float *out = logits + (size_t)row * vocab;
    for (uint32_t i = 0; i < vocab; i++) {
        double value = (uniform() + uniform() + uniform() - 1.5) * 16;
        out[i] = shape == 0 ? 1.5f : shape == 1 ? (float)round(value) : shape == 2 && below(3) ? -INFINITY : (float)value;
        if (shape == 3 && below(4) == 0) out[i] = below(2) ? 0.0f : -0.0f;
        if (shape == 4) out[i] = -(float)i; /* the best are neighbours */
    }
}

static void draw_list(uint32_t row, uint32_t vocab)
{
    lists[row].count = 0;
    uint32_t count = below(2) ? below(40) : 0;
    for (uint32_t i = 0; i < count; i++) {
        int32_t id = (int32_t)below(vocab);
        if (adjustment_at(&lists[row], id)) continue;
        static const float biases[] = {0, 3.25f, -7, INFINITY, -INFINITY};
        lists[row].items[lists[row].count++] =
            (st_adjustment){.id = id, .bias = biases[below(5)], .repeat = below(2) ? 1.3f : 0, .subtract = (float)uniform()};
    }
}

static void the_best_tokens(void **state)
{
    (void)state;
    static const uint32_t vocabs[] = {1, 2, 40, 255, 256, 257, 1000, 4095, 4096, 4097, 20000, 33000, VOCAB_MAX};
    for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++)
        for (int repetition = 0; repetition < 4; repetition++) {
            for (uint32_t row = 0; row < ROWS; row++) {
                draw_row(row, vocabs[v]);
                draw_list(row, vocabs[v]);
            }
            reduce(vocabs[v]);
            for (uint32_t row = 0; row < ROWS; row++) check_record(row, vocabs[v]);
        }
}

/* One logit of a row is broken: the other rows are not. */
static void broken_rows_are_flagged(void **state)
{
    (void)state;
    enum { VOCAB = 5000 };
    static const float wrong[] = {NAN, INFINITY, -NAN};
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++)
        for (uint32_t at = 0; at < VOCAB; at += 1249) {
            for (uint32_t row = 0; row < ROWS; row++) {
                lists[row].count = 0;
                for (uint32_t i = 0; i < VOCAB; i++) logits[row * VOCAB + i] = (float)uniform();
            }
            logits[2 * VOCAB + at] = wrong[w];
            reduce(VOCAB);
            for (uint32_t row = 0; row < ROWS; row++)
                if (row == 2) assert_int_equal(records[row].flags, ST_CANDIDATES_BROKEN);
                else check_record(row, VOCAB);
        }
}

/* --- the sampler -------------------------------------------------------------------------------------------------- */

typedef struct setting {
    strata_sampling sampling;
    strata_bias biases[BIASES];
    strata_token banned[3];
    size_t banned_count;
    uint32_t vocab;
} setting;

static setting draw_setting(void)
{
    static const float temperatures[] = {0, 0.3f, 0.8f, 1, 1, 1.7f}, top_ps[] = {1, 0.95f, 0.5f, 0.05f}, min_ps[] = {0, 0, 0.05f, 0.4f};
    static const uint32_t vocabs[] = {1, 3, 40, 200, 256, 257, 500, 1500};
    setting s = {.vocab = vocabs[below(8)]};
    bool few = s.vocab <= ST_CANDIDATES_MAX;
    s.sampling = (strata_sampling){
        .temperature = temperatures[below(6)], .top_k = 1 + below(few && below(3) == 0 ? 2000 : ST_CANDIDATES_MAX),
        .top_p = top_ps[below(4)], .min_p = min_ps[below(4)], .repeat_penalty = below(2) ? 1 : 0.5f + (float)uniform(),
        .presence_penalty = below(2) ? 0 : (float)uniform(), .frequency_penalty = below(2) ? 0 : (float)uniform() - 0.3f,
        .penalty_tokens = below(RECENT), .seed = below(1u << 30)};
    if ((few || s.sampling.temperature <= 0) && below(4) == 0) s.sampling.top_k = 0;
    s.sampling.bias_count = below(3) ? 0 : below(BIASES);
    for (size_t i = 0; i < s.sampling.bias_count; i++) {
        static const float values[] = {2, -3, 0.125f, INFINITY, -INFINITY};
        s.biases[i] = (strata_bias){(strata_token)below(s.vocab), values[below(5)]};
    }
    s.banned_count = below(3) ? 0 : below(3);
    for (size_t i = 0; i < s.banned_count; i++) s.banned[i] = (strata_token)below(s.vocab + 1);
    return s;
}

static bool repeats_a_bias(const setting *s)
{
    for (size_t i = 0; i < s->sampling.bias_count; i++)
        for (size_t k = 0; k < i; k++)
            if (s->biases[i].token == s->biases[k].token) return true;
    return false;
}

static st_sampler *sampler_of(setting *s)
{
    st_sampler *sampler = NULL;
    strata_error error;
    s->sampling.biases = s->biases;
    if (st_sampler_new(&s->sampling, s->vocab, &sampler, &error) != STRATA_OK) fail_msg("%s", error.message);
    st_sampler_ban(sampler, s->banned, s->banned_count);
    return sampler;
}

static void the_same_tokens_as_from_all_logits(void **state)
{
    (void)state;
    uint32_t picked = 0, refused = 0, cases = kit_is_slow() ? CASES / 50 : CASES;
    for (uint32_t c = 0; c < cases; c++) {
        setting s = draw_setting();
        st_sampler *all = sampler_of(&s), *few = sampler_of(&s);
        for (uint32_t i = 0; i < RECENT; i++) {
            strata_token token = (strata_token)below(below(2) ? s.vocab : 1 + s.vocab / 50);
            st_sampler_accept(all, token);
            st_sampler_accept(few, token);
        }
        for (int i = 0; i < PICKS; i++) {
            strata_token one = -1, other = -2;
            strata_error error, among;
            draw_row(0, s.vocab);
            bool may = st_sampler_adjust(few, &lists[0]);
            assert_int_equal(may, !repeats_a_bias(&s));
            if (!may) break;
            for (uint32_t row = 1; row < ROWS; row++) { /* rows do not mix */
                memcpy(logits + (size_t)row * s.vocab, logits, s.vocab * sizeof *logits);
                lists[row].count = 0;
            }
            reduce(s.vocab);
            strata_status status = st_sampler_pick(all, logits, &one, &error);
            assert_int_equal(st_sampler_pick_among(few, &records[0], &other, &among), status);
            if (status != STRATA_OK) {
                assert_string_equal(error.message, among.message);
                refused++;
                break;
            }
            if (one != other) fail_msg("case %u: expected token %d, found %d", c, one, other);
            st_sampler_accept(all, one);
            st_sampler_accept(few, one);
            picked++;
        }
        st_sampler_free(all);
        st_sampler_free(few);
    }
    print_message("# %u tokens, %u rows without one\n", picked, refused);
    assert_true(picked > cases && refused > 0);
}

static void what_candidates_do_not_suffice_for(void **state)
{
    (void)state;
    setting s = {.vocab = 5000, .sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 1}};
    const struct { float temperature; uint32_t top_k; bool enough; } rows[] = {
        {1, 0, false}, {1, 256, true}, {1, 257, false}, {0, 0, true}, {0, 1000, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        s.sampling.temperature = rows[i].temperature;
        s.sampling.top_k = rows[i].top_k;
        st_sampler *sampler = sampler_of(&s);
        assert_int_equal(st_sampler_adjust(sampler, &lists[0]), rows[i].enough);
        st_sampler_free(sampler);
    }
    s.sampling.repeat_penalty = 1.1f;
    s.sampling.penalty_tokens = 4000;
    st_sampler *sampler = sampler_of(&s);
    for (strata_token i = 0; i < ST_ADJUSTMENTS_MAX; i++) st_sampler_accept(sampler, i);
    for (strata_token i = 0; i < 100; i++) st_sampler_accept(sampler, i);
    assert_true(st_sampler_adjust(sampler, &lists[0]));
    assert_int_equal(lists[0].count, ST_ADJUSTMENTS_MAX);
    st_sampler_accept(sampler, ST_ADJUSTMENTS_MAX);
    assert_false(st_sampler_adjust(sampler, &lists[0]));
    assert_false(st_sampler_adjust(sampler, &lists[0])); /* the counts are as they were */
    const st_candidates broken[] = {{.count = 1, .flags = ST_CANDIDATES_BROKEN}, {.count = 0}, {.count = ST_CANDIDATES_MAX + 1},
                                    {.count = 2, .ids = {1, -1}}, {.count = 2, .ids = {1, 5000}}};
    strata_token token;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        assert_int_equal(st_sampler_pick_among(sampler, &broken[i], &token, NULL), STRATA_RUNTIME);
    st_sampler_free(sampler);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_tokens),
        cmocka_unit_test(broken_rows_are_flagged),
        cmocka_unit_test(the_same_tokens_as_from_all_logits),
        cmocka_unit_test(what_candidates_do_not_suffice_for),
    };
    return kit_run("candidates", tests, sizeof tests / sizeof *tests, open_all, close_all, argc, argv);
}
