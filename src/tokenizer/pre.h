/* Pre-tokenisers: how a text is cut into pieces before byte-pair merging. One row each: its names in files, its
 * patterns, whether the text is normalised first. Knows no vocabulary. */
#ifndef ST_TOKENIZER_PRE_H
#define ST_TOKENIZER_PRE_H

#include "base/buf.h"
#include "strata.h"

enum { ST_PRE_PATTERNS_MAX = 3 };

typedef struct st_pre_row {
    const char *names[8];                      /* the first is the row's; a NULL ends the list */
    const char *patterns[ST_PRE_PATTERNS_MAX]; /* in turn: each cuts the pieces of the one before; NULL: no more */
    bool nfc;                                  /* the text is normalised to NFC first */
    bool whole_piece;                          /* a piece that is a token is not merged */
    bool adds_bos;                             /* what these vocabularies want when the file does not say */
} st_pre_row;

/* NULL if no row has this name. */
const st_pre_row *st_pre_find(st_str name);
/* The rows' names, for a message: "gpt-2, llama-bpe, …". Fills out[size], cut if need be. */
void st_pre_list(char *out, size_t size);

/* A row's patterns, compiled. */
typedef struct st_pre st_pre;

strata_status st_pre_new(const st_pre_row *row, st_pre **out, strata_error *error);
void st_pre_free(st_pre *pre);

/* The memory one walk over a text needs; not to be shared between threads. */
typedef struct st_pre_walk st_pre_walk;

strata_status st_pre_walk_new(const st_pre *pre, st_pre_walk **out, strata_error *error);
void st_pre_walk_free(st_pre_walk *walk);

typedef strata_status (*st_pre_piece)(void *context, st_str piece, strata_error *error);

/* Calls `piece` for the pieces of `text` (valid UTF-8) in order; they add up to it. Ends at the first failure. */
strata_status st_pre_split(const st_pre *pre, st_pre_walk *walk, st_str text, st_pre_piece piece, void *context,
                           strata_error *error);

/* Appends `text` (valid UTF-8) in NFC. Linear in the length. False: no memory. */
bool st_nfc_append(st_buf *out, st_str text);
/* Whether the text is sure to be in NFC already, judged quickly. */
bool st_nfc_is_trivial(st_str text);

#endif
