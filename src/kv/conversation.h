/* A conversation: its tokens, the pages of their keys and values, and a slot of recurrent state while it runs. Cheap:
 * thousands may exist. Pages of full attention are shared with other conversations and copied on write; a prefix cache
 * finds them again after a conversation has dropped them. A conversation that does not run may lose its slot and its
 * pages to others; its tokens stay. Knows where tokens are stored; runs nothing. The caller's lock guards it. */
#ifndef ST_KV_CONVERSATION_H
#define ST_KV_CONVERSATION_H

#include "kv/kv.h"

strata_status st_conversation_new(st_kv *kv, st_conversation **out, strata_error *error);
void st_conversation_free(st_conversation *c); /* its full pages stay in the prefix cache */

/* [context]: the first `position` are stored; the caller writes the next tokens behind them. */
strata_token *st_conversation_tokens(st_conversation *c);
uint32_t st_conversation_position(const st_conversation *c);
uint32_t st_conversation_number(const st_conversation *c); /* counts conversations, for traces */
uint32_t st_conversation_slot(const st_conversation *c);

/* While it runs, a conversation loses nothing to others. At most as many run as there are slots. */
void st_conversation_run(st_conversation *c, bool runs);

/* Whether the conversation can continue at its position. If not, st_conversation_seek finds where it can. */
bool st_conversation_ready(const st_conversation *c);

typedef struct st_seek {
    uint32_t kept;     /* the new position */
    uint32_t diverged; /* end of the cached prefix, if the conversation can only continue before it: a position worth a
                          restore point. 0: none */
} st_seek;

/* Sets the tokens to `tokens` and the position to the longest prefix of fewer than `count` tokens (0 if count is 0)
 * that is stored: in the conversation itself or, with `shared`, in the prefix cache or in the RAM tier, from which its
 * pages then are brought (st_conversation_arriving). Without `shared`, pages that fill
 * from now on are not published either. */
strata_status st_conversation_seek(st_conversation *c, const strata_token *tokens, uint32_t count, bool shared,
                                   st_seek *out, strata_error *error);

/* What st_conversation_seek with `shared` would find now. */
typedef struct st_peek {
    uint32_t kept;
    uint32_t idle_pages; /* of full attention in it that no running conversation holds, or that the RAM tier alone has */
} st_peek;

st_peek st_conversation_peek(st_conversation *c, const strata_token *tokens, uint32_t count);

/* Whether the page of the next token must be copied before it is written: one more page is taken. */
bool st_conversation_copies(const st_conversation *c);

/* Whether pages of the conversation are still on their way from the RAM tier after st_conversation_seek. Does not wait:
 * steps of other conversations may run until they are there. */
bool st_conversation_arriving(st_conversation *c);
/* Waits until they are there. If the copies have failed, the conversation is cut to the pages before them, and the
 * error is the device's: st_conversation_seek then finds where it can continue. st_conversation_prepare does it too. */
strata_status st_conversation_await(st_conversation *c, strata_error *error);

/* `child`, a new conversation, gets the tokens and shares all pages. If a slot is free, it can continue at the same
 * position; otherwise st_conversation_seek finds where. */
strata_status st_conversation_fork(st_conversation *c, st_conversation *child, strata_error *error);

/* The stored rows are broken: drops them, and removes their pages from the prefix cache and their restore points. */
void st_conversation_forget(st_conversation *c);

/* --- a step ------------------------------------------------------------------------------------------------------- */

/* Takes a slot, and pages for the next `count` tokens. STRATA_LIMIT: every page is in use, and nothing changes. */
strata_status st_conversation_prepare(st_conversation *c, uint32_t count, strata_error *error);
/* Drops the pages that st_conversation_prepare took for a step that does not run. */
void st_conversation_cancel(st_conversation *c);
/* Writes its entry of the step block, whose first row is at `position`, and appends its page tables to `tables`.
 * Returns the entries appended. */
uint32_t st_conversation_write(const st_conversation *c, uint32_t position, uint32_t table, st_step_conversation *out,
                               uint32_t *tables);
/* The step is enqueued on every device: its tokens are stored when it ends. Pages behind every window are dropped. */
void st_conversation_commit(st_conversation *c);
/* All its steps have ended: full pages are published. */
void st_conversation_confirm(st_conversation *c);
/* A step has failed or was interrupted: the conversation goes back to its confirmed tokens and loses recurrent
 * state. */
void st_conversation_fail(st_conversation *c);

/* Keeps a restore point at the position, if the model needs any and the position is confirmed, the end of a published
 * page and not just behind a cut. A failed copy only means that the point does not exist. */
void st_conversation_keep(st_conversation *c, st_restore_kind kind);

#endif
