/* The head of strata plan: a verdict in one line, the summary, and the speed with other contexts and KV types. */
#include <string.h>

#include "cli.h"

enum { LABEL_WIDTH = 15 };

static void print_label(const char *label)
{
    printf("  %-*s ", LABEL_WIDTH, label);
}

static void print_grouped(uint64_t number)
{
    char text[32];
    fputs(cli_group_digits(number, text, sizeof text), stdout);
}

static double gib_of(uint64_t bytes)
{
    return (double)bytes / (double)((uint64_t)1 << 30);
}

static const json_t *device_of(const json_t *plan, size_t index)
{
    return json_array_get(json_object_get(plan, "devices"), index);
}

/* ---- the verdict ------------------------------------------------------------------------------------------------- */

static void print_use(const json_t *device, const char *what, const char *mark)
{
    printf("%.1f of %.1f GiB of%s %s", gib_of(cli_number_of(device, "planned_bytes")),
           gib_of(cli_number_of(device, "capacity_bytes")), mark, what);
}

void cli_print_verdict(const cli_arguments *arguments, const json_t *plan, const char *path, const cli_style *style)
{
    const json_t *model = json_object_get(plan, "model"), *speed = json_object_get(plan, "predicted");
    const json_t *host = device_of(plan, 0), *card = device_of(plan, 1);
    const char *name = cli_text_of(model, "name"), *mark = cli_simulated(arguments);
    cli_print_bold(style, *name ? name : path);
    printf(": fits, with ");
    if (card) {
        print_use(card, "GPU memory", mark);
        printf(" and ");
    }
    print_use(host, "RAM", "");
    printf("; %s%.1f t/s%s, prompts %.0f t/s%s", json_is_true(json_object_get(speed, "estimate")) ? "about " : "",
           cli_real_of(speed, "decode_tps"), mark, cli_real_of(speed, "prefill_tps"), mark);
    if (json_is_true(json_object_get(card, "no_backend")))
        printf("; strata cannot run on the %s yet", cli_text_of(card, "name"));
    putchar('\n');
}

/* ---- the summary ------------------------------------------------------------------------------------------------- */

/* The longest conversation, and the memory that all conversations share. */
static void print_context(const json_t *plan)
{
    uint64_t context = cli_number_of(plan, "context"), restore = cli_number_of(plan, "restore_bytes");
    uint64_t tier = cli_number_of(plan, "kv_ram_bytes");
    uint64_t maximum = cli_number_of(json_object_get(plan, "model"), "context_length");
    unsigned long long sequences = cli_number_of(plan, "sequences");
    print_label("context");
    print_grouped(context);
    printf(" tokens per conversation, the model's maximum");
    if (context != maximum) {
        printf(" is ");
        print_grouped(maximum);
    }
    printf("; KV cache %s\n", cli_text_of(plan, "kv_type"));
    print_label("pool");
    print_grouped(cli_number_of(plan, "pool_tokens"));
    if (sequences == 1) printf(" tokens for one running conversation\n");
    else printf(" tokens shared by up to %llu running conversations\n", sequences);
    if (restore) {
        print_label("restore points");
        print_grouped(restore);
        printf(" bytes\n");
    }
    if (tier) {
        print_label("kv ram");
        print_grouped(tier);
        printf(" bytes\n");
    }
    print_label("batch");
    print_grouped(cli_number_of(plan, "batch"));
    printf(" tokens\n");
}

static void print_experts(const json_t *experts)
{
    if (!experts) return;
    double slots = cli_real_of(experts, "slots_per_layer"), hits = 100.0 * cli_real_of(experts, "hit_rate");
    unsigned long long all = cli_number_of(experts, "experts_per_layer");
    print_label("experts");
    printf("%s: %.1f of %llu per layer on the GPU (%.1f %%), budget ", cli_text_of(experts, "mode"), slots, all,
           100.0 * cli_real_of(experts, "resident_share"));
    print_grouped(cli_number_of(experts, "budget_bytes"));
    printf(" bytes\n");
    if (!json_object_get(experts, "hit_rate")) return;
    print_label("");
    if (cli_text_is(experts, "hit_source", "table"))
        printf("%.1f %% hit rate, typical for %.1f of %llu slots\n", hits, slots, all);
    else printf("%.1f %% hit rate (%s)\n", hits, cli_text_of(experts, "hit_source"));
}

/* What most of a token's time goes to. The names of memories alone would sound like a lack of memory. */
static const char *bottleneck_of(const char *limit)
{
    if (strcmp(limit, "the card's memory") == 0) return "reading the GPU's memory";
    return strcmp(limit, "RAM") == 0 ? "reading RAM" : limit;
}

static void print_speed(const json_t *speed, const char *mark)
{
    char depth[32], prompt[32];
    print_label("speed");
    printf("%s%.1f t/s%s decoding at a depth of %s, %.0f t/s%s for a prompt of %s\n",
           json_is_true(json_object_get(speed, "estimate")) ? "estimate: " : "", cli_real_of(speed, "decode_tps"), mark,
           cli_group_digits(cli_number_of(speed, "depth"), depth, sizeof depth), cli_real_of(speed, "prefill_tps"),
           mark, cli_group_digits(cli_number_of(speed, "prefill_tokens"), prompt, sizeof prompt));
    if (json_object_get(speed, "together_tps")) {
        print_label("together");
        printf("%.1f t/s%s decoding, all conversations in one step\n", cli_real_of(speed, "together_tps"), mark);
    }
    print_label("bottleneck");
    puts(bottleneck_of(cli_text_of(speed, "limit")));
}

static void print_load(const json_t *load, const char *mark)
{
    print_label("load");
    printf("about %.2f s%s from disk, %.2f s%s from the page cache\n", cli_real_of(load, "disk_seconds"), mark,
           cli_real_of(load, "cache_seconds"), mark);
}

static void print_rates(const json_t *device, const char *label)
{
    print_label(label);
    if (!cli_text_is(device, "name", "card") && !cli_text_is(device, "name", "host"))
        printf("%s: ", cli_text_of(device, "name"));
    cli_print_rates(device);
    putchar('\n');
}

void cli_print_summary(const cli_arguments *arguments, const json_t *plan)
{
    const json_t *layers = json_object_get(plan, "layers"), *card = device_of(plan, 1);
    const char *mark = cli_simulated(arguments);
    char size[32];
    print_label("weights");
    print_grouped(cli_number_of(plan, "weight_bytes"));
    printf(" bytes (%s)%s\n", cli_short_number(cli_number_of(plan, "weight_bytes"), "B", size, sizeof size),
           json_is_true(json_object_get(plan, "disk")) ? ", some of them read from disk during inference" : "");
    print_context(plan);
    print_label("layers");
    printf("%llu of %llu on the GPU\n", (unsigned long long)cli_number_of(layers, "device"),
           (unsigned long long)cli_number_of(layers, "total"));
    print_experts(json_object_get(plan, "experts"));
    print_speed(json_object_get(plan, "predicted"), mark);
    print_load(json_object_get(plan, "load"), mark);
    if (card) print_rates(card, "GPU rates");
    print_rates(device_of(plan, 0), "host rates");
}

/* ---- other contexts and KV types --------------------------------------------------------------------------------- */

enum { CELL_WIDTH = 24 };

/* The number of rows of the first KV type: the table has one cell per context and type, type by type. */
static size_t contexts_of(const json_t *cells)
{
    size_t count = 0;
    const char *first = cli_text_of(json_array_get(cells, 0), "kv_type");
    while (count < json_array_size(cells) && cli_text_is(json_array_get(cells, count), "kv_type", first)) count++;
    return count;
}

static void print_cell(const json_t *cell, bool chosen)
{
    char text[64] = "does not fit";
    if (json_is_true(json_object_get(cell, "fits")))
        snprintf(text, sizeof text, "%.1f / %.0f%s", cli_real_of(cell, "decode_tps"), cli_real_of(cell, "prefill_tps"),
                 chosen ? " *" : "  ");
    printf(" %*s", CELL_WIDTH, text);
}

void cli_print_alternatives(const cli_arguments *arguments, const json_t *plan, const cli_style *style)
{
    const json_t *cells = json_object_get(plan, "alternatives"), *longest = json_object_get(plan, "longest");
    size_t contexts = contexts_of(cells), types = json_array_size(longest);
    char head[160], number[32];
    if (contexts == 0) return;
    snprintf(head, sizeof head, "context by KV type: decoding / prompt in t/s%s (* this plan)",
             cli_simulated(arguments));
    putchar('\n');
    cli_print_bold(style, head);
    printf("\n  %12s", "tokens");
    for (size_t t = 0; t < types; t++)
        printf(" %*s", CELL_WIDTH - 2, cli_text_of(json_array_get(longest, t), "kv_type"));
    putchar('\n');
    for (size_t i = 0; i < contexts; i++) {
        uint64_t context = cli_number_of(json_array_get(cells, i), "context");
        printf("  %12s", cli_group_digits(context, number, sizeof number));
        for (size_t t = 0; t < types; t++)
            print_cell(json_array_get(cells, t * contexts + i), t == 0 && context == cli_number_of(plan, "context"));
        putchar('\n');
    }
    printf("  %12s", "most that fit");
    for (size_t t = 0; t < types; t++)
        printf(" %*s", CELL_WIDTH - 2,
               cli_group_digits(cli_number_of(json_array_get(longest, t), "context"), number, sizeof number));
    putchar('\n');
}
