/* Dequantisation against the kit: bit-exact values of all its types, and the dot products of their rows. */
#include "support/kit.h"

#include <math.h>
#include <stdio.h>
#include <strings.h>

#include "gguf/gguf.h"

enum { COLUMNS = 512, ROWS = 8, KIT_TYPES = 25 };

static st_gguf *rows_file;

static int open_rows(void **state)
{
    (void)state;
    strata_error error;
    if (st_gguf_open(kit_path("quant/rows.gguf"), &rows_file, &error) == STRATA_OK) return 0;
    print_error("%s\n", error.message);
    return -1;
}

static int close_rows(void **state)
{
    (void)state;
    st_gguf_close(rows_file);
    return 0;
}

/* The tensor of a kind and a type, e.g. "q.q4_K" for 'q' and "Q4_K" in either case; a missing one fails the test. */
static const st_gguf_tensor *kit_tensor(char kind, const char *type)
{
    char name[64];
    snprintf(name, sizeof name, "%c.%s", kind, type);
    for (size_t i = 0; i < st_gguf_tensor_count(rows_file); i++) {
        const st_gguf_tensor *tensor = st_gguf_tensor_at(rows_file, i);
        if (tensor->name.length == strlen(name) && strncasecmp(tensor->name.data, name, strlen(name)) == 0)
            return tensor;
    }
    fail_msg("the kit has no tensor %s", name);
    return NULL;
}

static void check_type(void **state)
{
    const st_type_info *info = *state;
    const st_gguf_tensor *quantised = kit_tensor('q', info->name), *expected = kit_tensor('d', info->name);
    const st_gguf_tensor *dots = kit_tensor('y', info->name), *x = st_gguf_tensor_find(rows_file, "x");
    assert_non_null(x);
    assert_ptr_equal(quantised->info, info);
    assert_int_equal(quantised->ne[0], COLUMNS);
    assert_int_equal(quantised->ne[1], ROWS);
    assert_int_equal(expected->bytes, COLUMNS * ROWS * sizeof(float));
    assert_int_equal(dots->bytes, ROWS * sizeof(float));
    assert_int_equal(x->bytes, COLUMNS * sizeof(float));

    float values[COLUMNS * ROWS], wanted_dots[ROWS], factors[COLUMNS];
    info->dequantise(quantised->data, values, COLUMNS * ROWS / info->block);
    if (memcmp(values, expected->data, sizeof values) != 0) {
        for (size_t i = 0; i < COLUMNS * ROWS; i++) {
            float want;
            memcpy(&want, expected->data + i * sizeof want, sizeof want);
            if (memcmp(&want, &values[i], sizeof want) != 0)
                fail_msg("%s: element %zu: expected %a, found %a", info->name, i, (double)want, (double)values[i]);
        }
    }

    memcpy(wanted_dots, dots->data, sizeof wanted_dots);
    memcpy(factors, x->data, sizeof factors);
    for (size_t row = 0; row < ROWS; row++) {
        double dot = 0, magnitude = 0;
        for (size_t i = 0; i < COLUMNS; i++) {
            double product = (double)values[row * COLUMNS + i] * (double)factors[i];
            dot += product;
            magnitude += fabs(product);
        }
        if (!(fabs(dot - (double)wanted_dots[row]) <= 1e-6 * magnitude))
            fail_msg("%s: row %zu: expected a dot of %g, found %g", info->name, row, (double)wanted_dots[row], dot);
    }
}

/* An odd address gives the same values: blocks in a file are not aligned to their members. */
static void check_odd_address(void **state)
{
    (void)state;
    for (size_t i = 0; i < st_type_count(); i++) {
        const st_type_info *info = st_type_find(st_type_at(i));
        unsigned char bytes[512] = {0};
        float even[256], odd[256];
        for (size_t b = 0; b < info->bytes; b++) bytes[b] = (unsigned char)(b * 37 + 11);
        info->dequantise(bytes, even, 1);
        memmove(bytes + 1, bytes, info->bytes);
        info->dequantise(bytes + 1, odd, 1);
        assert_memory_equal(even, odd, info->block * sizeof(float));
    }
}

int main(void)
{
    struct CMUnitTest tests[64];
    static char names[64][48];
    size_t count = 0, of_kit = 0;
    for (size_t i = 0; i < st_type_count(); i++) {
        const st_type_info *info = st_type_find(st_type_at(i));
        /* The kit has no rows of plain types, which need no decoding. */
        if (info->block == 1 && strcmp(info->name, "F16") != 0 && strcmp(info->name, "BF16") != 0) continue;
        if (st_type_at(i) >= ST_TYPE_Q1_0) continue; /* newer than the kit: tests/unit/test_quant.c */
        snprintf(names[count], sizeof names[count], "rows of %s", info->name);
        tests[count] = (struct CMUnitTest){.name = names[count], .test_func = check_type,
                                           .initial_state = (void *)(uintptr_t)info};
        count++;
        of_kit++;
    }
    tests[count++] = (struct CMUnitTest){.name = "odd addresses", .test_func = check_odd_address};
    if (of_kit != KIT_TYPES) {
        printf("not ok - expected %d types of the kit, found %zu\n", KIT_TYPES, of_kit);
        return 1;
    }
    return _cmocka_run_group_tests("quant golden", tests, count, open_rows, close_rows);
}
