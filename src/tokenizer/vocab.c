#include "tokenizer/vocab.h"

#include <math.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "base/map.h"

#define KEY_TOKENS "tokenizer.ggml.tokens"
#define KEY_TYPES "tokenizer.ggml.token_type"
#define KEY_SCORES "tokenizer.ggml.scores"
#define KEY_MERGES "tokenizer.ggml.merges"

static const char broken_hint[] = "the vocabulary is broken: convert or download the file again";

uint64_t st_vocab_hash(uint64_t seed, const char *text, size_t length)
{
    uint64_t hash = seed ^ length, word;
    for (; length >= 8; text += 8, length -= 8) {
        memcpy(&word, text, 8);
        hash = st_hash_fold(hash ^ word, 0x9FB21C651E98DF25u);
    }
    word = 0;
    for (size_t i = 0; i < length; i++) word = word << 8 | (unsigned char)text[i];
    return st_hash_fold(hash ^ word ^ 0x8BB84B93962EACC9u, 0x9E3779B97F4A7C15u ^ seed);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

int st_vocab_byte_of(st_str text)
{
    if (text.length != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>') return -1;
    int high = hex_digit(text.data[3]), low = hex_digit(text.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* The slot of the token with this text, or the empty slot for it. */
static size_t table_place(const st_vocab *vocab, st_str text, uint64_t hash)
{
    uint64_t tag = hash >> 32 << 32;
    for (size_t i = (size_t)hash & vocab->table_mask;; i = (i + 1) & vocab->table_mask) {
        uint64_t entry = vocab->table[i];
        if (entry == 0) return i;
        if (((entry ^ tag) >> 32) == 0 && st_str_equal(st_vocab_text(vocab, (uint32_t)entry - 1), text)) return i;
    }
}

uint32_t st_vocab_find(const st_vocab *vocab, st_str text)
{
    if (text.length > vocab->text_length_max) return ST_VOCAB_NONE;
    size_t i = table_place(vocab, text, st_vocab_hash(vocab->seed, text.data, text.length));
    return (uint32_t)vocab->table[i] - 1; /* 0 - 1: none */
}

uint32_t st_vocab_find_plain(const st_vocab *vocab, st_str text)
{
    uint32_t id = st_vocab_find(vocab, text);
    return id != ST_VOCAB_NONE && st_vocab_is_plain(vocab, id) ? id : ST_VOCAB_NONE;
}

/* Real vocabularies may have the same text twice: the first token is found. */
static strata_status build_table(st_vocab *vocab, strata_error *error)
{
    size_t capacity = 16;
    while (capacity <= (size_t)vocab->count + vocab->count / 3) capacity *= 2;
    vocab->table = st_alloc_zero(capacity, sizeof *vocab->table);
    if (!vocab->table) return st_error_memory(error, capacity * sizeof *vocab->table, "the vocabulary's table");
    vocab->table_mask = capacity - 1;
    vocab->seed = st_hash_bytes("vocabulary", 10);
    for (uint32_t id = 0; id < vocab->count; id++) {
        st_str text = st_vocab_text(vocab, id);
        uint64_t hash = st_vocab_hash(vocab->seed, text.data, text.length);
        size_t i = table_place(vocab, text, hash);
        if (vocab->table[i] == 0) vocab->table[i] = hash >> 32 << 32 | (id + 1);
    }
    return STRATA_OK;
}

static strata_status load_tokens(st_vocab *vocab, const st_gguf *gguf, strata_error *error)
{
    const st_gguf_key *array = NULL;
    strata_status status = st_gguf_get_array(gguf, KEY_TOKENS, ST_GGUF_STRING, &array, error);
    if (status != STRATA_OK) return status;
    if (!array)
        return st_error_set(error, STRATA_FORMAT, broken_hint, "%s: key %s: expected an array, found none",
                            st_gguf_path(gguf), KEY_TOKENS);
    if (array->count == 0 || array->count > ST_VOCAB_TOKENS_MAX)
        return st_error_set(error, STRATA_FORMAT, broken_hint, "%s: key %s: expected 1 to %d tokens, found %llu",
                            st_gguf_path(gguf), KEY_TOKENS, ST_VOCAB_TOKENS_MAX, (unsigned long long)array->count);
    if (array->data_bytes > UINT32_MAX)
        return st_error_set(error, STRATA_FORMAT, broken_hint, "%s: key %s: expected less than 4 GiB, found %zu bytes",
                            st_gguf_path(gguf), KEY_TOKENS, array->data_bytes);
    size_t count = (size_t)array->count;
    vocab->base = (const char *)array->data;
    vocab->places = st_alloc_array(count, sizeof *vocab->places);
    if (!vocab->places) return st_error_memory(error, count * sizeof *vocab->places, "the vocabulary");

    size_t cursor = 0;
    st_str text;
    for (; vocab->count < count && st_gguf_next_str(array, &cursor, &text); vocab->count++) {
        vocab->places[vocab->count] = (st_vocab_text_place){(uint32_t)(text.data - vocab->base), (uint32_t)text.length};
        if (text.length > vocab->text_length_max) vocab->text_length_max = text.length;
    }
    if (vocab->count < count)
        return st_error_set(error, STRATA_FORMAT, broken_hint, "%s: key %s: expected %zu tokens, found %u",
                            st_gguf_path(gguf), KEY_TOKENS, count, vocab->count);
    return build_table(vocab, error);
}

/* Arrays of types and scores have one item per token. */
static strata_status check_count(const st_vocab *vocab, const st_gguf *gguf, const st_gguf_key *array, const char *name,
                                 strata_error *error)
{
    if (array->count == vocab->count) return STRATA_OK;
    return st_error_set(error, STRATA_FORMAT, broken_hint, "%s: key %s: expected %u items, one per token, found %llu",
                        st_gguf_path(gguf), name, vocab->count, (unsigned long long)array->count);
}

static strata_status load_types(st_vocab *vocab, const st_gguf *gguf, strata_error *error)
{
    const st_gguf_key *array = NULL;
    strata_status status = st_gguf_get_array(gguf, KEY_TYPES, ST_GGUF_I64, &array, error);
    if (status != STRATA_OK) return status;
    vocab->types = st_alloc(vocab->count);
    if (!vocab->types) return st_error_memory(error, vocab->count, "the tokens' types");
    memset(vocab->types, ST_TOKEN_NORMAL, vocab->count);
    if (!array) return STRATA_OK;
    status = check_count(vocab, gguf, array, KEY_TYPES, error);
    if (status != STRATA_OK) return status;
    vocab->has_types = true;
    for (uint32_t id = 0; id < vocab->count; id++) {
        int64_t type = st_gguf_item_i64(array, id);
        if (type < 0 || type > ST_TOKEN_BYTE)
            return st_error_set(error, STRATA_FORMAT, broken_hint,
                                "%s: key %s[%u]: expected a type from 0 to %d, found %lld",
                                st_gguf_path(gguf), KEY_TYPES, id, ST_TOKEN_BYTE, (long long)type);
        vocab->types[id] = type ? (unsigned char)type : ST_TOKEN_NORMAL; /* 0: the format's "undefined" */
    }
    return STRATA_OK;
}

static strata_status load_scores(st_vocab *vocab, const st_gguf *gguf, strata_error *error)
{
    const st_gguf_key *array = NULL;
    strata_status status = st_gguf_get_array(gguf, KEY_SCORES, ST_GGUF_F32, &array, error);
    if (status != STRATA_OK || !array) return status;
    status = check_count(vocab, gguf, array, KEY_SCORES, error);
    if (status != STRATA_OK) return status;
    vocab->scores = st_alloc_array(vocab->count, sizeof *vocab->scores);
    if (!vocab->scores) return st_error_memory(error, vocab->count * sizeof *vocab->scores, "the tokens' scores");
    for (uint32_t id = 0; id < vocab->count; id++) {
        vocab->scores[id] = (float)st_gguf_item_f64(array, id);
        if (isnan(vocab->scores[id]))
            return st_error_set(error, STRATA_FORMAT, broken_hint, "%s: key %s[%u]: expected a number, found NaN",
                                st_gguf_path(gguf), KEY_SCORES, id);
    }
    return STRATA_OK;
}

strata_status st_vocab_load(st_vocab *vocab, const st_gguf *gguf, strata_error *error)
{
    strata_status status = load_tokens(vocab, gguf, error);
    if (status == STRATA_OK) status = load_types(vocab, gguf, error);
    if (status == STRATA_OK) status = load_scores(vocab, gguf, error);
    return status;
}

void st_vocab_free(st_vocab *vocab)
{
    st_free(vocab->places);
    st_free(vocab->types);
    st_free(vocab->scores);
    st_free(vocab->table);
    *vocab = (st_vocab){0};
}

/* Looks up the token of a merged pair. Vocabularies list the merges to one token in a row, so the last result is tried
 * first. */
static uint32_t find_result(const st_vocab *vocab, st_str left, st_str right, uint32_t last)
{
    char joined[512];
    size_t length = left.length + right.length; /* no overflow: both are parts of one string */
    if (last != ST_VOCAB_NONE) {
        st_str text = st_vocab_text(vocab, last);
        if (text.length == length && memcmp(text.data, left.data, left.length) == 0 &&
            memcmp(text.data + left.length, right.data, right.length) == 0)
            return last;
    }
    if (length > vocab->text_length_max) return ST_VOCAB_NONE;
    char *copy = length <= sizeof joined ? joined : st_alloc(length);
    if (!copy) return ST_VOCAB_NONE - 1;
    memcpy(copy, left.data, left.length);
    memcpy(copy + left.length, right.data, right.length);
    uint32_t id = st_vocab_find(vocab, (st_str){copy, length});
    if (copy != joined) st_free(copy);
    return id;
}

/* Merges that are parsed but not yet in the table, while their slots are prefetched. */
typedef struct merge_queue {
    struct {
        uint32_t left, right, order, id;
    } items[32];
    size_t count;
    uint32_t last;  /* the previous result */
    size_t skipped; /* merges that name a token the vocabulary does not have */
} merge_queue;

/* The first of two equal merges counts. */
static void flush_merges(merge_queue *queue, st_pairs *out)
{
    for (size_t i = 0; i < queue->count; i++)
        st_pairs_add(out, queue->items[i].left, queue->items[i].right, queue->items[i].order, queue->items[i].id);
    queue->count = 0;
}

/* A merge whose tokens or result the vocabulary does not have can never apply: it is skipped. */
static strata_status add_merge(const st_vocab *vocab, const st_gguf *gguf, size_t index, st_str merge,
                               merge_queue *queue, st_pairs *out, strata_error *error)
{
    const char *space = merge.length > 1 ? memchr(merge.data + 1, ' ', merge.length - 1) : NULL;
    if (!space || space + 1 == merge.data + merge.length) {
        if (merge.length > 80) merge.length = 80;
        return st_error_set(error, STRATA_FORMAT, broken_hint,
                            "%s: key %s[%zu]: expected two tokens with a space between them, found '%.*s'",
                            st_gguf_path(gguf), KEY_MERGES, index, ST_STR_ARG(merge));
    }
    st_str left = {merge.data, (size_t)(space - merge.data)};
    st_str right = {space + 1, merge.length - left.length - 1};
    uint32_t left_id = st_vocab_find(vocab, left), right_id = st_vocab_find(vocab, right);
    bool known = left_id != ST_VOCAB_NONE && right_id != ST_VOCAB_NONE;
    uint32_t result = known ? find_result(vocab, left, right, queue->last) : ST_VOCAB_NONE;
    if (result == ST_VOCAB_NONE - 1) return st_error_memory(error, merge.length, KEY_MERGES);
    if (result == ST_VOCAB_NONE) {
        queue->skipped++;
        return STRATA_OK;
    }
    queue->last = result;
    if (!st_vocab_is_plain(vocab, result)) return STRATA_OK; /* plain text must never merge into a control token */
    st_pairs_prefetch(out, left_id, right_id);
    queue->items[queue->count].left = left_id;
    queue->items[queue->count].right = right_id;
    queue->items[queue->count].order = (uint32_t)index;
    queue->items[queue->count++].id = result;
    if (queue->count == sizeof queue->items / sizeof *queue->items) flush_merges(queue, out);
    return STRATA_OK;
}

strata_status st_vocab_load_merges(const st_vocab *vocab, const st_gguf *gguf, st_pairs *out, strata_error *error)
{
    const st_gguf_key *array = NULL;
    strata_status status = st_gguf_get_array(gguf, KEY_MERGES, ST_GGUF_STRING, &array, error);
    if (status != STRATA_OK) return status;
    if (!array)
        return st_error_set(error, STRATA_FORMAT, broken_hint, "%s: key %s: expected an array, found none",
                            st_gguf_path(gguf), KEY_MERGES);
    if (array->count > ST_VOCAB_MERGES_MAX)
        return st_error_set(error, STRATA_FORMAT, broken_hint, "%s: key %s: expected at most %d merges, found %llu",
                            st_gguf_path(gguf), KEY_MERGES, ST_VOCAB_MERGES_MAX, (unsigned long long)array->count);
    if (!st_pairs_reserve(out, (size_t)array->count))
        return st_error_memory(error, (size_t)array->count * sizeof(st_pair), "the merges");
    size_t cursor = 0, index = 0;
    st_str merge;
    merge_queue queue = {.last = ST_VOCAB_NONE};
    for (; status == STRATA_OK && index < array->count && st_gguf_next_str(array, &cursor, &merge); index++)
        status = add_merge(vocab, gguf, index, merge, &queue, out, error);
    flush_merges(&queue, out);
    if (status == STRATA_OK && queue.skipped)
        st_log(ST_LOG_WARN, "%s: key %s: skipped %zu of %zu merges: they name tokens that the vocabulary does not have",
               st_gguf_path(gguf), KEY_MERGES, queue.skipped, index);
    return status;
}
