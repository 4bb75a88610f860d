/* The interface of a device: a versioned table of functions that the CPU, the simulated GPU and a GPU plugin fill in.
 * A backend owns its device's memory, queues and kernels. It knows operations (model/ops.def) and addresses; it must
 * not know a model, a plan or where a position is stored. run/ alone orders work and waits.
 *
 * The CPU is synchronous: a queue call returns when its work is done. */
#ifndef ST_BACKEND_BACKEND_H
#define ST_BACKEND_BACKEND_H

#ifdef __cplusplus /* CUDA kernels see the type and never use it */
typedef struct atomic_bool atomic_bool;
#else
#include <stdatomic.h>
#endif

#include "model/program.h"
#include "strata.h"

enum { ST_BACKEND_VERSION = 2 };

typedef struct st_device st_device;
typedef struct st_queue st_queue;
typedef struct st_event st_event;
typedef struct st_segment st_segment;

typedef struct st_device_options {
    const char *cpu;  /* "ref", "avx2", "avx512"; NULL: the fastest that the CPU supports */
    uint32_t threads; /* 0: all physical cores */
    bool profile;     /* time every kind of operation */
    void *world;      /* of a simulated device: its st_sim_world */
    uint32_t index;   /* of the GPU */
} st_device_options;

typedef struct st_device_info {
    const char *name; /* valid until the device is closed */
    size_t total_bytes, free_bytes;
    bool exact;              /* free_bytes changes only by allocations through this table, to the byte */
    size_t alignment;        /* of values, weights and rows of state */
    uint32_t workers;        /* each has worker_bytes of scratch */
    uint32_t pinned_per_byte; /* pinned bytes of the host for each byte of the device's page tables; 0: no such tables */
    bool reads_host_memory;  /* weights and values may be in ordinary host memory */
} st_device_info;

/* Measured rates of the device. */
typedef struct st_device_rates {
    double read_bytes;  /* per second, from memory */
    double int8_ops;    /* multiplications and additions per second; 0: no int8 path */
    double link_up, link_down; /* of a GPU: bytes per second of pinned copies */
    double handover_seconds;   /* of a GPU: from the end of its work until the host continues */
} st_device_rates;

typedef struct st_op_time {
    uint64_t calls;
    double seconds;
} st_op_time;

typedef enum st_queue_kind { ST_QUEUE_COMPUTE, ST_QUEUE_UP, ST_QUEUE_DOWN } st_queue_kind;

/* --- the step block: the inputs of a launch, in device memory, so that a captured graph replays unchanged ----------- */

typedef struct st_step {
    uint32_t count;     /* rows of this batch, at most batch_max */
    uint32_t position;  /* of the first row */
    uint32_t out_count; /* output rows, whose logits are requested; at most batch_max */
    uint32_t batch_max;
    int32_t values[];   /* ids[batch_max], then out_rows[batch_max] */
} st_step;

static inline size_t st_step_bytes(uint32_t batch_max)
{
    return sizeof(st_step) + 2 * (size_t)batch_max * sizeof(int32_t);
}

static inline int32_t *st_step_ids(st_step *step)
{
    return step->values;
}

static inline int32_t *st_step_out_rows(st_step *step)
{
    return step->values + step->batch_max;
}

/* --- operations with addresses --------------------------------------------------------------------------------- */

/* A value: contiguous rows of `width` elements in device memory. */
typedef struct st_bound_value {
    void *data;
    uint32_t width;
} st_bound_value;

typedef struct st_bound_weight {
    const void *data;         /* device memory; NULL: the operation has no such weight */
    const void *const *parts; /* experts: where each is, in device memory [ne[2]]; NULL: on another device, and left out of
                                 the sum. The host changes an entry only when no launched segment reads it */
    const st_type_info *info;
    uint32_t type;
    uint64_t ne[3];
    size_t row_bytes;
} st_bound_weight;

/* A layer's keys and values. Position p lies in row p % capacity. */
typedef struct st_kv_view {
    unsigned char *keys, *values;
    size_t key_row_bytes, value_row_bytes;
    uint32_t capacity;
    st_type type;
} st_kv_view;

/* A layer's recurrent state, float32. */
typedef struct st_state_view {
    float *conv;  /* [width − 1, channels]: the last inputs, oldest first */
    float *delta; /* [value_heads, size (key), size (value)] */
} st_state_view;

typedef struct st_bound_op {
    const st_op *op;
    st_bound_value in[ST_OP_INPUTS], out, out2;
    st_bound_weight weight[ST_OP_WEIGHTS];
    st_kv_view kv;       /* operations on the KV cache */
    st_state_view state; /* operations on recurrent state */
} st_bound_op;

/* An operation with the shapes of its values and weights, but without addresses. */
st_bound_op st_bound_shape(const st_program *program, const st_binding *binding, const st_op *op);

/* The memory that one operation uses beside its values: once in all, and once for each worker. */
typedef struct st_scratch {
    size_t shared_bytes, worker_bytes;
} st_scratch;

/* States the scratch of an operation for `rows` rows; more rows never need less. A pure function of the shape: it reads
 * no address and needs no open device, so the planner calls it for devices that are absent. */
typedef st_scratch (*st_scratch_statement)(const st_bound_op *shape, uint32_t rows);

typedef struct st_segment_source {
    const st_bound_op *ops; /* copied by prepare */
    uint32_t count;
    st_rows rows;           /* which count of the step is the number of rows: count or out_count */
    st_step *step;          /* device memory */
    const st_step *host_step; /* the same block as the host wrote it before the launch; may be `step` where the host reads it */
    void *scratch;          /* device memory for one operation at a time: shared_bytes, then worker_bytes for each worker */
    size_t shared_bytes, worker_bytes;
} st_segment_source;

/* --- plugins --------------------------------------------------------------------------------------------------- */

/* The one symbol that a backend's shared library exports. Its table has the ST_BACKEND_VERSION it was built for. */
typedef const struct st_backend *(*st_backend_plugin_fn)(void);
#define ST_BACKEND_PLUGIN_SYMBOL "st_backend_plugin"

/* --- the table -------------------------------------------------------------------------------------------------- */

typedef enum st_copy_kind { ST_COPY_UP, ST_COPY_DOWN, ST_COPY_WITHIN } st_copy_kind;

typedef struct st_backend {
    uint32_t version;
    const char *name;

    strata_status (*open)(const st_device_options *options, st_device **out, strata_error *error);
    void (*close)(st_device *device);
    void (*info)(const st_device *device, st_device_info *out);
    st_scratch_statement scratch;
    const uint64_t *types; /* [ST_OP_COUNT]: what it can run, as st_profile.types; NULL: every operation with every type */
    strata_status (*probe)(st_device *device, st_device_rates *out, strata_error *error); /* takes about a second */
    void (*times)(const st_device *device, st_op_time out[ST_OP_COUNT]); /* zero unless the device was opened with `profile` */

    /* Memory. Host memory is pinned where the device supports it; otherwise it is ordinary memory and *pinned is false. */
    strata_status (*alloc)(st_device *device, size_t bytes, void **out, strata_error *error);
    void (*free)(st_device *device, void *memory);
    strata_status (*host_alloc)(st_device *device, size_t bytes, void **out, bool *pinned, strata_error *error);
    void (*host_free)(st_device *device, void *memory);
    /* Pins existing memory, such as the mapping of a file, for fast copies up and brings its pages into RAM. *pinned is
     * false where the system refuses: copies still work. Both NULL: the device copies from any memory at full speed. */
    strata_status (*host_pin)(st_device *device, const void *memory, size_t bytes, bool *pinned, strata_error *error);
    void (*host_unpin)(st_device *device, const void *memory);

    /* A queue runs its work in order; events order the work of several queues and the host. */
    strata_status (*queue_new)(st_device *device, st_queue_kind kind, st_queue **out, strata_error *error);
    void (*queue_free)(st_queue *queue);
    /* Launches on the queue stop, with STRATA_INTERRUPTED and results half written, once `*flag` is true. NULL: the
     * device cannot stop a launch. */
    void (*queue_watch)(st_queue *queue, const atomic_bool *flag);
    strata_status (*event_new)(st_device *device, st_event **out, strata_error *error);
    void (*event_free)(st_event *event);
    strata_status (*event_record)(st_event *event, st_queue *queue, strata_error *error);
    strata_status (*event_wait_queue)(st_event *event, st_queue *queue, strata_error *error);
    bool (*event_done)(const st_event *event);
    /* STRATA_DEVICE: the time limit passed; STRATA_DEVICE_LOST: the device is lost. */
    strata_status (*event_wait_host)(st_event *event, uint64_t limit_us, strata_error *error);
    double (*event_seconds)(const st_event *event); /* the time at which it was reached, on the device's clock */

    strata_status (*copy)(st_queue *queue, st_copy_kind kind, void *to, const void *from, size_t bytes,
                          strata_error *error);

    strata_status (*zero)(st_queue *queue, void *memory, size_t bytes, strata_error *error);

    /* Counters in memory that queues set and wait for: hand-overs without the host. */
    strata_status (*signal)(st_queue *queue, uint64_t *counter, uint64_t value, strata_error *error);
    strata_status (*wait)(st_queue *queue, uint64_t *counter, uint64_t value, uint64_t limit_us, strata_error *error);

    /* A segment is a list of operations that run in order without the host: prepared once, launched for every batch. */
    strata_status (*prepare)(st_device *device, const st_segment_source *source, st_segment **out, strata_error *error);
    strata_status (*launch)(st_segment *segment, st_queue *queue, strata_error *error);
    void (*segment_free)(st_segment *segment);
} st_backend;

const st_backend *st_backend_cpu(void);

#endif
