/* strata run: what a prompt becomes on its way into the model. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

static const char default_prompt[] = "Why is the sky blue?";

/* The prompt of -p, of standard input, or ours; *owned is for free(). */
static strata_status read_prompt(const cli_arguments *arguments, const char **text, size_t *length, char **owned,
                                 strata_error *error)
{
    const cli_value *prompt = &arguments->values[OPTION_PROMPT];
    *text = prompt->set ? prompt->text : default_prompt;
    *length = strlen(*text);
    if (prompt->set || isatty(STDIN_FILENO)) return STRATA_OK;
    size_t got = 0;
    strata_status status = cli_read("-", owned, &got, error);
    if (status != STRATA_OK) return status;
    while (got > 0 && ((*owned)[got - 1] == '\n' || (*owned)[got - 1] == '\r')) got--;
    if (got == 0) return STRATA_OK;
    *text = *owned;
    *length = got;
    return STRATA_OK;
}

/* The arguments of a chat template for a conversation that is this one question (free). */
static strata_status make_args(const char *prompt, size_t length, char **out, strata_error *error)
{
    json_t *content = json_stringn(prompt, length);
    if (!content)
        return cli_fail(error, STRATA_INPUT, NULL, "run: expected a prompt in UTF-8, found other bytes");
    json_t *args = json_pack("{s:[{s:s, s:o}], s:b}", "messages", "role", "user", "content", content,
                             "add_generation_prompt", 1);
    char *text = args ? json_dumps(args, JSON_COMPACT) : NULL;
    json_decref(args);
    if (!text) return cli_fail(error, STRATA_MEMORY, NULL, "run: no memory for the prompt");
    *out = text;
    return STRATA_OK;
}

typedef struct prepared {
    char *text;
    size_t length;
    strata_token *ids;
    size_t count;
} prepared;

/* Through the model's template. */
static strata_status prepare_chat(const strata_model *model, const char *prompt, size_t length, prepared *out,
                                  strata_error *error)
{
    strata_template *chat_template = NULL;
    char *args = NULL;
    strata_status status = strata_template_of_model(model, &chat_template, error);
    if (status == STRATA_OK) status = make_args(prompt, length, &args, error);
    if (status == STRATA_OK)
        status = strata_template_render(chat_template, args, strlen(args), NULL, &out->text, &out->length, error);
    if (status == STRATA_OK)
        status = strata_template_tokenize(chat_template, model, args, strlen(args), NULL, &out->ids, &out->count,
                                          error);
    free(args);
    strata_template_free(chat_template);
    return status;
}

/* A model without a template continues the text as it stands. */
static strata_status prepare_plain(const strata_model *model, const json_t *card, const char *prompt, size_t length,
                                   prepared *out, strata_error *error)
{
    bool bos = json_is_true(json_object_get(json_object_get(card, "tokenizer"), "adds_bos"));
    out->text = malloc(length + 1);
    if (!out->text) return cli_fail(error, STRATA_MEMORY, NULL, "run: no memory for the prompt");
    memcpy(out->text, prompt, length);
    out->length = length;
    return strata_tokenize(model, prompt, length, STRATA_TOKENIZE_PLAIN | (bos ? STRATA_TOKENIZE_BOS : 0u), &out->ids,
                           &out->count, error);
}

/* Line by line, because what is no newline among the control characters is not for the terminal. */
static void print_lines(const char *text, size_t length)
{
    const char *end = text + length;
    while (text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t line = newline ? (size_t)(newline - text) : (size_t)(end - text);
        cli_print_text(text, line);
        putchar('\n');
        text = newline ? newline + 1 : end;
    }
}

static strata_status print_prepared(const cli_style *style, const prepared *made, strata_error *error)
{
    char title[64];
    putchar('\n');
    cli_print_bold(style, "prompt");
    putchar('\n');
    print_lines(made->text, made->length);
    putchar('\n');
    snprintf(title, sizeof title, "%zu tokens", made->count);
    cli_print_bold(style, title);
    putchar('\n');
    return cli_print_ids(made->ids, made->count, false, error);
}

strata_status cli_cmd_run(const cli_arguments *arguments, strata_error *error)
{
    strata_model *model = NULL;
    json_t *card = NULL;
    prepared made = {0};
    const char *prompt = NULL;
    char *owned = NULL;
    size_t length = 0;
    strata_status status = cli_open_model(arguments, &model, error);
    if (status == STRATA_OK) status = cli_describe(model, 0, &card, error);
    if (status == STRATA_OK) status = read_prompt(arguments, &prompt, &length, &owned, error);
    if (status != STRATA_OK) goto out;
    if (json_is_object(json_object_get(card, "chat_template")))
        status = prepare_chat(model, prompt, length, &made, error);
    else
        status = prepare_plain(model, card, prompt, length, &made, error);
    if (status != STRATA_OK) goto out;
    cli_style style = cli_style_of_stdout(arguments);
    cli_print_card(card, &style);
    status = print_prepared(&style, &made, error);
    if (status == STRATA_OK) cli_note("this version does not generate yet: above is what the model would be given");
out:
    free(owned);
    strata_free(made.text);
    strata_free(made.ids);
    json_decref(card);
    strata_model_close(model);
    return status;
}
