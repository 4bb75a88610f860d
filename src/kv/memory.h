/* The parts of st_kv that conversation.c and exchange.c use. Private to kv/. */
#ifndef ST_KV_MEMORY_H
#define ST_KV_MEMORY_H

#include "kv/conversation.h"
#include "kv/exchange.h"
#include "kv/persist.h"

/* A conversation's pages in one pool: pages[first … end − 1], indexed by position / page tokens. */
typedef struct st_page_table {
    uint32_t *pages; /* a ring of table_max for pools with a span; [context / page tokens] for pool 0 */
    uint32_t first, end;
} st_page_table;

/* A copy between host and device that may not have ended. */
typedef struct st_kv_transfer {
    st_event *event;
    uint32_t point; /* ST_NO_POINT: none is under way */
    bool saves;     /* to the restore point, or from it */
} st_kv_transfer;

enum { ST_KV_TRANSFERS = 4 };

struct st_kv {
    st_kv_source source;
    const st_kv_layout *layout; /* the host's: pools are the same on every device */
    uint32_t page, shift;       /* tokens of a page; its logarithm */
    bool needs_points, has_state;
    st_prefixes *prefixes;
    st_pages *pages[ST_KV_POOLS_MAX];
    st_restore *restore;
    st_exchange exchange;       /* with the RAM tier */
    st_persist persist;         /* with the folder of saved state */
    st_kv_transfer transfers[ST_KV_TRANSFERS];
    uint32_t next_transfer;
    st_conversation **slots;    /* [conversations]: whose state is in each; NULL: free */
    st_conversation *first;     /* of the list of all */
    uint32_t *found;            /* [table_max of pool 0]: pages of a prefix; ST_NO_PAGE: in the RAM tier alone */
    st_prefix *found_names;     /* the same */
    uint64_t *marks;            /* [pages of pool 0 / 64]: a bit for each page, of st_kv_mark_running */
    uint32_t *table;            /* [table_max of pool 0]: the pages that a conversation takes over */
    uint64_t clock;
    uint32_t numbers;
};

struct st_conversation {
    st_kv *kv;
    st_conversation *previous, *next;
    strata_token *tokens;       /* [context] */
    uint32_t number;
    uint32_t position, running; /* stored tokens; tokens of the step under way */
    uint32_t confirmed;         /* tokens whose steps have ended on every device */
    uint32_t slot;
    bool runs;                  /* a call of its session is under way */
    bool valid;                 /* slot and tails are those of the position */
    bool shared;                /* full pages are published */
    uint64_t used;              /* when it ran last */
    uint64_t arrives;           /* the flight that brings its last pages from the RAM tier; 0: all are there */
    st_prefix passing;          /* of the passing restore point that the next one supersedes; 0: none */
    st_page_table tables[ST_KV_POOLS_MAX];
    st_prefix *names;           /* [table_max of pool 0]: of the prefix that ends with each page */
    uint32_t named;             /* pages whose names are known */
};

/* The share of a device with its own memory, which copies asynchronously; NULL: none. */
const st_kv_share *st_kv_far_share(const st_kv *kv);

typedef strata_status (*st_kv_piece)(void *context, const st_kv_share *s, size_t offset, size_t stride, size_t bytes,
                                     strata_error *error);
/* Calls `piece` for each contiguous part of a page: the offset of the part in page 0, and from a page to the next. */
strata_status st_kv_each_piece(const st_kv_share *s, uint32_t pool, st_kv_piece piece, void *context,
                               strata_error *error);

/* The page of a conversation, in the ring of its table. */
uint32_t *st_kv_entry(const st_conversation *c, uint32_t pool, uint32_t index);

strata_status st_kv_copy_page(st_kv *kv, uint32_t pool, uint32_t to, uint32_t from, strata_error *error);
strata_status st_kv_clear_slot(st_kv *kv, uint32_t slot, strata_error *error);
strata_status st_kv_copy_slot(st_kv *kv, uint32_t to, uint32_t from, strata_error *error);

/* Takes a page for `c`, if need be one of an idle conversation. ST_NO_PAGE: none is left. */
uint32_t st_kv_take_page(const st_conversation *c, uint32_t pool, uint32_t after);

/* Gives the conversation a slot, if need be that of an idle conversation. */
strata_status st_kv_take_slot(st_kv *kv, st_conversation *c, strata_error *error);

/* Drops the pages of a table from `index` on, the last first. */
void st_kv_cut(st_conversation *c, uint32_t pool, uint32_t index);
/* Cuts the conversation to its first `position` tokens. */
void st_kv_cut_to(st_conversation *c, uint32_t position);
/* Drops all pages and the slot; the position is 0. */
void st_kv_release(st_conversation *c);

/* Marks the pages of full attention that running conversations hold; returns how many there are. */
uint32_t st_kv_mark_running(const st_kv *kv);
bool st_kv_marked(const st_kv *kv, uint32_t page);

/* Copies the conversation's slot and tails to a restore point, or from it; the copies may end later. */
strata_status st_kv_save(st_kv *kv, const st_conversation *c, uint32_t point, strata_error *error);
strata_status st_kv_restore(st_kv *kv, const st_conversation *c, uint32_t point, strata_error *error);
size_t st_kv_point_bytes(const st_kv *kv, const st_conversation *c);
/* A share's part of a page of the RAM tier. */
unsigned char *st_kv_tier_page(const st_kv *kv, uint32_t share, uint32_t page);
/* Ends the transfers whose copies have ended. */
void st_kv_settle(st_kv *kv);
/* Waits for all transfers. */
void st_kv_finish(st_kv *kv);

#endif
