/* strata plan: where a model would be placed, byte by byte, and how fast it would run. */
#include <string.h>

#include "cli.h"

enum { BAR_WIDTH = 64, TEXT_SIZE = 256 };

static bool is_card(const json_t *object, const char *field)
{
    return cli_text_is(object, field, "card");
}

static const char *place_name(const json_t *object, const char *field)
{
    return is_card(object, field) ? "the GPU" : "the CPU";
}

static void print_title(const cli_style *style, const char *title)
{
    putchar('\n');
    cli_print_bold(style, title);
    putchar('\n');
}

/* ---- devices: the bar and the table ------------------------------------------------------------------------------ */

/* How an owner is drawn; the last two rows are the margin and the free memory. */
typedef struct owner_row {
    const char *name, *block;
    char letter;
    int color;
} owner_row;

static const owner_row owner_rows[] = {
    {"runtime", "▞", 'r', 35},       {"weights", "█", 'W', 36},     {"experts", "▓", 'E', 34},
    {"expert slots", "▒", 'S', 33},  {"kv", "▚", 'K', 32},          {"recurrent state", "▙", 'R', 32},
    {"restore points", "▟", 'P', 32}, {"kv ram", "▜", 'k', 32},
    {"scratch", "▄", 'x', 31},       {"staging", "▀", 't', 31},
    {"padding", "▖", 'p', 37},       {"granularity", "▘", 'g', 37}, {"margin", "░", '.', 37},
    {"free", " ", ' ', 37},
};
enum { OWNERS = sizeof owner_rows / sizeof *owner_rows };

static void print_cells(const cli_style *style, const owner_row *row, size_t count)
{
    if (style->color && count) printf("\033[%dm", row->color);
    for (size_t i = 0; i < count; i++) {
        if (style->bars) fputs(row->block, stdout);
        else putchar(row->letter);
    }
    if (style->color && count) fputs("\033[0m", stdout);
}

static uint64_t owner_bytes(const json_t *device, const owner_row *row)
{
    if (strcmp(row->name, "margin") == 0) return cli_number_of(device, "margin_bytes");
    if (strcmp(row->name, "free") == 0) return cli_number_of(device, "free_bytes");
    return cli_number_of(json_object_get(device, "owners"), row->name);
}

/* Each owner ends at the rounded running sum, so that the cells add up to the bar. */
static void print_picture(const json_t *device, const cli_style *style)
{
    double capacity = (double)cli_number_of(device, "capacity_bytes"), sum = 0.0;
    size_t drawn = 0;
    printf("  [");
    for (size_t i = 0; i < OWNERS; i++) {
        sum += (double)owner_bytes(device, &owner_rows[i]);
        size_t end = capacity > 0.0 ? (size_t)(sum / capacity * BAR_WIDTH + 0.5) : 0;
        if (end > BAR_WIDTH) end = BAR_WIDTH;
        if (end > drawn) print_cells(style, &owner_rows[i], end - drawn);
        if (end > drawn) drawn = end;
    }
    for (; drawn < BAR_WIDTH; drawn++) putchar(' ');
    printf("]\n");
}

static void print_bytes_line(const char *label, uint64_t bytes)
{
    char text[32];
    printf("    %-18s %20s\n", label, cli_group_digits(bytes, text, sizeof text));
}

/* `mark`: the GPU is simulated. */
static void print_device(const json_t *device, bool mark, const cli_style *style)
{
    char text[32], title[TEXT_SIZE];
    bool card = is_card(device, "kind");
    /* A GPU that was described without a name is called "card" in the JSON. */
    const char *name = card && is_card(device, "name") ? "unnamed" : cli_text_of(device, "name");
    snprintf(title, sizeof title, "%s: %s%s", card ? "GPU" : "RAM", name, mark && card ? ", simulated" : "");
    print_title(style, title);
    print_picture(device, style);
    for (size_t i = 0; i < OWNERS - 2; i++) {
        uint64_t bytes = owner_bytes(device, &owner_rows[i]);
        if (bytes == 0) continue;
        printf("  ");
        print_cells(style, &owner_rows[i], 1);
        printf(" %-18s %20s\n", owner_rows[i].name, cli_group_digits(bytes, text, sizeof text));
    }
    print_bytes_line("planned", cli_number_of(device, "planned_bytes"));
    print_bytes_line("margin", cli_number_of(device, "margin_bytes"));
    print_bytes_line("free", cli_number_of(device, "free_bytes"));
    print_bytes_line(card ? "total" : "available", cli_number_of(device, "capacity_bytes"));
}

/* ---- the layer map: consecutive equal layers are one line -------------------------------------------------------- */

static int add_experts(const json_t *layer, char *out, size_t size)
{
    unsigned long long slots = cli_number_of(layer, "expert_slots"), count = cli_number_of(layer, "expert_count");
    if (count == 0) return snprintf(out, size, "%s", "");
    if (is_card(layer, "experts") && (slots == 0 || slots >= count))
        return snprintf(out, size, ", all %llu experts on the GPU", count);
    if (slots) return snprintf(out, size, ", experts %llu of %llu slots", slots, count);
    return snprintf(out, size, ", experts on the CPU");
}

/* The placement of a layer's parts in words. Consecutive layers with the same words are one line. */
static void describe_layer(const json_t *layer, char *out, size_t size)
{
    bool together = is_card(layer, "attention") == is_card(layer, "ffn");
    bool with_kv = is_card(layer, "attention") == is_card(layer, "kv_device");
    bool dense = cli_number_of(layer, "expert_count") == 0;
    size_t used = 0;
    if (with_kv && together && dense)
        used = (size_t)snprintf(out, size, "attention, KV and feed-forward on %s", place_name(layer, "attention"));
    else if (with_kv)
        used = (size_t)snprintf(out, size, "attention and KV on %s", place_name(layer, "attention"));
    else
        used = (size_t)snprintf(out, size, "attention on %s, KV on %s", place_name(layer, "attention"),
                                place_name(layer, "kv_device"));
    if ((!together || !with_kv) && used < size)
        used += (size_t)snprintf(out + used, size - used, ", feed-forward on %s", place_name(layer, "ffn"));
    if (used < size) add_experts(layer, out + used, size - used);
}

static void print_run(uint64_t first, uint64_t last, const char *text)
{
    char range[48];
    if (first == last) snprintf(range, sizeof range, "layer %llu", (unsigned long long)first);
    else snprintf(range, sizeof range, "layers %llu–%llu", (unsigned long long)first, (unsigned long long)last);
    printf("  %s: %s\n", range, text);
}

static void print_map(const json_t *plan, const cli_style *style)
{
    const json_t *map = json_object_get(plan, "map");
    char run[TEXT_SIZE] = "", text[TEXT_SIZE] = "";
    size_t first = 0, count = json_array_size(map);
    print_title(style, "layers");
    for (size_t i = 0; i <= count; i++) {
        if (i < count) describe_layer(json_array_get(map, i), text, sizeof text);
        if (i > 0 && (i == count || strcmp(text, run) != 0)) {
            print_run(first, i - 1, run);
            first = i;
        }
        memcpy(run, text, sizeof run);
    }
    printf("  output: on %s\n", place_name(plan, "output"));
}

static void print_kv(const json_t *plan, const cli_style *style)
{
    size_t i;
    json_t *row;
    char positions[32], bytes[32], row_bytes[32];
    printf("\n  ");
    cli_print_bold(style, "KV cache          layers  on        positions  bytes each            bytes");
    putchar('\n');
    json_array_foreach(json_object_get(plan, "kv"), i, row) {
        printf("  %-16s %7llu  %-5s %13s %11s %16s\n", cli_text_of(row, "kind"),
               (unsigned long long)cli_number_of(row, "layers"),
               is_card(row, "device") ? "GPU" : "RAM",
               cli_group_digits(cli_number_of(row, "positions"), positions, sizeof positions),
               cli_group_digits(cli_number_of(row, "position_bytes"), row_bytes, sizeof row_bytes),
               cli_group_digits(cli_number_of(row, "bytes"), bytes, sizeof bytes));
    }
}

/* `mark`: rates in them are simulated. */
static void print_lines(const json_t *lines, const char *title, bool mark, const cli_style *style)
{
    size_t i;
    json_t *line;
    if (json_array_size(lines) == 0) return;
    print_title(style, title);
    json_array_foreach(lines, i, line) {
        printf("  ");
        cli_print_text(json_string_value(line), json_string_length(line));
        puts(mark && strstr(json_string_value(line), "t/s") ? " (simulated)" : "");
    }
}

static void print_plan(const cli_arguments *arguments, const json_t *plan, const char *path)
{
    cli_style style = cli_style_of(arguments, stdout);
    const json_t *devices = json_object_get(plan, "devices");
    cli_print_verdict(arguments, plan, path, &style);
    cli_print_summary(arguments, plan);
    bool mark = cli_simulates(arguments);
    for (size_t i = json_array_size(devices); i-- > 0;) print_device(json_array_get(devices, i), mark, &style);
    print_map(plan, &style);
    print_kv(plan, &style);
    cli_print_alternatives(arguments, plan, &style);
    print_lines(json_object_get(plan, "why"), "why", mark, &style);
    if (!arguments->values[OPTION_EXPLAIN].set) return;
    const char *advice = cli_text_of(plan, "advice");
    print_title(&style, "the option that would help most");
    printf("  ");
    if (*advice) cli_print_text(advice, strlen(advice));
    else printf("none would make it 5 %% faster");
    puts(mark && *advice ? " (simulated)" : "");
    print_lines(json_object_get(plan, "lacking"), "what did not fit, and what would change that", mark, &style);
    if (json_array_size(json_object_get(plan, "lacking")) == 0) printf("\n  Everything fits.\n");
}

strata_status cli_cmd_plan(const cli_arguments *arguments, strata_error *error)
{
    const char *path = arguments->values[OPTION_MODEL].text;
    strata_placement placement = cli_placement_of(arguments);
    strata_engine_options options = cli_engine_options(arguments, &placement, 0);
    strata_model *model = NULL;
    json_t *plan = NULL;
    char *text = NULL;
    strata_status status = cli_open_model(arguments, &model, error);
    if (status == STRATA_OK) status = strata_plan(model, &options, &text, error);
    if (status == STRATA_OK) cli_name_options(text);
    if (status == STRATA_OK) status = cli_parse_json("the plan", text, strlen(text), &plan, error);
    if (status == STRATA_OK) cli_note_context(arguments, (uint32_t)cli_number_of(plan, "context"));
    if (status == STRATA_OK && arguments->values[OPTION_JSON].set) puts(text);
    else if (status == STRATA_OK) print_plan(arguments, plan, path);
    strata_free(text);
    json_decref(plan);
    strata_model_close(model);
    return status;
}
