/* The HTTP server behind `strata serve`, as the command line sees it. The folder includes strata.h and nothing else of
 * the library. It owns the APIs that clients speak; it knows neither the terminal nor how a model runs.
 *
 *   http.c (transport) → policy.c (who may ask) → routes.c → an API's translator → task.c (one request) → work.c
 *   (the queue, and threads that run sessions) → text.c (stop strings, reasoning) → the translator → http.c
 */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include "strata.h"

typedef struct server server;

typedef struct server_options {
    const char *host; /* address to bind */
    uint16_t port;    /* 0: any free port */
    const char *const *aliases; /* [alias_count]: other names of the model; "*": any name */
    size_t alias_count;
    const char *api_key_file; /* one key per line; NULL: no keys */
    bool no_api_key;          /* other machines may connect without a key */
    const char *const *allow_hosts; /* [allow_host_count]: further values of the Host header */
    size_t allow_host_count;
    const char *const *cors_origins; /* [cors_origin_count]: web pages that may use the server; "*": all */
    size_t cors_origin_count;
    const char *tls_cert, *tls_key; /* PEM files; NULL: plain HTTP */
    uint32_t timeout_seconds;       /* for a client's headers, for its body, and to read */
    const char *chat_template;      /* [chat_template_length]: source of a template; NULL: the model's */
    size_t chat_template_length;
    bool verbose;                   /* log every request */
    void (*log)(const char *line);  /* may be called from any thread */
} server_options;

/* Checks the options, reads keys and certificates, and binds the port, so that nothing fails after a long load. The
 * strings of the options must outlive the server. */
strata_status server_open(const server_options *options, server **out, strata_error *error);
/* The address for clients: http://127.0.0.1:8080. */
const char *server_url(const server *s);

/* What the server runs. */
typedef struct server_engine {
    const strata_model *model;
    strata_engine *engine;
    const char *path;  /* of the model file */
    uint32_t sessions; /* that run at a time */
} server_engine;

/* Answers requests until SIGTERM or SIGINT, then lets running answers finish for some seconds. `ready` is called when
 * the port accepts connections; it may be NULL. */
strata_status server_run(server *s, const server_engine *engine, void (*ready)(const server *s), strata_error *error);
void server_close(server *s);

#endif
