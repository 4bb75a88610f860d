/* Malformed files that are built, not patched: names, duplicates, nesting, limits, overlaps, other formats. */
#include <stdio.h>

#include "support/mutate.h"

#define FORMAT MUTATE_STATUS(FORMAT)
#define UNSUPPORTED MUTATE_STATUS(UNSUPPORTED)

/* ---- names ------------------------------------------------------------------------------------------------------- */

static void write_text(gguf_writer *w, const mutate_case *row)
{
    if (row->text) {
        gguf_write_string(w, row->text, row->text_length);
        return;
    }
    gguf_write_u64(w, row->value); /* a long name of one letter */
    for (uint64_t i = 0; i < row->value; i++) st_buf_append_char(&w->out, 'n');
}

static void build_key_name(const mutate_case *row, gguf_writer *w)
{
    gguf_writer_begin(w, 3);
    write_text(w, row);
    gguf_write_u32(w, ST_GGUF_U8);
    st_buf_append_char(&w->out, 1);
    w->key_count = 1;
    gguf_writer_finish(w);
}

static void build_tensor_name(const mutate_case *row, gguf_writer *w)
{
    gguf_writer_begin(w, 3);
    write_text(w, row);
    gguf_write_u32(w, 1);
    gguf_write_u64(w, 1);
    gguf_write_u32(w, ST_TYPE_F32);
    gguf_write_u64(w, 0);
    w->tensor_count = 1;
    w->data_bytes = 32;
    gguf_writer_finish(w);
}

static void build_architecture(const mutate_case *row, gguf_writer *w)
{
    gguf_writer_begin(w, 3);
    gguf_write_key(w, "general.architecture", ST_GGUF_STRING);
    write_text(w, row);
    gguf_writer_finish(w);
}

typedef struct name_row {
    const char *words;
    const char *text;
    size_t length;
    const char *message;
} name_row;

#define TEXT(literal) literal, sizeof(literal) - 1

static const name_row name_rows[] = {
    {"empty", TEXT(""), "found an empty one"},
    {"a NUL", TEXT("\0"), "without NUL bytes"},
    {"with a NUL inside", TEXT("ab\0cd"), "without NUL bytes"},
    {"with a NUL at the end", TEXT("ab\0"), "without NUL bytes"},
    {"a byte 0xFF", TEXT("ab\xFF"), "in UTF-8, found byte 0xff at place 3"},
    {"a lone continuation byte", TEXT("\x80"), "in UTF-8, found byte 0x80 at place 1"},
    {"an overlong slash", TEXT("\xC0\xAF"), "in UTF-8"},
    {"an overlong NUL", TEXT("\xC0\x80"), "in UTF-8"},
    {"a surrogate", TEXT("\xED\xA0\x80"), "in UTF-8"},
    {"beyond U+10FFFF", TEXT("\xF4\x90\x80\x80"), "in UTF-8"},
    {"cut inside a code point", TEXT("a\xE2\x82"), "in UTF-8"},
};

static void add_names(void)
{
    for (size_t i = 0; i < sizeof name_rows / sizeof *name_rows; i++) {
        const name_row *row = &name_rows[i];
        mutate_case *key = mutate_add(build_key_name, FORMAT, row->message, "key name %s", row->words);
        mutate_case *tensor = mutate_add(build_tensor_name, FORMAT, row->message, "tensor name %s", row->words);
        const char *message = row->length ? "without NUL bytes, found" : "expected a string of 1 to 64 bytes";
        mutate_case *other = mutate_add(build_architecture, FORMAT, message, "general.architecture %s", row->words);
        key->text = tensor->text = other->text = row->text;
        key->text_length = tensor->text_length = other->text_length = row->length;
    }
    mutate_add(build_key_name, FORMAT, "at most 65535 bytes, found one of 65536", "key name of 64 KiB")->value = 65536;
    mutate_add(build_key_name, FORMAT, "at most 65535", "key name of 1 MiB")->value = 1 << 20;
    mutate_add(build_tensor_name, FORMAT, "at most 128 bytes, found one of 129", "tensor name of 129 bytes")->value =
        129;
    mutate_add(build_tensor_name, FORMAT, "found one of 65536", "tensor name of 64 KiB")->value = 65536;
    mutate_add(build_architecture, FORMAT, "1 to 64 bytes, found one of 65", "architecture of 65 bytes")->value = 65;
    mutate_add(build_architecture, FORMAT, "found one of 1048576", "architecture of 1 MiB")->value = 1 << 20;
}

/* ---- duplicates -------------------------------------------------------------------------------------------------- */

static void build_double_key(const mutate_case *row, gguf_writer *w)
{
    gguf_writer_begin(w, 3);
    gguf_write_key_u32(w, "test.same", 1);
    for (uint64_t i = 0; i < row->value; i++) {
        char name[32];
        snprintf(name, sizeof name, "test.%llu", (unsigned long long)i);
        gguf_write_key_u32(w, name, 1);
    }
    gguf_write_key_sample(w, "test.same", row->place ? ST_GGUF_STRING : ST_GGUF_U32, false);
    gguf_writer_finish(w);
}

static void build_double_tensor(const mutate_case *row, gguf_writer *w)
{
    gguf_writer_begin(w, 3);
    gguf_write_tensor(w, "same", ST_TYPE_F32, 1, (uint64_t[]){1});
    for (uint64_t i = 0; i < row->value; i++) {
        char name[32];
        snprintf(name, sizeof name, "t.%llu", (unsigned long long)i);
        gguf_write_tensor(w, name, ST_TYPE_F32, 1, (uint64_t[]){1});
    }
    gguf_write_tensor(w, "same", ST_TYPE_F16, 1, (uint64_t[]){1});
    gguf_writer_finish(w);
}

static void add_doubles(void)
{
    static const char message[] = "key test.same: expected each key once";
    mutate_add(build_double_key, FORMAT, message, "the same key twice in a row");
    mutate_add(build_double_key, FORMAT, message, "the same key 10,000 keys later")->value = 10000;
    mutate_add(build_double_key, FORMAT, message, "the same key with another type")->place = 1;
    mutate_add(build_double_tensor, FORMAT, "tensor same: expected each tensor once", "the same tensor twice in a row");
    mutate_add(build_double_tensor, FORMAT, "tensor same: expected", "the same tensor 10,000 later")->value = 10000;
}

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

/* Arrays in arrays, `value` deep. */
static void build_nested(const mutate_case *row, gguf_writer *w)
{
    gguf_writer_begin(w, 3);
    gguf_write_key(w, "test.nested", ST_GGUF_ARRAY);
    for (uint64_t i = 1; i < row->value; i++) {
        gguf_write_u32(w, ST_GGUF_ARRAY);
        gguf_write_u64(w, 1);
    }
    gguf_write_u32(w, ST_GGUF_U8);
    gguf_write_u64(w, 1);
    st_buf_append_char(&w->out, 7);
    gguf_writer_finish(w);
}

/* An array of `value` items that claims one more, at the end of the file. */
static void build_array_short(const mutate_case *row, gguf_writer *w)
{
    gguf_writer_begin(w, 3);
    gguf_write_key_array(w, "test.array", (uint32_t)row->place, row->value + 1);
    static const unsigned char zeros[8] = {0};
    static const size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};
    for (uint64_t i = 0; i < row->value; i++) st_buf_append(&w->out, zeros, sizes[row->place]);
    gguf_writer_finish_directory(w);
}

static void build_value_short(const mutate_case *row, gguf_writer *w)
{
    gguf_writer_begin(w, 3);
    gguf_write_key_sample(w, "test.value", (st_gguf_type)row->place, false);
    w->out.length--;
    gguf_writer_finish_directory(w);
}

static void add_arrays(void)
{
    static const uint64_t depths[] = {2, 3, 4, 100, 10000};
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++)
        mutate_add(build_nested, UNSUPPORTED, "key test.nested: expected an array of numbers, bools or strings, found",
                   "arrays nested %llu deep", (unsigned long long)depths[i])
            ->value = depths[i];
    for (size_t type = 0; type < ST_GGUF_TYPE_COUNT; type++) {
        if (type == ST_GGUF_ARRAY) continue;
        const char *words = st_gguf_type_name((st_gguf_type)type);
        mutate_case *row = mutate_add(build_array_short, FORMAT, "test.array", "array of %s one item short", words);
        row->place = type;
        row->value = 3;
        row = mutate_add(build_array_short, FORMAT, "test.array", "array of %s with one item and no data", words);
        row->place = type;
        mutate_add(build_value_short, FORMAT, "test.value", "%s value one byte short", words)->place = type;
    }
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */

static void build_many_keys(const mutate_case *row, gguf_writer *w)
{
    gguf_writer_begin(w, 3);
    for (uint64_t i = 0; i < row->value; i++) {
        char name[32];
        snprintf(name, sizeof name, "k%llx", (unsigned long long)i);
        gguf_write_key_sample(w, name, ST_GGUF_U8, false);
    }
    gguf_writer_finish(w);
}

static void build_many_tensors(const mutate_case *row, gguf_writer *w)
{
    gguf_writer_begin(w, 3);
    for (uint64_t i = 0; i < row->value; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%llx", (unsigned long long)i);
        gguf_write_tensor_raw(w, name, strlen(name), ST_TYPE_I8, 1, (uint64_t[]){1}, 0); /* all at offset 0 */
    }
    w->data_bytes = 32;
    gguf_writer_finish(w);
}

static void build_long_string(const mutate_case *row, gguf_writer *w)
{
    gguf_writer_begin(w, 3);
    gguf_write_key(w, "test.string", ST_GGUF_STRING);
    gguf_write_u64(w, row->value);
    if (!st_buf_reserve(&w->out, (size_t)row->value)) return;
    memset(w->out.data + w->out.length, 'x', (size_t)row->value);
    w->out.length += (size_t)row->value;
    gguf_writer_finish(w);
}

static void add_limits(void)
{
    mutate_add(build_many_keys, FORMAT, "at most 65536 keys, found 65537", "one key too many")->value = 65537;
    mutate_add(build_many_tensors, FORMAT, "at most 131072 tensors, found", "one tensor too many")->value = 131073;
    mutate_add(build_many_tensors, FORMAT, "overlaps", "100,000 tensors in one place")->value = 100000;
    mutate_add(build_long_string, FORMAT, "at most 67108864 bytes, found one of 67108865", "a string over 64 MiB")
        ->value = (64 << 20) + 1;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* One tensor of `value` bytes at offset 0, another at offset `place`. */
static void build_overlap(const mutate_case *row, gguf_writer *w)
{
    gguf_writer_begin(w, 3);
    gguf_write_tensor_raw(w, "first", 5, ST_TYPE_I8, 1, &row->value, 0);
    gguf_write_tensor_raw(w, "second", 6, ST_TYPE_I8, 1, (uint64_t[]){8}, row->place);
    w->data_bytes = 512;
    gguf_writer_finish(w);
}

/* Overlapping tensors in reverse order: the directory lists the later one first. */
static void build_overlap_unsorted(const mutate_case *row, gguf_writer *w)
{
    gguf_writer_begin(w, 3);
    gguf_write_tensor_raw(w, "last", 4, ST_TYPE_I8, 1, (uint64_t[]){8}, 64);
    gguf_write_tensor_raw(w, "middle", 6, ST_TYPE_I8, 1, (uint64_t[]){33}, 32);
    gguf_write_tensor_raw(w, "first", 5, ST_TYPE_I8, 1, (uint64_t[]){32}, 0);
    w->data_bytes = row->value;
    gguf_writer_finish(w);
}

static void build_block(const mutate_case *row, gguf_writer *w)
{
    gguf_writer_begin(w, 3);
    gguf_write_tensor_raw(w, "w", 1, (uint32_t)row->place, 2, (uint64_t[]){row->value, 1}, 0);
    w->data_bytes = 1024;
    gguf_writer_finish(w);
}

/* Four dimensions whose product wraps, in bytes or in elements. */
static void build_product(const mutate_case *row, gguf_writer *w)
{
    uint64_t side = row->value;
    gguf_writer_begin(w, 3);
    gguf_write_tensor_raw(w, "w", 1, (uint32_t)row->place, 4, (uint64_t[]){side, side, side, side}, 0);
    w->data_bytes = 1024;
    gguf_writer_finish(w);
}

/* One tensor that is one byte longer than the file. */
static void build_one_byte_short(const mutate_case *row, gguf_writer *w)
{
    gguf_writer_begin(w, 3);
    gguf_write_tensor(w, "w", ST_TYPE_I8, 1, &row->value);
    w->data_bytes = row->value - 1;
    gguf_writer_finish(w);
}

static void build_dirty_padding(const mutate_case *row, gguf_writer *w)
{
    gguf_writer_begin(w, 3);
    gguf_write_tensor(w, "w", ST_TYPE_I8, 1, (uint64_t[]){8});
    size_t end = w->out.length;
    gguf_writer_finish(w);
    w->out.data[row->value ? w->out.length - (size_t)w->data_bytes - 1 : end] = 1;
}

static void add_tensors(void)
{
    static const uint64_t overlaps[] = {1, 2, 31, 32};
    for (size_t i = 0; i < sizeof overlaps / sizeof *overlaps; i++) {
        char message[96];
        snprintf(message, sizeof message, "tensor second: expected data without overlaps, found that it overlaps");
        mutate_case *row =
            mutate_add(build_overlap, FORMAT, message, "overlap by %llu bytes", (unsigned long long)overlaps[i]);
        row->place = 64;
        row->value = 64 + overlaps[i];
    }
    mutate_add(build_overlap, FORMAT, "second", "one tensor inside another")->value = 400;
    mutate_add(build_overlap_unsorted, FORMAT, "tensor last: expected data without overlaps, found that it overlaps tensor m",
               "overlap by 1 in a directory out of order")
        ->value = 128;
    for (size_t i = 0; i < st_type_count(); i++) {
        const st_type_info *info = st_type_find(st_type_at(i));
        if (info->block == 1) continue;
        for (int more = -1; more <= 1; more += 2) {
            mutate_case *row = mutate_add(build_block, FORMAT, info->name, "%s rows of a block %s one element",
                                          info->name, more < 0 ? "less" : "and");
            row->place = st_type_at(i);
            row->value = info->block + (uint64_t)(int64_t)more;
        }
    }
    static const uint64_t sides[] = {65536, 1 << 20, UINT32_MAX, (uint64_t)1 << 32, UINT64_MAX};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
        mutate_case *row = mutate_add(build_product, FORMAT, "expected a size that fits in 64 bits",
                                      "four dimensions of %llu", (unsigned long long)sides[i]);
        row->place = ST_TYPE_F32;
        row->value = sides[i];
    }
    mutate_case *few = mutate_add(build_product, FORMAT, "fits in 64 bits", "elements wrap where bytes do not (IQ1_S)");
    few->place = ST_TYPE_IQ1_S;
    few->value = 65536;
    mutate_add(build_one_byte_short, FORMAT, "1 bytes are missing", "one byte past the end of the file")->value = 33;
    mutate_add(build_one_byte_short, FORMAT, "1 bytes are missing", "a tensor of one byte and no data")->value = 1;
    mutate_add(build_dirty_padding, FORMAT, "expected zeros between the directory", "padding that begins with a one");
    mutate_add(build_dirty_padding, FORMAT, "expected zeros between", "padding that ends with a one")->value = 1;
}

/* ---- one file of a split model, in memory ----------------------------------------------------------------------- */

typedef struct split_row {
    const char *words;
    int number, count, tensors;
    const char *message;
} split_row;

static const split_row split_rows[] = {
    {"first of two alone", 0, 2, 1, "split.count: expected a file by itself, as its name says, found one of 2"},
    {"second of two alone", 1, 2, 2, "found one of 2 files"},
    {"first of 65535 alone", 0, 65535, 1, "found one of 65535 files"},
    {"number 1 of 1", 1, 1, 1, "split.no: expected 0 in a file by itself, found 1"},
    {"two tensors promised, one there", 0, 1, 2, "split.tensors.count: expected 1, the tensors of all files"},
    {"no tensors promised, one there", 0, 1, 0, "split.tensors.count: expected 1"},
    {"count negative", 0, -2, 1, "split.count: expected an integer of 0 or more, found -2"},
    {"number negative", -1, 1, 1, "split.no: expected an integer of 0 or more, found -1"},
    {"tensors negative", 0, 1, -1, "split.tensors.count: expected an integer of 0 or more, found -1"},
};

static void build_split(const mutate_case *row, gguf_writer *w)
{
    const split_row *split = &split_rows[row->place];
    gguf_writer_begin(w, 3);
    gguf_write_key_i32(w, "split.no", split->number);
    gguf_write_key_i32(w, "split.count", split->count);
    gguf_write_key_i32(w, "split.tensors.count", split->tensors);
    gguf_write_tensor(w, "w", ST_TYPE_F32, 1, (uint64_t[]){8});
    gguf_writer_finish(w);
}

/* ---- other files ------------------------------------------------------------------------------------------------- */

static void build_text(const mutate_case *row, gguf_writer *w)
{
    *w = (gguf_writer){0};
    st_buf_append(&w->out, row->text, row->text_length);
    for (uint64_t i = 0; i < row->value; i++) st_buf_append_char(&w->out, (char)row->place);
}

typedef struct text_row {
    const char *words;
    const char *text;
    size_t length;
    int fill;
    size_t filled;
    unsigned statuses;
    const char *message;
} text_row;

static const text_row text_rows[] = {
    {"an empty file", TEXT(""), 0, 0, FORMAT, "found an empty file"},
    {"one byte", TEXT("G"), 0, 0, FORMAT, "expected the bytes \"GGUF\""},
    {"three bytes", TEXT("GGU"), 0, 0, FORMAT, "found 47 47 55 00"},
    {"the magic alone", TEXT("GGUF"), 0, 0, FORMAT, "the version: expected 4 bytes at offset 4, found 0"},
    {"magic and version alone", TEXT("GGUF\3\0\0\0"), 0, 0, FORMAT, "the number of tensors"},
    {"half of the tensor count", TEXT("GGUF\3\0\0\0\0\0\0\0"), 0, 0, FORMAT, "the number of tensors"},
    {"no key count", TEXT("GGUF\3\0\0\0\0\0\0\0\0\0\0\0"), 0, 0, FORMAT, "the number of keys"},
    {"64 zeros", TEXT(""), 0, 64, FORMAT, "found 00 00 00 00"},
    {"64 bytes of 0xFF", TEXT(""), 0xFF, 64, FORMAT, "found ff ff ff ff"},
    {"the magic and 0xFF", TEXT("GGUF"), 0xFF, 64, UNSUPPORTED, "version"},
    {"version 3 and 0xFF", TEXT("GGUF\3\0\0\0"), 0xFF, 64, FORMAT, "at most 65536 keys"},
    {"a Git LFS pointer", TEXT("version https://git-lfs.github.com/spec/v1\n"), 'x', 90, UNSUPPORTED, "LFS pointer"},
    {"a web page", TEXT("<!DOCTYPE html><html>"), ' ', 90, UNSUPPORTED, "a web page"},
    {"a web page in small letters", TEXT("<!doctype html>"), ' ', 90, UNSUPPORTED, "a web page"},
    {"a web page without a type", TEXT("<html lang=en>"), ' ', 90, UNSUPPORTED, "a web page"},
    {"a safetensors file", TEXT("\x40\0\0\0\0\0\0\0{\"a\":"), ' ', 90, UNSUPPORTED, "safetensors"},
    {"plain text", TEXT("hello, world"), '\n', 3, FORMAT, "expected the bytes \"GGUF\""},
    {"terminal codes", TEXT("\033[2J\033[H"), 0, 3, FORMAT, "found 1b 5b 32 4a"},
};

void mutate_add_files(void)
{
    add_names();
    add_doubles();
    add_arrays();
    add_limits();
    add_tensors();
    for (size_t i = 0; i < sizeof split_rows / sizeof *split_rows; i++)
        mutate_add(build_split, FORMAT, split_rows[i].message, "split: %s", split_rows[i].words)->place = i;
    for (size_t i = 0; i < sizeof text_rows / sizeof *text_rows; i++) {
        const text_row *row = &text_rows[i];
        mutate_case *added = mutate_add(build_text, row->statuses, row->message, "%s", row->words);
        added->text = row->text;
        added->text_length = row->length;
        added->place = (size_t)row->fill;
        added->value = row->filled;
    }
}
