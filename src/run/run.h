/* The executor: walks the program for a batch. The only place that orders work and waits. Knows addresses, queues and
 * steps; knows no family, no sampling and no text. Nothing is allocated after st_run_new. */
#ifndef ST_RUN_RUN_H
#define ST_RUN_RUN_H

#include "backend/backend.h"
#include "kv/kv.h"
#include "model/program.h"

typedef struct st_run st_run;

typedef struct st_run_options {
    uint32_t batch;    /* the most tokens at a time */
    uint32_t out_rows; /* the most rows of logits at a time */
    bool nextn;        /* run the NextN block along: its cache follows the tokens */
} st_run_options;

typedef struct st_run_source {
    const st_desc *desc;
    const st_binding *binding;
    const st_program *program;
    const st_kv_layout *layout;
    const st_backend *backend;
    st_device *device;
} st_run_source;

/* What st_run_scratch_bytes of such a run will be; SIZE_MAX: more than fits a size. */
size_t st_run_price(const st_run_source *source, const st_run_options *options);

/* The source's parts must outlive it. */
strata_status st_run_new(const st_run_source *source, const st_run_options *options, st_run **out, strata_error *error);
void st_run_free(st_run *run);

st_kv *st_run_kv(st_run *run);
size_t st_run_scratch_bytes(const st_run *run); /* values, the step block and the backend's scratch */

/* Runs `count` tokens (at most a batch, ids checked by the caller, room in the context) at the sequence's position. */
strata_status st_run_tokens(st_run *run, const strata_token *ids, uint32_t count, strata_error *error);

/* Logits of some rows of the last batch (at most out_rows, each below its count): [count, vocab], good until the next
 * call. */
strata_status st_run_logits(st_run *run, const uint32_t *rows, uint32_t count, const float **out, strata_error *error);

/* The NextN block predicts the token after each token that has one before it. The last batch has as many such rows as
 * tokens, and one less at the start of a sequence and after a rewind. */
uint32_t st_run_nextn_rows(const st_run *run);
strata_status st_run_nextn_logits(st_run *run, const uint32_t *rows, uint32_t count, const float **out,
                                  strata_error *error);

/* Forgets everything from `position` on as far as the state allows (kv.h). */
strata_status st_run_rewind(st_run *run, uint32_t position, uint32_t *reached, strata_error *error);

#endif
