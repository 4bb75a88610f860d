/* The ledger: device × owner, to the byte. The plan reserves a range and its owner commits it; after
 * loading the ledger is locked, and a commit is an error. If a device reports its free memory exactly, the
 * ledger queries it before and after loading, so that the plan is checked against the device. Owns the numbers and the
 * block of each device; knows no model and decides nothing. */
#ifndef ST_MEMORY_LEDGER_H
#define ST_MEMORY_LEDGER_H

#include "backend/backend.h"
#include "plan/plan.h"

typedef struct st_ledger st_ledger;

/* A line of the trace: used and free bytes of a device at a named moment. */
typedef void (*st_ledger_trace)(void *context, const char *moment, const char *device, uint64_t used_bytes,
                                uint64_t free_bytes);

/* Empty; nothing is reserved. `trace` may be NULL. */
strata_status st_ledger_new(uint32_t device_count, st_ledger_trace trace, void *context, st_ledger **out,
                            strata_error *error);
/* Frees every block. STRATA_MEMORY, with the device and both numbers, if a device then has not as many bytes free as
 * before its block was allocated. */
strata_status st_ledger_close(st_ledger *ledger, strata_error *error);

void st_ledger_name(st_ledger *ledger, uint32_t device, const char *name, uint64_t capacity_bytes);

/* Reserves bytes that the plan gives to an owner. */
void st_ledger_reserve(st_ledger *ledger, uint32_t device, st_owner owner, uint64_t bytes);

/* Allocates the device's block, which st_ledger_close frees. It may have 0 bytes. */
strata_status st_ledger_allocate(st_ledger *ledger, uint32_t device, const st_backend *backend, st_device *handle,
                                 uint64_t bytes, bool host_memory, strata_error *error);
unsigned char *st_ledger_block(const st_ledger *ledger, uint32_t device);

/* Commits bytes to an owner: a range of the block, or mapped memory. */
void st_ledger_commit(st_ledger *ledger, uint32_t device, st_owner owner, uint64_t bytes);

/* Later commits are an error, which st_ledger_check reports. */
void st_ledger_lock(st_ledger *ledger);

void st_ledger_mark(st_ledger *ledger, const char *moment); /* calls trace for every device */

typedef struct st_ledger_line {
    uint64_t reserved, committed;
} st_ledger_line;

st_ledger_line st_ledger_at(const st_ledger *ledger, uint32_t device, st_owner owner);

/* STRATA_MEMORY with device, owner and both numbers at the first difference between reserved and committed, or if
 * something was committed after the lock, or if the device's free bytes have not shrunk by what was reserved. Runtime
 * is the driver's and not compared. */
strata_status st_ledger_check(const st_ledger *ledger, strata_error *error);

#endif
