#include "reasoning.h"

#include <stdio.h>
#include <string.h>

#define THOUGHT "Thoughtmark"
#define ANSWER "Answermark"

/* Marks that cannot be derived, because the template only removes them from old answers or opens them itself. */
static const server_marks rows[] = {
    {"<think>", "</think>"},
    {"<thinking>", "</thinking>"},
    {"<thought>", "</thought>"},
    {"<reasoning>", "</reasoning>"},
    {"<seed:think>", "</seed:think>"},
    {"[THINK]", "[/THINK]"},
    {"<|channel>thought", "<channel|>"},
    {"<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"},
    {"<|START_THINKING|>", "<|END_THINKING|>"},
    {"<|begin_of_thought|>", "<|end_of_thought|>"},
};

/* One question, and an answer unless it is NULL (decref). */
static json_t *arguments_of(const char *content, const char *thought)
{
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "Question");
    if (content) {
        json_t *answer = json_pack("{s:s, s:s}", "role", "assistant", "content", content);
        if (thought) {
            json_object_set_new(answer, "reasoning_content", json_string(thought));
            json_object_set_new(answer, "reasoning", json_string(thought));
            json_object_set_new(answer, "thinking", json_string(thought));
        }
        json_array_append_new(messages, answer);
    }
    return json_pack("{s:o, s:b}", "messages", messages, "add_generation_prompt", content == NULL);
}

static char *rendered(server_render *render, void *context, const char *content, const char *thought)
{
    json_t *arguments = arguments_of(content, thought);
    char *text = arguments ? render(context, arguments) : NULL;
    json_decref(arguments);
    return text;
}

/* Copies the bytes from `start` to `end` without white space around them; false: nothing is left, or too much. */
static bool copy_trimmed(const char *start, const char *end, char *out, size_t size)
{
    while (start < end && strchr(" \r\n\t", *start)) start++;
    while (end > start && strchr(" \r\n\t", end[-1])) end--;
    size_t length = (size_t)(end - start);
    if (length == 0 || length >= size) return false;
    memcpy(out, start, length);
    out[length] = '\0';
    return true;
}

/* The last tag before `end`: the template opens the reasoning in the prompt, too. */
static const char *last_tag(const char *start, const char *end)
{
    while (end > start && strchr(" \r\n\t", end[-1])) end--;
    if (end == start || !strchr(">]", end[-1])) return NULL;
    char opening = end[-1] == '>' ? '<' : '[';
    for (const char *at = end - 1; at > start; at--)
        if (*at == opening) return at;
    return NULL;
}

/* The template renders reasoning: the marks are the text around it. */
static bool derive(const char *with, const char *prompt, server_marks *out)
{
    const char *thought = strstr(with, THOUGHT), *answer = thought ? strstr(thought, ANSWER) : NULL;
    server_marks found = {0};
    if (!answer) return false;
    size_t same = 0;
    while (prompt[same] && with + same < thought && prompt[same] == with[same]) same++;
    const char *open = with + same;
    if (!copy_trimmed(open, thought, found.open, sizeof found.open)) {
        open = last_tag(with, thought);
        if (!open || !copy_trimmed(open, thought, found.open, sizeof found.open)) return false;
    }
    if (!copy_trimmed(thought + strlen(THOUGHT), answer, found.close, sizeof found.close)) return false;
    *out = found;
    return true;
}

/* The template removes what stands between these marks, or its prompt ends with the open mark. */
static bool matches(server_render *render, void *context, const server_marks *row, const char *prompt)
{
    char content[512];
    snprintf(content, sizeof content, "%s\n" THOUGHT "\n%s\n\n" ANSWER, row->open, row->close);
    char *text = rendered(render, context, content, NULL);
    bool found = text && strstr(text, ANSWER) && !strstr(text, THOUGHT);
    strata_free(text);
    return found || server_reasoning_is_open(row, prompt);
}

void server_reasoning_find(server_render *render, void *context, server_marks *out)
{
    *out = (server_marks){0};
    char *prompt = rendered(render, context, NULL, NULL), *with = rendered(render, context, ANSWER, THOUGHT);
    bool found = prompt && with && derive(with, prompt, out);
    for (size_t i = 0; prompt && !found && i < sizeof rows / sizeof *rows; i++) {
        found = matches(render, context, &rows[i], prompt);
        if (found) *out = rows[i];
    }
    strata_free(prompt);
    strata_free(with);
}

bool server_reasoning_is_open(const server_marks *marks, const char *text)
{
    const char *last = NULL;
    if (!marks->open[0]) return false;
    for (const char *at = strstr(text, marks->open); at; at = strstr(at + 1, marks->open)) last = at;
    return last && !strstr(last, marks->close);
}
