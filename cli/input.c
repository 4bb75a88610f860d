/* Input: files, standard input, JSON, and the model of -m. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* A longer prompt or template is a mistake, such as naming the model file. */
static const size_t input_limit_bytes = (size_t)256 << 20;

static strata_status read_stream(FILE *stream, const char *name, char **text, size_t *length, strata_error *error)
{
    enum { STEP = 1 << 16 };
    char *bytes = NULL;
    size_t used = 0, capacity = 0;
    strata_status status = STRATA_OK;
    while (status == STRATA_OK) {
        if (capacity - used < STEP) {
            size_t wanted = capacity ? capacity * 2 : STEP * 2;
            char *grown = realloc(bytes, wanted);
            if (!grown) {
                status = cli_fail(error, STRATA_MEMORY, NULL, "%s: no memory for %zu bytes", name, wanted);
                break;
            }
            bytes = grown;
            capacity = wanted;
        }
        size_t got = fread(bytes + used, 1, STEP, stream);
        used += got;
        if (used > input_limit_bytes)
            status = cli_fail(error, STRATA_LIMIT, NULL, "%s: the file is larger than %zu bytes", name,
                              input_limit_bytes);
        if (got < STEP) break;
    }
    if (status == STRATA_OK && ferror(stream))
        status = cli_fail(error, STRATA_INPUT, NULL, "%s: cannot read: %s", name, strerror(errno));
    if (status != STRATA_OK) {
        free(bytes);
        return status;
    }
    *text = bytes;
    *length = used;
    return STRATA_OK;
}

strata_status cli_read(const char *path, char **text, size_t *length, strata_error *error)
{
    if (strcmp(path, "-") == 0) return read_stream(stdin, "standard input", text, length, error);
    FILE *file = fopen(path, "rbe");
    if (!file)
        return cli_fail(error, STRATA_INPUT, errno == ENOENT ? "check the path" : NULL, "%s: cannot open: %s", path,
                        strerror(errno));
    strata_status status = read_stream(file, path, text, length, error);
    fclose(file);
    return status;
}

strata_status cli_parse_json(const char *where, const char *text, size_t length, json_t **out, strata_error *error)
{
    json_error_t problem;
    json_t *value = json_loadb(text, length, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &problem);
    if (value) {
        *out = value;
        return STRATA_OK;
    }
    if (json_error_code(&problem) == json_error_out_of_memory || !problem.text[0])
        return cli_fail(error, STRATA_MEMORY, NULL, "%s: no memory for %zu bytes of JSON", where, length);
    return cli_fail(error, STRATA_INPUT, NULL, "%s: expected JSON: column %d: %s", where, problem.column, problem.text);
}

strata_status cli_open_model(const cli_arguments *arguments, strata_model **out, strata_error *error)
{
    strata_status status = cli_need_model(arguments, error);
    if (status != STRATA_OK) return status;
    strata_model_options options = {.pre_tokenizer = arguments->values[OPTION_PRE_TOKENIZER].text};
    const char *path = arguments->values[OPTION_MODEL].text;
    status = strata_model_open(path, &options, out, error);
    if (status != STRATA_OK) cli_hint_missing(path, error);
    return status;
}
