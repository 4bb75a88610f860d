/* Decodes ids to text. */
#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/internal.h"

/* A user-defined token is stored as plain text in GPT-2's vocabularies, and with space marks in the others. */
static bool append_bytes(const st_tokenizer *tokenizer, uint32_t id, st_buf *out)
{
    const st_kind *kind = tokenizer->kind;
    st_str text = st_vocab_text(&tokenizer->vocab, id);
    unsigned char type = tokenizer->vocab.types[id];
    if (type == ST_TOKEN_BYTE && kind->byte_tokens) return st_buf_append_char(out, (char)st_vocab_byte_of(text));
    bool coded = type == ST_TOKEN_NORMAL || type == ST_TOKEN_UNUSED || (type == ST_TOKEN_USER && kind->byte_tokens);
    bool ok = coded ? kind->append_plain(out, text) : st_buf_append_str(out, text);
    return ok && !out->failed;
}

static strata_status check_id(const st_tokenizer *tokenizer, strata_token id, strata_error *error)
{
    if (id >= 0 && (uint32_t)id < tokenizer->vocab.count) return STRATA_OK;
    return st_error_set(error, STRATA_INPUT, NULL, "token %d: expected 0 to %u", id, tokenizer->vocab.count - 1);
}

/* Removes what the failed call appended. */
static strata_status fail_memory(st_buf *out, size_t length, strata_error *error)
{
    out->length = length;
    out->failed = false;
    return st_error_memory(error, length, "the text of tokens");
}

/* Repairs the UTF-8 that was appended since `start`. Writes the repaired text behind it first; the buffer grows only if
 * it has no room for the worst case. */
static bool repair_from(st_buf *out, size_t start)
{
    enum { REPLACEMENT_BYTES = 3 };
    size_t length = out->length - start, end = out->length;
    if (length == 0 || st_utf8_valid_prefix(out->data + start, length) == length) return true;
    if (!st_buf_reserve(out, length * REPLACEMENT_BYTES)) return false;
    if (!st_utf8_repair(out, out->data + start, length)) return false;
    memmove(out->data + start, out->data + end, out->length - end);
    out->length -= length;
    return true;
}

/* Whether the first token's text begins with the space that SentencePiece adds to a text. */
static bool begins_with_mark(const st_tokenizer *tokenizer, uint32_t id)
{
    st_str text = st_vocab_text(&tokenizer->vocab, id);
    return tokenizer->adds_space && st_vocab_is_plain(&tokenizer->vocab, id) && text.length >= ST_SPACE_MARK_LENGTH &&
           memcmp(text.data, ST_SPACE_MARK, ST_SPACE_MARK_LENGTH) == 0;
}

strata_status st_tokenizer_decode_push(const st_tokenizer *tokenizer, st_decode_state *state, strata_token id,
                                       st_buf *out, strata_error *error)
{
    strata_status status = check_id(tokenizer, id, error);
    if (status != STRATA_OK) return status;
    size_t start = out->length;
    st_decode_state after = {.begun = true};
    st_buf_append(out, state->pending, state->pending_length);
    if (!append_bytes(tokenizer, (uint32_t)id, out)) return fail_memory(out, start, error);
    if (!state->begun && begins_with_mark(tokenizer, (uint32_t)id)) {
        /* Nothing is pending before the first token. */
        memmove(out->data + start, out->data + start + 1, out->length - start - 1);
        out->length--;
    }
    if (out->length > start) {
        after.pending_length = st_utf8_unfinished_tail(out->data + start, out->length - start);
        out->length -= after.pending_length;
        memcpy(after.pending, out->data + out->length, after.pending_length);
    }
    if (!repair_from(out, start)) return fail_memory(out, start, error);
    *state = after;
    return STRATA_OK;
}

strata_status st_tokenizer_decode_finish(st_decode_state *state, st_buf *out, strata_error *error)
{
    size_t before = out->length;
    if (!st_utf8_repair(out, state->pending, state->pending_length)) return fail_memory(out, before, error);
    *state = (st_decode_state){0};
    return STRATA_OK;
}

strata_status st_tokenizer_decode(const st_tokenizer *tokenizer, const strata_token *ids, size_t count, st_buf *out,
                                  strata_error *error)
{
    size_t before = out->length;
    st_decode_state state = {0};
    strata_status status = STRATA_OK;
    for (size_t i = 0; i < count && status == STRATA_OK; i++)
        status = st_tokenizer_decode_push(tokenizer, &state, ids[i], out, error);
    if (status == STRATA_OK) status = st_tokenizer_decode_finish(&state, out, error);
    if (status != STRATA_OK) out->length = before;
    return status;
}
