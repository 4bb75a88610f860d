/* The tokenizer's parts, shared by the files of this folder alone. */
#ifndef ST_TOKENIZER_INTERNAL_H
#define ST_TOKENIZER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "tokenizer/pre.h"
#include "tokenizer/special.h"
#include "tokenizer/vocab.h"

/* The mark that stands for a blank in SentencePiece's and Gemma 4's vocabularies: U+2581. */
#define ST_BLANK_MARK "\xE2\x96\x81"
enum { ST_BLANK_MARK_LENGTH = 3, ST_END_IDS_MAX = 64 };

typedef struct st_encoder st_encoder;

/* What two neighbours become: the pair with the lowest order is merged first, the leftmost of equals. */
typedef struct st_merge_step {
    uint32_t order; /* UINT32_MAX: they do not merge */
    uint32_t id;
} st_merge_step;

#define ST_MERGE_NEVER ((st_merge_step){UINT32_MAX, ST_VOCAB_NONE})

/* A kind of tokenizer: one row (kinds.c). */
typedef struct st_kind {
    const char *model;      /* tokenizer.ggml.model */
    const char *name;       /* what st_tokenizer_kind says */
    bool uses_pre;          /* cut by a pre-tokeniser */
    bool uses_scores;       /* merges by scores; otherwise by the list of merges */
    bool byte_tokens;       /* has tokens <0xNN> */
    bool adds_bos;          /* when the file does not say */
    bool adds_blank;        /* a blank is put before a text, when the file does not say */
    /* Encodes a text without special tokens (valid UTF-8, not empty). */
    strata_status (*encode_text)(st_encoder *encoder, st_str text, strata_error *error);
    /* Fills the encoder's symbols from a piece. False: no memory. */
    bool (*start_piece)(st_encoder *encoder, st_str piece);
    st_merge_step (*find_pair)(const st_tokenizer *tokenizer, st_str piece, uint32_t left_id, uint32_t right_id,
                               size_t start, size_t end);
    /* Appends what a token of plain text stands for. */
    bool (*append_plain)(st_buf *out, st_str text);
} st_kind;

const st_kind *st_kind_find(st_str model);
void st_kind_list(char *out, size_t size); /* "gpt2, gemma4, llama" */

struct st_tokenizer {
    const st_gguf *gguf;
    const st_kind *kind;
    const st_pre_row *pre_row; /* NULL: the kind uses none */
    st_vocab vocab;
    st_pairs merges;
    st_specials specials;
    uint32_t byte_ids[256]; /* ST_VOCAB_NONE: no token */
    bool cut_after[256];    /* a blank mark after a character that ends with this byte begins a piece */
    uint32_t unknown_id;    /* ST_VOCAB_NONE: none; such bytes are left out */
    strata_token bos, eos;
    strata_token end_ids[ST_END_IDS_MAX];
    size_t end_count;
    bool adds_bos, adds_blank;
    pthread_mutex_t pre_lock;
    _Atomic(st_pre *) pre; /* compiled on first use, under the lock */
};

/* A piece's symbols: a row of ids and where each begins. After the last the piece's length follows. */
typedef struct st_symbols {
    uint32_t *ids;    /* [capacity] ST_VOCAB_NONE: text that is no token */
    uint32_t *starts; /* [capacity + 1] */
    uint32_t *orders; /* [capacity] of the pair that begins here */
    uint32_t *merged; /* [capacity] what that pair becomes */
    size_t count;
    size_t capacity;
    uint32_t *next, *previous; /* [long_capacity] for long pieces */
    uint64_t *heap;            /* [2 × long_capacity]: a merge takes one entry out and puts at most two in */
    size_t long_capacity;
} st_symbols;

typedef struct st_piece_cache st_piece_cache;

/* One call of encode. */
struct st_encoder {
    const st_tokenizer *tokenizer;
    st_tokens *out;
    st_symbols symbols;
    st_piece_cache *cache; /* NULL: the text is too short to pay for one */
    st_pre_walk *walk;
    st_buf text; /* the normalised text */
    st_buf piece;
};

/* merge.c: a piece (not empty, at most UINT32_MAX bytes) into ids, through the cache. */
strata_status st_merge_piece(st_encoder *encoder, st_str piece, strata_error *error);
st_piece_cache *st_piece_cache_new(void); /* st_free; NULL: no memory */
bool st_symbols_reserve(st_symbols *symbols, size_t count); /* before a piece's first add: what was is lost */
void st_symbols_free(st_symbols *symbols);

static inline void st_symbols_add(st_symbols *symbols, uint32_t id, size_t start)
{
    symbols->ids[symbols->count] = id;
    symbols->starts[symbols->count] = (uint32_t)start;
    symbols->count++;
}

/* bytes.c: GPT-2's alphabet, in which every byte is a printable character. */
uint32_t st_byte_letter(unsigned char byte);     /* the character of a byte */
int st_byte_of_letter(uint32_t code);            /* the byte of a character, or -1 */
bool st_bytes_append_letters(st_buf *out, st_str bytes);

/* tokenizer.c: the pre-tokeniser, compiled at the first call. */
strata_status st_tokenizer_pre_get(const st_tokenizer *tokenizer, const st_pre **out, strata_error *error);

#endif
