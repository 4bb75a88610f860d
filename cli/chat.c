/* A chat on a terminal: messages, answers, branches of the conversation and the commands. */
#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* ---- branches ---------------------------------------------------------------------------------------------------- */

/* A conversation: its messages (the system message first, if there is one), and a session that has run them. */
typedef struct branch {
    json_t *messages;
    strata_session *session;
} branch;

typedef struct chat {
    cli_talk *talk;
    const strata_template *chat_template;
    const char *system; /* NULL: none */
    branch *branches;   /* [branch_count]; users count them from 1 */
    size_t branch_count, current;
    cli_line *line;
    bool over;
} chat;

static branch *current_branch(const chat *c)
{
    return &c->branches[c->current];
}

/* Adds a branch; takes both, and frees them if it fails. */
static strata_status add_branch(chat *c, json_t *messages, strata_session *session, strata_error *error)
{
    branch *grown = messages ? realloc(c->branches, (c->branch_count + 1) * sizeof *grown) : NULL;
    if (!grown) {
        json_decref(messages);
        strata_session_free(session);
        return cli_fail(error, STRATA_MEMORY, NULL, "run: no memory for the conversation");
    }
    c->branches = grown;
    c->branches[c->branch_count++] = (branch){.messages = messages, .session = session};
    return STRATA_OK;
}

static void free_branches(chat *c)
{
    for (size_t i = 0; i < c->branch_count; i++) {
        json_decref(c->branches[i].messages);
        strata_session_free(c->branches[i].session);
    }
    free(c->branches);
}

/* Messages of the user and answers. An answered message and its answer come and go together. */
static size_t message_count(const chat *c, const branch *b)
{
    return json_array_size(b->messages) - (c->system ? 1 : 0);
}

static strata_status append_message(branch *b, const char *role, const char *text, size_t length, strata_error *error)
{
    if (json_array_append_new(b->messages, cli_chat_message(role, text, length)) == 0) return STRATA_OK;
    return cli_fail(error, STRATA_INPUT, NULL, "run: the message is not valid UTF-8");
}

static void remove_last_message(branch *b)
{
    json_array_remove(b->messages, json_array_size(b->messages) - 1);
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

/* Answers the last message. `*answered` is false if there is no answer to keep: the prompt or the template failed, or
 * Ctrl-C came before the first text. */
static strata_status answer_last(chat *c, bool *answered, strata_error *error)
{
    branch *b = current_branch(c);
    cli_prompt prompt = {0};
    cli_answer answer = {0};
    strata_status status = cli_chat_prompt(c->talk->engine->model, c->chat_template, b->messages, &prompt, error);
    if (status == STRATA_OK) status = cli_answer_prompt(c->talk, b->session, &prompt, &answer, error);
    bool keep = status == STRATA_OK && !(answer.interrupted && answer.length == 0);
    if (keep) status = append_message(b, "assistant", answer.text, answer.length, error);
    *answered = keep && status == STRATA_OK;
    strata_free(prompt.ids);
    free(answer.text);
    if (status != STRATA_LIMIT && status != STRATA_INPUT && status != STRATA_TEMPLATE) return status;
    cli_report(error); /* the chat goes on without this answer */
    if (status == STRATA_LIMIT) cli_note("/undo removes the last exchange, /reset starts a new conversation");
    return STRATA_OK;
}

/* Answers a message and keeps both in the history; if there is no answer, keeps neither. */
static strata_status answer_message(chat *c, const char *text, size_t length, strata_error *error)
{
    bool answered = false;
    strata_status status = append_message(current_branch(c), "user", text, length, error);
    if (status == STRATA_INPUT) {
        cli_report(error);
        return STRATA_OK;
    }
    if (status == STRATA_OK) status = answer_last(c, &answered, error);
    if (!answered) remove_last_message(current_branch(c));
    return status;
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

typedef struct chat_command {
    const char *name;
    const char *argument; /* its name in the help; NULL: none */
    const char *summary;
    strata_status (*function)(chat *c, const char *argument, strata_error *error);
} chat_command;

/* The last message of the user in one line: its first code points, control characters replaced by spaces. */
enum { EXCERPT_POINTS = 48, EXCERPT_BYTES = EXCERPT_POINTS * 4 + 4 };

static const char *excerpt_of(const chat *c, const branch *b, char out[EXCERPT_BYTES])
{
    size_t size = json_array_size(b->messages), points = 0, used = 0;
    const json_t *last = message_count(c, b) >= 2 ? json_array_get(b->messages, size - 2) : NULL;
    const char *text = last ? json_string_value(json_object_get(last, "content")) : "(none)";
    for (; text && *text; text++) {
        unsigned char byte = (unsigned char)*text, next = (unsigned char)text[1];
        bool starts = (byte & 0xC0) != 0x80;
        if (starts && points++ == EXCERPT_POINTS) {
            memcpy(out + used, "…", sizeof "…" - 1);
            used += sizeof "…" - 1;
            break;
        }
        bool control = byte < 0x20 || byte == 0x7F || (byte == 0xC2 && next < 0xA0);
        out[used++] = control ? ' ' : *text;
        if (control && byte == 0xC2) text++;
    }
    out[used] = '\0';
    return out;
}

static strata_status command_undo(chat *c, const char *argument, strata_error *error)
{
    branch *b = current_branch(c);
    char excerpt[EXCERPT_BYTES];
    (void)argument;
    (void)error;
    if (message_count(c, b) < 2) {
        cli_note("/undo: there is no message to remove");
        return STRATA_OK;
    }
    cli_note("removed the last message and its answer: %s", excerpt_of(c, b, excerpt));
    remove_last_message(b);
    remove_last_message(b);
    return STRATA_OK;
}

/* Replaces the last answer. The random stream goes on, so that sampling gives another one. */
static strata_status command_retry(chat *c, const char *argument, strata_error *error)
{
    branch *b = current_branch(c);
    bool answered = false;
    (void)argument;
    if (message_count(c, b) < 2) {
        cli_note("/retry: there is no message to answer");
        return STRATA_OK;
    }
    json_t *before = json_incref(json_array_get(b->messages, json_array_size(b->messages) - 1));
    remove_last_message(b);
    strata_status status = answer_last(c, &answered, error);
    if (!answered && json_array_append(b->messages, before) == 0) cli_note("the last answer stays");
    json_decref(before);
    return status;
}

static strata_status command_fork(chat *c, const char *argument, strata_error *error)
{
    branch *b = current_branch(c);
    strata_session *session = NULL;
    (void)argument;
    strata_status status = strata_session_fork(b->session, &session, error);
    if (status == STRATA_OK) status = add_branch(c, json_copy(b->messages), session, error);
    if (status != STRATA_OK) {
        cli_report(error); /* the chat goes on in this branch */
        return STRATA_OK;
    }
    size_t from = c->current + 1;
    c->current = c->branch_count - 1;
    cli_note("branch %zu begins as a copy of branch %zu; /switch %zu goes back", c->current + 1, from, from);
    return STRATA_OK;
}

/* Tokens of a branch's messages; 0 also if the template cannot render them yet: some need a user's message. */
static size_t token_count(const chat *c, const branch *b)
{
    cli_prompt rendered = {0};
    strata_error ignored;
    if (json_array_size(b->messages) == 0) return 0;
    cli_chat_tokens(c->talk->engine->model, c->chat_template, b->messages, false, &rendered, &ignored);
    strata_free(rendered.ids);
    return rendered.count;
}

static strata_status command_branches(chat *c, const char *argument, strata_error *error)
{
    char excerpt[EXCERPT_BYTES];
    (void)argument;
    (void)error;
    fprintf(stderr, "  branch  messages    tokens  last message\n");
    for (size_t i = 0; i < c->branch_count; i++) {
        const branch *b = &c->branches[i];
        fprintf(stderr, "%c %6zu %9zu %9zu  %s\n", i == c->current ? '*' : ' ', i + 1, message_count(c, b),
                token_count(c, b), excerpt_of(c, b, excerpt));
    }
    return STRATA_OK;
}

static strata_status command_switch(chat *c, const char *argument, strata_error *error)
{
    int64_t number;
    char excerpt[EXCERPT_BYTES];
    (void)error;
    if (!cli_parse_integer(argument, strlen(argument), 1, (int64_t)c->branch_count, &number)) {
        cli_note("/switch: expected a branch from 1 to %zu, found %s; /branches lists them", c->branch_count,
                 *argument ? argument : "none");
        return STRATA_OK;
    }
    c->current = (size_t)number - 1;
    cli_note("branch %zu, last message: %s", c->current + 1, excerpt_of(c, current_branch(c), excerpt));
    return STRATA_OK;
}

static strata_status command_reset(chat *c, const char *argument, strata_error *error)
{
    branch *b = current_branch(c);
    (void)argument;
    json_array_clear(b->messages);
    return c->system ? append_message(b, "system", c->system, strlen(c->system), error) : STRATA_OK;
}

static strata_status command_quit(chat *c, const char *argument, strata_error *error)
{
    (void)argument;
    (void)error;
    c->over = true;
    return STRATA_OK;
}

static strata_status command_help(chat *c, const char *argument, strata_error *error);

static const chat_command commands[] = {
    {"/help", NULL, "show this list", command_help},
    {"/retry", NULL, "generate another answer to the last message", command_retry},
    {"/undo", NULL, "remove the last message and its answer", command_undo},
    {"/fork", NULL, "copy the conversation to a new branch and continue there", command_fork},
    {"/branches", NULL, "list the branches", command_branches},
    {"/switch", "N", "continue in branch N", command_switch},
    {"/reset", NULL, "start a new conversation in this branch", command_reset},
    {"/quit", NULL, "end the chat (also Ctrl-D)", command_quit},
};

static strata_status command_help(chat *c, const char *argument, strata_error *error)
{
    (void)c;
    (void)argument;
    (void)error;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s %s", commands[i].name, commands[i].argument ? commands[i].argument : "");
        fprintf(stderr, "  %-10s %s\n", name, commands[i].summary);
    }
    fputs("  Ctrl-C     stop the answer; at the prompt: end the chat\n"
          "  \\          at the end of a line: continue the message in the next line\n", stderr);
    return STRATA_OK;
}

/* A slash and one word of letters are a command, and so is a command that takes an argument, with any text behind it.
 * Other lines with a slash (a path, a fraction) are messages. `*word` is the length of the slash and the word. */
static bool is_command(const char *line, size_t *word, const chat_command **out)
{
    size_t letters = strspn(line + (line[0] == '/'), "abcdefghijklmnopqrstuvwxyz");
    *word = 1 + letters;
    *out = NULL;
    if (line[0] != '/' || letters == 0 || (line[*word] && line[*word] != ' ')) return false;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strlen(commands[i].name) == *word && memcmp(commands[i].name, line, *word) == 0) *out = &commands[i];
    bool alone = line[*word + strspn(line + *word, " ")] == '\0';
    return alone || (*out && (*out)->argument);
}

static strata_status run_command(chat *c, char *line, size_t word, const chat_command *command, strata_error *error)
{
    if (!command) {
        cli_note("unknown command %.*s: /help lists the commands", (int)word, line);
        return STRATA_OK;
    }
    char *argument = line + word + strspn(line + word, " "), *end = argument + strlen(argument);
    while (end > argument && end[-1] == ' ') *--end = '\0';
    return command->function(c, argument, error);
}

/* ---- the chat ---------------------------------------------------------------------------------------------------- */

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
    strata_status status = command_reset(c, "", error);
    while (status == STRATA_OK && !c->over) {
        char *text = NULL;
        size_t length = 0, word;
        const chat_command *command;
        status = read_message(c, &text, &length, error);
        if (status != STRATA_OK) break;
        if (!text) {
            c->over = true;
            fputc('\n', stderr);
        } else if (is_command(text, &word, &command)) status = run_command(c, text, word, command, error);
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
    chat c = {.talk = talk, .chat_template = chat_template, .system = system};
    strata_status status = add_branch(&c, json_array(), talk->engine->session, error);
    talk->engine->session = NULL;
    if (status != STRATA_OK) return status;
    /* Without a locale the terminal is still most likely a UTF-8 one. */
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
    status = cli_line_open(stream, cli_style_of(talk->arguments, stream).color, &c.line, error);
    if (status == STRATA_OK) {
        greet(talk->engine);
        status = converse(&c, error);
    }
    cli_line_close(c.line);
    free_branches(&c);
    return status;
}
