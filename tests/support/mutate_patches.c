/* A valid file with one number changed, and the same file truncated at each field. */
#include <stdio.h>

#include "support/mutate.h"

/* name, words, bytes */
#define PLACES(X)                                       \
    X(MAGIC, "magic", 4)                                \
    X(VERSION, "version", 4)                            \
    X(TENSOR_COUNT, "tensor count", 8)                  \
    X(KEY_COUNT, "key count", 8)                        \
    X(NAME_LENGTH, "key name length", 8)                \
    X(VALUE_TYPE, "value type", 4)                      \
    X(STRING_LENGTH, "string length", 8)                \
    X(ALIGNMENT, "alignment", 4)                        \
    X(BLOCK_COUNT_TYPE, "value type of block_count", 4) \
    X(BOOL, "bool", 1)                                  \
    X(BOOLS_COUNT, "bool array count", 8)               \
    X(BOOLS_ITEM, "bool in an array", 1)                \
    X(ITEM_TYPE, "item type", 4)                        \
    X(NUMBERS_COUNT, "number array count", 8)           \
    X(STRINGS_COUNT, "string array count", 8)           \
    X(STRINGS_LENGTH, "length of a string in an array", 8) \
    X(LAST_KEY, "last key", 8)                          \
    X(TENSOR_NAME_LENGTH, "tensor name length", 8)      \
    X(DIM_COUNT, "dimension count", 4)                  \
    X(NE0, "dimension 0", 8)                            \
    X(NE1, "dimension 1", 8)                            \
    X(TENSOR_TYPE, "tensor type", 4)                    \
    X(SECOND_NE0, "dimension 0 of a Q8_0 tensor", 8)    \
    X(SECOND_OFFSET, "offset of the second tensor", 8)  \
    X(LAST_OFFSET, "offset of the last tensor", 8)      \
    X(DATA, "data", 8)

enum {
#define X(name, words, bytes) PLACE_##name,
    PLACES(X)
#undef X
        PLACE_COUNT
};

static const char *const place_words[] = {
#define X(name, words, bytes) words,
    PLACES(X)
#undef X
};

static const size_t place_bytes[] = {
#define X(name, words, bytes) bytes,
    PLACES(X)
#undef X
};

/* Tensor a: 32 bytes of data at 0, b: 68 at 32, c: 6 at 128. */
static void good_tensors(gguf_writer *w, size_t marks[PLACE_COUNT])
{
    marks[PLACE_TENSOR_NAME_LENGTH] = w->out.length;
    marks[PLACE_DIM_COUNT] = w->out.length + 9;
    marks[PLACE_NE0] = w->out.length + 13;
    marks[PLACE_NE1] = w->out.length + 21;
    marks[PLACE_TENSOR_TYPE] = w->out.length + 29;
    gguf_write_tensor(w, "a", ST_TYPE_F32, 2, (uint64_t[]){4, 2});
    marks[PLACE_SECOND_NE0] = w->out.length + 13;
    gguf_write_tensor(w, "b", ST_TYPE_Q8_0, 2, (uint64_t[]){32, 2});
    marks[PLACE_SECOND_OFFSET] = w->out.length - 8;
    gguf_write_tensor(w, "c", ST_TYPE_F16, 1, (uint64_t[]){3});
    marks[PLACE_LAST_OFFSET] = w->out.length - 8;
    gguf_writer_finish(w);
    marks[PLACE_DATA] = w->out.length - (size_t)w->data_bytes;
}

static void good_file(gguf_writer *w, size_t marks[PLACE_COUNT])
{
    static const char *const words[] = {"x", "yz", "▁w"};
    gguf_writer_begin(w, 3);
    marks[PLACE_MAGIC] = 0;
    marks[PLACE_VERSION] = 4;
    marks[PLACE_TENSOR_COUNT] = 8;
    marks[PLACE_KEY_COUNT] = 16;
    marks[PLACE_NAME_LENGTH] = w->out.length;
    marks[PLACE_VALUE_TYPE] = w->out.length + 8 + strlen("general.architecture");
    marks[PLACE_STRING_LENGTH] = marks[PLACE_VALUE_TYPE] + 4;
    gguf_write_key_string(w, "general.architecture", "llama");
    gguf_write_key_u32(w, "general.alignment", 32);
    marks[PLACE_ALIGNMENT] = w->out.length - 4;
    gguf_write_key_u32(w, "llama.block_count", 2);
    marks[PLACE_BLOCK_COUNT_TYPE] = w->out.length - 8;
    gguf_write_key_bool(w, "test.bool", true);
    marks[PLACE_BOOL] = w->out.length - 1;
    gguf_write_key_array(w, "test.bools", ST_GGUF_BOOL, 4);
    marks[PLACE_BOOLS_COUNT] = w->out.length - 8;
    st_buf_append(&w->out, "\1\0\1\1", 4);
    marks[PLACE_BOOLS_ITEM] = w->out.length - 2;
    gguf_write_key_array(w, "test.numbers", ST_GGUF_F32, 5);
    marks[PLACE_ITEM_TYPE] = w->out.length - 12;
    marks[PLACE_NUMBERS_COUNT] = w->out.length - 8;
    for (uint32_t i = 0; i < 5; i++) gguf_write_u32(w, 0x3F800000 + i);
    marks[PLACE_STRINGS_COUNT] = w->out.length + 8 + strlen("tokenizer.ggml.tokens") + 8;
    marks[PLACE_STRINGS_LENGTH] = marks[PLACE_STRINGS_COUNT] + 8 + 8 + 1;
    gguf_write_key_strings(w, "tokenizer.ggml.tokens", words, 3);
    marks[PLACE_LAST_KEY] = w->out.length;
    gguf_write_key_sample(w, "test.wide", ST_GGUF_U64, false);
    good_tensors(w, marks);
}

/* ---- builders ---------------------------------------------------------------------------------------------------- */

static void build_set(const mutate_case *row, gguf_writer *w)
{
    size_t marks[PLACE_COUNT];
    good_file(w, marks);
    memcpy(w->out.data + marks[row->place], &row->value, place_bytes[row->place]);
}

static void build_add(const mutate_case *row, gguf_writer *w)
{
    size_t marks[PLACE_COUNT];
    good_file(w, marks);
    uint64_t value = 0;
    memcpy(&value, w->out.data + marks[row->place], place_bytes[row->place]);
    value += row->value;
    memcpy(w->out.data + marks[row->place], &value, place_bytes[row->place]);
}

/* Sets the number to the file's size, or to the bytes left after it, plus `value`. */
static void build_size(const mutate_case *row, gguf_writer *w)
{
    size_t marks[PLACE_COUNT];
    good_file(w, marks);
    uint64_t value = w->out.length + row->value;
    memcpy(w->out.data + marks[row->place], &value, 8);
}

static void build_left(const mutate_case *row, gguf_writer *w)
{
    size_t marks[PLACE_COUNT];
    good_file(w, marks);
    uint64_t value = w->out.length - marks[row->place] - 8 + row->value;
    memcpy(w->out.data + marks[row->place], &value, 8);
}

static void build_cut(const mutate_case *row, gguf_writer *w)
{
    size_t marks[PLACE_COUNT];
    good_file(w, marks);
    w->out.length = marks[row->place] + (size_t)row->value;
}

/* Truncates `value` bytes of the last tensor's data. */
static void build_cut_end(const mutate_case *row, gguf_writer *w)
{
    size_t marks[PLACE_COUNT];
    good_file(w, marks);
    w->out.length = marks[PLACE_DATA] + 128 + 6 - (size_t)row->value;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

typedef struct patch {
    size_t place;
    uint64_t value;
    unsigned statuses;
    const char *message;
} patch;

#define FORMAT MUTATE_STATUS(FORMAT)
#define UNSUPPORTED MUTATE_STATUS(UNSUPPORTED)
#define TWO(n) ((uint64_t)1 << (n))

static const patch patches[] = {
    {PLACE_MAGIC, 0, FORMAT, "expected the bytes \"GGUF\""},
    {PLACE_MAGIC, 0x55474746, FORMAT, "expected the bytes \"GGUF\""},
    {PLACE_MAGIC, 0x46554746, FORMAT, "expected the bytes \"GGUF\""},
    {PLACE_MAGIC, 0x47475546, UNSUPPORTED, "big-endian"},
    {PLACE_MAGIC, 0x67676D6C, UNSUPPORTED, "a GGML file"},
    {PLACE_MAGIC, 0x67676A74, UNSUPPORTED, "a GGJT file"},
    {PLACE_MAGIC, 0x67676D66, UNSUPPORTED, "a GGMF file"},
    {PLACE_MAGIC, 0x04034B50, UNSUPPORTED, "a zip archive"},
    {PLACE_VERSION, 0, UNSUPPORTED, "expected GGUF version 2 or 3, found 0"},
    {PLACE_VERSION, 1, UNSUPPORTED, "expected GGUF version 2 or 3, found 1"},
    {PLACE_VERSION, 4, UNSUPPORTED, "expected GGUF version 2 or 3, found 4"},
    {PLACE_VERSION, 0x01000000, UNSUPPORTED, "big-endian one (version 1)"},
    {PLACE_VERSION, 0x02000000, UNSUPPORTED, "big-endian one (version 2)"},
    {PLACE_VERSION, 0x03000000, UNSUPPORTED, "big-endian one (version 3)"},
    {PLACE_VERSION, TWO(31), UNSUPPORTED, "big-endian"},
    {PLACE_VERSION, UINT32_MAX, UNSUPPORTED, "found 4294967295"},
    {PLACE_VALUE_TYPE, 13, UNSUPPORTED, "general.architecture: the type: expected a value type below 13, found 13"},
    {PLACE_VALUE_TYPE, 14, UNSUPPORTED, "found 14"},
    {PLACE_VALUE_TYPE, 255, UNSUPPORTED, "found 255"},
    {PLACE_VALUE_TYPE, TWO(31), UNSUPPORTED, "found 2147483648"},
    {PLACE_VALUE_TYPE, UINT32_MAX, UNSUPPORTED, "found 4294967295"},
    {PLACE_VALUE_TYPE, ST_GGUF_ARRAY, MUTATE_ANY_ERROR, ""},
    {PLACE_VALUE_TYPE, ST_GGUF_U32, MUTATE_ANY_ERROR, ""},
    {PLACE_BLOCK_COUNT_TYPE, ST_GGUF_F32, FORMAT, "llama.block_count: expected an integer of 0 or more, found f32"},
    {PLACE_BLOCK_COUNT_TYPE, ST_GGUF_U8, MUTATE_ANY_ERROR, ""},
    {PLACE_BLOCK_COUNT_TYPE, ST_GGUF_U64, MUTATE_ANY_ERROR, ""},
    {PLACE_BLOCK_COUNT_TYPE, ST_GGUF_STRING, MUTATE_ANY_ERROR, ""},
    {PLACE_ITEM_TYPE, ST_GGUF_ARRAY, UNSUPPORTED, "test.numbers: expected an array of numbers, bools or strings"},
    {PLACE_ITEM_TYPE, ST_GGUF_STRING, FORMAT, "test.numbers"},
    {PLACE_ITEM_TYPE, ST_GGUF_BOOL, FORMAT, "test.numbers: expected a bool of 0 or 1"},
    {PLACE_ITEM_TYPE, ST_GGUF_U64, MUTATE_ANY_ERROR, ""},
    {PLACE_ITEM_TYPE, 13, UNSUPPORTED, "the type of the items"},
    {PLACE_ITEM_TYPE, UINT32_MAX, UNSUPPORTED, "found 4294967295"},
    {PLACE_BOOL, 2, FORMAT, "test.bool: expected a bool of 0 or 1, found 2"},
    {PLACE_BOOL, 255, FORMAT, "found 255"},
    {PLACE_BOOLS_ITEM, 2, FORMAT, "test.bools: expected a bool of 0 or 1, found 2"},
    {PLACE_BOOLS_ITEM, 128, FORMAT, "found 128"},
    {PLACE_ALIGNMENT, 0, FORMAT, "general.alignment: expected a power of two from 8 to 1048576, found 0"},
    {PLACE_ALIGNMENT, 1, FORMAT, "found 1"},
    {PLACE_ALIGNMENT, 3, FORMAT, "found 3"},
    {PLACE_ALIGNMENT, 4, FORMAT, "found 4"},
    {PLACE_ALIGNMENT, 24, FORMAT, "found 24"},
    {PLACE_ALIGNMENT, 31, FORMAT, "found 31"},
    {PLACE_ALIGNMENT, 33, FORMAT, "found 33"},
    {PLACE_ALIGNMENT, 64, FORMAT, "multiple of the alignment 64, found 32"},
    {PLACE_ALIGNMENT, TWO(20) + 1, FORMAT, "found 1048577"},
    {PLACE_ALIGNMENT, TWO(21), FORMAT, "found 2097152"},
    {PLACE_ALIGNMENT, TWO(30), FORMAT, "found 1073741824"},
    {PLACE_ALIGNMENT, TWO(31), FORMAT, "found 2147483648"},
    {PLACE_ALIGNMENT, UINT32_MAX, FORMAT, "found 4294967295"},
    {PLACE_DIM_COUNT, 0, FORMAT, "tensor a: expected 1 to 4 dimensions, found 0"},
    {PLACE_DIM_COUNT, 5, FORMAT, "found 5"},
    {PLACE_DIM_COUNT, 6, FORMAT, "found 6"},
    {PLACE_DIM_COUNT, 255, FORMAT, "found 255"},
    {PLACE_DIM_COUNT, TWO(31), FORMAT, "found 2147483648"},
    {PLACE_DIM_COUNT, UINT32_MAX, FORMAT, "found 4294967295"},
    {PLACE_DIM_COUNT, 1, MUTATE_ANY_ERROR, ""},
    {PLACE_DIM_COUNT, 3, MUTATE_ANY_ERROR, ""},
    {PLACE_NE0, 0, FORMAT, "tensor a: expected at least one element in each dimension, found 0 in dimension 0"},
    {PLACE_NE0, 5, FORMAT, "tensor b: expected data without overlaps, found that it overlaps tensor a by 8 bytes"},
    {PLACE_NE0, TWO(20), FORMAT, "bytes are missing"},
    {PLACE_NE0, TWO(40), FORMAT, "bytes are missing"},
    {PLACE_NE0, TWO(60), FORMAT, "bytes are missing"},
    {PLACE_NE0, TWO(61), FORMAT, "expected a size that fits in 64 bits"},
    {PLACE_NE0, TWO(61) - 1, FORMAT, "expected an end that fits in 64 bits"},
    {PLACE_NE0, TWO(62), FORMAT, "expected a size that fits in 64 bits"},
    {PLACE_NE0, TWO(63) - 1, FORMAT, "expected a size that fits in 64 bits"},
    {PLACE_NE0, TWO(63), FORMAT, "expected a size that fits in 64 bits"},
    {PLACE_NE0, UINT64_MAX, FORMAT, "expected a size that fits in 64 bits"},
    {PLACE_NE1, 0, FORMAT, "found 0 in dimension 1"},
    {PLACE_NE1, 3, FORMAT, "overlaps tensor a by 16 bytes"},
    {PLACE_NE1, TWO(59), FORMAT, "bytes are missing"},
    {PLACE_NE1, TWO(60), FORMAT, "expected a size that fits in 64 bits"},
    {PLACE_NE1, TWO(63), FORMAT, "expected a size that fits in 64 bits"},
    {PLACE_NE1, UINT64_MAX, FORMAT, "expected a size that fits in 64 bits"},
    {PLACE_SECOND_NE0, 31, FORMAT, "tensor b: expected rows of a whole number of Q8_0 blocks (32 elements), found 31"},
    {PLACE_SECOND_NE0, 33, FORMAT, "found 33 elements"},
    {PLACE_SECOND_NE0, 1, FORMAT, "found 1 elements"},
    {PLACE_SECOND_NE0, UINT64_MAX, FORMAT, "whole number of Q8_0 blocks"},
    {PLACE_SECOND_NE0, UINT64_MAX - 31, FORMAT, "expected a size that fits in 64 bits"},
    {PLACE_SECOND_NE0, 64, FORMAT, "tensor b: expected a file of at least 648 bytes, found 640: 8 bytes are missing"},
    {PLACE_TENSOR_TYPE, 4, UNSUPPORTED, "found number 4 (Q4_2"},
    {PLACE_TENSOR_TYPE, 5, UNSUPPORTED, "found number 5 (Q4_3"},
    {PLACE_TENSOR_TYPE, 9, UNSUPPORTED, "found number 9 (Q8_1"},
    {PLACE_TENSOR_TYPE, 15, UNSUPPORTED, "found number 15 (Q8_K"},
    {PLACE_TENSOR_TYPE, 31, UNSUPPORTED, "found number 31 (Q4_0_4_4"},
    {PLACE_TENSOR_TYPE, 32, UNSUPPORTED, "found number 32 "},
    {PLACE_TENSOR_TYPE, 33, UNSUPPORTED, "found number 33 "},
    {PLACE_TENSOR_TYPE, 36, UNSUPPORTED, "found number 36 "},
    {PLACE_TENSOR_TYPE, 37, UNSUPPORTED, "found number 37 "},
    {PLACE_TENSOR_TYPE, 38, UNSUPPORTED, "found number 38 "},
    {PLACE_TENSOR_TYPE, 41, FORMAT, "tensor a: expected rows of a whole number of Q1_0 blocks (128 elements), found 4 elements"},
    {PLACE_TENSOR_TYPE, 42, FORMAT, "tensor a: expected rows of a whole number of Q2_0 blocks (64 elements), found 4 elements"},
    {PLACE_TENSOR_TYPE, 43, UNSUPPORTED, "tensor a: expected a tensor type that strata reads, found number 43 (unknown)"},
    {PLACE_TENSOR_TYPE, 255, UNSUPPORTED, "found number 255 "},
    {PLACE_TENSOR_TYPE, TWO(31), UNSUPPORTED, "found number 2147483648 "},
    {PLACE_TENSOR_TYPE, UINT32_MAX, UNSUPPORTED, "found number 4294967295 "},
    {PLACE_TENSOR_TYPE, ST_TYPE_Q4_K, FORMAT, "whole number of Q4_K blocks (256 elements), found 4"},
    {PLACE_TENSOR_TYPE, ST_TYPE_F64, FORMAT, "overlaps tensor a by 32 bytes"},
    {PLACE_SECOND_OFFSET, 0, FORMAT, "overlaps tensor a by 32 bytes"},
    {PLACE_SECOND_OFFSET, 1, FORMAT, "tensor b: expected an offset that is a multiple of the alignment 32, found 1"},
    {PLACE_SECOND_OFFSET, 31, FORMAT, "found 31"},
    {PLACE_SECOND_OFFSET, 33, FORMAT, "found 33"},
    {PLACE_SECOND_OFFSET, 48, FORMAT, "found 48"},
    {PLACE_SECOND_OFFSET, 64, FORMAT, "tensor c: expected data without overlaps, found that it overlaps tensor b by 4"},
    {PLACE_SECOND_OFFSET, 128, FORMAT, "36 bytes are missing"},
    {PLACE_SECOND_OFFSET, 160, FORMAT, "tensor b: expected a file of at least"},
    {PLACE_SECOND_OFFSET, TWO(32), FORMAT, "bytes are missing"},
    {PLACE_SECOND_OFFSET, TWO(63), FORMAT, "bytes are missing"},
    {PLACE_SECOND_OFFSET, UINT64_MAX, FORMAT, "multiple of the alignment"},
    {PLACE_SECOND_OFFSET, UINT64_MAX - 31, FORMAT, "expected an end that fits in 64 bits"},
    {PLACE_LAST_OFFSET, 0, FORMAT, "overlaps tensor a by 32 bytes"},
    {PLACE_LAST_OFFSET, 32, FORMAT, "overlaps tensor b by 68 bytes"},
    {PLACE_LAST_OFFSET, 96, FORMAT, "overlaps tensor b by 4 bytes"},
    {PLACE_LAST_OFFSET, 160, FORMAT, "6 bytes are missing"},
};

/* Each 8-byte length and count is set to each of these values. */
static const size_t lengths[] = {PLACE_TENSOR_COUNT,  PLACE_KEY_COUNT,     PLACE_NAME_LENGTH,
                                 PLACE_STRING_LENGTH, PLACE_BOOLS_COUNT,   PLACE_NUMBERS_COUNT,
                                 PLACE_STRINGS_COUNT, PLACE_STRINGS_LENGTH, PLACE_TENSOR_NAME_LENGTH};

typedef struct hostile {
    const char *words;
    mutate_build *build;
    uint64_t value;
} hostile;

static const hostile hostiles[] = {
    {"2^64-1", build_set, UINT64_MAX},   {"2^64-8", build_set, UINT64_MAX - 7}, {"2^63", build_set, TWO(63)},
    {"2^63-1", build_set, TWO(63) - 1},  {"2^62", build_set, TWO(62)},          {"2^62+1", build_set, TWO(62) + 1},
    {"2^61", build_set, TWO(61)},        {"2^61+1", build_set, TWO(61) + 1},    {"2^40", build_set, TWO(40)},
    {"2^32", build_set, TWO(32)},        {"2^32-1", build_set, UINT32_MAX},     {"2^31", build_set, TWO(31)},
    {"the file's size", build_size, 0},  {"the file's size + 1", build_size, 1},
    {"the file's size - 1", build_size, UINT64_MAX}, {"what is left + 1", build_left, 1},
    {"one more", build_add, 1},          {"one less", build_add, UINT64_MAX},
};

void mutate_add_patches(void)
{
    for (size_t i = 0; i < sizeof patches / sizeof *patches; i++) {
        const patch *row = &patches[i];
        mutate_case *added = mutate_add(build_set, row->statuses, row->message, "%s is %llu", place_words[row->place],
                                        (unsigned long long)row->value);
        added->place = row->place;
        added->value = row->value;
    }
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (size_t j = 0; j < sizeof hostiles / sizeof *hostiles; j++) {
            mutate_case *added = mutate_add(hostiles[j].build, MUTATE_ANY_ERROR, "", "%s is %s",
                                            place_words[lengths[i]], hostiles[j].words);
            added->place = lengths[i];
            added->value = hostiles[j].value;
        }
    for (size_t i = 0; i < PLACE_COUNT; i++)
        for (size_t more = 0; more < 2; more++) {
            mutate_case *added = mutate_add(build_cut, MUTATE_ANY_ERROR, i == 0 && more == 0 ? "an empty file" : "",
                                            "cut %s the %s", more ? "inside" : "before", place_words[i]);
            added->place = i;
            added->value = more;
        }
    static const uint64_t missing[] = {1, 2, 5, 6, 7, 100, 133, 134};
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
        char message[64];
        snprintf(message, sizeof message, ": %llu bytes are missing", (unsigned long long)missing[i]);
        mutate_add(build_cut_end, FORMAT, message, "the data ends %llu bytes early", (unsigned long long)missing[i])
            ->value = missing[i];
    }
}
