/* Shared by http.c and watch.c: connections and requests of the transport. */
#ifndef SERVER_HTTP_INTERNAL_H
#define SERVER_HTTP_INTERNAL_H

#include <microhttpd.h>
#include <pthread.h>

#include "http.h"

typedef struct http_connection {
    struct http_connection *next, *previous;
    uint64_t id;
    int socket;
    double deadline;       /* the client must have sent headers or body by then; 0: none */
    bool answered;         /* an earlier request was complete: the client may just have nothing to ask */
    bool peer_closed;      /* the client has closed its side */
    http_request *request; /* the current one; NULL: none */
} http_connection;

/* Waits for closed connections and for deadlines in a thread of its own. `lock` guards the list, and every member of a
 * connection; it is taken before a request's lock. */
typedef struct http_watcher {
    pthread_mutex_t lock;
    pthread_cond_t completed; /* a request is over */
    pthread_t thread;
    bool started;
    bool stopping;
    bool plain;      /* not TLS: a reply can be written to a socket */
    int epoll, wake; /* wake: an eventfd */
    double wake_at;  /* when the thread wakes by itself; 0: never */
    http_connection *first;
    uint64_t last_id;
} http_watcher;

typedef enum http_phase { HTTP_READING, HTTP_WAITING, HTTP_ANSWERED, HTTP_STREAMING, HTTP_ENDED } http_phase;

enum { HTTP_KEPT_COUNT = 10 };

struct http_request {
    http_server *server;
    pthread_mutex_t lock; /* guards everything below */
    unsigned references;
    struct MHD_Connection *mhd; /* NULL: the transport is done with the request */
    http_connection *connection;
    http_phase phase;
    bool suspended;
    bool whole;  /* the body is complete */
    bool queued; /* MHD has the response */
    bool peer_gone; /* the client has closed its side */
    bool closed;    /* nothing more is sent */
    char *method, *path;
    char *kept[HTTP_KEPT_COUNT];
    server_buf body;
    double started_seconds;
    void *data;
    http_header extra[HTTP_HEADERS_MAX]; /* copies */
    size_t extra_count;
    http_reply reply;
    char *content_type, *keep_alive; /* of a stream */
    server_buf unsent;
    size_t sent; /* of `unsent` */
    double written_seconds; /* when the stream was last written */
    void (*on_close)(void *context);
    void *on_close_context;
};

strata_status http_watcher_start(http_watcher *watcher, strata_error *error);
void http_watcher_stop(http_watcher *watcher);
/* A connection that the transport accepted; NULL: no memory. */
http_connection *http_watcher_add(http_watcher *watcher, int socket, double deadline);
void http_watcher_remove(http_watcher *watcher, http_connection *connection);
void http_watcher_deadline(http_watcher *watcher, http_connection *connection, double deadline);
/* The connection's current request. Returns whether the client has closed its side already. */
bool http_watcher_request(http_watcher *watcher, http_connection *connection, http_request *request);
/* Waits until all bytes of finished answers are in the kernel's socket buffers, or until `seconds` have passed. */
void http_watcher_wait_sent(http_watcher *watcher, double seconds);
/* The thread wakes at this time or earlier. */
void http_watcher_before(http_watcher *watcher, double seconds);

/* strict.c: why a request is refused whatever it asks for. */
typedef struct http_fault {
    unsigned status;
    const char *message; /* NULL: it is not refused */
} http_fault;
http_fault http_strict(struct MHD_Connection *mhd);

/* Lets MHD look at the request again. The request's lock is held. */
void http_resume(http_request *request);
/* The client has gone: cancels the request's work, if it is watched. The request's lock is held. */
void http_client_gone(http_request *request);

#endif
