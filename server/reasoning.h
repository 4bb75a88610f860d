/* Finds out how a chat template marks reasoning: by rendering marked messages and comparing, or from a table of the
 * marks that models use. Knows no API. */
#ifndef SERVER_REASONING_H
#define SERVER_REASONING_H

#include <jansson.h>

#include "text.h"

/* Renders template arguments to text (free with strata_free); NULL: the template refuses them. */
typedef char *server_render(void *context, const json_t *arguments);

void server_reasoning_find(server_render *render, void *context, server_marks *out);

/* Whether this end of a prompt has opened the reasoning, so that the answer begins inside it. */
bool server_reasoning_is_open(const server_marks *marks, const char *text);

#endif
