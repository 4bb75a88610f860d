/* Finds special tokens (control and user-defined) in a text with a trie: the leftmost, and the longest there. Owns the
 * rule of which of them may match foreign bytes. Does not encode the text between them. */
#ifndef ST_TOKENIZER_SPECIAL_H
#define ST_TOKENIZER_SPECIAL_H

#include "tokenizer/vocab.h"

/* The longest special token: it bounds the search at each position. */
enum { ST_SPECIAL_LENGTH_MAX = 512 };

typedef struct st_specials {
    uint32_t *ids;      /* [count] special index → token id */
    uint32_t *terminal; /* [node_count] special index + 1; 0: no token ends here */
    st_pairs edges;     /* (node, byte) → node, in `id` */
    uint32_t count;
    uint32_t node_count;
    uint32_t roots[256]; /* first byte → node; 0: no token begins with it */
} st_specials;

/* Zero-initialise to create; st_specials_free to destroy, after a failed build too. */
strata_status st_specials_build(st_specials *specials, const st_vocab *vocab, const char *where, strata_error *error);
void st_specials_free(st_specials *specials);

/* One bit per special index: set for tokens that must not match foreign bytes. */
struct st_token_guard {
    const st_tokenizer *tokenizer;
    unsigned char bits[]; /* [(count + 7) / 8] */
};

static inline bool st_guard_has(const st_token_guard *guard, uint32_t index)
{
    return guard->bits[index / 8] >> (index % 8) & 1;
}

/* The length of the longest special token that may match at text[position], and its id in *id. 0: none. */
size_t st_specials_match(const st_specials *specials, st_str text, size_t position, const st_encode_options *options,
                         const unsigned char *foreign, uint32_t *id);

/* Sets the guard's bits. */
void st_specials_guard(const st_specials *specials, const st_vocab *vocab, st_str template_text,
                       st_token_guard *guard);

#endif
