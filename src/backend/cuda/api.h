/* The table of functions through which the host code calls CUDA. api.c implements it on the CUDA runtime; tests use a
 * fake that makes the n-th call fail. Streams, events and graphs are opaque. The caller frees whatever a function creates. */
#ifndef ST_CUDA_API_H
#define ST_CUDA_API_H

#include "backend/cuda/call.h"

typedef enum st_cuda_result {
    ST_CUDA_OK,
    ST_CUDA_PENDING, /* event_query: not reached yet */
    ST_CUDA_NONE,    /* no driver, or no such GPU */
    ST_CUDA_MEMORY,  /* out of memory */
    ST_CUDA_FAILED,  /* this call failed; later calls may succeed */
    ST_CUDA_LOST,    /* a sticky error: every later call fails too */
} st_cuda_result;

typedef struct st_cuda_facts {
    char name[64];
    int major, minor;     /* compute capability */
    uint32_t processors;  /* multiprocessors */
    int driver, runtime;  /* versions */
} st_cuda_facts;

typedef struct st_cuda_api {
    const char *(*reason)(void); /* why the thread's last call failed */
    st_cuda_result (*facts)(int index, st_cuda_facts *out);
    st_cuda_result (*use)(int index); /* cudaSetDevice; the first call creates the context */
    st_cuda_result (*load)(void);     /* loads every kernel, so that no first launch allocates memory */
    st_cuda_result (*memory)(size_t *free_bytes, size_t *total_bytes);
    st_cuda_result (*alloc)(void **out, size_t bytes);
    st_cuda_result (*free)(void *memory);
    st_cuda_result (*host_alloc)(void **out, size_t bytes); /* pinned and mapped, at the same address on host and GPU */
    st_cuda_result (*host_free)(void *memory, size_t bytes); /* the bytes it was allocated with */
    st_cuda_result (*host_pin)(const void *memory, size_t bytes); /* whole pages, read-only */
    st_cuda_result (*host_unpin)(const void *memory);
    st_cuda_result (*copy)(void *to, const void *from, size_t bytes, st_copy_kind kind, void *stream);
    st_cuda_result (*zero)(void *memory, size_t bytes, void *stream);
    st_cuda_result (*stream_new)(void **out);
    st_cuda_result (*stream_free)(void *stream); /* waits for its work */
    st_cuda_result (*stream_sync)(void *stream);
    st_cuda_result (*stream_wait)(void *stream, void *event);
    st_cuda_result (*event_new)(void **out);
    st_cuda_result (*event_free)(void *event);
    st_cuda_result (*event_record)(void *event, void *stream);
    st_cuda_result (*event_query)(void *event);
    st_cuda_result (*event_elapsed)(void *from, void *to, double *seconds);
    st_cuda_result (*counter_set)(uint64_t *counter, uint64_t value, void *stream);
    st_cuda_result (*counter_wait)(const uint64_t *counter, uint64_t value, uint64_t limit_us, uint32_t *timed_out,
                                   void *stream);
    st_cuda_result (*run)(const st_cuda_call *call); /* the kernels of one operation */
    /* A graph of the kernels of several operations, captured from the stream of the first, instantiated and uploaded. */
    st_cuda_result (*graph_new)(const st_cuda_call *calls, uint32_t count, void **out);
    st_cuda_result (*graph_free)(void *graph);
    st_cuda_result (*graph_launch)(void *graph, void *stream);
    st_cuda_result (*probe_read)(const void *memory, size_t bytes, uint32_t *sink, void *stream);
} st_cuda_api;

const st_cuda_api *st_cuda_api_real(void);

#endif
