/* A small simulated machine for tests: a GPU with round rates, and two operations to run on it. */
#ifndef TEST_SUPPORT_SIM_RIG_H
#define TEST_SUPPORT_SIM_RIG_H

#include "backend/sim/sim.h"
#include "support/kit.h"

enum {
    SIM_IN = 4,
    SIM_OUT = 3,
    SIM_ROWS = 2,
    SIM_POSITION = 7,
    SIM_CAPACITY = 1 << 20,
    SIM_GRANULARITY = 512,
    SIM_WEIGHT_BYTES = SIM_IN * SIM_OUT * 4,
};

/* Rates per second: the GPU 1000 bytes and 10,000 operations, the link 100 bytes up and 50 down, the host 500 bytes and
 * 2000 operations. */
st_sim_options sim_options(void);

/* The step block of a run: SIM_ROWS rows of one conversation from SIM_POSITION on, without page tables. */
extern const st_step_limits sim_step_limits;

/* y = w · x, then z = y + y. */
extern const st_program sim_program;
extern const st_binding sim_binding;

typedef struct sim_rig {
    st_sim_world *world;
    const st_backend *card;
    st_device *device;
    st_queue *compute, *up;
    /* On the GPU, parts of one block; and pinned on the host. */
    unsigned char *block, *host;
    st_step *step, *host_step;
    float *weights, *x, *z, *host_x, *host_z;
    void *scratch;
    st_bound_op ops[2];
    st_segment *segment;
} sim_rig;

/* On failure returns the error; sim_rig_close then frees what was allocated. */
strata_status sim_rig_open(sim_rig *r, st_sim_world *world, strata_error *error);
void sim_rig_close(sim_rig *r);

/* Uploads step, weights and input on `up`, runs on `compute` (after the uploads if `wait`), and downloads z. */
strata_status sim_rig_run(sim_rig *r, bool wait, strata_error *error);

/* Whether z equals the host's result. */
bool sim_rig_is_right(const sim_rig *r);

/* Opens a world; a failure fails the test. */
st_sim_world *sim_world_open(const st_sim_options *options);

#endif
