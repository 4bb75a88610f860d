/* Chat templates: a Jinja engine for what models' templates use, with limits on steps, depth and output, that keeps
 * track of which bytes of its output came from the arguments. Knows no tokenizer and no model.
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
    size_t depth_max;        /* nesting of source, of calls, and of printed values */
    size_t output_bytes_max; /* rendered text */
    size_t memory_bytes_max; /* values alive during one rendering */
} st_template_limits;

extern const st_template_limits st_template_default_limits;

/* Compiles. A syntax error is STRATA_TEMPLATE with the line. `limits` NULL: the defaults. */
strata_status st_template_new(st_str source, const st_template_limits *limits, st_template **out, strata_error *error);
void st_template_free(st_template *chat_template);

/* The template's own literal text and string constants (escapes resolved), joined by newlines: what it may write. */
st_str st_template_source(const st_template *chat_template);

/* What a rendering gives. Zero-initialise; st_rendering_free to destroy. */
typedef struct st_rendering {
    st_buf text;
    st_buf foreign; /* a byte for each of text's: nonzero where it came from the arguments */
} st_rendering;

void st_rendering_free(st_rendering *rendering);

/* `args` is a JSON object; its members are the template's variables. Strings in it are foreign, except the values of
 * "bos_token" and "eos_token" at the top and of the "role" of an element of an array at the top (a message) when it is
 * of lower-case letters, digits and underscores. `now_seconds` is for strftime_now (UTC). On failure *out stays. */
strata_status st_template_render(const st_template *chat_template, const json_t *args, int64_t now_seconds,
                                 st_rendering *out, strata_error *error);

/* Arguments from their text: one JSON object, last of equal keys wins, at most the default limit's depth. Invalid text
 * is STRATA_INPUT with line and column. The caller owns *out (json_decref). */
strata_status st_template_parse_args(const char *text, size_t length, json_t **out, strata_error *error);

#endif
