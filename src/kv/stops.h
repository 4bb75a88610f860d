/* Where restore points are taken while a prompt runs: the policy, a pure function of positions. */
#ifndef ST_KV_STOPS_H
#define ST_KV_STOPS_H

#include "kv/restore.h"

#define ST_NO_STOP UINT32_MAX

enum { ST_STOPS_EVERY = 8192 }; /* tokens of a long prompt between passing points */

typedef struct st_stops {
    const uint32_t *marks; /* [mark_count], ascending: positions worth a restore point; those past `end` are ignored */
    uint32_t mark_count;
    uint32_t diverged; /* where the prompt departs from a cached prefix; ST_NO_STOP: it does not */
    uint32_t end;      /* of the prompt */
    uint32_t page_tokens;
} st_stops;

/* The next position after `position` at which a step must end so that a restore point can be taken: a page boundary, at
 * most `end`. Marks and the divergence, each rounded down to a page boundary, give ST_RESTORE_MARK. Multiples of
 * ST_STOPS_EVERY and the last page boundary, both strictly before the end, give ST_RESTORE_PASSING. A
 * boundary of both kinds is a mark. ST_NO_STOP: none is left, and *kind is unchanged. */
uint32_t st_stops_next(const st_stops *stops, uint32_t position, st_restore_kind *kind);

#endif
