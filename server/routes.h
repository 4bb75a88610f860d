/* The functions of the table routes.def, and the calls that they get. */
#ifndef SERVER_ROUTES_H
#define SERVER_ROUTES_H

#include "core.h"

/* A request on its way to a route's function, which answers it. */
typedef struct server_call {
    server *server;
    http_request *http;
    const server_api *api; /* names errors; for answer_task also the translator */
    const char *rest;      /* what the * of the path stands for; "" without one */
    bool waits;            /* set by the function: the request waits in the queue */
} server_call;

typedef void server_route_function(server_call *call);
server_route_function answer_task;
server_route_function answer_health, answer_page, answer_models, answer_model, answer_props, answer_metrics,
    answer_tokenize, answer_detokenize;                                    /* pages.c */
server_route_function answer_tags, answer_show, answer_ps, answer_version; /* ollama_models.c */

/* Answers with the failure. */
void server_call_fail(server_call *call, const server_fail *fail);
/* The body as JSON (decref); NULL: the call was answered. */
json_t *server_call_body(server_call *call);

#endif
