/* A device for tests and what-ifs: the reference operations over an arena of its own with a capacity, on a virtual clock
 * (clock.h), with failures at the n-th call. Comes as two backends that share a world: the card, and the host's CPU,
 * which runs the ordinary CPU backend and is charged to the same clock. The target of a copy is poisoned when the copy
 * starts and filled when it ends, so that a missing wait changes the logits; where copies and operations that are under
 * way use the same memory, it is told. So is an address on the wrong side, and an index that is still poison. Knows no
 * plan and no model beyond the operations it is given. */
#ifndef ST_SIM_SIM_H
#define ST_SIM_SIM_H

#include "backend/backend.h"
#include "backend/profile.h"

typedef struct st_sim_world st_sim_world;

/* For what-ifs on models that are too large to compute: time passes as ever, but no operation computes and no large copy
 * is made. The experts that a router would choose come from here. */
typedef struct st_sim_routing {
    void (*choose)(void *context, uint32_t layer, uint32_t rows, uint32_t used, int32_t *ids, float *weights);
    void *context;
} st_sim_routing;

typedef struct st_sim_options {
    st_profile host, card;
    const st_program *program; /* for the cost of operations; NULL: a launch takes its latency alone */
    const st_binding *binding;
    const st_sim_routing *routing; /* NULL: everything is computed; must outlive the world */
} st_sim_options;

strata_status st_sim_world_new(const st_sim_options *options, st_sim_world **out, strata_error *error);
void st_sim_world_free(st_sim_world *world); /* after its devices are closed */

/* st_device_options.world of both is the world. */
const st_backend *st_backend_sim_card(void);
const st_backend *st_backend_sim_host(void);

double st_sim_world_seconds(const st_sim_world *world); /* virtual time passed */

/* The calls that can fail: the n-th from now on (0: none) does, once. */
typedef enum st_sim_call { ST_SIM_ALLOC, ST_SIM_COPY, ST_SIM_LAUNCH, ST_SIM_CALLS } st_sim_call;
void st_sim_fail_at(st_sim_world *world, st_sim_call call, uint64_t n);
void st_sim_lose_at(st_sim_world *world, uint64_t n); /* from the n-th call of any kind on the card is gone */
uint64_t st_sim_calls(const st_sim_world *world, st_sim_call call);
uint64_t st_sim_used_bytes(const st_sim_world *world); /* of the card's memory */

#endif
