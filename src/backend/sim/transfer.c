/* Copies of the simulated GPU, and filling with zeros. The target is poisoned from the start to the end. */
#include <string.h>

#include "backend/sim/world.h"
#include "base/alloc.h"
#include "base/error.h"

/* A copy that has not ended; from = NULL: filling with zeros. */
typedef struct transfer {
    st_sim_actor actor;
    st_sim_world *world;
    st_copy_kind kind;
    unsigned char *to;
    const unsigned char *from;
    size_t bytes;
} transfer;

static strata_status refuse(const transfer *t, const char *side, const void *address, const char *expected,
                            strata_error *error)
{
    static const char *const names[] = {[ST_COPY_UP] = "to", [ST_COPY_DOWN] = "from", [ST_COPY_WITHIN] = "within"};
    return st_error_set(error, STRATA_DEVICE, NULL, "%s %s the GPU: %s: expected %s, found %zu bytes at %p",
                        t->from ? "copy" : "zero", names[t->kind], side, expected, t->bytes, address);
}

static strata_status check_side(const transfer *t, const char *side, const void *address, bool card,
                                strata_error *error)
{
    const st_sim_memory *memory = &t->world->memory;
    if (card && !st_sim_memory_holds(memory, address, t->bytes))
        return refuse(t, side, address, "GPU memory", error);
    if (!card && (!address || st_sim_memory_touches(memory, address, t->bytes)))
        return refuse(t, side, address, "host memory", error);
    return STRATA_OK;
}

static strata_status check_transfer(const transfer *t, strata_error *error)
{
    strata_status status = check_side(t, "target", t->to, t->kind != ST_COPY_DOWN, error);
    if (status != STRATA_OK || !t->from) return status;
    status = check_side(t, "source", t->from, t->kind != ST_COPY_UP, error);
    if (status != STRATA_OK || t->kind != ST_COPY_WITHIN) return status;
    if (t->to < t->from + t->bytes && t->from < t->to + t->bytes)
        return refuse(t, "source", t->from, "no overlap with the target", error);
    return STRATA_OK;
}

static void visit_transfer(const st_sim_actor *actor, st_sim_visitor *visitor, void *context)
{
    const transfer *t = (const transfer *)(const void *)actor;
    visitor(context, (st_sim_access){.address = t->to, .bytes = t->bytes, .write = true});
    if (t->from) visitor(context, (st_sim_access){.address = t->from, .bytes = t->bytes});
}

static bool is_made(const transfer *t)
{
    return !t->world->routing || t->bytes <= ST_SIM_SMALL_COPY;
}

/* Memory that was freed since the push is reported at the end. */
static void start_transfer(void *context)
{
    transfer *t = context;
    st_sim_begin(t->world, &t->actor);
    bool poisons = t->from || !st_sim_is_large(t->bytes);
    if (check_transfer(t, NULL) == STRATA_OK && is_made(t) && poisons) st_sim_poison(t->to, t->bytes);
}

static strata_status end_transfer(void *context, strata_error *error)
{
    transfer *t = context;
    st_sim_end(t->world, &t->actor);
    if (t->world->lost) return st_sim_tell_lost(error);
    if (t->actor.raced) return st_sim_tell_race(t->from ? "copy" : "zero", -1, error);
    strata_status status = check_transfer(t, error);
    if (status != STRATA_OK || !is_made(t)) return status;
    if (t->from) memcpy(t->to, t->from, t->bytes);
    else st_sim_zero(t->to, t->bytes);
    return STRATA_OK;
}

static void drop_transfer(void *context)
{
    transfer *t = context;
    st_sim_end(t->world, &t->actor);
    st_free(t);
}

static st_demand price_transfer(const transfer *t)
{
    st_demand demand = {0};
    double bytes = (double)t->bytes;
    if (t->kind == ST_COPY_WITHIN) {
        demand.amount[ST_RESOURCE_DEVICE_MEMORY] = t->from ? 2 * bytes : bytes;
        return demand;
    }
    demand.amount[t->kind == ST_COPY_UP ? ST_RESOURCE_LINK_UP : ST_RESOURCE_LINK_DOWN] = bytes;
    demand.amount[ST_RESOURCE_HOST_DRAM] = bytes;
    return demand;
}

strata_status st_sim_transfer(st_sim_world *world, uint32_t queue, st_copy_kind kind, void *to, const void *from,
                              size_t bytes, strata_error *error)
{
    transfer made = {.actor.visit = visit_transfer, .world = world, .kind = kind, .to = to, .from = from,
                     .bytes = bytes};
    if (bytes == 0) return STRATA_OK;
    strata_status status = check_transfer(&made, error);
    if (status != STRATA_OK) return status;
    transfer *t = st_alloc(sizeof *t);
    if (!t) return st_error_memory(error, sizeof *t, "a copy on the simulated GPU");
    *t = made;
    st_command command = {.demand = price_transfer(t), .start = start_transfer, .end = end_transfer,
                          .drop = drop_transfer, .context = t};
    status = st_clock_push(world->clock, queue, &command, error);
    if (status != STRATA_OK) st_free(t);
    return status;
}
