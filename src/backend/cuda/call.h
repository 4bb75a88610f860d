/* What a kernel's launch function gets: one operation with addresses, for C and CUDA. The caller owns everything in it;
 * nothing is kept after the call. */
#ifndef ST_CUDA_CALL_H
#define ST_CUDA_CALL_H

#ifdef __cplusplus
extern "C" {
#endif

#include "backend/backend.h"

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

typedef struct st_cuda_call {
    const st_bound_op *bound; /* host memory; values, weights and state in it are device memory */
    const st_step *step;      /* device memory */
    st_rows kind;             /* which of the step's counts bounds the rows */
    uint32_t rows;            /* sizes the grid: at least that count */
    const void *const *tables[ST_CUDA_TABLES]; /* mapped pinned memory: the expert tables; NULL: the operation has none */
    unsigned char *scratch;   /* device memory for this operation alone */
    void *stream;             /* a cudaStream_t */
} st_cuda_call;

/* Puts the operation's kernels into the stream. Returns a cudaError_t. */
typedef int (*st_cuda_kernel)(const st_cuda_call *call);

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
