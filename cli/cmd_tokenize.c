/* strata tokenize and strata detokenize: text ↔ ids, for one text or for JSON lines. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* Exactly one source of the input must be given. */
static strata_status check_source(const cli_arguments *arguments, cli_option_id direct, strata_error *error)
{
    const cli_option_id sources[] = {direct, OPTION_FILE, OPTION_JSONL};
    size_t given = 0;
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) given += arguments->values[sources[i]].set;
    if (given == 1) return STRATA_OK;
    const char *hint = arguments->operand ? "the argument without a name is the model" : NULL;
    return cli_fail(error, STRATA_USAGE, hint, "%s: expected one of --%s, --file and --jsonl, found %zu",
                    cli_commands[arguments->command].name, cli_options[direct].name, given);
}

/* Converts one line of --jsonl; `where` names the line in errors. */
typedef strata_status line_function(const strata_model *model, const cli_arguments *arguments, const char *where,
                                    const char *line, size_t length, strata_error *error);

static strata_status each_line(const strata_model *model, const cli_arguments *arguments, line_function *answer,
                               strata_error *error)
{
    char *line = NULL, where[48];
    size_t capacity = 0, number = 0;
    ssize_t length;
    strata_status status = STRATA_OK;
    while (status == STRATA_OK && (length = getline(&line, &capacity, stdin)) >= 0) {
        snprintf(where, sizeof where, "line %zu", ++number);
        status = answer(model, arguments, where, line, (size_t)length, error);
    }
    if (status == STRATA_OK && !feof(stdin))
        status = cli_fail(error, STRATA_INPUT, NULL, "standard input: cannot read line %zu", number + 1);
    free(line);
    return status;
}

/* ---- text to ids ------------------------------------------------------------------------------------------------- */

static strata_status print_tokens_of(const strata_model *model, const cli_arguments *arguments, const char *text,
                                     size_t length, bool json, strata_error *error)
{
    strata_token *ids = NULL;
    size_t count = 0;
    unsigned flags = (arguments->values[OPTION_BOS].set ? STRATA_TOKENIZE_BOS : 0u) |
                     (arguments->values[OPTION_PLAIN].set ? STRATA_TOKENIZE_PLAIN : 0u);
    strata_status status = strata_tokenize(model, text, length, flags, &ids, &count, error);
    if (status == STRATA_OK) status = cli_print_ids(ids, count, json, error);
    strata_free(ids);
    return status;
}

static strata_status tokenize_line(const strata_model *model, const cli_arguments *arguments, const char *where,
                                   const char *line, size_t length, strata_error *error)
{
    json_t *text = NULL;
    strata_status status = cli_parse_json(where, line, length, &text, error);
    if (status != STRATA_OK) return status;
    if (json_is_string(text))
        status = print_tokens_of(model, arguments, json_string_value(text), json_string_length(text), true, error);
    else
        status = cli_fail(error, STRATA_INPUT, NULL, "%s: expected a JSON string, found another value", where);
    json_decref(text);
    return status;
}

strata_status cli_cmd_tokenize(const cli_arguments *arguments, strata_error *error)
{
    const cli_value *prompt = &arguments->values[OPTION_PROMPT], *file = &arguments->values[OPTION_FILE];
    bool json = arguments->values[OPTION_JSON].set;
    strata_model *model = NULL;
    char *text = NULL;
    size_t length = 0;
    strata_status status = check_source(arguments, OPTION_PROMPT, error);
    if (status == STRATA_OK) status = cli_open_model(arguments, &model, error);
    if (status == STRATA_OK && file->set) status = cli_read(file->text, &text, &length, error);
    if (status != STRATA_OK) goto out;
    if (arguments->values[OPTION_JSONL].set) status = each_line(model, arguments, tokenize_line, error);
    else if (file->set) status = print_tokens_of(model, arguments, text, length, json, error);
    else status = print_tokens_of(model, arguments, prompt->text, strlen(prompt->text), json, error);
out:
    free(text);
    strata_model_close(model);
    return status;
}

/* ---- ids to text ------------------------------------------------------------------------------------------------- */

static strata_status print_text_of(const strata_model *model, const cli_ids *list, bool json, strata_error *error)
{
    char *text = NULL;
    size_t length = 0;
    strata_status status = strata_detokenize(model, list->ids, list->count, &text, &length, error);
    if (status == STRATA_OK && json) {
        json_t *value = json_stringn(text, length);
        status = value ? cli_print_json(value, 0, error)
                       : cli_fail(error, STRATA_MEMORY, NULL, "no memory for %zu bytes of text", length);
        json_decref(value);
    } else if (status == STRATA_OK) {
        fwrite(text, 1, length, stdout);
    }
    strata_free(text);
    return status;
}

static strata_status detokenize_line(const strata_model *model, const cli_arguments *arguments, const char *where,
                                     const char *line, size_t length, strata_error *error)
{
    (void)arguments;
    cli_ids list = {0};
    strata_status status = cli_parse_id_array(where, STRATA_INPUT, line, length, &list, error);
    if (status == STRATA_OK) {
        status = print_text_of(model, &list, true, error);
        if (status == STRATA_INPUT) {
            strata_error inner = *error;
            cli_fail(error, status, inner.hint, "%s: %.700s", where, inner.message);
        }
    }
    free(list.ids);
    return status;
}

strata_status cli_cmd_detokenize(const cli_arguments *arguments, strata_error *error)
{
    const cli_value *given = &arguments->values[OPTION_ID_LIST], *file = &arguments->values[OPTION_FILE];
    cli_ids list = {0};
    strata_model *model = NULL;
    char *text = NULL;
    size_t length = 0;
    strata_status status = check_source(arguments, OPTION_ID_LIST, error);
    if (status == STRATA_OK && given->set)
        status = cli_parse_ids("--ids", STRATA_USAGE, given->text, strlen(given->text), &list, error);
    if (status == STRATA_OK) status = cli_open_model(arguments, &model, error);
    if (status == STRATA_OK && file->set) status = cli_read(file->text, &text, &length, error);
    if (status == STRATA_OK && file->set) status = cli_parse_ids(file->text, STRATA_INPUT, text, length, &list, error);
    if (status != STRATA_OK) goto out;
    if (arguments->values[OPTION_JSONL].set) status = each_line(model, arguments, detokenize_line, error);
    else status = print_text_of(model, &list, arguments->values[OPTION_JSON].set, error);
out:
    free(list.ids);
    free(text);
    strata_model_close(model);
    return status;
}
