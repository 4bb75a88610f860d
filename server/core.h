/* The server's own state, for the files of this folder. */
#ifndef SERVER_CORE_H
#define SERVER_CORE_H

#include "http.h"
#include "known.h"
#include "metrics.h"
#include "prompt.h"
#include "server.h"
#include "task.h"
#include "work.h"

typedef struct server_key {
    char *text;
    size_t length;
} server_key;

struct server {
    server_options options;
    server_engine engine;
    int socket;
    uint16_t port;
    char url[320];
    bool loopback; /* only this machine can connect */
    char *tls_cert, *tls_key; /* PEM texts */
    server_key *keys; /* [key_count] */
    size_t key_count;
    http_server *http;
    server_chat chat;
    server_work work;
    server_known known;
    server_metrics metrics;
    char model[128];  /* the model's id */
    char *card;       /* of strata_model_describe */
    json_t *card_json;
    int64_t started;  /* seconds since the epoch */
    atomic_bool draining;
};

void server_log(const server *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* policy.c: whether this client may ask at all: Host, Origin, key. Answers the request otherwise. */
bool server_policy_check(server *s, http_request *request, const server_api *api, bool needs_key);
/* The keys of a file, one per line. */
strata_status server_policy_open(server *s, strata_error *error);
void server_policy_close(server *s);

/* routes.c: the transport's events. */
http_events server_routes(server *s);

/* Whether the model answers to this name; an empty one is any. */
bool server_model_is(const server *s, const char *name);
bool server_refuse_model(const server *s, const char *name, server_fail *fail);

/* Replies. */
void server_reply(http_request *request, int status, const char *content_type, server_buf *body);
void server_reply_json(http_request *request, int status, json_t *value); /* takes the value over */
void server_reply_fail(server *s, http_request *request, const server_api *api, const server_fail *fail);

/* The translators. */
extern const server_api server_api_chat, server_api_completion, server_api_response, server_api_message,
    server_api_count_tokens, server_api_ollama_chat, server_api_ollama_generate;

#endif
