#include "sampler/stop.h"

#include "base/alloc.h"
#include "base/error.h"

enum { STOPS_MAX = 256, STOP_BYTES_MAX = 4096 };

struct st_stop {
    st_str *strings; /* [count], owned with their bytes */
    size_t count;
    st_buf held;     /* text that may be the start of a stop string */
};

strata_status st_stop_new(const char *const *strings, size_t count, st_stop **out, strata_error *error)
{
    if (count > STOPS_MAX)
        return st_error_set(error, STRATA_USAGE, NULL, "stop strings: expected at most %d, found %zu", STOPS_MAX,
                            count);
    st_stop *stop = st_alloc_zero(1, sizeof *stop);
    if (!stop) return st_error_memory(error, sizeof *stop, "the stop strings");
    stop->strings = st_alloc_zero(count, sizeof *stop->strings);
    strata_status status = STRATA_OK;
    if (!stop->strings) status = st_error_memory(error, count * sizeof(st_str), "the stop strings");
    for (size_t i = 0; i < count && status == STRATA_OK; i++) {
        size_t length = strlen(strings[i]);
        if (length == 0 || length > STOP_BYTES_MAX) {
            status = st_error_set(error, STRATA_USAGE, NULL, "stop string %zu: expected 1 to %d bytes, found %zu",
                                  i + 1, STOP_BYTES_MAX, length);
            break;
        }
        char *copy = st_strndup(strings[i], length);
        if (!copy) status = st_error_memory(error, length, "the stop strings");
        else stop->strings[stop->count++] = (st_str){copy, length};
    }
    /* Room for held text and the text of a token: generating allocates nothing. */
    if (status == STRATA_OK && !st_buf_reserve(&stop->held, 2 * STOP_BYTES_MAX))
        status = st_error_memory(error, 2 * STOP_BYTES_MAX, "the stop strings");
    if (status == STRATA_OK) *out = stop;
    else st_stop_free(stop);
    return status;
}

void st_stop_free(st_stop *stop)
{
    if (!stop) return;
    for (size_t i = 0; stop->strings && i < stop->count; i++) st_free((void *)(uintptr_t)stop->strings[i].data);
    st_free(stop->strings);
    st_buf_free(&stop->held);
    st_free(stop);
}

/* The start of the stop string that ends first, or the length if there is none. Comparing ends makes the result
 * independent of how the text is cut into pieces. */
static size_t find_stop(const st_stop *stop)
{
    size_t first = stop->held.length, first_end = SIZE_MAX;
    for (size_t i = 0; i < stop->count; i++) {
        const char *at = memmem(stop->held.data, stop->held.length, stop->strings[i].data, stop->strings[i].length);
        if (!at) continue;
        size_t start = (size_t)(at - stop->held.data), end = start + stop->strings[i].length;
        if (end > first_end || (end == first_end && start > first)) continue;
        first = start;
        first_end = end;
    }
    return first;
}

/* The number of bytes at the end that could be the start of a stop string. */
static size_t open_prefix(const st_stop *stop)
{
    size_t longest = 0;
    for (size_t i = 0; i < stop->count; i++) {
        size_t most = stop->strings[i].length - 1;
        if (most > stop->held.length) most = stop->held.length;
        for (size_t n = most; n > longest; n--)
            if (memcmp(stop->held.data + stop->held.length - n, stop->strings[i].data, n) == 0) longest = n;
    }
    return longest;
}

static strata_status show(st_stop *stop, size_t shown, size_t dropped, st_buf *out, strata_error *error)
{
    if (!st_buf_append(out, stop->held.data, shown)) return st_error_memory(error, shown, "text");
    stop->held.length -= dropped;
    if (stop->held.length) memmove(stop->held.data, stop->held.data + dropped, stop->held.length);
    return STRATA_OK;
}

strata_status st_stop_push(st_stop *stop, st_str text, st_buf *out, bool *stopped, strata_error *error)
{
    *stopped = false;
    if (!st_buf_append_str(&stop->held, text)) return st_error_memory(error, text.length, "text");
    if (stop->held.length == 0) return STRATA_OK;
    size_t found = find_stop(stop);
    if (found < stop->held.length) {
        *stopped = true;
        return show(stop, found, stop->held.length, out, error);
    }
    size_t decided = stop->held.length - open_prefix(stop);
    return show(stop, decided, decided, out, error);
}

strata_status st_stop_finish(st_stop *stop, st_buf *out, strata_error *error)
{
    if (stop->held.length == 0) return STRATA_OK;
    return show(stop, stop->held.length, stop->held.length, out, error);
}
