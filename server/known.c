#include "known.h"

#include <stdlib.h>
#include <string.h>

struct known_sequence {
    unsigned references;
    size_t count;
    strata_token tokens[]; /* [count] */
};

void server_known_open(server_known *k)
{
    *k = (server_known){0};
    pthread_mutex_init(&k->lock, NULL);
}

static void release(known_sequence *s)
{
    if (--s->references == 0) free(s);
}

static void remove_at(server_known *k, size_t index)
{
    k->tokens -= k->sequences[index]->count;
    release(k->sequences[index]);
    memmove(k->sequences + index, k->sequences + index + 1, (k->count - index - 1) * sizeof *k->sequences);
    k->count--;
}

void server_known_close(server_known *k)
{
    while (k->count > 0) remove_at(k, k->count - 1);
    pthread_mutex_destroy(&k->lock);
}

static bool continues(const known_sequence *longer, const known_sequence *s)
{
    return longer->count >= s->count && memcmp(longer->tokens, s->tokens, s->count * sizeof *s->tokens) == 0;
}

void server_known_add(server_known *k, const strata_token *prompt, size_t prompt_count, const strata_token *answer,
                      size_t answer_count)
{
    size_t count = prompt_count + answer_count;
    if (count > LIMIT_KNOWN_TOKENS / 4) return;
    known_sequence *s = malloc(sizeof *s + count * sizeof *s->tokens);
    if (!s) return;
    s->references = 1;
    s->count = count;
    memcpy(s->tokens, prompt, prompt_count * sizeof *prompt);
    if (answer_count) memcpy(s->tokens + prompt_count, answer, answer_count * sizeof *answer);
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < k->count;)
        if (continues(s, k->sequences[i])) remove_at(k, i);
        else i++;
    while (k->count > 0 && (k->count == LIMIT_KNOWN_CONVERSATIONS || k->tokens + count > LIMIT_KNOWN_TOKENS))
        remove_at(k, 0);
    k->sequences[k->count++] = s;
    k->tokens += count;
    pthread_mutex_unlock(&k->lock);
}

void server_known_hold(server_known *k, server_known_view *view)
{
    pthread_mutex_lock(&k->lock);
    view->count = k->count;
    for (size_t i = 0; i < k->count; i++) {
        known_sequence *s = k->sequences[k->count - 1 - i];
        s->references++;
        view->sequences[i] = s;
        view->known[i] = (strata_known){.tokens = s->tokens, .count = s->count};
    }
    pthread_mutex_unlock(&k->lock);
}

void server_known_release(server_known *k, server_known_view *view)
{
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < view->count; i++) release(view->sequences[i]);
    pthread_mutex_unlock(&k->lock);
    view->count = 0;
}

const strata_known *server_known_nearest(const server_known_view *view, const strata_token *tokens, size_t count,
                                         size_t *same)
{
    const strata_known *nearest = NULL;
    *same = 0;
    for (size_t i = 0; i < view->count; i++) {
        const strata_known *k = &view->known[i];
        size_t shared = 0;
        while (shared < count && shared < k->count && k->tokens[shared] == tokens[shared]) shared++;
        if (shared <= *same) continue;
        *same = shared;
        nearest = k;
    }
    return nearest;
}
