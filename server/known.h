/* Remembers the ids of recent conversations: prompt, sampled answer and end token. Owns a bounded list that all threads
 * share. Knows no text and no API. */
#ifndef SERVER_KNOWN_H
#define SERVER_KNOWN_H

#include <pthread.h>

#include "limits.h"
#include "strata.h"

typedef struct known_sequence known_sequence;
typedef struct server_known {
    pthread_mutex_t lock;
    known_sequence *sequences[LIMIT_KNOWN_CONVERSATIONS]; /* [count], the newest last */
    size_t count;
    size_t tokens; /* of all */
} server_known;

/* What a reader holds: the sequences stay valid until server_known_release. */
typedef struct server_known_view {
    known_sequence *sequences[LIMIT_KNOWN_CONVERSATIONS];
    strata_known known[LIMIT_KNOWN_CONVERSATIONS]; /* the newest first */
    size_t count;
} server_known_view;

void server_known_open(server_known *k);
void server_known_close(server_known *k);
/* Adds a conversation; it replaces the one that it continues. Without memory it is not remembered. */
void server_known_add(server_known *k, const strata_token *prompt, size_t prompt_count, const strata_token *answer,
                      size_t answer_count);
void server_known_hold(server_known *k, server_known_view *view);
void server_known_release(server_known *k, server_known_view *view);

/* The conversation that begins with the most of these tokens. *same is their number; NULL: none shares any. */
const strata_known *server_known_nearest(const server_known_view *view, const strata_token *tokens, size_t count,
                                         size_t *same);

#endif
