/* The arguments of a rendering: JSON → values, with foreign bytes marked. */
#ifndef ST_CHAT_ARGS_H
#define ST_CHAT_ARGS_H

#include "chat/ast.h"

/* Sets the members of `args` as variables of the machine's program. */
bool st_jinja_set_args(jinja_machine *machine, const json_t *args);

#endif
