/* A digest of 128 bits, the same on every machine: tells damaged or other bytes apart. Not cryptographic. */
#ifndef ST_BASE_DIGEST_H
#define ST_BASE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct st_digest {
    uint64_t words[2];
} st_digest;

/* The digest of `before` followed by the bytes: chains digests. */
st_digest st_digest_add(st_digest before, const void *bytes, size_t length);

static inline bool st_digest_equal(st_digest a, st_digest b)
{
    return a.words[0] == b.words[0] && a.words[1] == b.words[1];
}

#endif
