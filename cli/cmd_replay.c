/* strata replay: a recorded routing against cache policies and the optimum. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static double real_of(const json_t *object, const char *field)
{
    return json_number_value(json_object_get(object, field));
}

static long long integer_of(const json_t *object, const char *field)
{
    return (long long)json_integer_value(json_object_get(object, field));
}

static const char *text_of(const json_t *object, const char *field)
{
    const char *text = json_string_value(json_object_get(object, field));
    return text ? text : "";
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static void print_text_of(const json_t *object, const char *field)
{
    cli_print_text(text_of(object, field), strlen(text_of(object, field)));
}

static void print_head(const json_t *replay, const cli_style *style)
{
    const json_t *card = json_object_get(replay, "card"), *host = json_object_get(replay, "host");
    cli_print_bold(style, text_of(replay, "model"));
    printf(": %lld layers, %lld of %lld experts used; %lld tokens decoded\n", integer_of(replay, "layers"),
           integer_of(replay, "experts_used"), integer_of(replay, "experts"), integer_of(replay, "decode_tokens"));
    print_text_of(card, "name");
    printf(" (%.0f GB/s) and ", real_of(card, "memory_gb_per_s"));
    print_text_of(host, "name");
    printf(" (%.0f GB/s); all experts on the CPU: at most %.1f t/s\n\n", real_of(host, "memory_gb_per_s"),
           real_of(replay, "cpu_tps"));
}

static void print_replay(const cli_arguments *arguments, const json_t *replay)
{
    cli_style style = cli_style_of(arguments, stdout);
    size_t i;
    json_t *row;
    bool defaults = false;
    print_head(replay, &style);
    cli_print_bold(&style, "policy      slots   hit rate   uploads   t/s at most");
    putchar('\n');
    json_array_foreach(json_object_get(replay, "rows"), i, row) {
        bool is_default = json_is_true(json_object_get(row, "default"));
        printf("%-8s%s %7lld %8.2f %% %9.2f %13.1f\n", text_of(row, "policy"), is_default ? " *" : "  ",
               integer_of(row, "slots"), real_of(row, "hit_rate") * 100.0, real_of(row, "uploads"),
               real_of(row, "decode_tps"));
        defaults |= is_default;
    }
    printf("\nslots per layer; uploads per layer and token%s\n", defaults ? "; * the default" : "");
}

/* ---- the chart --------------------------------------------------------------------------------------------------- */

static size_t line_of(cli_chart *chart, const char *policy)
{
    for (size_t i = 0; i < chart->line_count; i++)
        if (strcmp(chart->lines[i].name, policy) == 0) return i;
    chart->lines[chart->line_count] = (cli_chart_line){policy, strcmp(policy, "optimum") == 0};
    return chart->line_count++;
}

static int compare_points(const void *a, const void *b)
{
    double x = ((const cli_chart_point *)a)->x, y = ((const cli_chart_point *)b)->x;
    return (x > y) - (x < y);
}

static strata_status write_chart(const char *path, const json_t *replay, strata_error *error)
{
    const json_t *rows = json_object_get(replay, "rows");
    size_t i, count = json_array_size(rows);
    json_t *row;
    void *points = NULL, *lines = NULL;
    cli_output output = {0};
    char title[256];
    snprintf(title, sizeof title, "%.160s: hit rate by resident experts", text_of(replay, "model"));
    strata_status status = cli_allocate(count, sizeof(cli_chart_point), "the chart", &points, error);
    if (status == STRATA_OK) status = cli_allocate(count, sizeof(cli_chart_line), "the chart", &lines, error);
    if (status == STRATA_OK) status = cli_output_open(path, &output, error);
    if (status == STRATA_OK) {
        cli_chart chart = {.title = title, .x_label = "resident experts of a layer", .y_label = "hit rate",
                           .lines = lines, .points = points};
        json_array_foreach(rows, i, row) {
            double share = real_of(row, "slots") / real_of(replay, "experts");
            chart.points[chart.point_count++] =
                (cli_chart_point){line_of(&chart, text_of(row, "policy")), share, real_of(row, "hit_rate")};
        }
        qsort(chart.points, chart.point_count, sizeof *chart.points, compare_points);
        cli_chart_print(&chart, output.stream);
    }
    status = cli_output_close(&output, status, error);
    free(points);
    free(lines);
    return status;
}

strata_status cli_cmd_replay(const cli_arguments *arguments, strata_error *error)
{
    const cli_value *values = arguments->values;
    strata_replay_options options = {
        .slots = values[OPTION_SLOTS].text,
        .policies = values[OPTION_POLICY].text,
        .profile = values[OPTION_DEVICE_PROFILE].text,
        .admission = values[OPTION_ADMISSION].set ? (uint32_t)values[OPTION_ADMISSION].number + 1 : 0,
        .budget = cli_real(arguments, OPTION_BUDGET, 0.0),
        .upload_cost = cli_real(arguments, OPTION_UPLOAD_COST, 0.0),
    };
    json_t *replay = NULL;
    char *text = NULL;
    strata_status status = strata_replay(arguments->operand, &options, &text, error);
    if (status == STRATA_OK) status = cli_parse_json("the replay", text, strlen(text), &replay, error);
    if (status == STRATA_OK && values[OPTION_SVG].set) status = write_chart(values[OPTION_SVG].text, replay, error);
    bool drawn = values[OPTION_SVG].set && strcmp(values[OPTION_SVG].text, "-") == 0;
    if (status == STRATA_OK && values[OPTION_JSON].set) puts(text);
    else if (status == STRATA_OK && !drawn) print_replay(arguments, replay);
    strata_free(text);
    json_decref(replay);
    return status;
}
