/* Private to the simulated device: the state that the GPU and its host share. sim.c: the world; memory.c: GPU memory;
 * race.c: the race checker; step.c: checks of step blocks; card.c, transfer.c, segment.c, chain.c: the GPU's backend;
 * host.c: the host's backend. */
#ifndef ST_SIM_WORLD_H
#define ST_SIM_WORLD_H

#include "backend/sim/clock.h"
#include "backend/sim/sim.h"

enum { ST_SIM_ALIGNMENT = 256 }; /* of allocations, and of every address that an operation uses */

/* One allocation of GPU memory. */
typedef struct st_sim_range {
    size_t offset;
    size_t taken; /* rounded up to the granularity */
    size_t bytes; /* as requested: an access beyond them is an error */
} st_sim_range;

typedef struct st_sim_memory {
    unsigned char *base; /* [capacity] of address space; pages are allocated on first access */
    size_t capacity, used;
    size_t granularity;
    st_sim_range *ranges; /* [count], by offset */
    uint32_t count, room;
    bool bad_free; /* an address was freed that was not allocated */
} st_sim_memory;

/* A range of memory that an actor uses. */
typedef struct st_sim_access {
    const void *address;
    size_t bytes;
    bool write;
} st_sim_access;

typedef void st_sim_visitor(void *context, st_sim_access access);

/* A copy or an operation between its start and its end. */
typedef struct st_sim_actor {
    void (*visit)(const struct st_sim_actor *actor, st_sim_visitor *visitor, void *context); /* every access */
    bool raced; /* a concurrent actor accessed the same memory, and one of the two wrote */
    struct st_sim_actor *next;
} st_sim_actor;

typedef struct st_sim_op {
    st_sim_actor actor;
    const st_segment_source *source;
    const st_bound_op *bound;
    uint32_t rows;
    uint32_t all_rows, step_bytes; /* of the step, at the start of the operation */
} st_sim_op;

/* Whether the weight is a matrix of routed experts with a table of addresses. */
static inline bool st_sim_is_expert(const st_bound_op *bound, int index)
{
    return bound->op->kind == ST_OP_EXPERTS && index < ST_EXPERT_MATRICES && bound->weight[index].parts;
}

/* Floats of recurrent state in a slot that an operation uses. */
static inline size_t st_sim_state_floats(const st_bound_op *bound)
{
    const st_op *op = bound->op;
    if (op->kind == ST_OP_CONV) return (size_t)(op->p.conv.width - 1) * bound->in[0].width;
    if (op->kind == ST_OP_SSM) return (size_t)op->p.ssm.heads * op->p.ssm.head_size * op->p.ssm.state_size;
    return (size_t)op->p.deltanet.value_heads * op->p.deltanet.size * op->p.deltanet.size;
}

struct st_sim_world {
    st_profile host, card;
    const st_program *program;
    const st_binding *binding;
    const st_sim_routing *routing; /* NULL: everything is computed */
    st_clock *clock;
    st_sim_memory memory;
    st_sim_actor *actors;
    uint64_t calls[ST_SIM_CALLS];
    uint64_t fail_in[ST_SIM_CALLS]; /* calls until one fails; 0: none */
    uint64_t lose_in; /* calls until the device is lost; 0: never */
    bool lost;
};

/* Injects failures: every call of the GPU that can fail begins with this. `call` is ST_SIM_CALLS if it is not
 * counted. */
strata_status st_sim_enter(st_sim_world *world, st_sim_call call, strata_error *error);
strata_status st_sim_tell_lost(strata_error *error);

/* The resources that an operation takes on a device; none if the world has no program. */
st_demand st_sim_price(const st_sim_world *world, st_device_kind device, const st_bound_op *bound, uint32_t rows,
                       st_step *step);

/* The operations of a segment, each prepared by the CPU on its own. */
typedef struct st_sim_ops {
    uint32_t count;
    st_bound_op *bound; /* [count] */
    st_segment **cpu;   /* [count] */
} st_sim_ops;

strata_status st_sim_ops_new(st_device *cpu, const st_segment_source *source, st_sim_ops *out, strata_error *error);
void st_sim_ops_free(st_sim_ops *ops);
/* Computes one operation on the CPU. With st_sim_world.routing it computes nothing and only chooses experts. */
strata_status st_sim_ops_run(const st_sim_world *world, const st_sim_ops *ops, uint32_t index, uint32_t rows,
                             st_queue *cpu_queue, strata_error *error);

/* --- step blocks -------------------------------------------------------------------------------------------------- */

/* Whether the counts agree with where the arrays begin, and the block fits into `room` bytes. */
bool st_sim_step_is_sane(const st_step *step, size_t room);
/* Checks the block, which is in readable memory, and every index that an operation with `rows` rows uses from it. */
strata_status st_sim_check_step(const st_segment_source *source, const st_bound_op *bound, uint32_t rows,
                                strata_error *error);

/* Positions of a conversation from `first` to before `end`. */
typedef struct st_sim_span {
    uint64_t first, end;
} st_sim_span;

/* The positions of the KV cache that attention reads, or that KV_STORE writes. */
st_sim_span st_sim_positions(const st_bound_op *bound, const st_step_conversation *conversation);

typedef struct st_sim_page_rows {
    uint32_t page;
    size_t first, count; /* rows of the page */
} st_sim_page_rows;

/* The next page of the positions in `left`, which then begins behind it. False: none is left, or the table has no page
 * of the pool for left->first. */
bool st_sim_next_page(const st_step *step, const st_kv_view *kv, const st_step_conversation *conversation,
                      st_sim_span *left, st_sim_page_rows *out);

/* The condition *counter ≥ value. */
typedef struct st_sim_count {
    uint64_t *counter;
    uint64_t value;
} st_sim_count;

bool st_sim_count_reached(void *count);

enum { ST_SIM_SMALL_COPY = 64 << 10 }; /* bytes: smaller copies are made even if nothing is computed */

/* Memory: `open` reserves the address space. */
strata_status st_sim_memory_open(st_sim_memory *memory, uint64_t capacity, uint64_t granularity, strata_error *error);
void st_sim_memory_close(st_sim_memory *memory);
strata_status st_sim_memory_take(st_sim_memory *memory, size_t bytes, void **out, strata_error *error);
void st_sim_memory_give(st_sim_memory *memory, void *address);
/* Whether the range lies in one allocation; whether any of it is in the GPU's address space. */
bool st_sim_memory_holds(const st_sim_memory *memory, const void *address, size_t bytes);
bool st_sim_memory_touches(const st_sim_memory *memory, const void *address, size_t bytes);
void st_sim_poison(void *memory, size_t bytes); /* writes NaN floats and indices of −1 */
/* Large ranges of GPU memory that are unallocated pages, or become so when they are filled with zeros: they are not
 * poisoned. */
bool st_sim_is_large(size_t bytes);
void st_sim_zero(void *memory, size_t bytes);

/* An actor must be ended before it is freed. Ending one that has not begun is allowed. */
void st_sim_begin(st_sim_world *world, st_sim_actor *actor);
void st_sim_end(st_sim_world *world, st_sim_actor *actor);
strata_status st_sim_tell_race(const char *what, int32_t layer, strata_error *error);
/* An operation of a step that st_sim_check_step found right. */
st_sim_op st_sim_op_of(const st_segment_source *source, const st_bound_op *bound, uint32_t rows);

/* Pushes a copy to a queue; from = NULL: fills with zeros. */
strata_status st_sim_transfer(st_sim_world *world, uint32_t queue, st_copy_kind kind, void *to, const void *from,
                              size_t bytes, strata_error *error);

/* The part of the GPU that segment.c uses. */
typedef struct st_sim_card {
    st_sim_world *world;
    st_device *cpu; /* the reference operations, on one thread */
    st_queue *cpu_queue;
} st_sim_card;

strata_status st_sim_segment_new(st_sim_card *card, const st_segment_source *source, st_segment **out,
                                 strata_error *error);
strata_status st_sim_segment_launch(st_segment *segment, uint32_t queue, uint32_t rows, strata_error *error);
void st_sim_segment_free(st_segment *segment);
/* A launch as a link of a chain, which takes `launch` seconds more; it reads the tables of experts as the last
 * st_sim_segment_show found them. */
strata_status st_sim_segment_chain(st_segment *segment, uint32_t queue, uint32_t rows, double launch,
                                   strata_error *error);
void st_sim_segment_show(st_segment *segment);

strata_status st_sim_chain_new(st_sim_card *card, const st_chain_source *source, st_chain **out, strata_error *error);
void st_sim_chain_free(st_chain *chain);
strata_status st_sim_chain_launch(st_chain *chain, uint32_t queue, uint32_t rows, uint32_t sequence,
                                  strata_error *error);
void st_sim_chain_ends(st_chain *chain, uint64_t point); /* behind the launch */
strata_status st_sim_chain_await(st_chain *chain, uint32_t link, uint64_t limit_us, const atomic_bool *interrupt,
                                 strata_error *error);
void st_sim_chain_answer(st_chain *chain, uint32_t link, bool none);
void st_sim_chain_abandon(st_chain *chain);

#endif
