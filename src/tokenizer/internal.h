/* Internals of the tokenizer, for the files of this folder only. */
#ifndef ST_TOKENIZER_INTERNAL_H
#define ST_TOKENIZER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "tokenizer/pre.h"
#include "tokenizer/special.h"
#include "tokenizer/vocab.h"

/* U+2581, which replaces the space in the vocabularies of SentencePiece and Gemma 4. */
#define ST_SPACE_MARK "\xE2\x96\x81"
enum { ST_SPACE_MARK_LENGTH = 3, ST_END_IDS_MAX = 64 };

typedef struct st_encoder st_encoder;

/* The merge of two neighbouring symbols. The pair with the lowest order is merged first, the leftmost one of equals. */
typedef struct st_merge_step {
    uint32_t order; /* UINT32_MAX: the symbols do not merge */
    uint32_t id;
} st_merge_step;

#define ST_MERGE_NEVER ((st_merge_step){UINT32_MAX, ST_VOCAB_NONE})

/* A kind of tokenizer: a row of the table in kinds.c. */
typedef struct st_kind {
    const char *model;      /* tokenizer.ggml.model */
    const char *name;       /* the result of st_tokenizer_kind */
    bool uses_pre;          /* a pre-tokeniser cuts the text into pieces */
    bool uses_scores;       /* merges by scores; otherwise by the list of merges */
    bool byte_tokens;       /* has tokens <0xNN> */
    bool cuts_at_newlines;  /* a run of newlines is a piece of its own */
    bool adds_bos;          /* default of tokenizer.ggml.add_bos_token */
    bool adds_space;        /* default of tokenizer.ggml.add_space_prefix */
    /* Encodes a text without special tokens (valid UTF-8, not empty). */
    strata_status (*encode_text)(st_encoder *encoder, st_str text, strata_error *error);
    /* Fills the encoder's symbols from a piece. False: no memory. */
    bool (*start_piece)(st_encoder *encoder, st_str piece);
    st_merge_step (*find_pair)(const st_tokenizer *tokenizer, st_str piece, uint32_t left_id, uint32_t right_id,
                               size_t start, size_t end);
    /* Appends the bytes of a plain-text token. */
    bool (*append_plain)(st_buf *out, st_str text);
} st_kind;

const st_kind *st_kind_find(st_str model);
void st_kind_list(char *out, size_t size); /* "gpt2, gemma4, llama" */

struct st_tokenizer {
    const st_gguf *gguf;
    const st_kind *kind;
    const st_pre_row *pre_row; /* NULL: no pre-tokeniser */
    st_vocab vocab;
    st_pairs merges;
    st_specials specials;
    uint32_t byte_ids[256]; /* ST_VOCAB_NONE: no token */
    bool cut_after[256];    /* a space mark after a character that ends with this byte begins a piece */
    uint32_t unknown_id;    /* ST_VOCAB_NONE: bytes without a token are skipped */
    strata_token bos, eos;
    strata_token end_ids[ST_END_IDS_MAX];
    size_t end_count;
    bool adds_bos, adds_space;
    pthread_mutex_t pre_lock;
    _Atomic(st_pre *) pre; /* compiled on first use, under the lock */
};

/* The symbols of a piece: their ids and start offsets. starts[count] is the length of the piece. */
typedef struct st_symbols {
    uint32_t *ids;    /* [capacity] ST_VOCAB_NONE: not a token */
    uint32_t *starts; /* [capacity + 1] */
    uint32_t *orders; /* [capacity] of the pair that begins here */
    uint32_t *merged; /* [capacity] id of the merged pair */
    size_t count;
    size_t capacity;
    uint32_t *next, *previous; /* [long_capacity] for long pieces */
    uint64_t *heap;            /* [2 × long_capacity]: a merge pops one entry and pushes at most two */
    size_t long_capacity;
} st_symbols;

typedef struct st_piece_cache st_piece_cache;

/* The state of one st_tokenizer_encode. */
struct st_encoder {
    const st_tokenizer *tokenizer;
    st_tokens *out;
    st_symbols symbols;
    st_piece_cache *cache; /* NULL: the text is too short for one to be worth it */
    st_pre_walk *walk;
    st_buf text; /* the normalised text */
    st_buf piece;
};

/* merge.c: encodes a piece (not empty, at most UINT32_MAX bytes), using the cache. */
strata_status st_merge_piece(st_encoder *encoder, st_str piece, strata_error *error);
st_piece_cache *st_piece_cache_new(void); /* st_free; NULL: no memory */
bool st_symbols_reserve(st_symbols *symbols, size_t count); /* for a new piece: clears the symbols */
void st_symbols_free(st_symbols *symbols);

static inline void st_symbols_add(st_symbols *symbols, uint32_t id, size_t start)
{
    symbols->ids[symbols->count] = id;
    symbols->starts[symbols->count] = (uint32_t)start;
    symbols->count++;
}

/* bytes.c: GPT-2's byte alphabet, which maps every byte to a printable character. */
uint32_t st_byte_letter(unsigned char byte);     /* the character of a byte */
int st_byte_of_letter(uint32_t code);            /* the byte of a character, or -1 */
bool st_bytes_append_letters(st_buf *out, st_str bytes);

/* tokenizer.c: the pre-tokeniser, compiled by the first call. */
strata_status st_tokenizer_pre_get(const st_tokenizer *tokenizer, const st_pre **out, strata_error *error);

#endif
