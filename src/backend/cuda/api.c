/* The CUDA runtime behind api.h. */
#include "backend/cuda/api.h"

#include <stdatomic.h>
#include <cuda_runtime_api.h>
#include <stdio.h>

#include "base/large.h"

static _Thread_local cudaError_t last;

static const char *api_reason(void)
{
    return cudaGetErrorString(last);
}

/* Errors after which the context is of no more use. */
static bool is_sticky(cudaError_t code)
{
    static const cudaError_t codes[] = {
        cudaErrorIllegalAddress,      cudaErrorLaunchFailure,     cudaErrorLaunchTimeout,      cudaErrorHardwareStackError,
        cudaErrorIllegalInstruction,  cudaErrorMisalignedAddress, cudaErrorInvalidAddressSpace, cudaErrorInvalidPc,
        cudaErrorAssert,              cudaErrorECCUncorrectable,  cudaErrorNvlinkUncorrectable, cudaErrorDeviceUninitialized,
        cudaErrorContextIsDestroyed,  cudaErrorCudartUnloading,   cudaErrorExternalDevice,      cudaErrorUnknown,
    };
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i] == code) return true;
    return false;
}

static st_cuda_result tell(cudaError_t code)
{
    if (code == cudaSuccess) return ST_CUDA_OK;
    if (code == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return ST_CUDA_PENDING;
    }
    last = code;
    (void)cudaGetLastError(); /* the next call starts from nothing, unless the error is sticky */
    if (code == cudaErrorMemoryAllocation) return ST_CUDA_MEMORY;
    if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver || code == cudaErrorInvalidDevice ||
        code == cudaErrorSystemDriverMismatch || code == cudaErrorStubLibrary)
        return ST_CUDA_NONE;
    return is_sticky(code) ? ST_CUDA_LOST : ST_CUDA_FAILED;
}

static st_cuda_result api_facts(int index, st_cuda_facts *out)
{
    struct cudaDeviceProp properties;
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaSuccess && index >= count) code = cudaErrorInvalidDevice;
    if (code == cudaSuccess) code = cudaGetDeviceProperties(&properties, index);
    if (code != cudaSuccess) return tell(code);
    snprintf(out->name, sizeof out->name, "%.63s", properties.name);
    out->major = properties.major;
    out->minor = properties.minor;
    out->processors = (uint32_t)properties.multiProcessorCount;
    code = cudaDriverGetVersion(&out->driver);
    return tell(code == cudaSuccess ? cudaRuntimeGetVersion(&out->runtime) : code);
}

/* The current GPU is a thread's own, and a new thread's is the first one. Calls come from the scheduler's thread and
 * from callers' threads, so each begins by choosing the GPU that was opened last. */
static _Atomic int chosen;
static _Thread_local int current;

static void choose(void)
{
    int index = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (index != current && cudaSetDevice(index) == cudaSuccess) current = index;
}

static st_cuda_result api_use(int index)
{
    cudaError_t code = cudaSetDevice(index);
    if (code == cudaSuccess) {
        atomic_store_explicit(&chosen, index, memory_order_relaxed);
        current = index;
    }
    return tell(code);
}

static st_cuda_result api_load(void)
{
    choose();
    return tell((cudaError_t)st_cuda_load());
}

static st_cuda_result api_memory(size_t *free_bytes, size_t *total_bytes)
{
    choose();
    return tell(cudaMemGetInfo(free_bytes, total_bytes));
}

static st_cuda_result api_alloc(void **out, size_t bytes)
{
    choose();
    return tell(cudaMalloc(out, bytes));
}

static st_cuda_result api_free(void *memory)
{
    return tell(cudaFree(memory));
}

/* The driver needs half a second for each GB that it allocates, and a tenth of that for what is there already. */
static bool is_large(size_t bytes)
{
    return bytes >= (size_t)32 << 20;
}

static st_cuda_result api_host_alloc(void **out, size_t bytes)
{
    choose();
    if (!is_large(bytes)) return tell(cudaHostAlloc(out, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
    void *memory = st_large_new(bytes);
    if (!memory) return ST_CUDA_MEMORY;
    st_cuda_result result = tell(cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
    if (result == ST_CUDA_OK) *out = memory;
    else st_large_free(memory, bytes);
    return result;
}

static st_cuda_result api_host_free(void *memory, size_t bytes)
{
    if (!is_large(bytes)) return tell(cudaFreeHost(memory));
    st_cuda_result result = tell(cudaHostUnregister(memory));
    st_large_free(memory, bytes);
    return result;
}

static st_cuda_result api_host_pin(const void *memory, size_t bytes)
{
    unsigned flags = cudaHostRegisterPortable | cudaHostRegisterReadOnly;
    return tell(cudaHostRegister((void *)(uintptr_t)memory, bytes, flags));
}

static st_cuda_result api_host_unpin(const void *memory)
{
    return tell(cudaHostUnregister((void *)(uintptr_t)memory));
}

static st_cuda_result api_copy(void *to, const void *from, size_t bytes, st_copy_kind kind, void *stream)
{
    choose();
    static const enum cudaMemcpyKind kinds[] = {[ST_COPY_UP] = cudaMemcpyHostToDevice,
                                                [ST_COPY_DOWN] = cudaMemcpyDeviceToHost,
                                                [ST_COPY_WITHIN] = cudaMemcpyDeviceToDevice};
    return tell(cudaMemcpyAsync(to, from, bytes, kinds[kind], stream));
}

static st_cuda_result api_zero(void *memory, size_t bytes, void *stream)
{
    choose();
    return tell(cudaMemsetAsync(memory, 0, bytes, stream));
}

static st_cuda_result api_stream_new(void **out)
{
    choose();
    cudaStream_t stream;
    cudaError_t code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (code == cudaSuccess) *out = stream;
    return tell(code);
}

static st_cuda_result api_stream_free(void *stream)
{
    cudaError_t code = cudaStreamSynchronize(stream), destroyed = cudaStreamDestroy(stream);
    return tell(code == cudaSuccess ? destroyed : code);
}

static st_cuda_result api_stream_sync(void *stream)
{
    return tell(cudaStreamSynchronize(stream));
}

static st_cuda_result api_stream_wait(void *stream, void *event)
{
    return tell(cudaStreamWaitEvent(stream, event, 0));
}

static st_cuda_result api_event_new(void **out)
{
    choose();
    cudaEvent_t event;
    cudaError_t code = cudaEventCreateWithFlags(&event, cudaEventDefault); /* with its time */
    if (code == cudaSuccess) *out = event;
    return tell(code);
}

static st_cuda_result api_event_free(void *event)
{
    return tell(cudaEventDestroy(event));
}

static st_cuda_result api_event_record(void *event, void *stream)
{
    choose();
    return tell(cudaEventRecord(event, stream));
}

static st_cuda_result api_event_query(void *event)
{
    return tell(cudaEventQuery(event));
}

static st_cuda_result api_event_elapsed(void *from, void *to, double *seconds)
{
    float milliseconds;
    cudaError_t code = cudaEventElapsedTime(&milliseconds, from, to);
    if (code == cudaSuccess) *seconds = 1e-3 * (double)milliseconds;
    return tell(code);
}

static st_cuda_result api_counter_set(uint64_t *counter, uint64_t value, void *stream)
{
    choose();
    return tell((cudaError_t)st_cuda_counter_set(counter, value, stream));
}

static st_cuda_result api_counter_wait(const uint64_t *counter, uint64_t value, uint64_t limit_us, uint32_t *timed_out,
                                       void *stream)
{
    choose();
    return tell((cudaError_t)st_cuda_counter_wait(counter, value, limit_us, timed_out, stream));
}

static st_cuda_result api_run(const st_cuda_call *call)
{
    choose();
    return tell((cudaError_t)st_cuda_run(call));
}

/* Captures the kernels; the capture ends in every case. */
static cudaError_t capture(const st_cuda_call *calls, uint32_t count, cudaGraph_t *out)
{
    cudaStream_t stream = calls[0].stream;
    cudaError_t code = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (code != cudaSuccess) return code;
    for (uint32_t i = 0; i < count && code == cudaSuccess; i++) code = (cudaError_t)st_cuda_run(&calls[i]);
    cudaError_t ended = cudaStreamEndCapture(stream, out);
    return code == cudaSuccess ? ended : code;
}

static st_cuda_result api_graph_new(const st_cuda_call *calls, uint32_t count, void **out)
{
    choose();
    cudaGraph_t graph = NULL;
    cudaGraphExec_t instance = NULL;
    cudaError_t code = capture(calls, count, &graph);
    if (code == cudaSuccess) code = cudaGraphInstantiate(&instance, graph, 0);
    if (code == cudaSuccess) code = cudaGraphUpload(instance, calls[0].stream);
    if (graph) cudaGraphDestroy(graph);
    if (code != cudaSuccess && instance) cudaGraphExecDestroy(instance);
    if (code == cudaSuccess) *out = instance;
    return tell(code);
}

static st_cuda_result api_graph_free(void *graph)
{
    return tell(cudaGraphExecDestroy(graph));
}

static st_cuda_result api_graph_launch(void *graph, void *stream)
{
    choose();
    return tell(cudaGraphLaunch(graph, stream));
}

static st_cuda_result api_probe_read(const void *memory, size_t bytes, uint32_t *sink, void *stream)
{
    choose();
    return tell((cudaError_t)st_cuda_probe_read(memory, bytes, sink, stream));
}

const st_cuda_api *st_cuda_api_real(void)
{
    static const st_cuda_api api = {
        .reason = api_reason,
        .facts = api_facts,
        .use = api_use,
        .load = api_load,
        .memory = api_memory,
        .alloc = api_alloc,
        .free = api_free,
        .host_alloc = api_host_alloc,
        .host_free = api_host_free,
        .host_pin = api_host_pin,
        .host_unpin = api_host_unpin,
        .copy = api_copy,
        .zero = api_zero,
        .stream_new = api_stream_new,
        .stream_free = api_stream_free,
        .stream_sync = api_stream_sync,
        .stream_wait = api_stream_wait,
        .event_new = api_event_new,
        .event_free = api_event_free,
        .event_record = api_event_record,
        .event_query = api_event_query,
        .event_elapsed = api_event_elapsed,
        .counter_set = api_counter_set,
        .counter_wait = api_counter_wait,
        .run = api_run,
        .graph_new = api_graph_new,
        .graph_free = api_graph_free,
        .graph_launch = api_graph_launch,
        .probe_read = api_probe_read,
    };
    return &api;
}
