/* Routes that say what runs here: health, models, properties, metrics, tokens, and a page for people. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "routes.h"

void answer_health(server_call *call)
{
    bool draining = atomic_load(&call->server->draining);
    server_reply_json(call->http, draining ? 503 : 200,
                      json_pack("{s:s}", "status", draining ? "shutting down" : "ok"));
}

/* ---- models ---------------------------------------------------------------------------------------------------- */

static json_t *model_entry(const server *s, const char *id)
{
    json_int_t context = (json_int_t)strata_engine_context(s->engine.engine);
    json_int_t trained = json_integer_value(json_object_get(s->card_json, "context_length"));
    return json_pack("{s:s, s:s, s:I, s:s, s:I, s:I, s:{s:I, s:I}}", "id", id, "object", "model", "created",
                     (json_int_t)s->started, "owned_by", "strata", "context_length", context, "max_model_len", context,
                     "meta", "n_ctx", context, "n_ctx_train", trained);
}

void answer_models(server_call *call)
{
    const server *s = call->server;
    json_t *data = json_array();
    json_array_append_new(data, model_entry(s, s->model));
    for (size_t i = 0; i < s->options.alias_count; i++) {
        const char *alias = s->options.aliases[i];
        if (strcmp(alias, "*") != 0 && strcmp(alias, s->model) != 0) json_array_append_new(data, model_entry(s, alias));
    }
    server_reply_json(call->http, 200, json_pack("{s:s, s:o}", "object", "list", "data", data));
}

void answer_model(server_call *call)
{
    server_fail fail;
    if (server_model_is(call->server, call->rest)) {
        server_reply_json(call->http, 200, model_entry(call->server, call->rest));
        return;
    }
    server_refuse_model(call->server, call->rest, &fail);
    server_call_fail(call, &fail);
}

/* ---- the engine ------------------------------------------------------------------------------------------------ */

/* The engine's description (decref); NULL: no memory. */
static json_t *facts_of(const server *s)
{
    char *text = NULL;
    if (strata_engine_describe(s->engine.engine, &text, NULL) != STRATA_OK) return NULL;
    json_t *facts = json_loads(text, 0, NULL);
    strata_free(text);
    return facts;
}

void answer_props(server_call *call)
{
    const server *s = call->server;
    json_t *facts = facts_of(s), *plan = json_object_get(facts, "plan");
    json_t *props = json_pack("{s:s, s:s, s:I, s:I, s:b, s:{s:s, s:s}, s:O*, s:O*}", "model", s->model, "version",
                              STRATA_VERSION, "context", (json_int_t)strata_engine_context(s->engine.engine),
                              "sessions", (json_int_t)s->engine.sessions, "chat_template",
                              s->chat.chat_template != NULL, "reasoning", "open", s->chat.marks.open, "close",
                              s->chat.marks.close, "model_card", s->card_json, "plan", plan);
    json_decref(facts);
    server_reply_json(call->http, 200, props);
}

void answer_metrics(server_call *call)
{
    json_t *facts = facts_of(call->server);
    server_buf out = {0};
    server_metrics_write(&call->server->metrics, facts, &out);
    json_decref(facts);
    server_reply(call->http, 200, "text/plain; version=0.0.4", &out);
}

/* ---- tokens ---------------------------------------------------------------------------------------------------- */

void answer_tokenize(server_call *call)
{
    server_fail fail;
    strata_error error;
    strata_token *tokens = NULL;
    size_t count = 0;
    json_t *body = server_call_body(call);
    if (!body) return;
    const json_t *content = server_field(body, "content"), *special = server_field(body, "parse_special");
    unsigned flags = json_is_true(server_field(body, "add_special")) ? STRATA_TOKENIZE_PROMPT : 0u;
    if (json_is_false(special)) flags |= STRATA_TOKENIZE_PLAIN;
    bool good = json_is_string(content) ||
                server_refuse(&fail, FAULT_INVALID, "content", "content: expected a string");
    if (good && strata_tokenize(call->server->engine.model, json_string_value(content), json_string_length(content),
                                flags, &tokens, &count, &error) != STRATA_OK)
        good = server_refuse_error(&fail, &error);
    if (good) {
        server_buf out = {0};
        server_buf_text(&out, "{\"tokens\":[");
        for (size_t i = 0; i < count; i++) server_buf_printf(&out, "%s%d", i ? "," : "", (int)tokens[i]);
        server_buf_text(&out, "]}");
        server_reply(call->http, 200, "application/json", &out);
    } else {
        server_call_fail(call, &fail);
    }
    strata_free(tokens);
    json_decref(body);
}

static bool read_ids(const json_t *ids, strata_token **out, size_t *count, server_fail *fail)
{
    size_t i;
    json_t *id;
    if (!json_is_array(ids))
        return server_refuse(fail, FAULT_INVALID, "tokens", "tokens: expected an array of token ids");
    *out = calloc(json_array_size(ids) + 1, sizeof **out);
    if (!*out) return server_refuse(fail, FAULT_BUSY, NULL, "no memory for the tokens");
    json_array_foreach(ids, i, id) {
        json_int_t number = json_integer_value(id);
        if (!json_is_integer(id) || number < 0 || number > INT32_MAX)
            return server_refuse(fail, FAULT_INVALID, "tokens", "tokens[%zu]: expected a token id", i);
        (*out)[(*count)++] = (strata_token)number;
    }
    return true;
}

void answer_detokenize(server_call *call)
{
    server_fail fail;
    strata_error error;
    strata_token *tokens = NULL;
    char *text = NULL;
    size_t count = 0, length = 0;
    json_t *body = server_call_body(call);
    if (!body) return;
    bool good = read_ids(server_field(body, "tokens"), &tokens, &count, &fail);
    if (good && strata_detokenize(call->server->engine.model, tokens, count, &text, &length, &error) != STRATA_OK)
        good = server_refuse_error(&fail, &error);
    if (good) {
        server_buf out = {0};
        server_buf_text(&out, "{\"content\":");
        server_buf_json(&out, text ? text : "", length);
        server_buf_text(&out, "}");
        server_reply(call->http, 200, "application/json", &out);
    } else {
        server_call_fail(call, &fail);
    }
    strata_free(text);
    free(tokens);
    json_decref(body);
}

/* ---- the page -------------------------------------------------------------------------------------------------- */

static void write_html(server_buf *out, const char *text)
{
    for (; *text; text++) {
        const char *entity = *text == '<' ? "&lt;" : *text == '>' ? "&gt;" : *text == '&' ? "&amp;"
                             : *text == '"' ? "&quot;" : NULL;
        if (entity) server_buf_text(out, entity);
        else server_buf_add(out, text, 1);
    }
}

void answer_page(server_call *call)
{
    const server *s = call->server;
    server_buf out = {0};
    server_buf_text(&out, "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><title>strata</title>"
                          "<h1>strata</h1><p>This server runs the model <code>");
    write_html(&out, s->model);
    server_buf_printf(&out, "</code> with a context of %u tokens.</p><p>OpenAI clients: base URL <code>",
                      strata_engine_context(s->engine.engine));
    write_html(&out, s->url);
    server_buf_text(&out, "/v1</code>. Anthropic and Ollama clients: <code>");
    write_html(&out, s->url);
    server_buf_text(&out, "</code>.</p><p><a href=\"/health\">/health</a> <a href=\"/v1/models\">/v1/models</a> "
                          "<a href=\"/props\">/props</a> <a href=\"/metrics\">/metrics</a></p></html>");
    http_add_header(call->http, "Content-Security-Policy", "default-src 'none'");
    server_reply(call->http, 200, "text/html; charset=utf-8", &out);
}
