/* The plan's stages with addresses, prepared by their devices. Private to run/. */
#ifndef ST_RUN_READY_H
#define ST_RUN_READY_H

#include "kv/kv.h"
#include "run/dense.h"
#include "run/run.h"

/* The terms added to the sum of the experts in slots: the host's share, and waves of fetched experts. */
typedef struct st_ready_split {
    st_segment *host;     /* sums the host's experts into the host's copy of the output */
    st_segment *add_host; /* the GPU adds the host's sum */
    st_segment **waves;   /* the GPU computes fetched experts and adds them */
    uint32_t wave_count;
    st_segment *ask;      /* on the host: the next layer's router on the input of these experts; NULL: no prefetch */
} st_ready_split;

typedef struct st_ready_stage {
    const st_stage *stage;
    st_segment *segment;  /* of a RUN */
    st_event *end;        /* of a MOVE that the host waits for */
    uint32_t link;        /* of a MOVE or a SPLIT, in the range's chain; of a guarded MOVE the guard is before it */
    st_ready_split split; /* of a SPLIT */
    uint32_t fetch;       /* of a fetched RUN: its index among the fetches of the range */
} st_ready_stage;

/* A part's body or head: the plan's stages with addresses. */
typedef struct st_ready_range {
    st_ready_stage *stages;
    uint32_t count;
    int32_t pending; /* st_stages.pending */
    st_chain *chain; /* the GPU's stages, for few rows; NULL: they are launched one by one */
    uint32_t chain_rows;
} st_ready_range;

/* A device's part of the executor. */
typedef struct st_ready_device {
    st_run_device source;
    const st_working_set *set;
    unsigned char *working;
    st_step *step[ST_PARTS];
    st_queue *queue;
} st_ready_device;

typedef struct st_ready {
    const st_run_source *source;
    const st_kv *kv;
    st_ready_device *devices; /* [ST_DEVICES_MAX] */
    st_arena *arena;          /* tables and stages */
    const st_dense *dense;    /* of ranges with fetched runs */
    uint32_t rows_min;        /* of the steps that the range is for; 0: 1 */
} st_ready;

/* The address of a value on a device. */
unsigned char *st_ready_value(const st_ready_device *device, const st_program *program, const st_plan *plan,
                              int32_t value);

/* Prepares the GPU's reduction of the main part's logits to candidates, in the working set. */
strata_status st_ready_reduction_new(const st_ready *ready, st_segment **out, strata_error *error);

/* Binds and prepares the stages of a part's body or head. */
strata_status st_ready_range_new(const st_ready *ready, int part, const st_stages *stages, st_rows rows,
                                 st_ready_range *out, strata_error *error);
void st_ready_range_free(const st_ready_device *devices, st_ready_range *range);

#endif
