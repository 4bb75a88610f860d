/* Captured graphs: a segment's launches for 1, 2, 4 … 64 rows. A launch uses the graph of the next larger number of rows, or
 * of its own: kernels read the number of rows from the step block.
 *
 * The driver keeps the memory of graphs until the context ends. It reuses the memory of large graphs for large ones and that of
 * small graphs for small ones, and some 70 KiB of each graph are not for its kernels. All that strata uses is taken when the
 * device is opened: so many small graphs of each size, for one row, and units of large ones. Launches without a graph enqueue
 * their kernels one by one. */
#include "backend/cuda/cuda.h"
#include "base/alloc.h"
#include "base/error.h"

enum {
    OPERATIONS_MIN = 3, /* of a segment with graphs */
    SIZE_STEP = 16,     /* small graphs have up to 16 or 32 kernels … */
    SMALL_GRAPHS = 64,  /* … and there are so many of each size: an expert cache needs one for each layer */
    SMALL_KERNELS = ST_CUDA_GRAPH_SIZES * SIZE_STEP,
    LARGE_GRAPHS = 10,
    LARGE_KERNELS = 1000, /* of each */
    GRAPH_UNITS = 48,     /* a large graph takes these and one for each kernel */
    UNITS = LARGE_GRAPHS * (GRAPH_UNITS + LARGE_KERNELS),
    UNITS_OF_MANY_ROWS = UNITS / 4 * 3, /* the rest is for graphs of one row: they run most often */
    RESERVED = LARGE_GRAPHS + ST_CUDA_GRAPH_SIZES * SMALL_GRAPHS,
};

static uint32_t kernels_of_experts(const st_bound_op *op, uint32_t rows)
{
    bool tiles = st_cuda_experts_in_tiles(op, rows);
    return tiles ? 4 + 2 * st_cuda_experts_lay_out(op->op, op->in[0].width, rows).slices : 5;
}

uint32_t st_cuda_kernels_of(const st_segment *segment, uint32_t rows)
{
    uint32_t kernels = 0;
    for (uint32_t i = 0; i < segment->count; i++) {
        st_op_kind kind = segment->ops[i].op->kind;
        if (st_cuda_is_skipped(&segment->calls[i], rows)) continue;
        bool two = kind == ST_OP_MATMUL || kind == ST_OP_HEAD_MATMUL || kind == ST_OP_ATTENTION;
        kernels += kind == ST_OP_EXPERTS ? kernels_of_experts(&segment->ops[i], rows) : two ? 2 : 1;
    }
    return kernels;
}

bool st_cuda_graph_take(st_device *device, uint32_t kernels, uint32_t rows)
{
    if (kernels <= SMALL_KERNELS) {
        uint32_t *used = &device->small_graphs[(kernels - 1) / SIZE_STEP];
        if (rows > 1 || *used == SMALL_GRAPHS) return false;
        ++*used;
        return true;
    }
    if (device->graph_units + GRAPH_UNITS + kernels > (rows == 1 ? UNITS : UNITS_OF_MANY_ROWS)) return false;
    device->graph_units += GRAPH_UNITS + kernels;
    return true;
}

void st_cuda_graph_give_back(st_device *device, uint32_t kernels)
{
    if (kernels <= SMALL_KERNELS) device->small_graphs[(kernels - 1) / SIZE_STEP]--;
    else device->graph_units -= GRAPH_UNITS + kernels;
}

void st_cuda_set_rows(st_segment *segment, uint32_t rows)
{
    for (uint32_t i = 0; i < segment->count; i++) {
        segment->calls[i].rows = rows;
        segment->calls[i].stream = segment->device->stream;
    }
}

strata_status st_cuda_graphs_new(st_segment *segment, strata_error *error)
{
    st_device *device = segment->device;
    strata_status status = STRATA_OK;
    if (segment->count < OPERATIONS_MIN) return STRATA_OK;
    for (int i = 0; i < ST_CUDA_GRAPHS && status == STRATA_OK; i++) {
        uint32_t rows = 1u << i, kernels = st_cuda_kernels_of(segment, rows);
        if (!st_cuda_graph_take(device, kernels, rows)) continue;
        st_cuda_set_rows(segment, rows);
        st_cuda_result result = device->api->graph_new(segment->calls, segment->count, &segment->graphs[i]);
        status = st_cuda_check(device, result, "capturing a graph", error);
        if (status != STRATA_OK) st_cuda_graph_give_back(device, kernels);
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
        st_cuda_graph_give_back(device, st_cuda_kernels_of(segment, 1u << i));
    }
}

uint32_t st_cuda_graph_rows(uint32_t rows)
{
    uint32_t most = 1;
    while (most < rows) most *= 2;
    return most < 1u << ST_CUDA_GRAPHS ? most : rows;
}

void *st_cuda_graph_of(const st_segment *segment, uint32_t rows)
{
    int i = 0;
    while (i < ST_CUDA_GRAPHS && 1u << i < rows) i++;
    return i < ST_CUDA_GRAPHS ? segment->graphs[i] : NULL;
}

/* --- the reserve -------------------------------------------------------------------------------------------------- */

/* Graphs of an operation that is never launched: all at the same time, then none. */
static st_cuda_result reserve(st_device *device, st_cuda_call *calls)
{
    void *graphs[RESERVED] = {NULL};
    static const st_op add = {.kind = ST_OP_ADD};
    const st_bound_op bound = {.op = &add, .out = {.width = 1}};
    st_cuda_result result = ST_CUDA_OK;
    for (int i = 0; i < LARGE_KERNELS; i++) calls[i] = (st_cuda_call){.bound = &bound, .rows = 1, .stream = device->stream};
    for (int i = 0; i < RESERVED && result == ST_CUDA_OK; i++) {
        uint32_t kernels = i < LARGE_GRAPHS ? LARGE_KERNELS : (1 + (i - LARGE_GRAPHS) / SMALL_GRAPHS) * SIZE_STEP;
        result = device->api->graph_new(calls, kernels, &graphs[i]);
    }
    for (int i = 0; i < RESERVED; i++)
        if (graphs[i]) device->api->graph_free(graphs[i]);
    return result;
}

strata_status st_cuda_graphs_reserve(st_device *device, strata_error *error)
{
    st_cuda_call *calls = st_alloc_zero(LARGE_KERNELS, sizeof *calls);
    if (!calls) return st_error_memory(error, LARGE_KERNELS * sizeof *calls, "the GPU");
    st_cuda_result result = reserve(device, calls);
    st_free(calls);
    return st_cuda_check(device, result, "reserving memory for graphs", error);
}
