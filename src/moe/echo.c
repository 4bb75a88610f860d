#include "moe/echo.h"

#include <string.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/error.h"

/* How many uses of its partner's mean each pair starts with: two tokens prove little. */
#define ASSUMED 2.0f

/* Counts are halved here: they fit, and what is long ago counts less. */
enum { COUNT_LIMIT = 4096 };

typedef struct layer {
    uint32_t experts, sources; /* of this layer, and of the one below that speaks for it; 0: none does */
    uint16_t *pairs;           /* [sources, experts]: tokens that chose both */
    uint16_t *chosen;          /* [sources]: tokens that chose the source */
    uint16_t *uses;            /* [experts]: tokens that chose it */
    uint32_t tokens;
    uint32_t *last;            /* [used]: what the token chose here */
    uint32_t last_count;
    uint64_t last_token;
} layer;

struct st_echo {
    uint32_t layer_count, used, lead, most_experts;
    uint64_t token;
    uint32_t last_layer;
    layer *layers;
    float *score;   /* [most experts] */
    void *block;
};

/* ---- memory ------------------------------------------------------------------------------------------------------------ */

static void *take(unsigned char *base, size_t *offset, size_t count, size_t size, bool *fits)
{
    size_t bytes, end, start = *offset;
    *fits = *fits && st_mul_size(count, size, &bytes) && st_add_size(start, bytes, &end) && st_align_size(end, 16, &end);
    if (!*fits) return NULL;
    *offset = end;
    return base ? base + start : NULL;
}

static size_t lay_out(st_echo *echo, unsigned char *base, bool *fits)
{
    size_t offset = 0, pairs = 0;
    for (uint32_t i = 0; i < echo->layer_count; i++) {
        layer *l = &echo->layers[i];
        *fits = *fits && st_mul_size(l->sources, l->experts, &pairs);
        l->pairs = take(base, &offset, pairs, sizeof *l->pairs, fits);
        l->chosen = take(base, &offset, l->sources, sizeof *l->chosen, fits);
        l->uses = take(base, &offset, l->experts, sizeof *l->uses, fits);
        l->last = take(base, &offset, echo->used, sizeof *l->last, fits);
    }
    echo->score = take(base, &offset, echo->most_experts, sizeof *echo->score, fits);
    return offset;
}

strata_status st_echo_new(uint32_t layers, const uint32_t *experts, uint32_t used, uint32_t lead, st_echo **out,
                          strata_error *error)
{
    st_echo *echo = st_alloc_zero(1, sizeof *echo);
    layer *list = st_alloc_zero(layers, sizeof *list);
    bool fits = echo && list;
    size_t bytes = 0;
    for (uint32_t i = 0; fits && i < layers; i++) {
        list[i].experts = experts[i];
        list[i].sources = i >= lead && experts[i] ? experts[i - lead] : 0;
        if (experts[i] > echo->most_experts) echo->most_experts = experts[i];
    }
    if (fits) {
        *echo = (st_echo){.layer_count = layers, .used = used, .lead = lead, .most_experts = echo->most_experts, .token = 1,
                          .layers = list};
        bytes = lay_out(echo, NULL, &fits);
        echo->block = fits ? st_alloc_zero(1, bytes) : NULL;
        fits = echo->block != NULL;
    }
    if (!fits) {
        st_free(echo);
        st_free(list);
        return st_error_memory(error, bytes, "the prediction of experts");
    }
    lay_out(echo, echo->block, &fits);
    *out = echo;
    return STRATA_OK;
}

void st_echo_free(st_echo *echo)
{
    if (!echo) return;
    st_free(echo->block);
    st_free(echo->layers);
    st_free(echo);
}

/* ---- counting ---------------------------------------------------------------------------------------------------------- */

static void halve(uint16_t *counts, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) counts[i] /= 2;
}

/* What this token chose in the layer that speaks for `index`; NULL: nothing is known of it. */
static const layer *source_of(const st_echo *echo, uint32_t index)
{
    if (index < echo->lead || echo->layers[index].sources == 0) return NULL;
    const layer *source = &echo->layers[index - echo->lead];
    return source->last_token == echo->token ? source : NULL;
}

static void learn(layer *l, const layer *source, uint32_t count, const uint32_t *experts)
{
    for (uint32_t s = 0; s < source->last_count; s++) {
        uint16_t *row = l->pairs + (size_t)source->last[s] * l->experts, *chosen = &l->chosen[source->last[s]];
        for (uint32_t i = 0; i < count; i++) row[experts[i]]++;
        if (++*chosen < COUNT_LIMIT) continue;
        halve(row, l->experts);
        *chosen /= 2;
    }
    for (uint32_t i = 0; i < count; i++) l->uses[experts[i]]++;
    if (++l->tokens < COUNT_LIMIT) return;
    halve(l->uses, l->experts);
    l->tokens /= 2;
}

void st_echo_see(st_echo *echo, uint32_t index, uint32_t count, const uint32_t *experts)
{
    layer *l = &echo->layers[index];
    if (index <= echo->last_layer) echo->token++;
    echo->last_layer = index;
    const layer *source = source_of(echo, index);
    if (source) learn(l, source, count, experts);
    l->last_count = count < echo->used ? count : echo->used;
    memcpy(l->last, experts, l->last_count * sizeof *experts);
    l->last_token = echo->token;
}

/* ---- guessing ---------------------------------------------------------------------------------------------------------- */

static void score_all(const st_echo *echo, const layer *l, const layer *source)
{
    float *score = echo->score, share = 1.0f / (float)source->last_count, rest = 0.0f;
    for (uint32_t i = 0; i < l->experts; i++) score[i] = 0.0f;
    for (uint32_t s = 0; s < source->last_count; s++) {
        const uint16_t *row = l->pairs + (size_t)source->last[s] * l->experts;
        float weight = share / ((float)l->chosen[source->last[s]] + ASSUMED);
        rest += weight * ASSUMED;
        for (uint32_t i = 0; i < l->experts; i++) score[i] += weight * (float)row[i];
    }
    for (uint32_t i = 0; i < l->experts; i++) score[i] += rest * (float)l->uses[i] / (float)l->tokens;
}

uint32_t st_echo_guess_of(st_echo *echo, uint32_t index, uint32_t most, st_echo_guess *out)
{
    const layer *l = index < echo->layer_count ? &echo->layers[index] : NULL, *source = l ? source_of(echo, index) : NULL;
    if (!source || source->last_count == 0 || l->tokens == 0) return 0;
    score_all(echo, l, source);
    uint32_t count = most < l->experts ? most : l->experts;
    for (uint32_t n = 0; n < count; n++) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < l->experts; i++)
            if (echo->score[i] > echo->score[best]) best = i;
        out[n] = (st_echo_guess){best, echo->score[best] < 1.0f ? echo->score[best] : 1.0f};
        echo->score[best] = -1.0f;
    }
    return count;
}
