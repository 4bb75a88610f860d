/* Saved state of conversations (store.h): gives the store the pages and restore points of a conversation that is idle
 * or goes away, and brings saved ones into the prefix cache when a prompt asks for them: into the RAM tier or,
 * without a GPU, into the pool. A job holds its pages and points until it is written. Private to kv/. */
#ifndef ST_KV_PERSIST_H
#define ST_KV_PERSIST_H

#include "kv/store.h"

struct st_kv;
struct st_conversation;

typedef struct st_persist {
    struct st_store *store; /* NULL: none */
    st_digest identity;
    st_digest *keys;        /* [table_max of pool 0 + 1]: of a conversation, from the empty prefix on */
    unsigned char *page;    /* bytes of one page */
} st_persist;

/* Queues what is not saved yet. Never fails: what cannot be queued is not saved. `last`: the conversation goes away, so
 * copies to the RAM tier and to restore points are waited for. */
void st_persist_save(struct st_conversation *c, bool last);

/* Loads saved pages behind the first `pages` of kv->found, and the restore point that continues them, if they let the
 * conversation continue behind `position`, at most at `limit`. True: the prefix cache has more than before. */
bool st_persist_load(struct st_conversation *c, const strata_token *tokens, uint32_t limit, uint32_t pages,
                     uint32_t position);

/* Releases what written jobs hold; true: there were some. */
bool st_persist_settle(struct st_kv *kv);
/* Gives up the jobs that are not written; true: there were some. */
bool st_persist_cancel(struct st_kv *kv);
/* The rows of the conversation are broken: gives up all jobs and removes its files. */
void st_persist_forget(struct st_conversation *c);
/* Waits until everything is written. */
void st_persist_close(struct st_kv *kv);

#endif
