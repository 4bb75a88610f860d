/* Reads the keys of an architecture by their names behind its prefix, and refuses what is missing or absurd with the
 * key's name. Knows no family and no meaning of a key. */
#ifndef ST_MODEL_KEYS_H
#define ST_MODEL_KEYS_H

#include "gguf/gguf.h"
#include "strata.h"

/* The first failure stays in `status` and later reads do nothing. */
typedef struct st_keys {
    const st_gguf *gguf;
    st_str prefix;
    strata_status status;
    strata_error *error;
    char name[256]; /* of the key read last */
} st_keys;

/* The whole name of a key; good until the next call. */
const char *st_keys_name(st_keys *keys, const char *suffix);

/* STRATA_FORMAT: the key has a value that no model of this kind has. */
void st_keys_refuse(st_keys *keys, const char *suffix, const char *expected, double found);

/* Returns `value` if it is in the range, otherwise refuses it and returns `min`. */
uint32_t st_keys_check(st_keys *keys, const char *suffix, uint64_t value, uint32_t min, uint32_t max);

/* An absent key takes the default; this default makes the key required. */
#define ST_KEY_REQUIRED UINT32_MAX

uint32_t st_keys_u32(st_keys *keys, const char *suffix, uint32_t fallback, uint32_t min, uint32_t max);
float st_keys_f32(st_keys *keys, const char *suffix, double fallback, double min, double max);

bool st_keys_bool(st_keys *keys, const char *suffix, bool fallback);
bool st_keys_has(st_keys *keys, const char *suffix);

/* Whether the file has a tensor of a layer, by its name behind "blk.N."; NULL: it has none. */
const st_gguf_tensor *st_keys_tensor(const st_keys *keys, uint32_t layer, const char *name);

/* A key with one number for all layers, or an array with one number per layer. */
uint32_t st_keys_layer_u32(st_keys *keys, const char *suffix, uint32_t layer, uint32_t layers, uint32_t fallback,
                           uint32_t min, uint32_t max);

#endif
