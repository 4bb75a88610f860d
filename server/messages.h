/* Messages of every API in the form that chat templates take: role, content as one string, reasoning_content,
 * tool_calls. Knows no template. */
#ifndef SERVER_MESSAGES_H
#define SERVER_MESSAGES_H

#include <jansson.h>

#include "fault.h"

/* OpenAI's and Ollama's (decref); NULL: refused. `path` names the field in errors. */
json_t *server_messages_openai(const json_t *messages, const char *path, server_fail *fail);
/* Anthropic's: `system` is a string, an array of blocks or NULL. */
json_t *server_messages_anthropic(const json_t *system, const json_t *messages, server_fail *fail);
/* The input of a Responses request: a string or an array of items; `instructions` may be NULL. */
json_t *server_messages_responses(const json_t *instructions, const json_t *input, server_fail *fail);

/* Tools as {"type": "function", "function": {name, description, parameters}}; others are left out. NULL: none, or
 * refused if fail->message is not empty. */
json_t *server_tools_openai(const json_t *tools, server_fail *fail);
json_t *server_tools_anthropic(const json_t *tools, server_fail *fail);

/* Removes what differs in every request and means nothing to the model: the billing header of some clients. */
json_t *server_text_without_nonces(const char *text, size_t length);

#endif
