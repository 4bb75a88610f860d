/* Where operations run → the order of work: runs of operations on one device, and the values that cross between them.
 * The executor walks it and the cost model prices it. Pure; knows no address and no time.
 *
 * The host does its stages one after the other and at once. A card has one queue for runs and for moves of both
 * directions; the host puts its stages there in order and goes on. So a card's stages need no waits among each other,
 * and when one of them has ended, so have all before it. The host waits only where a run says so. */
#ifndef ST_PLAN_SCHEDULE_H
#define ST_PLAN_SCHEDULE_H

#include "base/arena.h"
#include "model/program.h"

enum { ST_DEVICES_MAX = 2, ST_HOST = 0, ST_CARD = 1 }; /* the host is always the first device */

typedef enum st_stage_kind {
    ST_STAGE_RUN,  /* `ops` on `device` */
    ST_STAGE_MOVE, /* `value` from `from` to `device` */
    ST_STAGE_SPLIT, /* behind the run that ends with `ops`, routed experts: what the card has not of them is added, and whoever
                       watches the routing looks at it */
} st_stage_kind;

/* In op_device, of routed experts: on the card with their inputs on the host too; or on the host and looked at. Both end
 * their run, and a SPLIT follows. */
enum { ST_SPLIT = 2, ST_WATCHED = 3 };

enum { ST_NO_STAGE = -1 };

typedef struct st_stage {
    st_stage_kind kind;
    uint8_t device, from;
    bool awaited;    /* a MOVE: somebody waits for its end, so a mark is wanted behind it */
    st_op_range ops;
    int32_t value;
    int32_t wait;    /* a RUN on the host, or a SPLIT: the MOVE that must have ended before it begins (and with it all before that);
                        ST_NO_STAGE: none, or one that an earlier RUN has waited for */
} st_stage;

typedef struct st_stages {
    const st_stage *stages;
    uint32_t count;
    int32_t pending; /* the last MOVE from the host that no RUN has waited for: it may still read the host's memory when
                        the range is through. Anything but this part's head waits for it before writing values there */
} st_stages;

/* One of the program's ranges in order. `op_device` is of the whole program; `valid` says for each value on which
 * devices (bit d) it is at hand, before and after: a head starts from what its body left. A value that an operation
 * reads on a device where it is not moves there once. After a failure `valid` says nothing. */
strata_status st_schedule_build(const st_program *program, const uint8_t *op_device, st_op_range range, uint8_t *valid,
                                st_arena *arena, st_stages *out, strata_error *error);

#endif
