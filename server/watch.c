/* Closed connections, deadlines and keep-alive texts. libmicrohttpd does not poll a suspended connection, and a slow
 * client that sends a byte now and then never meets its timeout. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http_internal.h"
#include "limits.h"

/* libmicrohttpd may overlook a close that comes together with the beginning of a request: such a connection is closed
 * after a moment, in which a complete request is still read. */
static const double unnoticed_seconds = 0.5;

static void wake(http_watcher *w)
{
    uint64_t one = 1;
    (void)!write(w->wake, &one, sizeof one);
}

/* The lock is held. */
static void wake_before(http_watcher *w, double seconds)
{
    if (seconds > 0 && (w->wake_at == 0 || seconds < w->wake_at)) {
        w->wake_at = seconds;
        wake(w);
    }
}

void http_watcher_before(http_watcher *w, double seconds)
{
    pthread_mutex_lock(&w->lock);
    wake_before(w, seconds);
    pthread_mutex_unlock(&w->lock);
}

http_connection *http_watcher_add(http_watcher *w, int socket, double deadline)
{
    http_connection *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->socket = socket;
    c->deadline = deadline;
    pthread_mutex_lock(&w->lock);
    c->id = ++w->last_id;
    c->next = w->first;
    if (w->first) w->first->previous = c;
    w->first = c;
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.u64 = c->id};
    (void)epoll_ctl(w->epoll, EPOLL_CTL_ADD, socket, &event); /* without it a close is found at the next write */
    wake_before(w, deadline);
    pthread_mutex_unlock(&w->lock);
    return c;
}

void http_watcher_remove(http_watcher *w, http_connection *c)
{
    pthread_mutex_lock(&w->lock);
    (void)epoll_ctl(w->epoll, EPOLL_CTL_DEL, c->socket, NULL);
    if (c->previous) c->previous->next = c->next;
    else w->first = c->next;
    if (c->next) c->next->previous = c->previous;
    pthread_mutex_unlock(&w->lock);
    free(c);
}

void http_watcher_deadline(http_watcher *w, http_connection *c, double deadline)
{
    pthread_mutex_lock(&w->lock);
    if (deadline > 0 && c->peer_closed) deadline = server_now() + unnoticed_seconds;
    c->deadline = deadline;
    wake_before(w, deadline);
    pthread_mutex_unlock(&w->lock);
}

bool http_watcher_request(http_watcher *w, http_connection *c, http_request *request)
{
    pthread_mutex_lock(&w->lock);
    c->request = request;
    if (!request) c->answered = true;
    if (!request) pthread_cond_broadcast(&w->completed);
    bool gone = c->peer_closed;
    pthread_mutex_unlock(&w->lock);
    return gone;
}

/* A refusal is sent after the rest of a short body, which the client may never send. */
static bool is_under_way(http_request *r)
{
    pthread_mutex_lock(&r->lock);
    bool sending = !r->closed && (r->whole || r->queued) && (r->phase == HTTP_ANSWERED || r->phase == HTTP_ENDED);
    pthread_mutex_unlock(&r->lock);
    return sending;
}

/* The lock is held. */
static bool is_sending(const http_watcher *w)
{
    for (http_connection *c = w->first; c; c = c->next)
        if (c->request && is_under_way(c->request)) return true;
    return false;
}

void http_watcher_wait_sent(http_watcher *w, double seconds)
{
    double until = server_now() + seconds;
    pthread_mutex_lock(&w->lock);
    while (is_sending(w) && server_wait(&w->completed, &w->lock, until)) continue;
    pthread_mutex_unlock(&w->lock);
}

/* ---- the thread ------------------------------------------------------------------------------------------------ */

static void peer_closed(http_watcher *w, uint64_t id)
{
    http_connection *c = w->first;
    while (c && c->id != id) c = c->next;
    if (!c) return;
    c->peer_closed = true;
    if (!c->request || c->deadline > 0) c->deadline = server_now() + unnoticed_seconds;
    if (!c->request) return;
    pthread_mutex_lock(&c->request->lock);
    http_client_gone(c->request);
    pthread_mutex_unlock(&c->request->lock);
}

/* Writes the keep-alive text of a silent stream. Returns when it is due next; 0: never. */
static double keep_alive(http_request *r, double now)
{
    double due = 0;
    pthread_mutex_lock(&r->lock);
    if (r->phase == HTTP_STREAMING && r->keep_alive && !r->closed) {
        if (now >= r->written_seconds + LIMIT_KEEP_ALIVE_SECONDS) {
            server_buf_text(&r->unsent, r->keep_alive);
            r->written_seconds = now;
            http_resume(r);
        }
        due = r->written_seconds + LIMIT_KEEP_ALIVE_SECONDS;
    }
    pthread_mutex_unlock(&r->lock);
    return due;
}

static void sooner(double *next, double seconds)
{
    if (seconds > 0 && (*next == 0 || seconds < *next)) *next = seconds;
}

/* The client was too slow. Nothing has been written to the socket for its request, so no reply is under way. */
static void end_slow(http_watcher *w, http_connection *c)
{
    static const char reply[] = "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    c->deadline = 0;
    bool silent = !w->plain || c->peer_closed || c->answered;
    if (c->request) {
        pthread_mutex_lock(&c->request->lock);
        silent = !w->plain || c->peer_closed || c->request->phase != HTTP_READING;
        pthread_mutex_unlock(&c->request->lock);
    }
    if (!silent)
        (void)!send(c->socket, reply, sizeof reply - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)shutdown(c->socket, SHUT_RDWR); /* the transport notices and closes it */
}

/* Acts on what is due and returns when the next thing is; 0: nothing is. The lock is held. */
static double act(http_watcher *w, double now)
{
    double next = 0;
    for (http_connection *c = w->first; c; c = c->next) {
        if (c->deadline > 0 && now >= c->deadline) end_slow(w, c);
        sooner(&next, c->deadline);
        if (c->request) sooner(&next, keep_alive(c->request, now));
    }
    return next;
}

static void *watch(void *context)
{
    http_watcher *w = context;
    struct epoll_event events[64];
    pthread_mutex_lock(&w->lock);
    while (!w->stopping) {
        double now = server_now(), next = act(w, now);
        w->wake_at = next;
        int wait_ms = -1;
        if (next > 0) wait_ms = next > now ? (int)((next - now) * 1000.0) + 1 : 0;
        pthread_mutex_unlock(&w->lock);
        int count = epoll_wait(w->epoll, events, sizeof events / sizeof *events, wait_ms);
        pthread_mutex_lock(&w->lock);
        for (int i = 0; i < count; i++) {
            uint64_t drained;
            if (events[i].data.u64 == 0) (void)!read(w->wake, &drained, sizeof drained);
            else peer_closed(w, events[i].data.u64);
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

strata_status http_watcher_start(http_watcher *w, strata_error *error)
{
    pthread_mutex_init(&w->lock, NULL);
    server_cond_init(&w->completed);
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0};
    bool ready = w->epoll >= 0 && w->wake >= 0 && epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->wake, &event) == 0;
    int cause = ready ? pthread_create(&w->thread, NULL, watch, w) : errno;
    w->started = ready && cause == 0;
    if (w->started) return STRATA_OK;
    return server_error(error, STRATA_RUNTIME, NULL, "the server: cannot start a thread: %s", strerror(cause));
}

void http_watcher_stop(http_watcher *w)
{
    if (w->started) {
        pthread_mutex_lock(&w->lock);
        w->stopping = true;
        wake(w);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread, NULL);
    }
    if (w->epoll >= 0) close(w->epoll);
    if (w->wake >= 0) close(w->wake);
    pthread_cond_destroy(&w->completed);
    pthread_mutex_destroy(&w->lock);
}
