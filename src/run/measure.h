/* Times every kind of operation at realistic shapes on a device. Knows operations and addresses; needs no model. */
#ifndef ST_RUN_MEASURE_H
#define ST_RUN_MEASURE_H

#include "backend/backend.h"
#include "base/fit.h"

typedef struct st_op_measure {
    st_op_kind kind;
    const char *type;  /* of the weights, or of keys and values; "-": none */
    uint32_t rows;
    double seconds;    /* the shortest of several runs */
    double bytes;      /* weights and state read */
    double ops;        /* multiplications plus additions */
} st_op_measure;

/* The columns of a timed matrix: `width` for two workers, as many for every further two, at most those of a large
 * model's matrices. Matrices with fewer columns measure the hand-over to the workers. */
uint32_t st_measure_columns(uint32_t width, uint32_t workers);

/* Calls `on_row` for every operation × type, with one row and with a batch, and for products and experts of the most common types
 * also with a small batch; false from it stops with STRATA_INTERRUPTED. Each expert is chosen by as many rows. */
enum { ST_MEASURE_BATCH = 256, ST_MEASURE_SMALL_BATCH = 64, ST_MEASURE_ROWS_OF_EXPERT = 4 /* one of so many */ };
typedef bool (*st_on_measure)(void *context, const st_op_measure *row);
strata_status st_measure_ops(const st_backend *backend, st_device *device, st_on_measure on_row, void *context,
                             strata_error *error);

/* Replaces each rate above zero by the bytes per second at which decoding reads weights of that type from memory: a
 * chain of matrices, larger than the last-level cache, multiplied by one row. `fixed` is what each product takes besides. */
strata_status st_measure_reading(const st_backend *backend, st_device *device, double fixed, double *rates, uint32_t types,
                                 strata_error *error);

/* Times products of one row with small Q4_K matrices and with large ones, as st_measure_reading does: the bytes and the seconds of a
 * product. Points stay as they are if there is no memory to measure with. */
strata_status st_measure_products(const st_backend *backend, st_device *device, st_fit_point points[2], strata_error *error);

/* The seconds of attention of one row to few positions. */
strata_status st_measure_short_attention(const st_backend *backend, st_device *device, double *seconds, strata_error *error);

/* Times Q4_K experts of one row, read from memory, one and several of them in a launch of their own: the bytes and the
 * seconds of a launch. Points stay as they are if there is no memory to measure with. */
strata_status st_measure_experts(const st_backend *backend, st_device *device, st_fit_point points[2], strata_error *error);

#endif
