/* src/kv: the exact bytes of a sequence, and how far it can be rewound. */
#include "support/kit.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "kv/kv.h"
#include "support/golden.h"

enum { LAYERS_MAX = 128, MIB = 1 << 20 };

/* A hand-made description. */
typedef struct made {
    st_layer_desc layers[LAYERS_MAX];
    st_desc desc;
    st_arena arena;
    const st_kv_layout *layout;
} made;

static void make_attention(made *m, uint32_t layers, uint32_t kv_heads, uint32_t length)
{
    memset(m, 0, sizeof *m);
    m->desc = (st_desc){.layer_count = layers, .layers = m->layers};
    for (uint32_t i = 0; i < layers; i++)
        m->layers[i].attention = (st_attention_desc){.heads = kv_heads, .kv_heads = kv_heads, .key_length = length,
                                                     .value_length = length, .kv_layer = i};
}

/* Three of four layers Gated DeltaNet. */
static void make_recurrent(made *m, uint32_t layers, uint32_t kv_heads, uint32_t length, st_deltanet_desc deltanet)
{
    make_attention(m, layers, kv_heads, length);
    m->desc.recurrent = true;
    for (uint32_t i = 0; i < layers; i++) {
        if ((i + 1) % 4 == 0) continue;
        m->layers[i].kind = ST_LAYER_DELTANET;
        m->layers[i].deltanet = deltanet;
    }
}

static const st_kv_layout *lay_out(made *m, st_kv_options options)
{
    strata_error error;
    if (st_kv_layout_build(&m->desc, &options, &m->arena, &m->layout, &error) != STRATA_OK)
        fail_msg("%s", error.message);
    return m->layout;
}

/* ---- the layout -------------------------------------------------------------------------------------------------- */

static void bytes_per_token(void **state)
{
    (void)state;
    static const struct { const char *name; uint32_t layers, kv_heads, length; st_type type; double kib; } rows[] = {
        {"Qwen3-8B", 36, 8, 128, ST_TYPE_F32, 288},  {"Qwen3-8B", 36, 8, 128, ST_TYPE_F16, 144},
        {"Qwen3-8B", 36, 8, 128, ST_TYPE_BF16, 144}, {"Qwen3-8B", 36, 8, 128, ST_TYPE_Q8_0, 76.5},
        {"27B", 16, 4, 256, ST_TYPE_BF16, 64},       {"35B-A3B", 10, 2, 256, ST_TYPE_BF16, 20},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        made m;
        make_attention(&m, rows[i].layers, rows[i].kv_heads, rows[i].length);
        const st_kv_layout *layout = lay_out(&m, (st_kv_options){.type = rows[i].type, .context = 4096, .batch = 512});
        assert_true((double)layout->cache_bytes == rows[i].kib * 1024 * 4096);
        assert_int_equal(layout->state_bytes, 0);
        assert_int_equal(layout->snapshot_bytes, 0);
        assert_int_equal(layout->total_bytes, layout->cache_bytes);
        for (uint32_t l = 0; l < rows[i].layers; l++) {
            assert_int_equal(layout->layers[l].capacity, 4096);
            assert_true((double)st_kv_layer_bytes(&layout->layers[l]) == rows[i].kib * 1024 * 4096 / rows[i].layers);
        }
        st_arena_free(&m.arena);
    }
}

static void bytes_of_state(void **state)
{
    (void)state;
    static const struct { uint32_t layers, values; double mib; size_t bytes; } rows[] = {
        {40, 32, 62.8, 65863680}, {64, 48, 149.6, 156893184}};
    for (size_t i = 0; i < 2; i++) {
        made m;
        st_deltanet_desc d = {.key_heads = 16, .value_heads = rows[i].values, .state_size = 128, .conv_width = 4};
        make_recurrent(&m, rows[i].layers, 2, 256, d);
        const st_kv_layout *layout =
            lay_out(&m, (st_kv_options){.type = ST_TYPE_BF16, .context = 1024, .batch = 512, .snapshots = 4});
        assert_int_equal(layout->state_bytes, rows[i].bytes);
        assert_float_equal((float)layout->state_bytes / MIB, (float)rows[i].mib, 0.05f);
        assert_int_equal(layout->snapshot_bytes, 4 * rows[i].bytes);
        assert_int_equal(layout->total_bytes, layout->state_offset + 5 * rows[i].bytes);
        assert_int_equal(layout->cache_bytes, (size_t)rows[i].layers / 4 * 2 * 2 * 256 * 2 * 1024);
        assert_int_equal(layout->layers[0].capacity, 0);
        assert_int_equal(layout->layers[3].delta_bytes, 0);
        st_arena_free(&m.arena);
    }
}

static void rings_hold_window_plus_batch_positions(void **state)
{
    (void)state;
    static const struct { uint32_t window, chunk, context, batch; bool no_rings; uint32_t capacity; } rows[] = {
        {512, 0, 8192, 16, false, 527},   {512, 0, 8192, 1, false, 512},   {512, 0, 8192, 512, false, 1023},
        {512, 0, 400, 16, false, 400},    {512, 0, 527, 16, false, 527},   {512, 0, 528, 16, false, 527},
        {512, 0, 8192, 16, true, 8192},   {0, 8192, 100000, 512, false, 8703}, {0, 8192, 4096, 512, false, 4096},
        {0, 0, 8192, 512, false, 8192},   {1, 0, 8192, 1, false, 1},
        {1 << 30, 0, 1 << 20, 1 << 16, false, 1 << 20},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        made m;
        make_attention(&m, 2, 2, 16);
        m.layers[1].attention.window = rows[i].window;
        m.layers[1].attention.chunk = rows[i].chunk;
        const st_kv_layout *layout = lay_out(&m, (st_kv_options){.type = ST_TYPE_F32, .context = rows[i].context,
                                                                 .batch = rows[i].batch, .no_rings = rows[i].no_rings});
        assert_int_equal(layout->layers[0].capacity, rows[i].context);
        assert_int_equal(layout->layers[1].capacity, rows[i].capacity);
        assert_int_equal(st_kv_layer_bytes(&layout->layers[1]), (size_t)rows[i].capacity * 2 * 2 * 16 * 4);
        st_arena_free(&m.arena);
    }
}

static void shared_layers_have_no_cache(void **state)
{
    (void)state;
    golden g;
    assert_true(golden_open(&g, "gemma4-e"));
    st_arena arena = {0};
    const st_kv_layout *layout;
    st_kv_options options = {.type = ST_TYPE_F32, .context = 256, .batch = 8};
    assert_int_equal(st_kv_layout_build(g.desc, &options, &arena, &layout, NULL), STRATA_OK);
    size_t bytes = 0;
    for (uint32_t i = 0; i < 6; i++) {
        size_t expected = i < 2 ? 23 * 2 * 2 * 16 * 4 : i == 2 ? 256 * 2 * 2 * 32 * 4 : 0;
        assert_int_equal(st_kv_layer_bytes(&layout->layers[i]), expected);
        bytes += expected;
    }
    assert_true(layout->cache_bytes >= bytes && layout->cache_bytes < bytes + 6 * 256);
    st_arena_free(&arena);
    golden_close(&g);
}

/* Buffers are disjoint, aligned and inside the block. */
static void buffers_are_disjoint_and_aligned(void **state)
{
    (void)state;
    made m;
    st_deltanet_desc d = {.key_heads = 1, .value_heads = 3, .state_size = 5, .conv_width = 4};
    make_recurrent(&m, 9, 1, 7, d);
    st_kv_options options = {.type = ST_TYPE_Q8_0, .context = 13, .batch = 3, .snapshots = 2};
    const st_kv_layout *layout = lay_out(&m, options);
    struct { size_t start, bytes; } pieces[4 * 9];
    size_t count = 0;
    for (uint32_t i = 0; i < 9; i++) {
        const st_kv_layer *l = &layout->layers[i];
        if (l->capacity) {
            pieces[count].start = l->keys_offset, pieces[count++].bytes = l->capacity * l->key_row_bytes;
            pieces[count].start = l->values_offset, pieces[count++].bytes = l->capacity * l->value_row_bytes;
        } else {
            assert_int_equal(l->conv_bytes, 5 * 5 * 3 * 4);
            assert_int_equal(l->delta_bytes, 3 * 25 * 4);
            assert_true(l->conv_offset >= layout->state_offset);
            pieces[count].start = l->conv_offset, pieces[count++].bytes = l->conv_bytes;
            pieces[count].start = l->delta_offset, pieces[count++].bytes = l->delta_bytes;
        }
    }
    for (size_t a = 0; a < count; a++) {
        assert_int_equal(pieces[a].start % 256, 0);
        assert_true(pieces[a].start + pieces[a].bytes <= layout->state_offset + layout->state_bytes);
        for (size_t b = 0; b < a; b++)
            assert_true(pieces[a].start + pieces[a].bytes <= pieces[b].start ||
                        pieces[b].start + pieces[b].bytes <= pieces[a].start);
    }
    st_arena_free(&m.arena);
}

static void invalid_options_are_refused(void **state)
{
    (void)state;
    made m;
    make_attention(&m, LAYERS_MAX, 1 << 14, 1 << 14);
    const st_kv_layout *layout = NULL;
    strata_error error;
    st_kv_options huge = {.type = ST_TYPE_F32, .context = 1u << 30, .batch = 512};
    assert_int_equal(st_kv_layout_build(&m.desc, &huge, &m.arena, &layout, &error), STRATA_MEMORY);
    assert_non_null(strstr(error.message, "1073741824 positions"));
    st_kv_options type = {.type = ST_TYPE_Q4_0, .context = 8, .batch = 8};
    assert_int_equal(st_kv_layout_build(&m.desc, &type, &m.arena, &layout, &error), STRATA_USAGE);
    st_kv_options empty = {.type = ST_TYPE_F32, .context = 0, .batch = 8}, still = {.type = ST_TYPE_F32, .context = 8};
    assert_int_equal(st_kv_layout_build(&m.desc, &empty, &m.arena, &layout, &error), STRATA_USAGE);
    assert_int_equal(st_kv_layout_build(&m.desc, &still, &m.arena, &layout, &error), STRATA_USAGE);
    assert_null(layout);
    st_arena_free(&m.arena);
    st_deltanet_desc d = {.key_heads = 1 << 14, .value_heads = 1 << 14, .state_size = 1 << 14, .conv_width = 64};
    make_recurrent(&m, LAYERS_MAX, 1, 1, d);
    st_kv_options snapshots = {.type = ST_TYPE_F32, .context = 8, .batch = 8, .snapshots = UINT32_MAX};
    assert_int_equal(st_kv_layout_build(&m.desc, &snapshots, &m.arena, &layout, &error), STRATA_MEMORY);
    st_arena_free(&m.arena);
}

static void types_have_names(void **state)
{
    (void)state;
    for (uint32_t type = 0; type < 64; type++) {
        const char *name = st_kv_type_name((st_type)type);
        bool one = type == ST_TYPE_F32 || type == ST_TYPE_F16 || type == ST_TYPE_BF16 || type == ST_TYPE_Q8_0;
        assert_int_equal(name != NULL, one);
        if (!one) continue;
        assert_int_equal(st_kv_type_find(name)->type, type);
        assert_non_null(strstr(ST_KV_TYPE_NAMES, name));
    }
    assert_null(st_kv_type_find("q4_0"));
}

static void the_default_type(void **state)
{
    (void)state;
    assert_int_equal(st_kv_default_type(&(st_desc){.recurrent = false}), ST_TYPE_F16);
    assert_int_equal(st_kv_default_type(&(st_desc){.recurrent = true}), ST_TYPE_BF16);
}

/* ---- rewinding --------------------------------------------------------------------------------------------------- */

typedef struct sequence {
    made m;
    st_device *device;
    st_queue *queue;
    void *memory;
    st_kv *kv;
} sequence;

static void open_sequence(sequence *s, st_kv_options options)
{
    const st_backend *cpu = st_backend_cpu();
    st_device_options device = {.cpu = "ref", .threads = 1};
    lay_out(&s->m, options);
    assert_int_equal(cpu->open(&device, &s->device, NULL), STRATA_OK);
    assert_int_equal(cpu->queue_new(s->device, ST_QUEUE_COMPUTE, &s->queue, NULL), STRATA_OK);
    assert_int_equal(cpu->alloc(s->device, s->m.layout->total_bytes, &s->memory, NULL), STRATA_OK);
    st_kv_share share = {.layout = s->m.layout, .backend = cpu, .queue = s->queue, .memory = s->memory};
    assert_int_equal(st_kv_new(&share, 1, &s->kv, NULL), STRATA_OK);
}

static void close_sequence(sequence *s)
{
    st_kv_free(s->kv);
    st_backend_cpu()->free(s->device, s->memory);
    st_backend_cpu()->queue_free(s->queue);
    st_backend_cpu()->close(s->device);
    st_arena_free(&s->m.arena);
}

static uint32_t rewind_to(sequence *s, uint32_t position)
{
    uint32_t reached = UINT32_MAX;
    strata_error error;
    if (st_kv_rewind(s->kv, position, &reached, &error) != STRATA_OK) fail_msg("%s", error.message);
    assert_int_equal(st_kv_position(s->kv), reached);
    return reached;
}

static void full_layers_rewind_to_any_position(void **state)
{
    (void)state;
    sequence s;
    make_attention(&s.m, 3, 2, 16);
    open_sequence(&s, (st_kv_options){.type = ST_TYPE_F32, .context = 100, .batch = 10});
    assert_int_equal(st_kv_position(s.kv), 0);
    st_kv_advance(s.kv, 90);
    assert_int_equal(rewind_to(&s, 90), 90);
    assert_int_equal(rewind_to(&s, 1000), 90);
    assert_int_equal(rewind_to(&s, 89), 89);
    assert_int_equal(rewind_to(&s, 1), 1);
    assert_int_equal(rewind_to(&s, 0), 0);
    close_sequence(&s);
}

/* A ring of window 8 and batch 4 holds 11 positions. The token at p attends to p − 7 … p. */
static void rings_rewind_within_their_capacity(void **state)
{
    (void)state;
    static const struct { uint32_t stored, to, reached; } rows[] = {
        {11, 1, 1},   /* nothing is overwritten yet */
        {12, 8, 8},   /* position 0 is overwritten; 8 attends to 1 */
        {12, 7, 0},   /* 7 attends to 0 */
        {30, 29, 29}, {30, 26, 26}, /* 19 is the oldest kept; 26 attends to 19 */
        {30, 25, 0},  {30, 30, 30}, {30, 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        sequence s;
        make_attention(&s.m, 2, 2, 16);
        s.m.layers[1].attention.window = 8;
        open_sequence(&s, (st_kv_options){.type = ST_TYPE_F32, .context = 100, .batch = 4});
        assert_int_equal(s.m.layout->layers[1].capacity, 11);
        st_kv_advance(s.kv, rows[i].stored);
        if (rewind_to(&s, rows[i].to) != rows[i].reached) fail_msg("row %zu: reached %u", i, st_kv_position(s.kv));
        close_sequence(&s);
    }
}

/* A rewind restores no overwritten position: the limit of the second rewind counts from the highest position ever. */
static void rewinds_of_a_ring_count_from_the_highest_position(void **state)
{
    (void)state;
    sequence s;
    make_attention(&s.m, 1, 2, 16);
    s.m.layers[0].attention.window = 8;
    open_sequence(&s, (st_kv_options){.type = ST_TYPE_F32, .context = 100, .batch = 4});
    st_kv_advance(s.kv, 30);
    assert_int_equal(rewind_to(&s, 27), 27);
    assert_int_equal(rewind_to(&s, 26), 26);
    assert_int_equal(rewind_to(&s, 25), 0);
    st_kv_advance(s.kv, 5); /* restarted: nothing is overwritten */
    assert_int_equal(rewind_to(&s, 2), 2);
    close_sequence(&s);
}

static void rewinds_without_rings_are_unlimited(void **state)
{
    (void)state;
    sequence s;
    make_attention(&s.m, 1, 2, 16);
    s.m.layers[0].attention.window = 8;
    open_sequence(&s, (st_kv_options){.type = ST_TYPE_F32, .context = 100, .batch = 4, .no_rings = true});
    st_kv_advance(s.kv, 100);
    assert_int_equal(rewind_to(&s, 3), 3);
    close_sequence(&s);
}

/* ---- state and snapshots ----------------------------------------------------------------------------------------- */

static void open_recurrent(sequence *s, uint32_t snapshots)
{
    st_deltanet_desc d = {.key_heads = 1, .value_heads = 2, .state_size = 4, .conv_width = 4};
    make_recurrent(&s->m, 4, 1, 8, d);
    open_sequence(s, (st_kv_options){.type = ST_TYPE_F32, .context = 1000, .batch = 8, .snapshots = snapshots});
}

/* The state is a function of the position, as a run would leave it. */
static void go_to(sequence *s, uint32_t position)
{
    st_kv_advance(s->kv, position - st_kv_position(s->kv));
    for (uint32_t layer = 0; layer < 3; layer++) {
        st_state_view view = st_kv_state_of(s->kv, layer);
        for (int i = 0; i < 16 * 3; i++) view.conv[i] = (float)(position * 10 + layer);
        for (int i = 0; i < 2 * 16; i++) view.delta[i] = (float)(position * 10 + layer) + 0.5f;
    }
}

static void check_state(sequence *s, uint32_t position)
{
    for (uint32_t layer = 0; layer < 3; layer++) {
        st_state_view view = st_kv_state_of(s->kv, layer);
        for (int i = 0; i < 16 * 3; i++) assert_true(view.conv[i] == (position ? (float)(position * 10 + layer) : 0));
        for (int i = 0; i < 2 * 16; i++)
            assert_true(view.delta[i] == (position ? (float)(position * 10 + layer) + 0.5f : 0));
    }
}

static void state_starts_as_zeros(void **state)
{
    (void)state;
    sequence s;
    open_recurrent(&s, 2);
    check_state(&s, 0);
    go_to(&s, 5);
    assert_int_equal(rewind_to(&s, 3), 0); /* without a snapshot the sequence restarts */
    check_state(&s, 0);
    /* A failed batch changes the state but not the position: a rewind to 0 clears the state all the same. */
    st_kv_state_of(s.kv, 1).delta[3] = 7;
    assert_int_equal(rewind_to(&s, 0), 0);
    check_state(&s, 0);
    close_sequence(&s);
}

static void recurrent_state_rewinds_to_snapshots(void **state)
{
    (void)state;
    sequence s;
    open_recurrent(&s, 3);
    static const uint32_t at[] = {10, 20, 30};
    for (int i = 0; i < 3; i++) {
        go_to(&s, at[i]);
        assert_int_equal(st_kv_snapshot(s.kv, NULL), STRATA_OK);
    }
    go_to(&s, 40);
    assert_int_equal(rewind_to(&s, 40), 40);
    check_state(&s, 40);
    assert_int_equal(rewind_to(&s, 35), 30);
    check_state(&s, 30);
    assert_int_equal(rewind_to(&s, 30), 30);
    assert_int_equal(rewind_to(&s, 29), 20);
    check_state(&s, 20);
    go_to(&s, 50);
    assert_int_equal(rewind_to(&s, 45), 20); /* the rewind to 20 dropped the snapshot at 30 */
    assert_int_equal(rewind_to(&s, 9), 0);
    go_to(&s, 60);
    assert_int_equal(rewind_to(&s, 55), 0); /* the restart dropped all snapshots */
    close_sequence(&s);
}

static void the_oldest_snapshot_is_replaced(void **state)
{
    (void)state;
    sequence s;
    open_recurrent(&s, 2);
    for (uint32_t position = 10; position <= 50; position += 10) {
        go_to(&s, position);
        assert_int_equal(st_kv_snapshot(s.kv, NULL), STRATA_OK);
        assert_int_equal(st_kv_snapshot(s.kv, NULL), STRATA_OK); /* two snapshots at one position take one slot */
    }
    go_to(&s, 60);
    assert_int_equal(rewind_to(&s, 55), 50);
    assert_int_equal(rewind_to(&s, 49), 40);
    check_state(&s, 40);
    assert_int_equal(rewind_to(&s, 39), 0); /* 10, 20 and 30 were replaced */
    close_sequence(&s);
}

static void without_snapshots_a_rewind_restarts(void **state)
{
    (void)state;
    sequence s;
    open_recurrent(&s, 0);
    go_to(&s, 10);
    assert_int_equal(st_kv_snapshot(s.kv, NULL), STRATA_OK);
    go_to(&s, 20);
    assert_int_equal(rewind_to(&s, 15), 0);
    close_sequence(&s);
}

static void views_match_the_layout(void **state)
{
    (void)state;
    sequence s;
    open_recurrent(&s, 1);
    st_kv_view view = st_kv_view_of(s.kv, 3);
    const st_kv_layer *layer = &s.m.layout->layers[3];
    assert_int_equal(view.capacity, 1000);
    assert_int_equal(view.key_row_bytes, 32);
    assert_int_equal(view.values - view.keys, layer->values_offset - layer->keys_offset);
    assert_int_equal(view.type, ST_TYPE_F32);
    memset(view.keys, 1, view.capacity * view.key_row_bytes); /* the sanitizer checks the bounds */
    memset(view.values, 1, view.capacity * view.value_row_bytes);
    check_state(&s, 0);
    close_sequence(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_per_token), cmocka_unit_test(bytes_of_state),
        cmocka_unit_test(rings_hold_window_plus_batch_positions), cmocka_unit_test(shared_layers_have_no_cache),
        cmocka_unit_test(buffers_are_disjoint_and_aligned), cmocka_unit_test(invalid_options_are_refused),
        cmocka_unit_test(types_have_names), cmocka_unit_test(the_default_type),
        cmocka_unit_test(full_layers_rewind_to_any_position), cmocka_unit_test(rings_rewind_within_their_capacity),
        cmocka_unit_test(rewinds_of_a_ring_count_from_the_highest_position),
        cmocka_unit_test(rewinds_without_rings_are_unlimited), cmocka_unit_test(state_starts_as_zeros),
        cmocka_unit_test(recurrent_state_rewinds_to_snapshots), cmocka_unit_test(the_oldest_snapshot_is_replaced),
        cmocka_unit_test(without_snapshots_a_rewind_restarts), cmocka_unit_test(views_match_the_layout),
    };
    return cmocka_run_group_tests_name("kv", tests, NULL, NULL);
}
