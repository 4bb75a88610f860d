/* What a kernel's launch function gets: one operation with addresses, for C and CUDA. The caller owns everything in it;
 * nothing is kept after the call. */
#ifndef ST_CUDA_CALL_H
#define ST_CUDA_CALL_H

#ifdef __cplusplus
extern "C" {
#endif

#include "backend/backend.h"
#include "sampler/candidates.h"

enum {
    ST_CUDA_ALIGNMENT = 256,
    ST_CUDA_TABLES = 3, /* gate, up and down of an EXPERTS operation */
};

/* Bytes of the copies of its tables, at the start of its scratch. */
static inline size_t st_cuda_tables_bytes(uint32_t experts)
{
    size_t bytes = ST_CUDA_TABLES * experts * sizeof(void *);
    return (bytes + ST_CUDA_ALIGNMENT - 1) / ST_CUDA_ALIGNMENT * ST_CUDA_ALIGNMENT;
}

enum {
    ST_CUDA_FEW_ROWS = 64,  /* launches of at most that many rows compute sums in norms, and combine attention in its last block … */
    ST_CUDA_INT8_ROWS = 4,  /* … and of that many multiply quantised weights with int8 activations (acts.cuh) */
    ST_CUDA_CORES_ROWS_MIN = 3,    /* … Q4_K and Q6_K: from that many on … */
    ST_CUDA_CORES_ROWS = 32,       /* … up to that many on tensor cores (matmul_cores.cu) … */
    ST_CUDA_EXPERTS_INT8_ROWS = 8, /* experts: of that many, since few rows share an expert … */
    ST_CUDA_EXPERTS_USED_MAX = 64, /* … and at most so many of them; with more rows, rows that share an expert run together … */
    ST_CUDA_EXPERTS_SHARED_ROWS = 32, ST_CUDA_EXPERTS_SHARED_PAIRS = 256, /* … up to so many rows and pairs (row, expert), … */
    ST_CUDA_EXPERTS_SHARED_EACH = 2, /* … and so many of them for each expert on average: tiles are faster with more */
    ST_CUDA_ACT_BLOCK = 32, /* rows of int8 activations are of a multiple of so many elements, … */
    ST_CUDA_ACT_GROUP = 16, /* … of which so many have a common scale */
    ST_CUDA_JOINED_MAX = 4, /* matrix products of one launch */
};

/* Bytes of a row of int8 activations: the elements, then 8 bytes for each group. */
#ifdef __CUDACC__
__host__ __device__
#endif
static inline size_t st_cuda_acts_row_bytes(size_t width)
{
    return (width + width / ST_CUDA_ACT_GROUP * 8 + 15) / 16 * 16;
}

/* More rows multiply the same types on tensor cores: f16 weights × f16 activations, sums in float32 (tiles.cuh). Rows of f16
 * activations ("halves") are interleaved by ST_CUDA_HALF_ROWS and padded with zeros to ST_CUDA_HALF_GROUP elements; a float for
 * each row, its scale, comes behind them. */
enum { ST_CUDA_HALF_ROWS = 8, ST_CUDA_HALF_GROUP = 256 };

static inline size_t st_cuda_round_up(size_t x, size_t unit)
{
    return (x + unit - 1) / unit * unit;
}

static inline size_t st_cuda_halves_bytes(size_t width, size_t rows)
{
    size_t padded = st_cuda_round_up(rows, ST_CUDA_HALF_ROWS);
    return st_cuda_round_up(padded * (st_cuda_round_up(width, ST_CUDA_HALF_GROUP) * 2 + sizeof(float)), ST_CUDA_ALIGNMENT);
}

/* … by block, with totals (halves.cuh). */
static inline size_t st_cuda_block_halves_bytes(size_t width, size_t rows)
{
    return st_cuda_halves_bytes(width / 8 * 9, rows);
}

/* A product with few tiles splits its depth: at most so many blocks then, each with the partial sums of a tile, and a counter
 * for each tile. */
enum {
    ST_CUDA_TILE_WARPS = 4, ST_CUDA_TILE_COLUMNS = 32 * ST_CUDA_TILE_WARPS, ST_CUDA_NARROW_COLUMNS = 16 * ST_CUDA_TILE_WARPS,
    ST_CUDA_TILE_BYTES = 16, ST_CUDA_TILE_ROWS_MIN = 16,
    ST_CUDA_SPLIT_ROWS = 64,    /* of a tile, at most */
    ST_CUDA_SPLIT_BLOCKS = 792,
    ST_CUDA_SPLIT_COUNTERS = ST_CUDA_SPLIT_BLOCKS,
    ST_CUDA_COUNTERS_BYTES = (ST_CUDA_SPLIT_COUNTERS * 4 + ST_CUDA_ALIGNMENT - 1) / ST_CUDA_ALIGNMENT * ST_CUDA_ALIGNMENT,
};

/* Partial sums of a product with a matrix of `width` × `columns`. Of ST_CUDA_JOINED_MAX products, which are split into a part
 * for each two groups of elements at most, the largest states enough for all. */
static inline size_t st_cuda_partial_bytes(size_t width, size_t columns, uint32_t rows)
{
    size_t tile = rows <= 16 ? 16 : rows <= 32 ? 32 : (size_t)ST_CUDA_SPLIT_ROWS, below = st_cuda_round_up(rows, tile) / tile;
    size_t blocks = st_cuda_round_up(columns, ST_CUDA_TILE_COLUMNS) / ST_CUDA_NARROW_COLUMNS * ST_CUDA_JOINED_MAX * below;
    size_t parts = blocks * (st_cuda_round_up(width, 2 * ST_CUDA_HALF_GROUP) / (2 * ST_CUDA_HALF_GROUP));
    return (parts < ST_CUDA_SPLIT_BLOCKS ? parts : (size_t)ST_CUDA_SPLIT_BLOCKS) * ST_CUDA_NARROW_COLUMNS * tile * sizeof(float);
}

/* The types with a kernel for int8 activations (units.cuh). */
static inline bool st_cuda_has_int8(uint32_t type)
{
    switch (type) {
    case ST_TYPE_Q4_0: case ST_TYPE_Q4_1: case ST_TYPE_Q5_0: case ST_TYPE_Q5_1: case ST_TYPE_Q8_0:
    case ST_TYPE_Q2_K: case ST_TYPE_Q3_K: case ST_TYPE_Q4_K: case ST_TYPE_Q5_K: case ST_TYPE_Q6_K:
    case ST_TYPE_IQ4_NL: case ST_TYPE_IQ4_XS: case ST_TYPE_MXFP4: return true;
    default: return false;
    }
}

/* Attention of few rows: a block of threads computes the query heads of one group, at most ST_CUDA_GROUP_MAX, over a part of
 * the context. Into how many parts the context is split. */
enum { ST_CUDA_GROUP_MAX = 8, ST_CUDA_SPLITS_MAX = 64, ST_CUDA_ATTENTION_BLOCKS = 384, ST_CUDA_HEAD_MAX = 512, ST_CUDA_KEY_MAX = 640 };
/* Attention splits the context of up to ST_CUDA_ATTENTION_ROWS rows, which may be as many conversations. Of more rows, those of
 * conversations that have at least ST_CUDA_FLASH_ROWS_MIN run on tensor cores. */
enum { ST_CUDA_ATTENTION_ROWS = 64, ST_CUDA_FLASH_ROWS_MIN = 16 };
/* At most: elements of a row of an SSM's state; experts and groups of a ROUTE and the size of a DELTANET, which are in shared
 * memory; taps of a CONV. */
enum { ST_CUDA_STATE_MAX = 256, ST_CUDA_ROUTES_MAX = 8192, ST_CUDA_DELTA_MAX = 512, ST_CUDA_TAPS_MAX = 64 };

static inline uint32_t st_cuda_attention_splits(const st_op *op, uint32_t rows)
{
    uint32_t kv_heads = op->p.attention.kv_heads, group = op->p.attention.heads / kv_heads;
    uint32_t blocks = rows * kv_heads * ((group + ST_CUDA_GROUP_MAX - 1) / ST_CUDA_GROUP_MAX);
    uint32_t splits = blocks ? ST_CUDA_ATTENTION_BLOCKS / blocks : 1;
    if (splits > ST_CUDA_SPLITS_MAX) splits = ST_CUDA_SPLITS_MAX;
    return splits > 0 ? splits : 1;
}

/* Whether a launch of so many rows splits the context: its kernels read four elements at a time. */
static inline bool st_cuda_attention_splits_context(const st_bound_op *b, uint32_t rows)
{
    const st_kv_view *kv = &b->kv;
    uint32_t key = b->op->p.attention.key_length, value = b->op->p.attention.value_length;
    uintptr_t alignment = kv->type == ST_TYPE_F32 ? 16 : kv->type == ST_TYPE_Q8_0 ? 2 : 8;
    uintptr_t starts = (uintptr_t)kv->keys | (uintptr_t)kv->values | kv->key_row_bytes | kv->value_row_bytes | kv->key_page_bytes |
                       kv->value_page_bytes;
    return rows <= ST_CUDA_ATTENTION_ROWS && starts % alignment == 0 && key % 32 == 0 && key <= ST_CUDA_KEY_MAX && value % 32 == 0 &&
           value <= ST_CUDA_HEAD_MAX;
}

/* Whether an attention has keys and values of a power of two elements, 64 to ST_CUDA_HEAD_MAX, that are read by eight. */
static inline bool st_cuda_attention_by_eight(const st_bound_op *b)
{
    const st_kv_view *kv = &b->kv;
    if (b->op->kind != ST_OP_ATTENTION) return false;
    uint32_t key = b->op->p.attention.key_length, value = b->op->p.attention.value_length;
    uintptr_t starts = (uintptr_t)kv->keys | (uintptr_t)kv->values | kv->key_row_bytes | kv->value_row_bytes | kv->key_page_bytes |
                       kv->value_page_bytes;
    return starts % (kv->type == ST_TYPE_Q8_0 ? 2 : 16) == 0 && key == value && key >= 64 && key <= ST_CUDA_HEAD_MAX &&
           (key & (key - 1)) == 0;
}

/* Whether an attention of few rows has heads of which 8, 16 or 32 lanes hold a key, eight elements each. */
static inline bool st_cuda_attention_by_warps(const st_bound_op *b)
{
    return st_cuda_attention_by_eight(b) && b->op->p.attention.key_length <= 256;
}

/* Whether an attention of few rows runs on tensor cores (attention_cores.cu): tiles of 16 positions are within a page,
 * and heads of Q8_0 are copied by eight bytes, those of 64 elements by four. */
enum { ST_CUDA_CORES_PAGE_SHIFT = 4 };

static inline bool st_cuda_attention_on_cores(const st_bound_op *b)
{
    const st_kv_view *kv = &b->kv;
    if (!st_cuda_attention_by_eight(b) || kv->type == ST_TYPE_F32) return false;
    if (kv->page_shift < ST_CUDA_CORES_PAGE_SHIFT) return false;
    uintptr_t starts = (uintptr_t)kv->keys | (uintptr_t)kv->values | kv->key_row_bytes | kv->value_row_bytes | kv->key_page_bytes |
                       kv->value_page_bytes;
    return kv->type != ST_TYPE_Q8_0 || starts % (b->op->p.attention.key_length == 64 ? 4 : 8) == 0;
}

/* Whether the last block of an attention of few rows can combine the parts of the context, if counters are zero. */
static inline bool st_cuda_attention_counts(const st_bound_op *b)
{
    return st_cuda_attention_by_warps(b) || st_cuda_attention_on_cores(b);
}

/* Whether an attention has values in its keys, with the lengths that all models have, and runs on tensor cores with any number of
 * rows: alignment as above, but for float32. */
enum { ST_CUDA_LATENT_KEY = 576, ST_CUDA_LATENT_VALUE = 512 };

static inline bool st_cuda_attention_in_latent(const st_bound_op *b)
{
    const st_kv_view *kv = &b->kv;
    uintptr_t starts = (uintptr_t)kv->keys | kv->key_row_bytes | kv->key_page_bytes;
    return b->op->p.attention.value_in_key && b->op->p.attention.kv_heads == 1 && b->op->p.attention.key_length == ST_CUDA_LATENT_KEY &&
           b->op->p.attention.value_length == ST_CUDA_LATENT_VALUE && kv->type != ST_TYPE_F32 &&
           starts % (kv->type == ST_TYPE_Q8_0 ? 2 : 16) == 0;
}

/* Whether a launch of so many rows has attention on tensor cores: heads and alignment as above, but for float32, and
 * pages as above if heads are wide (attention_wide.cu). */
static inline bool st_cuda_attention_in_flash(const st_bound_op *b, uint32_t rows)
{
    return rows > ST_CUDA_ATTENTION_ROWS && b->kv.type != ST_TYPE_F32 && st_cuda_attention_by_eight(b) &&
           (b->op->p.attention.key_length <= 128 || b->kv.page_shift >= ST_CUDA_CORES_PAGE_SHIFT);
}

/* Counters of an attention, one for each row and block of heads, behind the int8 activations in scratch. */
static inline uint32_t st_cuda_attention_blocks(const st_op *op)
{
    uint32_t group = op->p.attention.heads / op->p.attention.kv_heads;
    return op->p.attention.kv_heads * ((group + ST_CUDA_GROUP_MAX - 1) / ST_CUDA_GROUP_MAX);
}

static inline size_t st_cuda_attention_counters_bytes(const st_op *op)
{
    size_t bytes = ST_CUDA_FEW_ROWS * st_cuda_attention_blocks(op) * sizeof(uint32_t);
    return (bytes + ST_CUDA_ALIGNMENT - 1) / ST_CUDA_ALIGNMENT * ST_CUDA_ALIGNMENT;
}

static inline uint32_t *st_cuda_attention_counters(const st_op *op, uint32_t rows, unsigned char *scratch)
{
    size_t width = (size_t)op->p.attention.heads * op->p.attention.value_length;
    return (uint32_t *)(void *)(scratch + (rows < ST_CUDA_INT8_ROWS ? rows : (uint32_t)ST_CUDA_INT8_ROWS) * st_cuda_acts_row_bytes(width));
}

/* Whether a launch of so many rows multiplies with int8 activations. */
static inline bool st_cuda_matmul_in_int8(const st_bound_op *b, uint32_t rows)
{
    return rows <= ST_CUDA_INT8_ROWS && st_cuda_has_int8(b->weight[0].type) && b->weight[0].ne[0] % ST_CUDA_ACT_BLOCK == 0;
}

/* … or with f16 activations by block. Asked first. */
static inline bool st_cuda_matmul_on_cores(const st_bound_op *b, uint32_t rows)
{
    return rows >= ST_CUDA_CORES_ROWS_MIN && rows <= ST_CUDA_CORES_ROWS &&
           (b->weight[0].type == ST_TYPE_Q4_K || b->weight[0].type == ST_TYPE_Q6_K);
}

/* Which weight of an EXPERTS operation has `up`: the first if it holds gate and up; without a gate it is `up` alone. */
static inline int st_cuda_up_of(const st_op *op)
{
    return op->p.experts.fused || op->p.experts.ungated ? 0 : 1;
}

/* Whether there are kernels of experts for int8 activations and for f16. */
static inline bool st_cuda_experts_have_int8(const st_bound_op *b)
{
    const st_bound_weight *gate = &b->weight[0], *up = &b->weight[st_cuda_up_of(b->op)], *down = &b->weight[2];
    return b->op->p.experts.used <= ST_CUDA_EXPERTS_USED_MAX && gate->type == up->type && st_cuda_has_int8(gate->type) &&
           st_cuda_has_int8(down->type) && b->in[0].width % ST_CUDA_ACT_BLOCK == 0 && b->op->p.experts.width % ST_CUDA_ACT_BLOCK == 0;
}

/* Up to so many rows, rows that share an expert run together, with int8 activations (experts_shared.cu). */
static inline uint32_t st_cuda_experts_shared_rows(const st_op *op)
{
    uint32_t pairs = ST_CUDA_EXPERTS_SHARED_EACH * op->p.experts.experts;
    if (pairs > ST_CUDA_EXPERTS_SHARED_PAIRS) pairs = ST_CUDA_EXPERTS_SHARED_PAIRS;
    uint32_t rows = pairs / op->p.experts.used;
    return rows < ST_CUDA_EXPERTS_SHARED_ROWS ? rows : (uint32_t)ST_CUDA_EXPERTS_SHARED_ROWS;
}

/* Which kernels run the experts of so many rows: of each pair (row, expert) by itself, of pairs that share an expert, or tiles. */
static inline bool st_cuda_experts_in_int8(const st_bound_op *b, uint32_t rows)
{
    return rows <= ST_CUDA_EXPERTS_INT8_ROWS && st_cuda_experts_have_int8(b);
}

static inline bool st_cuda_experts_are_shared(const st_bound_op *b, uint32_t rows)
{
    return rows > ST_CUDA_EXPERTS_INT8_ROWS && rows <= st_cuda_experts_shared_rows(b->op) && st_cuda_experts_have_int8(b);
}

static inline bool st_cuda_experts_in_tiles(const st_bound_op *b, uint32_t rows)
{
    return rows > ST_CUDA_EXPERTS_INT8_ROWS && !st_cuda_experts_are_shared(b, rows) && st_cuda_experts_have_int8(b);
}

/* Whether a launch of so many rows multiplies f16 weights with f16 activations. */
static inline bool st_cuda_matmul_in_tiles(const st_bound_op *b, uint32_t rows)
{
    return rows > ST_CUDA_INT8_ROWS && st_cuda_matmul_in_int8(b, 1) && !st_cuda_matmul_on_cores(b, rows);
}

/* Scratch of experts in tiles, by offset. The products with `down` run in slices of columns: a slice of every pair
 * (row, expert) has room where the hidden values were. */
typedef struct st_cuda_experts_layout {
    size_t counts, tiles, order, in, hidden, hidden_halves, bytes;
    uint32_t tiles_max, slice, slices;
} st_cuda_experts_layout;

static inline st_cuda_experts_layout st_cuda_experts_lay_out(const st_op *op, uint32_t embedding, uint32_t rows)
{
    st_cuda_experts_layout l;
    size_t pairs = (size_t)rows * op->p.experts.used, width = op->p.experts.width;
    l.slice = width < ST_CUDA_TILE_COLUMNS ? (uint32_t)width : (uint32_t)(width / ST_CUDA_TILE_COLUMNS * ST_CUDA_TILE_COLUMNS);
    l.slices = (embedding + l.slice - 1) / l.slice;
    l.tiles_max = (uint32_t)(pairs / ST_CUDA_TILE_ROWS_MIN) + op->p.experts.experts;
    l.counts = st_cuda_tables_bytes(op->p.experts.experts);
    l.tiles = l.counts + ST_CUDA_ALIGNMENT;
    l.order = l.tiles + st_cuda_round_up((size_t)l.tiles_max * ST_CUDA_TILE_BYTES, ST_CUDA_ALIGNMENT);
    l.in = l.order + st_cuda_round_up(pairs * sizeof(uint32_t), ST_CUDA_ALIGNMENT);
    l.hidden = l.in + st_cuda_halves_bytes(embedding, rows);
    l.hidden_halves = l.hidden + st_cuda_round_up(pairs * width * sizeof(float), ST_CUDA_ALIGNMENT);
    l.bytes = l.hidden_halves + st_cuda_halves_bytes(width, pairs);
    return l;
}

/* Conversations with at least ST_CUDA_DELTA_CHUNK_ROWS rows in a step run the delta rule in chunks of ST_CUDA_DELTA_CHUNK rows
 * (deltanet_chunks.cu). Two chunks: the kernel that prepares them takes about as long as 30 rows one by one (estimated). */
enum { ST_CUDA_DELTA_CHUNK = 32, ST_CUDA_DELTA_CHUNK_ROWS = 2 * ST_CUDA_DELTA_CHUNK };

/* Whether a launch of so many rows looks for such conversations: one decay for each head, and the sizes of models (the golden
 * models have 16). Up to ST_CUDA_FEW_ROWS rows are mostly those of as many conversations, which would wait for two kernels that
 * find nothing. */
static inline bool st_cuda_delta_in_chunks(const st_op *op, uint32_t rows)
{
    uint32_t size = op->p.deltanet.size;
    return op->kind == ST_OP_DELTANET && rows > ST_CUDA_FEW_ROWS && !op->p.deltanet.channels &&
           (size == 16 || size == 64 || size == 128);
}

/* Its scratch, by offset, with the same space for every row: queries and keys of unit length, two f16 for each element; two rows
 * of a chunk's matrices for each value head, two f16 for each element; two decays for each value head. */
typedef struct st_cuda_delta_layout {
    size_t keys, matrices, decays, bytes;
} st_cuda_delta_layout;

static inline st_cuda_delta_layout st_cuda_delta_lay_out(const st_op *op, uint32_t rows)
{
    st_cuda_delta_layout l = {0, 0, 0, 0};
    size_t heads = (size_t)rows * op->p.deltanet.value_heads;
    l.matrices = st_cuda_round_up((size_t)rows * op->p.deltanet.key_heads * op->p.deltanet.size * 8, ST_CUDA_ALIGNMENT);
    l.decays = l.matrices + st_cuda_round_up(heads * ST_CUDA_DELTA_CHUNK * 8, ST_CUDA_ALIGNMENT);
    l.bytes = l.decays + st_cuda_round_up(heads * 2 * sizeof(float), ST_CUDA_ALIGNMENT);
    return l;
}

/* Candidates: a block has a chunk of a row's logits, and ST_CUDA_CHUNK_GROUPS groups of tokens in it. Few tokens are in small chunks:
 * with as many groups as candidates, or fewer, all of them would be sorted. Scratch of a row, by offset: the highest key of each
 * group (first), the keys that were found (as many as KEPT groups have tokens), sums of each chunk's raw logits, counters. */
enum {
    ST_CUDA_CHUNK_MIN = 1024, ST_CUDA_CHUNK_MAX = 4096, ST_CUDA_SMALL_CHUNK_TOKENS = 65536, ST_CUDA_CHUNK_GROUPS = 32, ST_CUDA_CHUNK_SUMS_BYTES = 16,
    ST_CUDA_CANDIDATE_ROWS = 16, /* at a time */
};

typedef struct st_cuda_candidates_layout {
    size_t found, sums, counters, bytes;
    uint32_t chunk, chunks, groups; /* chunk: tokens */
} st_cuda_candidates_layout;

static inline st_cuda_candidates_layout st_cuda_candidates_lay_out(uint32_t vocab)
{
    st_cuda_candidates_layout l;
    l.chunk = vocab < ST_CUDA_SMALL_CHUNK_TOKENS ? ST_CUDA_CHUNK_MIN : ST_CUDA_CHUNK_MAX;
    l.chunks = (vocab + l.chunk - 1) / l.chunk;
    l.groups = l.chunks * ST_CUDA_CHUNK_GROUPS;
    uint32_t held = l.groups < ST_CANDIDATES_MAX ? l.groups : (uint32_t)ST_CANDIDATES_MAX;
    l.found = l.groups * sizeof(uint64_t);
    l.sums = l.found + (size_t)held * (l.chunk / ST_CUDA_CHUNK_GROUPS) * sizeof(uint64_t);
    l.counters = l.sums + (size_t)l.chunks * ST_CUDA_CHUNK_SUMS_BYTES;
    l.bytes = l.counters + 2 * sizeof(uint64_t);
    return l;
}

/* A link of a chain with its flag (chain.c). */
typedef struct st_cuda_handover {
    st_link link;
    uint64_t *flag;      /* mapped pinned memory: st_cuda_answer, by the kernel of a SEND, by the host for the others */
    uint64_t limit_us;   /* of the wait for the host … */
    uint32_t *timed_out; /* … mapped pinned memory: is 1 after a wait that was too long */
} st_cuda_handover;

/* The flag of a hand-over that has taken place in the step of that sequence number; `none`: there is no value. */
#ifdef __CUDACC__
__host__ __device__
#endif
static inline uint64_t st_cuda_answer(uint32_t sequence, bool none)
{
    return (uint64_t)sequence << 1 | none;
}

typedef struct st_cuda_call {
    const st_cuda_handover *handover; /* NULL: an operation, which the fields below describe */
    const st_bound_op *bound; /* host memory; values, weights and state in it are device memory */
    const st_step *step;      /* device memory */
    st_rows kind;             /* which of the step's counts bounds the rows */
    uint32_t rows;            /* sizes the grid: at least that count */
    const void *const *tables[ST_CUDA_TABLES]; /* mapped pinned memory: the expert tables; NULL: the operation has none */
    unsigned char *scratch;   /* device memory for this operation alone */
    /* How it runs together with its neighbours; sums and attention in launches of few rows alone: */
    const st_bound_op *sum;   /* RMS_NORM: the ADD before it, whose sum is its input: computes it as well. NULL: none */
    uint32_t joined;          /* MATMUL: computes so many operations behind `bound` as well, with any number of rows */
    uint32_t positioned;      /* so many operations from `bound` on are one kernel (positions.h). 0: none */
    const st_bound_op *attention; /* … which sets its counters to 0. NULL: none */
    bool counts;              /* ATTENTION: its counters are 0, so that its last block combines the parts */
    const struct st_cuda_call *experts; /* ROUTE: the EXPERTS behind it, whose input it prepares if they read int8 activations. NULL: none */
    bool prepared;            /* EXPERTS: … which it has */
    bool skipped;             /* a neighbour computes this one as well … */
    bool always;              /* … with any number of rows */
    bool quantised;           /* scratch already has the int8 activations of in[0] … */
    bool converted;           /* … or, with more rows, its halves */
    bool quantises;           /* writes the int8 activations of `out` to scratch as well; with more rows its halves, if it can */
    bool cores;               /* … by block with ST_CUDA_CORES_ROWS_MIN to ST_CUDA_CORES_ROWS rows: the product behind it runs on_cores */
    bool ready;               /* with so many rows, this instead of quantised and converted: scratch has the activations of in[0] that
                                 the product reads */
    void *stream;             /* a cudaStream_t */
} st_cuda_call;

/* Whether the operation writes int8 activations. */
static inline bool st_cuda_writes_int8(const st_cuda_call *call)
{
    return call->quantises && call->rows <= (call->cores ? (uint32_t)ST_CUDA_CORES_ROWS_MIN - 1 : (uint32_t)ST_CUDA_INT8_ROWS);
}

/* Whether a neighbour computes the operation. */
static inline bool st_cuda_is_skipped(const st_cuda_call *call, uint32_t rows)
{
    return call->skipped && (call->always || rows <= ST_CUDA_FEW_ROWS);
}

/* Puts the operation's kernels into the stream, or that of a hand-over. Returns a cudaError_t. */
typedef int (*st_cuda_kernel)(const st_cuda_call *call);

int st_cuda_run(const st_cuda_call *call); /* kernels.c: of any operation, unless a neighbour computes it */

int st_cuda_embed(const st_cuda_call *call);
int st_cuda_matmul(const st_cuda_call *call);
int st_cuda_rms_norm(const st_cuda_call *call);
int st_cuda_angles(const st_cuda_call *call);
int st_cuda_rope(const st_cuda_call *call);
int st_cuda_temperature(const st_cuda_call *call);
int st_cuda_kv_store(const st_cuda_call *call);
int st_cuda_attention(const st_cuda_call *call);
int st_cuda_slice(const st_cuda_call *call);
int st_cuda_concat(const st_cuda_call *call);
int st_cuda_add(const st_cuda_call *call);
int st_cuda_scale(const st_cuda_call *call);
int st_cuda_mul_weight(const st_cuda_call *call);
int st_cuda_gated_act(const st_cuda_call *call);
int st_cuda_sigmoid_gate(const st_cuda_call *call);
int st_cuda_route(const st_cuda_call *call);
int st_cuda_experts(const st_cuda_call *call);
int st_cuda_conv(const st_cuda_call *call);
int st_cuda_deltanet(const st_cuda_call *call);
int st_cuda_silu_gate(const st_cuda_call *call);
int st_cuda_gather(const st_cuda_call *call);
int st_cuda_softcap(const st_cuda_call *call);
int st_cuda_candidates(const st_cuda_call *call);
int st_cuda_layer_norm(const st_cuda_call *call);
int st_cuda_head_matmul(const st_cuda_call *call);
int st_cuda_mul(const st_cuda_call *call);
int st_cuda_ssm(const st_cuda_call *call);
int st_cuda_handover_run(const st_cuda_call *call);

/* Kernels for at most ST_CUDA_INT8_ROWS rows, and for the attention of few. quantise.cu: int8 activations of `rows` rows at `in`, in `acts`. */
int st_cuda_quantise_rows(const st_cuda_call *call, const float *in, uint32_t width, void *acts);
int st_cuda_matmul_int8(const st_cuda_call *call);
int st_cuda_experts_int8(const st_cuda_call *call);
int st_cuda_attention_split(const st_cuda_call *call);
int st_cuda_positions_run(const st_cuda_call *call);

/* Kernels for more rows; but for the first, on tensor cores. */
int st_cuda_experts_shared(const st_cuda_call *call);
int st_cuda_matmul_cores(const st_cuda_call *call);
bool st_cuda_matmul_fits_bulk(const st_cuda_call *call);
int st_cuda_matmul_bulk(const st_cuda_call *call);
int st_cuda_matmul_tiles(const st_cuda_call *call);
int st_cuda_experts_tiles(const st_cuda_call *call);
int st_cuda_attention_flash(const st_cuda_call *call);
int st_cuda_attention_latent(const st_cuda_call *call);
int st_cuda_deltanet_chunks(const st_cuda_call *call);

/* load.cu: loads every kernel of the plugin into the context. Returns a cudaError_t. */
int st_cuda_load(void);

/* counter.cu: `counter` is mapped pinned memory or device memory. The wait gives up after limit_us and then writes 1 to
 * `timed_out` (mapped pinned memory). */
int st_cuda_counter_set(uint64_t *counter, uint64_t value, void *stream);
int st_cuda_counter_wait(const uint64_t *counter, uint64_t value, uint64_t limit_us, uint32_t *timed_out, void *stream);

/* probe.cu: reads `bytes` of device memory once. `sink` is 4 bytes that keep the work from being removed. */
int st_cuda_probe_read(const void *memory, size_t bytes, uint32_t *sink, void *stream);

#ifdef __cplusplus
}
#endif

#endif
