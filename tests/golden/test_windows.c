/* Sliding-window layers far past their window: their pools keep their size and give bit for bit what a cache of all
 * positions gives. The model is the kit's gemma4-e with a longer context. */
#include "support/gguf_copy.h"

#include <string.h>

#include "support/golden.h"

enum { CONTEXT = 8192, WINDOW = 16, PAGE = 8 };

static golden base, model;
static gguf_copy copy;

static int open_model(void **state)
{
    (void)state;
    assert_true(golden_open(&base, "gemma4-e"));
    gguf_copy_open(&copy, "gemma4-e");
    gguf_copy_set_u32(&copy, ".context_length", CONTEXT);
    gguf_copy_finish(&copy, true);
    golden_open_bytes(&model, &base, copy.writer.out.data, copy.writer.out.length);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    golden_close(&model);
    gguf_copy_close(&copy);
    golden_close(&base);
    return 0;
}

static size_t layer_bytes(const golden *g, uint32_t context, uint32_t batch, uint32_t layer)
{
    st_arena arena = {0};
    const st_kv_layout *layout;
    st_kv_options options = {.type = ST_TYPE_F32, .page_tokens = PAGE, .context = context, .pool_tokens = context,
                             .conversations = 1, .batch = batch};
    assert_int_equal(st_kv_layout_build(g->desc, &options, &arena, &layout, NULL), STRATA_OK);
    size_t bytes = st_kv_layer_bytes(layout, &layout->layers[layer]);
    st_arena_free(&arena);
    return bytes;
}

static void only_full_layers_grow_with_the_context(void **state)
{
    (void)state;
    assert_int_equal(model.desc->context_max, CONTEXT);
    for (uint32_t layer = 0; layer < 2; layer++) {
        size_t bytes = layer_bytes(&model, 512, 32, layer), row = 2 * 2 * 16 * 4;
        assert_in_range(bytes, (WINDOW + 31) * row, (WINDOW + 31 + 4 * PAGE) * row);
        assert_int_equal(layer_bytes(&model, CONTEXT, 32, layer), bytes);
    }
    size_t grown = layer_bytes(&model, CONTEXT, 32, 2) - layer_bytes(&model, 512, 32, 2);
    assert_int_equal(grown, layer_bytes(&model, 2 * CONTEXT - 512, 32, 2) - layer_bytes(&model, CONTEXT, 32, 2));
    assert_true(grown > 0);
}

static int32_t token_at(uint32_t position)
{
    uint32_t mixed = position * 2654435761u;
    return (int32_t)((mixed >> 16) % 280);
}

/* Feeds both caches the same tokens and compares the last row of each batch, and the first of some. */
static void compare(const char *cpu, uint32_t tokens, uint32_t batch, uint32_t page_tokens, uint32_t every)
{
    golden_run windows, everything;
    golden_options options = {.kv_type = ST_TYPE_F32, .batch = batch, .threads = 2, .context = CONTEXT,
                              .page_tokens = page_tokens, .cpu = cpu};
    golden_run_open(&windows, &model, &options);
    options.no_windows = true;
    golden_run_open(&everything, &model, &options);
    strata_error error;
    uint32_t compared = 0;
    for (uint32_t position = 0; position < tokens; position += batch) {
        strata_token ids[512];
        for (uint32_t i = 0; i < batch; i++) ids[i] = token_at(position + i);
        assert_int_equal(golden_step(&windows, windows.conversation, ids, batch, &error), STRATA_OK);
        assert_int_equal(golden_step(&everything, everything.conversation, ids, batch, &error), STRATA_OK);
        if (position / batch % every) continue;
        for (uint32_t k = 0; k < 2; k++) {
            uint32_t row = k ? 0 : batch - 1;
            const float *one, *other;
            assert_int_equal(st_run_logits(windows.run, &row, 1, &one, &error), STRATA_OK);
            assert_int_equal(st_run_logits(everything.run, &row, 1, &other, &error), STRATA_OK);
            if (memcmp(one, other, model.desc->vocab * sizeof *one) != 0)
                fail_msg("position %u differs", position + row);
            compared++;
        }
    }
    assert_true(compared >= 40);
    golden_run_close(&windows);
    golden_run_close(&everything);
}

static void three_thousand_tokens_match(void **state)
{
    (void)state;
    compare(NULL, 3008, 64, 0, 1);
}

static void single_token_batches_match(void **state)
{
    (void)state;
    compare("ref", 200, 1, 4, 2);
}

static void odd_batches_match(void **state)
{
    (void)state;
    compare("ref", 51 * 7, 7, 1, 1);
    compare("ref", 17 * 21, 17, 8, 1); /* one more than the window */
}

/* The window has an effect: another window gives other logits. */
static void another_window_changes_the_logits(void **state)
{
    (void)state;
    gguf_copy wide;
    golden other;
    gguf_copy_open(&wide, "gemma4-e");
    gguf_copy_set_u32(&wide, ".attention.sliding_window", WINDOW + 1);
    gguf_copy_finish(&wide, true);
    golden_open_bytes(&other, &base, wide.writer.out.data, wide.writer.out.length);
    golden_options options = {.kv_type = ST_TYPE_F32, .batch = 48, .threads = 1, .cpu = "ref"};
    golden_run one, two;
    golden_run_open(&one, &base, &options);
    golden_run_open(&two, &other, &options);
    golden_feed(&one, 0, 48, NULL);
    golden_feed(&two, 0, 48, NULL);
    for (uint32_t row = 0; row < 48; row++) {
        const float *a, *b;
        assert_int_equal(st_run_logits(one.run, &row, 1, &a, NULL), STRATA_OK);
        assert_int_equal(st_run_logits(two.run, &row, 1, &b, NULL), STRATA_OK);
        bool same = memcmp(a, b, base.desc->vocab * sizeof *a) == 0;
        assert_int_equal(same, row < WINDOW); /* position 16 is the first that a window of 17 changes */
    }
    golden_run_close(&one);
    golden_run_close(&two);
    golden_close(&other);
    gguf_copy_close(&wide);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_full_layers_grow_with_the_context), cmocka_unit_test(three_thousand_tokens_match),
        cmocka_unit_test(single_token_batches_match),                          cmocka_unit_test(odd_batches_match),
        cmocka_unit_test(another_window_changes_the_logits),
    };
    return cmocka_run_group_tests_name("windows", tests, open_model, close_model);
}
