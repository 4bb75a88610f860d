/* Pre-tokenisers cut a text into pieces before byte-pair merging. One row each: names in files, patterns and
 * normalisation. Knows no vocabulary. */
#ifndef ST_TOKENIZER_PRE_H
#define ST_TOKENIZER_PRE_H

#include "base/buf.h"
#include "strata.h"

enum { ST_PRE_PATTERNS_MAX = 6, ST_PRE_NAMES_MAX = 12 };

typedef struct st_pre_row {
    const char *names[ST_PRE_NAMES_MAX];       /* the first is the row's own; ends with NULL */
    const char *patterns[ST_PRE_PATTERNS_MAX]; /* each cuts the pieces of the one before; ends with NULL */
    bool nfc;                                  /* normalise the text to NFC first */
    bool whole_piece;                          /* a piece that is a token is not merged from bytes */
    bool adds_bos;                             /* default of tokenizer.ggml.add_bos_token */
} st_pre_row;

/* NULL: not found. */
const st_pre_row *st_pre_find(st_str name);
/* The names of all rows for a message, "gpt-2, llama-bpe, …", truncated to `size`. */
void st_pre_list(char *out, size_t size);

/* The compiled patterns of a row. */
typedef struct st_pre st_pre;

strata_status st_pre_new(const st_pre_row *row, st_pre **out, strata_error *error);
void st_pre_free(st_pre *pre);

/* Scratch for one thread that cuts texts. */
typedef struct st_pre_walk st_pre_walk;

strata_status st_pre_walk_new(const st_pre *pre, st_pre_walk **out, strata_error *error);
void st_pre_walk_free(st_pre_walk *walk);

typedef strata_status (*st_pre_piece)(void *context, st_str piece, strata_error *error);

/* Calls `piece` for each piece of `text` (valid UTF-8) in order. Stops at the first failure. */
strata_status st_pre_split(const st_pre *pre, st_pre_walk *walk, st_str text, st_pre_piece piece, void *context,
                           strata_error *error);

/* Appends `text` (valid UTF-8) in NFC. Linear in the length. False: no memory. */
bool st_nfc_append(st_buf *out, st_str text);
/* A quick check: true if the text is certainly in NFC. */
bool st_nfc_is_trivial(st_str text);

#endif
