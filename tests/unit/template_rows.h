/* Tables of templates with what they render to. The expected texts are Jinja2 3.1.6's, set up as transformers does. */
#ifndef TEST_UNIT_TEMPLATE_ROWS_H
#define TEST_UNIT_TEMPLATE_ROWS_H

#include "support/kit.h"

#include <stdio.h>
#include <string.h>

#include "chat/template.h"

enum { ROWS_NOW = 1794700800 /* 2026-11-15, UTC */ };

typedef struct template_row {
    const char *name;   /* NULL: the template is its own name */
    const char *source;
    const char *output; /* NULL: an error is expected */
    const char *error;  /* a part of its message */
} template_row;

static const char rows_args[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be kind.\"}, {\"role\": \"user\", \"content\": \"Hi <b>\"},"
    " {\"role\": \"assistant\", \"content\": \"Hello\"}], \"n\": 3, \"x\": 2.5, \"s\": \"  Straße Ünï  \", \"empty\": "
    "\"\","
    " \"none\": null, \"t\": true, \"f\": false, \"l\": [3, 1, 2], \"d\": {\"b\": 1, \"a\": {\"c\": [1, 2, {\"z\": "
    "null}]},"
    " \"B\": \"x\"}, \"words\": \"the quick brown fox\"}";

/* 1 when the row is right; prints what is wrong. */
static int check_row(const template_row *row, const json_t *args)
{
    st_template *made = NULL;
    st_rendering rendering = {0};
    strata_error error = {0};
    const char *name = row->name ? row->name : row->source;
    strata_status status = st_template_new(st_str_from(row->source), NULL, &made, &error);
    if (status == STRATA_OK) status = st_template_render(made, args, ROWS_NOW, &rendering, &error);
    int right;
    if (row->output) {
        st_str found = {rendering.text.data, rendering.text.length};
        right = status == STRATA_OK && st_str_is(found, row->output) && rendering.foreign.length == found.length;
        if (!right) {
            fprintf(stderr, "%s: expected \"%s\", found \"%.*s\" %s\n", name, row->output, ST_STR_ARG(found),
                    status == STRATA_OK ? "" : error.message);
        }
    } else {
        right = status == STRATA_TEMPLATE && strstr(error.message, row->error) != NULL;
        if (!right) fprintf(stderr, "%s: expected the error \"%s\", found \"%s\"\n", name, row->error, error.message);
    }
    st_rendering_free(&rendering);
    st_template_free(made);
    return right;
}

static void check_rows(const template_row *rows, size_t count)
{
    json_t *args = json_loads(rows_args, 0, NULL);
    assert_non_null(args);
    size_t right = 0;
    for (size_t i = 0; i < count; i++) right += (size_t)check_row(&rows[i], args);
    json_decref(args);
    assert_int_equal(right, count);
}

#endif
