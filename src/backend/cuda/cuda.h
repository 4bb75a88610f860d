/* Private to the host code of the CUDA backend. device.c: the GPU's memory and properties; queue.c: streams, events and
 * counters; rates.c: its measured rates; segment.c: prepared operations; graph.c: their graphs; chain.c: chains of them;
 * statement.c: what it runs. Calls CUDA only through api.h; knows no plan and no model. */
#ifndef ST_CUDA_CUDA_H
#define ST_CUDA_CUDA_H

#include "backend/cuda/api.h"
#include "backend/cuda/statement.h"

enum {
    ST_CUDA_PIECES = 4,            /* staging buffers … */
    ST_CUDA_PIECE_BYTES = 8 << 20, /* … of this size */
    ST_CUDA_STREAMS = 12,          /* enough for an engine with a few sessions */
    ST_CUDA_GRAPHS = 7,            /* of a segment: for 1, 2, 4 … 64 rows */
    ST_CUDA_GRAPH_SIZES = 2,       /* of small graphs (graph.c) */
    ST_CUDA_TABLES_BYTES = 2 << 20, /* of a block of expert tables */
    ST_CUDA_TABLE_BLOCKS = 64,
    ST_CUDA_PINNED_PER_BYTE = 512, /* the GPU's page tables have an entry of 8 bytes for each pinned page of 4 KiB */
};

/* A range of pinned host memory. All other host memory is pageable. */
typedef struct st_cuda_pinned {
    const void *memory;
    size_t bytes;
    bool elsewhere; /* pinned in place, not allocated by CUDA: unpin it, do not free it */
    struct st_cuda_pinned *next;
} st_cuda_pinned;

/* Pinned staging buffers for copies from pageable memory: one is filled while another is copied. */
typedef struct st_cuda_staging {
    unsigned char *pieces; /* [ST_CUDA_PIECES, ST_CUDA_PIECE_BYTES] */
    void *copied[ST_CUDA_PIECES]; /* events: the last copy from each buffer has ended */
    uint32_t next;
} st_cuda_staging;

struct st_device {
    const st_cuda_api *api;
    int index;
    st_cuda_facts facts;
    bool lost;            /* a sticky error was seen: every call fails from then on */
    bool profile;
    st_op_time times[ST_OP_COUNT];
    void *stream, *epoch; /* for probes; an event recorded at open: time 0 of st_cuda_event_seconds */
    uint32_t *timed_out;  /* in mapped pinned memory: a waiting kernel timed out */
    st_cuda_pinned *pinned;
    st_cuda_staging staging;
    /* Expert tables of segments and flags of chains, in blocks of mapped pinned memory: the first is allocated at open, others
     * when they are needed. Entries are taken one after the other; all are free again when nobody has any. */
    const void **tables[ST_CUDA_TABLE_BLOCKS];
    uint32_t tables_block; /* the one that entries are taken from */
    size_t tables_used;    /* entries of it */
    uint32_t tables_users; /* segments and chains */
    uint32_t graph_units; /* of memory in use by large graphs (graph.c) */
    uint32_t small_graphs[ST_CUDA_GRAPH_SIZES]; /* in use */
};

struct st_queue {
    st_device *device;
    void *stream;
};

struct st_event {
    st_device *device;
    void *event;
    bool recorded;
};

/* An expert table, and its copy in mapped pinned memory, where kernels read it. */
typedef struct st_cuda_table {
    const void *const *parts;
    const void **copy;
    uint32_t count;
} st_cuda_table;

struct st_segment {
    st_device *device;
    st_bound_op *ops;     /* [count] */
    st_cuda_call *calls;  /* [count]: of the operations, without rows and stream */
    uint32_t count;
    size_t shared_bytes;  /* of scratch */
    st_cuda_table *tables;
    uint32_t table_count;
    uint32_t checked_rows; /* the scratch suffices for so many */
    void *graphs[ST_CUDA_GRAPHS]; /* NULL: such launches enqueue one kernel after another */
};

/* Every call that can fail begins with this: fails if the device is lost, else makes it the calling thread's device. */
strata_status st_cuda_enter(st_device *device, strata_error *error);
/* Converts a result to a status; the error names `what` failed, CUDA's reason and the device. */
/* Allocates a block of expert tables, unless it exists. */
strata_status st_cuda_tables_block(st_device *device, uint32_t block, strata_error *error);

strata_status st_cuda_check(st_device *device, st_cuda_result result, const char *what, strata_error *error);

/* Whether the whole range is pinned; whether the GPU reads and writes it as well. */
bool st_cuda_is_pinned(const st_device *device, const void *memory, size_t bytes);
bool st_cuda_is_mapped(const st_device *device, const void *memory, size_t bytes);

strata_status st_cuda_open(const st_cuda_api *api, const st_device_options *options, st_device **out, strata_error *error);

/* segment.c: the scratch of an operation. */
st_scratch st_cuda_scratch(const st_bound_op *shape, uint32_t rows);

/* … and for chains: entries of 8 bytes of mapped pinned memory; whether a launch has enough scratch; the expert tables as they
 * are now, written to where kernels read them. */
strata_status st_cuda_mapped_new(st_device *device, size_t entries, const void ***out, strata_error *error);
void st_cuda_mapped_free(st_device *device);
strata_status st_cuda_check_scratch(st_segment *segment, uint32_t rows, strata_error *error);
void st_cuda_refresh_tables(const st_segment *segment);

/* graph.c. At open: takes the memory that the driver keeps for graphs, so that it is in use before free memory is measured. */
strata_status st_cuda_graphs_reserve(st_device *device, strata_error *error);
/* Captures the segment's graphs, as far as the reserved memory goes. */
strata_status st_cuda_graphs_new(st_segment *segment, strata_error *error);
void st_cuda_graphs_free(st_segment *segment);
/* The kernels of a launch, at most; prepares the segment's calls for a capture; takes the memory of a graph out of the reserve
 * (false: too little is left) and returns it. */
uint32_t st_cuda_kernels_of(const st_segment *segment, uint32_t rows);
void st_cuda_set_rows(st_segment *segment, uint32_t rows);
bool st_cuda_graph_take(st_device *device, uint32_t kernels, uint32_t rows);
void st_cuda_graph_give_back(st_device *device, uint32_t kernels);
/* The rows of the graph that a launch of that many rows may use, or its own. */
uint32_t st_cuda_graph_rows(uint32_t rows);
/* The graph for a launch of that many rows; NULL: none. */
void *st_cuda_graph_of(const st_segment *segment, uint32_t rows);

/* The backend's functions (backend/backend.h), by file: device.c, rates.c … */
strata_status st_cuda_alloc(st_device *device, size_t bytes, void **out, strata_error *error);
void st_cuda_free(st_device *device, void *memory);
strata_status st_cuda_host_alloc(st_device *device, size_t bytes, void **out, bool *pinned, strata_error *error);
void st_cuda_host_free(st_device *device, void *memory);
strata_status st_cuda_probe(st_device *device, st_device_rates *out, strata_error *error);

/* … queue.c … */
strata_status st_cuda_queue_new(st_device *device, st_queue_kind kind, st_queue **out, strata_error *error);
void st_cuda_queue_free(st_queue *queue);
strata_status st_cuda_event_new(st_device *device, st_event **out, strata_error *error);
void st_cuda_event_free(st_event *event);
strata_status st_cuda_event_record(st_event *event, st_queue *queue, strata_error *error);
strata_status st_cuda_event_wait_queue(st_event *event, st_queue *queue, strata_error *error);
bool st_cuda_event_done(const st_event *event);
strata_status st_cuda_event_wait_host(st_event *event, uint64_t limit_us, strata_error *error);
double st_cuda_event_seconds(const st_event *event);
strata_status st_cuda_copy(st_queue *queue, st_copy_kind kind, void *to, const void *from, size_t bytes,
                           strata_error *error);
strata_status st_cuda_zero(st_queue *queue, void *memory, size_t bytes, strata_error *error);
strata_status st_cuda_signal(st_queue *queue, uint64_t *counter, uint64_t value, strata_error *error);
strata_status st_cuda_wait(st_queue *queue, uint64_t *counter, uint64_t value, uint64_t limit_us, strata_error *error);

/* … chain.c … */
strata_status st_cuda_chain_new(st_device *device, const st_chain_source *source, st_chain **out, strata_error *error);
void st_cuda_chain_free(st_chain *chain);
uint32_t st_cuda_chain_rows(const st_chain *chain);
strata_status st_cuda_chain_launch(st_chain *chain, st_queue *queue, uint32_t rows, uint32_t sequence, st_event *end,
                                   strata_error *error);
strata_status st_cuda_chain_await(st_chain *chain, uint32_t link, uint64_t limit_us, const atomic_bool *interrupt,
                                  strata_error *error);
void st_cuda_chain_answer(st_chain *chain, uint32_t link, bool none);
void st_cuda_chain_abandon(st_chain *chain);

/* … and segment.c. */
strata_status st_cuda_prepare(st_device *device, const st_segment_source *source, st_segment **out, strata_error *error);
strata_status st_cuda_launch(st_segment *segment, st_queue *queue, uint32_t rows, strata_error *error);
void st_cuda_segment_free(st_segment *segment);

/* The backend without `open`, which chooses the api. */
extern const st_backend st_cuda_backend;

#endif
