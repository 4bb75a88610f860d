/* The executor: runs the plan's stages for a batch. The only place that orders work and waits. Knows addresses, queues
 * and steps; knows no family, no sampling and no text. Nothing is allocated after st_run_new. */
#ifndef ST_RUN_RUN_H
#define ST_RUN_RUN_H

#include "backend/backend.h"
#include "kv/kv.h"
#include "model/program.h"
#include "moe/stream.h"
#include "moe/watch.h"
#include "plan/plan.h"

typedef struct st_run st_run;

/* A device with this sequence's part of its block, and its weights. */
typedef struct st_run_device {
    const st_backend *backend;  /* NULL: the plan does not use the device */
    st_device *device;
    unsigned char *memory;      /* plan->sequence[d].sequence_bytes */
    const void *const *weights; /* [weights]: NULL where a weight is on another device */
} st_run_device;

typedef struct st_run_source {
    const st_desc *desc;
    const st_binding *binding;
    const st_program *program;
    const st_plan *plan; /* stages and offsets */
    st_stream *stream;   /* of a plan with an expert cache; else NULL */
    st_watch *watch;     /* receives the routing of a watched plan; may be NULL */
    const atomic_bool *interrupt; /* work stops with STRATA_INTERRUPTED once it is true; may be NULL */
    st_run_device devices[ST_DEVICES_MAX];
} st_run_source;

/* The source's parts must outlive it. */
strata_status st_run_new(const st_run_source *source, st_run **out, strata_error *error);
void st_run_free(st_run *run);

st_kv *st_run_kv(st_run *run);

/* Runs `count` tokens (at most a batch; the caller has checked the ids) at the sequence's position. After a failure the
 * caller rewinds before it runs another batch: to the batch's start after an interrupt, else to 0. */
strata_status st_run_tokens(st_run *run, const strata_token *ids, uint32_t count, strata_error *error);

/* Logits of rows of the last batch (at most the plan's out_rows, each below its count): [count, vocab], valid until the
 * next call. */
strata_status st_run_logits(st_run *run, const uint32_t *rows, uint32_t count, const float **out, strata_error *error);

/* The NextN block pairs each token with the hidden state of the token before it. It has one row per token of the last
 * batch, and one less at the start of a sequence or after a rewind. */
uint32_t st_run_nextn_rows(const st_run *run);
strata_status st_run_nextn_logits(st_run *run, const uint32_t *rows, uint32_t count, const float **out,
                                  strata_error *error);

/* Rewinds the sequence to `position`, or to the nearest earlier position that the state allows (kv.h). */
strata_status st_run_rewind(st_run *run, uint32_t position, uint32_t *reached, strata_error *error);

#endif
