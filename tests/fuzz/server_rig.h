/* A server without sockets or engine, and tasks on it, for the fuzz targets of the server. */
#ifndef FUZZ_SERVER_RIG_H
#define FUZZ_SERVER_RIG_H

#include <stdlib.h>
#include <string.h>

#include "server/core.h"

static const server_api *const rig_apis[] = {&server_api_chat, &server_api_completion, &server_api_response,
                                             &server_api_message, &server_api_count_tokens, &server_api_ollama_chat,
                                             &server_api_ollama_generate};
enum { RIG_APIS = sizeof rig_apis / sizeof *rig_apis };

/* A template with reasoning and tools, which refuses later system messages. */
static const char rig_template[] =
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

static server *rig_server(void)
{
    static server s;
    static strata_model *model;
    strata_error error;
    if (model) return &s;
    s.options.chat_template = rig_template;
    s.options.chat_template_length = sizeof rig_template - 1;
    if (strata_model_open("tests/data/kit/qwen2.gguf", NULL, &model, &error) != STRATA_OK) abort();
    s.engine = (server_engine){.model = model, .path = "qwen2.gguf", .sessions = 1};
    snprintf(s.model, sizeof s.model, "qwen2");
    if (strata_model_describe(model, 0, &s.card, NULL) != STRATA_OK) abort();
    s.card_json = json_loads(s.card, 0, NULL);
    server_known_open(&s.known);
    if (server_chat_open(&s, &error) != STRATA_OK || !s.chat.marks.open[0]) abort();
    return &s;
}

static server_task *rig_task(const server_api *api)
{
    server_task *task = calloc(1, sizeof *task);
    if (!task) abort();
    task->server = rig_server();
    task->api = api;
    snprintf(task->id, sizeof task->id, "%sfuzz", api->id_prefix);
    snprintf(task->model, sizeof task->model, "qwen2");
    pthread_mutex_init(&task->lock, NULL);
    pthread_mutex_init(&task->session_lock, NULL);
    server_parameters_default(&task->parameters);
    return task;
}

static void rig_task_free(server_task *task)
{
    server_task_clear(task);
    free(task);
}

#endif
