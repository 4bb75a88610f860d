#include "identity.h"

#include <string.h>

#include "kv/save.h"

static st_digest add_numbers(st_digest digest, const uint64_t *numbers, size_t count)
{
    unsigned char bytes[8];
    for (size_t i = 0; i < count; i++) {
        for (int k = 0; k < 8; k++) bytes[k] = (unsigned char)(numbers[i] >> (8 * k));
        digest = st_digest_add(digest, bytes, sizeof bytes);
    }
    return digest;
}

enum { SAMPLE_BYTES = 64 };

static st_digest add_sample(st_digest digest, const st_gguf_tensor *t)
{
    size_t count = t->bytes < SAMPLE_BYTES ? (size_t)t->bytes : SAMPLE_BYTES;
    return st_digest_add(digest, t->data + (t->bytes - count) / 2, count);
}

static st_digest add_file(st_digest digest, const st_gguf *gguf)
{
    const uint64_t sizes[] = {st_gguf_file_bytes(gguf), st_gguf_key_count(gguf), st_gguf_tensor_count(gguf)};
    digest = add_numbers(digest, sizes, sizeof sizes / sizeof *sizes);
    for (size_t i = 0; i < st_gguf_key_count(gguf); i++) {
        const st_gguf_key *key = st_gguf_key_at(gguf, i);
        digest = st_digest_add(digest, key->name.data, key->name.length);
        digest = st_digest_add(digest, key->data, key->data_bytes);
    }
    for (size_t i = 0; i < st_gguf_tensor_count(gguf); i++) {
        const st_gguf_tensor *t = st_gguf_tensor_at(gguf, i);
        const uint64_t facts[] = {t->type, t->ne[0], t->ne[1], t->ne[2], t->ne[3], t->file, t->file_offset};
        digest = st_digest_add(digest, t->name.data, t->name.length);
        digest = add_numbers(digest, facts, sizeof facts / sizeof *facts);
        digest = add_sample(digest, t);
    }
    return digest;
}

/* The layout decides where a row lies in a page, and what a restore point holds. */
static st_digest add_layout(st_digest digest, const st_kv_layout *layout)
{
    const uint64_t sizes[] = {layout->options.type, layout->options.page_tokens, layout->pool_count,
                              layout->layer_count,  layout->slot_bytes,          layout->carry_offset,
                              layout->options.carry};
    digest = add_numbers(digest, sizes, sizeof sizes / sizeof *sizes);
    for (uint32_t i = 0; i < layout->pool_count; i++) {
        const uint64_t pool[] = {layout->pools[i].span, layout->pools[i].tail_max, layout->pools[i].page_bytes};
        digest = add_numbers(digest, pool, sizeof pool / sizeof *pool);
    }
    for (uint32_t i = 0; i < layout->layer_count; i++) {
        const st_kv_layer *l = &layout->layers[i];
        const uint64_t layer[] = {l->pool, l->key_row_bytes, l->value_row_bytes, l->conv_bytes, l->delta_bytes};
        digest = add_numbers(digest, layer, sizeof layer / sizeof *layer);
    }
    return digest;
}

st_digest st_identity_of(const st_gguf *gguf, const st_plan *plan)
{
    const uint64_t about[] = {ST_SAVE_VERSION, plan->device_count, plan->nextn};
    st_digest digest = add_numbers((st_digest){{0}}, about, sizeof about / sizeof *about);
    digest = add_file(digest, gguf);
    for (uint32_t d = 0; d < plan->device_count; d++) digest = add_layout(digest, plan->memory[d].kv);
    return digest;
}
