#include "memory/halves.h"

enum { WAIT_LIMIT_US = 120 * 1000 * 1000 };

strata_status st_halves_open(st_halves *halves, const st_backend *backend, st_device *device, strata_error *error)
{
    *halves = (st_halves){.backend = backend};
    strata_status status = backend->queue_new(device, ST_QUEUE_UP, &halves->queue, error);
    for (int i = 0; i < ST_HALVES && status == STRATA_OK; i++) {
        status = backend->event_new(device, &halves->filled[i], error);
        if (status == STRATA_OK) status = backend->event_new(device, &halves->used_up[i], error);
    }
    if (status != STRATA_OK) st_halves_close(halves);
    return status;
}

/* Waits for copies that no launch has waited for, as after a failure: what they read and write may be freed next. */
static void settle(const st_halves *halves)
{
    const st_backend *backend = halves->backend;
    for (int i = 0; i < ST_HALVES; i++)
        if (halves->filling[i] && !backend->event_done(halves->filled[i]))
            (void)backend->event_wait_host(halves->filled[i], WAIT_LIMIT_US, NULL);
}

void st_halves_close(st_halves *halves)
{
    settle(halves);
    for (int i = 0; i < ST_HALVES; i++) {
        if (halves->filled[i]) halves->backend->event_free(halves->filled[i]);
        if (halves->used_up[i]) halves->backend->event_free(halves->used_up[i]);
    }
    if (halves->queue) halves->backend->queue_free(halves->queue);
    *halves = (st_halves){0};
}

strata_status st_halves_claim(st_halves *halves, uint32_t half, strata_error *error)
{
    if (!halves->in_use[half]) return STRATA_OK;
    return halves->backend->event_wait_queue(halves->used_up[half], halves->queue, error);
}

strata_status st_halves_fill(st_halves *halves, uint32_t half, strata_error *error)
{
    strata_status status = halves->backend->event_record(halves->filled[half], halves->queue, error);
    if (status == STRATA_OK) halves->filling[half] = true;
    return status;
}

strata_status st_halves_use(st_halves *halves, uint32_t half, st_queue *queue, strata_error *error)
{
    strata_status status = halves->backend->event_record(halves->used_up[half], queue, error);
    if (status == STRATA_OK) halves->in_use[half] = true;
    return status;
}
