/* Runs the stages of a step on their devices: launches, copies between devices, misses of the expert cache, chains.
 * Knows no conversation, no content of a step and no logits: they are run.c's. For run.c alone: it shares its state. */
#ifndef ST_RUN_STAGES_H
#define ST_RUN_STAGES_H

#include "run/ready.h"
#include "run/run.h"

/* A part of the program with its stages prepared. */
typedef struct st_ready_part {
    st_ready_range body, head;
    st_step *master; /* the step block as the host writes it */
} st_ready_part;

struct st_run {
    st_run_source source;
    st_kv *kv;
    st_arena arena;          /* of the stages and the tables of experts */
    st_ready_device devices[ST_DEVICES_MAX];
    st_event *crossed;       /* after the last copy of logits or hidden states between devices */
    st_event *step_sent;     /* after the last copy of a step block to the GPU */
    st_event *share_sent;    /* after the last copy of the host's share of experts to the GPU */
    st_event *batch_end;     /* after the last launch of the last batch */
    st_event *chain_end;     /* after the last chain */
    st_event *host_now;      /* of the host's clock */
    st_event *pending;       /* after copies that may still read the host's values; NULL: none */
    bool step_sending;
    bool computing;          /* the last batch may not have reached batch_end */
    float *host_logits;      /* the GPU's logits are copied here */
    float *slot_logits;      /* [conversations, vocab]: logits by slot */
    st_segment *reduce;      /* the GPU's logits to candidates; NULL: the plan does not reduce logits */
    st_adjustments *adjustments; /* [out_rows]: copied to the GPU … */
    st_candidates *candidates;   /* … and its candidates from there */
    uint32_t empty_lists;        /* so many lists of adjustments are empty on the GPU */
    const atomic_bool *interrupt;
    st_stream_step kind;     /* of the step */
    uint32_t sequence;       /* of the last step block */
    st_watch_row *origins;   /* [batch], of a watched plan */
    uint32_t last_count, last_nextn_rows;
    st_ready_part parts[ST_PARTS];
    /* steps of many rows that run dense parts in RAM on the GPU */
    st_dense *dense;         /* NULL: there are none */
    st_ready_range streamed_body, streamed_head; /* of the main part */
    bool streamed;           /* the last step is one */
};

/* Waits on the host, and records behind everything that the GPU's queue has. */
strata_status st_stages_wait(st_run *run, st_event *event, strata_error *error);
strata_status st_stages_record(st_run *run, st_event *event, strata_error *error);

/* Waits until no copy reads the host's values, so that they may be written. */
strata_status st_stages_settle(st_run *run, strata_error *error);

strata_status st_stages_copy(st_run *run, uint8_t to_device, void *to, uint8_t from_device, const void *from,
                             size_t bytes, strata_error *error);

/* Where a device has a value. */
unsigned char *st_stages_value(const st_run *run, uint8_t device, int32_t value);

/* Runs a range for `rows` rows. `step` is the block as the host wrote it. */
strata_status st_stages_run(st_run *run, const st_ready_range *range, const st_step *step, uint32_t rows,
                            strata_error *error);

#endif
