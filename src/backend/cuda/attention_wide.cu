/* Attention of prompts on tensor cores, with heads of 256 and 512. A block has 64 or 32 rows of a conversation and one
 * query head: the warps that share 16 rows have WIDTH elements of the head each. They compute parts of the scores, add
 * them up in shared memory, and then each has its elements of the output. Queries stay in registers, as sums of two f16
 * numbers (attention_mma.cuh). The values of a tile arrive while its scores are computed, and the keys of the next while
 * its values are summed. */
#include "backend/cuda/attention_prompts.cuh"

namespace {

enum { WARPS = 8, THREADS = WARPS * ST_CUDA_WARP, WIDTH = 128, STEPS = WIDTH / 16 };

/* Tiles of positions, so that keys, values and parts of the scores fit in 99 KiB. */
template <class F, int HEAD> struct shape {
    enum {
        SHARERS = HEAD / WIDTH, /* warps with the same rows */
        ROWS = 16 * WARPS / SHARERS,
        POSITIONS = 16384 / HEAD / (F::SPLIT ? 2 : 1),
        TILE_BYTES = (F::SPLIT ? 2 : 1) * POSITIONS * (HEAD + PAD) * (int)sizeof(__half),
        BYTES = 2 * TILE_BYTES + WARPS * POSITIONS * 16 * (int)sizeof(float),
    };
};

/* Positions of a page that a tile reads with one look-up; tiles begin at multiples of it. */
enum { RUN = 1 << ST_CUDA_CORES_PAGE_SHIFT };

/* The pages of the tile at `base`: found while others are multiplied, for its keys and its values. */
template <int COUNT> struct tile_pages {
    uint32_t base, pages[COUNT / RUN];

    __device__ __forceinline__ void find(const st_cuda_kv_rows &kv, uint32_t first, uint32_t end)
    {
        base = first;
#pragma unroll
        for (int i = 0; i < COUNT / RUN; i++) pages[i] = (uint32_t)kv.page(min(base + i * RUN, end - 1));
    }
};

/* A tile of keys or values on its way to shared memory: copies of f16 go straight there, others wait in registers.
 * Positions before `from` and from `end` on, which may be NaN, are zeros. */
template <class F, int HEAD, int COUNT> struct arriving {
    enum { CHUNKS = HEAD / 8, EACH = COUNT * CHUNKS / THREADS, ROWS_APART = THREADS / CHUNKS };
    enum { IS_COPIED = !F::SPLIT && F::SHRINK == 1 };
    static_assert(EACH * THREADS == COUNT * CHUNKS && RUN % ROWS_APART == 0, "threads have equal shares");
    rows_of<HEAD, COUNT> to;
    uint32_t from, end, base;
    typename F::kv::eight held[IS_COPIED ? 1 : EACH];

    static __device__ __forceinline__ uint32_t row(int i)
    {
        return threadIdx.x / CHUNKS + i * ROWS_APART;
    }
    static __device__ __forceinline__ uint32_t element()
    {
        return threadIdx.x % CHUNKS * 8;
    }
    __device__ __forceinline__ bool present(int i) const
    {
        return base + row(i) - from < end - from;
    }
    /* Starts the tile, of keys or of values. of_head: the KV head's first element. */
    template <bool VALUES>
    __device__ __forceinline__ void start(const st_cuda_kv_rows &kv, const tile_pages<COUNT> &tile, uint32_t of_head)
    {
        const unsigned char *data = VALUES ? kv.kv.values : kv.kv.keys, *run = data;
        size_t page_bytes = VALUES ? kv.kv.value_page_bytes : kv.kv.key_page_bytes;
        size_t row_bytes = VALUES ? kv.kv.value_row_bytes : kv.kv.key_row_bytes;
        base = tile.base;
#pragma unroll
        for (int i = 0; i < EACH; i++, run += ROWS_APART * row_bytes) {
            int ahead = i * ROWS_APART;
            if (ahead % RUN == 0)
                run = data + tile.pages[ahead / RUN] * page_bytes + (kv.row(base + ahead) + row(0)) * row_bytes;
            if constexpr (IS_COPIED) {
                const unsigned char *source = run + (of_head + element()) * sizeof(__half);
                st_cuda_copy_or_zero<16>(to.at(row(i), element(), 0), source, present(i));
            } else held[i] = F::kv::load_eight(run, of_head + element());
        }
        st_cuda_copies_end();
    }
    /* Ends with all that this thread has of the tile in shared memory. */
    __device__ __forceinline__ void finish()
    {
        st_cuda_copies_wait<0>();
        if constexpr (!IS_COPIED) {
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                uint4 high = {}, low = {};
                if (present(i)) F::halves(held[i], high, low);
                *(uint4 *)to.at(row(i), element(), 0) = high;
                if (F::SPLIT) *(uint4 *)to.at(row(i), element(), 1) = low;
            }
        }
    }
};

/* Parts of the scores in shared memory, as lanes have them: [warp][fragment][lane]. Warps with the same rows follow each
 * other. */
template <int SHARERS, int COUNT> struct shared_scores {
    float4 *data;

    __device__ __forceinline__ float4 &at(uint32_t warp, int n) const
    {
        return data[(warp * (COUNT / 8) + n) * ST_CUDA_WARP + threadIdx.x % ST_CUDA_WARP];
    }
    __device__ __forceinline__ void store(const float (*scores)[4]) const
    {
#pragma unroll
        for (int n = 0; n < COUNT / 8; n++)
            at(threadIdx.x / ST_CUDA_WARP, n) = make_float4(scores[n][0], scores[n][1], scores[n][2], scores[n][3]);
    }
    /* Adds those of the other warps, in an order that gives all of them the same sums. */
    __device__ __forceinline__ void add(float (*scores)[4]) const
    {
        uint32_t warp = threadIdx.x / ST_CUDA_WARP;
#pragma unroll
        for (int n = 0; n < COUNT / 8; n++) {
            float4 x = at(warp ^ 1, n);
            scores[n][0] += x.x, scores[n][1] += x.y, scores[n][2] += x.z, scores[n][3] += x.w;
            if (SHARERS == 2) continue;
            float4 y = at(warp ^ 2, n), z = at(warp ^ 3, n);
            scores[n][0] += y.x + z.x, scores[n][1] += y.y + z.y, scores[n][2] += y.z + z.z, scores[n][3] += y.w + z.w;
        }
    }
};

template <class F, int HEAD> __global__ void __launch_bounds__(THREADS) wide(st_cuda_attention_args a)
{
    st_cuda_begin();
    typedef shape<F, HEAD> S;
    enum { POSITIONS = S::POSITIONS, ROWS = S::ROWS };
    ST_CUDA_DYNAMIC(uint4, shared);
    unsigned char *memory = (unsigned char *)shared;
    shared_scores<S::SHARERS, POSITIONS> sums = {(float4 *)(memory + 2 * S::TILE_BYTES)};
    uint32_t head = blockIdx.x, of_head = head / a.group * HEAD, warp = threadIdx.x / ST_CUDA_WARP;
    uint32_t row = warp / S::SHARERS * 16, first = warp % S::SHARERS * WIDTH; /* the warp's rows and elements */
    block_rows<ROWS> b;
    if (!b.find(a.rows)) return;
    st_cuda_kv_rows kv(a.kv, a.rows, b.conversation);
    arriving<F, HEAD, POSITIONS> keys, values;
    keys.to.data = (__half *)memory, values.to.data = (__half *)(memory + S::TILE_BYTES);
    keys.from = values.from = a.first(b.position), keys.end = values.end = b.end();
    uint32_t base = keys.from / RUN * RUN;
    tile_pages<POSITIONS> pages;
    pages.find(kv, base, b.end());
    keys.template start<false>(kv, pages, of_head);
    const float log2e = 1.4426950408889634f;
    queries<STEPS> q;
    q.load(a.in + ((size_t)(b.first + min(row, b.count)) * a.heads + head) * HEAD + first, (size_t)a.heads * HEAD,
           b.count - min(row, b.count), a.scale * log2e * F::SHRINK);
    warp_rows w;
    w.find(a, b, row);
    running<WIDTH> r = {{}, {-INFINITY, -INFINITY}, {}};
    for (; base < b.end(); base += POSITIONS) {
        bool seen = w.sees_tile(base, POSITIONS); /* the same for the warps that share rows */
        float scores[POSITIONS / 8][4] = {};
        keys.finish();
        __syncthreads();
        values.template start<true>(kv, pages, of_head);
        pages.find(kv, base + POSITIONS, b.end());
        if (seen) {
            score<F>(q, keys.to, first, scores);
            sums.store(scores);
        }
        values.finish();
        __syncthreads();
        if (base + POSITIONS < b.end()) keys.template start<false>(kv, pages, of_head);
        if (!seen) continue;
        sums.add(scores);
        softmax<WIDTH, POSITIONS>(scores, base, w.sees, r);
        gather<F, WIDTH>(scores, values.to, first, r.out);
    }
    write_rows<F, HEAD>(a, b, head, row, first, r);
}

struct launch {
    const st_cuda_call *call;
    const st_cuda_attention_args &args;

    template <class F, int HEAD> int start() const
    {
        typedef shape<F, HEAD> S;
        return start_prompts<wide<F, HEAD>, S::ROWS, THREADS, S::BYTES>(call, args);
    }
    template <class F> int run() const
    {
        return args.key == 256 ? start<F, 256>() : start<F, 512>();
    }
};

} // namespace

int st_cuda_attention_wide(const st_cuda_call *call, const st_cuda_attention_args &args)
{
    return with_halves(call->bound->kv.type, launch{call, args});
}
