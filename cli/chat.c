/* A chat on a terminal: messages, answers and a few commands. */
#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* ---- messages ---------------------------------------------------------------------------------------------------- */

json_t *cli_chat_message(const char *role, const char *text, size_t length)
{
    json_t *content = json_stringn(text ? text : "", length);
    return content ? json_pack("{s:s, s:o}", "role", role, "content", content) : NULL;
}

strata_status cli_chat_tokens(const cli_engine *engine, const strata_template *chat_template, json_t *messages,
                              strata_token **ids, size_t *count, strata_error *error)
{
    json_t *args = json_pack("{s:O, s:b}", "messages", messages, "add_generation_prompt", 1);
    char *text = args ? json_dumps(args, JSON_COMPACT) : NULL;
    json_decref(args);
    if (!text) return cli_fail(error, STRATA_MEMORY, NULL, "run: no memory for the conversation");
    strata_status status =
        strata_template_tokenize(chat_template, engine->model, text, strlen(text), NULL, ids, count, error);
    free(text);
    return status;
}

/* ---- the chat ---------------------------------------------------------------------------------------------------- */

typedef struct chat {
    cli_talk *talk;
    const strata_template *chat_template;
    const char *system; /* NULL: none */
    json_t *messages;
    cli_line *line;
    bool over;
} chat;

typedef struct chat_command {
    const char *name;
    const char *summary;
    strata_status (*function)(chat *c, strata_error *error);
} chat_command;

static strata_status append_message(chat *c, const char *role, const char *text, size_t length, strata_error *error)
{
    if (json_array_append_new(c->messages, cli_chat_message(role, text, length)) == 0) return STRATA_OK;
    return cli_fail(error, STRATA_INPUT, NULL, "run: the message is not valid UTF-8");
}

static strata_status command_help(chat *c, strata_error *error);

static strata_status command_reset(chat *c, strata_error *error)
{
    json_array_clear(c->messages);
    return c->system ? append_message(c, "system", c->system, strlen(c->system), error) : STRATA_OK;
}

static strata_status command_quit(chat *c, strata_error *error)
{
    (void)error;
    c->over = true;
    return STRATA_OK;
}

static const chat_command commands[] = {
    {"/help", "show this list", command_help},
    {"/reset", "start a new conversation", command_reset},
    {"/quit", "end the chat (also Ctrl-D)", command_quit},
};

static strata_status command_help(chat *c, strata_error *error)
{
    (void)c;
    (void)error;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(stderr, "  %-8s %s\n", commands[i].name, commands[i].summary);
    fputs("  Ctrl-C   stop the answer; at the prompt: end the chat\n"
          "  \\        at the end of a line: continue the message in the next line\n", stderr);
    return STRATA_OK;
}

/* A slash and one word of letters are a command; other lines with a slash (a path, a fraction) are messages. */
static bool is_command(const char *line)
{
    size_t letters = strspn(line + (line[0] == '/'), "abcdefghijklmnopqrstuvwxyz");
    size_t rest = 1 + letters;
    return line[0] == '/' && letters > 0 && line[rest + strspn(line + rest, " ")] == '\0';
}

static strata_status run_command(chat *c, const char *line, strata_error *error)
{
    size_t length = strcspn(line, " ");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strlen(commands[i].name) == length && memcmp(commands[i].name, line, length) == 0)
            return commands[i].function(c, error);
    cli_note("unknown command %.*s: /help lists the commands", (int)length, line);
    return STRATA_OK;
}

/* Answers a message and keeps both in the history; if there is no answer, keeps neither. */
static strata_status answer_message(chat *c, const char *text, size_t length, strata_error *error)
{
    strata_token *ids = NULL;
    size_t count = 0, before = json_array_size(c->messages);
    cli_answer answer = {0};
    strata_status status = append_message(c, "user", text, length, error);
    if (status == STRATA_OK)
        status = cli_chat_tokens(c->talk->engine, c->chat_template, c->messages, &ids, &count, error);
    if (status == STRATA_OK) status = cli_answer_prompt(c->talk, ids, count, &answer, error);
    bool no_answer = status != STRATA_OK || (answer.interrupted && answer.length == 0);
    if (no_answer && json_array_size(c->messages) > before) json_array_remove(c->messages, before);
    if (!no_answer) status = append_message(c, "assistant", answer.text, answer.length, error);
    strata_free(ids);
    free(answer.text);
    if (status != STRATA_LIMIT && status != STRATA_INPUT && status != STRATA_TEMPLATE) return status;
    cli_report(error); /* the chat goes on without this message */
    if (status == STRATA_LIMIT) cli_note("/reset starts a new conversation");
    return STRATA_OK;
}

/* Reads a message (free): a backslash at the end of a line continues it. *text is NULL at the end of the input. */
static strata_status read_message(chat *c, char **text, size_t *length, strata_error *error)
{
    char *made = NULL;
    size_t used = 0;
    for (;;) {
        const char *line = cli_line_read(c->line, made ? "… " : "> ");
        if (!line) break;
        size_t size = strlen(line);
        char *grown = realloc(made, used + size + 1);
        if (!grown) {
            free(made);
            return cli_fail(error, STRATA_MEMORY, NULL, "run: no memory for a message");
        }
        made = grown;
        memcpy(made + used, line, size + 1);
        used += size;
        if (used == 0 || made[used - 1] != '\\') break;
        made[used - 1] = '\n';
    }
    *text = made;
    *length = used;
    return STRATA_OK;
}

static strata_status converse(chat *c, strata_error *error)
{
    strata_status status = command_reset(c, error);
    while (status == STRATA_OK && !c->over) {
        char *text = NULL;
        size_t length = 0;
        status = read_message(c, &text, &length, error);
        if (status != STRATA_OK) break;
        if (!text) {
            c->over = true;
            fputc('\n', stderr);
        } else if (is_command(text)) status = run_command(c, text, error);
        else if (strspn(text, " \t\n") < length) status = answer_message(c, text, length, error);
        free(text);
    }
    return status;
}

static void greet(const cli_engine *engine)
{
    const char *name = json_string_value(json_object_get(engine->card, "name"));
    if (!name) name = json_string_value(json_object_get(engine->card, "architecture"));
    cli_note("%s, context of %u tokens. Ctrl-C stops an answer, /help lists commands.", name ? name : "a model",
             strata_engine_context(engine->engine));
}

strata_status cli_chat(cli_talk *talk, const strata_template *chat_template, const char *system, FILE *stream,
                       strata_error *error)
{
    chat c = {.talk = talk, .chat_template = chat_template, .system = system, .messages = json_array()};
    if (!c.messages) return cli_fail(error, STRATA_MEMORY, NULL, "run: no memory for the conversation");
    /* Without a locale the terminal is still most likely a UTF-8 one. */
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
    strata_status status = cli_line_open(stream, cli_style_of(talk->arguments, stream).color, &c.line, error);
    if (status == STRATA_OK) {
        greet(talk->engine);
        status = converse(&c, error);
    }
    cli_line_close(c.line);
    json_decref(c.messages);
    return status;
}
