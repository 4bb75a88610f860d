/* Values as text: Python's str() and repr(), JSON, and numbers. */
#ifndef ST_CHAT_FORMAT_H
#define ST_CHAT_FORMAT_H

#include "chat/text.h"

enum { JINJA_FLOAT_BYTES = 40 };

/* The shortest decimal that reads back the same, in Python's format. */
void st_jinja_format_float(double value, char out[JINJA_FLOAT_BYTES]);
/* Digits with underscores, a point and an exponent, surrounding white space allowed; inf and nan too. */
bool st_jinja_parse_float(st_str text, double *out);

/* What {{ value }} prints. */
bool st_jinja_add_value(jinja_builder *builder, jinja_value value);
bool st_jinja_add_repr(jinja_builder *builder, jinja_value value);
/* The same as a string; a string is itself. */
bool st_jinja_to_string(jinja_machine *machine, jinja_value value, const jinja_string **out);

typedef struct jinja_json_style {
    const jinja_string *indent; /* NULL: all on one line */
    const jinja_string *item_separator;
    const jinja_string *key_separator;
    bool ascii;
    bool sort_keys;
} jinja_json_style;

bool st_jinja_add_json(jinja_builder *builder, jinja_value value, const jinja_json_style *style);

/* Sorts in place, stable, by `keys` [count] (the items themselves where NULL). */
bool st_jinja_sort(jinja_machine *machine, jinja_value *items, jinja_value *keys, size_t count, bool reverse);

#endif
