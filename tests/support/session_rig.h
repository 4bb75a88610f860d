/* A model, its engine and a session through strata.h, on the reference path. Any failure fails the test. */
#ifndef TEST_SUPPORT_SESSION_RIG_H
#define TEST_SUPPORT_SESSION_RIG_H

#include "strata.h"
#include "support/kit.h"

#define SESSION_FASTEST "fastest" /* of options.cpu: the kernels that the engine chooses */

enum { SESSION_VOCAB = 320, SESSION_IDS = 2048, SESSION_PAGE = 64 /* tokens of a KV page */ };

typedef struct session_rig {
    strata_model *model;
    strata_engine *engine;
    strata_session *session;
} session_rig;

extern strata_token session_ids[SESSION_IDS]; /* no id of a prompt is above 279, so that 280 and more make a difference */

/* Opens the kit's NAME.gguf. Unless the options say otherwise: CPU kernels "ref", whose rows do not depend on batching,
 * and eight sessions at a time. */
void session_rig_open(session_rig *r, const char *name, strata_engine_options options);
/* The same for a copy of the model with a longer context. */
void session_rig_open_longer(session_rig *r, const char *name, uint32_t context, strata_engine_options options);
void session_rig_close(session_rig *r);

strata_session *session_open(const session_rig *r);

/* Counts calls of strata_progress; the stop_at-th stops the work. */
typedef struct session_counter {
    uint64_t calls, done, total, stop_at;
} session_counter;
bool session_count(void *context, uint64_t done, uint64_t total);

/* Runs a prompt; returns how many of its tokens ran. */
uint64_t session_prompt(strata_session *session, const strata_token *tokens, size_t count);
const float *session_logits(strata_session *session); /* [SESSION_VOCAB] */

/* The logits after these tokens, computed without anything stored: [SESSION_VOCAB]. */
void session_cold(const session_rig *r, const strata_token *tokens, size_t count, float *logits);
/* The session's logits are the same, bit by bit; or near, where a row depends on the other rows of its step. */
void session_check(const session_rig *r, strata_session *session, const strata_token *tokens, size_t count);
void session_check_near(const session_rig *r, strata_session *session, const strata_token *tokens, size_t count);

/* A number of strata_engine_describe's "kv_use"; `pool` 0 or more: of that pool. */
uint64_t session_kv_use(const session_rig *r, int pool, const char *key);

#endif
