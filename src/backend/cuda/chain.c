/* Chains: the kernels of several segments and of the hand-overs between them, captured as one graph for each number of rows. A
 * hand-over has a flag in mapped pinned memory, on a cache line of its own: who has written the values stores the sequence number
 * of the step there, which kernels read from the step block, so that a graph replays unchanged. */
#include <string.h>

#include "backend/cuda/cuda.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"

enum {
    GRAPHS = 4,          /* for 1, 2, 4 and 8 rows */
    FLAG_WORDS = 8,      /* of a cache line */
    SPINS = 4096,        /* between two checks of the clock and of the GPU: a tenth of a millisecond or two */
};

_Static_assert(1 << (GRAPHS - 1) == ST_CHAIN_ROWS, "graphs for all rows of a chain");

struct st_chain {
    st_device *device;
    st_cuda_handover *links; /* [count] */
    uint32_t count;
    st_step *step;
    bool has_flags;
    void *graphs[GRAPHS];
    uint32_t kernels[GRAPHS];
    uint32_t rows;           /* of the largest graph */
    uint32_t sequence;       /* of the last launch */
    st_event *end;           /* behind it */
};

static bool is_answered_by_host(const st_cuda_handover *h)
{
    return h->link.kind == ST_LINK_RECEIVE || h->link.kind == ST_LINK_ADD;
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

/* Whether the GPU reaches the link's host memory. */
static bool is_reached(const st_device *device, const st_link *link)
{
    for (uint32_t i = 0; i < link->value_count; i++) {
        const st_link_value *v = &link->values[i];
        if (!st_cuda_is_mapped(device, link->kind == ST_LINK_SEND ? v->to : v->from, v->width * sizeof(float))) return false;
    }
    return true;
}

static strata_status make_flags(st_chain *chain, strata_error *error)
{
    const void **words;
    size_t count = ((size_t)chain->count + 1) * FLAG_WORDS;
    strata_status status = st_cuda_mapped_new(chain->device, count, &words, error);
    if (status != STRATA_OK) return status;
    chain->has_flags = true;
    memset(words, 0, count * sizeof *words);
    uint64_t *flags = (uint64_t *)st_cuda_round_up((uintptr_t)words, FLAG_WORDS * sizeof(uint64_t));
    for (uint32_t i = 0; i < chain->count; i++) chain->links[i].flag = flags + (size_t)i * FLAG_WORDS;
    return STRATA_OK;
}

static uint32_t call_count(const st_chain *chain)
{
    uint32_t calls = 0;
    for (uint32_t i = 0; i < chain->count; i++) {
        const st_link *link = &chain->links[i].link;
        calls += link->kind == ST_LINK_RUN ? link->segment->count : 1;
    }
    return calls;
}

/* The calls for so many rows; returns the kernels, at most. */
static uint32_t fill_calls(const st_chain *chain, uint32_t rows, st_cuda_call *calls)
{
    uint32_t kernels = 0;
    for (uint32_t i = 0; i < chain->count; i++) {
        const st_link *link = &chain->links[i].link;
        if (link->kind != ST_LINK_RUN) {
            *calls++ = (st_cuda_call){.handover = &chain->links[i], .step = chain->step, .kind = ST_ROWS_ALL, .rows = rows,
                                      .stream = chain->device->stream};
            kernels++;
            continue;
        }
        st_cuda_set_rows(link->segment, rows);
        memcpy(calls, link->segment->calls, link->segment->count * sizeof *calls);
        calls += link->segment->count;
        kernels += st_cuda_kernels_of(link->segment, rows);
    }
    return kernels;
}

/* Captures the graphs as far as the reserved memory goes. */
static strata_status capture(st_chain *chain, strata_error *error)
{
    st_device *device = chain->device;
    uint32_t count = call_count(chain);
    st_cuda_call *calls = st_alloc_array(count, sizeof *calls);
    if (!calls) return st_error_memory(error, count * sizeof *calls, "a chain");
    strata_status status = STRATA_OK;
    for (int i = 0; i < GRAPHS && status == STRATA_OK; i++) {
        uint32_t rows = 1u << i, kernels = fill_calls(chain, rows, calls);
        if (!st_cuda_graph_take(device, kernels, rows)) break;
        status = st_cuda_check(device, device->api->graph_new(calls, count, &chain->graphs[i]), "capturing a graph", error);
        if (status != STRATA_OK) {
            st_cuda_graph_give_back(device, kernels);
            break;
        }
        chain->kernels[i] = kernels;
        chain->rows = rows;
    }
    st_free(calls);
    return status;
}

strata_status st_cuda_chain_new(st_device *device, const st_chain_source *source, st_chain **out, strata_error *error)
{
    *out = NULL;
    strata_status status = st_cuda_enter(device, error);
    /* Launched one by one, the kernels behind a waiting one could fill the stream, and block the host that it waits for. */
    if (status != STRATA_OK || device->profile) return status;
    for (uint32_t i = 0; i < source->count; i++)
        if (!is_reached(device, &source->links[i])) return STRATA_OK;
    st_chain *chain = st_alloc_zero(1, sizeof *chain);
    if (!chain) return st_error_memory(error, sizeof *chain, "a chain");
    *chain = (st_chain){.device = device, .count = source->count, .step = source->step};
    chain->links = st_alloc_zero(source->count, sizeof *chain->links);
    if (!chain->links) status = st_error_memory(error, source->count * sizeof *chain->links, "a chain");
    for (uint32_t i = 0; i < source->count && status == STRATA_OK; i++)
        chain->links[i] = (st_cuda_handover){.link = source->links[i], .limit_us = source->limit_us, .timed_out = device->timed_out};
    if (status == STRATA_OK) status = make_flags(chain, error);
    if (status == STRATA_OK) status = capture(chain, error);
    if (status == STRATA_OK && chain->rows > 0) *out = chain;
    else st_cuda_chain_free(chain);
    return status;
}

void st_cuda_chain_free(st_chain *chain)
{
    if (!chain) return;
    st_device *device = chain->device;
    for (int i = 0; i < GRAPHS; i++) {
        if (!chain->graphs[i]) continue;
        device->api->use(device->index);
        device->api->graph_free(chain->graphs[i]);
        st_cuda_graph_give_back(device, chain->kernels[i]);
    }
    if (chain->has_flags) st_cuda_mapped_free(device);
    st_free(chain->links);
    st_free(chain);
}

uint32_t st_cuda_chain_rows(const st_chain *chain)
{
    return chain->rows;
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

/* Shows the GPU the expert tables of the segments from link `first` on, up to the next one that the host answers. */
static void show_tables(const st_chain *chain, uint32_t first)
{
    for (uint32_t i = first; i < chain->count && !is_answered_by_host(&chain->links[i]); i++)
        if (chain->links[i].link.kind == ST_LINK_RUN) st_cuda_refresh_tables(chain->links[i].link.segment);
}

strata_status st_cuda_chain_launch(st_chain *chain, st_queue *queue, uint32_t rows, uint32_t sequence, st_event *end,
                                   strata_error *error)
{
    st_device *device = chain->device;
    strata_status status = st_cuda_enter(device, error);
    if (status == STRATA_OK && (rows == 0 || rows > chain->rows))
        status = st_error_set(error, STRATA_RUNTIME, NULL, "a chain of %u rows: expected 1 to %u", rows, chain->rows);
    for (uint32_t i = 0; i < chain->count && status == STRATA_OK; i++)
        if (chain->links[i].link.kind == ST_LINK_RUN)
            status = st_cuda_check_scratch(chain->links[i].link.segment, rows, error);
    if (status != STRATA_OK) return status;
    int graph = 0;
    while (1u << graph < rows) graph++;
    chain->sequence = sequence;
    chain->end = end;
    show_tables(chain, 0);
    status = st_cuda_check(device, device->api->graph_launch(chain->graphs[graph], queue->stream), "launching a graph", error);
    return status == STRATA_OK ? st_cuda_event_record(end, queue, error) : status;
}

static bool is_sent(const st_chain *chain, uint32_t link)
{
    return __atomic_load_n(chain->links[link].flag, __ATOMIC_ACQUIRE) == st_cuda_answer(chain->sequence, false);
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Whether the wait may go on. A launch that ended, or failed, will not send any more. */
static strata_status check_wait(st_chain *chain, uint32_t link, strata_error *error)
{
    st_device *device = chain->device;
    st_cuda_result result = device->api->event_query(chain->end->event);
    if (result == ST_CUDA_PENDING || (result == ST_CUDA_OK && is_sent(chain, link))) return STRATA_OK;
    if (result != ST_CUDA_OK) return st_cuda_check(device, result, "the GPU's work", error);
    return st_error_set(error, STRATA_DEVICE, NULL, "%s: timed out: a launch waited for an answer that the host did not give",
                        device->facts.name);
}

strata_status st_cuda_chain_await(st_chain *chain, uint32_t link, uint64_t limit_us, const atomic_bool *interrupt,
                                  strata_error *error)
{
    st_device *device = chain->device;
    double end = 0;
    for (uint32_t spins = 1; !is_sent(chain, link); spins++) {
        relax();
        if (spins % SPINS) continue;
        if (interrupt && atomic_load_explicit(interrupt, memory_order_relaxed))
            return st_error_set(error, STRATA_INTERRUPTED, NULL, "the computation was interrupted");
        strata_status status = st_cuda_enter(device, error);
        if (status == STRATA_OK) status = check_wait(chain, link, error);
        if (status != STRATA_OK) return status;
        double now = st_clock_seconds();
        if (end == 0) end = now + 1e-6 * (double)limit_us;
        if (limit_us && now > end)
            return st_error_set(error, STRATA_DEVICE, NULL, "%s: timed out: the work did not end within %llu µs", device->facts.name,
                                (unsigned long long)limit_us);
    }
    return STRATA_OK;
}

void st_cuda_chain_answer(st_chain *chain, uint32_t link, bool none)
{
    show_tables(chain, link + 1);
    __atomic_store_n(chain->links[link].flag, st_cuda_answer(chain->sequence, none), __ATOMIC_RELEASE);
}

void st_cuda_chain_abandon(st_chain *chain)
{
    for (uint32_t i = 0; i < chain->count; i++) {
        const st_cuda_handover *h = &chain->links[i];
        if (is_answered_by_host(h) && (uint32_t)(__atomic_load_n(h->flag, __ATOMIC_RELAXED) >> 1) != chain->sequence)
            st_cuda_chain_answer(chain, i, true);
    }
}
