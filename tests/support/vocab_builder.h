/* Builds small vocabularies as GGUF bytes for the tokenizer's tests: starts from a valid one of each kind, which a test
 * may change before writing it. */
#ifndef TEST_SUPPORT_VOCAB_BUILDER_H
#define TEST_SUPPORT_VOCAB_BUILDER_H

#include "gguf/gguf.h"
#include "support/gguf_writer.h"
#include "tokenizer/tokenizer.h"

enum { VOCAB_TOKENS_MAX = 400, VOCAB_MERGES_MAX = 64 };

typedef struct vocab_token {
    const char *text;
    int type;
    float score;
} vocab_token;

typedef struct vocab_spec {
    const char *model; /* NULL: the key is absent; the same for all strings below */
    const char *pre;
    vocab_token tokens[VOCAB_TOKENS_MAX];
    size_t count;
    const char *merges[VOCAB_MERGES_MAX];
    size_t merge_count;
    int64_t bos, eos, eot, eom, unknown; /* -1: no key */
    int adds_bos, adds_space;            /* -1: no key */
    bool no_tokens, no_types, no_scores, no_merges;
    int more_types, more_scores; /* extra items in arrays beyond the tokens; negative: fewer */
    const char *sample_key;      /* this key has a value of sample_type instead */
    st_gguf_type sample_type;
    bool sample_array;
} vocab_spec;

void vocab_spec_bpe(vocab_spec *spec);   /* "gpt2": all bytes, some merges, some special tokens */
void vocab_spec_gemma(vocab_spec *spec); /* "gemma4": some characters, all <0xNN> */
void vocab_spec_spm(vocab_spec *spec);   /* "llama": some characters and words, all <0xNN> */

strata_token vocab_add(vocab_spec *spec, const char *text, int type, float score); /* the id */
void vocab_merge(vocab_spec *spec, const char *merge);
strata_token vocab_id(const vocab_spec *spec, const char *text); /* -1: none */

/* Writes the GGUF bytes (free with gguf_writer_free). */
void vocab_write(const vocab_spec *spec, gguf_writer *out);

/* A tokenizer with its file. */
typedef struct vocab_made {
    gguf_writer writer;
    st_gguf *gguf;
    st_tokenizer *tokenizer;
} vocab_made;

/* On failure everything is freed. */
strata_status vocab_make(const vocab_spec *spec, const char *pre_tokenizer, vocab_made *out, strata_error *error);
void vocab_made_free(vocab_made *made);

#endif
