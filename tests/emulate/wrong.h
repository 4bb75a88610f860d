/* Small kernels, most of them deliberately wrong, each with the launch that shows it. */
#ifndef TEST_EMULATE_WRONG_H
#define TEST_EMULATE_WRONG_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void emulate_order(uint64_t seed); /* emulate.h */

/* A fault: these do not return. */
void wrong_mask(void);            /* a lane is not in its mask */
void wrong_exited_lane(void);     /* a collective names a lane that has ended */
void wrong_source(void);          /* a shuffle reads a lane outside of the mask */
void wrong_branch(void);          /* half of a warp never arrives at a collective of all */
void wrong_barrier(void);         /* threads are at two different barriers */
void wrong_word(void);            /* 16 bytes are read from an address that is no multiple of 16 */
void wrong_copy(void);            /* … are copied there */
void wrong_grid(void);            /* too many blocks in y */
void wrong_block(void);           /* too many threads */
void wrong_shared(void);          /* 64 KiB of dynamic shared memory that was not allowed */
void wrong_shared_size(void);     /* more is allowed than a GPU has */
void wrong_bounds(void);          /* beyond the dynamic shared memory: found by the address sanitizer alone */

/* Whether the result is right. */
bool shared_reverse(bool barrier);  /* threads of a block read what others wrote; with and without __syncthreads */
bool shared_rotate(bool barrier);   /* … lanes of a warp; __syncwarp */
bool shared_copied(bool wait);      /* cp.async, waited for or not */
bool shared_unwritten(void);        /* dynamic shared memory that nobody wrote is NaN, in every block */
bool blocks_once(void);             /* every block of a grid of three dimensions runs once */
bool last_block_sums(void);         /* the block that counts last adds up what all wrote */
bool halves_apart(void);            /* halves of a warp meet different numbers of times, then all */
bool product_f16(void);             /* mma.m16n8k16 with fragments from ldmatrix, plain and transposed */

#ifdef __cplusplus
}
#endif

#endif
