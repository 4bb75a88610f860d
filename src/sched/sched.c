#include "sched/sched.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "sched/leases.h"

enum { STOP_POLL_MS = 50 }; /* a signal handler can set a request's flag, but cannot wake the scheduler */

struct st_sched {
    st_sched_source source;
    st_kv *kv;
    st_pace pace;
    double owed;
    pthread_t thread;
    bool has_thread;

    /* Guarded by `lock`. */
    pthread_mutex_t lock;
    pthread_cond_t work;
    st_request *inbox, **inbox_end; /* submitted, not yet seen */
    bool poked, closing;

    /* Guarded by the engine's lock. */
    st_request *first; /* in the order of arrival */
    st_sched_counts counts;
    st_leases leases;
    st_request **requests; /* [capacity]: those of the tasks */
    st_task *tasks;        /* [capacity] */
    st_candidates *best;   /* [conversations]: by slot, of requests that wait */
    uint32_t capacity, count;
    st_policy_piece pieces[ST_CONVERSATIONS_MAX];
    st_run_piece run_pieces[ST_CONVERSATIONS_MAX];
};

/* --- requests ----------------------------------------------------------------------------------------------------- */

static uint32_t stored(const st_request *r)
{
    return st_conversation_position(r->conversation);
}

/* Tells the thread that waits for the request. */
static void tell(st_sched *s, st_request *r, bool ended)
{
    pthread_mutex_lock(&s->lock);
    r->stored = r->alone ? 0 : stored(r);
    r->changed = true;
    r->told++;
    r->ended = ended;
    pthread_cond_signal(&r->news);
    pthread_mutex_unlock(&s->lock);
}

static void unlink_request(st_sched *s, st_request *r)
{
    st_request **at = &s->first;
    while (*at != r) at = &(*at)->after;
    *at = r->after;
    for (st_request *other = s->first; other; other = other->after)
        if (other->leader == r) other->leader_until = 0;
}

/* Ends a request; its memory belongs to its caller from then on. */
static void finish(st_sched *s, st_request *r, strata_status status, const strata_error *error)
{
    unlink_request(s, r);
    r->status = status;
    if (error) r->error = *error;
    bool keeps = status == STRATA_OK && r->admitted && r->prompt && !r->alone;
    if (keeps) st_leases_add(&s->leases, r->conversation);
    else if (r->admitted) st_conversation_run(r->conversation, false);
    tell(s, r, true);
}

static void interrupt(st_sched *s, st_request *r)
{
    strata_error error;
    strata_status status = st_error_set(&error, STRATA_INTERRUPTED, NULL, "interrupted after %u of %u tokens",
                                        r->admitted ? stored(r) : 0, r->count);
    finish(s, r, status, &error);
}

static float *slot_logits(const st_sched *s, const st_request *r)
{
    return st_run_slot_logits(s->source.run, st_conversation_slot(r->conversation));
}

static st_candidates *slot_best(const st_sched *s, const st_request *r)
{
    return &s->best[st_conversation_slot(r->conversation)];
}

/* Logits stay with the slot also after the request; candidates only while it waits. */
static void keep_offer(st_sched *s, st_request *r, const float *logits, const st_candidates *best)
{
    if (best) *slot_best(s, r) = *best;
    if (logits && logits != slot_logits(s, r)) memcpy(slot_logits(s, r), logits, s->source.vocab * sizeof *logits);
    r->has_best = best != NULL;
    r->has_logits = true;
    r->computed = logits != NULL;
}

/* The request has what comes after its last token: the logits, or the best candidates. */
static void ask(st_sched *s, st_request *r, const float *logits, const st_candidates *best)
{
    strata_token token = 0;
    r->started = true;
    st_next next = r->next ? r->next(r->context, logits, best, &token) : ST_NEXT_END;
    r->waits = next == ST_NEXT_WAIT;
    if (next == ST_NEXT_TOKEN || next == ST_NEXT_LAST) {
        st_conversation_tokens(r->conversation)[r->count++] = token;
        r->computed = r->has_logits = r->has_best = false;
    } else {
        keep_offer(s, r, logits, best);
    }
    if (next == ST_NEXT_END || next == ST_NEXT_LAST) finish(s, r, STRATA_OK, NULL);
    else if (r->notify) tell(s, r, false);
}

/* --- arrivals and departures -------------------------------------------------------------------------------------- */

/* Whether the caller has not yet heard of the step before the last. */
static bool is_ahead(st_sched *s, const st_request *r)
{
    if (!r->notify || r->started) return false;
    pthread_mutex_lock(&s->lock);
    bool ahead = r->told - r->heard > 1;
    pthread_mutex_unlock(&s->lock);
    return ahead;
}

/* What the prefix cache has of a request that waits. */
static void peek(st_request *r)
{
    st_peek found = {0};
    if (!r->alone) found = st_conversation_peek(r->conversation, r->tokens, r->count);
    r->position = found.kept;
    r->adopts = found.idle_pages;
}

static void take_inbox(st_sched *s, double now)
{
    st_request **end = &s->first;
    while (*end) end = &(*end)->after;
    pthread_mutex_lock(&s->lock);
    *end = s->inbox;
    s->inbox = NULL;
    s->inbox_end = &s->inbox;
    pthread_mutex_unlock(&s->lock);
    for (st_request *r = *end; r; r = r->after) {
        r->arrived = now;
        peek(r);
    }
}

void st_sched_forget(st_sched *sched, const st_conversation *conversation)
{
    (void)st_leases_take(&sched->leases, conversation);
}

/* Whether the request's caller wants it to end. A request that is alone and admitted ends by itself. */
static bool is_over(st_sched *s, const st_request *r)
{
    if (!r->alone || !r->admitted) return r->stop && atomic_load_explicit(r->stop, memory_order_relaxed);
    pthread_mutex_lock(&s->lock);
    bool left = r->left;
    pthread_mutex_unlock(&s->lock);
    return left;
}

static void end_stopped(st_sched *s)
{
    for (st_request *r = s->first, *after; r; r = after) {
        after = r->after;
        if (!is_over(s, r)) continue;
        if (r->alone && r->admitted) finish(s, r, STRATA_OK, NULL);
        else interrupt(s, r);
    }
}

/* --- admission ---------------------------------------------------------------------------------------------------- */

static strata_status seek(st_request *r, strata_error *error)
{
    st_seek found;
    strata_status status = st_conversation_seek(r->conversation, r->tokens, r->count, true, &found, error);
    r->tokens = st_conversation_tokens(r->conversation);
    if (status != STRATA_OK) return status;
    if (found.diverged) r->stops.diverged = found.diverged;
    if (!r->seen) r->reused = found.kept;
    return STRATA_OK;
}

static bool knows_logits(const st_request *r)
{
    bool has_slot = st_conversation_slot(r->conversation) != ST_NO_SLOT;
    return !r->prompt && r->computed && has_slot && stored(r) == r->count;
}

/* Whether the conversation's own tokens can simply go on. */
static bool continues(const st_request *r)
{
    return !r->prompt && stored(r) > 0 && stored(r) < r->count && st_conversation_ready(r->conversation);
}

static void admit(st_sched *s, st_request *r, double now)
{
    strata_error error;
    strata_status status = STRATA_OK;
    r->admitted = true;
    r->leader = NULL;
    st_conversation_run(r->conversation, true);
    if (now - r->arrived > s->counts.longest_wait) s->counts.longest_wait = now - r->arrived;
    if (r->on_admitted && !r->seen) r->on_admitted(r->context);
    if (r->alone) {
        tell(s, r, false);
        return;
    }
    r->stops = (st_stops){.marks = r->marks, .mark_count = r->mark_count, .diverged = ST_NO_STOP, .end = r->count,
                          .page_tokens = s->source.policy.page_tokens};
    if (knows_logits(r)) r->has_logits = true;
    else {
        r->computed = false;
        if (!continues(r)) status = seek(r, &error);
    }
    r->seen = true;
    if (status != STRATA_OK) finish(s, r, status, &error);
}

/* Gives the place up; what is computed stays cached as long as nobody needs the memory. */
static void park(st_sched *s, st_request *r)
{
    st_conversation_run(r->conversation, false);
    r->admitted = r->has_logits = r->has_best = r->waits = false;
    r->prompt = false;
    s->counts.parked++;
    peek(r);
}

static uint32_t common_prefix(const st_request *a, const st_request *b)
{
    uint32_t most = a->count < b->count ? a->count : b->count, i = 0;
    while (i < most && a->tokens[i] == b->tokens[i]) i++;
    return i;
}

/* A later prompt branches off here: worth a restore point. */
static void add_mark(st_request *r, uint32_t position)
{
    uint32_t at = r->mark_count;
    for (uint32_t i = 0; i < r->mark_count; i++)
        if (r->marks[i] == position) return;
    if (at == ST_REQUEST_MARKS) return;
    for (; at > 0 && r->marks[at - 1] > position; at--) r->marks[at] = r->marks[at - 1];
    r->marks[at] = position;
    r->stops.mark_count = ++r->mark_count;
}

/* Two prompts with the same cold prefix: the second waits for the pages of the first. */
static bool follows(st_sched *s, st_request *r)
{
    uint32_t page = s->source.policy.page_tokens;
    for (st_request *a = s->first; a && !r->alone; a = a->after) {
        if (a == r || !a->admitted || a->alone || a->started || a->tokens[0] != r->tokens[0]) continue;
        uint32_t common = common_prefix(a, r), reach = common - common % page;
        if (reach == r->count) reach -= page; /* the last token is run in any case */
        if (reach < r->position + page || stored(a) >= reach) continue;
        add_mark(a, reach);
        r->leader = a;
        r->leader_until = reach;
        s->counts.followed++;
        return true;
    }
    return false;
}

static void release_followers(st_sched *s)
{
    for (st_request *r = s->first; r; r = r->after) {
        if (!r->leader || (r->leader_until > 0 && stored(r->leader) < r->leader_until)) continue;
        r->leader = NULL;
        peek(r);
    }
}

/* --- tasks -------------------------------------------------------------------------------------------------------- */

static strata_status reserve(st_sched *s, uint32_t count)
{
    if (count <= s->capacity) return STRATA_OK;
    uint32_t capacity = count * 2;
    st_request **requests = st_alloc_array(capacity, sizeof *requests);
    st_task *tasks = st_alloc_array(capacity, sizeof *tasks);
    if (!requests || !tasks) {
        st_free(requests);
        st_free(tasks);
        return STRATA_MEMORY;
    }
    st_free(s->requests);
    st_free(s->tasks);
    s->requests = requests;
    s->tasks = tasks;
    s->capacity = capacity;
    return STRATA_OK;
}

static st_task task_of(st_sched *s, const st_request *r)
{
    st_task task = {.arrived = r->arrived, .end = r->count, .admitted = r->admitted, .alone = r->alone,
                    .stop = ST_NO_STOP, .position = r->position, .adopts = r->adopts, .blocked = r->leader != NULL};
    if (r->alone || !r->admitted) return task;
    st_restore_kind kind;
    task.position = stored(r);
    task.adopts = 0;
    task.copies = st_conversation_copies(r->conversation);
    task.blocked = r->waits || r->has_logits || is_ahead(s, r) || st_conversation_arriving(r->conversation);
    task.answers = r->started && task.end - task.position <= 1;
    if (s->source.plan->restore_bytes > 0 && !task.answers) task.stop = st_stops_next(&r->stops, task.position, &kind);
    return task;
}

/* Requests beyond the memory of the list wait until the list is shorter. */
static void list_tasks(st_sched *s)
{
    uint32_t count = 0;
    for (st_request *r = s->first; r; r = r->after) count++;
    (void)reserve(s, count);
    s->count = 0;
    for (st_request *r = s->first; r && s->count < s->capacity; r = r->after) {
        s->requests[s->count] = r;
        s->tasks[s->count++] = task_of(s, r);
    }
}

/* `enough`: the pages that the decision may need. */
static st_policy_state state_of(const st_sched *s, uint32_t enough)
{
    return (st_policy_state){.pace = &s->pace, .places_held = s->leases.count, .owed = s->owed,
                             .room = st_kv_room(s->kv, enough)};
}

/* A request whose conversation has kept its place. */
/* A conversation that has kept its place loses nothing by a new request. */
static st_request *find_leased(st_sched *s)
{
    for (st_request *r = s->first; r; r = r->after)
        if (!r->admitted && !r->alone && st_leases_take(&s->leases, r->conversation)) return r;
    return NULL;
}

static bool somebody_waits(const st_sched *s)
{
    for (const st_request *r = s->first; r; r = r->after)
        if (!r->admitted && !r->leader) return true;
    return false;
}

static void admit_all(st_sched *s, double now)
{
    for (st_request *r; (r = find_leased(s));) admit(s, r, now);
    while (somebody_waits(s)) {
        list_tasks(s);
        st_policy_state state = state_of(s, UINT32_MAX);
        uint32_t next = st_policy_admit(&s->source.policy, &state, s->tasks, s->count);
        if (next == ST_NO_TASK) return;
        if (!follows(s, s->requests[next])) admit(s, s->requests[next], now);
    }
}

/* The pages that the next step may take at most. */
static uint32_t step_pages(const st_sched *s)
{
    return s->source.policy.rows / s->source.policy.page_tokens + 2 * s->source.policy.places;
}

static void park_some(st_sched *s)
{
    for (;;) {
        list_tasks(s);
        st_policy_state state = state_of(s, step_pages(s));
        uint32_t victim = st_policy_park(&s->source.policy, &state, s->tasks, s->count);
        if (victim == ST_NO_TASK) return;
        park(s, s->requests[victim]);
    }
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

/* Requests whose logits are known are asked before the next step. */
static bool ask_ready(st_sched *s)
{
    bool asked = false;
    for (st_request *r = s->first, *after; r; r = after) {
        after = r->after;
        if (!r->has_logits) continue;
        if (r->waits) {
            pthread_mutex_lock(&s->lock);
            r->waits = !r->resumed;
            r->resumed = false;
            pthread_mutex_unlock(&s->lock);
        }
        if (r->waits) continue;
        asked = true;
        ask(s, r, r->has_best ? NULL : slot_logits(s, r), r->has_best ? slot_best(s, r) : NULL);
    }
    return asked;
}

/* After a failure in another request's step a conversation may be unable to continue at its position. */
static void find_lost(st_sched *s)
{
    for (st_request *r = s->first, *after; r; r = after) {
        after = r->after;
        strata_error error;
        if (!r->admitted || r->alone || st_conversation_ready(r->conversation)) continue;
        strata_status status = seek(r, &error);
        if (status != STRATA_OK) finish(s, r, status, &error);
    }
}

static st_pace_load load_of(const st_sched *s, uint32_t count)
{
    st_pace_load load = {0};
    for (uint32_t i = 0; i < count; i++) {
        const st_task *task = &s->tasks[s->pieces[i].task];
        uint32_t rows = s->pieces[i].count;
        if (task->answers) load.answers += rows;
        else load.rows += rows;
        load.attended += (uint64_t)rows * task->position + (uint64_t)rows * rows / 2;
    }
    return load;
}

/* Takes restore points at the ends of the pieces. The step has ended on every device. */
static void keep_points(st_sched *s, uint32_t count)
{
    uint32_t page = s->source.policy.page_tokens;
    for (uint32_t i = 0; i < count && s->source.plan->restore_bytes > 0; i++) {
        const st_request *r = s->requests[s->pieces[i].task];
        const st_task *task = &s->tasks[s->pieces[i].task];
        st_restore_kind kind = ST_RESTORE_PASSING;
        if (!task->answers) (void)st_stops_next(&r->stops, task->position, &kind);
        uint32_t end = task->position + s->pieces[i].count;
        if (end == task->stop || (task->answers && end % page == 0)) st_conversation_keep(r->conversation, kind);
    }
}

static strata_status run_pieces(st_sched *s, uint32_t count, strata_error *error)
{
    for (uint32_t i = 0; i < count; i++) {
        const st_task *task = &s->tasks[s->pieces[i].task];
        s->run_pieces[i] = (st_run_piece){.conversation = s->requests[s->pieces[i].task]->conversation,
                                          .count = s->pieces[i].count, .prompt = !task->answers};
    }
    /* A flag stops the whole step: only the request that is alone in it has one. Recurrent state does not survive a step
     * that is stopped. */
    const st_request *alone = count == 1 ? s->requests[s->pieces[0].task] : NULL;
    st_run_watch(s->source.run, !alone ? NULL : st_kv_has_state(s->kv) ? alone->interrupt : alone->stop);
    return st_run_step(s->source.run, s->run_pieces, count, error);
}

/* The pieces that end with the last token of their request, and the rows of those tokens in the step. */
static uint32_t rows_wanted(const st_sched *s, uint32_t count, uint32_t *rows, st_request **of)
{
    uint32_t wanted = 0, row = 0;
    for (uint32_t i = 0; i < count; i++) {
        const st_task *task = &s->tasks[s->pieces[i].task];
        row += s->pieces[i].count;
        if (task->position + s->pieces[i].count != task->end) continue;
        rows[wanted] = row - 1;
        of[wanted++] = s->requests[s->pieces[i].task];
    }
    return wanted;
}

/* Whether all these requests choose from candidates; their adjustments are then written. */
static bool candidates_suffice(const st_sched *s, st_request *const *of, uint32_t count)
{
    st_adjustments *lists = st_run_adjustments(s->source.run);
    bool all = lists != NULL;
    for (uint32_t i = 0; i < count && all; i++) all = of[i]->adjust && of[i]->adjust(of[i]->context, &lists[i]);
    return all;
}

/* Runs the head for these rows, and asks their requests. *seconds: of the head. */
static strata_status ask_rows(st_sched *s, const uint32_t *rows, st_request *const *of, uint32_t count,
                              uint32_t pieces, bool first, double *seconds, strata_error *error)
{
    const float *logits = NULL;
    const st_candidates *best = NULL;
    double before = s->source.clock(s->source.context);
    bool few = candidates_suffice(s, of, count);
    strata_status status = few ? st_run_candidates(s->source.run, rows, count, &best, error)
                               : st_run_logits(s->source.run, rows, count, &logits, error);
    *seconds += s->source.clock(s->source.context) - before;
    if (status != STRATA_OK) return status;
    if (first) keep_points(s, pieces);
    for (uint32_t i = 0; i < count; i++)
        ask(s, of[i], few ? NULL : logits + (size_t)i * s->source.vocab, few ? &best[i] : NULL);
    return STRATA_OK;
}

/* Waits for the step. Requests that have all their logits are asked, a few rows of logits at a time. */
static strata_status end_step(st_sched *s, uint32_t count, double *ended, strata_error *error)
{
    uint32_t rows[ST_CONVERSATIONS_MAX], most = s->source.plan->out_rows;
    st_request *of[ST_CONVERSATIONS_MAX];
    uint32_t wanted = rows_wanted(s, count, rows, of);
    strata_status status = wanted ? STRATA_OK : st_run_wait(s->source.run, error);
    *ended = s->source.clock(s->source.context);
    if (status == STRATA_OK && !wanted) keep_points(s, count);
    for (uint32_t first = 0; first < wanted && status == STRATA_OK; first += most) {
        uint32_t part = wanted - first < most ? wanted - first : most;
        status = ask_rows(s, rows + first, of + first, part, count, first == 0, ended, error);
    }
    return status;
}

static void fail_step(st_sched *s, uint32_t count, strata_status status, const strata_error *error)
{
    for (uint32_t i = 0; i < count; i++) {
        st_request *r = s->requests[s->pieces[i].task];
        bool ended = true; /* its last token was asked for before the failure */
        for (const st_request *other = s->first; other && ended; other = other->after) ended = other != r;
        if (ended) continue;
        if (status == STRATA_INTERRUPTED) interrupt(s, r);
        else finish(s, r, status, error);
    }
}

static void tell_progress(st_sched *s, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const st_task *task = &s->tasks[s->pieces[i].task];
        st_request *r = s->requests[s->pieces[i].task];
        if (task->position + s->pieces[i].count != task->end && r->notify) tell(s, r, false);
    }
}

/* Every page was in use after all: the last to arrive gives its place up. */
static bool park_last(st_sched *s, uint32_t count)
{
    st_request *last = NULL;
    uint32_t admitted = 0;
    for (uint32_t i = 0; i < s->count; i++) admitted += s->tasks[i].admitted;
    for (uint32_t i = 0; i < count; i++) {
        st_request *r = s->requests[s->pieces[i].task];
        if (!last || r->arrived >= last->arrived) last = r;
    }
    if (admitted < 2) return false;
    park(s, last);
    return true;
}

static void count_step(st_sched *s, st_pace_load load, double seconds)
{
    s->counts.steps++;
    s->counts.rows += load.rows + load.answers;
    s->counts.answer_rows += load.answers;
    st_pace_learn(&s->pace, load, seconds);
    s->owed = st_policy_owed(&s->source.policy, s->owed, load, seconds);
}

/* Nothing else can run: waits for a conversation whose pages come back from RAM. False: there is none. If the copies
 * fail, it continues at an earlier position. */
static bool await_pages(const st_sched *s)
{
    for (const st_request *r = s->first; r; r = r->after) {
        if (!r->admitted || r->alone || !st_conversation_arriving(r->conversation)) continue;
        (void)st_conversation_await(r->conversation, NULL);
        return true;
    }
    return false;
}

static bool step(st_sched *s)
{
    park_some(s);
    st_policy_state state = state_of(s, step_pages(s));
    uint32_t count = st_policy_step(&s->source.policy, &state, s->tasks, s->count, s->pieces);
    if (count == 0) return await_pages(s);
    strata_error error;
    st_pace_load load = load_of(s, count);
    double begin = s->source.clock(s->source.context), end = begin;
    strata_status status = run_pieces(s, count, &error);
    if (status == STRATA_LIMIT && park_last(s, count)) return true;
    if (status == STRATA_OK) status = end_step(s, count, &end, &error);
    st_run_watch(s->source.run, NULL);
    if (status == STRATA_OK) {
        count_step(s, load, end - begin);
        tell_progress(s, count);
    } else {
        fail_step(s, count, status, &error);
    }
    return true;
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

/* Whether anything was done. */
static bool turn(st_sched *s)
{
    double now = s->source.clock(s->source.context);
    take_inbox(s, now);
    end_stopped(s);
    st_leases_end(&s->leases);
    release_followers(s);
    find_lost(s);
    admit_all(s, now);
    bool asked = ask_ready(s), ran = step(s);
    return asked || ran;
}

static void deadline_after(struct timespec *at, uint32_t milliseconds)
{
    clock_gettime(CLOCK_MONOTONIC, at);
    uint64_t nanoseconds = (uint64_t)at->tv_nsec + (uint64_t)milliseconds * 1000000;
    at->tv_sec += (time_t)(nanoseconds / 1000000000);
    at->tv_nsec = (long)(nanoseconds % 1000000000);
}

/* Sleeps until there is work, at most `most_ms` (0: for ever); false: the scheduler ends. */
static bool wait_for_work(st_sched *s, bool busy, uint32_t most_ms)
{
    pthread_mutex_lock(&s->lock);
    struct timespec at;
    deadline_after(&at, most_ms);
    while (!busy && !s->poked && !s->closing && !s->inbox) {
        if (most_ms == 0) pthread_cond_wait(&s->work, &s->lock);
        else if (pthread_cond_timedwait(&s->work, &s->lock, &at) != 0) break;
    }
    s->poked = false;
    bool go_on = !s->closing;
    pthread_mutex_unlock(&s->lock);
    return go_on;
}

/* When requests exist and none can run, a lease may end or a flag may be set. */
static uint32_t nap_ms(const st_sched *s)
{
    if (!s->first) return 0;
    return s->leases.count > 0 ? (uint32_t)(ST_LEASE_SECONDS * 1000) + 1 : STOP_POLL_MS;
}

static void *serve(void *context)
{
    st_sched *s = context;
    bool busy = false;
    uint32_t most_ms = 0;
    while (wait_for_work(s, busy, most_ms)) {
        s->source.lock(s->source.context);
        busy = turn(s);
        most_ms = nap_ms(s);
        s->source.unlock(s->source.context);
    }
    return NULL;
}

strata_status st_sched_new(const st_sched_source *source, st_sched **out, strata_error *error)
{
    st_sched *s = st_alloc_zero(1, sizeof *s);
    if (!s) return st_error_memory(error, sizeof *s, "the scheduler");
    s->source = *source;
    s->kv = st_run_kv(source->run);
    s->inbox_end = &s->inbox;
    st_pace_start(&s->pace, source->step_seconds, source->row_seconds);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, &monotonic);
    pthread_condattr_destroy(&monotonic);
    s->best = st_alloc_zero(source->plan->conversations, sizeof *s->best);
    strata_status status = s->best ? reserve(s, ST_CONVERSATIONS_MAX) : STRATA_MEMORY;
    if (status != STRATA_OK) status = st_error_memory(error, ST_CONVERSATIONS_MAX * sizeof(st_task), "the scheduler");
    else if (pthread_create(&s->thread, NULL, serve, s) != 0)
        status = st_error_set(error, STRATA_RUNTIME, NULL, "the scheduler's thread cannot be created");
    else s->has_thread = true;
    if (status != STRATA_OK) {
        st_sched_free(s);
        return status;
    }
    *out = s;
    return STRATA_OK;
}

void st_sched_free(st_sched *sched)
{
    if (!sched) return;
    pthread_mutex_lock(&sched->lock);
    sched->closing = true;
    pthread_cond_signal(&sched->work);
    pthread_mutex_unlock(&sched->lock);
    if (sched->has_thread) pthread_join(sched->thread, NULL);
    pthread_cond_destroy(&sched->work);
    pthread_mutex_destroy(&sched->lock);
    st_free(sched->requests);
    st_free(sched->tasks);
    st_free(sched->best);
    st_free(sched);
}

/* --- the callers' side -------------------------------------------------------------------------------------------- */

static void poke(st_sched *s)
{
    s->poked = true;
    pthread_cond_signal(&s->work);
}

void st_sched_submit(st_sched *sched, st_request *request)
{
    pthread_cond_init(&request->news, NULL);
    pthread_mutex_lock(&sched->lock);
    request->after = NULL;
    *sched->inbox_end = request;
    sched->inbox_end = &request->after;
    poke(sched);
    pthread_mutex_unlock(&sched->lock);
}

bool st_sched_wait(st_sched *sched, st_request *request)
{
    pthread_mutex_lock(&sched->lock);
    if (request->heard != request->taken) poke(sched);
    request->heard = request->taken;
    while (!request->changed) pthread_cond_wait(&request->news, &sched->lock);
    request->changed = false;
    request->taken = request->told;
    request->done = request->stored;
    bool ended = request->ended;
    pthread_mutex_unlock(&sched->lock);
    if (ended) pthread_cond_destroy(&request->news);
    return !ended;
}

void st_sched_resume(st_sched *sched, st_request *request)
{
    pthread_mutex_lock(&sched->lock);
    request->resumed = true;
    poke(sched);
    pthread_mutex_unlock(&sched->lock);
}

void st_sched_leave(st_sched *sched, st_request *request)
{
    pthread_mutex_lock(&sched->lock);
    request->left = true;
    poke(sched);
    pthread_mutex_unlock(&sched->lock);
    while (st_sched_wait(sched, request)) continue;
}

st_sched_counts st_sched_count(const st_sched *sched)
{
    st_sched_counts counts = sched->counts;
    for (const st_request *r = sched->first; r; r = r->after) {
        counts.running += r->admitted;
        counts.waiting += !r->admitted;
    }
    return counts;
}
