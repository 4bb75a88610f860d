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
size_t st_strip_bytes(size_t width); /* scratch of a worker for a strip, or for two rows of floats */
st_act_row st_acts_row(const st_acts *acts, size_t row, bool interleaved);
st_act_row st_acts_tile(const st_acts *acts, size_t tile); /* interleaved */

/* Places a strip in a worker's scratch. */
st_strip st_strip_in(float *scratch, size_t width);

/* Unpacks rows first … first + lanes − 1 of a matrix into a strip. */
void st_strip_fill(const st_isa_type *type, const unsigned char *matrix, size_t row_bytes, size_t width, size_t first,
                   size_t lanes, const st_strip *strip);

#endif
