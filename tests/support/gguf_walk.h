/* Reads everything in an opened directory except tensor data: for fuzzed and mutated files that open. */
#ifndef TEST_SUPPORT_GGUF_WALK_H
#define TEST_SUPPORT_GGUF_WALK_H

#include "gguf/gguf.h"

static inline uint64_t gguf_walk_bytes(uint64_t sum, st_str text)
{
    for (size_t i = 0; i < text.length; i++) sum = sum * 31 + (unsigned char)text.data[i];
    return sum;
}

static inline uint64_t gguf_walk_key(const st_gguf *gguf, const st_gguf_key *key)
{
    uint64_t sum = gguf_walk_bytes((uint64_t)key->type, key->name);
    size_t cursor = 0;
    uint64_t strings = 0;
    st_str text;
    if (key->type == ST_GGUF_ARRAY && key->item_type == ST_GGUF_STRING) {
        for (; st_gguf_next_str(key, &cursor, &text); strings++) sum = gguf_walk_bytes(sum, text);
        if (strings != key->count || cursor != key->data_bytes) __builtin_trap();
    } else if (key->type == ST_GGUF_ARRAY) {
        for (uint64_t i = 0; i < key->count; i++)
            sum = sum * 31 + (uint64_t)st_gguf_item_i64(key, i) + (st_gguf_item_f64(key, i) > 0);
    }
    if (memchr(key->name.data, 0, key->name.length)) __builtin_trap();
    char name[256];
    if (key->name.length >= sizeof name) return sum;
    memcpy(name, key->name.data, key->name.length);
    name[key->name.length] = '\0';
    if (st_gguf_key_find(gguf, name) != key) __builtin_trap();
    uint64_t number = 0;
    double real = 0;
    bool truth = false, found;
    const st_gguf_key *array;
    strata_error error;
    text = (st_str){"", 0};
    (void)st_gguf_get_u64(gguf, name, &number, &found, &error);
    (void)st_gguf_get_f64(gguf, name, &real, &found, &error);
    (void)st_gguf_get_bool(gguf, name, &truth, &found, &error);
    (void)st_gguf_get_str(gguf, name, &text, &found, &error);
    (void)st_gguf_get_array(gguf, name, ST_GGUF_I64, &array, &error);
    return gguf_walk_bytes(sum + number + truth + (real > 0), text);
}

static inline uint64_t gguf_walk(const st_gguf *gguf)
{
    uint64_t sum = st_gguf_version(gguf), bytes = 0;
    for (size_t i = 0; i < st_gguf_key_count(gguf); i++) sum += gguf_walk_key(gguf, st_gguf_key_at(gguf, i));
    for (size_t i = 0; i < st_gguf_tensor_count(gguf); i++) {
        const st_gguf_tensor *tensor = st_gguf_tensor_at(gguf, i);
        sum = gguf_walk_bytes(sum, tensor->name) + (uint64_t)(uintptr_t)tensor->data;
        bytes += tensor->bytes;
        if (tensor->info != st_type_find(tensor->type) || tensor->ne[0] % tensor->info->block != 0) __builtin_trap();
        if (tensor->file_offset > st_gguf_file_bytes(gguf) ||
            tensor->bytes > st_gguf_file_bytes(gguf) - tensor->file_offset)
            __builtin_trap();
    }
    if (bytes != st_gguf_tensor_bytes(gguf)) __builtin_trap();
    return sum;
}

#endif
