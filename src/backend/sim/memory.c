/* GPU memory: an address range of its own, so an address tells whether it is the GPU's. First fit. */
#include <string.h>
#include <sys/mman.h>

#include "backend/sim/world.h"
#include "base/alloc.h"
#include "base/check.h"
#include "base/error.h"

enum { PAGE = 4096, POISON = 0xFF };
#define POISON_MAX ((size_t)256 << 20) /* larger blocks keep their unallocated pages, which are zero */

strata_status st_sim_memory_open(st_sim_memory *memory, uint64_t capacity, uint64_t granularity, strata_error *error)
{
    *memory = (st_sim_memory){.capacity = (size_t)capacity, .granularity = ST_SIM_ALIGNMENT};
    size_t wanted;
    if (st_align_size((size_t)granularity, ST_SIM_ALIGNMENT, &wanted) && wanted) memory->granularity = wanted;
    if (capacity == 0) return STRATA_OK;
    void *base = memory->capacity == capacity ? mmap(NULL, memory->capacity, PROT_READ | PROT_WRITE,
                                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                                              : MAP_FAILED;
    if (base == MAP_FAILED) return st_error_memory(error, (size_t)capacity, "address space of the simulated GPU");
    memory->base = base;
    return STRATA_OK;
}

void st_sim_memory_close(st_sim_memory *memory)
{
    if (memory->base) munmap(memory->base, memory->capacity);
    st_free(memory->ranges);
    *memory = (st_sim_memory){0};
}

void st_sim_poison(void *memory, size_t bytes)
{
    if (bytes) memset(memory, POISON, bytes);
}

bool st_sim_is_large(size_t bytes)
{
    return bytes > POISON_MAX;
}

/* Gives the whole pages among `bytes` bytes back: they are zeros when they are used again. */
static void drop_pages(unsigned char *memory, size_t bytes)
{
    uintptr_t first = st_align_up((uintptr_t)memory, PAGE), end = ((uintptr_t)memory + bytes) / PAGE * PAGE;
    if (first < end) madvise((void *)first, end - first, MADV_DONTNEED);
}

void st_sim_zero(void *memory, size_t bytes)
{
    size_t edge = st_sim_is_large(bytes) ? PAGE : bytes;
    memset(memory, 0, edge);
    if (edge == bytes) return;
    memset((unsigned char *)memory + bytes - PAGE, 0, PAGE);
    drop_pages(memory, bytes);
}

static bool make_room(st_sim_memory *memory)
{
    if (memory->count < memory->room) return true;
    uint32_t room = memory->room ? memory->room * 2 : 16;
    st_sim_range *ranges = st_realloc(memory->ranges, room * sizeof *ranges);
    if (!ranges) return false;
    memory->ranges = ranges;
    memory->room = room;
    return true;
}

/* The first gap of `bytes`: its offset, and the index of the range behind it. */
static bool find_gap(const st_sim_memory *memory, size_t bytes, uint32_t *index, size_t *offset)
{
    size_t start = 0;
    for (uint32_t i = 0; i <= memory->count; i++) {
        size_t end = i < memory->count ? memory->ranges[i].offset : memory->capacity;
        if (end - start >= bytes) {
            *index = i;
            *offset = start;
            return true;
        }
        if (i < memory->count) start = memory->ranges[i].offset + memory->ranges[i].taken;
    }
    return false;
}

strata_status st_sim_memory_take(st_sim_memory *memory, size_t bytes, void **out, strata_error *error)
{
    size_t taken, offset;
    uint32_t index;
    if (!st_align_size(bytes ? bytes : 1, memory->granularity, &taken) || !find_gap(memory, taken, &index, &offset))
        return st_error_set(error, STRATA_MEMORY, "use fewer layers on the GPU, or a smaller context",
                            "the simulated GPU: out of memory: %zu bytes requested, %zu of %zu in use", bytes,
                            memory->used, memory->capacity);
    if (!make_room(memory)) return st_error_memory(error, sizeof *memory->ranges, "the simulated GPU's allocations");
    memmove(memory->ranges + index + 1, memory->ranges + index, (memory->count - index) * sizeof *memory->ranges);
    memory->ranges[index] = (st_sim_range){.offset = offset, .taken = taken, .bytes = bytes};
    memory->count++;
    memory->used += taken;
    if (!st_sim_is_large(bytes)) st_sim_poison(memory->base + offset, bytes); /* new GPU memory is not zeroed */
    *out = memory->base + offset;
    return STRATA_OK;
}

void st_sim_memory_give(st_sim_memory *memory, void *address)
{
    uint32_t i = 0;
    while (i < memory->count && memory->base + memory->ranges[i].offset != (unsigned char *)address) i++;
    if (i == memory->count) {
        memory->bad_free = true;
        return;
    }
    st_sim_range range = memory->ranges[i];
    memory->used -= range.taken;
    memory->count--;
    memmove(memory->ranges + i, memory->ranges + i + 1, (memory->count - i) * sizeof *memory->ranges);
    drop_pages(memory->base + range.offset, range.taken);
}

/* The offset of an address; SIZE_MAX: outside. */
static size_t offset_of(const st_sim_memory *memory, const void *address)
{
    uintptr_t base = (uintptr_t)memory->base, at = (uintptr_t)address;
    return memory->base && at >= base && at - base < memory->capacity ? at - base : SIZE_MAX;
}

bool st_sim_memory_holds(const st_sim_memory *memory, const void *address, size_t bytes)
{
    size_t offset = offset_of(memory, address);
    for (uint32_t i = 0; offset != SIZE_MAX && i < memory->count; i++) {
        const st_sim_range *range = &memory->ranges[i];
        if (offset < range->offset || offset - range->offset > range->bytes) continue;
        if (bytes <= range->bytes - (offset - range->offset)) return true;
    }
    return false;
}

bool st_sim_memory_touches(const st_sim_memory *memory, const void *address, size_t bytes)
{
    if (bytes == 0 || !memory->base) return false;
    uintptr_t base = (uintptr_t)memory->base, at = (uintptr_t)address;
    return at < base + memory->capacity && (at >= base || bytes > base - at);
}
