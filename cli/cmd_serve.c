/* strata serve: a model behind HTTP. The server itself is in server/; here are its options and its first line. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "server/server.h"

enum { PORT_DEFAULT = 8080, TIMEOUT_DEFAULT_SECONDS = 120 };

typedef struct serve {
    const cli_arguments *arguments;
    server_options options;
    const char **aliases, **hosts, **origins;
    char *chat_template;
    server *server;
    cli_engine engine;
} serve;

static serve *current; /* for the line that says it is ready */

static void print_log(const char *line)
{
    cli_note("%s", line);
}

static strata_status take_list(const serve *r, cli_option_id id, const char ***list, size_t *count, strata_error *error)
{
    *list = cli_repeated(r->arguments, id, count);
    if (*count > 0 && !*list) return cli_fail(error, STRATA_MEMORY, NULL, "no memory for the options");
    return STRATA_OK;
}

static strata_status take_options(serve *r, strata_error *error)
{
    const cli_value *values = r->arguments->values;
    server_options *o = &r->options;
    size_t length = 0;
    *o = (server_options){.host = values[OPTION_HOST].set ? values[OPTION_HOST].text : "127.0.0.1",
                          .port = (uint16_t)cli_integer(r->arguments, OPTION_PORT, PORT_DEFAULT),
                          .api_key_file = values[OPTION_API_KEY_FILE].text,
                          .no_api_key = values[OPTION_NO_API_KEY].set,
                          .tls_cert = values[OPTION_TLS_CERT].text,
                          .tls_key = values[OPTION_TLS_KEY].text,
                          .timeout_seconds =
                              (uint32_t)cli_integer(r->arguments, OPTION_TIMEOUT, TIMEOUT_DEFAULT_SECONDS),
                          .verbose = values[OPTION_VERBOSE].set,
                          .log = print_log};
    strata_status status = take_list(r, OPTION_ALIAS, &r->aliases, &o->alias_count, error);
    if (status == STRATA_OK) status = take_list(r, OPTION_ALLOW_HOST, &r->hosts, &o->allow_host_count, error);
    if (status == STRATA_OK) status = take_list(r, OPTION_CORS_ORIGIN, &r->origins, &o->cors_origin_count, error);
    if (status == STRATA_OK && values[OPTION_CHAT_TEMPLATE].set)
        status = cli_read(values[OPTION_CHAT_TEMPLATE].text, &r->chat_template, &length, error);
    o->aliases = r->aliases;
    o->allow_hosts = r->hosts;
    o->cors_origins = r->origins;
    o->chat_template = r->chat_template;
    o->chat_template_length = length;
    return status;
}

static void print_ready(const server *s)
{
    const cli_engine *engine = &current->engine;
    const char *name = json_string_value(json_object_get(engine->card, "name"));
    char memory[160];
    cli_note("serving %s at %s: context %u, %lld conversations at a time; %s", name ? name : "the model", server_url(s),
             strata_engine_context(engine->engine),
             (long long)json_integer_value(json_object_get(json_object_get(engine->facts, "plan"), "sequences")),
             cli_engine_memory(engine, memory, sizeof memory));
}

static strata_status run_server(serve *r, strata_error *error)
{
    strata_session_free(r->engine.session); /* requests have sessions of their own */
    r->engine.session = NULL;
    json_t *plan = json_object_get(r->engine.facts, "plan");
    server_engine engine = {.model = r->engine.model, .engine = r->engine.engine,
                            .path = r->arguments->values[OPTION_MODEL].text,
                            .sessions = (uint32_t)json_integer_value(json_object_get(plan, "sequences"))};
    current = r;
    return server_run(r->server, &engine, print_ready, error);
}

strata_status cli_cmd_serve(const cli_arguments *arguments, strata_error *error)
{
    serve r = {.arguments = arguments};
    strata_status status = cli_need(arguments, OPTION_MODEL, error);
    if (status == STRATA_OK) status = take_options(&r, error);
    if (status == STRATA_OK) status = cli_open_model(arguments, &r.engine.model, error);
    if (status == STRATA_OK) status = server_open(&r.options, &r.server, error);
    if (status == STRATA_OK) status = cli_engine_open(&r.engine, arguments, 0, false, error);
    if (status == STRATA_OK) status = run_server(&r, error);
    server_close(r.server);
    cli_engine_close(&r.engine);
    free(r.aliases);
    free(r.hosts);
    free(r.origins);
    free(r.chat_template);
    return status;
}
