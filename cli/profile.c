/* The time of each kind of operation, as a table. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

strata_status cli_engine_facts(const cli_engine *engine, json_t **out, strata_error *error)
{
    char *text = NULL;
    strata_status status = strata_engine_describe(engine->engine, &text, error);
    if (status != STRATA_OK) return status;
    cli_name_options(text);
    status = cli_parse_json("the engine", text, strlen(text), out, error);
    strata_free(text);
    return status;
}

strata_status cli_profile_read(const cli_engine *engine, json_t **out, strata_error *error)
{
    json_t *facts = NULL;
    strata_status status = cli_engine_facts(engine, &facts, error);
    if (status == STRATA_OK) *out = json_incref(json_object_get(facts, "profile"));
    json_decref(facts);
    return status;
}

static const char *text(const json_t *row, const char *field)
{
    return json_string_value(json_object_get(row, field));
}

/* The row of the same operation and device. */
static json_t *row_like(const json_t *profile, const json_t *like)
{
    size_t i;
    json_t *row;
    json_array_foreach(profile, i, row) {
        if (strcmp(text(row, "op"), text(like, "op")) == 0 && strcmp(text(row, "device"), text(like, "device")) == 0)
            return row;
    }
    return NULL;
}

static double number(const json_t *row, const char *field)
{
    return json_number_value(json_object_get(row, field));
}

strata_status cli_profile_add(json_t *sum, const json_t *before, const json_t *after, strata_error *error)
{
    size_t i;
    json_t *row;
    json_array_foreach(after, i, row) {
        const json_t *earlier = row_like(before, row);
        double calls = number(row, "calls") - number(earlier, "calls");
        double seconds = number(row, "seconds") - number(earlier, "seconds");
        json_t *total = row_like(sum, row);
        if (!total) {
            if (calls <= 0.0) continue;
            total = json_pack("{s:s, s:s, s:I, s:f}", "op", text(row, "op"), "device", text(row, "device"), "calls",
                              (json_int_t)0, "seconds", 0.0);
            if (json_array_append_new(sum, total) != 0)
                return cli_fail(error, STRATA_MEMORY, NULL, "no memory for the profile");
        }
        json_integer_set(json_object_get(total, "calls"), (json_int_t)(number(total, "calls") + calls));
        json_real_set(json_object_get(total, "seconds"), number(total, "seconds") + seconds);
    }
    return STRATA_OK;
}

static int compare_rows(const void *a, const void *b)
{
    double x = number(*(const json_t *const *)a, "seconds"), y = number(*(const json_t *const *)b, "seconds");
    return (x < y) - (x > y);
}

void cli_print_profile(FILE *stream, const json_t *profile, bool simulates)
{
    enum { ROWS_MAX = 64 }; /* there are about thirty kinds, on two devices */
    const json_t *rows[ROWS_MAX] = {NULL};
    size_t count = 0;
    double seconds = 0.0, calls = 0.0;
    for (; count < json_array_size(profile) && count < ROWS_MAX; count++) {
        rows[count] = json_array_get(profile, count);
        seconds += number(rows[count], "seconds");
        calls += number(rows[count], "calls");
    }
    qsort(rows, count, sizeof *rows, compare_rows);
    if (simulates) fprintf(stream, "real time of the CPU's operations; those of the simulated GPU are not measured\n");
    fprintf(stream, "%-16s %-6s %10s %12s %8s\n", "operation", "on", "calls", "ms", "share");
    for (size_t i = 0; i < count; i++) {
        double took = number(rows[i], "seconds");
        fprintf(stream, "%-16s %-6s %10.0f %12.3f %6.1f %%\n", text(rows[i], "op"),
                strcmp(text(rows[i], "device"), "host") == 0 ? "CPU" : "GPU", number(rows[i], "calls"), took * 1e3,
                seconds > 0.0 ? took / seconds * 100.0 : 0.0);
    }
    fprintf(stream, "%-16s %-6s %10.0f %12.3f\n", "all", "", calls, seconds * 1e3);
}
