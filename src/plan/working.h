/* The working set of the executor on one device: values, step blocks, scratch. A pure function of
 * shape and batch, so that the planner prices what the executor lays out. */
#ifndef ST_PLAN_WORKING_H
#define ST_PLAN_WORKING_H

#include "backend/backend.h"
#include "model/desc.h"

typedef struct st_working_options {
    const uint8_t *op_device; /* of every operation; NULL: all on `device` */
    const uint8_t *dense_device; /* the same in steps that stream dense parts; NULL: there are none */
    uint8_t device;
    st_step_limits step;      /* the largest step */
    uint32_t workers;         /* each has worker_bytes of scratch */
    bool nextn;               /* operations of the NextN block count */
    bool expert_cache;        /* the host also computes routed experts of the GPU that have no slot */
    const st_scratch *candidates; /* of the GPU's reduction of logits to candidates; NULL: logits are not reduced */
    bool watched;             /* the host reads the routing, so it has the values even if it runs nothing */
    const st_scratch *scratch; /* [operations]: stated by the device's backend for this batch */
} st_working_options;

typedef struct st_working_set {
    size_t values[2];        /* offsets by st_rows */
    size_t steps[2];         /* offsets: main, NextN */
    size_t scratch;          /* offset */
    size_t sums[2];          /* offsets, on the GPU with an expert cache: sums of the host's and of fetched experts */
    size_t adjustments, candidates; /* offsets, on the GPU: inputs and results of reducing out_rows rows of logits */
    size_t shared_bytes, worker_bytes; /* of scratch: once, then for each worker */
    size_t bytes;            /* in all: a multiple of 256; 0: the device runs nothing */
} st_working_set;

/* False: overflow. */
bool st_working_set_of(const st_desc *desc, const st_program *program, const st_working_options *options,
                       st_working_set *out);

#endif
