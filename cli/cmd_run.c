/* strata run: a chat on a terminal, or the answer to one prompt. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

/* A run of the command: the prompt on its way to the model. */
typedef struct run {
    const cli_arguments *arguments;
    cli_engine engine;
    strata_template *chat_template; /* NULL: the model continues the prompt as text */
    char *text;                     /* the prompt read from a file; NULL: it was not */
    cli_prompt prompt;
} run;

static strata_status check_usage(const cli_arguments *arguments, strata_error *error)
{
    const cli_value *values = arguments->values;
    int sources = values[OPTION_PROMPT].set + values[OPTION_FILE].set + values[OPTION_IDS_FILE].set;
    if (sources > 1)
        return cli_fail(error, STRATA_USAGE,
                        values[OPTION_PROMPT].set && values[OPTION_FILE].set
                            ? "-p TEXT <FILE asks about the text of a file"
                            : NULL,
                        "run: expected one of --prompt, --file and --ids-file, found %d", sources);
    bool plain = values[OPTION_RAW].set || values[OPTION_IDS_FILE].set;
    if (values[OPTION_SYSTEM].set && plain)
        return cli_fail(error, STRATA_USAGE, "a system message needs the chat template",
                        "run: --system: expected no %s", values[OPTION_RAW].set ? "--raw" : "--ids-file");
    return STRATA_OK;
}

/* Takes the model's chat template where the prompt is a message. */
static strata_status choose_template(run *r, strata_error *error)
{
    const cli_value *values = r->arguments->values;
    bool has_template = json_is_object(json_object_get(r->engine.card, "chat_template"));
    if (values[OPTION_RAW].set || values[OPTION_IDS_FILE].set) return STRATA_OK;
    /* A model without a template can continue text, but it cannot take a system message. */
    if (!has_template && !values[OPTION_SYSTEM].set) return STRATA_OK;
    return strata_template_of_model(r->engine.model, &r->chat_template, error);
}

/* The newline at the end of a file is not part of the prompt. */
static size_t without_newlines(const char *text, size_t length, bool all)
{
    while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == '\r')) {
        bool pair = length > 1 && text[length - 1] == '\n' && text[length - 2] == '\r';
        length -= pair ? 2 : 1;
        if (!all) break;
    }
    return length;
}

/* A pipe or a file; a terminal and /dev/null have no input to read. */
static bool input_is_piped(void)
{
    struct stat status;
    return fstat(STDIN_FILENO, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISREG(status.st_mode));
}

/* Puts the prompt of -p and a blank line before the input in r->text. */
static strata_status put_before(run *r, const char *prompt, size_t *length, strata_error *error)
{
    size_t head = strlen(prompt) + 2;
    void *made = NULL;
    strata_status status = cli_allocate(head + *length + 1, 1, "the prompt", &made, error);
    if (status != STRATA_OK) return status;
    char *text = made;
    memcpy(text, prompt, head - 2);
    text[head - 2] = text[head - 1] = '\n';
    memcpy(text + head, r->text, *length);
    free(r->text);
    r->text = text;
    *length += head;
    return STRATA_OK;
}

/* The prompt of -p, of -f or of standard input; or that of -p, a blank line, and standard input. */
static strata_status read_prompt(run *r, const char **text, size_t *length, strata_error *error)
{
    const cli_value *prompt = &r->arguments->values[OPTION_PROMPT], *file = &r->arguments->values[OPTION_FILE];
    bool all = !r->arguments->values[OPTION_RAW].set;
    strata_status status = STRATA_OK;
    *length = 0;
    if (file->set || (prompt->set ? input_is_piped() : !isatty(STDIN_FILENO)))
        status = cli_read(file->set ? file->text : "-", &r->text, length, error);
    if (status != STRATA_OK) return status;
    *length = without_newlines(r->text, *length, all);
    if (prompt->set && *length == 0) {
        *text = prompt->text;
        *length = strlen(*text);
        return STRATA_OK;
    }
    if (*length == 0)
        return cli_fail(error, STRATA_USAGE, "give a prompt: -p TEXT, -f FILE or standard input",
                        "run: expected a prompt, found %s", file->set ? "an empty file" : "empty input");
    if (prompt->set) status = put_before(r, prompt->text, length, error);
    *text = r->text;
    return status;
}

static strata_status message_tokens(run *r, const char *text, size_t length, strata_error *error)
{
    const cli_value *system = &r->arguments->values[OPTION_SYSTEM];
    json_t *messages = json_array(), *first = NULL;
    strata_status status = STRATA_OK;
    if (system->set) first = cli_chat_message("system", system->text, strlen(system->text));
    if (system->set && json_array_append_new(messages, first) != 0)
        status = cli_fail(error, STRATA_INPUT, NULL, "run: --system: the text is not valid UTF-8");
    if (status == STRATA_OK && json_array_append_new(messages, cli_chat_message("user", text, length)) != 0)
        status = cli_fail(error, STRATA_INPUT, NULL, "run: the prompt is not valid UTF-8");
    if (status == STRATA_OK)
        status = cli_chat_tokens(r->engine.model, r->chat_template, messages, true, &r->prompt, error);
    json_decref(messages);
    return status;
}

static strata_status make_tokens(run *r, strata_error *error)
{
    const cli_value *values = r->arguments->values;
    const char *text = NULL;
    size_t length = 0;
    if (values[OPTION_IDS_FILE].set) {
        cli_ids list = {0};
        strata_status status = cli_read_ids(values[OPTION_IDS_FILE].text, &list, error);
        r->prompt = (cli_prompt){.ids = list.ids, .count = list.count};
        return status;
    }
    strata_status status = read_prompt(r, &text, &length, error);
    if (status != STRATA_OK) return status;
    if (r->chat_template) return message_tokens(r, text, length, error);
    /* Without --raw, special tokens in the text are plain text. */
    unsigned flags = STRATA_TOKENIZE_PROMPT | (values[OPTION_RAW].set ? 0u : STRATA_TOKENIZE_PLAIN);
    return strata_tokenize(r->engine.model, text, length, flags, &r->prompt.ids, &r->prompt.count, error);
}

static strata_status answer_once(run *r, cli_talk *talk, strata_error *error)
{
    cli_answer answer = {0};
    strata_status status = make_tokens(r, error);
    if (status == STRATA_OK) status = cli_engine_open(&r->engine, r->arguments, 0, false, error);
    if (status == STRATA_OK) status = cli_answer_prompt(talk, r->engine.session, &r->prompt, &answer, error);
    if (status == STRATA_OK && talk->json) status = cli_print_answer(talk, &answer, error);
    free(answer.text);
    if (status == STRATA_OK && answer.interrupted)
        status = cli_fail(error, STRATA_INTERRUPTED, NULL, "the answer was interrupted");
    return status;
}

/* The terminal for a chat's prompt: standard error first, as standard output may be a file. NULL: no terminal. */
static FILE *chat_stream(const cli_arguments *arguments)
{
    const cli_value *values = arguments->values;
    if (values[OPTION_PROMPT].set || values[OPTION_FILE].set || values[OPTION_IDS_FILE].set) return NULL;
    if (!isatty(STDIN_FILENO) || values[OPTION_JSON].set) return NULL;
    return isatty(STDERR_FILENO) ? stderr : isatty(STDOUT_FILENO) ? stdout : NULL;
}

static strata_status chat(run *r, cli_talk *talk, FILE *stream, strata_error *error)
{
    if (!r->chat_template)
        return cli_fail(error, STRATA_USAGE, "give a prompt: -p TEXT",
                        "run: expected a prompt, found none: %s",
                        r->arguments->values[OPTION_RAW].set ? "a chat cannot be --raw"
                                                             : "the model has no chat template");
    strata_status status = cli_engine_open(&r->engine, r->arguments, 0, false, error);
    if (status != STRATA_OK) return status;
    if (talk->stats == CLI_STATS_FULL) talk->stats = CLI_STATS_SHORT;
    return cli_chat(talk, r->chat_template, r->arguments->values[OPTION_SYSTEM].text, stream, error);
}

static strata_status print_profile(const run *r, strata_error *error)
{
    json_t *profile = NULL;
    strata_status status = cli_profile_read(&r->engine, &profile, error);
    if (status == STRATA_OK) cli_print_profile(stderr, profile, cli_simulates(r->arguments));
    json_decref(profile);
    return status;
}

strata_status cli_cmd_run(const cli_arguments *arguments, strata_error *error)
{
    run r = {.arguments = arguments};
    cli_talk talk = {.arguments = arguments};
    FILE *stream = chat_stream(arguments);
    strata_status status = check_usage(arguments, error);
    if (status == STRATA_OK) status = cli_talk_open(&talk, &r.engine, error);
    if (status == STRATA_OK) status = cli_open_model(arguments, &r.engine.model, error);
    if (status == STRATA_OK) status = cli_describe(r.engine.model, 0, &r.engine.card, error);
    if (status == STRATA_OK) status = choose_template(&r, error);
    if (status == STRATA_OK) status = stream ? chat(&r, &talk, stream, error) : answer_once(&r, &talk, error);
    if (status == STRATA_OK && arguments->values[OPTION_PROFILE].set) status = print_profile(&r, error);
    free(r.text);
    strata_free(r.prompt.ids);
    strata_template_free(r.chat_template);
    cli_talk_close(&talk);
    cli_engine_close(&r.engine);
    return status;
}
