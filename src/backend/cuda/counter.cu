/* Counters that queues count up and wait for, in mapped pinned memory. */
#include "backend/cuda/common.cuh"

namespace {

__global__ void set(uint64_t *counter, uint64_t value)
{
    st_cuda_begin();
    __threadfence_system();
    *(volatile uint64_t *)counter = value;
}

__global__ void wait(const uint64_t *counter, uint64_t value, uint64_t limit_us, uint32_t *timed_out)
{
    st_cuda_await(); /* and no release: the next kernel would take room while this one waits */
    uint64_t start = st_cuda_nanoseconds();
    while (*(const volatile uint64_t *)counter < value) {
        if ((st_cuda_nanoseconds() - start) / 1000 > limit_us) {
            *(volatile uint32_t *)timed_out = 1;
            break;
        }
        __nanosleep(200);
    }
    __threadfence_system();
}

} // namespace

extern "C" int st_cuda_counter_set(uint64_t *counter, uint64_t value, void *stream)
{
    return st_cuda_start_alone<set>(stream, 1, 1, 0, counter, value);
}

extern "C" int st_cuda_counter_wait(const uint64_t *counter, uint64_t value, uint64_t limit_us, uint32_t *timed_out,
                                    void *stream)
{
    return st_cuda_start_alone<wait>(stream, 1, 1, 0, counter, value, limit_us, timed_out);
}
