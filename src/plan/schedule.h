/* The scheduler: turns the device of every operation into stages, which are runs of operations on one device and moves
 * of values between devices. Pure; knows no address and no time.
 *
 * The host executes its stages in order and synchronously. The GPU has one in-order queue for runs and for moves of
 * both directions; the host enqueues its stages and continues. The GPU's stages therefore need no waits among each
 * other, and when one has ended, all before it have. The host waits only where a stage says so. */
#ifndef ST_PLAN_SCHEDULE_H
#define ST_PLAN_SCHEDULE_H

#include "base/arena.h"
#include "model/program.h"

enum { ST_DEVICES_MAX = 2, ST_HOST = 0, ST_CARD = 1 }; /* the host is always the first device */

typedef enum st_stage_kind {
    ST_STAGE_RUN,   /* `ops` on `device` */
    ST_STAGE_MOVE,  /* `value` from `from` to `device` */
    ST_STAGE_SPLIT, /* after the run that ends with `ops`, routed experts: adds the experts that the GPU lacks */
    ST_STAGE_WATCH, /* after the run that ends with `ops`, routed experts: the host reads the routing */
} st_stage_kind;

/* Flags of routed experts beside their device. The operation ends its run, its inputs are moved to the host too, and a
 * SPLIT follows (ST_SHARED: the GPU may lack some of the experts) or else a WATCH. A SPLIT can read the routing as
 * well. */
enum { ST_SHARED = 2, ST_WATCHED = 4 };

/* A flag of an operation on the GPU whose matrices stay in RAM and are copied for it: it is a run of its own, so that
 * the copies overlap with the runs before it, and their memory is free when it ends. */
enum { ST_FETCHED = 8 };

enum { ST_NO_STAGE = -1 };

typedef struct st_stage {
    st_stage_kind kind;
    uint8_t device, from;
    bool awaited;    /* a MOVE: the host waits for its end, so an event is recorded behind it */
    bool guarded;    /* a MOVE to the host: in a chain the GPU waits before it until the host's runs have ended, which may
                        read what it overwrites */
    st_op_range ops;
    int32_t value;
    int32_t wait;    /* of a stage of the host: the MOVE that must have ended before it begins (and with it all before
                        that); ST_NO_STAGE: none, or one that an earlier stage has waited for */
    bool fetched;    /* a RUN of one ST_FETCHED operation */
} st_stage;

typedef struct st_stages {
    const st_stage *stages;
    uint32_t count;
    int32_t pending; /* the last MOVE from the host that no stage has waited for: it may still read the host's memory at
                        the end of the range. All but this part's head wait for it before they write values there */
    bool chained;    /* with few rows the GPU's stages may be one chain (backend.h): the GPU runs ahead of the host, up
                        to the next value that it needs from there, and overwrites nothing that the host still reads */
} st_stages;

/* The stages of one range of the program. `placed` is [operations]: the device, with flags. `valid` is [values]: on
 * which devices (bit d) each is at hand, before and after; a head starts from what its body left. A value that an
 * operation reads on a device that does not have it moves there once. After a failure `valid` is undefined. */
strata_status st_schedule_build(const st_program *program, const uint8_t *placed, st_op_range range, uint8_t *valid,
                                st_arena *arena, st_stages *out, strata_error *error);

#endif
