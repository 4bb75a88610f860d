/* strata bench --mixed: what a long prompt does to conversations that decode, and they to it. */
#include <stdlib.h>
#include <string.h>

#include "together.h"

enum { WARM_PROMPT = 256 };

/* All repetitions. */
typedef struct mixed {
    double *alone, *beside; /* [count]: seconds of the prompt */
    double *gaps;           /* [gap_count] */
    size_t count, gap_count, tokens;
    double seconds;         /* of all prompts beside the decoders */
} mixed;

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static strata_status add(mixed *m, const together_mixed *one, strata_error *error)
{
    double *gaps = realloc(m->gaps, (m->gap_count + one->gap_count + 1) * sizeof *gaps);
    if (!gaps) return cli_fail(error, STRATA_MEMORY, NULL, "no memory for %zu gaps", m->gap_count + one->gap_count);
    m->gaps = gaps;
    if (one->gap_count) memcpy(m->gaps + m->gap_count, one->gaps, one->gap_count * sizeof *gaps);
    m->gap_count += one->gap_count;
    m->tokens += one->tokens;
    m->seconds += one->prompt_seconds;
    m->alone[m->count] = one->alone_seconds;
    m->beside[m->count++] = one->prompt_seconds;
    return STRATA_OK;
}

static strata_status measure(mixed *m, together *t, const cli_arguments *arguments, uint32_t prompt,
                             uint32_t repetitions, strata_error *error)
{
    cli_progress progress;
    together_mixed one;
    void *alone = NULL, *beside = NULL;
    strata_status status = cli_allocate(repetitions, sizeof *m->alone, "the repetitions", &alone, error);
    if (status == STRATA_OK) status = cli_allocate(repetitions, sizeof *m->beside, "the repetitions", &beside, error);
    m->alone = alone;
    m->beside = beside;
    cli_progress_begin(&progress, arguments, "mixed", "repetitions", repetitions);
    if (status == STRATA_OK) status = together_mix(t, prompt < WARM_PROMPT ? prompt : WARM_PROMPT, &one, error);
    if (status == STRATA_OK) free(one.gaps);
    while (status == STRATA_OK && m->count < repetitions) {
        status = together_mix(t, prompt, &one, error);
        if (status != STRATA_OK) break;
        status = add(m, &one, error);
        free(one.gaps);
        cli_progress_step(&progress, m->count, repetitions);
    }
    cli_progress_end(&progress);
    return status;
}

/* The value that a share of the sorted values does not exceed; 0 without values. */
static double percentile(const double *values, size_t count, double share)
{
    return count ? values[(size_t)(share * (double)(count - 1) + 0.5)] : 0.0;
}

static void sort(double *values, size_t count)
{
    if (count) qsort(values, count, sizeof *values, compare);
}

static strata_status print(mixed *m, const together *t, bool json, uint32_t prompt, strata_error *error)
{
    sort(m->gaps, m->gap_count);
    sort(m->alone, m->count);
    sort(m->beside, m->count);
    double alone = percentile(m->alone, m->count, 0.5), beside = percentile(m->beside, m->count, 0.5);
    double tps = m->seconds > 0.0 ? (double)m->tokens / m->seconds : 0.0, ratio = alone > 0.0 ? beside / alone : 0.0;
    double gaps[] = {percentile(m->gaps, m->gap_count, 0.5) * 1e3, percentile(m->gaps, m->gap_count, 0.95) * 1e3,
                     percentile(m->gaps, m->gap_count, 0.99) * 1e3, percentile(m->gaps, m->gap_count, 1.0) * 1e3};
    if (!json) {
        printf("a prompt of %u tokens: alone %.2f s to the first token, beside %u conversations %.2f s (%.2f times)\n"
               "the conversations meanwhile: %.1f tokens/s, gaps between tokens p50 %.0f ms, p95 %.0f ms, p99 %.0f ms, "
               "longest %.0f ms\n",
               prompt, alone, t->count - 1, beside, ratio, tps, gaps[0], gaps[1], gaps[2], gaps[3]);
        return cli_flush(error);
    }
    json_t *root = json_pack("{s:{s:i, s:i, s:i, s:f, s:{s:f, s:f, s:f, s:f}, s:f, s:f, s:f}}", "mixed", "prompt",
                             (int)prompt, "parallel", (int)t->count - 1, "repetitions", (int)m->count, "tps", tps,
                             "gap_ms", "p50", gaps[0], "p95", gaps[1], "p99", gaps[2], "max", gaps[3],
                             "first_token_seconds", beside, "alone_seconds", alone, "ratio", ratio);
    strata_status status = root ? cli_print_json(root, JSON_INDENT(2), error)
                                : cli_fail(error, STRATA_MEMORY, NULL, "no memory to write JSON");
    json_decref(root);
    return status;
}

strata_status cli_bench_mixed(together *t, const cli_arguments *arguments, uint32_t prompt, uint32_t repetitions,
                              strata_error *error)
{
    mixed m = {0};
    strata_status status = measure(&m, t, arguments, prompt, repetitions, error);
    if (status == STRATA_OK) status = print(&m, t, arguments->values[OPTION_JSON].set, prompt, error);
    free(m.alone);
    free(m.beside);
    free(m.gaps);
    return status;
}
