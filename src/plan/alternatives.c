#include "plan/alternatives.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"

/* ---- one other plan ---------------------------------------------------------------------------------------------- */

typedef struct trial {
    const st_plan_source *source;
    const st_plan *plan;
    st_plan_options options;
} trial;

/* Plans with these options. What does not fit, or contradicts another option, is no error here. */
static strata_status try_options(const trial *t, const st_plan_options *options, st_alternative *out,
                                 strata_error *error)
{
    st_arena arena = {0};
    const st_plan *made = NULL;
    strata_error why;
    strata_status status = st_plan_build(t->source, options, &arena, &made, &why);
    *out = (st_alternative){.context = options->context, .fits = status == STRATA_OK};
    if (made) {
        out->decode_tps = made->speed.decode_tps;
        out->prefill_tps = made->speed.prefill_tps;
    }
    st_arena_free(&arena);
    if (status == STRATA_OK || status == STRATA_MEMORY || status == STRATA_USAGE) return STRATA_OK;
    if (error) *error = why;
    return status;
}

static strata_status try_context(const trial *t, st_type type, uint32_t context, st_alternative *out,
                                 strata_error *error)
{
    st_plan_options options = t->options;
    options.kv_type = (int32_t)type;
    options.context = context;
    return try_options(t, &options, out, error);
}

/* ---- the table: contexts by KV types ----------------------------------------------------------------------------- */

static void choose_types(const trial *t, st_alternatives *out)
{
    const st_type usual[] = {t->source->desc->recurrent ? ST_TYPE_BF16 : ST_TYPE_F16, ST_TYPE_Q8_0};
    out->types[out->type_count++] = t->plan->kv_type;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (usual[i] != t->plan->kv_type) out->types[out->type_count++] = usual[i];
}

static int by_size(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

/* The usual contexts, the plan's and the model's maximum, ascending. */
static uint32_t choose_contexts(const trial *t, uint32_t out[ST_ALTERNATIVE_CONTEXTS])
{
    static const uint32_t usual[] = {4096, 16384, 32768, 65536, 131072};
    uint32_t max = t->source->desc->context_max, count = 0, kept = 1;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (usual[i] < max) out[count++] = usual[i];
    out[count++] = t->plan->context;
    out[count++] = max;
    qsort(out, count, sizeof *out, by_size);
    for (uint32_t i = 1; i < count; i++)
        if (out[i] != out[kept - 1]) out[kept++] = out[i];
    return kept;
}

/* The longest context that fits, between a row of the table that fits and the next one, which does not. */
static strata_status find_longest(const trial *t, st_type type, const st_alternative *row, uint32_t count,
                                  uint32_t *out, strata_error *error)
{
    enum { STEP = 1024 };
    uint32_t last = count;
    while (last > 0 && !row[last - 1].fits) last--;
    *out = last ? row[last - 1].context : 0;
    if (last == count) return STRATA_OK;
    uint32_t low = *out / STEP, high = (row[last].context + STEP - 1) / STEP; /* low fits, high does not */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        st_alternative found;
        strata_status status = try_context(t, type, middle * STEP, &found, error);
        if (status != STRATA_OK) return status;
        if (!found.fits) {
            high = middle;
            continue;
        }
        low = middle;
        if (middle * STEP > *out) *out = middle * STEP;
    }
    return STRATA_OK;
}

static strata_status fill_table(const trial *t, st_alternatives *out, strata_error *error)
{
    uint32_t contexts[ST_ALTERNATIVE_CONTEXTS];
    strata_status status = STRATA_OK;
    choose_types(t, out);
    out->context_count = choose_contexts(t, contexts);
    for (uint32_t i = 0; i < out->type_count && status == STRATA_OK; i++) {
        for (uint32_t j = 0; j < out->context_count && status == STRATA_OK; j++)
            status = try_context(t, out->types[i], contexts[j], &out->table[i][j], error);
        if (status == STRATA_OK)
            status = find_longest(t, out->types[i], out->table[i], out->context_count, &out->longest[i], error);
    }
    return status;
}

/* ---- advice ------------------------------------------------------------------------------------------------------ */

/* A change of the options; false: it would change nothing. */
typedef struct change_row {
    const char *text;
    bool (*apply)(const st_plan *plan, st_plan_options *options);
} change_row;

static bool take_q8_0(const st_plan *plan, st_plan_options *options)
{
    options->kv_type = ST_TYPE_Q8_0;
    return plan->kv_type != ST_TYPE_Q8_0;
}

static bool free_layers(const st_plan *plan, st_plan_options *options)
{
    bool fixed = options->layers != ST_LAYERS_AUTO;
    (void)plan;
    options->layers = ST_LAYERS_AUTO;
    return fixed;
}

static bool free_moe(const st_plan *plan, st_plan_options *options)
{
    bool fixed = options->moe != ST_MOE_AUTO;
    (void)plan;
    options->moe = ST_MOE_AUTO;
    return fixed;
}

static bool free_slots(const st_plan *plan, st_plan_options *options)
{
    bool fixed = options->expert_slots >= 0;
    (void)plan;
    options->expert_slots = -1;
    return fixed;
}

static bool free_cpu_moe(const st_plan *plan, st_plan_options *options)
{
    bool fixed = options->cpu_moe_layers > 0;
    (void)plan;
    options->cpu_moe_layers = 0;
    return fixed;
}

static bool free_cpu_ffn(const st_plan *plan, st_plan_options *options)
{
    bool fixed = options->cpu_ffn_layers > 0;
    (void)plan;
    options->cpu_ffn_layers = 0;
    return fixed;
}

static const change_row changes[] = {
    {"options.kv_type q8_0", take_q8_0},
    {"without placement.layers", free_layers},
    {"without placement.moe", free_moe},
    {"without placement.expert_slots", free_slots},
    {"without placement.cpu_moe_layers", free_cpu_moe},
    {"without placement.cpu_ffn_layers", free_cpu_ffn},
};
enum { CHANGES = sizeof changes / sizeof *changes };

/* A change must be faster by this factor. */
#define ADVICE_GAIN 1.05

/* A shorter context gives something up: it is the advice if no other change helps. */
static strata_status advise_shorter(const trial *t, double *best, char *text, size_t bytes, strata_error *error)
{
    for (uint32_t context = t->plan->context / 2, tries = 0; context >= 4096 && tries < 3; context /= 2, tries++) {
        st_alternative found;
        strata_status status = try_context(t, t->plan->kv_type, context, &found, error);
        if (status != STRATA_OK) return status;
        if (!found.fits || found.decode_tps <= *best * ADVICE_GAIN) continue;
        *best = found.decode_tps;
        snprintf(text, bytes, "options.context %" PRIu32, context);
    }
    return STRATA_OK;
}

static strata_status advise(const trial *t, st_alternatives *out, strata_error *error)
{
    double now = t->plan->speed.decode_tps, best = now;
    char text[64] = "";
    for (size_t i = 0; i < CHANGES; i++) {
        st_plan_options options = t->options;
        st_alternative found;
        options.context = t->plan->context;
        if (!changes[i].apply(t->plan, &options)) continue;
        strata_status status = try_options(t, &options, &found, error);
        if (status != STRATA_OK) return status;
        if (!found.fits || found.decode_tps <= best * ADVICE_GAIN) continue;
        best = found.decode_tps;
        snprintf(text, sizeof text, "%s", changes[i].text);
    }
    strata_status status = text[0] ? STRATA_OK : advise_shorter(t, &best, text, sizeof text, error);
    if (status == STRATA_OK && text[0])
        snprintf(out->advice, sizeof out->advice, "%s: %.1f t/s instead of %.1f t/s", text, best, now);
    return status;
}

strata_status st_plan_alternatives(const st_plan_source *source, const st_plan_options *options, const st_plan *plan,
                                   st_alternatives *out, strata_error *error)
{
    trial t = {.source = source, .plan = plan, .options = *options};
    st_alternatives made = {0};
    strata_status status = fill_table(&t, &made, error);
    if (status == STRATA_OK) status = advise(&t, &made, error);
    if (status == STRATA_OK) *out = made;
    return status;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

st_load_times st_plan_load_times(const st_plan_source *source, const st_plan *plan)
{
    const st_profile *host = &source->devices[ST_HOST];
    const uint64_t *mapped = plan->devices[ST_HOST].owners;
    uint64_t copied = 0, in_ram = mapped[ST_OWNER_WEIGHTS] + mapped[ST_OWNER_EXPERTS];
    double upload = 0.0;
    if (plan->device_count > 1) {
        const uint64_t *owners = plan->devices[ST_CARD].owners;
        double link = source->devices[ST_CARD].link_up, copy = host->memory_rate / 2; /* RAM is read and written */
        copied = owners[ST_OWNER_WEIGHTS] + owners[ST_OWNER_EXPERTS];
        double rate = link < copy || !(copy > 0.0) ? link : copy;
        if (rate > 0.0) upload = (double)copied / rate;
    }
    st_load_times times = {.cache_seconds = upload};
    double read = host->disk_rate > 0.0 ? (double)(copied + in_ram) / host->disk_rate : 0.0;
    times.disk_seconds = read > upload ? read : upload; /* they overlap */
    return times;
}
