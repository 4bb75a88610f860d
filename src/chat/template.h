/* Chat templates: a Jinja engine with limits on steps, depth and output. It marks the bytes of its output that came
 * from the arguments. Knows no tokenizer and no model.
 *
 * The language is Jinja2 3.1's as transformers sets it up: trim_blocks, lstrip_blocks, loop controls, the
 * `generation` tag rendering its body, tojson without ASCII escapes, raise_exception, strftime_now. */
#ifndef ST_CHAT_TEMPLATE_H
#define ST_CHAT_TEMPLATE_H

#include <jansson.h>

#include "base/buf.h"
#include "base/str.h"
#include "strata.h"

typedef struct st_template st_template;

typedef struct st_template_limits {
    size_t source_bytes_max;
    size_t steps_max;        /* evaluated nodes */
    size_t depth_max;        /* nesting of the source, of calls, and of printed values */
    size_t output_bytes_max; /* rendered text */
    size_t memory_bytes_max; /* memory of one rendering */
} st_template_limits;

extern const st_template_limits st_template_default_limits;

/* Compiles a template. A syntax error is STRATA_TEMPLATE with the line. `limits` NULL: the defaults. */
strata_status st_template_new(st_str source, const st_template_limits *limits, st_template **out, strata_error *error);
void st_template_free(st_template *chat_template);

/* The literal text and string constants of the template (escapes resolved), joined by newlines. */
st_str st_template_source(const st_template *chat_template);

/* The result of a rendering. Zero-initialise to create; st_rendering_free to destroy. */
typedef struct st_rendering {
    st_buf text;
    st_buf foreign; /* one byte for each of `text`: nonzero if it came from the arguments */
} st_rendering;

void st_rendering_free(st_rendering *rendering);

/* `args` is a JSON object; its members are the template's variables. Strings in it are foreign, except the values of
 * "bos_token" and "eos_token" at the top and of the "role" of an element of an array at the top (a message) when it
 * is of lower-case letters, digits and underscores. `now_seconds` is for strftime_now (UTC). *out is written on
 * success only. */
strata_status st_template_render(const st_template *chat_template, const json_t *args, int64_t now_seconds,
                                 st_rendering *out, strata_error *error);

/* Arguments from their text: one JSON object, last of equal keys wins, at most the default limit's depth. Invalid text
 * is STRATA_INPUT with line and column. The caller owns *out (json_decref). */
strata_status st_template_parse_args(const char *text, size_t length, json_t **out, strata_error *error);

#endif
