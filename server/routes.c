/* From the transport's events to routes: checks, the table, and replies. */
#include "routes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { KEYLESS = 1, AT_ONCE = 2, ANY_TYPE = 4, NO_ENGINE = 8 };

typedef struct route {
    const char *method, *path;
    server_route_function *function;
    const server_api *api;
    unsigned flags;
} route;

static const route routes[] = {
#define ROUTE(method, path, function, api, flags) {method, path, function, &server_api_##api, flags},
#include "routes.def"
};

/* ---- replies --------------------------------------------------------------------------------------------------- */

void server_reply(http_request *request, int status, const char *content_type, server_buf *body)
{
    http_reply reply = {.status = status, .content_type = content_type, .body = *body};
    *body = (server_buf){0};
    http_answer(request, reply);
}

void server_reply_json(http_request *request, int status, json_t *value)
{
    char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    server_buf body = {0};
    if (text) server_buf_text(&body, text);
    else body.failed = true;
    free(text);
    json_decref(value);
    server_reply(request, status, "application/json", &body);
}

void server_reply_fail(server *s, http_request *request, const server_api *api, const server_fail *fail)
{
    static const char retry[] = "2";
    _Static_assert(LIMIT_RETRY_SECONDS == 2, "the header's text");
    http_reply reply = {.status = server_fault_rows[fail->fault].status, .content_type = "application/json"};
    api->write_error(fail, &reply.body);
    if (fail->fault == FAULT_BUSY) reply.headers[reply.header_count++] = (http_header){"Retry-After", retry};
    server_count(&s->metrics.refused, 1);
    if (fail->log[0])
        server_log(s, "%s: %s", http_path(request), fail->log);
    else if (s->options.verbose)
        server_log(s, "%s %s: %d: %s", http_method(request), http_path(request), reply.status, fail->message);
    http_answer(request, reply);
}

void server_call_fail(server_call *call, const server_fail *fail)
{
    server_reply_fail(call->server, call->http, call->api, fail);
}

json_t *server_call_body(server_call *call)
{
    server_fail fail;
    size_t length;
    const char *text = http_body(call->http, &length);
    json_t *body = server_body_parse(text, length, &fail);
    if (!body) server_call_fail(call, &fail);
    return body;
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

/* Whether the path is the route's; *rest is what its * stands for. */
static bool path_is(const route *r, const char *path, const char **rest)
{
    size_t length = strlen(r->path);
    *rest = "";
    if (r->path[length - 1] != '*') return strcmp(r->path, path) == 0;
    *rest = path + length - 1;
    return strncmp(r->path, path, length - 1) == 0 && **rest;
}

static bool method_is(const route *r, const char *method)
{
    bool head = strcmp(method, "HEAD") == 0 && strcmp(r->method, "GET") == 0; /* the transport leaves the body out */
    return head || strcmp(r->method, method) == 0;
}

/* *other: the path exists with another method; its API names the error. */
static const route *find_route(const http_request *request, const char **rest, const route **other)
{
    *other = NULL;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (!path_is(&routes[i], http_path(request), rest)) continue;
        if (method_is(&routes[i], http_method(request))) return &routes[i];
        *other = &routes[i];
    }
    return NULL;
}

/* Unknown paths get the errors of the API that they resemble. */
static const server_api *api_of_path(const char *path)
{
    if (strncmp(path, "/v1/messages", 12) == 0) return &server_api_message;
    if (strncmp(path, "/api/", 5) == 0) return &server_api_ollama_chat;
    return &server_api_chat;
}

/* ---- checks before the body ------------------------------------------------------------------------------------ */

static bool refuse(server *s, http_request *request, const server_api *api, server_fault fault, const char *text)
{
    server_fail fail;
    server_refuse(&fail, fault, NULL, "%s", text);
    server_reply_fail(s, request, api, &fail);
    return false;
}

static bool is_json(const char *type)
{
    static const char json[] = "application/json";
    return type && strncasecmp(type, json, sizeof json - 1) == 0 && strchr("; ", type[sizeof json - 1]);
}

static bool check_body(server *s, http_request *request, const route *r)
{
    const char *encoding = http_header_of(request, "Content-Encoding");
    const char *length = http_header_of(request, "Content-Length");
    const char *type = http_header_of(request, "Content-Type");
    if (encoding && strcasecmp(encoding, "identity") != 0)
        return refuse(s, request, r->api, FAULT_MEDIA, "Content-Encoding: expected none: send the body uncompressed");
    if (length && (strlen(length) > 12 || atoll(length) > LIMIT_BODY_BYTES))
        return refuse(s, request, r->api, FAULT_LARGE, "the body is too large: at most 32 MiB are accepted");
    bool post = strcmp(r->method, "POST") == 0, page = http_header_of(request, "Origin") != NULL;
    if (post && !is_json(type) && !((r->flags & ANY_TYPE) && !page))
        return refuse(s, request, r->api, FAULT_MEDIA, "Content-Type: expected application/json");
    return true;
}

/* Refuses a request that arrives while the server shuts down. */
static bool refuse_late(server *s, http_request *request, const route *r)
{
    if (!atomic_load(&s->draining) || (r->flags & KEYLESS)) return false;
    refuse(s, request, r->api, FAULT_BUSY, "the server is shutting down");
    return true;
}

static void on_headers(void *context, http_request *request)
{
    server *s = context;
    const route *other;
    const char *rest;
    const route *r = find_route(request, &rest, &other);
    const server_api *api = r ? r->api : other ? other->api : api_of_path(http_path(request));
    server_count(&s->metrics.requests, 1);
    http_add_header(request, "X-Content-Type-Options", "nosniff");
    if (!server_policy_check(s, request, api, !r || !(r->flags & KEYLESS))) return;
    server_fail fail;
    if (!r && other) {
        http_add_header(request, "Allow", other->method);
        server_refuse(&fail, FAULT_METHOD, NULL, "%.80s: expected %s, found %.20s", http_path(request), other->method,
                      http_method(request));
        server_reply_fail(s, request, api, &fail);
    } else if (!r) {
        server_refuse(&fail, FAULT_ROUTE, NULL, "%.20s %.200s: there is no such path on this server",
                      http_method(request), http_path(request));
        server_reply_fail(s, request, api, &fail);
    } else if (!refuse_late(s, request, r)) {
        check_body(s, request, r);
    }
}

/* ---- calls ----------------------------------------------------------------------------------------------------- */

static bool run_call(server *s, void *argument)
{
    http_request *request = argument;
    const route *other;
    server_call call = {.server = s, .http = request};
    const route *r = find_route(request, &call.rest, &other);
    call.api = r->api;
    r->function(&call);
    http_unref(request);
    return call.waits;
}

static void on_request(void *context, http_request *request)
{
    server *s = context;
    const route *other;
    const char *rest;
    const route *r = find_route(request, &rest, &other);
    if (!r) return; /* answered already */
    if (http_body_is_too_large(request)) {
        refuse(s, request, r->api, FAULT_LARGE, "the body is too large: at most 32 MiB are accepted");
        return;
    }
    http_ref(request);
    if (r->flags & AT_ONCE) {
        run_call(s, request);
    } else if (!server_work_prepare(&s->work, run_call, request, r->flags & NO_ENGINE)) {
        server_count(&s->metrics.rejected, 1);
        if (!refuse_late(s, request, r)) /* the headers may have come in time */
            refuse(s, request, r->api, FAULT_BUSY, "the server is busy: its queue is full; try again later");
        http_unref(request);
    }
}

http_events server_routes(server *s)
{
    return (http_events){.on_headers = on_headers, .on_request = on_request, .context = s};
}

bool server_model_is(const server *s, const char *name)
{
    static const char latest[] = ":latest";
    size_t length = strlen(name), tail = sizeof latest - 1;
    if (length == 0) return true;
    if (length > tail && strcmp(name + length - tail, latest) == 0) length -= tail;
    const char *file = strrchr(s->engine.path, '/');
    const char *names[] = {s->model, file ? file + 1 : s->engine.path};
    for (size_t i = 0; i < 2; i++)
        if (strlen(names[i]) == length && memcmp(names[i], name, length) == 0) return true;
    for (size_t i = 0; i < s->options.alias_count; i++) {
        const char *alias = s->options.aliases[i];
        if (strcmp(alias, "*") == 0 || (strlen(alias) == length && memcmp(alias, name, length) == 0)) return true;
    }
    return false;
}

bool server_refuse_model(const server *s, const char *name, server_fail *fail)
{
    return server_refuse(fail, FAULT_MODEL, "model",
                         "the model \"%.100s\" does not exist: this server has \"%s\" (--alias gives it other names)",
                         name, s->model);
}

/* ---- requests for text ----------------------------------------------------------------------------------------- */

static bool check_model(server_task *task, server_fail *fail)
{
    const json_t *model = server_field(task->body, "model");
    const char *name = json_string_value(model);
    if (model && !name) return server_refuse(fail, FAULT_INVALID, "model", "model: expected a string");
    if (!name) name = "";
    if (!server_model_is(task->server, name))
        return server_refuse_model(task->server, name, fail);
    snprintf(task->model, sizeof task->model, "%.100s", *name ? name : task->server->model);
    return true;
}

static bool check_biases(const server_task *task, server_fail *fail)
{
    json_int_t vocab = json_integer_value(server_field(task->server->card_json, "tokenizer.vocabulary_size"));
    for (size_t i = 0; i < task->parameters.bias_count; i++)
        if (task->parameters.biases[i].token >= vocab)
            return server_refuse(fail, FAULT_INVALID, "logit_bias",
                                 "logit_bias: expected token ids below %lld, found %d", (long long)vocab,
                                 task->parameters.biases[i].token);
    return true;
}

static bool prepare(server_task *task, server_fail *fail)
{
    size_t length;
    const char *text = http_body(task->http, &length);
    task->body = server_body_parse(text, length, fail);
    return task->body && check_model(task, fail) &&
           server_fields_read(task->body, task->api->fields, &task->parameters, fail) && check_biases(task, fail) &&
           task->api->read(task, fail) && (task->count_only || server_prompts_fit(task, fail)) &&
           server_task_choices(task, fail);
}

void answer_task(server_call *call)
{
    server *s = call->server;
    server_fail fail;
    server_task *task = server_task_new(s, call->http, call->api);
    if (!task) {
        server_refuse(&fail, FAULT_BUSY, NULL, "no memory for the request");
        server_call_fail(call, &fail);
        return;
    }
    bool good = prepare(task, &fail);
    if (!good) {
        server_task_fail(task, &fail);
    } else if (task->count_only) {
        server_buf out = {0};
        task->api->write_whole(task, &out);
        server_reply(task->http, 200, "application/json", &out);
    } else {
        if (s->options.verbose)
            server_log(s, "%s: %zu prompt tokens, prepared in %.2f ms", http_path(task->http),
                       server_task_prompt_tokens(task), (server_now() - task->arrived_seconds) * 1e3);
        server_task_admit(task);
        call->waits = true;
        server_work_queue(&s->work, task);
    }
    server_task_unref(task);
}
