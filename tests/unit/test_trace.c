/* src/moe/trace.c and trace_write.c: recorded routings, read and written. */
#include "support/kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "moe/trace.h"

#define HEAD                                                            \
    "# route_trace v1\n"                                                \
    "# model=tiny.gguf arch=qwen3moe n_layer=3 n_expert=8 n_expert_used=2\n" \
    "# layer=0 expert_bytes=100 dense_bytes=7\n"                        \
    "# a remark\n"                                                      \
    "# layer=2 expert_bytes=300 dense_bytes=9\n"
#define COLUMNS "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n"

static strata_status parse(const char *text, st_trace **out, strata_error *error)
{
    *out = NULL;
    return st_trace_parse("t.csv", text, strlen(text), out, error);
}

/* Rows in any order become events by turn, step and layer. */
static void rows_become_events(void **state)
{
    (void)state;
    st_trace *trace;
    strata_error error;
    const char *text = HEAD COLUMNS
        "0,1,5,2,1,3,0.25,0,300\n"
        "0,0,4,2,0,7,1,1,0\n"
        "0,1,5,2,0,6,7.5e-1,0,300\n"
        "0,1,5,0,0,1,.5,0,100\r\n"
        "\n"
        "0,1,5,0,1,0,5E-01,3,100\n"
        "1,0,0,0,0,2,1e+0,0,100"; /* no newline at the end */
    if (parse(text, &trace, &error) != STRATA_OK) fail_msg("%s", error.message);
    assert_string_equal(trace->shape.model, "tiny.gguf");
    assert_string_equal(trace->shape.arch, "qwen3moe");
    assert_true(trace->shape.layers == 3 && trace->shape.experts == 8 && trace->shape.used == 2);
    assert_true(trace->shape.expert_bytes[0] == 100 && trace->shape.expert_bytes[1] == 0 &&
                trace->shape.expert_bytes[2] == 300 && trace->shape.dense_bytes[2] == 9);
    const st_trace_event wanted[] = {{0, 4, 2, false, 1, 0}, {0, 5, 0, true, 2, 1}, {0, 5, 2, true, 2, 3}, {1, 0, 0, false, 1, 5}};
    const uint32_t experts[] = {7, 1, 0, 6, 3, 2};
    const float weights[] = {1.0f, 0.5f, 0.5f, 0.75f, 0.25f, 1.0f};
    assert_int_equal(trace->event_count, 4);
    assert_int_equal(trace->row_count, 6);
    assert_int_equal(trace->decode_tokens, 1);
    for (size_t i = 0; i < 4; i++) {
        const st_trace_event *e = &trace->events[i];
        assert_true(e->turn == wanted[i].turn && e->step == wanted[i].step && e->layer == wanted[i].layer &&
                    e->decode == wanted[i].decode && e->count == wanted[i].count && e->first == wanted[i].first);
    }
    assert_memory_equal(trace->experts, experts, sizeof experts);
    assert_memory_equal(trace->weights, weights, sizeof weights);
    st_trace_free(trace);
}

typedef struct mistake {
    const char *text;
    uint32_t line;
    const char *words;
} mistake;

#define ROW(row) HEAD COLUMNS "0,0,0,0,0,1,0.5,0,100\n" row "\n"

static const mistake mistakes[] = {
    {"", 1, "route_trace v1"},
    {"turn,phase\n", 1, "route_trace v1"},
    {"# route_trace v2\n" COLUMNS, 1, "route_trace v1"},
    {"# route_trace v1\n", 1, "turn,phase"},
    {"# route_trace v1\n" COLUMNS, 2, "shape"},
    {"# route_trace v1\n\n", 2, "turn,phase"},
    {"# route_trace v1\n# n_layer=3 n_expert=8\n", 2, "n_expert_used"},
    {"# route_trace v1\n# n_layer=0 n_expert=8 n_expert_used=2\n", 2, "n_layer"},
    {"# route_trace v1\n# n_layer=3 n_expert=8 n_expert_used=9\n", 2, "(at most n_expert)"},
    {"# route_trace v1\n# n_layer=99999 n_expert=8 n_expert_used=2\n", 2, "n_layer"},
    {"# route_trace v1\n# n_layer=3x n_expert=8 n_expert_used=2\n", 2, "n_layer"},
    {"# route_trace v1\n# n_layer=18446744073709551619 n_expert=8 n_expert_used=2\n", 2, "n_layer"},
    {"# route_trace v1\n# layer=0 expert_bytes=1 dense_bytes=1\n", 2, "before"},
    {HEAD "# layer=3 expert_bytes=1 dense_bytes=1\n", 6, "of the model"},
    {HEAD "# layer=1 expert_bytes=1\n", 6, "dense_bytes"},
    {HEAD "# layer=1 expert_bytes=-1 dense_bytes=1\n", 6, "expert_bytes"},
    {HEAD "# n_layer=3 n_expert=8 n_expert_used=2\n", 6, "one line"},
    {HEAD COLUMNS, 6, "rows"},
    {ROW("0,0,0,0,1,2,0.5,0"), 8, "turn,phase"},
    {ROW("0,0,0,0,1,2,0.5,0,100,1"), 8, "turn,phase"},
    {ROW("0,0,0,0,1,2,0.5,0,"), 8, "bytes"},
    {ROW("0,0,0,0,1,2,,0,100"), 8, "weight"},
    {ROW("0,0,0,0,1,2,-0.5,0,100"), 8, "weight"},
    {ROW("0,0,0,0,1,2,nan,0,100"), 8, "weight"},
    {ROW("0,0,0,0,1,2,1e9,0,100"), 8, "weight"},
    {ROW("0,0,0,0,1,2,1e999,0,100"), 8, "weight"},
    {ROW("0,0,0,0,1,2,0.5.5,0,100"), 8, "weight"},
    {ROW("0,0,0,0,1,2,0.5e,0,100"), 8, "weight"},
    {ROW("0,0,0,0,1,2,.,0,100"), 8, "weight"},
    {ROW("0,2,0,0,1,2,0.5,0,100"), 8, "phase"},
    {ROW("0,0,0,3,1,2,0.5,0,100"), 8, "layer"},
    {ROW("0,0,0,1,1,2,0.5,0,100"), 8, "expert_bytes"},
    {ROW("0,0,0,0,2,2,0.5,0,100"), 8, "slot"},
    {ROW("0,0,0,0,1,8,0.5,0,100"), 8, "expert of the model"},
    {ROW("0,0,4294967296,0,1,2,0.5,0,100"), 8, "step"},
    {ROW("0,0,0,0,1, 2,0.5,0,100"), 8, "expert of the model"},
    {ROW("# late"), 8, "turn,phase"},
    {ROW("0,0,0,0,1,1,0.5,0,100"), 8, "once"},
    {ROW("0,0,0,0,0,2,0.5,0,100"), 8, "once"},
    {ROW("0,1,0,0,1,2,0.5,0,100"), 8, "phase"},
};

static void errors_name_the_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        st_trace *trace;
        strata_error error;
        char line[32];
        snprintf(line, sizeof line, "t.csv: line %u: ", mistakes[i].line);
        if (parse(mistakes[i].text, &trace, &error) != STRATA_INPUT || trace) fail_msg("mistake %zu was accepted", i);
        if (strncmp(error.message, line, strlen(line)) != 0 || !strstr(error.message, mistakes[i].words))
            fail_msg("mistake %zu: expected %s…%s, found %s", i, line, mistakes[i].words, error.message);
    }
}

static void a_written_trace_reads_back(void **state)
{
    (void)state;
    char path[] = "/tmp/strata-trace-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    uint64_t expert_bytes[] = {11, 0, 33}, dense_bytes[] = {1, 2, 3};
    st_trace_shape shape = {.model = "a model\nof ours", .arch = "olmoe", .layers = 3, .experts = 64, .used = 4,
                            .expert_bytes = expert_bytes, .dense_bytes = dense_bytes};
    st_trace_writer *writer = NULL;
    assert_int_equal(st_trace_writer_open(path, &shape, &writer, NULL), STRATA_OK);
    const uint32_t experts[] = {63, 0, 17, 5};
    const float weights[] = {0.333333343f, 1e-7f, 0.1f, 0.0f / 1.0f};
    const bool resident[] = {true, false, false, true};
    st_fault_arm(ST_FAULT_ALLOC, 1, true);
    for (uint32_t step = 0; step < 4000; step++) /* larger than the buffer */
        for (uint32_t layer = 0; layer < 3; layer += 2)
            st_trace_writer_event(writer, &(st_trace_event){.step = step, .layer = layer, .decode = step > 10, .count = 4},
                                  experts, weights, resident);
    assert_int_equal(st_fault_calls(ST_FAULT_ALLOC), 0);
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    assert_int_equal(st_trace_writer_close(writer, NULL), STRATA_OK);
    st_trace *trace = NULL;
    strata_error error;
    if (st_trace_read(path, &trace, &error) != STRATA_OK) fail_msg("%s", error.message);
    assert_string_equal(trace->shape.model, "a_model_of_ours");
    assert_int_equal(trace->event_count, 8000);
    assert_int_equal(trace->decode_tokens, 3989);
    for (size_t i = 0; i < trace->event_count; i++) {
        assert_memory_equal(trace->experts + trace->events[i].first, experts, sizeof experts);
        assert_memory_equal(trace->weights + trace->events[i].first, weights, sizeof weights);
    }
    st_trace_free(trace);
    unlink(path);
}

static void write_errors_are_reported(void **state)
{
    (void)state;
    uint64_t bytes[] = {1};
    st_trace_shape shape = {.layers = 1, .experts = 1, .used = 1, .expert_bytes = bytes, .dense_bytes = bytes};
    st_trace_writer *writer = NULL;
    strata_error error;
    assert_int_equal(st_trace_writer_open("/nowhere/trace.csv", &shape, &writer, &error), STRATA_RUNTIME);
    assert_non_null(strstr(error.message, "/nowhere/trace.csv"));
    assert_null(writer);
    assert_int_equal(st_trace_writer_open("/dev/full", &shape, &writer, NULL), STRATA_OK);
    assert_int_equal(st_trace_writer_close(writer, &error), STRATA_RUNTIME);
    assert_non_null(strstr(error.message, "/dev/full"));
    assert_int_equal(st_trace_writer_close(NULL, NULL), STRATA_OK);
    st_trace *trace = NULL;
    assert_int_equal(st_trace_read("/nowhere/trace.csv", &trace, &error), STRATA_FILE);
}

static void failed_allocations_are_errors(void **state)
{
    (void)state;
    st_trace *trace = NULL;
    uint64_t failures = 0;
    for (uint64_t nth = 1; !trace; nth++, failures++) {
        st_fault_arm(ST_FAULT_ALLOC, nth, false);
        strata_status status = parse(HEAD COLUMNS "0,1,5,2,1,3,0.25,0,300\n", &trace, NULL);
        assert_true(trace ? status == STRATA_OK : status == STRATA_MEMORY);
    }
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    st_trace_free(trace);
    assert_true(failures >= 6);
    uint64_t bytes[] = {1};
    st_trace_shape shape = {.layers = 1, .experts = 1, .used = 1, .expert_bytes = bytes, .dense_bytes = bytes};
    st_trace_writer *writer = NULL;
    for (uint64_t nth = 1; nth <= 3; nth++) {
        st_fault_arm(ST_FAULT_ALLOC, nth, false);
        assert_int_equal(st_trace_writer_open("/dev/null", &shape, &writer, NULL), STRATA_MEMORY);
    }
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_become_events), cmocka_unit_test(errors_name_the_line),
        cmocka_unit_test(a_written_trace_reads_back), cmocka_unit_test(write_errors_are_reported),
        cmocka_unit_test(failed_allocations_are_errors),
    };
    return cmocka_run_group_tests_name("trace", tests, NULL, NULL);
}
