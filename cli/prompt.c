/* Prompts: the messages of a conversation as token ids, and the positions where later prompts may branch off. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

json_t *cli_chat_message(const char *role, const char *text, size_t length)
{
    json_t *content = json_stringn(text ? text : "", length);
    return content ? json_pack("{s:s, s:o}", "role", role, "content", content) : NULL;
}

strata_status cli_chat_tokens(const strata_model *model, const strata_template *chat_template, json_t *messages,
                              bool answer, cli_prompt *out, strata_error *error)
{
    json_t *args = json_pack("{s:O, s:b}", "messages", messages, "add_generation_prompt", (int)answer);
    char *text = args ? json_dumps(args, JSON_COMPACT) : NULL;
    cli_prompt made = {0};
    json_decref(args);
    if (!text) return cli_fail(error, STRATA_MEMORY, NULL, "run: no memory for the conversation");
    strata_status status =
        strata_template_tokenize(chat_template, model, text, strlen(text), NULL, &made.ids, &made.count, error);
    free(text);
    if (status == STRATA_OK) *out = made;
    return status;
}

/* ---- marks ------------------------------------------------------------------------------------------------------- */

bool cli_chat_has_system(const json_t *messages)
{
    const char *role = json_string_value(json_object_get(json_array_get(messages, 0), "role"));
    return role && strcmp(role, "system") == 0;
}

/* Adds a mark where the prompt departs from the rendering of `messages` (decref). Without memory, or if the template
 * cannot render these messages, there is no mark, and the prompt runs all the same. */
static void add_mark(const strata_model *model, const strata_template *chat_template, json_t *messages,
                     cli_prompt *prompt)
{
    cli_prompt other = {0};
    size_t same = 0;
    strata_error ignored;
    if (messages && cli_chat_tokens(model, chat_template, messages, false, &other, &ignored) == STRATA_OK)
        while (same < prompt->count && same < other.count && prompt->ids[same] == other.ids[same]) same++;
    size_t last = prompt->mark_count ? prompt->marks[prompt->mark_count - 1] : 0;
    if (same > last && prompt->mark_count < CLI_MARKS_MAX) prompt->marks[prompt->mark_count++] = same;
    strata_free(other.ids);
    json_decref(messages);
}

/* The system message, and a user's message that says nothing: many templates need one. */
static json_t *opening_of(json_t *messages)
{
    json_t *opening = json_array();
    bool failed = cli_chat_has_system(messages) && json_array_append(opening, json_array_get(messages, 0)) != 0;
    if (!failed && json_array_append_new(opening, cli_chat_message("user", "", 0)) == 0) return opening;
    json_decref(opening);
    return NULL;
}

/* All messages but the last; NULL: none of them is a user's. */
static json_t *earlier_than_last(json_t *messages)
{
    size_t count = json_array_size(messages);
    if (count < (cli_chat_has_system(messages) ? 3u : 2u)) return NULL;
    json_t *earlier = json_copy(messages);
    json_array_remove(earlier, count - 1);
    return earlier;
}

strata_status cli_chat_prompt(const strata_model *model, const strata_template *chat_template, json_t *messages,
                              cli_prompt *out, strata_error *error)
{
    strata_status status = cli_chat_tokens(model, chat_template, messages, true, out, error);
    if (status != STRATA_OK) return status;
    add_mark(model, chat_template, opening_of(messages), out);
    add_mark(model, chat_template, earlier_than_last(messages), out);
    add_mark(model, chat_template, json_incref(messages), out);
    return STRATA_OK;
}
