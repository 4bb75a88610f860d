/* Captured graphs: a segment's launches for 1, 2, 4 … 64 rows. A launch uses the graph of the next larger number of rows, or
 * of its own: kernels read the number of rows from the step block.
 *
 * The driver keeps the memory of graphs until the context ends and reuses it. All that strata uses is taken when the
 * device is opened: a graph takes one unit for each kernel and GRAPH_UNITS for itself, and segments get graphs until
 * UNITS are in use. Launches without a graph enqueue their kernels one by one. */
#include "backend/cuda/cuda.h"
#include "base/alloc.h"
#include "base/error.h"

enum {
    OPERATIONS_MIN = 3, /* of a segment with graphs */
    GRAPH_UNITS = 48,
    RESERVED_GRAPHS = 24,
    RESERVED_KERNELS = 1000, /* of each */
    UNITS = RESERVED_GRAPHS * (GRAPH_UNITS + RESERVED_KERNELS),
    UNITS_OF_MANY_ROWS = UNITS / 4 * 3, /* the rest is for graphs of one row: they run most often */
};

static uint32_t units_of(const st_segment *segment)
{
    uint32_t units = GRAPH_UNITS;
    for (uint32_t i = 0; i < segment->count; i++) {
        st_op_kind kind = segment->ops[i].op->kind;
        units += kind == ST_OP_EXPERTS ? 5 : kind == ST_OP_MATMUL || kind == ST_OP_ATTENTION ? 2 : 1; /* kernels, at most */
    }
    return units;
}

strata_status st_cuda_graphs_new(st_segment *segment, strata_error *error)
{
    st_device *device = segment->device;
    strata_status status = STRATA_OK;
    uint32_t units = units_of(segment);
    if (segment->count < OPERATIONS_MIN) return STRATA_OK;
    for (int i = 0; i < ST_CUDA_GRAPHS && status == STRATA_OK; i++) {
        if (device->graph_units + units > (i == 0 ? UNITS : UNITS_OF_MANY_ROWS)) continue;
        for (uint32_t k = 0; k < segment->count; k++) {
            segment->calls[k].rows = 1u << i;
            segment->calls[k].stream = device->stream;
        }
        st_cuda_result result = device->api->graph_new(segment->calls, segment->count, &segment->graphs[i]);
        status = st_cuda_check(device, result, "capturing a graph", error);
        if (status == STRATA_OK) device->graph_units += units;
    }
    return status;
}

void st_cuda_graphs_free(st_segment *segment)
{
    st_device *device = segment->device;
    for (int i = 0; i < ST_CUDA_GRAPHS; i++) {
        if (!segment->graphs[i]) continue;
        device->api->use(device->index);
        device->api->graph_free(segment->graphs[i]);
        device->graph_units -= units_of(segment);
    }
}

void *st_cuda_graph_of(const st_segment *segment, uint32_t rows)
{
    int i = 0;
    while (i < ST_CUDA_GRAPHS && 1u << i < rows) i++;
    return i < ST_CUDA_GRAPHS ? segment->graphs[i] : NULL;
}

/* --- the reserve -------------------------------------------------------------------------------------------------- */

/* Graphs of an operation that is never launched. */
static st_cuda_result reserve(st_device *device, st_cuda_call *calls)
{
    void *graphs[RESERVED_GRAPHS] = {NULL};
    static const st_op add = {.kind = ST_OP_ADD};
    const st_bound_op bound = {.op = &add, .out = {.width = 1}};
    st_cuda_result result = ST_CUDA_OK;
    for (int i = 0; i < RESERVED_KERNELS; i++) calls[i] = (st_cuda_call){.bound = &bound, .rows = 1, .stream = device->stream};
    for (int i = 0; i < RESERVED_GRAPHS && result == ST_CUDA_OK; i++)
        result = device->api->graph_new(calls, RESERVED_KERNELS, &graphs[i]);
    for (int i = 0; i < RESERVED_GRAPHS; i++)
        if (graphs[i]) device->api->graph_free(graphs[i]);
    return result;
}

strata_status st_cuda_graphs_reserve(st_device *device, strata_error *error)
{
    st_cuda_call *calls = st_alloc_zero(RESERVED_KERNELS, sizeof *calls);
    if (!calls) return st_error_memory(error, RESERVED_KERNELS * sizeof *calls, "the GPU");
    st_cuda_result result = reserve(device, calls);
    st_free(calls);
    return st_cuda_check(device, result, "reserving memory for graphs", error);
}
