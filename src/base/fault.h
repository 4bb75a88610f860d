/* Failures on demand: tests arm a kind of call to fail at its n-th time. Unarmed it costs one relaxed load. */
#ifndef ST_BASE_FAULT_H
#define ST_BASE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

typedef enum st_fault_kind {
    ST_FAULT_ALLOC, /* st_alloc and its relatives */
    ST_FAULT_FILE,  /* st_file_ calls: open, stat, read, map */
    ST_FAULT_COUNT
} st_fault_kind;

/* From now on the `nth` call (from 1) of `kind` fails, and with `persistent` every later one too. nth = 0 disarms.
 * Both reset the counter. */
void st_fault_arm(st_fault_kind kind, uint64_t nth, bool persistent);

/* Calls of `kind` since it was last armed with a number above zero. */
uint64_t st_fault_calls(st_fault_kind kind);

/* For the layers that can fail: counts this call and says whether it must. */
bool st_fault_hit(st_fault_kind kind);

#endif
