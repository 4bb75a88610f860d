/* What the ways to compute attention share: its shape, and rows of the cache as floats. */
#ifndef ST_BACKEND_CPU_FAST_ATTENTION_H
#define ST_BACKEND_CPU_FAST_ATTENTION_H

#include "backend/cpu/fast.h"

typedef struct st_attention_shape {
    size_t heads, kv_heads, shared; /* shared: heads that read one KV head */
    size_t key, value;
} st_attention_shape;

st_attention_shape st_attention_shape_of(const st_op *op);

/* The keys or the values of a cache. */
typedef struct st_cache_side {
    const unsigned char *rows;
    size_t row_bytes;
    size_t width; /* of a head */
} st_cache_side;

st_cache_side st_cache_keys(const st_cpu_call *call);
st_cache_side st_cache_values(const st_cpu_call *call);

/* `count` positions of one KV head as float rows of `padded` elements; as many bytes as they have are fetched from
 * `fetch` on meanwhile, unless it is 0. */
void st_cache_load(const st_cpu_call *call, const st_cache_side *side, uint32_t first, size_t count, size_t head,
                   size_t padded, uintptr_t fetch, float *out);

static inline void st_fetch_lines(uintptr_t from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch((const void *)(from + at), 0, 2);
}

/* A batch in bytes: false where the machine, or the layer, is not made for it, and nothing was done. */
bool st_cpu_attention_in_bytes(const st_cpu_call *call);

#endif
