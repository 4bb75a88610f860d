#include "emulate/emulate.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

#include "emulate/fiber.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

enum {
    THREADS_MAX = 1024, WARPS_MAX = THREADS_MAX / EMULATE_WARP,
    GRID_YZ_MAX = 65535,
    SHARED_FREE = 48 << 10, SHARED_MAX = 99 << 10, /* the least of the supported GPUs */
    SHARED_ALIGNMENT = 128,
    UNWRITTEN = 0xFF, /* NaN */
    EXCHANGES = EMULATE_WARP + 1, /* each lane may still read another one */
};

/* The values of one collective, until all of its lanes have read them. */
struct exchange {
    unsigned unread; /* mask of lanes */
    emulate_value values[EMULATE_WARP];
};

struct copy {
    void *to;
    const void *from;
    unsigned bytes, present;
};

enum state { READY, MEETS, AT_BARRIER, ENDED };
static const char *const states[] = {"runs", "waits in a collective", "waits at the barrier", "has ended"};

struct thread {
    fiber own;
    enum state state;
    uint3 index;
    int line;      /* where it waits */
    unsigned mask; /* of the lanes that it waits for */
    emulate_value value;
    exchange *read;
    std::vector<copy> copies;     /* made when their group is waited for */
    std::vector<size_t> groups;   /* for each group: how many copies it has */
    size_t open_copies;           /* of no group yet */
};

static thread threads[THREADS_MAX];
static exchange exchanges[WARPS_MAX][EXCHANGES];
static unsigned waiting[WARPS_MAX]; /* the lanes of a warp that wait in a collective */
static unsigned thread_count, current; /* of the block; the thread that runs */
static const std::function<void()> *kernel_body;
static void *dynamic;
static std::mutex lock; /* a launch at a time */
static std::map<const void *, size_t> allowed; /* dynamic shared memory of a kernel */

/* --- faults ------------------------------------------------------------------------------------------------------- */

void emulate_fault(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "emulate: block %u %u %u, thread %u: ", blockIdx.x, blockIdx.y, blockIdx.z, current);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    abort();
}

void emulate_aligned(const void *address, size_t bytes)
{
    if ((uintptr_t)address % bytes) emulate_fault("address %p is not a multiple of %zu bytes", address, bytes);
}

/* --- the order of blocks, warps and lanes ------------------------------------------------------------------------- */

static uint64_t seed, random_state;

void emulate_order(uint64_t value)
{
    seed = random_state = value;
}

static void read_seed()
{
    static bool was_read;
    const char *text = was_read ? NULL : getenv("STRATA_EMULATE_SEED");
    was_read = true;
    if (text) emulate_order(strtoull(text, NULL, 10));
}

static uint32_t next_random() /* splitmix64 */
{
    uint64_t z = random_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)(z >> 32);
}

static void put_in_order(uint32_t *out, uint32_t count)
{
    std::iota(out, out + count, 0u);
    if (seed == 1) std::reverse(out, out + count);
    if (seed > 1)
        for (uint32_t i = count; i > 1; i--) std::swap(out[i - 1], out[next_random() % i]);
}

/* --- what a thread calls ------------------------------------------------------------------------------------------ */

unsigned emulate_lane()
{
    return current % EMULATE_WARP;
}

void *emulate_dynamic()
{
    return dynamic;
}

static void stop_reading(thread &t)
{
    if (t.read) t.read->unread &= ~(1u << emulate_lane());
    t.read = NULL;
}

void emulate_barrier(int line)
{
    thread &t = threads[current];
    stop_reading(t);
    t.state = AT_BARRIER;
    t.line = line;
    fiber_yield();
}

static bool is_same_place(const thread &a, const thread &b)
{
    return a.state == MEETS && b.state == MEETS && a.mask == b.mask && a.line == b.line;
}

/* Whether all lanes of the thread's mask wait with it. */
static bool all_meet(const thread *warp, unsigned waiting, const thread &t)
{
    if ((waiting & t.mask) != t.mask) return false;
    for (unsigned i = 0; i < EMULATE_WARP; i++)
        if (t.mask >> i & 1 && !is_same_place(warp[i], t)) return false;
    return true;
}

static void exchange_values(unsigned first, unsigned mask)
{
    exchange *free_one = exchanges[first / EMULATE_WARP];
    while (free_one->unread) free_one++;
    free_one->unread = mask;
    waiting[first / EMULATE_WARP] &= ~mask;
    for (unsigned i = 0; i < EMULATE_WARP; i++) {
        thread &t = threads[first + i];
        if (!(mask >> i & 1)) continue;
        free_one->values[i] = t.value;
        t.read = free_one;
        t.state = READY;
    }
}

const emulate_value *emulate_meet(unsigned mask, const emulate_value &own, int line)
{
    thread &t = threads[current];
    unsigned first = current / EMULATE_WARP * EMULATE_WARP;
    if (!(mask >> emulate_lane() & 1))
        emulate_fault("lane %u is not in its mask %08x (line %d)", emulate_lane(), mask, line);
    stop_reading(t);
    t.value = own;
    t.mask = mask;
    t.line = line;
    t.state = MEETS;
    waiting[first / EMULATE_WARP] |= 1u << emulate_lane();
    if (all_meet(&threads[first], waiting[first / EMULATE_WARP], t)) exchange_values(first, mask);
    else fiber_yield();
    return t.read->values;
}

/* --- asynchronous copies ------------------------------------------------------------------------------------------ */

void emulate_copy(void *to, const void *from, unsigned bytes, unsigned present)
{
    emulate_aligned(to, bytes);
    if (present) emulate_aligned(from, bytes);
    thread &t = threads[current];
    t.copies.push_back({to, from, bytes, present});
    t.open_copies++;
}

void emulate_copies_end()
{
    thread &t = threads[current];
    t.groups.push_back(t.open_copies);
    t.open_copies = 0;
}

void emulate_copies_wait(unsigned groups_left)
{
    thread &t = threads[current];
    size_t done = 0;
    while (t.groups.size() > groups_left) {
        for (size_t i = 0; i < t.groups.front(); i++, done++) {
            const copy &c = t.copies[done];
            memcpy(c.to, c.from, c.present);
            memset((char *)c.to + c.present, 0, c.bytes - c.present);
        }
        t.groups.erase(t.groups.begin());
    }
    t.copies.erase(t.copies.begin(), t.copies.begin() + (ptrdiff_t)done);
}

/* --- a block ------------------------------------------------------------------------------------------------------ */

static void run_thread()
{
    (*kernel_body)();
}

static void start_threads()
{
    for (unsigned i = 0; i < thread_count; i++) {
        thread &t = threads[i];
        t.state = READY;
        t.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
        t.read = NULL;
        t.copies.clear();
        t.groups.clear();
        t.open_copies = 0;
        fiber_start(t.own, run_thread);
    }
    for (unsigned i = 0; i < thread_count; i += EMULATE_WARP) {
        waiting[i / EMULATE_WARP] = 0;
        for (exchange &e : exchanges[i / EMULATE_WARP]) e.unread = 0;
    }
}

static void resume(unsigned index)
{
    thread &t = threads[index];
    current = index;
    threadIdx = t.index;
    fiber_resume(t.own);
    if (!t.own.ended) return;
    stop_reading(t);
    t.state = ENDED;
}

/* A lane that waits for another one waits for ever once no lane of the warp can run. */
static void check_warp(unsigned first, unsigned count)
{
    if (!waiting[first / EMULATE_WARP]) return;
    current = first + (unsigned)__builtin_ctz(waiting[first / EMULATE_WARP]);
    const thread &t = threads[current];
    for (unsigned i = 0; i < EMULATE_WARP; i++) {
        const thread &other = threads[first + i];
        if (!(t.mask >> i & 1) || (i < count && is_same_place(t, other))) continue;
        emulate_fault("deadlock: it waits in a collective (line %d, mask %08x) for lane %u, which %s (line %d)", t.line,
                      t.mask, i, states[i < count ? other.state : ENDED], other.line);
    }
}

/* Runs a warp until no lane can go on. */
static void run_warp(unsigned warp)
{
    unsigned first = warp * EMULATE_WARP, count = std::min(thread_count - first, (unsigned)EMULATE_WARP);
    uint32_t order[EMULATE_WARP];
    put_in_order(order, count);
    for (bool progress = true; progress;) {
        progress = false;
        for (unsigned i = 0; i < count; i++) {
            if (threads[first + order[i]].state != READY) continue;
            resume(first + order[i]);
            progress = true;
        }
    }
    check_warp(first, count);
}

/* All threads that have not ended are at the barrier. Returns whether there are any. */
static bool pass_barrier()
{
    const thread *one = NULL;
    for (unsigned i = 0; i < thread_count; i++) {
        thread &t = threads[i];
        if (t.state == ENDED) continue;
        current = i;
        if (!one) one = &t;
        if (t.line != one->line)
            emulate_fault("it is at the barrier of line %d, and thread %u at that of line %d", t.line,
                          (unsigned)(one - threads), one->line);
        t.state = READY;
    }
    return one != NULL;
}

static void run_block(size_t shared_bytes)
{
    uint32_t order[WARPS_MAX];
    unsigned warps = (thread_count + EMULATE_WARP - 1) / EMULATE_WARP;
    memset(dynamic, UNWRITTEN, shared_bytes);
    start_threads();
    do {
        put_in_order(order, warps);
        for (unsigned i = 0; i < warps; i++) run_warp(order[i]);
    } while (pass_barrier());
}

/* --- a grid ------------------------------------------------------------------------------------------------------- */

void emulate_allow(const void *kernel, size_t shared_bytes)
{
    std::lock_guard<std::mutex> held(lock);
    if (shared_bytes > SHARED_MAX)
        emulate_fault("%zu bytes of dynamic shared memory, of %d", shared_bytes, (int)SHARED_MAX);
    allowed[kernel] = shared_bytes;
}

static void check_launch(const void *kernel, dim3 grid, dim3 block, size_t shared_bytes)
{
    uint64_t count = (uint64_t)block.x * block.y * block.z;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > INT32_MAX || grid.y > GRID_YZ_MAX || grid.z > GRID_YZ_MAX)
        emulate_fault("a grid of %u × %u × %u blocks", grid.x, grid.y, grid.z);
    if (count == 0 || count > THREADS_MAX) emulate_fault("a block of %u × %u × %u threads", block.x, block.y, block.z);
    if (shared_bytes <= SHARED_FREE) return;
    auto found = allowed.find(kernel);
    if (found == allowed.end() || found->second < shared_bytes)
        emulate_fault("%zu bytes of dynamic shared memory: more than %d must be allowed by cudaFuncSetAttribute",
                      shared_bytes, (int)SHARED_FREE);
}

static void *new_shared(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, SHARED_ALIGNMENT, bytes ? bytes : 1)) emulate_fault("no memory");
    return memory;
}

void emulate_launch(const void *kernel, dim3 blocks, dim3 block, size_t shared_bytes,
                    const std::function<void()> &body)
{
    std::lock_guard<std::mutex> held(lock);
    read_seed();
    check_launch(kernel, blocks, block, shared_bytes);
    gridDim = blocks;
    blockDim = block;
    thread_count = block.x * block.y * block.z;
    kernel_body = &body;
    dynamic = new_shared(shared_bytes); /* of the exact size, for the address sanitizer */
    std::vector<uint32_t> order((size_t)blocks.x * blocks.y * blocks.z);
    put_in_order(order.data(), (uint32_t)order.size());
    for (uint32_t at : order) {
        blockIdx = {at % blocks.x, at / blocks.x % blocks.y, at / blocks.x / blocks.y};
        run_block(shared_bytes);
    }
    free(dynamic);
}
