/* The simulated device, for tests and what-ifs: the reference operations on memory of a given capacity, a virtual clock
 * (clock.h) and failures injected at the n-th call. It has two backends that share a world: the GPU, and its host,
 * which is the CPU backend charged to the same clock. It reports what a real GPU would not: concurrent copies and
 * operations on the same memory, a table of experts that changes after the launch, an address of the wrong device, a
 * step block that contradicts itself, an index out of range, a page that two conversations store to. The target of a
 * copy is poisoned when the copy starts and filled when it ends, so a missing wait changes the logits. Knows no plan
 * and no model beyond the operations it is given. */
#ifndef ST_SIM_SIM_H
#define ST_SIM_SIM_H

#include "backend/backend.h"
#include "backend/profile.h"

typedef struct st_sim_world st_sim_world;

/* For what-ifs on models that are too large to compute: time passes, but no operation computes and no large copy is
 * made. `choose` replaces the routers. */
typedef struct st_sim_routing {
    void (*choose)(void *context, uint32_t layer, uint32_t rows, uint32_t used, int32_t *ids, float *weights);
    void *context;
} st_sim_routing;

typedef struct st_sim_options {
    st_profile host, card;
    const st_program *program; /* for the cost of operations; NULL: a launch takes its latency alone */
    const st_binding *binding;
    const st_sim_routing *routing; /* NULL: operations compute. Must outlive the world */
} st_sim_options;

strata_status st_sim_world_new(const st_sim_options *options, st_sim_world **out, strata_error *error);
void st_sim_world_free(st_sim_world *world); /* after its devices are closed */

/* st_device_options.world of both is the world. */
const st_backend *st_backend_sim_card(void);
const st_backend *st_backend_sim_host(void);

double st_sim_world_seconds(const st_sim_world *world); /* of virtual time */

/* Failure injection: the n-th call from now on fails, once; 0: none. */
typedef enum st_sim_call { ST_SIM_ALLOC, ST_SIM_COPY, ST_SIM_LAUNCH, ST_SIM_CALLS } st_sim_call;
void st_sim_fail_at(st_sim_world *world, st_sim_call call, uint64_t n);
void st_sim_lose_at(st_sim_world *world, uint64_t n); /* the GPU is lost from the n-th call of any kind on */
uint64_t st_sim_calls(const st_sim_world *world, st_sim_call call);
uint64_t st_sim_used_bytes(const st_sim_world *world); /* of GPU memory */

#endif
