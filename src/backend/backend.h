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

enum { ST_BACKEND_VERSION = 7 };

typedef struct st_device st_device;
typedef struct st_queue st_queue;
typedef struct st_event st_event;
typedef struct st_segment st_segment;
typedef struct st_chain st_chain;

typedef struct st_device_options {
    const char *cpu;  /* "ref", "avx2", "avxvnni", "avx512", "amx"; NULL: the fastest that the CPU supports */
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
    uint32_t pinned_per_byte; /* pinned host bytes for each byte of the device's page tables; 0: no such tables */
    bool reads_host_memory;  /* weights and values may be in ordinary host memory */
} st_device_info;

enum { ST_PROFILE_TYPES = 64 }; /* tensor types by their number in a file */

/* What an operation costs beside its bytes and its arithmetic depends on what it does. Operations that a device
 * computes together have that cost once. */
typedef enum st_op_class {
    ST_CLASS_ROWS,      /* on each row: norms, sums, activations, gates */
    ST_CLASS_PRODUCT,   /* with a matrix, and those of the same input and type of weights that follow it */
    ST_CLASS_PLAIN_PRODUCT, /* with a matrix of floats */
    ST_CLASS_POSITIONS, /* the storing of keys and values, with the norms of heads and the rotation before it */
    ST_CLASS_ATTENTION,
    ST_CLASS_WIDE_ATTENTION, /* with heads of more than ST_WIDE_HEAD elements */
    ST_CLASS_ROUTE,
    ST_CLASS_EXPERTS,
    ST_CLASS_RECURRENT, /* convolutions, delta rules, state spaces */
    ST_CLASS_CANDIDATES,
    ST_CLASS_COUNT
} st_op_class;

enum {
    ST_WIDE_HEAD = 128,
    ST_DEEP_POSITIONS = 4096, /* attention over so many has its `deep_seconds`; over fewer, less in proportion */
};

/* The rates of a class of operations. 0: unknown, or the full rate. */
typedef struct st_class_rates {
    double seconds;      /* of each */
    double batch_seconds; /* of each with several rows, beside `seconds` */
    double deep_seconds; /* of attention, instead, with a deep context */
    double memory_share; /* of the memory's rate, and of the weight type's share of it */
    double op_share;     /* of the arithmetic of batches */
    double fill;         /* a batch takes the time of more work, as parts of the device are idle or weights are unpacked: of so
                            many more rows of a product, outputs of a plain product, or rows of each expert */
} st_class_rates;

/* Measured rates of the device. */
typedef struct st_device_rates {
    double read_bytes;  /* per second, from memory */
    double int8_ops;    /* of a CPU: multiplications and additions per second, in int8 or, with AMX, bfloat16; 0: none */
    /* of a GPU: */
    double batch_ops;          /* multiplications and additions per second of a batch's matrix products */
    double link_up, link_down; /* bytes per second of pinned copies */
    double handover_seconds;   /* from the end of its work until the host continues */
    double round_trip_seconds; /* of a chain's hand-over to the host and back; 0: it has no chains */
    st_class_rates classes[ST_CLASS_COUNT];
    double type_share[ST_PROFILE_TYPES]; /* of read_bytes, reached with weights of a type and one row; 0: unknown */
} st_device_rates;

typedef struct st_op_time {
    uint64_t calls;
    double seconds;
} st_op_time;

typedef enum st_queue_kind { ST_QUEUE_COMPUTE, ST_QUEUE_UP, ST_QUEUE_DOWN } st_queue_kind;

/* --- the step block: the inputs of a launch, in device memory, so that a captured graph replays unchanged -----------
 * A step runs rows of one or more conversations. The rows of a conversation are adjacent, in the order of their
 * positions. The block is packed: the header with the output rows, then as many conversations, rows, recorded choices
 * and page table entries as the step has, so that one copy moves it to a device. */

typedef struct st_step_row {
    int32_t id;
    uint32_t position;
    uint32_t conversation; /* index in the step */
} st_step_row;

/* The pages of a conversation in one pool: entry i of the table, from `table` on in the step's tables, is the page
 * of the positions from (first_page + i) × page tokens on. */
typedef struct st_step_pages {
    uint32_t first_page, table;
} st_step_pages;

typedef struct st_step_conversation {
    uint32_t first_row, rows; /* at least one row */
    uint32_t position;        /* of the first row */
    uint32_t slot;            /* of its recurrent state */
    st_step_pages pages[ST_KV_POOLS_MAX];
} st_step_conversation;

typedef struct st_step {
    uint32_t count;              /* rows */
    uint32_t out_count;          /* output rows, whose logits are requested */
    uint32_t conversation_count;
    uint32_t table_count;        /* entries of all page tables */
    uint32_t out_max;            /* room for output rows */
    uint32_t choice_words;       /* of a row: experts that replace its routers' choices (ST_OP_ROUTE). 0: none */
    uint32_t sequence;           /* of the step: hand-overs of a chain are told apart by it. Another one for each */
    uint32_t rows_at, choices_at, tables_at; /* in `values`; the conversations come first, behind the output rows */
    uint32_t bytes;              /* of the block, to the end of the tables */
    uint32_t values[];           /* out_rows[out_max], conversations, rows, choices[rows, choice_words], tables */
} st_step;

/* The largest step: its block has st_step_bytes. */
typedef struct st_step_limits {
    uint32_t rows, out_rows, conversations, tables;
    uint32_t choice_words; /* of a row */
} st_step_limits;

static inline size_t st_step_bytes(const st_step_limits *most)
{
    return sizeof(st_step) + most->out_rows * sizeof(uint32_t) + most->conversations * sizeof(st_step_conversation) +
           most->rows * (sizeof(st_step_row) + most->choice_words * sizeof(uint32_t)) + most->tables * sizeof(uint32_t);
}

/* Sets the counts and the start of each array. The caller fills the arrays. */
static inline void st_step_lay_out_choices(st_step *step, uint32_t out_max, uint32_t conversations, uint32_t rows,
                                           uint32_t tables, uint32_t choice_words)
{
    step->count = rows;
    step->out_count = 0;
    step->conversation_count = conversations;
    step->table_count = tables;
    step->out_max = out_max;
    step->choice_words = choice_words;
    step->rows_at = out_max + conversations * (uint32_t)(sizeof(st_step_conversation) / sizeof(uint32_t));
    step->choices_at = step->rows_at + rows * (uint32_t)(sizeof(st_step_row) / sizeof(uint32_t));
    step->tables_at = step->choices_at + rows * choice_words;
    step->bytes = (uint32_t)(sizeof *step + (step->tables_at + tables) * sizeof(uint32_t));
}

static inline void st_step_lay_out(st_step *step, uint32_t out_max, uint32_t conversations, uint32_t rows,
                                   uint32_t tables)
{
    st_step_lay_out_choices(step, out_max, conversations, rows, tables, 0);
}

static inline uint32_t *st_step_out_rows(st_step *step)
{
    return step->values;
}

static inline st_step_conversation *st_step_conversations(st_step *step)
{
    return (st_step_conversation *)(void *)(step->values + step->out_max);
}

static inline st_step_row *st_step_rows(st_step *step)
{
    return (st_step_row *)(void *)(step->values + step->rows_at);
}

/* The recorded choices of a row: for each router that has them (st_op.p.route.choices_at), ids and weights. */
static inline uint32_t *st_step_choices(st_step *step, size_t row)
{
    return step->values + step->choices_at + row * step->choice_words;
}

static inline uint32_t *st_step_tables(st_step *step)
{
    return step->values + step->tables_at;
}

/* --- operations with addresses --------------------------------------------------------------------------------- */

/* A value: contiguous rows of `width` elements in device memory. */
typedef struct st_bound_value {
    void *data;
    uint32_t width;
} st_bound_value;

typedef struct st_bound_weight {
    const void *data;         /* device memory; NULL: the operation has no such weight */
    const void *const *parts; /* experts: the address of each, in device memory [ne[2]]; NULL: on another device, and
                                 left out of the sum. The host changes an entry only when no launched segment reads
                                 it */
    const st_type_info *info;
    uint32_t type;
    uint64_t ne[3];
    size_t row_bytes;
} st_bound_weight;

/* A layer's keys and values, in the pages of a pool. The row of position p is in the page that the conversation's table
 * of the pool names, p % page tokens rows from its start. */
typedef struct st_kv_view {
    unsigned char *keys, *values;        /* of page 0. Values may be a part of the keys */
    size_t key_row_bytes, value_row_bytes;
    size_t key_page_bytes, value_page_bytes; /* from a page to the next */
    uint32_t page_shift;                 /* a page has 1 << page_shift positions */
    uint32_t pages;                      /* of the pool */
    uint32_t pool;                       /* index in st_step_conversation.pages */
    st_type type;
} st_kv_view;

/* The page of a position; `tables` are the step's. */
static inline uint32_t st_kv_page(const st_kv_view *kv, const st_step_conversation *c, const uint32_t *tables,
                                  uint32_t position)
{
    const st_step_pages *pages = &c->pages[kv->pool];
    return tables[pages->table + (position >> kv->page_shift) - pages->first_page];
}

static inline size_t st_kv_page_row(const st_kv_view *kv, uint32_t position)
{
    return position & ((1u << kv->page_shift) - 1);
}

static inline unsigned char *st_kv_key(const st_kv_view *kv, const st_step_conversation *c, const uint32_t *tables,
                                       uint32_t position)
{
    return kv->keys + st_kv_page(kv, c, tables, position) * kv->key_page_bytes +
           st_kv_page_row(kv, position) * kv->key_row_bytes;
}

static inline unsigned char *st_kv_value(const st_kv_view *kv, const st_step_conversation *c, const uint32_t *tables,
                                         uint32_t position)
{
    return kv->values + st_kv_page(kv, c, tables, position) * kv->value_page_bytes +
           st_kv_page_row(kv, position) * kv->value_row_bytes;
}

/* A layer's recurrent state, float32: of slot 0. */
typedef struct st_state_view {
    float *conv;  /* [width − 1, channels]: the last inputs, oldest first */
    float *delta; /* DELTANET: [value_heads, size (key), size (value)]; SSM: [heads, head size, state size] */
    size_t slot_floats; /* from a slot to the next */
    uint32_t slots;
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

/* Decides what depends on the longest context that conversations may have: keys in the cache stay as they were
 * rotated, so it is decided before the first one. The backend sees the weights that were chosen alone. */
void st_bound_for_context(st_bound_op *bound, uint32_t context);

/* The memory that one operation uses beside its values: once in all, and once for each worker. */
typedef struct st_scratch {
    size_t shared_bytes, worker_bytes;
} st_scratch;

/* States the scratch of an operation for `rows` rows; more rows never need less. A pure function of the shape: it reads
 * no address and needs no open device, so the planner calls it for devices that are absent. */
typedef st_scratch (*st_scratch_statement)(const st_bound_op *shape, uint32_t rows);

/* Launches of up to so many rows may read weights before earlier work of their queue has ended, waits for events
 * included. Weights that are replaced between launches are for launches of more rows. */
enum { ST_EARLY_ROWS_MAX = 32 };

typedef struct st_segment_source {
    const st_bound_op *ops; /* copied by prepare */
    uint32_t count;
    st_rows rows;           /* which count of the step is the number of rows: count or out_count */
    uint32_t rows_min;      /* of a launch; 0: 1 */
    st_step *step;          /* device memory */
    size_t step_bytes;      /* the room it has */
    void *scratch;          /* device memory for one operation at a time: shared_bytes, then worker_bytes per worker */
    size_t shared_bytes, worker_bytes;
} st_segment_source;

/* --- chains: one launch with hand-overs to the host and back -------------------------------------------------------
 * A chain is a list of links that run in order: segments, and hand-overs through host memory that the device reads and
 * writes itself. The host follows a launch: it awaits a SEND, works with what that has written, and answers a RECEIVE
 * or an ADD, which the device waits for. So a step needs no copies and no events between its segments. */
typedef enum st_link_kind {
    ST_LINK_RUN,  /* the segment */
    ST_LINK_SEND, /* values to the host, which may then await the link */
    ST_LINK_RECEIVE, /* waits for the host's answer, then takes a value from it, if it has one */
    ST_LINK_ADD,  /* waits for the host's answer, then adds a value of it, unless the answer is that there is none */
} st_link_kind;

enum {
    ST_LINK_VALUES = 4,  /* of a SEND, at most; a RECEIVE or an ADD has one */
    ST_CHAIN_ROWS = 8,   /* a chain is for launches of so many rows, at most: more rows are worth their copies */
};

typedef struct st_link_value {
    void *to;         /* a SEND: host memory of host_alloc, else device memory */
    const void *from; /* the other one */
    uint32_t width;   /* floats, or words, of a row */
} st_link_value;

typedef struct st_link {
    st_link_kind kind;
    st_segment *segment; /* RUN */
    st_link_value values[ST_LINK_VALUES];
    uint32_t value_count;
} st_link;

typedef struct st_chain_source {
    const st_link *links; /* copied; the segments must outlive the chain */
    uint32_t count;
    st_step *step;        /* device memory: of the segments */
    uint64_t limit_us;    /* the device waits so long for an answer, at most */
} st_chain_source;

/* What a backend runs, as the table below has it: stated without its device and its library too, for GPUs that are
 * only described. */
typedef struct st_backend_statement {
    const uint64_t *types;
    bool (*runs)(const st_op *op);
} st_backend_statement;

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
    const uint64_t *types; /* [ST_OP_COUNT]: what it can run, as st_profile.types; NULL: every operation and type */
    bool (*runs)(const st_op *op); /* whether it has kernels for this form of an operation; NULL: for every form */
    strata_status (*probe)(st_device *device, st_device_rates *out, strata_error *error); /* takes about a second */
    void (*times)(const st_device *device, st_op_time out[ST_OP_COUNT]); /* zero without st_device_options.profile */

    /* Memory. Host memory is pinned where the device supports it; otherwise *pinned is false. */
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
    /* Launches on the queue follow in short succession until `hold` is false: the device's threads stay awake between
     * them. NULL: it has none, or they do not sleep. */
    void (*queue_hold)(st_queue *queue, bool hold);
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
    /* `rows` is the number of rows of its operations: the step's count or, in a head, its out_count. */
    strata_status (*launch)(st_segment *segment, st_queue *queue, uint32_t rows, strata_error *error);
    void (*segment_free)(st_segment *segment);

    /* Chains. All NULL: the device has none. *out is NULL if it cannot have this one: host memory that it does not
     * reach, too little memory for the launch. */
    strata_status (*chain_new)(st_device *device, const st_chain_source *source, st_chain **out, strata_error *error);
    void (*chain_free)(st_chain *chain); /* after its last launch has ended */
    uint32_t (*chain_rows)(const st_chain *chain); /* of a launch, at most: 1 to ST_CHAIN_ROWS */
    /* `sequence` is that of the step block; `end` is recorded behind the launch. Expert tables of the segments before
     * the first RECEIVE or ADD are read from now on, those of the segments behind such a link from its answer on: until
     * then the host may change them. A chain is launched again after the last answer. */
    strata_status (*chain_launch)(st_chain *chain, st_queue *queue, uint32_t rows, uint32_t sequence, st_event *end,
                                  strata_error *error);
    /* The host waits for the SEND `link` of the last launch. STRATA_INTERRUPTED: `*interrupt` (may be NULL) is true;
     * STRATA_DEVICE: the time limit passed; STRATA_DEVICE_LOST: the device is lost. */
    strata_status (*chain_await)(st_chain *chain, uint32_t link, uint64_t limit_us, const atomic_bool *interrupt,
                                 strata_error *error);
    /* The value of the RECEIVE or ADD `link` is in host memory; `none`: there is nothing to add. Cannot fail. */
    void (*chain_answer)(st_chain *chain, uint32_t link, bool none);
    /* After a failure: answers all links, so that the launch ends, with results of no use. */
    void (*chain_abandon)(st_chain *chain);
} st_backend;

const st_backend *st_backend_cpu(void);

#endif
