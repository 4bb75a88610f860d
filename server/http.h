/* The transport: HTTP/1.1 over libmicrohttpd. Owns sockets, connections, their deadlines, request bodies and unsent
 * bytes; one thread does all reading and writing, another waits for closed connections and deadlines. Knows no API.
 *
 * A request is shared by the transport and by the threads that answer it (http_ref, http_unref). Replies and streams
 * may be written from any thread; a write never waits for the client. */
#ifndef SERVER_HTTP_H
#define SERVER_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buf.h"
#include "clock.h"

typedef struct http_server http_server;
typedef struct http_request http_request;

typedef struct http_header {
    const char *name, *value;
} http_header;
enum { HTTP_HEADERS_MAX = 12 };

/* A complete reply. The transport takes over the body. */
typedef struct http_reply {
    int status;
    const char *content_type;
    server_buf body;
    http_header headers[HTTP_HEADERS_MAX]; /* [header_count]; static or copied by http_add_header */
    size_t header_count;
} http_reply;

typedef struct http_events {
    /* The headers are complete; a reply given here is sent without waiting for the body. */
    void (*on_headers)(void *context, http_request *request);
    /* The request is complete. Must not block: other threads do the work. */
    void (*on_request)(void *context, http_request *request);
    void *context;
} http_events;

typedef struct http_options {
    int socket;             /* bound, not listening; the server owns it */
    char *tls_cert, *tls_key; /* PEM texts; NULL: plain HTTP */
    uint32_t timeout_seconds;
    http_events events;
} http_options;

strata_status http_start(const http_options *options, http_server **out, strata_error *error);
/* Accepts no further connections. */
void http_quiesce(http_server *server);
/* Waits at most `seconds` until all bytes of finished answers are in the kernel's socket buffers, which outlive the
 * connection. */
void http_wait_sent(http_server *server, double seconds);
/* Closes every connection. No other thread may answer requests any more. */
void http_stop(http_server *server);

void http_ref(http_request *request);
void http_unref(http_request *request);

/* The request. Strings live as long as it does; NULL: no such header. */
const char *http_method(const http_request *request);
const char *http_path(const http_request *request); /* percent-decoded, without the query */
const char *http_header_of(const http_request *request, const char *name); /* a name of http_kept_headers */
extern const char *const http_kept_headers[]; /* NULL terminated */
const char *http_body(const http_request *request, size_t *length); /* NUL terminated */
bool http_body_is_too_large(const http_request *request); /* or there was no memory for it */
double http_started(const http_request *request); /* server_now when its headers were complete */

/* A value for the application's use. */
void http_set_data(http_request *request, void *data);
void *http_data(const http_request *request);

/* Headers that every reply to this request gets. Before the reply. Both strings are copied. */
void http_add_header(http_request *request, const char *name, const char *value);

/* Answers the request; the first reply or stream wins. */
void http_answer(http_request *request, http_reply reply);

/* Streams. `keep_alive` is written when the stream has been silent for some seconds; it is copied. */
void http_stream_begin(http_request *request, const char *content_type, const char *keep_alive);
bool http_stream_write(http_request *request, const char *data, size_t length); /* false: the client has gone */
void http_stream_end(http_request *request);

/* Calls `on_close` once if the client goes away before the answer is complete: at once if it has gone already. After
 * http_forget returns, it is not called any more. It may be called from any thread and must not answer the request. */
void http_watch(http_request *request, void (*on_close)(void *context), void *context);
void http_forget(http_request *request);

#endif
