/* The names of prefixes. A prefix is a page full of tokens together with everything before it; its name finds the
 * places where its keys and values are stored: a page of the pool, a page of the RAM tier, or both. Pure bookkeeping:
 * knows names, token ids and numbers of places; knows no memory and decides nothing. Allocates only in
 * st_prefixes_new. The caller serialises all calls. */
#ifndef ST_KV_PREFIXES_H
#define ST_KV_PREFIXES_H

#include "strata.h"

#define ST_NO_PAGE UINT32_MAX

/* The name of a prefix; never used again for other tokens. It is live while the prefix has a place. 0: none, or the
 * empty prefix, which is always live. */
typedef uint64_t st_prefix;

typedef enum st_place {
    ST_PLACE_POOL, /* a page of the pool */
    ST_PLACE_TIER, /* a page of the RAM tier */
    ST_PLACES
} st_place;

typedef struct st_prefixes st_prefixes;

/* `most`: prefixes that are live at a time: at least the pages of all places together. */
strata_status st_prefixes_new(uint32_t most, uint32_t page_tokens, st_prefixes **out, strata_error *error);
void st_prefixes_free(st_prefixes *prefixes);

bool st_prefixes_live(const st_prefixes *prefixes, st_prefix prefix);

/* The prefix with these ids [page_tokens] behind `parent`; ids are compared, not only hashes. 0: none, or `parent` is
 * not live. */
st_prefix st_prefixes_find(const st_prefixes *prefixes, st_prefix parent, const strata_token *ids);

/* Names a prefix that st_prefixes_find does not find, behind a live parent, with its first place. */
st_prefix st_prefixes_add(st_prefixes *prefixes, st_prefix parent, const strata_token *ids, st_place place,
                          uint32_t page);

/* The page of a live prefix other than the empty one; ST_NO_PAGE: it has none there. */
uint32_t st_prefixes_page(const st_prefixes *prefixes, st_prefix prefix, st_place place);
/* ST_NO_PAGE takes the place away. A prefix without any place is no longer live. */
void st_prefixes_set_page(st_prefixes *prefixes, st_prefix prefix, st_place place, uint32_t page);

st_prefix st_prefixes_parent(const st_prefixes *prefixes, st_prefix prefix);

#endif
