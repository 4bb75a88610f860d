/* Tensor cores: products of fragments and loads of matrices, as PTX lays them out over the lanes of a warp. `line`:
 * emulate.h. */
#ifndef TEST_EMULATE_TENSOR_H
#define TEST_EMULATE_TENSOR_H

/* c[16 × 8] += a · b: mma.m16n8k16 of f16, and mma.m16n8k32 of signed bytes */
void emulate_mma_f16(float *c, const unsigned *a, unsigned b0, unsigned b1, int line = __builtin_LINE());

/* ldmatrix.x4: a lane has the address of a row of 16 bytes. It is read when the lane arrives: what other lanes write
 * must be there by then, so a missing __syncwarp shows. */
void emulate_load_matrices(unsigned *out, const void *row, bool transposed, int line = __builtin_LINE());

#endif
