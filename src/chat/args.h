/* The arguments of a rendering: JSON → values, with the marks of what is foreign. */
#ifndef ST_CHAT_ARGS_H
#define ST_CHAT_ARGS_H

#include "chat/ast.h"

/* Gives the members of `args` to the machine's program as variables. */
bool st_jinja_set_args(jinja_machine *machine, const json_t *args);

#endif
