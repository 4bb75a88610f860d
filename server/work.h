/* The threads behind the transport: some prepare requests (parse, render, tokenise), some run sessions, one choice
 * each. Owns the limit of the queue; whose turn it is among the sessions is the engine's choice, so a choice that waits
 * has a thread, too. Knows no API and no HTTP. */
#ifndef SERVER_WORK_H
#define SERVER_WORK_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "strata.h"

struct server;
struct server_task;
struct server_choice;

/* Returns whether the request goes on to wait for the engine (server_work_queue). */
typedef bool server_job_function(struct server *server, void *job);
typedef struct server_job {
    struct server_job *next;
    server_job_function *run;
    void *argument;
} server_job;

typedef struct server_work {
    struct server *server;
    pthread_mutex_t lock;
    pthread_cond_t prepare_ready, choice_ready, idle;
    server_job *jobs, **jobs_end; /* to prepare */
    struct server_choice *first, *last; /* choices that no worker has taken yet */
    size_t choice_count;                /* of them */
    struct server_choice *dropped;      /* of cancelled tasks: a preparing thread ends them */
    size_t waiting;                     /* requests that are prepared or wait until the engine admits them */
    struct server_task *tasks;          /* that have not ended */
    bool closed; /* no request is begun any more */
    bool stopping;
    pthread_t *threads; /* [thread_count]; room for thread_max */
    size_t thread_count, thread_max;
    size_t idle_workers;
} server_work;

/* `sessions`: how many the engine runs at a time. Workers are started when they are needed, as many as may run or
 * wait. */
strata_status server_work_start(server_work *w, struct server *server, size_t sessions, strata_error *error);
/* Begins no further request, so that waiting for the others ends. */
void server_work_close(server_work *w);
/* Ends the threads; every task has ended. */
void server_work_stop(server_work *w);
/* After the transport has stopped. */
void server_work_free(server_work *w);

/* Runs a function on a preparing thread; `aside`: it will not wait for the engine. False: the queue is full or closed, or
 * there is no memory. */
bool server_work_prepare(server_work *w, server_job_function *run, void *argument, bool aside);
/* Queues the choices of a prepared task, in order. */
void server_work_queue(server_work *w, struct server_task *task);
/* Removes the waiting choices of a cancelled task from the queue. */
void server_work_drop(server_work *w, struct server_task *task);
/* Waits at most `seconds` until no request is prepared and no task is unfinished. Returns whether that is so. */
bool server_work_wait_idle(server_work *w, double seconds);
void server_work_task_begun(server_work *w, struct server_task *task);
void server_work_task_ended(server_work *w, struct server_task *task);
/* Cancels everything that waits or runs. */
void server_work_cancel_all(server_work *w);

#endif
