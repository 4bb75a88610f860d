/* A model of any size on a described machine, in virtual time: no tensor is computed, the routing comes from the test. Any
 * failure fails the test. */
#ifndef TEST_SUPPORT_CLOCK_RIG_H
#define TEST_SUPPORT_CLOCK_RIG_H

#include "backend/sim/sim.h"
#include "run/load.h"
#include "support/plan_rig.h"

typedef struct clock_rig {
    plan_rig plan;
    st_sim_world *world;
    st_load_device devices[ST_DEVICES_MAX];
    st_load *load;
    st_run *run;
    st_stream *stream; /* NULL: no expert cache */
    st_watch watch;    /* counts the routing of a watched plan */
} clock_rig;

/* A desktop: 64 GiB of RAM at 60 GB/s, a GPU of `card_bytes` at 504 GB/s on a link of 25 GB/s; a context of 32,768 tokens of
 * bf16. The caller may change r->plan.devices and r->plan.options before clock_rig_load. */
void clock_rig_open(clock_rig *r, const plan_shape *shape, uint64_t card_bytes);
void clock_rig_load(clock_rig *r, const st_stream_options *experts, const st_sim_routing *routing);
void clock_rig_close(clock_rig *r);

void clock_must(strata_status status, const strata_error *error);

/* Waits for the row's logits or, in an answer, for its candidates where the GPU reduces logits. */
void clock_head(st_run *run, uint32_t row, bool prompt);

/* Runs the next `count` tokens of the conversation and waits for the head of the last. */
void clock_rig_step(clock_rig *r, st_conversation *c, uint32_t count);

#endif
