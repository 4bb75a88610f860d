#include "metrics.h"

#include <stdio.h>

/* Upper bounds in seconds: 1 ms, 2 ms, and so on up to 32 s. */
static double bound_of(size_t bucket)
{
    return 0.001 * (double)(1u << bucket);
}

void server_observe(server_histogram *h, double seconds)
{
    size_t bucket = 0;
    while (bucket < METRIC_BUCKETS && seconds > bound_of(bucket)) bucket++;
    server_count(&h->buckets[bucket], 1);
    server_count(&h->count, 1);
    server_count(&h->sum_us, seconds > 0 ? (size_t)(seconds * 1e6) : 0);
}

static void write_head(server_buf *out, const char *name, const char *help, const char *type)
{
    server_buf_printf(out, "# HELP strata_%s %s\n# TYPE strata_%s %s\n", name, help, name, type);
}

static void write_number(server_buf *out, const char *name, const char *labels, double value)
{
    server_buf_printf(out, "strata_%s%s %.17g\n", name, labels, value);
}

static void write_gauge(server_buf *out, const char *name, const char *help, double value)
{
    write_head(out, name, help, "gauge");
    write_number(out, name, "", value);
}

static void write_histogram(server_buf *out, const char *name, const char *help, server_histogram *h)
{
    unsigned long long sum = 0;
    write_head(out, name, help, "histogram");
    for (size_t i = 0; i <= METRIC_BUCKETS; i++) {
        sum += atomic_load_explicit(&h->buckets[i], memory_order_relaxed);
        if (i < METRIC_BUCKETS) server_buf_printf(out, "strata_%s_bucket{le=\"%g\"} %llu\n", name, bound_of(i), sum);
        else server_buf_printf(out, "strata_%s_bucket{le=\"+Inf\"} %llu\n", name, sum);
    }
    server_buf_printf(out, "strata_%s_sum %.6f\nstrata_%s_count %llu\n", name,
                      (double)atomic_load_explicit(&h->sum_us, memory_order_relaxed) / 1e6, name, sum);
}

/* ---- of the engine --------------------------------------------------------------------------------------------- */

static void write_pages(server_buf *out, const json_t *facts)
{
    static const char *const states[] = {"free", "held", "cached"};
    json_t *use = json_object_get(facts, "kv_use"), *pool;
    size_t i;
    write_head(out, "kv_pages", "pages of the KV cache", "gauge");
    json_array_foreach(json_object_get(use, "pools"), i, pool)
        for (size_t s = 0; s < sizeof states / sizeof *states; s++) {
            char labels[64];
            snprintf(labels, sizeof labels, "{pool=\"%zu\",state=\"%s\"}", i, states[s]);
            write_number(out, "kv_pages", labels, json_number_value(json_object_get(pool, states[s])));
        }
    write_gauge(out, "kv_page_tokens", "tokens of a page", json_number_value(json_object_get(use, "page_tokens")));
    write_gauge(out, "restore_points", "restore points", json_number_value(json_object_get(use, "restore_points")));
    write_gauge(out, "sessions", "open sessions", json_number_value(json_object_get(use, "sessions")));
}

static void write_bytes(server_buf *out, const json_t *facts)
{
    json_t *device, *bytes;
    size_t i;
    const char *owner;
    write_head(out, "memory_bytes", "planned memory by device and owner", "gauge");
    json_array_foreach(json_object_get(json_object_get(facts, "plan"), "devices"), i, device) {
        const char *kind = json_string_value(json_object_get(device, "kind"));
        json_object_foreach(json_object_get(device, "owners"), owner, bytes) {
            char labels[128];
            snprintf(labels, sizeof labels, "{device=\"%.20s\",owner=\"%.40s\"}", kind ? kind : "", owner);
            write_number(out, "memory_bytes", labels, json_number_value(bytes));
        }
    }
}

/* A row: the field of the engine's description, the metric's name and its help. */
typedef struct fact_row {
    const char *field, *name, *help;
} fact_row;

static void write_counters(server_buf *out, const json_t *facts, const fact_row *rows, size_t count)
{
    for (size_t i = 0; facts && i < count; i++) {
        write_head(out, rows[i].name, rows[i].help, "counter");
        write_number(out, rows[i].name, "", json_number_value(json_object_get(facts, rows[i].field)));
    }
}

/* A model without routed experts, and one whose experts all stay where they are, have no such counts. */
static void write_experts(server_buf *out, const json_t *facts)
{
    static const fact_row rows[] = {
        {"hits", "expert_hits_total", "chosen experts that were in a slot of the GPU"},
        {"misses", "expert_misses_total", "chosen experts that were not"},
        {"fetches", "expert_fetches_total", "misses that were fetched"},
        {"uploads", "expert_uploads_total", "experts copied into slots"},
        {"fetch_bytes", "expert_fetch_bytes_total", "bytes of fetches"},
        {"upload_bytes", "expert_upload_bytes_total", "bytes of uploads"}};
    write_counters(out, json_object_get(facts, "experts"), rows, sizeof rows / sizeof *rows);
}

/* Batch sizes: rows of the steps so far, of prompts and answers together and of answers alone. */
static void write_steps(server_buf *out, const json_t *facts)
{
    static const fact_row sizes[] = {{"rows", "batch_rows", "rows of a step"},
                                     {"answer_rows", "batch_answers", "rows of answers in a step"}};
    static const fact_row rows[] = {
        {"parked", "preemptions_total", "conversations that gave their place up for others"},
        {"followed", "prefix_waits_total", "prompts that waited for another one to compute the same prefix"}};
    const json_t *scheduler = json_object_get(facts, "scheduler");
    double steps = json_number_value(json_object_get(scheduler, "steps"));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        write_head(out, sizes[i].name, sizes[i].help, "summary");
        server_buf_printf(out, "strata_%s_sum %.17g\nstrata_%s_count %.17g\n", sizes[i].name,
                          json_number_value(json_object_get(scheduler, sizes[i].field)), sizes[i].name, steps);
    }
    write_counters(out, scheduler, rows, sizeof rows / sizeof *rows);
}

void server_metrics_write(server_metrics *m, const json_t *facts, server_buf *out)
{
#define X(member, name, help)                                                                                        \
    write_head(out, name, help, "counter");                                                                          \
    write_number(out, name, "", (double)atomic_load_explicit(&m->member, memory_order_relaxed));
    SERVER_COUNTERS(X)
#undef X
    write_gauge(out, "requests_running", "answers that the engine computes", (double)atomic_load(&m->running));
    write_gauge(out, "requests_queued", "requests that wait for the engine", (double)atomic_load(&m->queued));
    write_histogram(out, "time_to_first_token_seconds", "from a complete request to its first token", &m->first_token);
    write_histogram(out, "token_gap_seconds", "between two tokens of an answer", &m->gap);
    if (!facts) return;
    write_steps(out, facts);
    write_pages(out, facts);
    write_bytes(out, facts);
    write_experts(out, facts);
}
