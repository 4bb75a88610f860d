/* strata plan: where a model would be placed, byte by byte, and how fast it would run. */
#include <string.h>

#include "cli.h"

enum { BAR_WIDTH = 64, LABEL_WIDTH = 15, TEXT_SIZE = 256 };

static uint64_t number_of(const json_t *object, const char *field)
{
    json_int_t value = json_integer_value(json_object_get(object, field));
    return value > 0 ? (uint64_t)value : 0;
}

static double real_of(const json_t *object, const char *field)
{
    return json_number_value(json_object_get(object, field));
}

static const char *text_of(const json_t *object, const char *field)
{
    const char *text = json_string_value(json_object_get(object, field));
    return text ? text : "";
}

static bool is_card(const json_t *object, const char *field)
{
    return strcmp(text_of(object, field), "card") == 0;
}

static const char *place_name(const json_t *object, const char *field)
{
    return is_card(object, field) ? "the GPU" : "the CPU";
}

static void print_label(const char *label)
{
    printf("  %-*s ", LABEL_WIDTH, label);
}

static void print_grouped(uint64_t number)
{
    char text[32];
    fputs(cli_group_digits(number, text, sizeof text), stdout);
}

static void print_title(const cli_style *style, const char *title)
{
    putchar('\n');
    cli_print_bold(style, title);
    putchar('\n');
}

/* ---- summary ----------------------------------------------------------------------------------------------------- */

/* The longest conversation, and the memory that all conversations share. */
static void print_context(const json_t *plan)
{
    uint64_t context = number_of(plan, "context"), restore = number_of(plan, "restore_bytes");
    uint64_t maximum = number_of(json_object_get(plan, "model"), "context_length");
    unsigned long long sequences = number_of(plan, "sequences");
    print_label("context");
    print_grouped(context);
    printf(" tokens per conversation, the model's maximum");
    if (context != maximum) {
        printf(" is ");
        print_grouped(maximum);
    }
    printf("; KV cache %s\n", text_of(plan, "kv_type"));
    print_label("pool");
    print_grouped(number_of(plan, "pool_tokens"));
    if (sequences == 1) printf(" tokens for one running conversation\n");
    else printf(" tokens shared by up to %llu running conversations\n", sequences);
    if (restore) {
        print_label("restore points");
        print_grouped(restore);
        printf(" bytes\n");
    }
    print_label("batch");
    print_grouped(number_of(plan, "batch"));
    printf(" tokens\n");
}

static void print_experts(const json_t *experts)
{
    if (!experts) return;
    print_label("experts");
    printf("%s: %.1f of %llu per layer on the GPU (%.1f %%), budget ", text_of(experts, "mode"),
           real_of(experts, "slots_per_layer"), (unsigned long long)number_of(experts, "experts_per_layer"),
           100.0 * real_of(experts, "resident_share"));
    print_grouped(number_of(experts, "budget_bytes"));
    printf(" bytes\n");
    if (!json_object_get(experts, "hit_rate")) return;
    print_label("");
    printf("%.1f %% hit rate assumed (%s)\n", 100.0 * real_of(experts, "hit_rate"), text_of(experts, "hit_source"));
}

static void print_speed(const json_t *speed)
{
    char depth[32], prompt[32];
    print_label("speed");
    printf("%s%.1f t/s decoding at a depth of %s, %.0f t/s for a prompt of %s\n",
           json_is_true(json_object_get(speed, "estimate")) ? "estimate: " : "", real_of(speed, "decode_tps"),
           cli_group_digits(number_of(speed, "depth"), depth, sizeof depth), real_of(speed, "prefill_tps"),
           cli_group_digits(number_of(speed, "prefill_tokens"), prompt, sizeof prompt));
    print_label("limit");
    const char *limit = text_of(speed, "limit");
    printf("%s\n", strcmp(limit, "the card's memory") == 0 ? "the GPU's memory" : limit);
}

static void print_summary(const json_t *plan, const char *path, const cli_style *style)
{
    const json_t *model = json_object_get(plan, "model"), *layers = json_object_get(plan, "layers");
    const char *name = json_string_value(json_object_get(model, "name"));
    char size[32];
    cli_print_bold(style, name && *name ? name : path);
    putchar('\n');
    print_label("weights");
    print_grouped(number_of(plan, "weight_bytes"));
    printf(" bytes (%s)%s\n", cli_short_number(number_of(plan, "weight_bytes"), "B", size, sizeof size),
           json_is_true(json_object_get(plan, "disk")) ? ", some of them read from disk during inference" : "");
    print_context(plan);
    print_label("layers");
    printf("%llu of %llu on the GPU\n", (unsigned long long)number_of(layers, "device"),
           (unsigned long long)number_of(layers, "total"));
    print_experts(json_object_get(plan, "experts"));
    print_speed(json_object_get(plan, "predicted"));
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
    {"restore points", "▟", 'P', 32}, {"scratch", "▄", 'x', 31},     {"staging", "▀", 't', 31},
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
    if (strcmp(row->name, "margin") == 0) return number_of(device, "margin_bytes");
    if (strcmp(row->name, "free") == 0) return number_of(device, "free_bytes");
    return number_of(json_object_get(device, "owners"), row->name);
}

/* Each owner ends at the rounded running sum, so that the cells add up to the bar. */
static void print_picture(const json_t *device, const cli_style *style)
{
    double capacity = (double)number_of(device, "capacity_bytes"), sum = 0.0;
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

static void print_device(const json_t *device, const cli_style *style)
{
    char text[32], title[TEXT_SIZE];
    bool card = is_card(device, "kind");
    /* A GPU that was described without a name is called "card" in the JSON. */
    const char *name = card && is_card(device, "name") ? "unnamed" : text_of(device, "name");
    snprintf(title, sizeof title, "%s: %s", card ? "GPU" : "RAM", name);
    print_title(style, title);
    print_picture(device, style);
    for (size_t i = 0; i < OWNERS - 2; i++) {
        uint64_t bytes = owner_bytes(device, &owner_rows[i]);
        if (bytes == 0) continue;
        printf("  ");
        print_cells(style, &owner_rows[i], 1);
        printf(" %-18s %20s\n", owner_rows[i].name, cli_group_digits(bytes, text, sizeof text));
    }
    print_bytes_line("planned", number_of(device, "planned_bytes"));
    print_bytes_line("margin", number_of(device, "margin_bytes"));
    print_bytes_line("free", number_of(device, "free_bytes"));
    print_bytes_line(card ? "total" : "available", number_of(device, "capacity_bytes"));
}

/* ---- the layer map: consecutive equal layers are one line -------------------------------------------------------- */

static int add_experts(const json_t *layer, char *out, size_t size)
{
    unsigned long long slots = number_of(layer, "expert_slots"), count = number_of(layer, "expert_count");
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
    bool dense = number_of(layer, "expert_count") == 0;
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
        printf("  %-16s %7llu  %-5s %13s %11s %16s\n", text_of(row, "kind"),
               (unsigned long long)number_of(row, "layers"),
               is_card(row, "device") ? "GPU" : "RAM",
               cli_group_digits(number_of(row, "positions"), positions, sizeof positions),
               cli_group_digits(number_of(row, "position_bytes"), row_bytes, sizeof row_bytes),
               cli_group_digits(number_of(row, "bytes"), bytes, sizeof bytes));
    }
}

static void print_lines(const json_t *lines, const char *title, const cli_style *style)
{
    size_t i;
    json_t *line;
    if (json_array_size(lines) == 0) return;
    print_title(style, title);
    json_array_foreach(lines, i, line) {
        printf("  ");
        cli_print_text(json_string_value(line), json_string_length(line));
        putchar('\n');
    }
}

static void print_plan(const cli_arguments *arguments, const json_t *plan, const char *path)
{
    cli_style style = cli_style_of(arguments, stdout);
    const json_t *devices = json_object_get(plan, "devices");
    print_summary(plan, path, &style);
    for (size_t i = json_array_size(devices); i-- > 0;) print_device(json_array_get(devices, i), &style);
    print_map(plan, &style);
    print_kv(plan, &style);
    print_lines(json_object_get(plan, "why"), "why", &style);
    if (!arguments->values[OPTION_EXPLAIN].set) return;
    print_lines(json_object_get(plan, "lacking"), "what did not fit, and what would change that", &style);
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
    if (status == STRATA_OK && arguments->values[OPTION_JSON].set) puts(text);
    else if (status == STRATA_OK) {
        status = cli_parse_json("the plan", text, strlen(text), &plan, error);
        if (status == STRATA_OK) print_plan(arguments, plan, path);
    }
    strata_free(text);
    json_decref(plan);
    strata_model_close(model);
    return status;
}
