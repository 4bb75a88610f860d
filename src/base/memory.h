/* The memory of the host, within the limits of the process's control groups. Reads files of the system. */
#ifndef ST_BASE_MEMORY_H
#define ST_BASE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

typedef struct st_memory {
    uint64_t total_bytes, available_bytes;
} st_memory;

/* The host's memory now: a container's limit counts as its total. */
st_memory st_memory_now(void);

/* Reads a file in the format of /proc/meminfo; false if a field is missing. */
bool st_memory_read(const char *path, st_memory *out);

/* Lowers `memory` to the limits of the process's control groups (versions 1 and 2) and their ancestors. Memory that
 * a group uses is not available; its reclaimable page cache is. `root` is put before each path of the system ("":
 * this machine). */
void st_memory_limit(const char *root, st_memory *memory);

/* The bytes that a measurement of memory reads, given the size of the last-level cache (some machines have 300 MiB)
 * and the available memory: three times the cache, from 256 MiB to 4 GiB, and at most a quarter of the memory. */
uint64_t st_memory_probe_bytes(uint64_t cache_bytes, uint64_t available_bytes);
uint64_t st_memory_probe_bytes_now(void); /* the same on this machine */

#endif
