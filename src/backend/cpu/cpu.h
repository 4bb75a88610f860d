/* Internals of the CPU backend: the arguments of its kernels, its kernel tables and its scratch. */
#ifndef ST_BACKEND_CPU_CPU_H
#define ST_BACKEND_CPU_CPU_H

#include "backend/backend.h"
#include "backend/cpu/isa.h"
#include "base/pool.h"

enum { ST_CPU_BLOCK_MAX = 256 }; /* elements of the largest block */

typedef struct st_cpu_call {
    const st_bound_op *bound; /* [group] */
    const st_op *op;          /* bound->op */
    uint32_t group;           /* number of operations that run as one; 1 on the reference path */
    const st_isa *isa;        /* NULL on the reference path */
    const st_isa_split *split; /* NULL: the CPU has no fast bfloat16 products */
    const st_isa_panels *panels; /* NULL: batches are multiplied in int8 */
    uint32_t rows;
    st_step *step;
    st_pool *pool;
    const st_pool_range *next; /* what the next matrix product reads first; NULL: unknown */
    unsigned char *shared;  /* scratch that all workers share */
    unsigned char *scratch; /* scratch of the workers, worker_bytes each */
    size_t worker_bytes;
} st_cpu_call;

typedef void (*st_cpu_kernel)(const st_cpu_call *call);

/* The slow, obvious kernels; every other table is tested against them. */
extern const st_cpu_kernel st_cpu_ref_kernels[ST_OP_COUNT];

/* Scratch of the reference path and of the fast path, which runs some operations on reference kernels. scratch.c */
st_scratch st_cpu_ref_scratch(const st_bound_op *shape, uint32_t rows);
st_scratch st_cpu_fast_scratch(const st_bound_op *shape, uint32_t rows);

/* Under the address sanitizer: unpoisons the scratch that `op` stated and poisons the rest. STRATA_RUNTIME: the source
 * has less scratch than `op` stated. */
strata_status st_cpu_scratch_fence(const st_segment_source *source, uint32_t workers, const st_op *op, st_scratch stated,
                                   strata_error *error);
void st_cpu_scratch_unfence(const st_segment_source *source, uint32_t workers);

/* probe.c: measures the machine's rates with the threads of `pool`; `isa` is NULL on the reference path, `panels` where
 * batches are multiplied in int8. */
strata_status st_cpu_probe(st_device *device, st_pool *pool, const st_isa *isa, const st_isa_panels *panels,
                           st_device_rates *out, strata_error *error);

static inline float *st_cpu_scratch(const st_cpu_call *call, uint32_t worker)
{
    return (float *)(void *)(call->scratch + call->worker_bytes * worker);
}

static inline float *st_cpu_row(st_bound_value value, size_t row)
{
    return (float *)value.data + row * value.width;
}

/* A row of the step. */
static inline const st_step_row *st_cpu_step_row(const st_cpu_call *call, size_t row)
{
    return &st_step_rows(call->step)[row];
}

/* The conversation of a row. */
static inline const st_step_conversation *st_cpu_conversation(const st_cpu_call *call, size_t row)
{
    return &st_step_conversations(call->step)[st_cpu_step_row(call, row)->conversation];
}

/* One element of a weight vector, as a float. */
static inline float st_cpu_element(const st_bound_weight *w, size_t index)
{
    float block[ST_CPU_BLOCK_MAX];
    if (w->type == ST_TYPE_F32) return ((const float *)w->data)[index];
    w->info->dequantise((const unsigned char *)w->data + index / w->info->block * w->info->bytes, block, 1);
    return block[index % w->info->block];
}

/* The filter of a channel of a convolution, whose filters may be in up to three tensors: the tensor, and the index of
 * its first tap there. */
static inline const st_bound_weight *st_cpu_filter(const st_bound_op *bound, size_t channel, size_t *tap)
{
    const st_bound_weight *w = bound->weight;
    while (channel >= w->ne[1] && w < bound->weight + 2 && w[1].data) channel -= (w++)->ne[1];
    *tap = channel * bound->op->p.conv.width;
    return w;
}

/* The key head that a value head of the delta rule reads. */
static inline size_t st_cpu_key_head(const st_op *op, size_t head)
{
    size_t key_heads = op->p.deltanet.key_heads;
    return op->p.deltanet.grouped ? head / (op->p.deltanet.value_heads / key_heads) : head % key_heads;
}

/* One head of one conversation of a state space: its state, and where its inputs are in a row of in0. */
typedef struct st_cpu_ssm {
    const st_step_conversation *conversation;
    size_t head, size, states;
    size_t x, b, c;
    float *state; /* [size, states] */
} st_cpu_ssm;

static inline st_cpu_ssm st_cpu_ssm_of(const st_cpu_call *call, size_t part)
{
    const st_bound_op *bound = call->bound;
    size_t heads = call->op->p.ssm.heads, groups = call->op->p.ssm.groups;
    st_cpu_ssm s = {.conversation = &st_step_conversations(call->step)[part / heads], .head = part % heads,
                    .size = call->op->p.ssm.head_size, .states = call->op->p.ssm.state_size};
    size_t group = s.head / (heads / groups);
    s.x = s.head * s.size;
    s.b = heads * s.size + group * s.states;
    s.c = s.b + groups * s.states;
    s.state = bound->state.delta + s.conversation->slot * bound->state.slot_floats + s.head * s.size * s.states;
    return s;
}

/* The first position that a query at `position` attends to. */
static inline uint32_t st_cpu_first_seen(const st_op *op, uint32_t position)
{
    uint32_t first = op->p.attention.first, window = op->p.attention.window, chunk = op->p.attention.chunk;
    if (window && position + 1 > window + first) first = position + 1 - window;
    if (chunk && position / chunk * chunk > first) first = position / chunk * chunk;
    return first;
}

#endif
