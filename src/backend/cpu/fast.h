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

enum { ST_EXPECTED_BYTES = 128 << 10 }; /* of weights, which a thread prefetches before it needs them: it stays in the L2 cache */

/* What the threads read first for `rows` rows, fewer than ST_FEW_ROWS, if the first of the operations is a matrix product. */
bool st_cpu_fast_expected(const st_isa *isa, const st_bound_op *ops, uint32_t count, uint32_t rows, uint32_t threads,
                          st_pool_range *out);

/* --- quantised activations ---------------------------------------------------------------------------------------- */

/* Rows of `width` int8 activations in scratch, in tiles of ST_ACT_TILE rows. The rows of a tile are contiguous (for
 * dots, and residuals) or interleaved block by block (for strips). */
typedef struct st_acts {
    unsigned char *memory;
    size_t width;
} st_acts;

size_t st_acts_bytes(size_t width, size_t rows);
st_act_row st_acts_row(const st_acts *acts, size_t row, bool interleaved);
st_act_row st_acts_tile(const st_acts *acts, size_t tile); /* interleaved */
st_act_halves st_acts_halves(const st_acts *acts, size_t row); /* contiguous */

/* Some rows of a matrix. */
typedef struct st_row_range {
    const st_bound_weight *matrix;
    const unsigned char *rows;
    size_t lanes;
    const unsigned char *next; /* the rows that are read after these; NULL: unknown */
} st_row_range;

/* Unpacks elements at … at + count − 1, at most ST_STRIP_WIDTH, of at most ST_STRIP_ROWS rows. */
st_strip st_strip_fill(const st_isa_type *type, const st_row_range *rows, size_t at, size_t count, float *scratch);
size_t st_strip_part_bytes(void); /* scratch of st_strip_fill */

/* Activations of a batch: the tokens from a tile on, in int8 and interleaved, or in bfloat16. */
typedef struct st_batch {
    st_acts acts;
    st_acts rest;               /* residuals of the refined blocks, not interleaved */
    const st_refined *lists;    /* [tokens]: the refined blocks; NULL: none */
    const unsigned char *panel; /* bfloat16, from the first token on; NULL: int8 */
    size_t tile, tokens;
    const unsigned char *next; /* st_row_range.next of the rows that are multiplied */
} st_batch;

/* Scratch of a worker for st_batch_multiply, with any kernels. */
size_t st_batch_bytes(size_t width, size_t columns, size_t tokens);

/* out[t × stride + i] = token t of the batch · row first + i of a matrix, for `columns` rows: at most ST_PANEL_COLUMNS
 * with bfloat16 activations, otherwise ST_STRIP_ROWS. `data` is where the matrix is. */
void st_batch_multiply(const st_cpu_call *call, const st_bound_weight *matrix, const void *data, size_t first,
                       size_t columns, const st_batch *batch, float *scratch, float *out, size_t stride);

/* --- activations in bfloat16 (fast_panel.c) ----------------------------------------------------------------------- */

/* Rows of activations in tiles of ST_PANEL_TILE rows. */
size_t st_panel_bytes(size_t width, size_t rows);
void st_panel_pack(const st_isa_panels *panels, const float *x, size_t width, unsigned char *panel, size_t row);
void st_panel_copy(unsigned char *panel, size_t width, size_t from, size_t to); /* row `from` to row `to` */

size_t st_panel_scratch_bytes(size_t columns, size_t tokens); /* of a worker for st_panel_multiply */
/* out[t × stride + i] = token t of the panel · row i */
void st_panel_multiply(const st_cpu_call *call, const st_row_range *rows, const unsigned char *panel, size_t tokens,
                       float *scratch, float *out, size_t stride);

#endif
