/* CUDA's execution model on one CPU thread: a grid's blocks run one after the other, the threads of a block are
 * fibers. A warp runs until all its lanes wait or have ended, then the next one: warps and lanes are as far apart as
 * barriers and collectives allow, in an order that a seed chooses. Owns launches, barriers and the exchange of
 * values in a warp; finds what a GPU does not forgive, prints it and aborts. Knows neither the CUDA backend nor what
 * a kernel computes. cuda.h and include/backend/cuda/machine.cuh give it the names that kernels use.
 *
 * Not emulated: the order of memory accesses of a GPU, blocks that run at the same time, and time. */
#ifndef TEST_EMULATE_H
#define TEST_EMULATE_H

#include <functional>
#include <stddef.h>
#include <stdint.h>

#include <vector_types.h>

enum { EMULATE_WARP = 32 };

/* What a lane brings to a collective. */
struct emulate_value {
    uint64_t words[8];
};

/* Runs the grid; `body` calls the kernel once, in each thread. `kernel` is its address: the key of emulate_allow. */
void emulate_launch(const void *kernel, dim3 blocks, dim3 threads, size_t shared_bytes,
                    const std::function<void()> &body);
/* Dynamic shared memory beyond 48 KiB must be allowed first, up to 99 KiB. */
void emulate_allow(const void *kernel, size_t shared_bytes);
/* The order of blocks, warps and lanes: 0 ascending, 1 descending, others shuffled. The first value is
 * STRATA_EMULATE_SEED. */
extern "C" void emulate_order(uint64_t seed);

/* For the threads of a kernel. `line` is the source line: the threads that meet must be at the same one. */
unsigned emulate_lane();
void *emulate_dynamic();
void emulate_barrier(int line);
/* Waits for the lanes of the mask. Returns the values of all 32 lanes, valid until the lane's next wait. */
const emulate_value *emulate_meet(unsigned mask, const emulate_value &own, int line);

/* cp.async: the copy is made as late as a GPU may make it, when its group is waited for. Bytes beyond `present`
 * become 0. */
void emulate_copy(void *to, const void *from, unsigned bytes, unsigned present);
void emulate_copies_end();
void emulate_copies_wait(unsigned groups_left);

void emulate_aligned(const void *address, size_t bytes); /* aborts unless it is a multiple of so many */
[[noreturn]] void emulate_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
