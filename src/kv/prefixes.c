#include "kv/prefixes.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/map.h"

#define END UINT32_MAX

typedef struct node {
    st_prefix name, parent; /* name 0: the node is free */
    uint32_t pages[ST_PLACES];
    uint32_t bucket;
    uint32_t next; /* the chain of the bucket, or of free nodes */
} node;

struct st_prefixes {
    node *nodes;       /* [most] */
    strata_token *ids; /* [most][page_tokens] */
    uint32_t *buckets; /* [bucket_mask + 1]: chains of nodes by a hash of parent and ids */
    uint32_t most, page_tokens, bucket_mask;
    uint32_t unused; /* the first free node */
    uint64_t names;  /* given out so far */
};

strata_status st_prefixes_new(uint32_t most, uint32_t page_tokens, st_prefixes **out, strata_error *error)
{
    st_prefixes *p = st_alloc_zero(1, sizeof *p);
    if (!p) return st_error_memory(error, sizeof *p, "the prefix cache");
    uint32_t buckets = 1;
    while (buckets <= most / 2) buckets *= 2;
    *p = (st_prefixes){.most = most, .page_tokens = page_tokens, .bucket_mask = buckets - 1, .unused = END};
    p->nodes = st_alloc_zero(most, sizeof *p->nodes);
    p->ids = st_alloc_array(most, page_tokens * sizeof *p->ids);
    p->buckets = st_alloc_array(buckets, sizeof *p->buckets);
    if (!p->nodes || !p->ids || !p->buckets) {
        st_prefixes_free(p);
        return st_error_memory(error, most * (sizeof *p->nodes + page_tokens * sizeof *p->ids), "the prefix cache");
    }
    for (uint32_t i = 0; i < buckets; i++) p->buckets[i] = END;
    for (uint32_t i = most; i-- > 0;) {
        p->nodes[i].next = p->unused;
        p->unused = i;
    }
    *out = p;
    return STRATA_OK;
}

void st_prefixes_free(st_prefixes *prefixes)
{
    if (!prefixes) return;
    st_free(prefixes->nodes);
    st_free(prefixes->ids);
    st_free(prefixes->buckets);
    st_free(prefixes);
}

/* A name is a multiple of the number of nodes plus the node's own number, so the node follows from the name. */
static node *node_of(const st_prefixes *p, st_prefix prefix)
{
    return &p->nodes[prefix % p->most];
}

bool st_prefixes_live(const st_prefixes *prefixes, st_prefix prefix)
{
    return prefix == 0 || (prefixes->most > 0 && node_of(prefixes, prefix)->name == prefix);
}

static strata_token *ids_of(const st_prefixes *p, uint32_t number)
{
    return p->ids + (size_t)number * p->page_tokens;
}

static uint32_t bucket_of(const st_prefixes *p, st_prefix parent, const strata_token *ids)
{
    const uint64_t key[2] = {parent, st_hash_bytes(ids, p->page_tokens * sizeof *ids)};
    return (uint32_t)st_hash_bytes(key, sizeof key) & p->bucket_mask;
}

st_prefix st_prefixes_find(const st_prefixes *prefixes, st_prefix parent, const strata_token *ids)
{
    if (!st_prefixes_live(prefixes, parent)) return 0;
    uint32_t found = prefixes->buckets[bucket_of(prefixes, parent, ids)];
    for (; found != END; found = prefixes->nodes[found].next) {
        const node *n = &prefixes->nodes[found];
        if (n->parent == parent && memcmp(ids_of(prefixes, found), ids, prefixes->page_tokens * sizeof *ids) == 0)
            return n->name;
    }
    return 0;
}

st_prefix st_prefixes_add(st_prefixes *prefixes, st_prefix parent, const strata_token *ids, st_place place,
                          uint32_t page)
{
    uint32_t number = prefixes->unused, bucket = bucket_of(prefixes, parent, ids);
    node *n = &prefixes->nodes[number];
    prefixes->unused = n->next;
    *n = (node){.name = ++prefixes->names * prefixes->most + number, .parent = parent, .bucket = bucket,
                .next = prefixes->buckets[bucket]};
    for (int i = 0; i < ST_PLACES; i++) n->pages[i] = ST_NO_PAGE;
    n->pages[place] = page;
    prefixes->buckets[bucket] = number;
    memcpy(ids_of(prefixes, number), ids, prefixes->page_tokens * sizeof *ids);
    return n->name;
}

uint32_t st_prefixes_page(const st_prefixes *prefixes, st_prefix prefix, st_place place)
{
    return node_of(prefixes, prefix)->pages[place];
}

static void forget(st_prefixes *p, node *n)
{
    uint32_t number = (uint32_t)(n - p->nodes), *link = &p->buckets[n->bucket];
    while (*link != number) link = &p->nodes[*link].next;
    *link = n->next;
    *n = (node){.next = p->unused};
    p->unused = number;
}

void st_prefixes_set_page(st_prefixes *prefixes, st_prefix prefix, st_place place, uint32_t page)
{
    node *n = node_of(prefixes, prefix);
    n->pages[place] = page;
    for (int i = 0; i < ST_PLACES; i++)
        if (n->pages[i] != ST_NO_PAGE) return;
    forget(prefixes, n);
}

st_prefix st_prefixes_parent(const st_prefixes *prefixes, st_prefix prefix)
{
    return node_of(prefixes, prefix)->parent;
}
