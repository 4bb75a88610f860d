/* strata devices: the devices found or described, their speed, and the known profiles. */
#include <string.h>

#include "cli.h"

static void print_bytes(const json_t *object, const char *field, const char *label)
{
    char text[32];
    printf("  %-15s %s bytes\n", label, cli_group_digits(cli_number_of(object, field), text, sizeof text));
}

static void print_rate(const json_t *object, const char *field, const char *label, const char *unit)
{
    if (json_object_get(object, field)) printf("  %-15s %.1f %s\n", label, cli_real_of(object, field), unit);
}

static bool is_card(const json_t *device)
{
    return cli_text_is(device, "kind", "card");
}

/* How the source of rates is said. */
typedef struct rates_row {
    const char *source, *text;
} rates_row;

static const rates_row rates_rows[] = {
    {"file", "of the profile's file"},
    {"data sheet", "of the profile"},
    {"stand-in", "unknown: those of the"},
    {"assumed", "not measured: low estimates (strata devices --probe measures them)"},
    {"measured", "measured"},
};

void cli_print_rates(const json_t *device)
{
    const char *other = cli_text_of(device, "rates_of");
    double spread = cli_real_of(device, "spread");
    for (size_t i = 0; i < sizeof rates_rows / sizeof *rates_rows; i++)
        if (cli_text_is(device, "rates", rates_rows[i].source)) printf("%s", rates_rows[i].text);
    if (*other) printf(" %s stand for them (--device-profile names another GPU)", other);
    if (spread > 0.10) printf(" on a busy machine: they varied by %.0f %%", 100.0 * spread);
}

/* What operations take beside their bytes, by class. */
static void print_operations(const json_t *device)
{
    json_t *classes = json_object_get(device, "operations"), *rates;
    const char *name, *before = "";
    json_object_foreach(classes, name, rates) {
        if (!json_object_get(rates, "us")) continue;
        if (!*before) printf("  %-15s ", "operations");
        printf("%s%s %.1f", before, name, cli_real_of(rates, "us"));
        before = ", ";
    }
    if (*before) puts(" µs");
}

/* `mark`: a GPU is simulated. */
static void print_device(const json_t *device, bool mark, const cli_style *style)
{
    bool card = is_card(device);
    const char *name = json_string_value(json_object_get(device, "name"));
    printf("%s ", card ? "GPU" : "host");
    /* A GPU that was described without a name is called "card" in the JSON. */
    cli_print_bold(style, card && strcmp(name, "card") == 0 ? "unnamed" : name);
    puts(mark && card ? ", simulated" : "");
    print_bytes(device, "total_bytes", card ? "memory" : "RAM");
    print_bytes(device, "free_bytes", "available");
    if (card) print_bytes(device, "overhead_bytes", "driver");
    else printf("  %-15s %llu\n", "cores", (unsigned long long)cli_number_of(device, "cores"));
    print_rate(device, "memory_gb_per_s", "reads", "GB/s");
    print_rate(device, "ops_gop_per_s", "computes", "Gop/s");
    print_rate(device, "link_up_gb_per_s", "link up", "GB/s");
    print_rate(device, "link_down_gb_per_s", "link down", "GB/s");
    print_rate(device, "disk_gb_per_s", "disk", "GB/s");
    print_rate(device, "handover_us", "hand-over", "µs");
    print_rate(device, "round_trip_us", "there and back", "µs");
    print_operations(device);
    printf("  %-15s ", "rates");
    cli_print_rates(device);
    putchar('\n');
}

static void print_profiles(const json_t *profiles, const cli_style *style)
{
    size_t i;
    json_t *row;
    printf("\n");
    cli_print_bold(style, "profile          kind              bytes       GB/s  link GB/s");
    putchar('\n');
    json_array_foreach(profiles, i, row) {
        char bytes[32] = "-";
        uint64_t total = cli_number_of(row, "total_bytes");
        if (total) cli_group_digits(total, bytes, sizeof bytes);
        printf("%-16s %-6s %16s %10.1f", json_string_value(json_object_get(row, "name")),
               is_card(row) ? "GPU" : "host", bytes, cli_real_of(row, "memory_gb_per_s"));
        if (json_object_get(row, "link_up_gb_per_s")) printf(" %10.1f", cli_real_of(row, "link_up_gb_per_s"));
        if (json_is_true(json_object_get(row, "no_backend"))) printf("  plans alone: strata cannot run on it yet");
        putchar('\n');
    }
}

static void print_devices(const cli_arguments *arguments, const json_t *devices)
{
    cli_style style = cli_style_of(arguments, stdout);
    bool mark = cli_simulates(arguments);
    const json_t *cards = json_object_get(devices, "cards"), *kept = json_object_get(devices, "measurement");
    print_device(json_object_get(devices, "host"), mark, &style);
    if (json_is_string(kept)) {
        printf("  %-15s ", "saved in");
        cli_print_text(json_string_value(kept), json_string_length(kept));
        putchar('\n');
    }
    for (size_t i = 0; i < json_array_size(cards); i++) print_device(json_array_get(cards, i), mark, &style);
    if (json_array_size(cards) == 0) printf("no GPU found\n");
    print_profiles(json_object_get(devices, "profiles"), &style);
}

strata_status cli_cmd_devices(const cli_arguments *arguments, strata_error *error)
{
    strata_placement placement = cli_placement_of(arguments);
    json_t *devices = NULL;
    char *text = NULL;
    strata_status status = strata_devices(&placement, arguments->values[OPTION_PROBE].set, &text, error);
    if (status == STRATA_OK && arguments->values[OPTION_JSON].set) puts(text);
    else if (status == STRATA_OK) {
        status = cli_parse_json("the devices", text, strlen(text), &devices, error);
        if (status == STRATA_OK) print_devices(arguments, devices);
    }
    strata_free(text);
    json_decref(devices);
    return status;
}
