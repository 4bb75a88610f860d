#include "prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "reasoning.h"

/* ---- the template ---------------------------------------------------------------------------------------------- */

/* The template's arguments as text (free); NULL: no memory, or text that is not UTF-8. */
static char *arguments_text(const server_chat *chat, const json_t *arguments)
{
    json_t *all = json_copy((json_t *)(uintptr_t)arguments);
    bool whole = all != NULL;
    if (chat->bos && !json_object_get(all, "bos_token"))
        whole = whole && json_object_set_new(all, "bos_token", json_string(chat->bos)) == 0;
    if (chat->eos && !json_object_get(all, "eos_token"))
        whole = whole && json_object_set_new(all, "eos_token", json_string(chat->eos)) == 0;
    char *text = whole ? json_dumps(all, JSON_COMPACT) : NULL;
    json_decref(all);
    return text;
}

static char *render_for_marks(void *context, const json_t *arguments)
{
    const server_chat *chat = context;
    char *text = arguments_text(chat, arguments), *out = NULL;
    size_t length;
    if (!text) return NULL;
    if (strata_template_render(chat->chat_template, text, strlen(text), NULL, &out, &length, NULL) != STRATA_OK)
        out = NULL;
    free(text);
    return out;
}

static char *token_text(const json_t *card, const char *name)
{
    const char *text = json_string_value(server_field(json_object_get(card, "tokenizer"), name));
    return text ? server_copy(text, strlen(text)) : NULL;
}

strata_status server_chat_open(server *s, strata_error *error)
{
    server_chat *chat = &s->chat;
    const char *source = s->options.chat_template;
    strata_status status = STRATA_OK;
    if (source) {
        status = strata_template_new(source, s->options.chat_template_length, &chat->chat_template, error);
        chat->bos = token_text(s->card_json, "bos.text");
        chat->eos = token_text(s->card_json, "eos.text");
    } else if (json_is_object(json_object_get(s->card_json, "chat_template"))) {
        status = strata_template_of_model(s->engine.model, &chat->chat_template, error);
    }
    if (status == STRATA_OK && chat->chat_template) server_reasoning_find(render_for_marks, chat, &chat->marks);
    return status;
}

void server_chat_close(server_chat *chat)
{
    strata_template_free(chat->chat_template);
    free(chat->bos);
    free(chat->eos);
    *chat = (server_chat){0};
}

/* ---- rendering ------------------------------------------------------------------------------------------------- */

/* A rendered prompt: strata_free(text), free(arguments). */
typedef struct rendering {
    char *arguments, *text;
    size_t length;
} rendering;

static void rendering_free(rendering *r)
{
    free(r->arguments);
    strata_free(r->text);
    *r = (rendering){0};
}

static char *arguments_of(const server_task *task, json_t *messages, bool answer)
{
    json_t *all = task->arguments ? json_copy(task->arguments) : json_object();
    bool whole = all && json_object_set(all, "messages", messages) == 0 &&
                 json_object_set_new(all, "add_generation_prompt", json_boolean(answer)) == 0 &&
                 (!task->tools || json_object_set(all, "tools", task->tools) == 0);
    char *text = whole ? arguments_text(&task->server->chat, all) : NULL;
    json_decref(all);
    return text;
}

static strata_status render(const server_task *task, json_t *messages, bool answer, rendering *out, strata_error *error)
{
    rendering made = {.arguments = arguments_of(task, messages, answer)};
    if (!made.arguments) return server_error(error, STRATA_MEMORY, NULL, "no memory for the prompt");
    strata_status status = strata_template_render(task->server->chat.chat_template, made.arguments,
                                                  strlen(made.arguments), NULL, &made.text, &made.length, error);
    if (status == STRATA_OK) *out = made;
    else rendering_free(&made);
    return status;
}

/* ---- where system messages go ---------------------------------------------------------------------------------- */

static bool is_role(const json_t *message, const char *role)
{
    const char *found = json_string_value(json_object_get(message, "role"));
    return found && strcmp(found, role) == 0;
}

static const char *content_of(const json_t *message)
{
    const char *text = json_string_value(json_object_get(message, "content"));
    return text ? text : "";
}

/* Whether the text of every system message is in the rendering: some templates drop later ones silently. */
static bool has_systems(const json_t *messages, const char *text)
{
    size_t i;
    json_t *message;
    json_array_foreach(messages, i, message) {
        const char *content = content_of(message);
        content += strspn(content, " \r\n\t");
        size_t length = strlen(content);
        while (length > 0 && strchr(" \r\n\t", content[length - 1])) length--;
        if (is_role(message, "system") && length && !memmem(text, strlen(text), content, length)) return false;
    }
    return true;
}

/* A copy of a message with text before or behind its own. */
static json_t *with_text(json_t *message, const char *before, const char *behind)
{
    json_t *copy = json_copy(message), *content = NULL;
    server_buf text = {0};
    const char *parts[] = {before, content_of(message), behind};
    for (size_t i = 0; i < 3; i++) {
        if (text.length && *parts[i]) server_buf_text(&text, "\n\n");
        server_buf_text(&text, parts[i]);
    }
    if (!text.failed) content = json_stringn(text.data ? text.data : "", text.length);
    server_buf_free(&text);
    if (content && json_object_set_new(copy, "content", content) == 0) return copy;
    json_decref(copy);
    return NULL;
}

/* Puts system messages into the user message behind them, or into the last one. `first`: also the first message. */
static json_t *without_systems(const json_t *messages, bool first)
{
    json_t *out = json_array(), *message;
    server_buf waiting = {0};
    size_t i, last_user = SIZE_MAX;
    bool whole = out != NULL;
    json_array_foreach(messages, i, message) {
        if (is_role(message, "system") && (i > 0 || first)) {
            if (waiting.length) server_buf_text(&waiting, "\n\n");
            server_buf_text(&waiting, content_of(message));
            continue;
        }
        bool user = is_role(message, "user");
        json_t *next = user && waiting.length ? with_text(message, waiting.data, "") : json_incref(message);
        if (user) waiting.length = 0;
        whole = whole && json_array_append_new(out, next) == 0;
        if (user) last_user = json_array_size(out) - 1;
    }
    if (waiting.length && last_user != SIZE_MAX)
        whole = whole && json_array_set_new(out, last_user,
                                            with_text(json_array_get(out, last_user), "", waiting.data)) == 0;
    else if (waiting.length)
        whole = whole && json_array_append_new(out, json_pack("{s:s, s:s}", "role", "user", "content",
                                                              waiting.data)) == 0;
    whole = whole && !waiting.failed;
    server_buf_free(&waiting);
    if (whole) return out;
    json_decref(out);
    return NULL;
}

/* Renders the messages, with system messages where the template takes them; *used are the messages as rendered. */
static strata_status render_placed(server_task *task, json_t *messages, rendering *out, json_t **used,
                                   strata_error *error)
{
    strata_error first_error = {0};
    strata_status first = STRATA_OK;
    rendering kept = {0};
    json_t *kept_messages = NULL;
    for (int attempt = 0; attempt < 3; attempt++) {
        json_t *placed = attempt == 0 ? json_incref(messages) : without_systems(messages, attempt == 2);
        rendering made = {0};
        strata_error problem = {0};
        strata_status status = placed ? render(task, placed, true, &made, &problem)
                                      : server_error(&problem, STRATA_MEMORY, NULL, "no memory for the prompt");
        if (attempt == 0) {
            first = status;
            first_error = problem;
        }
        bool complete = status == STRATA_OK && has_systems(messages, made.text);
        if (status == STRATA_OK && (complete || !kept.text)) {
            rendering_free(&kept);
            json_decref(kept_messages);
            kept = made;
            kept_messages = placed;
        } else {
            rendering_free(&made);
            json_decref(placed);
        }
        if (complete || (status != STRATA_OK && status != STRATA_TEMPLATE)) break;
    }
    if (kept.text) {
        *out = kept;
        *used = kept_messages;
        return STRATA_OK;
    }
    if (error) *error = first_error;
    return first;
}

/* ---- marks ----------------------------------------------------------------------------------------------------- */

static void add_mark(server_prompt *prompt, size_t position)
{
    size_t last = prompt->mark_count ? prompt->marks[prompt->mark_count - 1] : 0;
    if (position > last && position < prompt->count && prompt->mark_count < PROMPT_MARKS_MAX)
        prompt->marks[prompt->mark_count++] = position;
}

/* The end of the system prompt: where the prompt departs from one with an empty question. */
static void mark_system(const server_task *task, json_t *messages, server_prompt *prompt)
{
    json_t *first = json_array_get(messages, 0);
    if (!is_role(first, "system") && !task->tools) return;
    json_t *opening = json_array();
    if (is_role(first, "system")) json_array_append(opening, first);
    json_array_append_new(opening, json_pack("{s:s, s:s}", "role", "user", "content", ""));
    char *arguments = arguments_of(task, opening, false);
    strata_token *tokens = NULL;
    size_t count = 0, same = 0;
    strata_error ignored;
    if (arguments && strata_template_tokenize(task->server->chat.chat_template, task->server->engine.model, arguments,
                                              strlen(arguments), NULL, &tokens, &count, &ignored) == STRATA_OK)
        while (same < count && same < prompt->count && tokens[same] == prompt->tokens[same]) same++;
    add_mark(prompt, same);
    strata_free(tokens);
    free(arguments);
    json_decref(opening);
}

/* The text that the template adds for the answer; it begins behind the last message. */
static const char *answer_head(const server_task *task, json_t *messages, const rendering *whole)
{
    rendering bare = {0};
    strata_error ignored;
    size_t same = 0;
    if (render(task, messages, false, &bare, &ignored) == STRATA_OK)
        while (same < bare.length && same < whole->length && bare.text[same] == whole->text[same]) same++;
    bool ends = same > 0 && same == bare.length;
    rendering_free(&bare);
    return ends ? whole->text + same : NULL;
}

/* The end of the last message, where the next prompt departs if the template drops reasoning. */
static void mark_last(const server_task *task, const char *head, server_prompt *prompt)
{
    strata_token *tokens = NULL;
    size_t count = 0;
    const strata_model *model = task->server->engine.model;
    if (head && strata_tokenize(model, head, strlen(head), 0, &tokens, &count, NULL) == STRATA_OK &&
        count < prompt->count)
        add_mark(prompt, prompt->count - count);
    strata_free(tokens);
}

/* ---- making prompts -------------------------------------------------------------------------------------------- */

static server_prompt *add_prompt(server_task *task, server_fail *fail)
{
    server_prompt *grown = realloc(task->prompts, (task->prompt_count + 1) * sizeof *grown);
    if (!grown) {
        server_refuse(fail, FAULT_BUSY, NULL, "no memory for the prompt");
        return NULL;
    }
    task->prompts = grown;
    grown[task->prompt_count] = (server_prompt){0};
    return &grown[task->prompt_count++];
}

/* Appends the beginning of the answer that the client has written. */
static bool append_beginning(server_task *task, server_prompt *prompt, const char *text, server_fail *fail)
{
    strata_token *more = NULL, *joined = NULL;
    size_t count = 0;
    strata_error error;
    strata_status status =
        strata_tokenize(task->server->engine.model, text, strlen(text), STRATA_TOKENIZE_PLAIN, &more, &count, &error);
    if (status != STRATA_OK) return server_refuse_error(fail, &error);
    /* strata_free frees what malloc made. */
    joined = malloc((prompt->count + count + 1) * sizeof *joined);
    if (joined) {
        memcpy(joined, prompt->tokens, prompt->count * sizeof *joined);
        memcpy(joined + prompt->count, more, count * sizeof *joined);
        strata_free(prompt->tokens);
        prompt->tokens = joined;
        prompt->count += count;
        prompt->thinking = false;
    }
    strata_free(more);
    return joined || server_refuse(fail, FAULT_BUSY, NULL, "no memory for the prompt");
}

void server_prompt_explain(server_task *task, const server_prompt *prompt)
{
    enum { SHOWN = 8 };
    server *s = task->server;
    server_known_view view;
    size_t same, lengths[2];
    char *texts[2] = {NULL, NULL};
    server_known_hold(&s->known, &view);
    const strata_known *near = server_known_nearest(&view, prompt->tokens, prompt->count, &same);
    size_t shorter = near && near->count < prompt->count ? near->count : prompt->count;
    if (near && same < shorter && same * 2 >= shorter) {
        size_t old = near->count - same < SHOWN ? near->count - same : SHOWN;
        size_t new = prompt->count - same < SHOWN ? prompt->count - same : SHOWN;
        if (strata_detokenize(s->engine.model, near->tokens + same, old, &texts[0], &lengths[0], NULL) == STRATA_OK &&
            strata_detokenize(s->engine.model, prompt->tokens + same, new, &texts[1], &lengths[1], NULL) == STRATA_OK)
            server_log(s, "prefix: the prompt of %zu tokens leaves an earlier conversation at token %zu: it had "
                       "\"%.80s\", the prompt has \"%.80s\"", prompt->count, same, texts[0], texts[1]);
        server_count(&s->metrics.prefix_misses, 1);
    }
    server_known_release(&s->known, &view);
    strata_free(texts[0]);
    strata_free(texts[1]);
}

static bool tokenize(server_task *task, const rendering *r, server_prompt *prompt, server_fail *fail)
{
    server *s = task->server;
    server_known_view view;
    strata_error error;
    server_known_hold(&s->known, &view);
    strata_render_options options = {.known = view.known, .known_count = view.count};
    strata_status status = strata_template_tokenize(s->chat.chat_template, s->engine.model, r->arguments,
                                                    strlen(r->arguments), &options, &prompt->tokens, &prompt->count,
                                                    &error);
    server_known_release(&s->known, &view);
    return status == STRATA_OK || server_refuse_error(fail, &error);
}

/* An answer that the client has begun: the last message is the assistant's. Removes it from the messages. */
static char *take_beginning(json_t *messages)
{
    size_t count = json_array_size(messages);
    json_t *last = count ? json_array_get(messages, count - 1) : NULL;
    if (count < 2 || !is_role(last, "assistant") || json_object_get(last, "tool_calls")) return NULL;
    char *text = server_copy(content_of(last), strlen(content_of(last)));
    json_array_remove(messages, count - 1);
    return text;
}

bool server_prompt_chat(server_task *task, server_fail *fail)
{
    server *s = task->server;
    rendering r = {0};
    json_t *used = NULL;
    strata_error error;
    if (!s->chat.chat_template)
        return server_refuse(fail, FAULT_INVALID, "messages",
                             "the model has no chat template: use /v1/completions, or start the server with "
                             "--chat-template");
    char *beginning = take_beginning(task->messages);
    server_prompt *prompt = add_prompt(task, fail);
    bool good = prompt != NULL;
    if (good && render_placed(task, task->messages, &r, &used, &error) != STRATA_OK)
        good = server_refuse_error(fail, &error);
    good = good && tokenize(task, &r, prompt, fail);
    if (good) {
        const char *head = answer_head(task, used, &r);
        prompt->chat = true;
        prompt->thinking = head && server_reasoning_is_open(&s->chat.marks, head);
        mark_system(task, used, prompt);
        mark_last(task, head, prompt);
    }
    if (good && beginning && *beginning) good = append_beginning(task, prompt, beginning, fail);
    if (good) server_prompt_explain(task, prompt);
    free(beginning);
    json_decref(used);
    rendering_free(&r);
    return good;
}

bool server_prompt_text(server_task *task, const char *text, size_t length, server_fail *fail)
{
    strata_error error;
    server_prompt *prompt = add_prompt(task, fail);
    if (!prompt) return false;
    strata_status status = strata_tokenize(task->server->engine.model, text, length, STRATA_TOKENIZE_PROMPT,
                                           &prompt->tokens, &prompt->count, &error);
    if (status != STRATA_OK) return server_refuse_error(fail, &error);
    return prompt->count > 0 ||
           server_refuse(fail, FAULT_INVALID, "prompt", "prompt: expected a text of at least one token, found none");
}

bool server_prompt_ids(server_task *task, const json_t *ids, server_fail *fail)
{
    size_t vocab = (size_t)json_integer_value(server_field(task->server->card_json, "tokenizer.vocabulary_size"));
    server_prompt *prompt = add_prompt(task, fail);
    size_t i;
    json_t *id;
    if (!prompt) return false;
    if (json_array_size(ids) == 0)
        return server_refuse(fail, FAULT_INVALID, "prompt", "prompt: expected at least one token id, found none");
    prompt->tokens = malloc(json_array_size(ids) * sizeof *prompt->tokens);
    if (!prompt->tokens) return server_refuse(fail, FAULT_BUSY, NULL, "no memory for the prompt");
    json_array_foreach(ids, i, id) {
        json_int_t number = json_integer_value(id);
        if (!json_is_integer(id) || number < 0 || (uint64_t)number >= vocab)
            return server_refuse(fail, FAULT_INVALID, "prompt", "prompt[%zu]: expected a token id from 0 to %zu", i,
                                 vocab ? vocab - 1 : 0);
        prompt->tokens[prompt->count++] = (strata_token)number;
    }
    return true;
}

bool server_prompts_fit(const server_task *task, server_fail *fail)
{
    size_t context = strata_engine_context(task->server->engine.engine);
    for (size_t i = 0; i < task->prompt_count; i++)
        if (task->prompts[i].count > context)
            return server_refuse(fail, FAULT_CONTEXT, "messages",
                                 "prompt is too long: %zu tokens > %zu maximum: the request exceeds the available "
                                 "context size, this model's maximum context length is %zu tokens",
                                 task->prompts[i].count, context, context);
    return true;
}
