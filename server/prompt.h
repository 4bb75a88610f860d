/* Prompts: messages rendered by the chat template and tokenised, with marks for restore points. Owns the template, its
 * marks of reasoning, where system messages go, and the ids that returned answers keep. Knows no API. */
#ifndef SERVER_PROMPT_H
#define SERVER_PROMPT_H

#include <jansson.h>

#include "fault.h"
#include "text.h"

struct server;
struct server_task;
struct server_prompt;

typedef struct server_chat {
    strata_template *chat_template; /* NULL: the model has none */
    char *bos, *eos; /* for a template from a file; NULL: none */
    server_marks marks;
} server_chat;

strata_status server_chat_open(struct server *s, strata_error *error);
void server_chat_close(server_chat *chat);

/* Renders the task's messages to its only prompt. */
bool server_prompt_chat(struct server_task *task, server_fail *fail);
/* Adds a prompt of plain text, in which special tokens are recognised, or of ids. */
bool server_prompt_text(struct server_task *task, const char *text, size_t length, server_fail *fail);
bool server_prompt_ids(struct server_task *task, const json_t *ids, server_fail *fail);
/* Every prompt must fit the context. */
bool server_prompts_fit(const struct server_task *task, server_fail *fail);

/* Logs where a prompt left the conversation that it shares most with. */
void server_prompt_explain(struct server_task *task, const struct server_prompt *prompt);

#endif
