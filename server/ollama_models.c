/* Ollama's lists: the model that is loaded, under each of its names. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "routes.h"

static void time_text(int64_t seconds, char *out, size_t size)
{
    time_t when = (time_t)seconds;
    struct tm parts;
    gmtime_r(&when, &parts);
    strftime(out, size, "%Y-%m-%dT%H:%M:%SZ", &parts);
}

static const char *card_text(const server *s, const char *name)
{
    const char *text = json_string_value(json_object_get(s->card_json, name));
    return text ? text : "";
}

static json_t *details(const server *s)
{
    const char *family = card_text(s, "architecture");
    return json_pack("{s:s, s:s, s:s, s:[s], s:s, s:s}", "parent_model", "", "format", "gguf", "family", family,
                     "families", family, "parameter_size", card_text(s, "size_label"), "quantization_level",
                     card_text(s, "quantisation"));
}

/* One model under one name. `loaded`: with what /api/ps adds. */
static json_t *entry(const server *s, const char *name, bool loaded)
{
    char when[32], never[] = "2318-01-01T00:00:00Z";
    json_int_t bytes = json_integer_value(json_object_get(s->card_json, "file_bytes"));
    time_text(s->started, when, sizeof when);
    json_t *made = json_pack("{s:s, s:s, s:s, s:I, s:s, s:o}", "name", name, "model", name, "modified_at", when, "size",
                             bytes, "digest", "", "details", details(s));
    if (loaded) {
        json_object_set_new(made, "expires_at", json_string(never));
        json_object_set_new(made, "size_vram", json_integer(0));
        json_object_set_new(made, "context_length", json_integer(strata_engine_context(s->engine.engine)));
    }
    return made;
}

static void answer_list(server_call *call, bool loaded)
{
    const server *s = call->server;
    json_t *models = json_array();
    json_array_append_new(models, entry(s, s->model, loaded));
    for (size_t i = 0; !loaded && i < s->options.alias_count; i++) {
        const char *alias = s->options.aliases[i];
        if (strcmp(alias, "*") != 0 && strcmp(alias, s->model) != 0)
            json_array_append_new(models, entry(s, alias, false));
    }
    server_reply_json(call->http, 200, json_pack("{s:o}", "models", models));
}

void answer_tags(server_call *call)
{
    answer_list(call, false);
}

void answer_ps(server_call *call)
{
    answer_list(call, true);
}

void answer_version(server_call *call)
{
    server_reply_json(call->http, 200, json_pack("{s:s}", "version", STRATA_VERSION));
}

void answer_show(server_call *call)
{
    const server *s = call->server;
    json_t *body = server_call_body(call);
    server_fail fail;
    if (!body) return;
    const json_t *name = server_field(body, "model");
    if (!name) name = server_field(body, "name");
    const char *text = json_is_string(name) ? json_string_value(name) : "";
    char context[128];
    snprintf(context, sizeof context, "%.100s.context_length", card_text(s, "architecture"));
    if (server_model_is(s, text)) {
        json_t *info = json_pack("{s:s, s:I, s:I}", "general.architecture", card_text(s, "architecture"),
                                 "general.parameter_count",
                                 json_integer_value(json_object_get(s->card_json, "parameters")), context,
                                 (json_int_t)strata_engine_context(s->engine.engine));
        json_t *abilities = json_pack("[s]", "completion");
        if (s->chat.marks.open[0]) json_array_append_new(abilities, json_string("thinking"));
        server_reply_json(call->http, 200,
                          json_pack("{s:s, s:s, s:s, s:o, s:o, s:o}", "modelfile", "", "parameters", "", "template", "",
                                    "details", details(s), "model_info", info, "capabilities", abilities));
    } else {
        server_refuse_model(s, text, &fail);
        server_call_fail(call, &fail);
    }
    json_decref(body);
}
