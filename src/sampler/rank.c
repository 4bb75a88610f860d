#include "sampler/rank.h"

enum {
    BLOCK = 64,         /* tokens at a time: loops of a constant length vectorise */
    INSERTION_MAX = 24, /* members that are sorted */
    FEW = 256,          /* tokens that need no histogram */
};

/* Inlined into each set of loops below, and compiled there for its instruction set. */
#define INLINE static inline __attribute__((always_inline))

/* Maps the bits of a float to an integer that sorts like the float, and back. NaN sorts beyond the infinities. */
INLINE int32_t sorted_bits(int32_t bits)
{
    return bits ^ (bits < 0 ? INT32_MAX : 0);
}

/* The same as an unsigned number, with -0 equal to +0. */
INLINE uint32_t key_of(float logit)
{
    logit += 0.0f;
    int32_t bits;
    memcpy(&bits, &logit, sizeof bits);
    return (uint32_t)sorted_bits(bits) ^ 0x80000000u;
}

/* The highest and the lowest logit by sorted_bits. A comparison of floats would not vectorise, because of NaN. */
INLINE void find_range(const float *logits, size_t count, int32_t *high_out, int32_t *low_out)
{
    int32_t high[BLOCK], low[BLOCK], bits[BLOCK];
    for (int i = 0; i < BLOCK; i++) high[i] = INT32_MIN, low[i] = INT32_MAX;
    for (size_t first = 0; first < count; first += BLOCK) {
        size_t left = count - first;
        if (left >= BLOCK) memcpy(bits, logits + first, sizeof bits);
        else
            /* cppcheck-suppress zerodiv ; first < count */
            for (size_t i = 0; i < BLOCK; i++) memcpy(&bits[i], &logits[first + i % left], sizeof *bits);
        for (int i = 0; i < BLOCK; i++) {
            int32_t sorted = sorted_bits(bits[i]);
            high[i] = sorted > high[i] ? sorted : high[i];
            low[i] = sorted < low[i] ? sorted : low[i];
        }
    }
    for (int i = 1; i < BLOCK; i++) {
        high[0] = high[i] > high[0] ? high[i] : high[0];
        low[0] = low[i] < low[0] ? low[i] : low[0];
    }
    *high_out = high[0];
    *low_out = low[0];
}

/* A block of tokens with their buckets and weights. A higher logit never has a higher bucket. */
typedef struct block {
    float logits[BLOCK];  /* the last block, padded with its last token; unused otherwise */
    float x[BLOCK];
    float weights[BLOCK]; /* 0 for padding */
    int32_t buckets[BLOCK];
} block;

INLINE const float *find_buckets(const st_rank *rank, size_t first, block *b)
{
    const float *logits = rank->logits + first;
    size_t left = rank->count - first;
    if (left < BLOCK) {
        for (size_t i = 0; i < BLOCK; i++) b->logits[i] = logits[i < left ? i : left - 1];
        logits = b->logits;
    }
    float highest = rank->highest, inverse = rank->bucket_x, scale = rank->bucket_scale;
    for (int i = 0; i < BLOCK; i++) {
        float x = (highest - logits[i]) * inverse;
        x = x < ST_RANK_X_MAX ? x : ST_RANK_X_MAX;
        b->x[i] = x;
        b->buckets[i] = (int32_t)(x * scale);
    }
    return logits;
}

INLINE void find_weights(const st_rank *rank, size_t first, block *b)
{
    if (rank->inverse_temperature > 0)
        for (int i = 0; i < BLOCK; i++) b->weights[i] = st_rank_weight(b->x[i]);
    else
        for (int i = 0; i < BLOCK; i++) b->weights[i] = 1;
    for (size_t i = rank->count - first; i < BLOCK; i++) b->weights[i] = 0;
}

INLINE void fill_histogram(st_rank *rank)
{
    block b;
    for (size_t first = 0; first < rank->count; first += BLOCK) {
        find_buckets(rank, first, &b);
        find_weights(rank, first, &b);
        int64_t fixed[BLOCK];
        for (int i = 0; i < BLOCK; i++) fixed[i] = (int64_t)b.weights[i];
        for (int i = 0; i < BLOCK; i += ST_RANK_COPIES)
            for (int copy = 0; copy < ST_RANK_COPIES; copy++)
                rank->sums[copy][b.buckets[i + copy]] += (uint64_t)fixed[i + copy];
    }
}

/* Collects the tokens of a bucket, in the order of their indices. */
INLINE size_t gather(const st_rank *rank, int32_t bucket)
{
    block b;
    size_t count = 0;
    for (size_t first = 0; first < rank->count; first += BLOCK) {
        int hits = 0;
        const float *logits = find_buckets(rank, first, &b);
        for (int i = 0; i < BLOCK; i++) hits |= b.buckets[i] == bucket;
        if (!hits) continue;
        find_weights(rank, first, &b);
        for (size_t i = 0; i < BLOCK && first + i < rank->count; i++)
            if (b.buckets[i] == bucket)
                rank->members[count++] = (st_rank_member){.index = (uint32_t)(first + i), .key = key_of(logits[i]),
                                                          .weight = (uint64_t)(int64_t)b.weights[i]};
    }
    return count;
}

/* The loops, compiled for any x86-64, for AVX2 and for AVX-512. */
typedef struct loops {
    void (*find_range)(const float *logits, size_t count, int32_t *high, int32_t *low);
    void (*fill_histogram)(st_rank *rank);
    size_t (*gather)(const st_rank *rank, int32_t bucket);
} loops;

/* NOLINTBEGIN(bugprone-macro-parentheses): an attribute takes none */
#define LOOPS(name, attribute)                                                                                      \
    attribute static void find_range_##name(const float *logits, size_t count, int32_t *high, int32_t *low)         \
    {                                                                                                               \
        find_range(logits, count, high, low);                                                                       \
    }                                                                                                               \
    attribute static void fill_histogram_##name(st_rank *rank)                                                      \
    {                                                                                                               \
        fill_histogram(rank);                                                                                       \
    }                                                                                                               \
    attribute static size_t gather_##name(const st_rank *rank, int32_t bucket)                                      \
    {                                                                                                               \
        return gather(rank, bucket);                                                                                \
    }                                                                                                               \
    static const loops loops_##name = {find_range_##name, fill_histogram_##name, gather_##name};
/* NOLINTEND(bugprone-macro-parentheses) */

LOOPS(plain, )
#if defined(__x86_64__)
LOOPS(avx2, __attribute__((target("avx2"))))
LOOPS(avx512, __attribute__((target("avx512f,avx512dq,avx512vl"))))
#endif

static const loops *current_loops(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) return &loops_avx512;
    if (__builtin_cpu_supports("avx2")) return &loops_avx2;
#endif
    return &loops_plain;
}

st_logit_range st_rank_range(const float *logits, size_t count)
{
    static const int32_t infinity = 0x7F800000, minus_infinity = (int32_t)0x807FFFFF; /* as sorted_bits has them */
    int32_t high, low;
    current_loops()->find_range(logits, count, &high, &low);
    st_logit_range range = {.usable = high < infinity && low >= minus_infinity};
    high = sorted_bits(high);
    low = sorted_bits(low);
    memcpy(&range.highest, &high, sizeof high);
    memcpy(&range.lowest, &low, sizeof low);
    return range;
}

void st_rank_build(st_rank *rank, const float *logits, size_t count, float highest, float lowest,
                   float inverse_temperature)
{
    static const float inverse_max = 1e30f; /* 0 times infinity is NaN */
    rank->logits = logits;
    rank->count = count;
    rank->highest = highest;
    rank->lowest = lowest;
    rank->inverse_temperature = inverse_temperature < inverse_max ? inverse_temperature : inverse_max;
    rank->bucket_x = rank->inverse_temperature > 0 ? rank->inverse_temperature : 1;
    if (highest == lowest) {
        rank->sum = count * (uint64_t)(rank->inverse_temperature > 0 ? ST_RANK_UNIT : 1);
        return;
    }
    float range = (highest - lowest) * rank->bucket_x;
    if (!(range < ST_RANK_X_MAX)) range = ST_RANK_X_MAX;
    bool one_bucket = count <= FEW || !(range > 0x1p-100f);
    int buckets = one_bucket ? 1 : ST_RANK_BUCKETS;
    rank->bucket_scale = one_bucket ? 0 : (ST_RANK_BUCKETS - 1) / range;
    for (int copy = 0; copy < ST_RANK_COPIES; copy++)
        memset(rank->sums[copy], 0, (size_t)buckets * sizeof **rank->sums);
    current_loops()->fill_histogram(rank);
    rank->sum = 0;
    for (int b = 0; b < buckets; b++) {
        for (int copy = 1; copy < ST_RANK_COPIES; copy++) rank->sums[0][b] += rank->sums[copy][b];
        rank->sum += rank->sums[0][b];
    }
}

/* Sorts by key, the highest first; stable. */
static void sort_few(st_rank_member *members, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        st_rank_member moved = members[i];
        size_t at = i;
        for (; at > 0 && members[at - 1].key < moved.key; at--) members[at] = members[at - 1];
        members[at] = moved;
    }
}

/* Puts the members into buckets by key, and keeps the bucket in which the running sum reaches the target. *before is
 * the sum ahead of the members. */
static size_t narrow(st_rank *rank, size_t count, uint32_t low, uint32_t shift, uint64_t target, uint64_t *before)
{
    uint64_t *sums = rank->sums[1];
    memset(sums, 0, sizeof rank->sums[1]);
    for (size_t i = 0; i < count; i++) sums[(rank->members[i].key - low) >> shift] += rank->members[i].weight;
    uint32_t bucket = ST_RANK_BUCKETS - 1;
    for (; *before + sums[bucket] < target; bucket--) *before += sums[bucket];
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if ((rank->members[i].key - low) >> shift == bucket) rank->members[kept++] = rank->members[i];
    return kept;
}

static st_rank_place find_member(st_rank *rank, size_t count, uint64_t target, uint64_t before)
{
    st_rank_member *members = rank->members;
    while (count > INSERTION_MAX) {
        uint32_t low = UINT32_MAX, high = 0, shift = 0;
        for (size_t i = 0; i < count; i++) {
            if (members[i].key < low) low = members[i].key;
            if (members[i].key > high) high = members[i].key;
        }
        if (low == high) break;
        while ((high - low) >> shift >= ST_RANK_BUCKETS) shift++;
        count = narrow(rank, count, low, shift, target, &before);
    }
    if (count <= INSERTION_MAX) sort_few(members, count);
    size_t i = 0;
    for (; before + members[i].weight < target; i++) before += members[i].weight;
    return (st_rank_place){.index = members[i].index, .sum = before + members[i].weight};
}

st_rank_place st_rank_find(st_rank *rank, uint64_t target)
{
    if (rank->highest == rank->lowest) { /* equal weights in the order of the indices */
        uint64_t weight = rank->sum / rank->count, before = (target - 1) / weight;
        return (st_rank_place){.index = (size_t)before, .sum = (before + 1) * weight};
    }
    uint64_t before = 0;
    int32_t bucket = 0;
    for (; before + rank->sums[0][bucket] < target; bucket++) before += rank->sums[0][bucket];
    return find_member(rank, current_loops()->gather(rank, bucket), target, before);
}
