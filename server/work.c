#include "work.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { PREPARING_THREADS = 2, WORKER_STACK_BYTES = 256 << 10 };

static void *worker(void *context);

/* ---- the queue: the lock is held ------------------------------------------------------------------------------- */

static int start_thread(server_work *w, void *(*run)(void *context), size_t stack_bytes)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (stack_bytes > 0) pthread_attr_setstacksize(&attributes, stack_bytes);
    int cause = pthread_create(&w->threads[w->thread_count], &attributes, run, w);
    pthread_attr_destroy(&attributes);
    if (cause == 0) w->thread_count++;
    return cause;
}

/* If no further worker can be started, the choice waits for a running one. */
static void wake_worker(server_work *w)
{
    bool enough = w->choice_count <= w->idle_workers;
    if (!enough && w->thread_count < w->thread_max) (void)start_thread(w, worker, WORKER_STACK_BYTES);
    pthread_cond_signal(&w->choice_ready);
}

static void append(server_work *w, server_choice *c)
{
    c->queued = true;
    c->next = NULL;
    c->previous = w->last;
    if (w->last) w->last->next = c;
    else w->first = c;
    w->last = c;
    w->choice_count++;
    wake_worker(w);
}

static void prepend(server_work *w, server_choice *c)
{
    c->queued = true;
    c->previous = NULL;
    c->next = w->first;
    if (w->first) w->first->previous = c;
    else w->last = c;
    w->first = c;
    w->choice_count++;
    wake_worker(w);
}

static void unlink_choice(server_work *w, server_choice *c)
{
    if (c->previous) c->previous->next = c->next;
    else w->first = c->next;
    if (c->next) c->next->previous = c->previous;
    else w->last = c->previous;
    c->queued = false;
    w->choice_count--;
}

/* The engine has admitted the task, or it ends. */
static void stop_waiting(server_work *w, server_task *task)
{
    if (!task->waits) return;
    task->waits = false;
    w->waiting--;
    atomic_fetch_sub(&w->server->metrics.queued, 1);
}

bool server_work_prepare(server_work *w, server_job_function *run, void *argument, bool aside)
{
    server_job *job = calloc(1, sizeof *job);
    if (!job) return false;
    job->run = run;
    job->argument = argument;
    pthread_mutex_lock(&w->lock);
    bool room = w->waiting < LIMIT_QUEUE + (aside ? LIMIT_QUEUE_ASIDE : 0) && !w->closed;
    if (room) {
        w->waiting++;
        *w->jobs_end = job;
        w->jobs_end = &job->next;
        pthread_cond_signal(&w->prepare_ready);
    }
    pthread_mutex_unlock(&w->lock);
    if (!room) free(job);
    return room;
}

void server_work_queue(server_work *w, server_task *task)
{
    for (size_t i = 0; i < task->choice_count; i++) server_task_ref(task); /* one for each choice */
    pthread_mutex_lock(&w->lock);
    task->waits = true; /* it has been counted in `waiting` since it came */
    atomic_fetch_add(&w->server->metrics.queued, 1);
    for (size_t i = 0; i < task->choice_count; i++)
        if (task->choices[i].leads) append(w, &task->choices[i]);
    pthread_mutex_unlock(&w->lock);
    /* The client may have gone before the choices were in the queue. */
    if (atomic_load(&task->cancelled)) server_work_drop(w, task);
}

void server_work_drop(server_work *w, server_task *task)
{
    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < task->choice_count; i++) {
        server_choice *c = &task->choices[i];
        if (!c->queued) continue;
        unlink_choice(w, c);
        c->next = w->dropped;
        w->dropped = c;
        pthread_cond_signal(&w->prepare_ready);
    }
    pthread_mutex_unlock(&w->lock);
}

/* ---- tasks ----------------------------------------------------------------------------------------------------- */

/* Nothing runs, waits or is prepared. */
static bool is_idle(const server_work *w)
{
    return !w->tasks && w->waiting == 0;
}

void server_work_task_begun(server_work *w, server_task *task)
{
    pthread_mutex_lock(&w->lock);
    task->next = w->tasks;
    if (w->tasks) w->tasks->previous = task;
    w->tasks = task;
    pthread_mutex_unlock(&w->lock);
}

void server_work_task_ended(server_work *w, server_task *task)
{
    pthread_mutex_lock(&w->lock);
    stop_waiting(w, task);
    if (task->previous) task->previous->next = task->next;
    else w->tasks = task->next;
    if (task->next) task->next->previous = task->previous;
    if (is_idle(w)) pthread_cond_broadcast(&w->idle);
    pthread_mutex_unlock(&w->lock);
}

bool server_work_wait_idle(server_work *w, double seconds)
{
    double until = server_now() + seconds;
    pthread_mutex_lock(&w->lock);
    while (!is_idle(w) && server_wait(&w->idle, &w->lock, until)) continue;
    bool idle = is_idle(w);
    pthread_mutex_unlock(&w->lock);
    return idle;
}

void server_work_cancel_all(server_work *w)
{
    for (;;) {
        pthread_mutex_lock(&w->lock);
        server_task *task = w->tasks;
        while (task && (atomic_load(&task->cancelled) || !server_task_ref_if_alive(task))) task = task->next;
        pthread_mutex_unlock(&w->lock);
        if (!task) return;
        server_task_cancel(task);
        server_task_unref(task);
    }
}

/* ---- running a choice ------------------------------------------------------------------------------------------ */

/* Opens or closes a choice's session, which a cancel stops from another thread. */
static void set_session(server_choice *c, strata_session *session)
{
    pthread_mutex_lock(&c->task->session_lock);
    c->session = session;
    if (session && atomic_load(&c->task->cancelled)) server_session_stop(session);
    pthread_mutex_unlock(&c->task->session_lock);
}

/* The failure of one choice ends the others, too. */
static void fail_task(server_task *task, const strata_error *error)
{
    server_fail fail;
    server_refuse_error(&fail, error);
    server_task_fail(task, &fail);
    server_task_cancel(task);
}

static void end_choice(server_choice *c, server_finish finish)
{
    strata_session *session = c->session;
    set_session(c, NULL);
    server_choice_end(c, finish);
    strata_session_free(session); /* after the answer's last byte: it waits for the step that runs */
    server_task_unref(c->task);
}

static size_t choices_per_prompt(const server_task *task)
{
    return task->choice_count / task->prompt_count;
}

/* The other choices of the prompt continue forks of its session. */
static void fork_others(server_work *w, server_choice *leader)
{
    for (size_t i = choices_per_prompt(leader->task) - 1; i > 0; i--) {
        server_choice *c = leader + i;
        strata_session *session = NULL;
        strata_error error;
        if (strata_session_fork(leader->session, &session, &error) != STRATA_OK) {
            fail_task(c->task, &error);
            end_choice(c, FINISH_CANCEL);
            continue;
        }
        set_session(c, session);
        pthread_mutex_lock(&w->lock);
        prepend(w, c);
        pthread_mutex_unlock(&w->lock);
    }
}

/* The engine runs the choice from now on. Called on the engine's thread. */
static void admit_choice(server_choice *c)
{
    server_task *task = c->task;
    server_work *w = &task->server->work;
    if (c->runs) return;
    c->runs = true;
    atomic_fetch_add(&task->server->metrics.running, 1);
    pthread_mutex_lock(&w->lock);
    if (task->waits) task->admitted_seconds = server_now();
    stop_waiting(w, task);
    pthread_mutex_unlock(&w->lock);
}

static void on_admitted(void *context)
{
    admit_choice(context);
}

static bool run_prompt(server_work *w, server_choice *c)
{
    server_task *task = c->task;
    server_prompt *prompt = c->prompt;
    strata_session *session = NULL;
    strata_error error;
    strata_prompt_options options = {.marks = prompt->marks, .mark_count = prompt->mark_count,
                                     .on_admitted = on_admitted, .context = c};
    strata_status status = strata_session_new(w->server->engine.engine, &session, &error);
    if (status == STRATA_OK) {
        set_session(c, session);
        status = strata_session_prompt(session, prompt->tokens, prompt->count, &options, &prompt->reused, &error);
    }
    if (status == STRATA_OK) {
        server_count(&w->server->metrics.prompt_tokens, prompt->count);
        server_count(&w->server->metrics.reused_tokens, prompt->reused);
        if (prompt->reused > 0) server_count(&w->server->metrics.prefix_hits, 1);
        server_task_prompted(task);
        return true;
    }
    fail_task(task, &error);
    return false;
}

static strata_generation generation_of(server_choice *c)
{
    const server_parameters *p = &c->task->parameters;
    uint64_t seed = p->seed < 0 ? STRATA_SEED_RANDOM : (uint64_t)p->seed + c->index;
    return (strata_generation){
        .sampling = {.temperature = (float)p->temperature, .top_k = p->top_k < 0 ? 0 : (uint32_t)p->top_k,
                     .top_p = (float)p->top_p, .min_p = (float)p->min_p, .repeat_penalty = (float)p->repeat_penalty,
                     .presence_penalty = (float)p->presence_penalty,
                     .frequency_penalty = (float)p->frequency_penalty,
                     .penalty_tokens = p->penalty_tokens < 0 ? UINT32_MAX : (uint32_t)p->penalty_tokens, .seed = seed,
                     .biases = p->biases, .bias_count = p->bias_count},
        .max_tokens = p->max_tokens > 0 ? (size_t)p->max_tokens : 0, .ignore_end = p->ignore_eos};
}

static bool on_token(void *context, const strata_sampled *sampled)
{
    admit_choice(context); /* a fork's first token comes as soon as it is admitted */
    return server_choice_token(context, sampled);
}

static server_finish finish_of(const server_choice *c, strata_finish finish)
{
    if (c->text.stopped != SIZE_MAX) return FINISH_STOP;
    return finish == STRATA_FINISH_END ? FINISH_END : finish == STRATA_FINISH_LENGTH ? FINISH_LENGTH : FINISH_CANCEL;
}

static server_finish run_generation(server_choice *c)
{
    strata_generation generation = generation_of(c);
    strata_answer answer = {0};
    strata_error error;
    generation.on_token = on_token;
    generation.context = c;
    generation.without_logits = true;
    generation.logprobs = c->task->parameters.logprobs;
    if (c->task->parameters.top_logprobs > 0) generation.top_logprobs = (size_t)c->task->parameters.top_logprobs;
    strata_status status = strata_session_generate(c->session, &generation, &answer, &error);
    server_finish finish = status == STRATA_OK ? finish_of(c, answer.finish) : FINISH_CANCEL;
    if (status == STRATA_OK && finish == FINISH_CANCEL && !atomic_load(&c->task->cancelled))
        status = server_error(&error, STRATA_MEMORY, NULL, "no memory for the answer");
    if (status != STRATA_OK) fail_task(c->task, &error);
    if (status != STRATA_OK) return FINISH_CANCEL;
    server_prompt *prompt = c->prompt;
    server_known_add(&c->task->server->known, prompt->tokens, prompt->count, c->sampled, c->sampled_count);
    return finish;
}

static void run_choice(server_work *w, server_choice *c)
{
    server_task *task = c->task;
    bool runs = !atomic_load(&task->cancelled) && (!c->leads || run_prompt(w, c));
    if (c->leads && runs) fork_others(w, c);
    if (c->leads && !runs)
        for (size_t i = choices_per_prompt(task) - 1; i > 0; i--) end_choice(c + i, FINISH_CANCEL);
    server_finish finish = runs ? run_generation(c) : FINISH_CANCEL;
    if (c->runs) atomic_fetch_sub(&w->server->metrics.running, 1);
    end_choice(c, finish);
}

static void *worker(void *context)
{
    server_work *w = context;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        w->idle_workers++;
        while (!w->first && !w->stopping) pthread_cond_wait(&w->choice_ready, &w->lock);
        w->idle_workers--;
        server_choice *c = w->first;
        if (!c) break;
        unlink_choice(w, c);
        pthread_mutex_unlock(&w->lock);
        run_choice(w, c);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ---- preparing ------------------------------------------------------------------------------------------------- */

/* A waiting choice of a cancelled task ends without having run. */
static void end_dropped(server_choice *c)
{
    size_t others = c->leads ? choices_per_prompt(c->task) - 1 : 0;
    for (size_t i = others; i > 0; i--) end_choice(c + i, FINISH_CANCEL);
    end_choice(c, FINISH_CANCEL);
}

static void *preparer(void *context)
{
    server_work *w = context;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->jobs && !w->dropped && !w->stopping) pthread_cond_wait(&w->prepare_ready, &w->lock);
        server_choice *dropped = w->dropped;
        server_job *job = dropped ? NULL : w->jobs;
        if (!dropped && !job) break;
        if (dropped) {
            w->dropped = dropped->next;
        } else {
            w->jobs = job->next;
            if (!w->jobs) w->jobs_end = &w->jobs;
        }
        pthread_mutex_unlock(&w->lock);
        if (dropped) end_dropped(dropped);
        bool waits = dropped || job->run(w->server, job->argument);
        free(job);
        pthread_mutex_lock(&w->lock);
        if (!waits) w->waiting--;
        if (is_idle(w)) pthread_cond_broadcast(&w->idle);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

strata_status server_work_start(server_work *w, server *s, size_t sessions, strata_error *error)
{
    *w = (server_work){.server = s};
    w->jobs_end = &w->jobs;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->prepare_ready, NULL);
    pthread_cond_init(&w->choice_ready, NULL);
    server_cond_init(&w->idle);
    w->thread_max = PREPARING_THREADS + sessions + LIMIT_QUEUE;
    w->threads = calloc(w->thread_max, sizeof *w->threads);
    if (!w->threads) return server_error(error, STRATA_MEMORY, NULL, "no memory for the server's threads");
    int cause = 0;
    pthread_mutex_lock(&w->lock);
    while (cause == 0 && w->thread_count < PREPARING_THREADS) cause = start_thread(w, preparer, 0);
    for (size_t i = 0; cause == 0 && i < sessions; i++) cause = start_thread(w, worker, WORKER_STACK_BYTES);
    pthread_mutex_unlock(&w->lock);
    if (cause == 0) return STRATA_OK;
    return server_error(error, STRATA_RUNTIME, NULL, "the server: cannot start a thread: %s", strerror(cause));
}

void server_work_close(server_work *w)
{
    pthread_mutex_lock(&w->lock);
    w->closed = true;
    pthread_mutex_unlock(&w->lock);
}

void server_work_stop(server_work *w)
{
    if (!w->server) return;
    pthread_mutex_lock(&w->lock);
    w->stopping = w->closed = true;
    pthread_cond_broadcast(&w->prepare_ready);
    pthread_cond_broadcast(&w->choice_ready);
    pthread_mutex_unlock(&w->lock);
    for (size_t i = 0; i < w->thread_count; i++) pthread_join(w->threads[i], NULL);
    free(w->threads);
    w->threads = NULL;
}

void server_work_free(server_work *w)
{
    if (!w->server) return;
    pthread_cond_destroy(&w->prepare_ready);
    pthread_cond_destroy(&w->choice_ready);
    pthread_cond_destroy(&w->idle);
    pthread_mutex_destroy(&w->lock);
    *w = (server_work){0};
}
