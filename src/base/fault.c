#include "base/fault.h"

#include <stdatomic.h>

typedef struct fault_state {
    _Atomic uint64_t nth; /* 0: disarmed */
    _Atomic uint64_t calls;
    _Atomic bool persistent;
} fault_state;

static fault_state faults[ST_FAULT_COUNT];

void st_fault_arm(st_fault_kind kind, uint64_t nth, bool persistent)
{
    atomic_store(&faults[kind].calls, 0);
    atomic_store(&faults[kind].persistent, persistent);
    atomic_store(&faults[kind].nth, nth);
}

uint64_t st_fault_calls(st_fault_kind kind)
{
    return atomic_load(&faults[kind].calls);
}

bool st_fault_hit(st_fault_kind kind)
{
    fault_state *fault = &faults[kind];
    uint64_t nth = atomic_load_explicit(&fault->nth, memory_order_relaxed);
    if (nth == 0) return false;
    uint64_t call = atomic_fetch_add(&fault->calls, 1) + 1;
    return call == nth || (call > nth && atomic_load(&fault->persistent));
}
