/* strata devices: the devices found or described, their speed, and the known profiles. */
#include <string.h>

#include "cli.h"

static double real_of(const json_t *object, const char *field)
{
    return json_number_value(json_object_get(object, field));
}

static uint64_t number_of(const json_t *object, const char *field)
{
    json_int_t value = json_integer_value(json_object_get(object, field));
    return value > 0 ? (uint64_t)value : 0;
}

static void print_bytes(const json_t *object, const char *field, const char *label)
{
    char text[32];
    printf("  %-15s %s bytes\n", label, cli_group_digits(number_of(object, field), text, sizeof text));
}

static void print_rate(const json_t *object, const char *field, const char *label, const char *unit)
{
    if (json_object_get(object, field)) printf("  %-15s %.1f %s\n", label, real_of(object, field), unit);
}

static bool is_card(const json_t *device)
{
    return strcmp(json_string_value(json_object_get(device, "kind")), "card") == 0;
}

static void print_device(const json_t *device, const cli_style *style)
{
    bool card = is_card(device);
    const char *name = json_string_value(json_object_get(device, "name"));
    printf("%s ", card ? "GPU" : "host");
    /* A GPU that was described without a name is called "card" in the JSON. */
    cli_print_bold(style, card && strcmp(name, "card") == 0 ? "unnamed" : name);
    putchar('\n');
    print_bytes(device, "total_bytes", card ? "memory" : "RAM");
    print_bytes(device, "free_bytes", "available");
    if (card) print_bytes(device, "overhead_bytes", "driver");
    else printf("  %-15s %llu\n", "cores", (unsigned long long)number_of(device, "cores"));
    print_rate(device, "memory_gb_per_s", "reads", "GB/s");
    print_rate(device, "ops_gop_per_s", "computes", "Gop/s");
    print_rate(device, "link_up_gb_per_s", "link up", "GB/s");
    print_rate(device, "link_down_gb_per_s", "link down", "GB/s");
    print_rate(device, "disk_gb_per_s", "disk", "GB/s");
    print_rate(device, "handover_us", "hand-over", "µs");
    printf("  %-15s %s\n", "rates", json_is_true(json_object_get(device, "estimate")) ? "estimate" : "measured");
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
        if (json_object_get(row, "total_bytes")) cli_group_digits(number_of(row, "total_bytes"), bytes, sizeof bytes);
        printf("%-16s %-6s %16s %10.1f", json_string_value(json_object_get(row, "name")),
               is_card(row) ? "GPU" : "host", bytes, real_of(row, "memory_gb_per_s"));
        if (json_object_get(row, "link_up_gb_per_s")) printf(" %10.1f", real_of(row, "link_up_gb_per_s"));
        putchar('\n');
    }
}

static void print_devices(const cli_arguments *arguments, const json_t *devices)
{
    cli_style style = cli_style_of(arguments, stdout);
    const json_t *cards = json_object_get(devices, "cards"), *kept = json_object_get(devices, "measurement");
    print_device(json_object_get(devices, "host"), &style);
    if (json_is_string(kept)) {
        printf("  %-15s ", "saved in");
        cli_print_text(json_string_value(kept), json_string_length(kept));
        putchar('\n');
    } else if (json_is_true(json_object_get(json_object_get(devices, "host"), "estimate"))) {
        printf("  %-15s measure this machine: strata devices --probe\n", "");
    }
    for (size_t i = 0; i < json_array_size(cards); i++) print_device(json_array_get(cards, i), &style);
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
