/* Work on a range of memory, divided among threads: what the system does for each page of it. */
#ifndef ST_BASE_SLICES_H
#define ST_BASE_SLICES_H

#include <stddef.h>

typedef void (*st_slice_work)(void *memory, size_t bytes);

/* Calls `work` for slices that cover the range, at the same time in as many threads as there are cores, at most 16. All but the
 * last have a multiple of `unit` bytes. The calling thread takes the slices whose threads cannot be started. */
void st_slices_run(void *memory, size_t bytes, size_t unit, st_slice_work work);

#endif
