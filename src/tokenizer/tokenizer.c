#include "tokenizer/tokenizer.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/internal.h"

/* Texts shorter than this are encoded without a cache of pieces. */
enum { CACHED_TEXT_MIN = 4096 };

/* A space becomes three bytes, and offsets in a piece have 32 bits. */
#define TEXT_LENGTH_MAX ((size_t)1 << 30)

bool st_tokens_push(st_tokens *tokens, strata_token id)
{
    if (tokens->count == tokens->capacity) {
        size_t capacity = 64, bytes;
        if (tokens->capacity && !st_mul_size(tokens->capacity, 2, &capacity)) return false;
        if (!st_mul_size(capacity, sizeof *tokens->ids, &bytes)) return false;
        strata_token *ids = st_realloc(tokens->ids, bytes);
        if (!ids) return false;
        tokens->ids = ids;
        tokens->capacity = capacity;
    }
    tokens->ids[tokens->count++] = id;
    return true;
}

void st_tokens_free(st_tokens *tokens)
{
    st_free(tokens->ids);
    *tokens = (st_tokens){0};
}

strata_status st_tokenizer_pre_get(const st_tokenizer *tokenizer, const st_pre **out, strata_error *error)
{
    /* The only part of a tokenizer that changes after its creation, under the lock. */
    st_tokenizer *changing = (st_tokenizer *)(uintptr_t)tokenizer;
    st_pre *pre = atomic_load_explicit(&changing->pre, memory_order_acquire);
    strata_status status = STRATA_OK;
    if (!pre) {
        pthread_mutex_lock(&changing->pre_lock);
        pre = atomic_load_explicit(&changing->pre, memory_order_relaxed);
        if (!pre) status = st_pre_new(tokenizer->pre_row, &pre, error);
        if (status == STRATA_OK) atomic_store_explicit(&changing->pre, pre, memory_order_release);
        pthread_mutex_unlock(&changing->pre_lock);
    }
    if (status == STRATA_OK) *out = pre;
    return status;
}

static strata_status add_token(st_encoder *encoder, uint32_t id, strata_error *error)
{
    if (st_tokens_push(encoder->out, (strata_token)id)) return STRATA_OK;
    return st_error_memory(error, sizeof id, "the tokens");
}

/* Finds the special tokens and encodes the text between them. */
static strata_status encode_valid(st_encoder *encoder, st_str text, const st_encode_options *options,
                                  const unsigned char *foreign, strata_error *error)
{
    const st_tokenizer *tokenizer = encoder->tokenizer;
    strata_status status = STRATA_OK;
    size_t start = 0, position = options->plain || tokenizer->specials.count == 0 ? text.length : 0;
    while (position < text.length && status == STRATA_OK) {
        uint32_t id;
        size_t length = 0;
        if (tokenizer->specials.roots[(unsigned char)text.data[position]])
            length = st_specials_match(&tokenizer->specials, text, position, options, foreign, &id);
        if (length == 0) {
            position++;
            continue;
        }
        if (position > start)
            status = tokenizer->kind->encode_text(encoder, (st_str){text.data + start, position - start}, error);
        if (status == STRATA_OK) status = add_token(encoder, id, error);
        start = position += length;
    }
    if (status == STRATA_OK && start < text.length)
        status = tokenizer->kind->encode_text(encoder, (st_str){text.data + start, text.length - start}, error);
    return status;
}

/* Replaces invalid UTF-8 by U+FFFD, and adjusts the map of foreign bytes. A replacement is foreign if any of the bytes
 * that it replaces is. */
static bool repair(st_str text, const unsigned char *foreign, st_buf *fixed, st_buf *fixed_foreign)
{
    if (!foreign) return st_utf8_repair(fixed, text.data, text.length);
    size_t position = 0;
    while (position < text.length) {
        size_t valid = st_utf8_valid_prefix(text.data + position, text.length - position);
        st_buf_append(fixed, text.data + position, valid);
        st_buf_append(fixed_foreign, foreign + position, valid);
        position += valid;
        if (position == text.length) break;
        uint32_t code;
        size_t bad = st_utf8_decode(text.data + position, text.length - position, &code);
        char mark = 0;
        for (size_t i = 0; i < bad; i++) mark |= (char)(foreign[position + i] != 0);
        st_buf_append(fixed, "\xEF\xBF\xBD", 3);
        for (int i = 0; i < 3; i++) st_buf_append_char(fixed_foreign, mark);
        position += bad;
    }
    return !fixed->failed && !fixed_foreign->failed;
}

strata_status st_tokenizer_encode(const st_tokenizer *tokenizer, st_str text, const st_encode_options *options,
                                  st_tokens *out, strata_error *error)
{
    static const st_encode_options no_options = {0};
    if (!options) options = &no_options;
    if (options->guard && options->guard->tokenizer != tokenizer)
        return st_error_set(error, STRATA_INPUT, NULL, "the guard was made for another tokenizer");
    if (text.length > TEXT_LENGTH_MAX)
        return st_error_set(error, STRATA_LIMIT, "give the text in parts",
                            "the text: expected at most %zu bytes, found %zu", TEXT_LENGTH_MAX, text.length);

    strata_status status = STRATA_OK;
    st_encoder encoder = {.tokenizer = tokenizer, .out = out};
    st_buf fixed = {0}, fixed_foreign = {0};
    const unsigned char *foreign = options->foreign;
    size_t before = out->count;
    if (text.length > 0 && st_utf8_valid_prefix(text.data, text.length) < text.length) {
        if (!repair(text, foreign, &fixed, &fixed_foreign)) {
            status = st_error_memory(error, text.length, "the text");
            goto out;
        }
        text = (st_str){fixed.data, fixed.length};
        if (foreign) foreign = (const unsigned char *)fixed_foreign.data;
    }
    if (text.length >= CACHED_TEXT_MIN) {
        encoder.cache = st_piece_cache_new();
        if (!encoder.cache) {
            status = st_error_memory(error, text.length, "the text");
            goto out;
        }
    }
    status = encode_valid(&encoder, text, options, foreign, error);
out:
    if (status != STRATA_OK) out->count = before;
    st_symbols_free(&encoder.symbols);
    st_free(encoder.cache);
    st_pre_walk_free(encoder.walk);
    st_buf_free(&encoder.text);
    st_buf_free(&encoder.piece);
    st_buf_free(&fixed);
    st_buf_free(&fixed_foreign);
    return status;
}

strata_status st_token_guard_new(const st_tokenizer *tokenizer, st_str template_text, st_token_guard **out,
                                 strata_error *error)
{
    size_t bytes = sizeof(st_token_guard) + (tokenizer->specials.count + 7) / 8;
    st_token_guard *guard = st_alloc_zero(1, bytes);
    if (!guard) return st_error_memory(error, bytes, "the guard of special tokens");
    guard->tokenizer = tokenizer;
    st_specials_guard(&tokenizer->specials, &tokenizer->vocab, template_text, guard);
    *out = guard;
    return STRATA_OK;
}

void st_token_guard_free(st_token_guard *guard)
{
    st_free(guard);
}

static bool in_range(const st_tokenizer *tokenizer, strata_token id)
{
    return id >= 0 && (uint32_t)id < tokenizer->vocab.count;
}

size_t st_tokenizer_vocab_size(const st_tokenizer *tokenizer)
{
    return tokenizer->vocab.count;
}

const char *st_tokenizer_kind(const st_tokenizer *tokenizer)
{
    return tokenizer->kind->name;
}

const char *st_tokenizer_pre(const st_tokenizer *tokenizer)
{
    return tokenizer->pre_row ? tokenizer->pre_row->names[0] : "none";
}

st_str st_tokenizer_text(const st_tokenizer *tokenizer, strata_token id)
{
    return in_range(tokenizer, id) ? st_vocab_text(&tokenizer->vocab, (uint32_t)id) : ST_STR("");
}

st_token_type st_tokenizer_type(const st_tokenizer *tokenizer, strata_token id)
{
    return in_range(tokenizer, id) ? (st_token_type)tokenizer->vocab.types[id] : ST_TOKEN_UNUSED;
}

strata_token st_tokenizer_bos(const st_tokenizer *tokenizer)
{
    return tokenizer->bos;
}

strata_token st_tokenizer_eos(const st_tokenizer *tokenizer)
{
    return tokenizer->eos;
}

bool st_tokenizer_adds_bos(const st_tokenizer *tokenizer)
{
    return tokenizer->adds_bos;
}

const strata_token *st_tokenizer_ends(const st_tokenizer *tokenizer, size_t *count)
{
    *count = tokenizer->end_count;
    return tokenizer->end_ids;
}

bool st_tokenizer_is_end(const st_tokenizer *tokenizer, strata_token id)
{
    for (size_t i = 0; i < tokenizer->end_count; i++)
        if (tokenizer->end_ids[i] == id) return true;
    return false;
}
