/* Shared by the translators of OpenAI's APIs. */
#ifndef SERVER_OPENAI_H
#define SERVER_OPENAI_H

#include "core.h"

void openai_write_error(const server_fail *fail, server_buf *out);
void openai_write_failure(server_task *task, const server_fail *fail, server_buf *out);
void openai_write_keep_alive(server_task *task, server_buf *out);
/* The text of one token. */
void openai_write_token(server_task *task, strata_token token, server_buf *out);
void openai_write_number(double logprob, server_buf *out);
const char *openai_finish(server_finish finish);
/* Template arguments of the request: chat_template_kwargs, reasoning_effort, and what the API calls thinking. */
bool server_read_arguments(server_task *task, server_fail *fail);

#endif
