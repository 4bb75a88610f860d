/* The kinds of tokenizer: one row each. */
#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/internal.h"

/* ---- GPT-2's byte-pair encoding: pieces of a pre-tokeniser, merged from single bytes ---------------------------- */

static strata_status bpe_piece(void *encoder, st_str piece, strata_error *error)
{
    return st_merge_piece(encoder, piece, error);
}

static strata_status bpe_encode_text(st_encoder *encoder, st_str text, strata_error *error)
{
    const st_tokenizer *tokenizer = encoder->tokenizer;
    const st_pre *pre;
    strata_status status = st_tokenizer_pre_get(tokenizer, &pre, error);
    if (status == STRATA_OK && !encoder->walk) status = st_pre_walk_new(pre, &encoder->walk, error);
    if (status != STRATA_OK) return status;
    if (tokenizer->pre_row->nfc && !st_nfc_is_trivial(text)) {
        encoder->text.length = 0;
        if (!st_nfc_append(&encoder->text, text)) return st_error_memory(error, text.length, "the text");
        text = (st_str){encoder->text.data, encoder->text.length};
    }
    return st_pre_split(pre, encoder->walk, text, bpe_piece, encoder, error);
}

/* Adds the token of the byte at `position`, or the unknown token; nothing where the vocabulary has neither. */
static void add_byte(st_encoder *encoder, st_str piece, size_t position)
{
    uint32_t id = encoder->tokenizer->byte_ids[(unsigned char)piece.data[position]];
    if (id == ST_VOCAB_NONE) id = encoder->tokenizer->unknown_id;
    if (id != ST_VOCAB_NONE) st_symbols_add(&encoder->symbols, id, position);
}

static bool bpe_start_piece(st_encoder *encoder, st_str piece)
{
    if (!st_symbols_reserve(&encoder->symbols, piece.length)) return false;
    for (size_t i = 0; i < piece.length; i++) add_byte(encoder, piece, i);
    return true;
}

static st_merge_step merge_by_list(const st_tokenizer *tokenizer, st_str piece, uint32_t left_id, uint32_t right_id,
                                   size_t start, size_t end)
{
    (void)piece, (void)start, (void)end;
    const st_pair *pair = st_pairs_find(&tokenizer->merges, left_id, right_id);
    return pair ? (st_merge_step){pair->order, pair->id} : ST_MERGE_NEVER;
}

/* A token with a character outside the byte alphabet is copied unchanged. */
static bool bpe_append_plain(st_buf *out, st_str text)
{
    size_t before = out->length, position = 0;
    while (position < text.length) {
        uint32_t code;
        position += st_utf8_decode(text.data + position, text.length - position, &code);
        int byte = st_byte_of_letter(code);
        if (byte < 0) {
            out->length = before;
            return st_buf_append_str(out, text);
        }
        if (!st_buf_append_char(out, (char)byte)) return false;
    }
    return true;
}

/* ---- spaces as marks: Gemma 4 and SentencePiece ------------------------------------------------------------------ */

static bool put_marks(st_buf *out, st_str text, bool mark_first)
{
    out->length = 0;
    if (mark_first) st_buf_append(out, ST_SPACE_MARK, ST_SPACE_MARK_LENGTH);
    size_t position = 0;
    while (position < text.length) {
        const char *space = memchr(text.data + position, ' ', text.length - position);
        size_t end = space ? (size_t)(space - text.data) : text.length;
        st_buf_append(out, text.data + position, end - position);
        if (space) st_buf_append(out, ST_SPACE_MARK, ST_SPACE_MARK_LENGTH);
        position = end + (space ? 1 : 0);
    }
    return !out->failed;
}

static bool marks_append_plain(st_buf *out, st_str text)
{
    size_t position = 0;
    while (position < text.length) {
        bool mark = text.length - position >= ST_SPACE_MARK_LENGTH &&
                    memcmp(text.data + position, ST_SPACE_MARK, ST_SPACE_MARK_LENGTH) == 0;
        if (!st_buf_append_char(out, mark ? ' ' : text.data[position])) return false;
        position += mark ? ST_SPACE_MARK_LENGTH : 1;
    }
    return true;
}

/* Whether a piece may begin at `position` > 0. No token spans this position, so cutting here does not change the
 * merges. */
static bool may_cut(const st_tokenizer *tokenizer, st_str text, size_t position)
{
    unsigned char before = (unsigned char)text.data[position - 1];
    if (tokenizer->kind->cuts_at_newlines && (before == '\n') != (text.data[position] == '\n')) return true;
    return tokenizer->cut_after[before] && text.length - position >= ST_SPACE_MARK_LENGTH &&
           memcmp(text.data + position, ST_SPACE_MARK, ST_SPACE_MARK_LENGTH) == 0;
}

static strata_status marks_encode_text(st_encoder *encoder, st_str text, strata_error *error)
{
    if (!put_marks(&encoder->text, text, encoder->tokenizer->adds_space))
        return st_error_memory(error, text.length, "the text");
    text = (st_str){encoder->text.data, encoder->text.length};
    size_t start = 0;
    for (size_t i = 1; i <= text.length; i++) {
        if (i < text.length && !may_cut(encoder->tokenizer, text, i)) continue;
        strata_status status = st_merge_piece(encoder, (st_str){text.data + start, i - start}, error);
        if (status != STRATA_OK) return status;
        start = i;
    }
    return STRATA_OK;
}

/* A character without a token becomes the tokens of its bytes. */
static bool gemma_start_piece(st_encoder *encoder, st_str piece)
{
    if (!st_symbols_reserve(&encoder->symbols, piece.length)) return false;
    size_t length;
    for (size_t i = 0; i < piece.length; i += length) {
        uint32_t code;
        length = st_utf8_decode(piece.data + i, piece.length - i, &code);
        uint32_t id = st_vocab_find_plain(&encoder->tokenizer->vocab, (st_str){piece.data + i, length});
        if (id != ST_VOCAB_NONE) st_symbols_add(&encoder->symbols, id, i);
        else
            for (size_t j = 0; j < length; j++) add_byte(encoder, piece, i + j);
    }
    return true;
}

static bool spm_start_piece(st_encoder *encoder, st_str piece)
{
    size_t count = 0, length;
    for (size_t i = 0; i < piece.length; i++) count += ((unsigned char)piece.data[i] & 0xC0) != 0x80;
    if (!st_symbols_reserve(&encoder->symbols, count)) return false;
    for (size_t i = 0; i < piece.length; i += length) {
        uint32_t code;
        length = st_utf8_decode(piece.data + i, piece.length - i, &code);
        uint32_t id = st_vocab_find_plain(&encoder->tokenizer->vocab, (st_str){piece.data + i, length});
        st_symbols_add(&encoder->symbols, id, i);
    }
    return true;
}

/* The highest score merges first. The bits of floats sort like the floats once negative ones are inverted. */
static st_merge_step merge_by_score(const st_tokenizer *tokenizer, st_str piece, uint32_t left_id, uint32_t right_id,
                                    size_t start, size_t end)
{
    (void)left_id, (void)right_id;
    uint32_t id = st_vocab_find_plain(&tokenizer->vocab, (st_str){piece.data + start, end - start});
    if (id == ST_VOCAB_NONE) return ST_MERGE_NEVER;
    float score = tokenizer->vocab.scores[id] + 0.0f; /* -0 and 0 are equal */
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (st_merge_step){~bits, id};
}

static const st_kind kinds[] = {
    {.model = "gpt2",
     .name = "bpe",
     .uses_pre = true,
     .encode_text = bpe_encode_text,
     .start_piece = bpe_start_piece,
     .find_pair = merge_by_list,
     .append_plain = bpe_append_plain},
    {.model = "gemma4",
     .name = "gemma4",
     .cuts_at_newlines = true,
     .byte_tokens = true,
     .adds_bos = true,
     .encode_text = marks_encode_text,
     .start_piece = gemma_start_piece,
     .find_pair = merge_by_list,
     .append_plain = marks_append_plain},
    {.model = "llama",
     .name = "spm",
     .uses_scores = true,
     .byte_tokens = true,
     .adds_bos = true,
     .adds_space = true,
     .encode_text = marks_encode_text,
     .start_piece = spm_start_piece,
     .find_pair = merge_by_score,
     .append_plain = marks_append_plain},
};

enum { KIND_COUNT = sizeof kinds / sizeof *kinds };

const st_kind *st_kind_find(st_str model)
{
    for (size_t i = 0; i < KIND_COUNT; i++)
        if (st_str_is(model, kinds[i].model)) return &kinds[i];
    return NULL;
}

void st_kind_list(char *out, size_t size)
{
    out[0] = '\0';
    for (size_t i = 0; i < KIND_COUNT; i++) st_error_list(out, size, kinds[i].model);
}
