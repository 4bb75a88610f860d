/* Fuzzes requests: the first byte chooses the API, the rest is the body. It becomes parameters and a prompt, or an error
 * whose body is JSON. */
#include "server_rig.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_error(const server_task *task, const server_fail *fail)
{
    server_buf out = {0};
    task->api->write_error(fail, &out);
    json_t *body = json_loadb(out.data, out.length, 0, NULL);
    if (!body || !json_object_get(body, "error") || !fail->message[0]) abort();
    json_decref(body);
    server_buf_free(&out);
}

/* The choices of a request stay within the table of limits. */
static void check_task(const server_task *task)
{
    const server_parameters *p = &task->parameters;
    if (task->prompt_count == 0 || task->choice_count > LIMIT_CHOICES || p->stop_count > LIMIT_STOPS) abort();
    for (size_t i = 0; i < task->prompt_count; i++)
        if (task->prompts[i].count == 0 || task->prompts[i].mark_count > PROMPT_MARKS_MAX) abort();
    if (!(p->temperature >= 0 && p->top_p >= 0 && p->top_p <= 1 && p->n >= 1)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 16384) return 0;
    server_task *task = rig_task(rig_apis[data[0] % RIG_APIS]);
    server_fail fail = {0};
    char *body = server_copy((const char *)data + 1, size - 1);
    task->body = server_body_parse(body, size - 1, &fail);
    bool good = task->body && server_fields_read(task->body, task->api->fields, &task->parameters, &fail) &&
                task->api->read(task, &fail) && server_task_choices(task, &fail);
    if (good) check_task(task);
    else check_error(task, &fail);
    rig_task_free(task);
    free(body);
    return 0;
}
