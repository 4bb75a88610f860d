/* The program made ready: stages bound to addresses and prepared by their devices. Inside run/. */
#ifndef ST_RUN_READY_H
#define ST_RUN_READY_H

#include "kv/kv.h"
#include "run/run.h"

enum { ST_PART_MAIN, ST_PART_NEXTN, ST_PARTS };

/* What is added to the experts that the card has: the host's share, and waves of fetched ones. */
typedef struct st_ready_split {
    const st_op *op;
    bool shared;          /* some may be missing on the card */
    st_segment *host;     /* the host's experts into its own place of the output */
    st_segment *add_host; /* the card adds what came from there */
    st_segment **waves;   /* the card computes fetched experts and adds them */
    uint32_t wave_count;
    st_segment *ask;      /* the next layer's router looks at what these experts see, on the host; NULL: nobody asks */
} st_ready_split;

typedef struct st_ready_stage {
    st_stage stage;
    st_segment *segment; /* of a stage that runs */
    st_event *end;       /* of a move that somebody waits for */
    st_ready_split split; /* of a split */
} st_ready_stage;

/* A part's body or head as it is walked for a batch. */
typedef struct st_ready_range {
    st_ready_stage *stages;
    uint32_t count;
    int32_t pending; /* plan/schedule.h: a move that may still read the host's memory at the end */
} st_ready_range;

/* Where a device's share of the sequence lies. */
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
    uint8_t *valid;           /* [values]: on which devices a value is at hand (plan/schedule.h) */
} st_ready;

/* Where a value's rows begin on a device. */
unsigned char *st_ready_value(const st_ready_device *device, const st_program *program, const st_plan *plan, int32_t value);

/* Binds and prepares one of the program's ranges; `valid` is carried from range to range. */
strata_status st_ready_range_new(const st_ready *ready, int part, st_op_range ops, st_rows rows, st_ready_range *out,
                                 strata_error *error);
void st_ready_range_free(const st_ready_device *devices, st_ready_range *range);

#endif
