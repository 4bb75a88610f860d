/* A chat on a terminal: messages, answers, and branches of the conversation. */
#include "chat.h"

#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

/* ---- branches ---------------------------------------------------------------------------------------------------- */

cli_branch *cli_chat_branch(const cli_chat_state *c)
{
    return &c->branches[c->current];
}

strata_status cli_chat_add_branch(cli_chat_state *c, json_t *messages, strata_session *session, strata_error *error)
{
    cli_branch *grown = messages ? realloc(c->branches, (c->branch_count + 1) * sizeof *grown) : NULL;
    if (!grown) {
        json_decref(messages);
        strata_session_free(session);
        return cli_fail(error, STRATA_MEMORY, NULL, "run: no memory for the conversation");
    }
    c->branches = grown;
    c->branches[c->branch_count++] = (cli_branch){.messages = messages, .session = session};
    return STRATA_OK;
}

static void free_branches(cli_chat_state *c)
{
    for (size_t i = 0; i < c->branch_count; i++) {
        json_decref(c->branches[i].messages);
        strata_session_free(c->branches[i].session);
    }
    free(c->branches);
}

size_t cli_chat_count(const cli_branch *b)
{
    return json_array_size(b->messages) - (cli_chat_has_system(b->messages) ? 1 : 0);
}

static strata_status append_message(cli_branch *b, const char *role, const char *text, size_t length,
                                    strata_error *error)
{
    if (json_array_append_new(b->messages, cli_chat_message(role, text, length)) == 0) return STRATA_OK;
    return cli_fail(error, STRATA_INPUT, NULL, "run: the message is not valid UTF-8");
}

void cli_chat_remove_last(cli_branch *b)
{
    json_array_remove(b->messages, json_array_size(b->messages) - 1);
}

strata_status cli_chat_reset(cli_chat_state *c, strata_error *error)
{
    cli_branch *b = cli_chat_branch(c);
    json_array_clear(b->messages);
    return c->system ? append_message(b, "system", c->system, strlen(c->system), error) : STRATA_OK;
}

/* ---- a full context ---------------------------------------------------------------------------------------------- */

/* Removes the oldest message and its answer; false: only the last message is left. */
static bool drop_oldest(json_t *messages)
{
    size_t first = cli_chat_has_system(messages) ? 1 : 0;
    if (json_array_size(messages) < first + 3) return false;
    json_array_remove(messages, first);
    json_array_remove(messages, first);
    return true;
}

/* Drops the oldest messages until the prompt has at most `most` tokens, or none is left to drop. Keeps them all if even
 * the last message is too long for the context. */
static strata_status shorten(cli_chat_state *c, size_t most, cli_prompt *prompt, strata_error *error)
{
    cli_branch *b = cli_chat_branch(c);
    size_t context = strata_engine_context(c->talk->engine->engine), before = json_array_size(b->messages);
    json_t *left = json_copy(b->messages);
    cli_prompt made = {0};
    strata_status status = STRATA_OK;
    while (status == STRATA_OK && (!made.ids || made.count > most) && drop_oldest(left)) {
        strata_free(made.ids);
        made = (cli_prompt){0};
        status = cli_chat_prompt(c->talk->engine->model, c->chat_template, left, &made, error);
    }
    if (status == STRATA_OK && made.ids && made.count <= context) {
        cli_note("the context of %zu tokens is full: the oldest %zu messages were dropped", context,
                 before - json_array_size(left));
        json_decref(b->messages);
        b->messages = json_incref(left);
        strata_free(prompt->ids);
        *prompt = made;
    } else strata_free(made.ids);
    json_decref(left);
    return status;
}

/* The prompt for the last message. If the context has no room left for an answer, the oldest messages go until half of
 * it is free: the next messages then find their beginning in the cache. */
static strata_status make_prompt(cli_chat_state *c, cli_prompt *out, strata_error *error)
{
    cli_branch *b = cli_chat_branch(c);
    size_t context = strata_engine_context(c->talk->engine->engine);
    size_t answer = c->talk->generation.max_tokens, room = context / 8;
    size_t most = context - (answer && answer < room ? answer : room);
    strata_status status = cli_chat_prompt(c->talk->engine->model, c->chat_template, b->messages, out, error);
    return status == STRATA_OK && out->count > most ? shorten(c, context / 2, out, error) : status;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

strata_status cli_chat_answer(cli_chat_state *c, bool *answered, strata_error *error)
{
    cli_branch *b = cli_chat_branch(c);
    cli_prompt prompt = {0};
    cli_answer answer = {0};
    strata_status status = make_prompt(c, &prompt, error);
    if (status == STRATA_OK) status = cli_answer_prompt(c->talk, b->session, &prompt, &answer, error);
    bool keep = status == STRATA_OK && !(answer.interrupted && answer.length == 0);
    if (keep) status = append_message(b, "assistant", answer.text, answer.length, error);
    *answered = keep && status == STRATA_OK;
    strata_free(prompt.ids);
    free(answer.text);
    if (status != STRATA_LIMIT && status != STRATA_INPUT && status != STRATA_TEMPLATE) return status;
    cli_report(error); /* the chat goes on without this answer */
    return STRATA_OK;
}

/* Answers a message and keeps both in the history; if there is no answer, keeps neither. */
static strata_status answer_message(cli_chat_state *c, const char *text, size_t length, strata_error *error)
{
    bool answered = false;
    strata_status status = append_message(cli_chat_branch(c), "user", text, length, error);
    if (status == STRATA_INPUT) {
        cli_report(error);
        return STRATA_OK;
    }
    if (status == STRATA_OK) status = cli_chat_answer(c, &answered, error);
    if (answered) return status;
    cli_chat_remove_last(cli_chat_branch(c));
    if (status == STRATA_OK) cli_note("the message was dropped");
    return status;
}

/* ---- the chat ---------------------------------------------------------------------------------------------------- */

/* A message as it is typed. */
typedef struct draft {
    char *text; /* free; NULL: nothing yet */
    size_t length;
    bool quoted; /* between """ and """ */
} draft;

static bool append_line(draft *d, const char *line, size_t length)
{
    char *grown = realloc(d->text, d->length + length + 2);
    if (!grown) return false;
    if (d->text) grown[d->length++] = '\n';
    memcpy(grown + d->length, line, length);
    d->length += length;
    grown[d->length] = '\0';
    d->text = grown;
    return true;
}

/* Adds a line. *more: a backslash at its end, or an open """, continues the message. False: no memory. */
static bool take_line(draft *d, const char *line, bool *more)
{
    static const char quotes[] = "\"\"\"";
    enum { QUOTES = sizeof quotes - 1 };
    if (!d->text && !d->quoted && strncmp(line, quotes, QUOTES) == 0) {
        d->quoted = *more = true;
        line += QUOTES;
        if (!*line) return true;
    }
    size_t length = strlen(line);
    if (d->quoted) {
        *more = length < QUOTES || strcmp(line + length - QUOTES, quotes) != 0;
        if (!*more) length -= QUOTES;
        /* the closing quotes alone are no line of the message */
        return (!*more && length == 0 && d->text) || append_line(d, line, length);
    }
    *more = length > 0 && line[length - 1] == '\\';
    return append_line(d, line, *more ? length - 1 : length);
}

static bool has_messages(const cli_chat_state *c)
{
    for (size_t i = 0; i < c->branch_count; i++)
        if (cli_chat_count(&c->branches[i]) > 0) return true;
    return false;
}

/* A Ctrl-C that comes so soon after the prompt was meant for the answer, which has just ended. */
static const double LATE_SECONDS = 2.0;

/* Reads a message (free). Ctrl-C drops a half-typed one; on an empty line it is STRATA_INTERRUPTED, unless it comes
 * late for an answer and would lose the conversation. *text is NULL at the end of the input. */
static strata_status read_message(cli_chat_state *c, char **text, size_t *length, strata_error *error)
{
    draft d = {0};
    bool more = true, warned = !has_messages(c);
    double late_until = cli_now_seconds() + LATE_SECONDS;
    strata_status status = STRATA_OK;
    while (more && status == STRATA_OK) {
        cli_line_event event;
        const char *line = cli_line_read(c->line, d.text || d.quoted ? "… " : "> ", &event);
        if (event == CLI_LINE_END) break;
        if (event == CLI_LINE_CLEARED && (line || d.text || d.quoted)) {
            free(d.text);
            d = (draft){0};
        } else if (event == CLI_LINE_CLEARED && !warned && cli_now_seconds() < late_until) {
            cli_say("Ctrl-C again, Ctrl-D or /quit ends the chat");
            warned = true;
        } else if (event == CLI_LINE_CLEARED) {
            status = cli_fail(error, STRATA_INTERRUPTED, NULL, "the chat was interrupted");
        } else if (!take_line(&d, line, &more)) {
            status = cli_fail(error, STRATA_MEMORY, NULL, "run: no memory for a message");
        }
    }
    if (status != STRATA_OK) {
        free(d.text);
        return status;
    }
    *text = d.text;
    *length = d.length;
    return STRATA_OK;
}

static strata_status converse(cli_chat_state *c, strata_error *error)
{
    strata_status status = cli_chat_reset(c, error);
    while (status == STRATA_OK && !c->over) {
        char *text = NULL;
        size_t length = 0;
        status = read_message(c, &text, &length, error);
        if (status != STRATA_OK) break;
        if (!text) {
            c->over = true;
            fputc('\n', stderr);
        } else if (!cli_chat_command(c, text, &status, error) && strspn(text, " \t\n") < length) {
            status = answer_message(c, text, length, error);
        }
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
    cli_chat_state c = {.talk = talk, .chat_template = chat_template, .system = system ? strdup(system) : NULL};
    strata_status status = cli_chat_add_branch(&c, json_array(), talk->engine->session, error);
    talk->engine->session = NULL;
    /* Without a locale the terminal is still most likely a UTF-8 one. */
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
    if (status == STRATA_OK && system && !c.system)
        status = cli_fail(error, STRATA_MEMORY, NULL, "run: no memory for the system message");
    if (status == STRATA_OK)
        status = cli_line_open(stream, cli_style_of(talk->arguments, stream).color, &c.line, error);
    if (status == STRATA_OK) {
        greet(talk->engine);
        status = converse(&c, error);
    }
    cli_line_close(c.line);
    free_branches(&c);
    free(c.system);
    return status;
}
