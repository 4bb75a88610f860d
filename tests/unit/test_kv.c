/* src/kv/layout.c and views: the exact bytes of the KV cache and of recurrent state, by pool, page and slot. */
#include "support/kit.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/check.h"
#include "kv/kv.h"

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

/* One conversation, whose context is the pool. */
static st_kv_options options_of(st_type type, uint32_t page, uint32_t context, uint32_t batch)
{
    return (st_kv_options){.type = type, .page_tokens = page, .context = context, .pool_tokens = context,
                           .conversations = 1, .batch = batch};
}

static const st_kv_layout *lay_out(made *m, st_kv_options options)
{
    strata_error error;
    st_kv_layout priced;
    if (st_kv_layout_build(&m->desc, &options, &m->arena, &m->layout, &error) != STRATA_OK)
        fail_msg("%s", error.message);
    assert_true(st_kv_layout_price(&m->desc, &options, &priced)); /* the same sizes without the layers */
    priced.layers = m->layout->layers;
    assert_memory_equal(&priced, m->layout, sizeof priced);
    return m->layout;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* The pool has a page more than its tokens need: a page is copied before the original is dropped. */
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
        const st_kv_layout *layout = lay_out(&m, options_of(rows[i].type, 64, 4096, 512));
        double bytes = rows[i].kib * 1024 * (4096 + 64);
        assert_true((double)layout->cache_bytes == bytes);
        assert_int_equal(layout->pools[0].pages, 4096 / 64 + 1);
        assert_int_equal(layout->pools[0].table_max, 4096 / 64);
        assert_int_equal(layout->slot_bytes, 0);
        assert_int_equal(layout->total_bytes, layout->cache_bytes);
        assert_int_equal(layout->exact.kv, layout->cache_bytes);
        assert_false(layout->needs_points);
        assert_int_equal(layout->point_bytes, 0);
        for (uint32_t l = 0; l < rows[i].layers; l++)
            assert_true((double)st_kv_layer_bytes(layout, &layout->layers[l]) == bytes / rows[i].layers);
        st_arena_free(&m.arena);
    }
}

static void pages_of_every_size(void **state)
{
    (void)state;
    for (uint32_t page = 1, shift = 0; page <= 64; page *= 2, shift++)
        for (uint32_t context = 1; context < 200; context += 33) {
            made m;
            make_attention(&m, 2, 1, 16);
            st_kv_options options = options_of(ST_TYPE_F16, page, context, 4);
            options.pool_tokens = 3 * context;
            options.conversations = 5;
            const st_kv_layout *layout = lay_out(&m, options);
            uint32_t pages = (3 * context + page - 1) / page + 1, table = (context + page - 1) / page;
            assert_int_equal(layout->page_shift, shift);
            assert_int_equal(layout->pools[0].pages, pages);
            assert_int_equal(layout->pools[0].table_max, table);
            assert_int_equal(st_kv_tables_max(layout), 5 * table);
            assert_int_equal(layout->exact.kv, (size_t)pages * page * 2 * 2 * 16 * 2);
            st_arena_free(&m.arena);
        }
}

/* Each conversation that runs has a slot: convolution and delta state of all layers, and the NextN block's hidden
 * row. */
static void bytes_of_state(void **state)
{
    (void)state;
    static const struct { uint32_t layers, values; double mib; size_t bytes; } rows[] = {
        {40, 32, 62.8, 65863680}, {64, 48, 149.6, 156893184}};
    for (size_t i = 0; i < 2; i++)
        for (uint32_t carry = 0; carry < 200; carry += 100) {
            made m;
            st_deltanet_desc d = {.key_heads = 16, .value_heads = rows[i].values, .state_size = 128, .conv_width = 4};
            make_recurrent(&m, rows[i].layers, 2, 256, d);
            st_kv_options options = options_of(ST_TYPE_BF16, 64, 1024, 512);
            options.conversations = 3;
            options.carry = carry;
            const st_kv_layout *layout = lay_out(&m, options);
            size_t slot = st_align_up(rows[i].bytes + carry * sizeof(float), 256);
            assert_float_equal((float)rows[i].bytes / MIB, (float)rows[i].mib, 0.05f);
            assert_int_equal(layout->slot_bytes, slot);
            assert_int_equal(layout->carry_offset, rows[i].bytes);
            assert_int_equal(layout->total_bytes, layout->state_offset + 3 * slot);
            assert_int_equal(layout->exact.state, 3 * (rows[i].bytes + carry * sizeof(float)));
            assert_int_equal(layout->exact.padding + layout->exact.state + layout->exact.kv, layout->total_bytes);
            assert_int_equal(layout->cache_bytes, (size_t)rows[i].layers / 4 * 2 * 2 * 256 * 2 * (1024 + 64));
            assert_true(layout->needs_points);
            assert_int_equal(layout->point_bytes, slot);
            assert_int_equal(st_kv_layer_bytes(layout, &layout->layers[0]), 0);
            assert_int_equal(layout->layers[3].delta_bytes, 0);
            st_arena_free(&m.arena);
        }
}

/* ---- pools ------------------------------------------------------------------------------------------------------- */

/* A conversation holds the pages of span − 1 positions wherever they begin, a spare one and one that is being filled;
 * the rows of a step come once for all conversations. */
static void windows_have_pools_of_their_own(void **state)
{
    (void)state;
    static const struct { uint32_t window, chunk, context, batch, page, tail, held, rows; } rows[] = {
        {512, 0, 8192, 16, 64, 9, 11, 1},   {512, 0, 8192, 512, 64, 9, 11, 8},
        {513, 0, 8192, 16, 64, 9, 11, 1},   {514, 0, 8192, 16, 64, 10, 12, 1},
        {512, 0, 8192, 1, 1, 512, 514, 1},  {0, 8192, 100000, 512, 64, 129, 131, 8},
        {1, 0, 8192, 1, 4, 1, 3, 1},        {6, 0, 64, 8, 4, 3, 5, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        made m;
        make_attention(&m, 2, 2, 16);
        m.layers[1].attention.window = rows[i].window;
        m.layers[1].attention.chunk = rows[i].chunk;
        st_kv_options options = options_of(ST_TYPE_F32, rows[i].page, rows[i].context, rows[i].batch);
        options.conversations = 4;
        const st_kv_layout *layout = lay_out(&m, options);
        assert_int_equal(layout->pool_count, 2);
        const st_kv_pool *pool = &layout->pools[1];
        assert_int_equal(pool->span, rows[i].window ? rows[i].window : rows[i].chunk);
        assert_int_equal(pool->tail_max, rows[i].tail);
        assert_int_equal(pool->table_max, rows[i].held + rows[i].rows);
        assert_int_equal(pool->pages, 4 * rows[i].held + rows[i].rows);
        assert_int_equal(st_kv_layer_bytes(layout, &layout->layers[1]),
                         (size_t)pool->pages * rows[i].page * 2 * 2 * 16 * 4);
        assert_true(layout->needs_points);
        assert_int_equal(layout->point_bytes, (size_t)rows[i].tail * rows[i].page * 2 * 2 * 16 * 4);
        assert_int_equal(st_kv_tables_max(layout), 4 * layout->pools[0].table_max + pool->pages);
        st_arena_free(&m.arena);
    }
}

/* A window as long as the context is full attention, and so is every window if the options say so. */
static void windows_that_do_not_slide(void **state)
{
    (void)state;
    made m;
    for (int i = 0; i < 3; i++) {
        make_attention(&m, 2, 2, 16);
        m.layers[1].attention.window = i == 0 ? 256 : i == 1 ? 300 : 10;
        st_kv_options options = options_of(ST_TYPE_F32, 64, 256, 16);
        options.no_windows = i == 2;
        const st_kv_layout *layout = lay_out(&m, options);
        assert_int_equal(layout->pool_count, 1);
        assert_int_equal(layout->layers[1].pool, 0);
        assert_false(layout->needs_points);
        st_arena_free(&m.arena);
    }
    make_attention(&m, 2, 2, 16);
    m.layers[1].attention.window = 255; /* a little shorter: no more pages than the context has for each conversation */
    const st_kv_layout *layout = lay_out(&m, options_of(ST_TYPE_F32, 64, 256, 16));
    assert_int_equal(layout->pools[1].pages, 4);
    assert_int_equal(layout->pools[1].table_max, 4);
    assert_int_equal(layout->pools[1].tail_max, 4);
    st_arena_free(&m.arena);
}

/* Layers that read another layer's KV have none; a model without full attention still has pool 0, which names
 * prefixes. */
static void layers_share_pools_by_span(void **state)
{
    (void)state;
    made m;
    make_attention(&m, 6, 2, 16);
    static const uint32_t windows[] = {8, 20, 8, 20, 8, 33};
    for (uint32_t i = 0; i < 6; i++) m.layers[i].attention.window = windows[i];
    m.layers[4].attention.kv_layer = 2;
    const st_kv_layout *layout = lay_out(&m, options_of(ST_TYPE_F32, 4, 64, 4));
    static const uint32_t pools[] = {1, 2, 1, 2, 0, 3};
    assert_int_equal(layout->pool_count, 4);
    assert_int_equal(layout->pools[0].span, 0);
    assert_int_equal(layout->pools[0].pages, 17);
    assert_int_equal(layout->pools[0].page_bytes, 0);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(layout->layers[i].pool, pools[i]);
        if (i != 4) assert_int_equal(layout->pools[pools[i]].span, windows[i]);
    }
    assert_int_equal(st_kv_layer_bytes(layout, &layout->layers[4]), 0);
    assert_int_equal(layout->pools[1].page_bytes, 2 * layout->pools[3].page_bytes);
    st_arena_free(&m.arena);
}

static void too_many_spans_are_refused(void **state)
{
    (void)state;
    made m;
    strata_error error;
    make_attention(&m, 5, 2, 16);
    for (uint32_t i = 0; i < 4; i++) m.layers[i].attention.window = 8 + i;
    st_kv_options options = options_of(ST_TYPE_F32, 4, 64, 4);
    const st_kv_layout *layout = NULL;
    assert_int_equal(st_kv_layout_build(&m.desc, &options, &m.arena, &layout, &error), STRATA_UNSUPPORTED);
    assert_non_null(strstr(error.message, "5 different attention spans: expected at most 4"));
    assert_null(layout);
    options.context = options.pool_tokens = 11; /* the longest window is no longer one */
    assert_int_equal(lay_out(&m, options)->pool_count, 4);
    options = options_of(ST_TYPE_F32, 4, 64, 4);
    options.no_windows = true;
    assert_int_equal(lay_out(&m, options)->pool_count, 1);
    m.layers[3].attention.kv_layer = 2; /* it keeps nothing of its own */
    assert_int_equal(lay_out(&m, options_of(ST_TYPE_F32, 4, 64, 4))->pool_count, 4);
    st_arena_free(&m.arena);
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

typedef struct piece {
    size_t start, bytes;
} piece;

static int by_start(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

/* Every row of every page and every slot: disjoint, inside the block. */
static size_t list_pieces(const st_kv_layout *layout, piece *out)
{
    size_t count = 0;
    for (uint32_t i = 0; i < layout->layer_count; i++) {
        const st_kv_layer *l = &layout->layers[i];
        for (uint32_t p = 0; l->key_row_bytes && p < layout->pools[l->pool].pages; p++) {
            out[count++] = (piece){l->keys_offset + p * l->key_page_bytes, l->key_row_bytes << layout->page_shift};
            out[count++] = (piece){l->values_offset + p * l->value_page_bytes,
                                   l->value_row_bytes << layout->page_shift};
        }
        for (uint32_t s = 0; l->conv_bytes && s < layout->options.conversations; s++) {
            out[count++] = (piece){l->conv_offset + s * layout->slot_bytes, l->conv_bytes};
            out[count++] = (piece){l->delta_offset + s * layout->slot_bytes, l->delta_bytes};
        }
    }
    for (uint32_t s = 0; layout->options.carry && s < layout->options.conversations; s++)
        out[count++] = (piece){layout->state_offset + s * layout->slot_bytes + layout->carry_offset,
                               layout->options.carry * sizeof(float)};
    return count;
}

static void pages_and_slots_are_disjoint(void **state)
{
    (void)state;
    for (int page_major = 0; page_major < 2; page_major++) {
        made m;
        st_deltanet_desc d = {.key_heads = 1, .value_heads = 3, .state_size = 5, .conv_width = 4};
        make_recurrent(&m, 9, 1, 7, d);
        m.layers[3].attention.window = 5;
        m.layers[8] = m.layers[7]; /* two layers of full attention */
        m.layers[8].attention.kv_layer = 8;
        st_kv_options options = options_of(ST_TYPE_Q8_0, 4, 13, 3);
        options.conversations = 3;
        options.carry = 5;
        options.page_major = page_major;
        const st_kv_layout *layout = lay_out(&m, options);
        piece pieces[512];
        size_t count = list_pieces(layout, pieces), bytes = 0, end = 0;
        qsort(pieces, count, sizeof *pieces, by_start);
        for (size_t i = 0; i < count; i++) {
            assert_true(pieces[i].start >= end);
            end = pieces[i].start + pieces[i].bytes;
            bytes += pieces[i].bytes;
        }
        assert_true(end <= layout->total_bytes);
        assert_int_equal(bytes, layout->exact.kv + layout->exact.state);
        assert_int_equal(layout->state_offset % ST_RANGE_ALIGN, 0);
        assert_int_equal(layout->slot_bytes % ST_RANGE_ALIGN, 0);
        const st_kv_layer *first = &layout->layers[7], *second = &layout->layers[8];
        if (page_major) { /* the layers of a page lie together, and pages follow one another */
            assert_int_equal(first->key_page_bytes, layout->pools[0].page_bytes);
            assert_int_equal(second->keys_offset,
                             first->values_offset + (first->value_row_bytes << layout->page_shift));
            assert_int_equal(first->keys_offset, layout->pools[0].offset);
        } else { /* the pages of a layer continue in memory */
            assert_int_equal(first->key_page_bytes, first->key_row_bytes << layout->page_shift);
            assert_int_equal(first->keys_offset % ST_RANGE_ALIGN, 0);
            assert_true(second->keys_offset >= first->values_offset + layout->pools[0].pages * first->value_page_bytes);
        }
        st_arena_free(&m.arena);
    }
}

/* The layers of two devices: the same pools, and together the bytes of one. */
static void layers_of_two_devices(void **state)
{
    (void)state;
    made m;
    static const uint8_t device[] = {0, 1, 1, 0};
    make_attention(&m, 4, 2, 16);
    m.layers[1].attention.window = m.layers[3].attention.window = 6;
    st_kv_options options = options_of(ST_TYPE_F16, 4, 64, 8);
    const st_kv_layout *whole = lay_out(&m, options);
    options.layer_device = device;
    size_t kv = 0, points = 0;
    for (uint8_t d = 0; d < 2; d++) {
        options.device = d;
        options.page_major = d == 1;
        const st_kv_layout *part = lay_out(&m, options);
        for (uint32_t i = 0; i < 2; i++) assert_int_equal(part->pools[i].pages, whole->pools[i].pages);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(st_kv_layer_bytes(part, &part->layers[i]),
                             device[i] == d ? st_kv_layer_bytes(whole, &whole->layers[i]) : 0);
        assert_true(part->needs_points);
        kv += part->exact.kv;
        points += part->point_bytes;
    }
    assert_int_equal(kv, whole->exact.kv);
    assert_int_equal(points, whole->point_bytes);
    st_arena_free(&m.arena);
}

static void views_match_the_layout(void **state)
{
    (void)state;
    made m;
    st_deltanet_desc d = {.key_heads = 1, .value_heads = 3, .state_size = 5, .conv_width = 4};
    make_recurrent(&m, 4, 1, 8, d);
    st_kv_options options = options_of(ST_TYPE_F32, 4, 13, 3);
    options.conversations = 2;
    const st_kv_layout *layout = lay_out(&m, options);
    st_kv_source source = {.share_count = 1, .shares[0] = {.layout = layout, .backend = st_backend_cpu()}};
    source.shares[0].memory = st_alloc_array(layout->total_bytes, 1);
    assert_non_null(source.shares[0].memory);
    st_kv *kv = NULL;
    assert_int_equal(st_kv_new(&source, &kv, NULL), STRATA_OK);
    st_kv_view view = st_kv_view_of(kv, 3);
    assert_int_equal(view.pages, 5);
    assert_int_equal(view.page_shift, 2);
    assert_int_equal(view.key_row_bytes, 32);
    assert_int_equal(view.values - view.keys, layout->layers[3].values_offset - layout->layers[3].keys_offset);
    assert_int_equal(view.type, ST_TYPE_F32);
    memset(view.keys, 1, view.pages * view.key_page_bytes); /* the sanitizer checks the bounds */
    memset(view.values, 1, view.pages * view.value_page_bytes);
    st_state_view last = st_kv_state_of(kv, 2);
    assert_int_equal(last.slots, 2);
    memset(last.delta + last.slot_floats, 1, layout->layers[2].delta_bytes);
    memset(last.conv + last.slot_floats, 1, layout->layers[2].conv_bytes);
    st_kv_use use = st_kv_count(kv);
    assert_int_equal(use.pools[0].free, 5);
    assert_int_equal(use.page_tokens, 4);
    assert_int_equal(use.slots, 2);
    st_kv_free(kv);
    st_free(source.shares[0].memory);
    st_arena_free(&m.arena);
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static void check_refused(const made *m, st_kv_options options, strata_status status, const char *words)
{
    strata_error error;
    st_arena arena = {0};
    const st_kv_layout *layout = NULL;
    strata_status found = st_kv_layout_build(&m->desc, &options, &arena, &layout, &error);
    if (found != status || !strstr(error.message, words))
        fail_msg("expected status %d, \"%s\"; found %d, \"%s\"", status, words, found, error.message);
    assert_null(layout);
    st_arena_free(&arena);
}

static void invalid_options_are_refused(void **state)
{
    (void)state;
    made m;
    make_attention(&m, LAYERS_MAX, 1 << 14, 1 << 14);
    st_kv_options good = options_of(ST_TYPE_F32, 64, 1u << 30, 512), bad = good;
    check_refused(&m, good, STRATA_MEMORY, "1073741824 positions");
    bad.page_major = true;
    check_refused(&m, bad, STRATA_MEMORY, "1073741824 positions");
    bad = good;
    bad.type = ST_TYPE_Q4_0;
    check_refused(&m, bad, STRATA_USAGE, "expected f32, f16, bf16 or q8_0");
    bad = good;
    bad.context = 0;
    check_refused(&m, bad, STRATA_USAGE, "context 0");
    bad = good;
    bad.batch = 0;
    check_refused(&m, bad, STRATA_USAGE, "batch 0");
    bad = good;
    bad.conversations = 0;
    check_refused(&m, bad, STRATA_USAGE, "conversations 0");
    bad = good;
    bad.pool_tokens--;
    check_refused(&m, bad, STRATA_USAGE, "a pool of 1073741823 tokens");
    static const uint32_t pages[] = {0, 3, 96, 1u << 17, UINT32_MAX};
    for (size_t i = 0; i < 5; i++) {
        bad = good;
        bad.page_tokens = pages[i];
        check_refused(&m, bad, STRATA_USAGE, "expected a power of two");
    }
    st_deltanet_desc d = {.key_heads = 1 << 14, .value_heads = 1 << 14, .state_size = 1 << 14, .conv_width = 64};
    make_recurrent(&m, LAYERS_MAX, 1, 1, d);
    st_kv_options slots = options_of(ST_TYPE_F32, 64, 8, 8);
    slots.conversations = UINT32_MAX;
    check_refused(&m, slots, STRATA_MEMORY, "larger than the address space");
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
    st_desc dense = {0}, recurrent = {.recurrent = true};
    assert_int_equal(st_kv_default_type(&dense), ST_TYPE_F16);
    assert_int_equal(st_kv_default_type(&recurrent), ST_TYPE_BF16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_per_token), cmocka_unit_test(pages_of_every_size), cmocka_unit_test(bytes_of_state),
        cmocka_unit_test(windows_have_pools_of_their_own), cmocka_unit_test(windows_that_do_not_slide),
        cmocka_unit_test(layers_share_pools_by_span), cmocka_unit_test(too_many_spans_are_refused),
        cmocka_unit_test(pages_and_slots_are_disjoint), cmocka_unit_test(layers_of_two_devices),
        cmocka_unit_test(views_match_the_layout), cmocka_unit_test(invalid_options_are_refused),
        cmocka_unit_test(types_have_names), cmocka_unit_test(the_default_type),
    };
    return cmocka_run_group_tests_name("kv", tests, NULL, NULL);
}
