#include "run/dense.h"

#include "base/alloc.h"
#include "base/error.h"
#include "memory/halves.h"

_Static_assert((int)ST_HALVES == (int)ST_FETCH_BUFFERS, "the plan has a buffer for each half");

struct st_dense {
    st_dense_source source;
    st_halves halves;
    const st_op **ops; /* [count]: of the fetches */
    uint32_t count;
};

static bool list_fetches(st_dense *dense)
{
    const st_stages *stages = dense->source.stages;
    dense->ops = st_alloc_zero(stages->count, sizeof *dense->ops);
    for (uint32_t i = 0; dense->ops && i < stages->count; i++)
        if (stages->stages[i].fetched)
            dense->ops[dense->count++] = &dense->source.program->ops[stages->stages[i].ops.first];
    return dense->ops != NULL;
}

strata_status st_dense_new(const st_dense_source *source, st_dense **out, strata_error *error)
{
    st_dense *dense = st_alloc_zero(1, sizeof *dense);
    if (!dense) return st_error_memory(error, sizeof *dense, "streaming dense weights");
    dense->source = *source;
    strata_status status = STRATA_OK;
    if (!list_fetches(dense))
        status = st_error_memory(error, source->stages->count * sizeof *dense->ops, "streaming dense weights");
    if (status == STRATA_OK) status = st_halves_open(&dense->halves, source->backend, source->device, error);
    if (status == STRATA_OK) *out = dense;
    else st_dense_free(dense);
    return status;
}

void st_dense_free(st_dense *dense)
{
    if (!dense) return;
    st_halves_close(&dense->halves);
    st_free(dense->ops);
    st_free(dense);
}

unsigned char *st_dense_buffer(const st_dense *dense, uint32_t fetch)
{
    return dense->source.buffers + fetch % ST_HALVES * dense->source.buffer_bytes;
}

/* Does nothing behind the last fetch. */
static strata_status send(st_dense *dense, uint32_t fetch, strata_error *error)
{
    if (fetch >= dense->count) return STRATA_OK;
    const st_dense_source *s = &dense->source;
    const st_op *op = dense->ops[fetch];
    st_fetch_layout layout = st_fetch_layout_of(s->binding, op);
    strata_status status = st_halves_claim(&dense->halves, fetch % ST_HALVES, error);
    for (int i = 0; i < ST_OP_WEIGHTS && status == STRATA_OK; i++)
        if (layout.matrix_bytes[i])
            status = s->backend->copy(dense->halves.queue, ST_COPY_UP, st_dense_buffer(dense, fetch) + layout.offset[i],
                                      s->host_weights[op->weight[i]], layout.matrix_bytes[i], error);
    return status == STRATA_OK ? st_halves_fill(&dense->halves, fetch % ST_HALVES, error) : status;
}

strata_status st_dense_begin(st_dense *dense, strata_error *error)
{
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < ST_HALVES && status == STRATA_OK; i++) status = send(dense, i, error);
    return status;
}

strata_status st_dense_await(st_dense *dense, uint32_t fetch, st_queue *queue, strata_error *error)
{
    return dense->source.backend->event_wait_queue(dense->halves.filled[fetch % ST_HALVES], queue, error);
}

strata_status st_dense_launched(st_dense *dense, uint32_t fetch, st_queue *queue, strata_error *error)
{
    strata_status status = st_halves_use(&dense->halves, fetch % ST_HALVES, queue, error);
    return status == STRATA_OK ? send(dense, fetch + ST_HALVES, error) : status;
}
