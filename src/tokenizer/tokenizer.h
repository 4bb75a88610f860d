/* Encodes text to token ids and decodes ids to text: byte-pair encoding (GPT-2's and Gemma 4's) and SentencePiece.
 * Reads the vocabulary from the file's keys. Immutable after creation, so many threads may use it. Knows no model and
 * no chat template. */
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

/* `gguf` must outlive the tokenizer. `pre_tokenizer` names a row of pre.c (NULL: the file's); an unknown name is
 * STRATA_UNSUPPORTED. */
strata_status st_tokenizer_new(const st_gguf *gguf, const char *pre_tokenizer, st_tokenizer **out,
                               strata_error *error);
void st_tokenizer_free(st_tokenizer *tokenizer);

/* The special tokens that must not match foreign bytes, which come from messages: all control tokens, and every special
 * token in `template_text`. */
typedef struct st_token_guard st_token_guard;

strata_status st_token_guard_new(const st_tokenizer *tokenizer, st_str template_text, st_token_guard **out,
                                 strata_error *error);
void st_token_guard_free(st_token_guard *guard);

typedef struct st_encode_options {
    bool plain;                   /* match no special tokens */
    const st_token_guard *guard;  /* NULL: all special tokens may match everywhere */
    const unsigned char *foreign; /* [length of the text]: nonzero for a foreign byte; NULL: none */
} st_encode_options;

/* Appends the ids of `text`, without BOS. Invalid UTF-8 is replaced by U+FFFD. A guarded special token does not match
 * where it covers a foreign byte. Takes at most n log n time. */
strata_status st_tokenizer_encode(const st_tokenizer *tokenizer, st_str text, const st_encode_options *options,
                                  st_tokens *out, strata_error *error);

/* Appends the text of the ids as valid UTF-8, without the space that SentencePiece adds at the start. */
strata_status st_tokenizer_decode(const st_tokenizer *tokenizer, const strata_token *ids, size_t count, st_buf *out,
                                  strata_error *error);

/* Incremental decoding: appends complete code points to `out`. Zero-initialise to start. Push and finish together
 * append the same text as st_tokenizer_decode. */
typedef struct st_decode_state {
    char pending[4]; /* the start of an incomplete code point */
    size_t pending_length;
    bool begun;
} st_decode_state;

strata_status st_tokenizer_decode_push(const st_tokenizer *tokenizer, st_decode_state *state, strata_token id,
                                       st_buf *out, strata_error *error);
strata_status st_tokenizer_decode_finish(st_decode_state *state, st_buf *out, strata_error *error);

/* The vocabulary. */
size_t st_tokenizer_vocab_size(const st_tokenizer *tokenizer);
const char *st_tokenizer_kind(const st_tokenizer *tokenizer); /* "bpe", "gemma4", "spm" */
const char *st_tokenizer_pre(const st_tokenizer *tokenizer);  /* the row's name, or "none" */
st_str st_tokenizer_text(const st_tokenizer *tokenizer, strata_token id); /* as stored; empty: id out of range */
st_token_type st_tokenizer_type(const st_tokenizer *tokenizer, strata_token id);
strata_token st_tokenizer_bos(const st_tokenizer *tokenizer); /* -1: none */
strata_token st_tokenizer_eos(const st_tokenizer *tokenizer); /* -1: none */
bool st_tokenizer_adds_bos(const st_tokenizer *tokenizer);    /* whether a prompt begins with BOS */
/* The tokens that end an answer: EOS, EOT and EOM of the file, and tokens with a known text. */
bool st_tokenizer_is_end(const st_tokenizer *tokenizer, strata_token id);
const strata_token *st_tokenizer_ends(const st_tokenizer *tokenizer, size_t *count); /* [count] */

#endif
