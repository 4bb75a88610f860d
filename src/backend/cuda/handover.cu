/* Hand-overs of a chain through mapped pinned memory. One block each: while it waits for the host, it keeps no other
 * kernel from running. */
#include "backend/cuda/common.cuh"

namespace {

enum { THREADS = 256 };

struct values {
    st_link_value at[ST_LINK_VALUES];
    uint32_t count;

    /* Number i, without a copy of all in local memory. */
    __device__ st_link_value get(uint32_t i) const
    {
        st_link_value v = at[0];
#pragma unroll
        for (uint32_t k = 1; k < ST_LINK_VALUES; k++)
            if (i == k) v = at[k];
        return v;
    }
};

/* Calls f(to, from) for each word of the rows of a value, four words at a time if it can. */
template <class F> __device__ void each_word(const st_link_value &v, uint32_t rows, F f)
{
    size_t words = (size_t)rows * v.width;
    if ((((uintptr_t)v.to | (uintptr_t)v.from) % sizeof(uint4) | words % 4) == 0) {
        for (size_t i = threadIdx.x; i < words / 4; i += THREADS) f((uint4 *)v.to + i, (const uint4 *)v.from + i);
        return;
    }
    for (size_t i = threadIdx.x; i < words; i += THREADS) f((uint32_t *)v.to + i, (const uint32_t *)v.from + i);
}

struct copy_words {
    template <class T> __device__ void operator()(T *to, const T *from) const
    {
        *to = *from;
    }
};

__device__ uint32_t add_bits(uint32_t a, uint32_t b)
{
    return __float_as_uint(__uint_as_float(a) + __uint_as_float(b));
}

struct add_words {
    __device__ void operator()(uint32_t *to, const uint32_t *from) const
    {
        *to = add_bits(*to, *from);
    }
    __device__ void operator()(uint4 *to, const uint4 *from) const
    {
        uint4 sum = *to, term = *from;
        *to = make_uint4(add_bits(sum.x, term.x), add_bits(sum.y, term.y), add_bits(sum.z, term.z), add_bits(sum.w, term.w));
    }
};

/* The barrier orders the stores of all threads before the fence of the first one, and that before the flag. */
__global__ void __launch_bounds__(THREADS) send(st_cuda_rows rows, values v, uint64_t *flag)
{
    st_cuda_begin();
    uint32_t count = rows.count();
#pragma unroll 1
    for (uint32_t i = 0; i < v.count; i++) each_word(v.get(i), count, copy_words());
    __syncthreads();
    if (threadIdx.x > 0) return;
    __threadfence_system();
    *(volatile uint64_t *)flag = st_cuda_answer(rows.step->sequence, false);
}

/* Waits until the host has answered. Returns whether there is a value. */
__device__ bool is_answered(uint32_t sequence, const uint64_t *flag, uint64_t limit_us, uint32_t *timed_out)
{
    uint64_t start = st_cuda_nanoseconds(), answer;
    while ((uint32_t)((answer = *(const volatile uint64_t *)flag) >> 1) != sequence) {
        if ((st_cuda_nanoseconds() - start) / 1000 <= limit_us) continue;
        *(volatile uint32_t *)timed_out = 1;
        return false;
    }
    __threadfence_system();
    return answer == st_cuda_answer(sequence, false);
}

template <class F> __global__ void __launch_bounds__(THREADS)
receive(st_cuda_rows rows, values v, const uint64_t *flag, uint64_t limit_us, uint32_t *timed_out, F f)
{
    __shared__ bool present;
    st_cuda_await(); /* and no release yet: the next kernel would take room while this one waits */
    if (threadIdx.x == 0) present = is_answered(rows.step->sequence, flag, limit_us, timed_out);
    __syncthreads();
    st_cuda_release();
    uint32_t count = present ? rows.count() : 0;
#pragma unroll 1
    for (uint32_t i = 0; i < v.count; i++) each_word(v.get(i), count, f);
}

} // namespace

extern "C" int st_cuda_handover_run(const st_cuda_call *call)
{
    const st_cuda_handover *h = call->handover;
    st_cuda_rows rows = st_cuda_rows_of(call);
    values v;
    v.count = h->link.value_count;
    for (int i = 0; i < ST_LINK_VALUES; i++) v.at[i] = h->link.values[i];
    if (h->link.kind == ST_LINK_SEND) return st_cuda_start<send>(call, 1, THREADS, 0, rows, v, h->flag);
    if (h->link.kind == ST_LINK_ADD)
        return st_cuda_start<receive<add_words>>(call, 1, THREADS, 0, rows, v, h->flag, h->limit_us, h->timed_out, add_words());
    return st_cuda_start<receive<copy_words>>(call, 1, THREADS, 0, rows, v, h->flag, h->limit_us, h->timed_out, copy_words());
}
