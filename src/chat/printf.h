/* String formatting: `format % values`, format.format(…), and times. */
#ifndef ST_CHAT_PRINTF_H
#define ST_CHAT_PRINTF_H

#include "chat/native.h"
#include "chat/text.h"

/* `whole` is the right-hand side itself, for %(name)s. */
bool st_jinja_format_percent(jinja_machine *machine, const jinja_string *pattern, const jinja_arguments *arguments,
                             jinja_value whole, jinja_value *out);
bool st_jinja_format_braces(jinja_machine *machine, const jinja_string *pattern, const jinja_arguments *arguments,
                            jinja_value *out);
bool st_jinja_format_time(jinja_machine *machine, const jinja_string *pattern, int64_t seconds, jinja_value *out);

#endif
