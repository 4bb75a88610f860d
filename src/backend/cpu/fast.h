/* The fast path: drivers that split operations into parts for the pool and leave the arithmetic to an instruction set
 * (isa.h). A result depends on the instruction set but not on the number of threads. */
#ifndef ST_BACKEND_CPU_FAST_H
#define ST_BACKEND_CPU_FAST_H

#include "backend/cpu/cpu.h"

/* A kernel for every operation; where no fast kernel fits, the reference kernel of ref.c runs. */
extern const st_cpu_kernel st_cpu_fast_kernels[ST_OP_COUNT];

void st_cpu_fast_matmul(const st_cpu_call *call);
void st_cpu_fast_experts(const st_cpu_call *call);
void st_cpu_fast_attention(const st_cpu_call *call);
void st_cpu_fast_conv(const st_cpu_call *call);
void st_cpu_fast_deltanet(const st_cpu_call *call);
void st_cpu_fast_ssm(const st_cpu_call *call);

st_scratch st_cpu_fast_matmul_scratch(const st_bound_op *shape, uint32_t rows);
st_scratch st_cpu_fast_experts_scratch(const st_bound_op *shape, uint32_t rows);

/* How many of the operations at `ops` (count ≥ 1) are matrix products of the same input and can run as one. */
uint32_t st_cpu_fast_group(const st_isa *isa, const st_bound_op *ops, uint32_t count);

/* --- quantised activations ---------------------------------------------------------------------------------------- */

/* Rows of `width` int8 activations in scratch, in tiles of ST_ACT_TILE rows. The rows of a tile are contiguous (for
 * dots) or interleaved block by block (for strips). */
typedef struct st_acts {
    unsigned char *memory;
    size_t width;
} st_acts;

size_t st_acts_bytes(size_t width, size_t rows);
st_act_row st_acts_row(const st_acts *acts, size_t row, bool interleaved);
st_act_row st_acts_tile(const st_acts *acts, size_t tile); /* interleaved */

/* Tokens whose activations are interleaved, from a tile on. */
typedef struct st_batch {
    st_acts acts;
    st_acts rest;            /* residuals of the refined blocks, not interleaved */
    const st_refined *lists; /* [tokens]: the refined blocks; NULL: none */
    size_t tile, tokens;
} st_batch;

size_t st_strip_bytes(size_t width, size_t tokens); /* scratch of a worker for st_strip_multiply */

/* out[t × stride + i] = token t of the batch · row first + i of a matrix, for `lanes` rows, at most ST_STRIP_ROWS. `data` is
 * where the matrix is. */
void st_strip_multiply(const st_isa *isa, const st_bound_weight *matrix, const void *data, size_t first, size_t lanes,
                       const st_batch *batch, float *scratch, float *out, size_t stride);

#endif
