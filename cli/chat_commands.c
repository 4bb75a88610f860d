/* The commands of a chat: a table of words, and what they do to the conversation. */
#include "chat.h"

#include <stdlib.h>
#include <string.h>

/* ---- commands ---------------------------------------------------------------------------------------------------- */

typedef struct chat_command {
    const char *name;
    const char *also;     /* other spellings, separated by spaces; NULL: none */
    const char *argument; /* its name in the help; NULL: none */
    const char *summary;
    strata_status (*function)(cli_chat_state *c, const char *argument, strata_error *error);
} chat_command;

/* The last message of the user in one line: its first code points, control characters replaced by spaces. */
enum { EXCERPT_POINTS = 48, EXCERPT_BYTES = EXCERPT_POINTS * 4 + 4 };

static const char *excerpt_of(const cli_branch *b, char out[EXCERPT_BYTES])
{
    size_t size = json_array_size(b->messages), points = 0, used = 0;
    const json_t *last = cli_chat_count(b) >= 2 ? json_array_get(b->messages, size - 2) : NULL;
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

static strata_status command_undo(cli_chat_state *c, const char *argument, strata_error *error)
{
    cli_branch *b = cli_chat_branch(c);
    char excerpt[EXCERPT_BYTES];
    (void)argument;
    (void)error;
    if (cli_chat_count(b) < 2) {
        cli_say("/undo: there is no message to remove");
        return STRATA_OK;
    }
    cli_say("removed the last message and its answer: %s", excerpt_of(b, excerpt));
    cli_chat_remove_last(b);
    cli_chat_remove_last(b);
    return STRATA_OK;
}

/* Replaces the last answer. The random stream goes on, so that sampling gives another one. */
static strata_status command_retry(cli_chat_state *c, const char *argument, strata_error *error)
{
    cli_branch *b = cli_chat_branch(c);
    bool answered = false;
    (void)argument;
    if (cli_chat_count(b) < 2) {
        cli_say("/retry: there is no message to answer");
        return STRATA_OK;
    }
    json_t *before = json_incref(json_array_get(b->messages, json_array_size(b->messages) - 1));
    cli_chat_remove_last(b);
    strata_status status = cli_chat_answer(c, &answered, error);
    if (!answered && json_array_append(b->messages, before) == 0) cli_say("the last answer stays");
    json_decref(before);
    return status;
}

static strata_status command_fork(cli_chat_state *c, const char *argument, strata_error *error)
{
    cli_branch *b = cli_chat_branch(c);
    strata_session *session = NULL;
    (void)argument;
    strata_status status = strata_session_fork(b->session, &session, error);
    if (status == STRATA_OK) status = cli_chat_add_branch(c, json_copy(b->messages), session, error);
    if (status != STRATA_OK) {
        cli_report(error); /* the chat goes on in this branch */
        return STRATA_OK;
    }
    size_t from = c->current + 1;
    c->current = c->branch_count - 1;
    cli_say("branch %zu begins as a copy of branch %zu; /switch %zu goes back", c->current + 1, from, from);
    return STRATA_OK;
}

/* Tokens of a branch's messages; 0 also if the template cannot render them yet: some need a user's message. */
static size_t token_count(const cli_chat_state *c, const cli_branch *b)
{
    cli_prompt rendered = {0};
    strata_error ignored;
    if (json_array_size(b->messages) == 0) return 0;
    cli_chat_tokens(c->talk->engine->model, c->chat_template, b->messages, false, &rendered, &ignored);
    strata_free(rendered.ids);
    return rendered.count;
}

static strata_status command_branches(cli_chat_state *c, const char *argument, strata_error *error)
{
    char excerpt[EXCERPT_BYTES];
    (void)argument;
    (void)error;
    fprintf(stderr, "  branch  messages    tokens  last message\n");
    for (size_t i = 0; i < c->branch_count; i++) {
        const cli_branch *b = &c->branches[i];
        fprintf(stderr, "%c %6zu %9zu %9zu  %s\n", i == c->current ? '*' : ' ', i + 1, cli_chat_count(b),
                token_count(c, b), excerpt_of(b, excerpt));
    }
    return STRATA_OK;
}

static strata_status command_switch(cli_chat_state *c, const char *argument, strata_error *error)
{
    int64_t number;
    char excerpt[EXCERPT_BYTES];
    (void)error;
    if (!cli_parse_integer(argument, strlen(argument), 1, (int64_t)c->branch_count, &number)) {
        cli_say("/switch: expected a branch from 1 to %zu, found %s; /branches lists them", c->branch_count,
                 *argument ? argument : "none");
        return STRATA_OK;
    }
    c->current = (size_t)number - 1;
    cli_say("branch %zu, last message: %s", c->current + 1, excerpt_of(cli_chat_branch(c), excerpt));
    return STRATA_OK;
}

static strata_status command_reset(cli_chat_state *c, const char *argument, strata_error *error)
{
    (void)argument;
    strata_status status = cli_chat_reset(c, error);
    if (status == STRATA_OK) cli_say("a new conversation begins");
    return status;
}

/* Shows, sets or replaces the system message of this conversation and of new ones. */
static strata_status command_system(cli_chat_state *c, const char *argument, strata_error *error)
{
    json_t *messages = cli_chat_branch(c)->messages;
    if (!*argument) {
        cli_say("system message: %s", c->system ? c->system : "(none)");
        return STRATA_OK;
    }
    char *system = strdup(argument);
    json_t *message = cli_chat_message("system", argument, strlen(argument));
    if (!system || !message) {
        free(system);
        json_decref(message);
        return cli_fail(error, STRATA_MEMORY, NULL, "run: no memory for the system message");
    }
    free(c->system);
    c->system = system;
    bool replaces = cli_chat_has_system(messages);
    int set = replaces ? json_array_set_new(messages, 0, message) : json_array_insert_new(messages, 0, message);
    return set == 0 ? STRATA_OK : cli_fail(error, STRATA_MEMORY, NULL, "run: no memory for the system message");
}

/* Writes {"messages": […]}, which /load and strata template --args read. */
static strata_status save_messages(const char *path, const json_t *messages, strata_error *error)
{
    cli_output output;
    strata_status status = cli_output_open(path, &output, error);
    if (status != STRATA_OK) return status;
    json_t *root = json_pack("{s:O}", "messages", messages);
    bool written = root && json_dumpf(root, output.stream, JSON_INDENT(2)) == 0 && fputc('\n', output.stream) != EOF;
    json_decref(root);
    return cli_output_close(&output, written ? STRATA_OK : STRATA_RUNTIME, error);
}

enum { PATH_BYTES = 4096 };

/* A shell would replace ~/ by the home folder. */
static const char *path_of(const char *argument, char out[PATH_BYTES])
{
    const char *home = getenv("HOME");
    bool replaced = strncmp(argument, "~/", 2) == 0 && home && *home;
    snprintf(out, PATH_BYTES, "%s%s", replaced ? home : "", replaced ? argument + 1 : argument);
    return out;
}

static strata_status command_save(cli_chat_state *c, const char *argument, strata_error *error)
{
    const cli_branch *b = cli_chat_branch(c);
    char out[PATH_BYTES];
    if (!*argument) {
        cli_say("/save: expected a file, found none");
        return STRATA_OK;
    }
    const char *path = path_of(argument, out);
    error->message[0] = '\0';
    if (save_messages(path, b->messages, error) == STRATA_OK)
        cli_say("saved %zu messages in %s", cli_chat_count(b), path);
    else if (error->message[0]) cli_report(error);
    else cli_say("/save: cannot write %s", path);
    return STRATA_OK;
}

/* Whether the value is a list of {"role": text, "content": text}. */
static bool is_conversation(const json_t *messages)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        if (!json_is_string(json_object_get(message, "role")) || !json_is_string(json_object_get(message, "content")))
            return false;
    }
    return json_is_array(messages);
}

/* The conversation of a file (json_decref). */
static strata_status load_messages(const char *path, json_t **out, strata_error *error)
{
    char *text = NULL;
    size_t length = 0;
    json_t *root = NULL;
    strata_status status = cli_read(path, &text, &length, error);
    if (status == STRATA_OK) status = cli_parse_json(path, text, length, &root, error);
    json_t *messages = json_is_array(root) ? root : json_object_get(root, "messages");
    if (status == STRATA_OK && !is_conversation(messages))
        status = cli_fail(error, STRATA_INPUT, "/save FILE writes such a file",
                          "%s: expected {\"messages\": [{\"role\": …, \"content\": …}]}", path);
    if (status == STRATA_OK) *out = json_incref(messages);
    json_decref(root);
    free(text);
    return status;
}

static strata_status command_load(cli_chat_state *c, const char *argument, strata_error *error)
{
    cli_branch *b = cli_chat_branch(c);
    json_t *messages = NULL;
    char excerpt[EXCERPT_BYTES], path[PATH_BYTES];
    if (!*argument) {
        cli_say("/load: expected a file, found none");
        return STRATA_OK;
    }
    if (load_messages(path_of(argument, path), &messages, error) != STRATA_OK) {
        cli_report(error); /* the conversation stays */
        return STRATA_OK;
    }
    json_decref(b->messages);
    b->messages = messages;
    cli_say("loaded %zu messages, the last one: %s", cli_chat_count(b), excerpt_of(b, excerpt));
    return STRATA_OK;
}

static strata_status command_stats(cli_chat_state *c, const char *argument, strata_error *error)
{
    bool on = strcmp(argument, "on") == 0, off = strcmp(argument, "off") == 0;
    (void)error;
    if (!on && !off) cli_say("/stats: expected on (all statistics) or off, found %s", *argument ? argument : "none");
    else c->talk->stats = on ? CLI_STATS_FULL : CLI_STATS_OFF;
    return STRATA_OK;
}

static strata_status command_quit(cli_chat_state *c, const char *argument, strata_error *error)
{
    (void)argument;
    (void)error;
    c->over = true;
    return STRATA_OK;
}

static strata_status command_help(cli_chat_state *c, const char *argument, strata_error *error);

static const chat_command commands[] = {
    {"/help", "/?", NULL, "show this list", command_help},
    {"/retry", "/regen", NULL, "generate another answer to the last message", command_retry},
    {"/undo", NULL, NULL, "remove the last message and its answer", command_undo},
    {"/reset", "/clear", NULL, "start a new conversation in this branch", command_reset},
    {"/system", NULL, "TEXT", "set the system message; without TEXT, show it", command_system},
    {"/save", NULL, "FILE", "write the conversation to FILE, as JSON", command_save},
    {"/load", NULL, "FILE", "continue the conversation of FILE", command_load},
    {"/fork", NULL, NULL, "copy the conversation to a new branch and continue there", command_fork},
    {"/branches", NULL, NULL, "list the branches", command_branches},
    {"/switch", NULL, "N", "continue in branch N", command_switch},
    {"/stats", NULL, "on|off", "print all statistics after an answer, or none", command_stats},
    {"/quit", "/exit /bye", NULL, "end the chat", command_quit},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static strata_status command_help(cli_chat_state *c, const char *argument, strata_error *error)
{
    (void)c;
    (void)argument;
    (void)error;
    for (size_t i = 0; i < COMMANDS; i++) {
        const chat_command *row = &commands[i];
        char name[32];
        snprintf(name, sizeof name, "%s %s", row->name, row->argument ? row->argument : "");
        fprintf(stderr, "  %-14s %s", name, row->summary);
        if (row->also) fprintf(stderr, " (also %s)", row->also);
        fputc('\n', stderr);
    }
    fputs("  Ctrl-C         stop the answer; at the prompt: clear the line, or end the chat if it is empty\n"
          "  Ctrl-D         end the chat\n"
          "  \"\"\"            begins and ends a message of several lines; a pasted block is one message\n"
          "  \\              at the end of a line: continue the message in the next line\n", stderr);
    return STRATA_OK;
}

static const chat_command *find_command(const char *word, size_t length)
{
    for (size_t i = 0; i < COMMANDS; i++) {
        const chat_command *row = &commands[i];
        if (strlen(row->name) == length && memcmp(row->name, word, length) == 0) return row;
        if (row->also && cli_word_index(row->also, ' ', word, length) >= 0) return row;
    }
    return NULL;
}

bool cli_chat_command(cli_chat_state *c, char *text, strata_status *status, strata_error *error)
{
    size_t word = 1 + strspn(text + (text[0] == '/'), "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ?");
    if (text[0] != '/' || word == 1 || (text[word] && text[word] != ' ') || strchr(text, '\n')) return false;
    char *argument = text + word + strspn(text + word, " "), *end = argument + strlen(argument);
    while (end > argument && end[-1] == ' ') *--end = '\0';
    const chat_command *command = find_command(text, word);
    if (!command)
        cli_say("unknown command %.*s: /help lists the commands; a space before it makes it a message", (int)word,
                text);
    else if (*argument && !command->argument) cli_say("%s: expected no argument, found %s", command->name, argument);
    else *status = command->function(c, argument, error);
    return true;
}
