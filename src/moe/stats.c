#include "moe/stats.h"

#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/error.h"
#include "model/program.h"

enum { PROMPT, DECODE, PHASES };

/* Of one expert. */
typedef struct tally {
    uint64_t hits, misses, uploads;
    uint64_t last; /* the event of its last use; 0: none */
} tally;

typedef struct layer {
    uint64_t counts[PHASES][ST_STAT_COUNT];
    uint64_t reuse[ST_REUSE_BUCKETS];
    uint64_t event;
    uint32_t experts;
    tally *tallies; /* [experts] */
} layer;

struct st_stats {
    uint32_t layer_count;
    size_t tally_count;
    tally *tallies; /* of all layers */
    layer layers[];
};

strata_status st_stats_new(uint32_t layers, const uint32_t *experts, st_stats **out, strata_error *error)
{
    size_t bytes = 0, tallies = 0;
    bool fits = st_mul_size(layers, sizeof(layer), &bytes) && st_add_size(bytes, sizeof(st_stats), &bytes);
    for (uint32_t i = 0; i < layers; i++) fits = fits && st_add_size(tallies, experts[i], &tallies);
    st_stats *stats = fits ? st_alloc_zero(1, bytes) : NULL;
    if (stats) stats->tallies = st_alloc_zero(tallies, sizeof *stats->tallies);
    if (!stats || !stats->tallies) {
        st_stats_free(stats);
        return st_error_memory(error, bytes, "the statistics of experts");
    }
    stats->layer_count = layers;
    stats->tally_count = tallies;
    tallies = 0;
    for (uint32_t i = 0; i < layers; i++) {
        stats->layers[i].experts = experts[i];
        stats->layers[i].tallies = stats->tallies + tallies;
        tallies += experts[i];
    }
    *out = stats;
    return STRATA_OK;
}

void st_stats_free(st_stats *stats)
{
    if (!stats) return;
    st_free(stats->tallies);
    st_free(stats);
}

/* ---- counting ---------------------------------------------------------------------------------------------------- */

/* 1 → 1, 2 → 2, 3 and 4 → 3, 5 to 8 → 4, …; the last bucket is unbounded. */
static uint32_t bucket_of(uint64_t distance)
{
    uint32_t bucket = 1;
    for (uint64_t limit = 1; distance > limit && bucket + 1 < ST_REUSE_BUCKETS; limit *= 2) bucket++;
    return bucket;
}

void st_stats_event(st_stats *stats, uint32_t layer_index, bool decode, uint32_t count, const uint32_t *experts,
                    const int32_t *slots)
{
    layer *l = &stats->layers[layer_index];
    uint64_t *counts = l->counts[decode];
    l->event++;
    counts[ST_STAT_EVENTS]++;
    for (uint32_t i = 0; i < count; i++) {
        tally *t = &l->tallies[experts[i]];
        bool hit = !slots || slots[i] >= 0;
        counts[hit ? ST_STAT_HITS : ST_STAT_MISSES]++;
        if (hit) t->hits++;
        else t->misses++;
        l->reuse[t->last ? bucket_of(l->event - t->last) : 0]++;
        t->last = l->event;
    }
}

void st_stats_rows(st_stats *stats, uint32_t layer_index, bool decode, uint32_t rows, uint32_t used)
{
    layer *l = &stats->layers[layer_index];
    st_op op = {.kind = ST_OP_EXPERTS, .p.experts = {.experts = l->experts, .used = used}};
    l->counts[decode][ST_STAT_EXPECTED] += (uint64_t)(st_experts_touched(&op, rows) + 0.5);
}

void st_stats_add(st_stats *stats, uint32_t layer_index, bool decode, st_stat what, uint64_t amount)
{
    stats->layers[layer_index].counts[decode][what] += amount;
}

void st_stats_upload(st_stats *stats, uint32_t layer_index, bool decode, uint32_t expert, uint64_t bytes)
{
    layer *l = &stats->layers[layer_index];
    l->counts[decode][ST_STAT_UPLOADS]++;
    l->counts[decode][ST_STAT_UPLOAD_BYTES] += bytes;
    l->tallies[expert].uploads++;
}

uint64_t st_stats_total(const st_stats *stats, bool decode, st_stat what)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < stats->layer_count; i++) sum += stats->layers[i].counts[decode][what];
    return sum;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

typedef struct column {
    const char *field, *title;
} column;

static const column columns[ST_STAT_COUNT] = {
#define X(name, field, title, text) {#field, title},
    ST_STATS_TABLE(X)
#undef X
};

static bool has_events(const layer *l)
{
    return l->experts > 0 && (l->counts[PROMPT][ST_STAT_EVENTS] > 0 || l->counts[DECODE][ST_STAT_EVENTS] > 0);
}

static double share(uint64_t part, uint64_t rest)
{
    return part + rest ? (double)part / (double)(part + rest) : 0.0;
}

static void print_line(st_buf *out, const char *label, const uint64_t counts[ST_STAT_COUNT])
{
    st_buf_printf(out, "%-8s", label);
    for (int i = 0; i < ST_STAT_COUNT; i++)
        if (columns[i].title[0]) st_buf_printf(out, " %9llu", (unsigned long long)counts[i]);
    double moved = (double)counts[ST_STAT_FETCH_BYTES] + (double)counts[ST_STAT_UPLOAD_BYTES];
    st_buf_printf(out, " %7.1f %% %10.1f\n", 100.0 * share(counts[ST_STAT_HITS], counts[ST_STAT_MISSES]), moved / 1e6);
}

/* What the CPU took, where it computed misses. */
static void print_times(st_buf *out, const uint64_t total[ST_STAT_COUNT])
{
    if (total[ST_STAT_COMPUTED] == 0) return;
    st_buf_printf(out, "the CPU computed a miss in %.1f µs, and waited %.1f µs for the router of a layer\n",
                  1e-3 * (double)total[ST_STAT_CPU_NS] / (double)total[ST_STAT_COMPUTED],
                  1e-3 * (double)total[ST_STAT_WAIT_NS] / (double)total[ST_STAT_EVENTS]);
}

static void print_phase(const st_stats *stats, int phase, st_buf *out)
{
    uint64_t total[ST_STAT_COUNT] = {0};
    for (int i = 0; i < ST_STAT_COUNT; i++) total[i] = st_stats_total(stats, phase, (st_stat)i);
    if (total[ST_STAT_EVENTS] == 0) return;
    st_buf_printf(out, "%-8s", phase == DECODE ? "decode" : "prompt");
    for (int i = 0; i < ST_STAT_COUNT; i++)
        if (columns[i].title[0]) st_buf_printf(out, " %9s", columns[i].title);
    st_buf_printf(out, " %9s %10s\n", "hit rate", "MB moved");
    for (uint32_t i = 0; i < stats->layer_count; i++) {
        char label[16];
        snprintf(label, sizeof label, "%u", i);
        if (stats->layers[i].counts[phase][ST_STAT_EVENTS]) print_line(out, label, stats->layers[i].counts[phase]);
    }
    print_line(out, "all", total);
    print_times(out, total);
    st_buf_printf(out, "\n");
}

static void print_reuse(const st_stats *stats, st_buf *out)
{
    uint64_t sum = 0, counts[ST_REUSE_BUCKETS] = {0};
    for (uint32_t i = 0; i < stats->layer_count; i++)
        for (uint32_t b = 0; b < ST_REUSE_BUCKETS; b++) counts[b] += stats->layers[i].reuse[b];
    for (uint32_t b = 0; b < ST_REUSE_BUCKETS; b++) sum += counts[b];
    st_buf_printf(out, "%-22s %12s %8s\n", "used again after", "uses", "share");
    for (uint32_t b = 0; b < ST_REUSE_BUCKETS; b++) {
        char label[32] = "never before";
        if (b == 1 || b == 2) snprintf(label, sizeof label, "%u", b);
        else if (b > 2 && b + 1 < ST_REUSE_BUCKETS)
            snprintf(label, sizeof label, "%u to %u", (1u << (b - 2)) + 1, 1u << (b - 1));
        else if (b > 2) snprintf(label, sizeof label, "more than %u", 1u << (b - 2));
        if (counts[b])
            st_buf_printf(out, "%-22s %12llu %6.1f %%\n", label, (unsigned long long)counts[b],
                          100.0 * (double)counts[b] / (double)sum);
    }
}

bool st_stats_print(const st_stats *stats, st_buf *out)
{
    print_phase(stats, PROMPT, out);
    print_phase(stats, DECODE, out);
    print_reuse(stats, out);
    return !out->failed;
}

/* ---- JSON: jansson returns NULL if an allocation fails, and setting NULL fails ----------------------------------- */

static json_t *counts_json(const uint64_t counts[ST_STAT_COUNT])
{
    json_t *object = json_object();
    bool whole = object != NULL;
    for (int i = 0; i < ST_STAT_COUNT; i++)
        whole = whole && json_object_set_new(object, columns[i].field, json_integer((json_int_t)counts[i])) == 0;
    whole = whole && json_object_set_new(object, "hit_rate",
                                         json_real(share(counts[ST_STAT_HITS], counts[ST_STAT_MISSES]))) == 0;
    if (whole) return object;
    json_decref(object);
    return NULL;
}

static json_t *numbers_json(const uint64_t *numbers, size_t stride, size_t count)
{
    json_t *array = json_array();
    for (size_t i = 0; array && i < count; i++) {
        if (json_array_append_new(array, json_integer((json_int_t)numbers[i * stride])) == 0) continue;
        json_decref(array);
        return NULL;
    }
    return array;
}

static json_t *layer_json(uint32_t index, const layer *l)
{
    enum { STRIDE = sizeof(tally) / sizeof(uint64_t) };
    json_t *o = json_object();
    bool whole = o && json_object_set_new(o, "layer", json_integer(index)) == 0 &&
                 json_object_set_new(o, "prompt", counts_json(l->counts[PROMPT])) == 0 &&
                 json_object_set_new(o, "decode", counts_json(l->counts[DECODE])) == 0 &&
                 json_object_set_new(o, "reuse", numbers_json(l->reuse, 1, ST_REUSE_BUCKETS)) == 0 &&
                 json_object_set_new(o, "expert_hits", numbers_json(&l->tallies->hits, STRIDE, l->experts)) == 0 &&
                 json_object_set_new(o, "expert_misses", numbers_json(&l->tallies->misses, STRIDE, l->experts)) == 0 &&
                 json_object_set_new(o, "expert_uploads", numbers_json(&l->tallies->uploads, STRIDE, l->experts)) == 0;
    if (whole) return o;
    json_decref(o);
    return NULL;
}

json_t *st_stats_json(const st_stats *stats)
{
    uint64_t totals[PHASES][ST_STAT_COUNT];
    for (int phase = 0; phase < PHASES; phase++)
        for (int i = 0; i < ST_STAT_COUNT; i++) totals[phase][i] = st_stats_total(stats, phase, (st_stat)i);
    json_t *root = json_object(), *layers = json_array();
    bool whole = root && layers && json_object_set_new(root, "prompt", counts_json(totals[PROMPT])) == 0 &&
                 json_object_set_new(root, "decode", counts_json(totals[DECODE])) == 0;
    for (uint32_t i = 0; whole && i < stats->layer_count; i++)
        if (has_events(&stats->layers[i]))
            whole = json_array_append_new(layers, layer_json(i, &stats->layers[i])) == 0;
    whole = whole && json_object_set(root, "layers", layers) == 0;
    json_decref(layers);
    if (whole) return root;
    json_decref(root);
    return NULL;
}
