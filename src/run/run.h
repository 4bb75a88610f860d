/* The executor: runs the plan's stages for a step, whose rows belong to one or more conversations. One per engine. The
 * only place that orders work and waits. Knows addresses, queues and steps; knows no family, no sampling and no text.
 * Nothing is allocated after st_run_new. The caller's lock guards it. */
#ifndef ST_RUN_RUN_H
#define ST_RUN_RUN_H

#include "backend/backend.h"
#include "kv/conversation.h"
#include "model/program.h"
#include "moe/recorded.h"
#include "moe/stream.h"
#include "moe/watch.h"
#include "plan/plan.h"
#include "sampler/candidates.h"

typedef struct st_run st_run;

/* A device with the executor's part of its block, and its weights. */
typedef struct st_run_device {
    const st_backend *backend;  /* NULL: the plan does not use the device */
    st_device *device;
    unsigned char *memory;      /* plan->memory[d].bytes */
    const void *const *weights; /* [weights]: NULL where a weight is on another device */
} st_run_device;

typedef struct st_run_source {
    const st_desc *desc;
    const st_binding *binding;
    const st_program *program;
    const st_plan *plan; /* stages and offsets */
    st_stream *stream;   /* of a plan with an expert cache; else NULL */
    unsigned char *dense_buffers; /* of a plan that streams dense parts, in GPU memory; else NULL */
    st_watch *watch;     /* receives the routing of a watched plan; may be NULL */
    const st_recorded *recorded; /* of a program whose routers take recorded choices; else NULL */
    st_run_device devices[ST_DEVICES_MAX];
} st_run_source;

/* The source's parts must outlive it; conversations of st_run_kv are freed before it. */
strata_status st_run_new(const st_run_source *source, st_run **out, strata_error *error);
void st_run_free(st_run *run);

st_kv *st_run_kv(st_run *run);

/* Steps stop with STRATA_INTERRUPTED once `*flag` is true; NULL: they do not stop. */
void st_run_watch(st_run *run, const atomic_bool *flag);

/* The next `count` tokens of a conversation, which the caller has written behind its position and checked. */
typedef struct st_run_piece {
    st_conversation *conversation;
    uint32_t count;
    bool prompt; /* the tokens belong to a prompt: for statistics and the expert prefetch */
} st_run_piece;

/* Runs one step: at most plan->batch rows of at most plan->conversations conversations, each conversation once. The
 * rows of the pieces follow one another. After a failure each conversation is where st_conversation_fail leaves it. */
strata_status st_run_step(st_run *run, const st_run_piece *pieces, uint32_t count, strata_error *error);

/* Waits until the last step has ended on every device: its pages may then be shared, and a restore point taken. */
strata_status st_run_wait(st_run *run, strata_error *error);

/* Logits of rows of the last step (at most the plan's out_rows, each below its count): [count, vocab], valid until the
 * next call. */
strata_status st_run_logits(st_run *run, const uint32_t *rows, uint32_t count, const float **out, strata_error *error);

/* Where the GPU reduces the logits that it computes: [out_rows] lists of adjustments, which the caller writes before
 * st_run_candidates. NULL: it does not. */
st_adjustments *st_run_adjustments(st_run *run);

/* The best candidates of rows of the last step, as st_run_logits, after the first `count` lists of adjustments:
 * [count], valid until the next call. */
strata_status st_run_candidates(st_run *run, const uint32_t *rows, uint32_t count, const st_candidates **out,
                                strata_error *error);

/* The row of logits that belongs to a slot, [vocab]: valid until another conversation gets the slot. */
float *st_run_slot_logits(st_run *run, uint32_t slot);

/* The NextN block pairs each token with the hidden state of the token before it. In a step it has one row per token,
 * and one less for a conversation that starts; pieces follow one another as in the step. */
uint32_t st_run_nextn_rows(const st_run *run);
strata_status st_run_nextn_logits(st_run *run, const uint32_t *rows, uint32_t count, const float **out,
                                  strata_error *error);

#endif
