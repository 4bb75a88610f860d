/* Special tokens (control and user-defined): found in a text, leftmost and longest, with a trie. Owns the rule of which
 * of them may be matched in foreign bytes. Knows no way of encoding the text between them. */
#ifndef ST_TOKENIZER_SPECIAL_H
#define ST_TOKENIZER_SPECIAL_H

#include "tokenizer/vocab.h"

/* At each place the trie is walked at most this far, which keeps the search linear. */
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

/* The bits of a guard are per special index. */
struct st_token_guard {
    const st_tokenizer *tokenizer;
    unsigned char bits[]; /* [(count + 7) / 8] */
};

static inline bool st_guard_has(const st_token_guard *guard, uint32_t index)
{
    return guard->bits[index / 8] >> (index % 8) & 1;
}

/* The longest special token at text[position] that may be matched there: its length, and its id in *id. 0: none. */
size_t st_specials_match(const st_specials *specials, st_str text, size_t position, const st_encode_options *options,
                         const unsigned char *foreign, uint32_t *id);

/* Sets the guard's bits. */
void st_specials_guard(const st_specials *specials, const st_vocab *vocab, st_str template_text,
                       st_token_guard *guard);

#endif
