/* Every standard key with a value of a wrong type. */
#include <stdio.h>

#include "support/mutate.h"

typedef struct sample {
    const char *words;
    unsigned kinds; /* its st_gguf_kind */
    st_gguf_type type;
    bool array;
} sample;

static const sample samples[] = {
    {"a string", ST_GGUF_IS_STRING, ST_GGUF_STRING, false},
    {"a u32", ST_GGUF_IS_UINT | ST_GGUF_IS_INT, ST_GGUF_U32, false},
    {"an f32", ST_GGUF_IS_FLOAT, ST_GGUF_F32, false},
    {"a bool", ST_GGUF_IS_BOOL, ST_GGUF_BOOL, false},
    {"an array of strings", ST_GGUF_IS_STRINGS, ST_GGUF_STRING, true},
    {"an array of i32", ST_GGUF_IS_UINTS | ST_GGUF_IS_INTS, ST_GGUF_I32, true},
    {"an array of f32", ST_GGUF_IS_FLOATS, ST_GGUF_F32, true},
    {"an array of bools", ST_GGUF_IS_BOOLS, ST_GGUF_BOOL, true},
};

static void full_name(const st_gguf_known *known, char *name, size_t size)
{
    snprintf(name, size, "%s%s", known->name[0] == '.' ? "llama" : "", known->name);
}

static void begin(const st_gguf_known *known, gguf_writer *w)
{
    gguf_writer_begin(w, 3);
    if (known->name[0] == '.') gguf_write_key_string(w, "general.architecture", "llama");
}

static void build_sample(const mutate_case *row, gguf_writer *w)
{
    char name[128];
    full_name(row->known, name, sizeof name);
    begin(row->known, w);
    gguf_write_key_sample(w, name, samples[row->place].type, samples[row->place].array);
    gguf_writer_finish(w);
}

static void build_negative(const mutate_case *row, gguf_writer *w)
{
    char name[128];
    full_name(row->known, name, sizeof name);
    begin(row->known, w);
    gguf_write_key_i32(w, name, -3);
    gguf_writer_finish(w);
}

static void add_samples(const st_gguf_known *known, bool array, size_t most)
{
    char name[128], message[160];
    full_name(known, name, sizeof name);
    size_t added = 0;
    for (size_t i = 0; i < sizeof samples / sizeof *samples && added < most; i++) {
        if (samples[i].array != array || samples[i].kinds & known->kinds) continue;
        snprintf(message, sizeof message, "key %s: expected a", name);
        mutate_case *row = mutate_add(build_sample, MUTATE_STATUS(FORMAT), message, "%s is %s", name, samples[i].words);
        row->known = known;
        row->place = i;
        added++;
    }
}

void mutate_add_known(void)
{
    size_t count;
    const st_gguf_known *rows = st_gguf_known_rows(&count);
    for (size_t i = 0; i < count; i++) {
        add_samples(&rows[i], false, 2);
        add_samples(&rows[i], true, 1);
        if (!(rows[i].kinds & ST_GGUF_IS_UINT)) continue;
        char name[128];
        full_name(&rows[i], name, sizeof name);
        mutate_add(build_negative, MUTATE_STATUS(FORMAT), "found -3", "%s is negative", name)->known = &rows[i];
    }
}
