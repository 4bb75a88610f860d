/* Fault injection: a test arms the n-th call of a kind to fail. A call that is not armed costs one relaxed load. */
#ifndef ST_BASE_FAULT_H
#define ST_BASE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

typedef enum st_fault_kind {
    ST_FAULT_ALLOC, /* st_alloc and its relatives */
    ST_FAULT_FILE,  /* st_file_ calls: open, stat, read, map */
    ST_FAULT_PART,  /* parts of a pool that watches a flag: the part sees the flag set */
    ST_FAULT_COUNT
} st_fault_kind;

/* The `nth` call (from 1) of `kind` after this one fails, and with `persistent` every later one too. nth = 0 disarms.
 * Both reset the counter. */
void st_fault_arm(st_fault_kind kind, uint64_t nth, bool persistent);

/* Calls of `kind` since it was last armed. */
uint64_t st_fault_calls(st_fault_kind kind);

/* For the layers below test control: counts this call and returns whether it must fail. */
bool st_fault_hit(st_fault_kind kind);

#endif
