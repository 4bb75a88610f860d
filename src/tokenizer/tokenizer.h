/* Text ↔ ids: byte-pair (GPT-2 style and Gemma 4's) and SentencePiece; pre-tokenisers as rows (pre.c). Reads the
 * vocabulary from the file's keys; immutable once made, usable from many threads. Knows no model and no template. */
#ifndef ST_TOKENIZER_TOKENIZER_H
#define ST_TOKENIZER_TOKENIZER_H

#include "base/buf.h"
#include "gguf/gguf.h"
#include "strata.h"

typedef struct st_tokenizer st_tokenizer;

/* The file format's token types. */
typedef enum st_token_type {
    ST_TOKEN_NORMAL = 1,
    ST_TOKEN_UNKNOWN = 2,
    ST_TOKEN_CONTROL = 3,
    ST_TOKEN_USER = 4,
    ST_TOKEN_UNUSED = 5,
    ST_TOKEN_BYTE = 6,
} st_token_type;

/* A growing list of ids. Zero-initialise to create; st_tokens_free to destroy. */
typedef struct st_tokens {
    strata_token *ids; /* [capacity] */
    size_t count;
    size_t capacity;
} st_tokens;

bool st_tokens_push(st_tokens *tokens, strata_token id); /* false: no memory */
void st_tokens_free(st_tokens *tokens);

/* `gguf` must outlive the tokenizer. `pre_tokenizer` (NULL: the file's) names a row of pre.c; an unknown one is
 * STRATA_UNSUPPORTED, which names it and lists the rows. */
strata_status st_tokenizer_new(const st_gguf *gguf, const char *pre_tokenizer, st_tokenizer **out,
                               strata_error *error);
void st_tokenizer_free(st_tokenizer *tokenizer);

/* Which special tokens (control and user-defined) must not be matched in foreign bytes: all control tokens and every
 * token that `template_text` contains. One bit per special token. */
typedef struct st_token_guard st_token_guard;

strata_status st_token_guard_new(const st_tokenizer *tokenizer, st_str template_text, st_token_guard **out,
                                 strata_error *error);
void st_token_guard_free(st_token_guard *guard);

typedef struct st_encode_options {
    bool plain;                   /* match no special token at all */
    const st_token_guard *guard;  /* NULL: all may be matched everywhere */
    const unsigned char *foreign; /* [length of the text], nonzero where a byte came from a message; NULL: none did */
} st_encode_options;

/* Appends the ids of `text` (no BOS). Invalid UTF-8 is U+FFFD. A match of a guarded special token that covers a
 * foreign byte is not made. Time is linear, up to a logarithm, in the length. */
strata_status st_tokenizer_encode(const st_tokenizer *tokenizer, st_str text, const st_encode_options *options,
                                  st_tokens *out, strata_error *error);

/* Appends the bytes of one token: they may be a part of a code point. An id out of range is STRATA_INPUT. Control
 * tokens give their text. */
strata_status st_tokenizer_token_bytes(const st_tokenizer *tokenizer, strata_token id, st_buf *out,
                                       strata_error *error);

/* Appends the text of the ids: valid UTF-8, the blank that SentencePiece puts first taken away. */
strata_status st_tokenizer_decode(const st_tokenizer *tokenizer, const strata_token *ids, size_t count, st_buf *out,
                                  strata_error *error);

/* Incremental decoding: appends to `out` what has become whole. Zero-initialise to start. The concatenation of what
 * push and finish append is what st_tokenizer_decode gives for the same ids. */
typedef struct st_decode_state {
    char pending[4]; /* the start of a code point */
    size_t pending_length;
    bool begun;
} st_decode_state;

strata_status st_tokenizer_decode_push(const st_tokenizer *tokenizer, st_decode_state *state, strata_token id,
                                       st_buf *out, strata_error *error);
strata_status st_tokenizer_decode_finish(st_decode_state *state, st_buf *out, strata_error *error);

/* The vocabulary. */
size_t st_tokenizer_vocab_size(const st_tokenizer *tokenizer);
const char *st_tokenizer_kind(const st_tokenizer *tokenizer); /* "bpe", "gemma4", "spm" */
const char *st_tokenizer_pre(const st_tokenizer *tokenizer);  /* the row's name; "none" where none is used */
st_str st_tokenizer_text(const st_tokenizer *tokenizer, strata_token id); /* as stored; empty if out of range */
st_token_type st_tokenizer_type(const st_tokenizer *tokenizer, strata_token id);
strata_token st_tokenizer_bos(const st_tokenizer *tokenizer); /* -1: none */
strata_token st_tokenizer_eos(const st_tokenizer *tokenizer); /* -1: none */
bool st_tokenizer_adds_bos(const st_tokenizer *tokenizer);    /* whether the vocabulary wants a BOS first */
/* The tokens that end an answer: those that the file names as EOS, EOT or EOM, and those with a known text. */
bool st_tokenizer_is_end(const st_tokenizer *tokenizer, strata_token id);
const strata_token *st_tokenizer_ends(const st_tokenizer *tokenizer, size_t *count); /* [count] */

#endif
