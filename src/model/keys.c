#include "model/keys.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"

const char *st_keys_name(st_keys *keys, const char *suffix)
{
    snprintf(keys->name, sizeof keys->name, "%.*s.%s", ST_STR_ARG(keys->prefix), suffix);
    return keys->name;
}

void st_keys_refuse(st_keys *keys, const char *suffix, const char *expected, double found)
{
    if (keys->status != STRATA_OK) return;
    keys->status = st_error_set(keys->error, STRATA_FORMAT, "the file is damaged or was converted wrongly",
                                "%s: key %s: expected %s, found %g", st_gguf_path(keys->gguf),
                                st_keys_name(keys, suffix), expected, found);
}

uint32_t st_keys_check(st_keys *keys, const char *suffix, uint64_t value, uint32_t min, uint32_t max)
{
    if (value >= min && value <= max) return (uint32_t)value;
    char expected[64];
    snprintf(expected, sizeof expected, "%" PRIu32 " to %" PRIu32, min, max);
    st_keys_refuse(keys, suffix, expected, (double)value);
    return min;
}

uint32_t st_keys_u32(st_keys *keys, const char *suffix, uint32_t fallback, uint32_t min, uint32_t max)
{
    if (keys->status != STRATA_OK) return min;
    uint64_t value = fallback;
    bool found;
    keys->status = st_gguf_get_u64(keys->gguf, st_keys_name(keys, suffix), &value, &found, keys->error);
    if (keys->status != STRATA_OK) return min;
    if (!found && fallback == ST_KEY_REQUIRED) {
        keys->status = st_error_set(keys->error, STRATA_FORMAT, "the file is damaged or was converted wrongly",
                                    "%s: key %s: expected a whole number, found no such key",
                                    st_gguf_path(keys->gguf), st_keys_name(keys, suffix));
        return min;
    }
    return st_keys_check(keys, suffix, value, min, max);
}

float st_keys_f32(st_keys *keys, const char *suffix, double fallback, double min, double max)
{
    if (keys->status != STRATA_OK) return (float)fallback;
    double value = fallback;
    keys->status = st_gguf_get_f64(keys->gguf, st_keys_name(keys, suffix), &value, NULL, keys->error);
    if (keys->status != STRATA_OK) return (float)fallback;
    if (value >= min && value <= max) return (float)value; /* false for NaN */
    char expected[64];
    snprintf(expected, sizeof expected, "%g to %g", min, max);
    st_keys_refuse(keys, suffix, expected, value);
    return (float)fallback;
}

bool st_keys_bool(st_keys *keys, const char *suffix, bool fallback)
{
    bool value = fallback;
    if (keys->status != STRATA_OK) return fallback;
    keys->status = st_gguf_get_bool(keys->gguf, st_keys_name(keys, suffix), &value, NULL, keys->error);
    return value;
}

bool st_keys_has(st_keys *keys, const char *suffix)
{
    return keys->status == STRATA_OK && st_gguf_key_find(keys->gguf, st_keys_name(keys, suffix));
}

const st_gguf_tensor *st_keys_tensor(const st_keys *keys, uint32_t layer, const char *name)
{
    char whole[128];
    snprintf(whole, sizeof whole, "blk.%" PRIu32 ".%s", layer, name);
    return st_gguf_tensor_find(keys->gguf, whole);
}

uint32_t st_keys_layer_u32(st_keys *keys, const char *suffix, uint32_t layer, uint32_t layers, uint32_t fallback,
                           uint32_t min, uint32_t max)
{
    if (keys->status != STRATA_OK) return min;
    const st_gguf_key *key = st_gguf_key_find(keys->gguf, st_keys_name(keys, suffix));
    if (!key || key->type != ST_GGUF_ARRAY) return st_keys_u32(keys, suffix, fallback, min, max);
    keys->status = st_gguf_get_array(keys->gguf, keys->name, ST_GGUF_I64, &key, keys->error);
    if (keys->status != STRATA_OK) return min;
    if (key->count < layers) {
        st_keys_refuse(keys, suffix, "a value for each layer", (double)key->count);
        return min;
    }
    /* A NextN block without its own value uses the last layer's. */
    int64_t value = st_gguf_item_i64(key, layer < key->count ? layer : key->count - 1);
    return st_keys_check(keys, suffix, value < 0 ? UINT64_MAX : (uint64_t)value, min, max);
}
