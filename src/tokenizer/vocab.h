/* The vocabulary: tokens, types, scores and look-up by text. Reads and checks the keys tokenizer.ggml.tokens,
 * .token_type, .scores and .merges. Does not encode. */
#ifndef ST_TOKENIZER_VOCAB_H
#define ST_TOKENIZER_VOCAB_H

#include "tokenizer/pairs.h"
#include "tokenizer/tokenizer.h"

enum {
    ST_VOCAB_TOKENS_MAX = 1 << 24,
    ST_VOCAB_MERGES_MAX = 1 << 26,
};

#define ST_VOCAB_NONE UINT32_MAX /* no such token */

/* The position of a token's text in the file's array. */
typedef struct st_vocab_text_place {
    uint32_t offset;
    uint32_t length;
} st_vocab_text_place;

typedef struct st_vocab {
    const char *base;              /* the array's bytes, in the file */
    st_vocab_text_place *places;   /* [count] */
    unsigned char *types;          /* [count], st_token_type */
    float *scores;                 /* [count]; NULL: the file has none */
    uint64_t *table;               /* [table_mask + 1]: 32 bits of hash, id + 1; 0: an empty slot */
    size_t table_mask;
    uint64_t seed;
    uint32_t count;
    size_t text_length_max;
    bool has_types;                /* the file has types */
} st_vocab;

/* Zero-initialise to create; st_vocab_free to destroy, after a failed load too. */
strata_status st_vocab_load(st_vocab *vocab, const st_gguf *gguf, strata_error *error);
void st_vocab_free(st_vocab *vocab);

/* The merges, in the file's order: pair of ids → order and id of the result. */
strata_status st_vocab_load_merges(const st_vocab *vocab, const st_gguf *gguf, st_pairs *out, strata_error *error);

/* The id of the first token with this text, of any type. */
uint32_t st_vocab_find(const st_vocab *vocab, st_str text);
/* The same for plain text: control, unknown, unused and byte tokens are not found. */
uint32_t st_vocab_find_plain(const st_vocab *vocab, st_str text);

static inline st_str st_vocab_text(const st_vocab *vocab, uint32_t id)
{
    return (st_str){vocab->base + vocab->places[id].offset, vocab->places[id].length};
}

static inline bool st_vocab_is_plain(const st_vocab *vocab, uint32_t id)
{
    return vocab->types[id] == ST_TOKEN_NORMAL || vocab->types[id] == ST_TOKEN_USER;
}

/* A keyed hash of bytes, faster than base/map.h's on the short texts of a vocabulary. */
uint64_t st_vocab_hash(uint64_t seed, const char *text, size_t length);

/* The byte of a text <0xNN> with exactly two hexadecimal digits; -1 for other texts. */
int st_vocab_byte_of(st_str text);

#endif
