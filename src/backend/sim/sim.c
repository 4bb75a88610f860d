#include "backend/sim/sim.h"

#include "backend/sim/world.h"
#include "base/alloc.h"
#include "base/error.h"

strata_status st_sim_world_new(const st_sim_options *options, st_sim_world **out, strata_error *error)
{
    const st_profile *host = &options->host, *card = &options->card;
    const double rates[ST_RESOURCE_COUNT] = {
        [ST_RESOURCE_DEVICE_MEMORY] = card->memory_rate, [ST_RESOURCE_DEVICE_OPS] = card->op_rate,
        [ST_RESOURCE_LINK_UP] = card->link_up,           [ST_RESOURCE_LINK_DOWN] = card->link_down,
        [ST_RESOURCE_HOST_DRAM] = host->memory_rate,     [ST_RESOURCE_CPU_OPS] = host->op_rate,
    };
    st_sim_world *world = st_alloc_zero(1, sizeof *world);
    if (!world) return st_error_memory(error, sizeof *world, "the simulated device");
    world->host = *host;
    world->card = *card;
    world->program = options->program;
    world->binding = options->binding;
    world->routing = options->routing;
    uint64_t capacity = card->free_bytes > card->overhead_bytes ? card->free_bytes - card->overhead_bytes : 0;
    strata_status status = st_sim_memory_open(&world->memory, capacity, card->granularity, error);
    if (status == STRATA_OK) status = st_clock_new(rates, &world->clock, error);
    if (status != STRATA_OK) {
        st_sim_world_free(world);
        return status;
    }
    *out = world;
    return STRATA_OK;
}

void st_sim_world_free(st_sim_world *world)
{
    if (!world) return;
    st_clock_free(world->clock);
    st_sim_memory_close(&world->memory);
    st_free(world);
}

double st_sim_world_seconds(const st_sim_world *world)
{
    return st_clock_now(world->clock);
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

void st_sim_fail_at(st_sim_world *world, st_sim_call call, uint64_t n)
{
    world->fail_in[call] = n;
}

void st_sim_lose_at(st_sim_world *world, uint64_t n)
{
    world->lose_in = n;
    world->lost = false;
}

uint64_t st_sim_calls(const st_sim_world *world, st_sim_call call)
{
    return world->calls[call];
}

uint64_t st_sim_used_bytes(const st_sim_world *world)
{
    return world->memory.used;
}

strata_status st_sim_tell_lost(strata_error *error)
{
    return st_error_set(error, STRATA_DEVICE_LOST, "start again; a device that is lost again is broken",
                        "the simulated GPU is lost");
}

static strata_status fail_call(st_sim_call call, strata_error *error)
{
    static const char *const names[ST_SIM_CALLS] = {
        [ST_SIM_ALLOC] = "allocation", [ST_SIM_COPY] = "copy", [ST_SIM_LAUNCH] = "launch"};
    return st_error_set(error, call == ST_SIM_ALLOC ? STRATA_MEMORY : STRATA_DEVICE, NULL,
                        "the simulated GPU: injected failure of this %s", names[call]);
}

strata_status st_sim_enter(st_sim_world *world, st_sim_call call, strata_error *error)
{
    if (world->lose_in && --world->lose_in == 0) world->lost = true;
    if (world->lost) return st_sim_tell_lost(error);
    if (world->memory.bad_free) {
        world->memory.bad_free = false;
        return st_error_set(error, STRATA_DEVICE, NULL, "the simulated GPU: freed an address that was not allocated");
    }
    if (call == ST_SIM_CALLS) return STRATA_OK;
    world->calls[call]++;
    if (world->fail_in[call] && --world->fail_in[call] == 0) return fail_call(call, error);
    return STRATA_OK;
}

/* --- prices: as in profile.h, by resource of the clock ------------------------------------------------------------ */

enum { EXPERTS_MAX = 4096 };

/* Experts of another device cost nothing here: scales bytes and operations to the others. */
static void leave_out_absent(const st_bound_op *bound, uint32_t rows, st_work *work)
{
    const void *const *parts = bound->weight[0].parts;
    const int32_t *ids = bound->in[1].data;
    uint32_t experts = bound->op->p.experts.experts, pairs = rows * bound->op->p.experts.used;
    uint32_t here = 0, touched = 0, read = 0;
    bool seen[EXPERTS_MAX] = {0};
    if (!parts || experts > EXPERTS_MAX) return;
    for (uint32_t i = 0; i < pairs; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= experts) return; /* reported where it runs */
        if (parts[ids[i]]) here++;
        if (seen[ids[i]]) continue;
        seen[ids[i]] = true;
        touched++;
        if (parts[ids[i]]) read++;
    }
    if (read == touched) return;
    work->ops *= (double)here / pairs;
    work->ops_filled *= (double)read / touched;
    work->bytes *= read / st_experts_touched(bound->op, rows);
}

/* Each conversation has a KV cache of its own depth, and a recurrent state of its own. Their rows are one operation. */
static bool is_by_conversation(st_op_kind kind)
{
    return st_op_has_kv(kind) || st_op_has_state(kind);
}

static st_work work_of(const st_sim_world *world, const st_bound_op *bound, uint32_t rows, st_step *step)
{
    const st_step_conversation *conversations = st_step_conversations(step);
    st_type kv_type = bound->kv.keys ? bound->kv.type : ST_TYPE_F32;
    st_work sum = {0};
    if (!is_by_conversation(bound->op->kind))
        return st_work_of(world->program, world->binding, bound->op, rows, 0, kv_type);
    for (uint32_t i = 0; i < step->conversation_count; i++) {
        st_work work = st_work_of(world->program, world->binding, bound->op, conversations[i].rows,
                                  conversations[i].position, kv_type);
        work.bytes += sum.bytes;
        work.ops += sum.ops;
        sum = work;
    }
    sum.rows = rows;
    return sum;
}

st_demand st_sim_price(const st_sim_world *world, st_device_kind device, const st_bound_op *bound, uint32_t rows,
                       st_step *step)
{
    st_demand demand = {0};
    if (!world->program || !world->binding || rows == 0) return demand;
    const st_profile *profile = device == ST_DEVICE_CARD ? &world->card : &world->host;
    st_work work = work_of(world, bound, rows, step);
    if (bound->op->kind == ST_OP_EXPERTS) leave_out_absent(bound, rows, &work);
    if (work.bytes > 0 || work.ops > 0) demand.latency = st_profile_fixed(profile, &work);
    work = st_profile_demand(profile, &work);
    bool card = device == ST_DEVICE_CARD;
    demand.amount[card ? ST_RESOURCE_DEVICE_MEMORY : ST_RESOURCE_HOST_DRAM] = work.bytes;
    demand.amount[card ? ST_RESOURCE_DEVICE_OPS : ST_RESOURCE_CPU_OPS] = work.ops;
    return demand;
}

/* --- what operations do to memory --------------------------------------------------------------------------------- */

strata_status st_sim_ops_new(st_device *cpu, const st_segment_source *source, st_sim_ops *out, strata_error *error)
{
    st_sim_ops ops = {.count = source->count};
    ops.bound = st_alloc_array(source->count, sizeof *ops.bound);
    ops.cpu = st_alloc_zero(source->count, sizeof *ops.cpu);
    strata_status status = STRATA_OK;
    if (!ops.bound || !ops.cpu)
        status = st_error_memory(error, source->count * sizeof *ops.bound, "a segment of the program");
    for (uint32_t i = 0; i < source->count && status == STRATA_OK; i++) {
        st_segment_source one = *source;
        ops.bound[i] = source->ops[i];
        one.ops = &ops.bound[i];
        one.count = 1;
        status = st_backend_cpu()->prepare(cpu, &one, &ops.cpu[i], error);
    }
    if (status == STRATA_OK) *out = ops;
    else st_sim_ops_free(&ops);
    return status;
}

void st_sim_ops_free(st_sim_ops *ops)
{
    for (uint32_t i = 0; ops->cpu && i < ops->count; i++)
        if (ops->cpu[i]) st_backend_cpu()->segment_free(ops->cpu[i]);
    st_free(ops->cpu);
    st_free(ops->bound);
}

strata_status st_sim_ops_run(const st_sim_world *world, const st_sim_ops *ops, uint32_t index, uint32_t rows,
                             st_queue *cpu_queue, strata_error *error)
{
    const st_bound_op *bound = &ops->bound[index];
    if (!world->routing) return st_backend_cpu()->launch(ops->cpu[index], cpu_queue, rows, error);
    if (bound->op->kind == ST_OP_ROUTE)
        world->routing->choose(world->routing->context, (uint32_t)bound->op->layer, rows, bound->op->p.route.used,
                               bound->out.data, bound->out2.data);
    return STRATA_OK;
}

bool st_sim_count_reached(void *count)
{
    const st_sim_count *c = count;
    return __atomic_load_n(c->counter, __ATOMIC_ACQUIRE) >= c->value;
}
