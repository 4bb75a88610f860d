/* src/backend/sim/step.c and race.c: steps of several conversations on the simulated GPU: wrong step blocks are errors,
 * and races are found by page and by state slot. */
#include <math.h>
#include <string.h>

#include "support/sim_rig.h"

/* Pages of 2 positions. Conversation 0 has rows at positions 3 and 4 and pages 2, 5 and 6; conversation 1 a row at
 * position 2 and pages 2, which they share, and 7. */
enum {
    WIDTH = 4,
    TAPS = 3,
    ROWS = 3,
    PAGE_SHIFT = 1,
    PAGES = 8,
    SLOTS = 3,
    TABLES = 5,
    USED = 2,
    CHOICES_AT = 1,
    CHOICES = CHOICES_AT + 2 * USED,
    ROW_BYTES = WIDTH * 4,
    PAGE_BYTES = ROW_BYTES << PAGE_SHIFT,
    STEP_ROOM = 512,
};

enum { STORE, ATTENTION, CONV, ROUTE, OPS };

static const st_value values[] = {{.name = "x", .width = WIDTH}, {.name = "y", .width = WIDTH}};

#define NONE ST_NO_VALUE
static const st_op ops[OPS] = {
    [STORE] = {.kind = ST_OP_KV_STORE, .in = {0, 0, NONE, NONE, NONE}, .out = NONE, .out2 = NONE,
               .weight = {-1, -1, -1, -1, -1, -1, -1}},
    [ATTENTION] = {.kind = ST_OP_ATTENTION, .in = {0, NONE, NONE, NONE, NONE}, .out = 1, .out2 = NONE,
                   .weight = {-1, -1, -1, -1, -1, -1, -1},
                   .p.attention = {.heads = 1, .kv_heads = 1, .key_length = WIDTH, .value_length = WIDTH, .scale = 1}},
    [CONV] = {.kind = ST_OP_CONV, .in = {0, NONE, NONE, NONE, NONE}, .out = 1, .out2 = NONE, .weight = {-1, -1, -1, -1, -1, -1, -1},
              .p.conv = {.width = TAPS}},
    [ROUTE] = {.kind = ST_OP_ROUTE, .in = {0, NONE, NONE, NONE, NONE}, .out = 1, .out2 = 1, .weight = {-1, -1, -1, -1, -1, -1, -1},
               .p.route = {.experts = WIDTH, .used = USED, .recorded = true, .choices_at = CHOICES_AT}},
};
static const st_program program = {.ops = ops, .op_count = OPS, .values = values, .value_count = 2};

typedef struct rig {
    sim_rig base;
    const st_backend *card;
    unsigned char *memory;
    st_step *steps[2]; /* of two launches */
    float *x, *y, *weight, *state;
    unsigned char *keys, *values;
    st_bound_op bound[OPS];
} rig;

static const st_step_conversation conversations[2] = {
    {.first_row = 0, .rows = 2, .position = 3, .slot = 0, .pages[0] = {.table = 0}},
    {.first_row = 2, .rows = 1, .position = 2, .slot = 2, .pages[0] = {.table = 3}}};

static void write_step(st_step *step)
{
    static const st_step_row rows[ROWS] = {{.position = 3}, {.position = 4}, {.position = 2, .conversation = 1}};
    static const uint32_t tables[TABLES] = {2, 5, 6, 2, 7};
    st_step_lay_out_choices(step, ROWS, 2, ROWS, TABLES, CHOICES);
    for (uint32_t i = 0; i < ROWS * CHOICES; i++) st_step_choices(step, 0)[i] = i % CHOICES < CHOICES_AT + USED ? i % WIDTH : 0;
    memset(st_step_out_rows(step), 0, ROWS * sizeof(uint32_t));
    memcpy(st_step_conversations(step), conversations, sizeof conversations);
    memcpy(st_step_rows(step), rows, sizeof rows);
    memcpy(st_step_tables(step), tables, sizeof tables);
}

/* A step with conversation `index` alone, as a launch of its own. */
static void write_step_of(st_step *step, uint32_t index)
{
    uint32_t block[STEP_ROOM / sizeof(uint32_t)];
    st_step *full = (st_step *)(void *)block;
    write_step(full);
    st_step_conversation c = conversations[index];
    st_step_lay_out(step, ROWS, 1, c.rows, TABLES);
    memcpy(st_step_tables(step), st_step_tables(full), TABLES * sizeof(uint32_t));
    memcpy(st_step_rows(step), st_step_rows(full) + c.first_row, c.rows * sizeof(st_step_row));
    for (uint32_t i = 0; i < c.rows; i++) st_step_rows(step)[i].conversation = 0;
    c.first_row = 0;
    *st_step_conversations(step) = c;
}

static void bind(rig *r)
{
    st_bound_value x = {.data = r->x, .width = WIDTH}, y = {.data = r->y, .width = WIDTH};
    st_kv_view kv = {.keys = r->keys, .values = r->values, .key_row_bytes = ROW_BYTES, .value_row_bytes = ROW_BYTES,
                     .key_page_bytes = PAGE_BYTES, .value_page_bytes = PAGE_BYTES, .page_shift = PAGE_SHIFT,
                     .pages = PAGES, .type = ST_TYPE_F32};
    r->bound[STORE] = (st_bound_op){.op = &ops[STORE], .in = {x, x}, .kv = kv};
    r->bound[ATTENTION] = (st_bound_op){.op = &ops[ATTENTION], .in = {x}, .out = y, .kv = kv};
    r->bound[CONV] = (st_bound_op){.op = &ops[CONV], .in = {x}, .out = y,
                                   .state = {.conv = r->state, .slot_floats = 2 * WIDTH, .slots = SLOTS}};
    r->bound[CONV].weight[0] = (st_bound_weight){.data = r->weight, .info = st_type_find(ST_TYPE_F32),
                                                 .type = ST_TYPE_F32, .ne = {TAPS, WIDTH, 1},
                                                 .row_bytes = TAPS * sizeof(float)};
    st_bound_value ids = {.data = r->y, .width = USED}, weights = {.data = r->y + ROWS * USED, .width = USED};
    r->bound[ROUTE] = (st_bound_op){.op = &ops[ROUTE], .in = {x}, .out = ids, .out2 = weights};
}

/* Operations of several rows take 10 s besides, unless one row after the other is faster. */
static st_sim_options step_options(void)
{
    st_sim_options options = sim_options();
    options.card.classes[ST_CLASS_ATTENTION] = options.card.classes[ST_CLASS_POSITIONS] =
        (st_class_rates){.seconds = 4, .batch_seconds = 10};
    return options;
}

static void open_rig(rig *r, bool priced)
{
    st_sim_options options = step_options();
    options.program = priced ? &program : NULL;
    if (!priced) options.binding = NULL;
    *r = (rig){.card = st_backend_sim_card()};
    assert_int_equal(sim_rig_open(&r->base, sim_world_open(&options), NULL), STRATA_OK);
    void *memory;
    assert_int_equal(r->card->alloc(r->base.device, 8192, &memory, NULL), STRATA_OK);
    r->memory = memset(memory, 0, 8192);
    for (int i = 0; i < 2; i++) r->steps[i] = (st_step *)(void *)(r->memory + i * STEP_ROOM);
    r->x = (float *)(void *)(r->memory + 2048);
    r->y = (float *)(void *)(r->memory + 2560);
    r->weight = (float *)(void *)(r->memory + 3072);
    r->state = (float *)(void *)(r->memory + 3584);
    r->keys = r->memory + 4096;
    r->values = r->memory + 5120;
    bind(r);
    write_step(r->steps[0]);
}

static void close_rig(rig *r)
{
    r->card->free(r->base.device, r->memory);
    sim_rig_close(&r->base);
    assert_int_equal(st_sim_used_bytes(r->base.world), 0);
    st_sim_world_free(r->base.world);
}

static st_segment *prepare(rig *r, const st_bound_op *bound, int step)
{
    strata_error error;
    st_segment *segment = NULL;
    st_segment_source source = {.ops = bound, .count = 1, .rows = ST_ROWS_ALL, .step = r->steps[step],
                                .step_bytes = STEP_ROOM, .scratch = r->memory + 6144, .worker_bytes = 2048};
    if (r->card->prepare(r->base.device, &source, &segment, &error) != STRATA_OK) fail_msg("%s", error.message);
    return segment;
}

static strata_status drain(rig *r, st_queue *queue, strata_error *error)
{
    st_event *event = NULL;
    assert_int_equal(r->card->event_new(r->base.device, &event, NULL), STRATA_OK);
    strata_status status = r->card->event_record(event, queue, error);
    if (status == STRATA_OK) status = r->card->event_wait_host(event, 0, error);
    r->card->event_free(event);
    return status;
}

static strata_status launch(rig *r, const st_bound_op *bound, uint32_t rows, strata_error *error)
{
    st_segment *segment = prepare(r, bound, 0);
    strata_status status = r->card->launch(segment, r->base.compute, rows, error);
    if (status == STRATA_OK) status = drain(r, r->base.compute, error);
    r->card->segment_free(segment);
    return status;
}

static void expect(strata_status found, const strata_error *error, const char *words)
{
    if (found != STRATA_DEVICE || !strstr(error->message, words))
        fail_msg("expected an error of the device with \"%s\", found %s: %s", words, strata_status_name(found),
                 error->message);
}

/* --- wrong step blocks -------------------------------------------------------------------------------------------- */

typedef struct mistake {
    int op;
    void (*make)(st_step *step);
    const char *words;
} mistake;

#define MISTAKE(name, change)                                                                                \
    static void name(st_step *s)                                                                             \
    {                                                                                                        \
        change;                                                                                              \
    }
MISTAKE(nothing, (void)s)
MISTAKE(page_beyond_the_pool, st_step_tables(s)[1] = PAGES)
MISTAKE(poisoned_page, st_step_tables(s)[4] = UINT32_MAX)
MISTAKE(page_that_has_been_dropped, st_step_conversations(s)[0].pages[0].first_page = 1)
MISTAKE(table_behind_the_end, st_step_conversations(s)[1].pages[0].table = TABLES)
MISTAKE(table_too_large, st_step_conversations(s)[1].pages[0].table = UINT32_MAX)
MISTAKE(page_of_two, st_step_tables(s)[4] = 5)
MISTAKE(slot_beyond_the_last, st_step_conversations(s)[1].slot = SLOTS)
MISTAKE(slot_of_two, st_step_conversations(s)[1].slot = 0)
MISTAKE(conversation_without_rows, st_step_conversations(s)[0].rows = 0)
MISTAKE(rows_that_overlap, st_step_conversations(s)[1].first_row = 1)
MISTAKE(rows_beyond_the_step, st_step_conversations(s)[1].rows = 2)
MISTAKE(rows_of_nobody, st_step_conversations(s)[0].rows = 1; st_step_conversations(s)[1].first_row = 1)
MISTAKE(position_that_wraps, st_step_conversations(s)[1].position = UINT32_MAX)
MISTAKE(row_of_another, st_step_rows(s)[1].conversation = 1)
MISTAKE(row_elsewhere, st_step_rows(s)[1].position = 9)
MISTAKE(another_count, s->count = 2)
MISTAKE(another_end, s->bytes += 4)
MISTAKE(too_many_tables, s->table_count = 1000; s->bytes += 4 * (1000 - TABLES))
MISTAKE(too_many_conversations, s->conversation_count = UINT32_MAX)
MISTAKE(too_many_output_rows, s->out_count = ROWS + 1)
MISTAKE(too_many_choices, s->choice_words = 1000)
MISTAKE(choice_of_no_expert, st_step_choices(s, 1)[CHOICES_AT + 1] = WIDTH)
MISTAKE(choice_of_the_router, st_step_choices(s, 1)[CHOICES_AT] = UINT32_MAX; st_step_choices(s, 1)[CHOICES_AT + 1] = WIDTH)
MISTAKE(no_choices, st_step_lay_out(s, ROWS, 2, ROWS, TABLES))

static void wrong_steps_are_errors(void **state)
{
    (void)state;
    static const mistake mistakes[] = {
        {ATTENTION, page_beyond_the_pool, "0, position 2: expected one of the 8 pages of pool 0, found page 8"},
        {STORE, page_beyond_the_pool, "0, position 3: expected one of the 8 pages of pool 0, found page 8"},
        {ATTENTION, poisoned_page, "1, position 2: expected one of the 8 pages of pool 0, found page 4294967295"},
        {ATTENTION, page_that_has_been_dropped, "conversation 0, position 0: expected a page of pool 0, found none"},
        {ATTENTION, table_behind_the_end, "conversation 1, position 0: expected a page of pool 0, found none"},
        {STORE, table_too_large, "conversation 1, position 2: expected a page of pool 0, found none"},
        {STORE, page_of_two, "conversations 0 and 1 both store to page 5"},
        {CONV, slot_beyond_the_last, "conversation 1: expected one of 3 state slots, found slot 3"},
        {CONV, slot_of_two, "conversations 0 and 1 both have state slot 0"},
        {CONV, conversation_without_rows, "conversation 0 has 0 rows"},
        {CONV, rows_that_overlap, "1 has 1 rows from row 1 on, at position 2: expected 1 to 1 from row 2 on"},
        {CONV, rows_beyond_the_step, "conversation 1 has 2 rows"},
        {CONV, rows_of_nobody, "row 1 is at position 4 of conversation 0: expected position 2 of conversation 1"},
        {CONV, position_that_wraps, "at position 4294967295"},
        {CONV, row_of_another, "row 1 is at position 4 of conversation 1: expected position 4 of conversation 0"},
        {CONV, row_elsewhere, "row 1 is at position 9 of conversation 0: expected position 4 of conversation 0"},
        {CONV, another_count, "the step says 2 rows"},
        {CONV, another_end, "the step says 3 rows of 2 conversations"},
        {CONV, too_many_tables, "1000 table entries"},
        {CONV, too_many_conversations, "4294967295 conversations"},
        {CONV, too_many_output_rows, "4 of 3 output rows"},
        {CONV, too_many_choices, "the step says 3 rows of 2 conversations"},
        {ROUTE, choice_of_no_expert, "row 1: expected recorded experts from 0 to"},
        {ROUTE, no_choices, "expected recorded choices of 4 words from word 1 of a row on, found 0 words in all"},
        {ROUTE, choice_of_the_router, NULL},
        {ROUTE, nothing, NULL},
        {STORE, nothing, NULL},
        {ATTENTION, nothing, NULL},
        {CONV, nothing, NULL},
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        rig r;
        strata_error error;
        open_rig(&r, false);
        mistakes[i].make(r.steps[0]);
        strata_status status = launch(&r, &r.bound[mistakes[i].op], ROWS, &error);
        if (mistakes[i].words) expect(status, &error, mistakes[i].words);
        else if (status != STRATA_OK) fail_msg("%s", error.message);
        close_rig(&r);
    }
}

static void the_launch_and_the_step_have_the_same_rows(void **state)
{
    (void)state;
    for (uint32_t rows = 0; rows < 5; rows++) {
        rig r;
        strata_error error;
        open_rig(&r, false);
        if (rows == ROWS) assert_int_equal(launch(&r, &r.bound[CONV], rows, &error), STRATA_OK);
        else expect(launch(&r, &r.bound[CONV], rows, &error), &error, "rows, the step says 3");
        close_rig(&r);
    }
}

/* A window reads no page before it. */
static void pages_behind_a_window_are_not_needed(void **state)
{
    (void)state;
    rig r;
    strata_error error;
    open_rig(&r, false);
    st_op window = ops[ATTENTION];
    window.p.attention.window = 2;
    r.bound[ATTENTION].op = &window;
    st_step_conversations(r.steps[0])[0].pages[0] = (st_step_pages){.first_page = 1, .table = 1};
    assert_int_equal(launch(&r, &r.bound[ATTENTION], ROWS, &error), STRATA_OK);
    window.p.attention.window = 3;
    expect(launch(&r, &r.bound[ATTENTION], ROWS, &error), &error, "conversation 0, position 1: expected a page");
    close_rig(&r);
}

/* In both layouts all pages of a pool must be in GPU memory. */
static void pools_that_end_past_their_memory_are_refused(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, false);
    strata_error error;
    void *pool;
    assert_int_equal(r.card->alloc(r.base.device, 2 * PAGES * PAGE_BYTES, &pool, NULL), STRATA_OK);
    for (int page_major = 0; page_major < 2; page_major++) {
        for (int more = 0; more < 2; more++) {
            st_bound_op bound = r.bound[ATTENTION];
            st_segment *segment = NULL;
            bound.kv.keys = pool;
            bound.kv.values = bound.kv.keys + (page_major ? PAGE_BYTES : PAGES * PAGE_BYTES);
            bound.kv.key_page_bytes = bound.kv.value_page_bytes = page_major ? 2 * PAGE_BYTES : PAGE_BYTES;
            bound.kv.pages += (uint32_t)more;
            st_segment_source source = {.ops = &bound, .count = 1, .step = r.steps[0], .step_bytes = STEP_ROOM,
                                        .scratch = r.memory + 6144, .worker_bytes = 2048};
            strata_status status = r.card->prepare(r.base.device, &source, &segment, &error);
            if (more) expect(status, &error, page_major ? "keys" : "values");
            else assert_int_equal(status, STRATA_OK);
            r.card->segment_free(segment);
        }
    }
    st_bound_op bounds[3] = {r.bound[ATTENTION], r.bound[CONV], r.bound[CONV]};
    bounds[0].kv.key_page_bytes = PAGE_BYTES - 1;
    bounds[1].state.slots = 1000;
    bounds[2].state.slot_floats = SIZE_MAX / 2;
    static const char *const words[] = {"keys: expected pages of at least 32 bytes, found 31", "state 0", "state 0"};
    for (int i = 0; i < 3; i++) {
        st_segment *segment = NULL;
        st_segment_source source = {.ops = &bounds[i], .count = 1, .step = r.steps[0], .step_bytes = STEP_ROOM,
                                    .scratch = r.memory + 6144, .worker_bytes = 2048};
        expect(r.card->prepare(r.base.device, &source, &segment, &error), &error, words[i]);
    }
    r.card->free(r.base.device, pool);
    close_rig(&r);
}

/* --- races -------------------------------------------------------------------------------------------------------- */

/* A copy or a zero of `bytes` on another queue while the operation runs. */
typedef struct concurrent {
    int op;
    bool write;
    size_t offset, bytes; /* of the rig's keys; of its state for CONV */
    bool race;
    const char *what;
} concurrent;

static void races_are_found_by_page_and_slot(void **state)
{
    (void)state;
    enum { SLOT_BYTES = 2 * WIDTH * 4 };
    static const concurrent cases[] = {
        {ATTENTION, true, 5 * PAGE_BYTES, PAGE_BYTES, true, "a page that attention reads is overwritten"},
        {ATTENTION, true, 2 * PAGE_BYTES, 4, true, "a shared page is overwritten"},
        {ATTENTION, true, 3 * PAGE_BYTES, 2 * PAGE_BYTES, false, "pages of no conversation are overwritten"},
        {ATTENTION, true, 0, 2 * PAGE_BYTES, false, "pages before the first are overwritten"},
        {ATTENTION, true, 6 * PAGE_BYTES + ROW_BYTES, ROW_BYTES, false, "the row behind the last is overwritten"},
        {ATTENTION, true, 6 * PAGE_BYTES + ROW_BYTES - 1, 1, true, "the last byte of the last row is overwritten"},
        {ATTENTION, false, 5 * PAGE_BYTES, PAGE_BYTES, false, "a page is read twice"},
        {STORE, false, 5 * PAGE_BYTES, PAGE_BYTES, true, "a page is read while a row is stored to it"},
        {STORE, false, 5 * PAGE_BYTES, ROW_BYTES, false, "the row before the stored one is read"},
        {STORE, false, 2 * PAGE_BYTES, PAGE_BYTES, false, "an earlier page is read"},
        {STORE, true, 7 * PAGE_BYTES, 4, true, "a stored row is overwritten"},
        {CONV, true, 2 * SLOT_BYTES, 4, true, "a slot in use is cleared"},
        {CONV, false, 0, SLOT_BYTES, true, "a slot in use is saved"},
        {CONV, true, SLOT_BYTES, SLOT_BYTES, false, "a slot that is not in use is cleared"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const concurrent *k = &cases[i];
        rig r;
        strata_error error;
        open_rig(&r, false);
        unsigned char *at = (k->op == CONV ? (unsigned char *)r.state : r.keys) + k->offset;
        st_segment *segment = prepare(&r, &r.bound[k->op], 0);
        assert_int_equal(r.card->launch(segment, r.base.compute, ROWS, NULL), STRATA_OK);
        strata_status status = k->write ? r.card->zero(r.base.up, at, k->bytes, NULL)
                                        : r.card->copy(r.base.up, ST_COPY_WITHIN, r.memory + 1024, at, k->bytes, NULL);
        assert_int_equal(status, STRATA_OK);
        status = drain(&r, r.base.compute, &error);
        if (k->race) {
            expect(status, &error, "at the same time");
            assert_non_null(strstr(error.hint, "wait"));
        } else if (status != STRATA_OK || drain(&r, r.base.up, &error) != STRATA_OK) {
            fail_msg("%s: %s", k->what, error.message);
        }
        r.card->segment_free(segment);
        close_rig(&r);
    }
}

/* Two launches of different conversations: stores to different pages and states of different slots may overlap. */
static void launches_of_different_conversations_do_not_race(void **state)
{
    (void)state;
    static const struct { int op[2]; uint32_t conversation[2]; bool race; } cases[] = {
        {{STORE, STORE}, {0, 1}, false},    {{STORE, STORE}, {1, 1}, true},         {{STORE, ATTENTION}, {0, 1}, false},
        {{STORE, ATTENTION}, {0, 0}, true}, {{ATTENTION, ATTENTION}, {0, 0}, false}, {{CONV, CONV}, {0, 1}, false},
        {{CONV, CONV}, {1, 1}, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        strata_error error;
        st_segment *segments[2] = {NULL, NULL};
        open_rig(&r, false);
        for (int k = 0; k < 2; k++) {
            write_step_of(r.steps[k], cases[i].conversation[k]);
            st_bound_op bound = r.bound[cases[i].op[k]];
            if (k == 1 && bound.out.data) bound.out.data = r.y + 64; /* the values of the two launches are their own */
            segments[k] = prepare(&r, &bound, k);
            st_queue *queue = k ? r.base.up : r.base.compute;
            assert_int_equal(r.card->launch(segments[k], queue, r.steps[k]->count, NULL), STRATA_OK);
        }
        strata_status status = drain(&r, r.base.compute, &error);
        if (cases[i].race) expect(status, &error, "at the same time");
        else if (status != STRATA_OK || drain(&r, r.base.up, &error) != STRATA_OK)
            fail_msg("case %zu: %s", i, error.message);
        for (int k = 0; k < 2; k++) r.card->segment_free(segments[k]);
        close_rig(&r);
    }
}

/* The step arrives between the launch and the end of the operation: right by then, but not when the operation began. */
static void a_step_that_arrives_late_is_an_error(void **state)
{
    (void)state;
    rig r;
    strata_error error;
    open_rig(&r, false);
    st_segment *segment = prepare(&r, &r.bound[ATTENTION], 0);
    memcpy(r.base.host, r.steps[0], r.steps[0]->bytes);
    assert_int_equal(r.card->copy(r.base.up, ST_COPY_UP, r.steps[0], r.base.host, 16, NULL), STRATA_OK); /* 0.16 s */
    assert_int_equal(r.card->zero(r.base.compute, r.y, 10, NULL), STRATA_OK);          /* until 0.01 s */
    assert_int_equal(r.card->launch(segment, r.base.compute, ROWS, NULL), STRATA_OK); /* until 0.26 s */
    expect(drain(&r, r.base.compute, &error), &error, "the step says");
    r.card->segment_free(segment);
    close_rig(&r);

    /* Its tables are overwritten while it runs; a third queue then looks at the accesses of both. */
    open_rig(&r, false);
    segment = prepare(&r, &r.bound[ATTENTION], 0);
    assert_int_equal(r.card->launch(segment, r.base.compute, ROWS, NULL), STRATA_OK);
    assert_int_equal(r.card->copy(r.base.up, ST_COPY_UP, r.steps[0], r.base.host, 400, NULL), STRATA_OK);
    st_queue *third = NULL;
    assert_int_equal(r.card->queue_new(r.base.device, ST_QUEUE_DOWN, &third, NULL), STRATA_OK);
    assert_int_equal(r.card->zero(third, r.keys, PAGE_BYTES, NULL), STRATA_OK);
    expect(drain(&r, r.base.compute, &error), &error, "at the same time");
    r.card->queue_free(third);
    r.card->segment_free(segment);
    close_rig(&r);
}

/* --- time --------------------------------------------------------------------------------------------------------- */

/* Attention and stores take the sum of what each conversation takes at its own depth. */
static void conversations_are_priced_by_their_depth(void **state)
{
    (void)state;
    st_sim_options options = step_options();
    for (int op = 0; op < CONV; op++) {
        rig r;
        strata_error error;
        open_rig(&r, true);
        st_work sum = {.type = ST_TYPE_F32, .rows = ROWS};
        for (int i = 0; i < 2; i++) {
            st_work work = st_work_of(&program, &sim_binding, &ops[op], conversations[i].rows,
                                      conversations[i].position, ST_TYPE_F32);
            sum.bytes += work.bytes;
            sum.ops += work.ops;
            sum.op_class = work.op_class;
        }
        if (launch(&r, &r.bound[op], ROWS, &error) != STRATA_OK) fail_msg("%s", error.message);
        double expected = 0.25 + st_profile_seconds(&options.card, &sum) + 0.5;
        double found = st_sim_world_seconds(r.base.world);
        if (fabs(found - expected) > 1e-9)
            fail_msg("%s: %.12g s, expected %.12g", st_op_name(ops[op].kind), found, expected);
        close_rig(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_steps_are_errors),
        cmocka_unit_test(the_launch_and_the_step_have_the_same_rows),
        cmocka_unit_test(pages_behind_a_window_are_not_needed),
        cmocka_unit_test(pools_that_end_past_their_memory_are_refused),
        cmocka_unit_test(races_are_found_by_page_and_slot),
        cmocka_unit_test(launches_of_different_conversations_do_not_race),
        cmocka_unit_test(a_step_that_arrives_late_is_an_error),
        cmocka_unit_test(conversations_are_priced_by_their_depth),
    };
    return cmocka_run_group_tests_name("sim_steps", tests, NULL, NULL);
}
