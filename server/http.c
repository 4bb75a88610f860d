#include "http.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http_internal.h"
#include "limits.h"

const char *const http_kept_headers[] = {"Host",          "Origin",           "Authorization",
                                         "x-api-key",     "Content-Type",     "Content-Encoding",
                                         "Content-Length", "Transfer-Encoding", "Access-Control-Request-Method", NULL};
_Static_assert(sizeof http_kept_headers / sizeof *http_kept_headers == HTTP_KEPT_COUNT, "the size of `kept`");

struct http_server {
    struct MHD_Daemon *daemon;
    http_watcher watcher;
    http_events events;
    double timeout_seconds;
    atomic_bool quiesced;
};

/* A client has this long for a part of a request, however slowly it sends. */
static double deadline_in(const http_server *server, double seconds)
{
    return server_now() + (seconds < server->timeout_seconds ? seconds : server->timeout_seconds);
}

/* ---- requests -------------------------------------------------------------------------------------------------- */

/* A target with a scheme names the host itself. */
static void split_target(const char **path, char *host, size_t size)
{
    const char *start = strncasecmp(*path, "http://", 7) == 0    ? *path + 7
                        : strncasecmp(*path, "https://", 8) == 0 ? *path + 8
                                                                 : NULL;
    host[0] = '\0';
    if (!start) return;
    size_t length = strcspn(start, "/");
    *path = start[length] ? start + length : "/";
    if (length == 0) start = "?", length = 1; /* no host is nobody's */
    snprintf(host, size, "%.*s", (int)(length < size ? length : size - 1), start);
}

static char *copy_of(const char *text)
{
    return text ? server_copy(text, strlen(text)) : NULL;
}

static http_request *request_new(http_server *server, struct MHD_Connection *mhd, const char *method, const char *path)
{
    http_request *r = calloc(1, sizeof *r);
    char host[256];
    if (!r) return NULL;
    split_target(&path, host, sizeof host);
    pthread_mutex_init(&r->lock, NULL);
    r->server = server;
    r->references = 1;
    r->mhd = mhd;
    r->started_seconds = server_now();
    r->method = copy_of(method);
    r->path = copy_of(path);
    bool whole = r->method && r->path;
    for (size_t i = 0; http_kept_headers[i]; i++) {
        const char *value = MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, http_kept_headers[i]);
        if (host[0] && strcmp(http_kept_headers[i], "Host") == 0) value = host;
        r->kept[i] = copy_of(value);
        whole = whole && (!value || r->kept[i]);
    }
    if (whole) return r;
    http_unref(r);
    return NULL;
}

void http_ref(http_request *r)
{
    pthread_mutex_lock(&r->lock);
    r->references++;
    pthread_mutex_unlock(&r->lock);
}

void http_unref(http_request *r)
{
    pthread_mutex_lock(&r->lock);
    unsigned left = --r->references;
    pthread_mutex_unlock(&r->lock);
    if (left > 0) return;
    for (size_t i = 0; i < HTTP_KEPT_COUNT; i++) free(r->kept[i]);
    for (size_t i = 0; i < r->extra_count; i++) {
        free((void *)(uintptr_t)r->extra[i].name);
        free((void *)(uintptr_t)r->extra[i].value);
    }
    free(r->method);
    free(r->path);
    free(r->content_type);
    free(r->keep_alive);
    server_buf_free(&r->body);
    server_buf_free(&r->reply.body);
    server_buf_free(&r->unsent);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

const char *http_method(const http_request *r)
{
    return r->method;
}

const char *http_path(const http_request *r)
{
    return r->path;
}

const char *http_header_of(const http_request *r, const char *name)
{
    for (size_t i = 0; http_kept_headers[i]; i++)
        if (strcasecmp(http_kept_headers[i], name) == 0) return r->kept[i];
    return NULL;
}

const char *http_body(const http_request *r, size_t *length)
{
    *length = r->body.length;
    return r->body.data ? r->body.data : "";
}

bool http_body_is_too_large(const http_request *r)
{
    return r->body.failed;
}

double http_started(const http_request *r)
{
    return r->started_seconds;
}

void http_set_data(http_request *r, void *data)
{
    r->data = data;
}

void *http_data(const http_request *r)
{
    return r->data;
}

void http_add_header(http_request *r, const char *name, const char *value)
{
    http_header header = {.name = copy_of(name), .value = copy_of(value)};
    if (r->extra_count < HTTP_HEADERS_MAX && header.name && header.value) {
        r->extra[r->extra_count++] = header;
        return;
    }
    free((void *)(uintptr_t)header.name);
    free((void *)(uintptr_t)header.value);
}

/* ---- answers --------------------------------------------------------------------------------------------------- */

void http_resume(http_request *r)
{
    if (!r->suspended) return;
    r->suspended = false;
    MHD_resume_connection(r->mhd);
}

void http_client_gone(http_request *r)
{
    bool working = r->phase == HTTP_WAITING || r->phase == HTTP_STREAMING;
    r->peer_gone = true;
    if (r->closed || !working || !r->on_close) return;
    r->closed = true;
    r->on_close(r->on_close_context);
    r->on_close = NULL;
    http_resume(r);
}

void http_watch(http_request *r, void (*on_close)(void *context), void *context)
{
    pthread_mutex_lock(&r->lock);
    r->on_close = on_close;
    r->on_close_context = context;
    if (r->peer_gone) http_client_gone(r);
    pthread_mutex_unlock(&r->lock);
}

void http_forget(http_request *r)
{
    pthread_mutex_lock(&r->lock);
    r->on_close = NULL;
    pthread_mutex_unlock(&r->lock);
}

void http_answer(http_request *r, http_reply reply)
{
    pthread_mutex_lock(&r->lock);
    if (r->phase == HTTP_READING || r->phase == HTTP_WAITING) {
        r->phase = HTTP_ANSWERED;
        r->reply = reply;
        reply.body = (server_buf){0};
        http_resume(r);
    }
    pthread_mutex_unlock(&r->lock);
    server_buf_free(&reply.body);
}

void http_stream_begin(http_request *r, const char *content_type, const char *keep_alive)
{
    pthread_mutex_lock(&r->lock);
    if (r->phase == HTTP_READING || r->phase == HTTP_WAITING) {
        r->phase = HTTP_STREAMING;
        r->content_type = copy_of(content_type);
        r->keep_alive = copy_of(keep_alive);
        r->written_seconds = server_now();
        http_resume(r);
    }
    pthread_mutex_unlock(&r->lock);
    http_watcher_before(&r->server->watcher, server_now() + LIMIT_KEEP_ALIVE_SECONDS);
}

bool http_stream_write(http_request *r, const char *data, size_t length)
{
    pthread_mutex_lock(&r->lock);
    bool open = r->phase == HTTP_STREAMING && !r->closed;
    if (open) {
        if (r->sent == r->unsent.length) r->sent = r->unsent.length = 0;
        server_buf_add(&r->unsent, data, length);
        r->written_seconds = server_now();
        bool slow = r->unsent.failed || r->unsent.length - r->sent > LIMIT_UNSENT_BYTES;
        if (slow) r->closed = true; /* a client that does not read must not fill the memory */
        open = !slow;
        http_resume(r);
    }
    pthread_mutex_unlock(&r->lock);
    return open;
}

void http_stream_end(http_request *r)
{
    pthread_mutex_lock(&r->lock);
    if (r->phase == HTTP_STREAMING) r->phase = HTTP_ENDED;
    r->on_close = NULL;
    http_resume(r);
    pthread_mutex_unlock(&r->lock);
}

/* ---- libmicrohttpd's callbacks, all on its thread -------------------------------------------------------------- */

/* The next bytes of a stream. */
static ssize_t read_stream(void *context, uint64_t position, char *out, size_t room)
{
    http_request *r = context;
    ssize_t result = 0;
    (void)position;
    pthread_mutex_lock(&r->lock);
    size_t ready = r->unsent.length - r->sent;
    if (r->closed) {
        /* After MHD_CONTENT_READER_END_WITH_ERROR libmicrohttpd 0.9.75 with epoll keeps the connection until all older
         * ones are closed; a failed write closes it at once. */
        if (r->connection) (void)shutdown(r->connection->socket, SHUT_RDWR);
        out[0] = '\n';
        result = r->connection ? 1 : MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (ready > 0) {
        if (ready > room) ready = room;
        memcpy(out, r->unsent.data + r->sent, ready);
        r->sent += ready;
        result = (ssize_t)ready;
    } else if (r->phase == HTTP_ENDED) {
        result = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        r->suspended = true;
        MHD_suspend_connection(r->mhd);
    }
    pthread_mutex_unlock(&r->lock);
    return result;
}

static void add_headers(struct MHD_Response *response, const http_header *headers, size_t count)
{
    for (size_t i = 0; i < count; i++) MHD_add_response_header(response, headers[i].name, headers[i].value);
}

static enum MHD_Result queue(http_request *r, struct MHD_Response *response, unsigned status, const char *content_type)
{
    if (!response) return MHD_NO;
    if (content_type) MHD_add_response_header(response, "Content-Type", content_type);
    add_headers(response, r->extra, r->extra_count);
    if (atomic_load(&r->server->quiesced)) MHD_add_response_header(response, "Connection", "close");
    enum MHD_Result result = MHD_queue_response(r->mhd, status, response);
    MHD_destroy_response(response);
    pthread_mutex_lock(&r->lock);
    r->queued = true;
    pthread_mutex_unlock(&r->lock);
    return result;
}

static enum MHD_Result queue_stream(http_request *r)
{
    enum { BLOCK_BYTES = 16 << 10 };
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, r, NULL);
    if (response) {
        MHD_add_response_header(response, "Cache-Control", "no-cache");
        MHD_add_response_header(response, "X-Accel-Buffering", "no");
    }
    return queue(r, response, MHD_HTTP_OK, r->content_type);
}

static enum MHD_Result queue_reply(http_request *r)
{
    server_buf *body = &r->reply.body;
    if (body->failed) {
        static char text[] = "{\"error\":{\"message\":\"no memory for the answer\",\"type\":\"server_error\"}}";
        return queue(r, MHD_create_response_from_buffer(sizeof text - 1, text, MHD_RESPMEM_PERSISTENT), 500,
                     "application/json");
    }
    static char nothing[1];
    struct MHD_Response *response = MHD_create_response_from_buffer(
        body->length, body->data ? body->data : nothing, MHD_RESPMEM_PERSISTENT); /* the request outlives it */
    if (response) add_headers(response, r->reply.headers, r->reply.header_count);
    return queue(r, response, (unsigned)r->reply.status, r->reply.content_type);
}

/* Sends the answer if there is one, and waits for it otherwise. libmicrohttpd's locks are taken outside the request's:
 * its callbacks take the request's inside theirs. */
static enum MHD_Result go_on(http_request *r)
{
    pthread_mutex_lock(&r->lock);
    bool queued = r->queued, closed = r->closed;
    http_phase phase = r->phase;
    if (!queued && !closed && phase == HTTP_WAITING) {
        r->suspended = true;
        MHD_suspend_connection(r->mhd);
    }
    pthread_mutex_unlock(&r->lock);
    if (queued) return MHD_YES;
    if (closed) return MHD_NO;
    if (phase == HTTP_ANSWERED) return queue_reply(r);
    return phase == HTTP_STREAMING || phase == HTTP_ENDED ? queue_stream(r) : MHD_YES;
}

static http_connection *connection_of(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static http_phase phase_of(http_request *r)
{
    pthread_mutex_lock(&r->lock);
    http_phase phase = r->phase;
    pthread_mutex_unlock(&r->lock);
    return phase;
}

/* A reply before the body ends the connection: a short body is read first. */
static bool body_is_long(const http_request *r)
{
    enum { SHORT_BYTES = 64 << 10 };
    const char *length = http_header_of(r, "Content-Length");
    return http_header_of(r, "Transfer-Encoding") || (length && (strlen(length) > 9 || atol(length) > SHORT_BYTES));
}

/* Answers a malformed request and closes the connection: where the next request begins is uncertain. */
static bool refuse_malformed(http_request *r)
{
    http_fault fault = http_strict(r->mhd);
    if (!fault.message) return false;
    http_reply reply = {.status = (int)fault.status, .content_type = "application/json"};
    server_buf_printf(&reply.body, "{\"error\":{\"message\":\"%s\",\"type\":\"invalid_request_error\"}}",
                      fault.message);
    http_add_header(r, "Connection", "close");
    http_answer(r, reply);
    return true;
}

static enum MHD_Result begin(http_server *server, struct MHD_Connection *mhd, const char *method, const char *path,
                             void **request)
{
    http_request *r = request_new(server, mhd, method, path);
    if (!r) return MHD_NO;
    *request = r;
    r->connection = connection_of(mhd);
    if (r->connection) {
        http_watcher_deadline(&server->watcher, r->connection, deadline_in(server, LIMIT_BODY_SECONDS));
        bool gone = http_watcher_request(&server->watcher, r->connection, r);
        pthread_mutex_lock(&r->lock);
        if (gone) r->peer_gone = true;
        pthread_mutex_unlock(&r->lock);
    }
    if (refuse_malformed(r)) return go_on(r);
    server->events.on_headers(server->events.context, r);
    return phase_of(r) == HTTP_ANSWERED && body_is_long(r) ? go_on(r) : MHD_YES;
}

static enum MHD_Result take_body(http_request *r, const char *data, size_t *length)
{
    /* A body that grows past the limit is read on for a while, so that the client can read the reply. */
    if (r->body.length + *length > LIMIT_BODY_BYTES) {
        bool much = r->sent > LIMIT_BODY_BYTES;
        r->sent += *length;
        if (much) return MHD_NO;
    } else {
        if (phase_of(r) == HTTP_READING) server_buf_add(&r->body, data, *length);
    }
    *length = 0;
    return MHD_YES;
}

static enum MHD_Result on_access(void *context, struct MHD_Connection *mhd, const char *path, const char *method,
                                 const char *version, const char *data, size_t *length, void **request)
{
    http_server *server = context;
    http_request *r = *request;
    (void)version;
    if (!r) return begin(server, mhd, method, path, request);
    if (*length > 0) return take_body(r, data, length);
    pthread_mutex_lock(&r->lock);
    r->whole = true;
    pthread_mutex_unlock(&r->lock);
    if (phase_of(r) == HTTP_READING) {
        bool too_large = r->sent > 0;
        r->sent = 0;
        if (r->connection) http_watcher_deadline(&server->watcher, r->connection, 0);
        pthread_mutex_lock(&r->lock);
        r->phase = HTTP_WAITING;
        if (too_large) r->body.failed = true;
        pthread_mutex_unlock(&r->lock);
        server->events.on_request(server->events.context, r);
    }
    return go_on(r);
}

static void on_completed(void *context, struct MHD_Connection *mhd, void **request,
                         enum MHD_RequestTerminationCode reason)
{
    http_server *server = context;
    http_request *r = *request;
    (void)mhd;
    (void)reason;
    if (!r) return;
    *request = NULL;
    if (r->connection) {
        http_watcher_request(&server->watcher, r->connection, NULL);
        http_watcher_deadline(&server->watcher, r->connection, deadline_in(server, LIMIT_IDLE_SECONDS));
    }
    pthread_mutex_lock(&r->lock);
    http_client_gone(r); /* does nothing after a complete answer */
    r->mhd = NULL;
    r->suspended = false;
    r->closed = true;
    r->connection = NULL;
    pthread_mutex_unlock(&r->lock);
    http_unref(r);
}

static void on_connection(void *context, struct MHD_Connection *mhd, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    http_server *server = context;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
        double deadline = deadline_in(server, LIMIT_HEADER_SECONDS);
        *socket_context = info ? http_watcher_add(&server->watcher, info->connect_fd, deadline) : NULL;
    } else if (*socket_context) {
        http_watcher_remove(&server->watcher, *socket_context);
        *socket_context = NULL;
    }
}

/* Decodes %XX in place, but not %00, which would cut the path. */
static size_t unescape(void *context, struct MHD_Connection *mhd, char *text)
{
    char *out = text;
    (void)context;
    (void)mhd;
    for (const char *in = text; *in; in++) {
        char hex[3] = {0};
        if (*in == '%' && in[1] && in[2]) memcpy(hex, in + 1, 2);
        bool coded = strspn(hex, "0123456789abcdefABCDEF") == 2 && strcmp(hex, "00") != 0;
        *out++ = coded ? (char)strtol(hex, NULL, 16) : *in;
        if (coded) in += 2;
    }
    *out = '\0';
    return (size_t)(out - text);
}

static void ignore_log(void *context, const char *format, va_list args)
{
    (void)context;
    (void)format;
    (void)args;
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

/* As many connections as the file descriptors allow, less what the program needs itself. */
static unsigned connection_limit(void)
{
    enum { OWN_FILES = 24 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 64;
    rlim_t wanted = LIMIT_CONNECTIONS + OWN_FILES;
    if (limit.rlim_cur < wanted) {
        limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    rlim_t most = limit.rlim_cur > OWN_FILES + 8 ? limit.rlim_cur - OWN_FILES : 8;
    return most < LIMIT_CONNECTIONS ? (unsigned)most : LIMIT_CONNECTIONS;
}

strata_status http_start(const http_options *options, http_server **out, strata_error *error)
{
    http_server *server = calloc(1, sizeof *server);
    if (!server) return server_error(error, STRATA_MEMORY, NULL, "no memory for the server");
    server->events = options->events;
    server->timeout_seconds = options->timeout_seconds;
    server->watcher.plain = !options->tls_cert;
    strata_status status = http_watcher_start(&server->watcher, error);
    if (status == STRATA_OK && listen(options->socket, SOMAXCONN) != 0)
        status = server_error(error, STRATA_NETWORK, NULL, "the server: cannot listen: %s", strerror(errno));
    if (status != STRATA_OK) {
        http_stop(server);
        return status;
    }
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_CERT, 0, options->tls_cert},
                                   {MHD_OPTION_HTTPS_MEM_KEY, 0, options->tls_key},
                                   {MHD_OPTION_END, 0, NULL}};
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | MHD_USE_ERROR_LOG;
    if (options->tls_cert) flags |= MHD_USE_TLS;
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    server->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_access, server, MHD_OPTION_EXTERNAL_LOGGER, ignore_log, NULL,
        MHD_OPTION_LISTEN_SOCKET, options->socket, MHD_OPTION_NOTIFY_COMPLETED, on_completed, server,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, server, MHD_OPTION_CONNECTION_LIMIT, connection_limit(),
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)LIMIT_HEADER_BYTES, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)options->timeout_seconds + 1 /* the watcher comes first */, MHD_OPTION_UNESCAPE_CALLBACK, unescape,
        NULL,
        MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_ARRAY, options->tls_cert ? tls : none, MHD_OPTION_END);
    if (!server->daemon) {
        http_stop(server);
        return server_error(error, STRATA_NETWORK, options->tls_cert ? "check --tls-cert and --tls-key" : NULL,
                            "the server: the HTTP library could not start");
    }
    *out = server;
    return STRATA_OK;
}

void http_quiesce(http_server *server)
{
    atomic_store(&server->quiesced, true);
    int listening = MHD_quiesce_daemon(server->daemon);
    if (listening != MHD_INVALID_SOCKET) close(listening);
}

void http_wait_sent(http_server *server, double seconds)
{
    http_watcher_wait_sent(&server->watcher, seconds);
}

void http_stop(http_server *server)
{
    if (!server) return;
    if (server->daemon) {
        /* A suspended connection would keep the daemon from stopping. */
        pthread_mutex_lock(&server->watcher.lock);
        for (http_connection *c = server->watcher.first; c; c = c->next) {
            if (!c->request) continue;
            pthread_mutex_lock(&c->request->lock);
            http_client_gone(c->request);
            c->request->closed = true;
            http_resume(c->request);
            pthread_mutex_unlock(&c->request->lock);
        }
        pthread_mutex_unlock(&server->watcher.lock);
        MHD_stop_daemon(server->daemon);
    }
    http_watcher_stop(&server->watcher);
    free(server);
}
