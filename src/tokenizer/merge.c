/* Byte-pair merging: merges the best pair of a piece's symbols until no pair merges. Short pieces search for the best
 * pair each time; long pieces use a heap, in n log n. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/error.h"
#include "tokenizer/internal.h"

enum { SHORT_MAX = 48, CACHE_SLOTS = 8192, CACHE_TEXT_MAX = 24, CACHE_IDS_MAX = 5 };

/* Natural text repeats its words, so the ids of short pieces are cached while a text is encoded. */
typedef struct cache_slot {
    char text[CACHE_TEXT_MAX];
    unsigned char length; /* 0: empty */
    unsigned char count;
    strata_token ids[CACHE_IDS_MAX];
} cache_slot;

struct st_piece_cache {
    cache_slot slots[CACHE_SLOTS];
};

st_piece_cache *st_piece_cache_new(void)
{
    return st_alloc_zero(1, sizeof(st_piece_cache));
}

bool st_symbols_reserve(st_symbols *symbols, size_t count)
{
    symbols->count = 0;
    if (count <= symbols->capacity) return true;
    size_t capacity = 64, items;
    if (count > capacity && !st_add_size(count, count / 4, &capacity)) return false;
    if (!st_mul_size(capacity, 4, &items) || !st_add_size(items, 1, &items)) return false;
    uint32_t *block = st_alloc_array(items, sizeof *block);
    if (!block) return false;
    st_free(symbols->ids);
    symbols->ids = block;
    symbols->orders = block + capacity;
    symbols->merged = block + 2 * capacity;
    symbols->starts = block + 3 * capacity;
    symbols->capacity = capacity;
    return true;
}

static bool reserve_long(st_symbols *symbols)
{
    if (symbols->capacity <= symbols->long_capacity) return true;
    size_t bytes;
    if (!st_mul_size(symbols->capacity, 2 * sizeof *symbols->heap + 2 * sizeof *symbols->next, &bytes)) return false;
    uint64_t *heap = st_alloc(bytes);
    if (!heap) return false;
    st_free(symbols->heap);
    symbols->heap = heap;
    symbols->next = (uint32_t *)(heap + 2 * symbols->capacity);
    symbols->previous = symbols->next + symbols->capacity;
    symbols->long_capacity = symbols->capacity;
    return true;
}

void st_symbols_free(st_symbols *symbols)
{
    st_free(symbols->ids);
    st_free(symbols->heap);
    *symbols = (st_symbols){0};
}

/* Looks up the merge of the symbols `left` and `right`; `after` is the symbol behind them. */
static void look_up(const st_tokenizer *tokenizer, st_symbols *symbols, st_str piece, size_t left, size_t right,
                    size_t after)
{
    st_merge_step found = tokenizer->kind->find_pair(tokenizer, piece, symbols->ids[left], symbols->ids[right],
                                                     symbols->starts[left], symbols->starts[after]);
    symbols->orders[left] = found.order;
    symbols->merged[left] = found.id;
}

static void remove_symbol(st_symbols *symbols, size_t index)
{
    size_t rest = symbols->count - index - 1;
    memmove(symbols->ids + index, symbols->ids + index + 1, rest * sizeof *symbols->ids);
    memmove(symbols->orders + index, symbols->orders + index + 1, rest * sizeof *symbols->orders);
    memmove(symbols->merged + index, symbols->merged + index + 1, rest * sizeof *symbols->merged);
    memmove(symbols->starts + index, symbols->starts + index + 1, (rest + 1) * sizeof *symbols->starts);
    symbols->count--;
}

static void merge_short(const st_tokenizer *tokenizer, st_symbols *symbols, st_str piece)
{
    for (size_t i = 0; i + 1 < symbols->count; i++) look_up(tokenizer, symbols, piece, i, i + 1, i + 2);
    while (symbols->count > 1) {
        size_t best = 0, pairs = symbols->count - 1;
        for (size_t i = 1; i < pairs; i++)
            if (symbols->orders[i] < symbols->orders[best]) best = i;
        if (symbols->orders[best] == UINT32_MAX) break;
        symbols->ids[best] = symbols->merged[best];
        remove_symbol(symbols, best + 1);
        if (best + 1 < symbols->count) look_up(tokenizer, symbols, piece, best, best + 1, best + 2);
        if (best > 0) look_up(tokenizer, symbols, piece, best - 1, best, best + 1);
    }
}

/* A heap entry is order and position in one number: the lowest is the best pair, and the leftmost of equal ones. */
static void heap_sink(uint64_t *heap, size_t count, size_t place)
{
    uint64_t value = heap[place];
    for (size_t child; (child = 2 * place + 1) < count; place = child) {
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (value <= heap[child]) break;
        heap[place] = heap[child];
    }
    heap[place] = value;
}

static void heap_push(uint64_t *heap, size_t *count, uint64_t value)
{
    size_t place = (*count)++;
    for (size_t parent; place > 0; place = parent) {
        parent = (place - 1) / 2;
        if (heap[parent] <= value) break;
        heap[place] = heap[parent];
    }
    heap[place] = value;
}

static uint64_t heap_pop(uint64_t *heap, size_t *count)
{
    uint64_t least = heap[0];
    heap[0] = heap[--*count];
    if (*count) heap_sink(heap, *count, 0);
    return least;
}

static void push_pair(st_symbols *symbols, size_t *heap_count, size_t left)
{
    if (symbols->orders[left] != UINT32_MAX)
        heap_push(symbols->heap, heap_count, (uint64_t)symbols->orders[left] << 32 | left);
}

static size_t start_heap(const st_tokenizer *tokenizer, st_symbols *symbols, st_str piece)
{
    size_t heap_count = 0;
    for (size_t i = 0; i < symbols->count; i++) {
        symbols->next[i] = (uint32_t)(i + 1);
        symbols->previous[i] = (uint32_t)(i - 1); /* unused for the first */
        symbols->orders[i] = UINT32_MAX;
        if (i + 1 < symbols->count) look_up(tokenizer, symbols, piece, i, i + 1, i + 2);
        if (symbols->orders[i] != UINT32_MAX) symbols->heap[heap_count++] = (uint64_t)symbols->orders[i] << 32 | i;
    }
    for (size_t i = heap_count / 2; i > 0; i--) heap_sink(symbols->heap, heap_count, i - 1);
    return heap_count;
}

/* An outdated heap entry is recognised by its order, which differs from the symbol's. */
static void merge_long(const st_tokenizer *tokenizer, st_symbols *symbols, st_str piece)
{
    size_t end = symbols->count, heap_count = start_heap(tokenizer, symbols, piece);
    while (heap_count) {
        uint64_t best = heap_pop(symbols->heap, &heap_count);
        size_t left = (uint32_t)best;
        if (symbols->orders[left] != best >> 32) continue;
        size_t right = symbols->next[left], after = symbols->next[right];
        symbols->ids[left] = symbols->merged[left];
        symbols->orders[left] = symbols->orders[right] = UINT32_MAX;
        symbols->next[left] = (uint32_t)after;
        if (after < end) {
            symbols->previous[after] = (uint32_t)left;
            look_up(tokenizer, symbols, piece, left, after, symbols->next[after]);
            push_pair(symbols, &heap_count, left);
        }
        if (left > 0) {
            size_t before = symbols->previous[left];
            look_up(tokenizer, symbols, piece, before, left, after);
            push_pair(symbols, &heap_count, before);
        }
    }
    size_t count = 0;
    for (size_t i = 0; i < end; i = symbols->next[i]) { /* next[i] > i ≥ count: reads stay ahead of writes */
        symbols->ids[count] = symbols->ids[i];
        symbols->starts[count++] = symbols->starts[i];
    }
    symbols->starts[count] = symbols->starts[end];
    symbols->count = count;
}

static bool push_bytes(st_encoder *encoder, st_str bytes)
{
    for (size_t i = 0; i < bytes.length; i++) {
        uint32_t id = encoder->tokenizer->byte_ids[(unsigned char)bytes.data[i]];
        if (id == ST_VOCAB_NONE) id = encoder->tokenizer->unknown_id;
        if (id != ST_VOCAB_NONE && !st_tokens_push(encoder->out, (strata_token)id)) return false;
    }
    return true;
}

static bool push_symbols(st_encoder *encoder, st_str piece)
{
    const st_symbols *symbols = &encoder->symbols;
    for (size_t i = 0; i < symbols->count; i++) {
        st_str text = {piece.data + symbols->starts[i], symbols->starts[i + 1] - symbols->starts[i]};
        bool pushed = symbols->ids[i] == ST_VOCAB_NONE ? push_bytes(encoder, text)
                                                       : st_tokens_push(encoder->out, (strata_token)symbols->ids[i]);
        if (!pushed) return false;
    }
    return true;
}

/* Pushes the token that equals the whole piece, if the pre-tokeniser's row has whole_piece. */
static bool push_whole(st_encoder *encoder, st_str piece, bool *pushed)
{
    const st_tokenizer *tokenizer = encoder->tokenizer;
    *pushed = false;
    if (!tokenizer->pre_row || !tokenizer->pre_row->whole_piece) return true;
    if (piece.length > tokenizer->vocab.text_length_max) return true;
    encoder->piece.length = 0;
    if (!st_bytes_append_letters(&encoder->piece, piece)) return false;
    uint32_t id = st_vocab_find_plain(&tokenizer->vocab, (st_str){encoder->piece.data, encoder->piece.length});
    /* User-defined tokens are matched only as special tokens, so that a guard can prevent it. */
    if (id == ST_VOCAB_NONE || tokenizer->vocab.types[id] != ST_TOKEN_NORMAL) return true;
    *pushed = true;
    return st_tokens_push(encoder->out, (strata_token)id);
}

static bool merge(st_encoder *encoder, st_str piece)
{
    bool pushed;
    st_symbols *symbols = &encoder->symbols;
    if (!push_whole(encoder, piece, &pushed)) return false;
    if (pushed) return true;
    if (!encoder->tokenizer->kind->start_piece(encoder, piece)) return false;
    symbols->starts[symbols->count] = (uint32_t)piece.length;
    if (symbols->count <= SHORT_MAX) {
        merge_short(encoder->tokenizer, symbols, piece);
    } else {
        if (!reserve_long(symbols)) return false;
        merge_long(encoder->tokenizer, symbols, piece);
    }
    return push_symbols(encoder, piece);
}

static bool push_cached(st_encoder *encoder, const cache_slot *slot)
{
    for (size_t i = 0; i < slot->count; i++)
        if (!st_tokens_push(encoder->out, slot->ids[i])) return false;
    return true;
}

static void cache_store(cache_slot *slot, st_str piece, const strata_token *ids, size_t count)
{
    if (count > CACHE_IDS_MAX) return;
    memcpy(slot->text, piece.data, piece.length);
    slot->length = (unsigned char)piece.length;
    slot->count = (unsigned char)count;
    if (count) memcpy(slot->ids, ids, count * sizeof *ids);
}

strata_status st_merge_piece(st_encoder *encoder, st_str piece, strata_error *error)
{
    cache_slot *slot = NULL;
    if (encoder->cache && piece.length <= CACHE_TEXT_MAX) {
        uint64_t hash = st_vocab_hash(encoder->tokenizer->vocab.seed, piece.data, piece.length);
        slot = &encoder->cache->slots[hash % CACHE_SLOTS];
    }
    size_t before = encoder->out->count;
    bool hit = slot && slot->length == piece.length && memcmp(slot->text, piece.data, piece.length) == 0;
    bool done = hit ? push_cached(encoder, slot) : merge(encoder, piece);
    if (!done) return st_error_memory(error, piece.length, "a piece of the text");
    if (slot && !hit) cache_store(slot, piece, encoder->out->ids + before, encoder->out->count - before);
    return STRATA_OK;
}
