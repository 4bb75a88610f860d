#include "tokenizer/special.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/error.h"

static bool is_special(const st_vocab *vocab, uint32_t id)
{
    unsigned char type = vocab->types[id];
    return (type == ST_TOKEN_CONTROL || type == ST_TOKEN_USER) && vocab->places[id].length > 0;
}

/* The child of `node` (0: the root) for `byte`; 0: none. */
static uint32_t step(const st_specials *specials, uint32_t node, unsigned char byte)
{
    if (node == 0) return specials->roots[byte];
    const st_pair *edge = st_pairs_find(&specials->edges, node, byte);
    return edge ? edge->id : 0;
}

/* The first of two tokens with the same text counts. */
static void insert(st_specials *specials, st_str text, uint32_t id)
{
    uint32_t node = 0;
    for (size_t i = 0; i < text.length; i++) {
        unsigned char byte = (unsigned char)text.data[i];
        uint32_t next = step(specials, node, byte);
        if (next == 0) {
            next = specials->node_count++;
            if (node == 0) specials->roots[byte] = next;
            else st_pairs_add(&specials->edges, node, byte, 0, next);
        }
        node = next;
    }
    if (specials->terminal[node]) return;
    specials->ids[specials->count++] = id;
    specials->terminal[node] = specials->count;
}

strata_status st_specials_build(st_specials *specials, const st_vocab *vocab, const char *where, strata_error *error)
{
    size_t count = 0, bytes = 0;
    for (uint32_t id = 0; id < vocab->count; id++) {
        if (!is_special(vocab, id)) continue;
        size_t length = vocab->places[id].length;
        if (length > ST_SPECIAL_LENGTH_MAX)
            return st_error_set(error, STRATA_FORMAT, "the vocabulary is broken: convert or download the file again",
                                "%s: key tokenizer.ggml.tokens[%u]: expected a special token of at most %d bytes, "
                                "found %zu",
                                where, id, ST_SPECIAL_LENGTH_MAX, length);
        count++;
        bytes += length; /* no overflow: the array of all texts is below 4 GiB */
    }
    if (bytes >= UINT32_MAX)
        return st_error_set(error, STRATA_FORMAT, NULL, "%s: special tokens: expected less than 4 GiB of text", where);
    specials->ids = st_alloc_array(count, sizeof *specials->ids);
    specials->terminal = st_alloc_zero(bytes + 1, sizeof *specials->terminal);
    if (!specials->ids || !specials->terminal || !st_pairs_reserve(&specials->edges, bytes))
        return st_error_memory(error, bytes * sizeof(st_pair), "the special tokens");
    specials->node_count = 1;
    for (uint32_t id = 0; id < vocab->count; id++)
        if (is_special(vocab, id)) insert(specials, st_vocab_text(vocab, id), id);
    return STRATA_OK;
}

void st_specials_free(st_specials *specials)
{
    st_free(specials->ids);
    st_free(specials->terminal);
    st_pairs_free(&specials->edges);
    *specials = (st_specials){0};
}

size_t st_specials_match(const st_specials *specials, st_str text, size_t position, const st_encode_options *options,
                         const unsigned char *foreign, uint32_t *id)
{
    uint32_t node = 0;
    size_t longest = 0;
    bool covers_foreign = false;
    for (size_t i = position; i < text.length; i++) {
        node = step(specials, node, (unsigned char)text.data[i]);
        if (node == 0) break;
        if (foreign && foreign[i]) covers_foreign = true;
        uint32_t index = specials->terminal[node];
        if (index == 0) continue;
        if (covers_foreign && options->guard && st_guard_has(options->guard, index - 1)) continue;
        longest = i + 1 - position;
        *id = specials->ids[index - 1];
    }
    return longest;
}

static void guard_set(st_token_guard *guard, uint32_t index)
{
    guard->bits[index / 8] |= (unsigned char)(1u << (index % 8));
}

void st_specials_guard(const st_specials *specials, const st_vocab *vocab, st_str template_text,
                       st_token_guard *guard)
{
    for (uint32_t index = 0; index < specials->count; index++)
        if (vocab->types[specials->ids[index]] == ST_TOKEN_CONTROL) guard_set(guard, index);
    for (size_t start = 0; start < template_text.length; start++) {
        uint32_t node = 0;
        for (size_t i = start; i < template_text.length; i++) {
            node = step(specials, node, (unsigned char)template_text.data[i]);
            if (node == 0) break;
            if (specials->terminal[node]) guard_set(guard, specials->terminal[node] - 1);
        }
    }
}
