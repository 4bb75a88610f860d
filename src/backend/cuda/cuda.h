/* Inside the CUDA backend's host part: a GPU as a device. device.c owns the context's memory and facts, queue.c streams,
 * events and counters, segment.c prepared operations. Knows CUDA through api.h alone; knows no plan and no model. */
#ifndef ST_CUDA_CUDA_H
#define ST_CUDA_CUDA_H

#include "backend/cuda/api.h"

enum {
    ST_CUDA_ALIGNMENT = 256,
    ST_CUDA_PIECES = 4,
    ST_CUDA_PIECE_BYTES = 8 << 20,
    ST_CUDA_STREAMS = 12,          /* of an engine with a few sessions */
    ST_CUDA_PINNED_PER_BYTE = 512, /* an entry of 8 bytes for a page of 4 KiB */
};

/* A range of pinned memory of the host: allocated, or memory that lies elsewhere. All other memory is pageable. */
typedef struct st_cuda_pinned {
    const void *memory;
    size_t bytes;
    bool elsewhere;
    struct st_cuda_pinned *next;
} st_cuda_pinned;

/* The pinned buffers that copies from pageable memory go through, piece by piece: one is filled while another is copied. */
typedef struct st_cuda_staging {
    unsigned char *pieces; /* [ST_CUDA_PIECES, ST_CUDA_PIECE_BYTES] */
    void *copied[ST_CUDA_PIECES]; /* events behind the last copy from each */
    uint32_t next;
} st_cuda_staging;

struct st_device {
    const st_cuda_api *api;
    int index;
    st_cuda_facts facts;
    bool lost;            /* a sticky error was seen: every call fails from then on */
    bool profile;
    st_op_time times[ST_OP_COUNT];
    void *stream, *epoch; /* of the device itself: probes, and the beginning of its clock */
    uint32_t *timed_out;  /* mapped pinned memory: a waiting kernel gave up */
    st_cuda_pinned *pinned;
    st_cuda_staging staging;
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

struct st_segment {
    st_device *device;
    st_segment_source source; /* its ops are ours */
    st_bound_op ops[];
};

/* Every call that can fail begins with this: refuses a lost device and makes it the thread's own. */
strata_status st_cuda_enter(st_device *device, strata_error *error);
/* OK, or the status of a failed call of `what`, with the reason and the device's name. */
strata_status st_cuda_check(st_device *device, st_cuda_result result, const char *what, strata_error *error);

/* Whether all of the memory is pinned. */
bool st_cuda_is_pinned(const st_device *device, const void *memory, size_t bytes);

strata_status st_cuda_open(const st_cuda_api *api, const st_device_options *options, st_device **out, strata_error *error);

/* segment.c: what it can run (st_backend.types), and what that works in. */
extern const uint64_t st_cuda_types[ST_OP_COUNT];
st_scratch st_cuda_scratch(const st_bound_op *shape, uint32_t rows);

/* The backend's functions (backend/backend.h), by file: queue.c … */
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

/* … and segment.c. */
strata_status st_cuda_prepare(st_device *device, const st_segment_source *source, st_segment **out, strata_error *error);
strata_status st_cuda_launch(st_segment *segment, st_queue *queue, strata_error *error);
void st_cuda_segment_free(st_segment *segment);

/* The backend but for `open`, which binds it to an api. */
extern const st_backend st_cuda_backend;

#endif
