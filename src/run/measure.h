/* Times every kind of operation at realistic shapes on a device. Knows operations and addresses; needs no model. */
#ifndef ST_RUN_MEASURE_H
#define ST_RUN_MEASURE_H

#include "backend/backend.h"

typedef struct st_op_measure {
    st_op_kind kind;
    const char *type;  /* of the weights, or of keys and values; "-": none */
    uint32_t rows;
    double seconds;    /* the shortest of several runs */
    double bytes;      /* weights and state read */
    double ops;        /* multiplications plus additions */
} st_op_measure;

/* Calls `on_row` for every operation × type; false from it stops with STRATA_INTERRUPTED. */
typedef bool (*st_on_measure)(void *context, const st_op_measure *row);
strata_status st_measure_ops(const st_backend *backend, st_device *device, st_on_measure on_row, void *context,
                             strata_error *error);

#endif
