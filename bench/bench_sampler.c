/* How long the sampler takes to choose a token of a vocabulary of 150,000: without top-k (temperature 1, top-p 0.95,
 * min-p 0), for peaked, ordinary and flat logits, and with the default settings. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "sampler/sampler.h"

enum { VOCAB = 150000, PICKS = 50, RUNS = 9 };

static float logits[VOCAB];

static double uniform(void)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) * 0x1p-53;
}

/* Fills the logits from a normal distribution and raises the first `raised` of them. */
static void fill(double deviation, int raised, double by)
{
    for (int i = 0; i < VOCAB; i++) {
        double angle = 6.283185307179586 * uniform(), radius = sqrt(-2 * log(1 - uniform()));
        logits[i] = (float)(deviation * radius * cos(angle) + (i < raised ? by : 0));
    }
}

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const char *what, const strata_sampling *sampling)
{
    st_sampler *sampler = NULL;
    strata_error error;
    double times[RUNS];
    strata_status status = st_sampler_new(sampling, VOCAB, &sampler, &error);
    for (int run = 0; run < RUNS && status == STRATA_OK; run++) {
        double start = st_clock_seconds();
        strata_token token;
        for (int i = 0; i < PICKS && status == STRATA_OK; i++)
            status = st_sampler_pick(sampler, logits, &token, &error);
        times[run] = (st_clock_seconds() - start) / PICKS * 1e3;
    }
    st_sampler_free(sampler);
    if (status != STRATA_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
    qsort(times, RUNS, sizeof *times, compare_numbers);
    printf("%-40s %9.3f ms  (median of %d; %.3f – %.3f)\n", what, times[RUNS / 2], RUNS, times[0], times[RUNS - 1]);
}

int main(void)
{
    strata_sampling all = STRATA_SAMPLING_DEFAULT, usual = STRATA_SAMPLING_DEFAULT;
    all.temperature = 1;
    all.top_k = 0;
    all.top_p = 0.95f;
    all.min_p = 0;
    all.seed = usual.seed = 1;
    fill(3, 5, 25);
    measure("top-k 0, peaked logits", &all);
    measure("default settings, peaked logits", &usual);
    fill(3, 0, 0);
    measure("top-k 0, normal logits", &all);
    all.temperature = 0.8f;
    measure("top-k 0, temperature 0.8, normal logits", &all);
    all.temperature = 1;
    fill(0.01, 0, 0);
    measure("top-k 0, flat logits", &all);
    fill(0, 0, 0);
    measure("top-k 0, equal logits", &all);
    return 0;
}
