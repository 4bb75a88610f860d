/* The scheduler: one thread per engine that forms steps from what sessions ask for. A request brings tokens of a
 * conversation; the scheduler admits it, runs its tokens in steps together with those of other requests, and asks the
 * request for the next token until the request has enough. It carries out the decisions of policy.h and learns the
 * cost of steps by pace.h. Knows requests, conversations and the executor; knows no sampling and no text.
 *
 * A request belongs to the thread that submits it and waits for it. The engine's lock guards executor and
 * conversations, and is held for a step; a lock of the scheduler's own guards what threads tell each other. */
#ifndef ST_SCHED_SCHED_H
#define ST_SCHED_SCHED_H

#include <pthread.h>

#include "kv/stops.h"
#include "run/run.h"
#include "sched/policy.h"

typedef struct st_sched st_sched;

typedef struct st_sched_source {
    st_run *run;
    const st_plan *plan;
    uint32_t vocab;
    st_policy policy;
    double step_seconds, row_seconds; /* first estimates: one row, and each row of a prompt (pace.h) */
    void (*lock)(void *context);      /* the engine's */
    void (*unlock)(void *context);
    double (*clock)(void *context);   /* seconds; called with the engine's lock held */
    void *context;
} st_sched_source;

/* What a request does when it has the logits after its last token. */
typedef enum st_next {
    ST_NEXT_TOKEN, /* appends a token, which is run */
    ST_NEXT_LAST,  /* appends a token and ends */
    ST_NEXT_END,   /* ends */
    ST_NEXT_WAIT,  /* is asked again after st_sched_resume */
} st_next;

enum { ST_REQUEST_MARKS = 64 };

typedef struct st_request {
    /* Set by the caller; zero otherwise. */
    st_conversation *conversation;
    const strata_token *tokens; /* [count]: what the conversation is to hold; may be its own tokens */
    uint32_t count;             /* grows with the tokens of `next` */
    bool prompt;                /* the tokens are a prompt; else they continue the conversation */
    bool computed;              /* the slot's logits are those after the last token, if the slot is not lost. Set again
                                   when the request ends */
    bool alone;                 /* no other request runs; the caller uses the executor itself until st_sched_leave */
    bool notify;                /* st_sched_wait returns after each of its steps. A prompt is at most two steps ahead of
                                   its caller, who may want to end it */
    uint32_t marks[ST_REQUEST_MARKS], mark_count; /* st_stops */
    const atomic_bool *stop;    /* the request ends when it is true: after the step under way, or within it if that loses
                                   nothing but the step */
    const atomic_bool *interrupt; /* the request ends within a step */
    /* Called by the scheduler's thread with [vocab] logits or, if `adjust` has agreed, with the best candidates
     * instead; must not wait. NULL: the request ends with its tokens. */
    st_next (*next)(void *context, const float *logits, const st_candidates *best, strata_token *token);
    /* Whether candidates suffice for the next token, with which adjustments. NULL: they do not. */
    bool (*adjust)(void *context, st_adjustments *out);
    /* Called by the scheduler's thread when it admits the request for the first time; must not wait. May be NULL. */
    void (*on_admitted)(void *context);
    void *context; /* of all three */

    /* Results. */
    strata_status status;
    strata_error error;
    uint32_t reused; /* tokens that were stored when it was admitted first */
    uint32_t done;   /* tokens stored when st_sched_wait returned last */

    /* The scheduler's. */
    struct st_request *after;  /* in the list of requests */
    struct st_request *leader; /* computes the prefix that this one needs; NULL: none */
    uint32_t leader_until;     /* the position that it waits for */
    uint32_t position, adopts; /* while it waits: what the prefix cache has */
    st_stops stops;
    double arrived;
    uint32_t stored;           /* tokens stored, for `done` */
    uint32_t told, taken, heard; /* news so far; returned by st_sched_wait; answered by the next call of it */
    bool admitted, seen, started, has_logits, waits, resumed, left, ended, changed;
    bool has_best;             /* instead of logits the slot has the candidates after the last token */
    pthread_cond_t news;
} st_request;

strata_status st_sched_new(const st_sched_source *source, st_sched **out, strata_error *error);
void st_sched_free(st_sched *sched); /* no request is under way */

/* The request stays valid until st_sched_wait has returned false. */
void st_sched_submit(st_sched *sched, st_request *request);
/* Waits until the request ends: false. True: a step of a request with `notify` has ended. A request that is alone
 * returns true when it may use the executor. */
bool st_sched_wait(st_sched *sched, st_request *request);
/* After ST_NEXT_WAIT. */
void st_sched_resume(st_sched *sched, st_request *request);
/* A request that is alone no longer uses the executor: it ends. */
void st_sched_leave(st_sched *sched, st_request *request);

/* The conversation is about to be freed; the engine's lock is held. */
void st_sched_forget(st_sched *sched, const st_conversation *conversation);

typedef struct st_sched_counts {
    uint64_t steps, rows;    /* steps so far, and their rows */
    uint64_t answer_rows;    /* rows of answers */
    uint64_t parked;         /* times that a conversation gave its place up for others */
    uint64_t followed;       /* requests that waited for another's prefix */
    uint32_t running, waiting;
    double longest_wait;     /* seconds until a request was admitted */
} st_sched_counts;

st_sched_counts st_sched_count(const st_sched *sched); /* the engine's lock is held */

#endif
