/* Valid files: the directory, the getters, values at the limits, and that opening reads no tensor data. */
#include "support/kit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "gguf/limits.h"
#include "support/gguf_walk.h"
#include "support/mutate.h"

static st_gguf *open_writer(gguf_writer *writer)
{
    gguf_writer_finish(writer);
    assert_false(writer->out.failed);
    st_gguf *gguf = NULL;
    strata_error error = {0};
    if (st_gguf_open_memory("test.gguf", writer->out.data, writer->out.length, &gguf, &error) != STRATA_OK)
        fail_msg("%s", error.message);
    return gguf;
}

static void close_both(st_gguf *gguf, gguf_writer *writer)
{
    st_gguf_close(gguf);
    gguf_writer_free(writer);
}

static st_gguf *open_path(const char *path)
{
    st_gguf *gguf = NULL;
    strata_error error = {0};
    if (st_gguf_open(path, &gguf, &error) != STRATA_OK) fail_msg("%s", error.message);
    (void)gguf_walk(gguf);
    return gguf;
}

/* ---- the kit ----------------------------------------------------------------------------------------------------- */

typedef struct kit_file {
    const char *name;
    size_t keys, tensors;
} kit_file;

static void kit_files(void **state)
{
    (void)state;
    static const kit_file files[] = {
        {"llama.gguf", 28, 38},        {"mixtral.gguf", 28, 43},      {"qwen2.gguf", 24, 50},
        {"qwen3.gguf", 26, 47},        {"qwen2moe.gguf", 28, 71},     {"qwen3moe.gguf", 29, 51},
        {"olmoe.gguf", 26, 51},        {"llama4.gguf", 32, 55},       {"gemma4-e.gguf", 36, 99},
        {"gemma4-dense.gguf", 36, 85}, {"gemma4-moe.gguf", 39, 133},  {"qwen35.gguf", 35, 71},
        {"qwen35moe.gguf", 38, 96},    {"llama.expect.gguf", 3, 4},   {"qwen35.expect.gguf", 3, 5},
        {"quant/rows.gguf", 1, 77},    {"smollm2/logits.gguf", 1, 3}, {"tokenizer/gpt-2.vocab.gguf", 8, 0},
        {"tokenizer/llama-spm.vocab.gguf", 22, 0},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *path = kit_path(files[i].name);
        st_gguf *gguf = open_path(path);
        struct stat info;
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(st_gguf_key_count(gguf), files[i].keys);
        assert_int_equal(st_gguf_tensor_count(gguf), files[i].tensors);
        assert_int_equal(st_gguf_file_bytes(gguf), info.st_size);
        assert_true(st_gguf_tensor_bytes(gguf) < (uint64_t)info.st_size);
        assert_int_equal(st_gguf_file_count(gguf), 1);
        assert_string_equal(st_gguf_path(gguf), path);
        st_gguf_close(gguf);
    }
}

static void kit_model(void **state)
{
    (void)state;
    st_gguf *gguf = open_path(kit_path("gemma4-dense.gguf"));
    assert_int_equal(st_gguf_version(gguf), 3);
    uint64_t number = 0;
    st_str text = {0};
    bool found = false;
    assert_int_equal(st_gguf_get_str(gguf, "general.architecture", &text, &found, NULL), STRATA_OK);
    assert_true(found && st_str_is(text, "gemma4"));
    assert_int_equal(st_gguf_get_u64(gguf, "gemma4.embedding_length", &number, &found, NULL), STRATA_OK);
    assert_int_equal(number, 64);
    const st_gguf_key *heads = NULL;
    assert_int_equal(st_gguf_get_array(gguf, "gemma4.attention.head_count_kv", ST_GGUF_I64, &heads, NULL), STRATA_OK);
    assert_non_null(heads);
    assert_true(st_gguf_item_i64(heads, 0) >= 1);
    const st_gguf_tensor *embedding = st_gguf_tensor_find(gguf, "token_embd.weight");
    assert_non_null(embedding);
    assert_int_equal(embedding->ne[0], 64);
    assert_int_equal(embedding->ne[1], 320);
    assert_int_equal(embedding->ne[2], 1);
    assert_int_equal(embedding->bytes, 64 * 320 * 4);
    assert_int_equal((uintptr_t)embedding->data % 32, 0);
    assert_null(st_gguf_tensor_find(gguf, "token_embd"));
    assert_null(st_gguf_tensor_at(gguf, st_gguf_tensor_count(gguf)));
    assert_null(st_gguf_key_at(gguf, st_gguf_key_count(gguf)));
    st_gguf_close(gguf);
}

static void kit_whole(void **state)
{
    (void)state;
    static const char *const names[] = {"tokenizer/gemma4.vocab.gguf",      "tokenizer/qwen2.vocab.gguf",
                                        "tokenizer/llama-bpe.vocab.gguf",   "tokenizer/tekken.vocab.gguf",
                                        "tokenizer/deepseek-v3.vocab.gguf", "llama4-long.gguf"};
    if (!kit_path_optional(names[0])) skip();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) st_gguf_close(open_path(kit_path(names[i])));
}

/* ---- getters ----------------------------------------------------------------------------------------------------- */

static void check_message(const strata_error *error, const char *text)
{
    if (!strstr(error->message, text)) fail_msg("expected \"%s\" in: %s", text, error->message);
}

static void getters_of_every_type(void **state)
{
    (void)state;
    for (int type = 0; type < ST_GGUF_TYPE_COUNT; type++) {
        if (type == ST_GGUF_ARRAY) continue;
        gguf_writer writer;
        gguf_writer_begin(&writer, 3);
        gguf_write_key_sample(&writer, "one", (st_gguf_type)type, false);
        gguf_write_key_sample(&writer, "many", (st_gguf_type)type, true);
        st_gguf *gguf = open_writer(&writer);
        strata_error error;
        uint64_t number = 77;
        double real = 77;
        bool truth = false, found = false;
        st_str text = ST_STR("77");
        bool is_float = type == ST_GGUF_F32 || type == ST_GGUF_F64, is_bool = type == ST_GGUF_BOOL;
        bool is_string = type == ST_GGUF_STRING, is_integer = !is_float && !is_bool && !is_string;

        bool got = st_gguf_get_u64(gguf, "one", &number, &found, &error) == STRATA_OK;
        assert_int_equal(got, is_integer);
        assert_int_equal(number, is_integer ? 1 : 77);
        if (!got) check_message(&error, "test.gguf: key one: expected an integer, found ");
        assert_true(found);
        got = st_gguf_get_f64(gguf, "one", &real, &found, &error) == STRATA_OK;
        assert_int_equal(got, is_float);
        assert_true(real == (is_float ? 1 : 77));
        if (!got) check_message(&error, "key one: expected a float, found ");
        got = st_gguf_get_bool(gguf, "one", &truth, &found, &error) == STRATA_OK;
        assert_int_equal(got, is_bool);
        assert_int_equal(truth, is_bool);
        if (!got) check_message(&error, "key one: expected a bool, found ");
        got = st_gguf_get_str(gguf, "one", &text, &found, &error) == STRATA_OK;
        assert_int_equal(got, is_string);
        assert_true(st_str_is(text, is_string ? "1" : "77"));
        if (!got) check_message(&error, "key one: expected a string, found ");
        assert_int_equal(st_gguf_get_u64(gguf, "many", &number, NULL, &error), STRATA_FORMAT);
        check_message(&error, "found an array of ");
        assert_int_equal(st_gguf_get_str(gguf, "many", &text, NULL, &error), STRATA_FORMAT);

        for (int wanted = 0; wanted < ST_GGUF_TYPE_COUNT; wanted++) {
            const st_gguf_key *array = NULL;
            bool right = wanted == type || (wanted == ST_GGUF_I64 && is_integer) || (wanted == ST_GGUF_F64 && is_float);
            got = st_gguf_get_array(gguf, "many", (st_gguf_type)wanted, &array, &error) == STRATA_OK;
            assert_int_equal(got, right);
            assert_int_equal(array != NULL, right);
            if (!got) check_message(&error, "key many: expected an array of ");
            assert_int_equal(st_gguf_get_array(gguf, "one", (st_gguf_type)wanted, &array, &error), STRATA_FORMAT);
        }
        const st_gguf_key *many = st_gguf_key_find(gguf, "many");
        assert_int_equal(many->count, 2);
        assert_int_equal(st_gguf_item_i64(many, 1), !is_string);
        assert_true(st_gguf_item_f64(many, 1) == !is_string);
        assert_int_equal(st_gguf_item_i64(many, 2), 0); /* out of range reads nothing */
        close_both(gguf, &writer);
    }
}

static void getters_of_absent_keys(void **state)
{
    (void)state;
    gguf_writer writer;
    gguf_writer_begin(&writer, 3);
    st_gguf *gguf = open_writer(&writer); /* neither keys nor tensors: a valid file */
    uint64_t number = 5;
    double real = 5;
    bool truth = true, found = true;
    st_str text = ST_STR("kept");
    const st_gguf_key *array = st_gguf_key_at(gguf, 0);
    assert_null(array);
    assert_int_equal(st_gguf_get_u64(gguf, "a", &number, &found, NULL), STRATA_OK);
    assert_true(number == 5 && !found);
    assert_int_equal(st_gguf_get_f64(gguf, "a", &real, NULL, NULL), STRATA_OK);
    assert_int_equal(st_gguf_get_bool(gguf, "a", &truth, NULL, NULL), STRATA_OK);
    assert_int_equal(st_gguf_get_str(gguf, "a", &text, NULL, NULL), STRATA_OK);
    assert_int_equal(st_gguf_get_array(gguf, "a", ST_GGUF_U8, &array, NULL), STRATA_OK);
    assert_true(real == 5 && truth && st_str_is(text, "kept") && !array);
    assert_int_equal(st_gguf_key_count(gguf) + st_gguf_tensor_count(gguf), 0);
    close_both(gguf, &writer);
}

static void integers_at_their_limits(void **state)
{
    (void)state;
    gguf_writer writer;
    gguf_writer_begin(&writer, 3);
    gguf_write_key_bytes(&writer, "i8", ST_GGUF_I8, "\x80", 1);
    gguf_write_key_bytes(&writer, "i16", ST_GGUF_I16, "\xFF\xFF", 2);
    gguf_write_key_i32(&writer, "i32", INT32_MIN);
    gguf_write_key_bytes(&writer, "i64", ST_GGUF_I64, "\0\0\0\0\0\0\0\x80", 8);
    gguf_write_key_bytes(&writer, "u64", ST_GGUF_U64, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 8);
    gguf_write_key_bytes(&writer, "u8", ST_GGUF_U8, "\xFF", 1);
    gguf_write_key_array(&writer, "u64s", ST_GGUF_U64, 2);
    gguf_write_u64(&writer, UINT64_MAX);
    gguf_write_u64(&writer, 7);
    gguf_write_key_array(&writer, "i8s", ST_GGUF_I8, 2);
    st_buf_append(&writer.out, "\x80\x7F", 2);
    gguf_write_key_array(&writer, "f64s", ST_GGUF_F64, 3);
    const double reals[] = {1e300, -1e300, 0.0 / 1.0};
    st_buf_append(&writer.out, reals, sizeof reals);
    st_gguf *gguf = open_writer(&writer);
    strata_error error;
    uint64_t number = 0;
    static const char *const negative[] = {"i8", "i16", "i32", "i64"};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(st_gguf_get_u64(gguf, negative[i], &number, NULL, &error), STRATA_FORMAT);
        check_message(&error, "expected an integer of 0 or more, found -");
    }
    assert_int_equal(st_gguf_get_u64(gguf, "u64", &number, NULL, &error), STRATA_OK);
    assert_true(number == UINT64_MAX);
    assert_int_equal(st_gguf_get_u64(gguf, "u8", &number, NULL, &error), STRATA_OK);
    assert_true(number == 255);
    const st_gguf_key *array = st_gguf_key_find(gguf, "u64s");
    assert_true(st_gguf_item_i64(array, 0) == INT64_MAX && st_gguf_item_i64(array, 1) == 7);
    assert_true(st_gguf_item_f64(array, 0) == 18446744073709551616.0);
    array = st_gguf_key_find(gguf, "i8s");
    assert_true(st_gguf_item_i64(array, 0) == -128 && st_gguf_item_f64(array, 0) == -128);
    array = st_gguf_key_find(gguf, "f64s");
    assert_true(st_gguf_item_i64(array, 0) == INT64_MAX && st_gguf_item_i64(array, 1) == INT64_MIN);
    close_both(gguf, &writer);
}

static void strings_in_order(void **state)
{
    (void)state;
    static const char *const items[] = {"a", "", "▁the", "\xFF\xFE"};
    gguf_writer writer;
    gguf_writer_begin(&writer, 2);
    gguf_write_key_strings(&writer, "words", items, 4);
    gguf_write_key_array(&writer, "none", ST_GGUF_STRING, 0);
    st_gguf *gguf = open_writer(&writer);
    assert_int_equal(st_gguf_version(gguf), 2);
    const st_gguf_key *words = st_gguf_key_find(gguf, "words");
    size_t cursor = 0;
    st_str text;
    for (size_t i = 0; i < 4; i++) {
        assert_true(st_gguf_next_str(words, &cursor, &text));
        assert_true(st_str_is(text, items[i]));
    }
    assert_false(st_gguf_next_str(words, &cursor, &text));
    cursor = words->data_bytes - 1; /* a cursor between strings: nothing is read past the end */
    assert_false(st_gguf_next_str(words, &cursor, &text));
    cursor = SIZE_MAX;
    assert_false(st_gguf_next_str(words, &cursor, &text));
    cursor = 0;
    assert_false(st_gguf_next_str(st_gguf_key_find(gguf, "none"), &cursor, &text));
    close_both(gguf, &writer);
}

/* ---- values at the limits ---------------------------------------------------------------------------------------- */

static void names_of_maximum_length(void **state)
{
    (void)state;
    char *name = st_alloc(ST_GGUF_KEY_NAME_BYTES_MAX + 1);
    assert_non_null(name);
    memset(name, 'k', ST_GGUF_KEY_NAME_BYTES_MAX);
    name[ST_GGUF_KEY_NAME_BYTES_MAX] = '\0';
    gguf_writer writer;
    gguf_writer_begin(&writer, 3);
    gguf_write_key_u32(&writer, name, 3);
    gguf_write_tensor(&writer, name + ST_GGUF_KEY_NAME_BYTES_MAX - ST_GGUF_TENSOR_NAME_BYTES_MAX, ST_TYPE_I8, 1,
                      (uint64_t[]){1});
    st_gguf *gguf = open_writer(&writer);
    strata_error error;
    st_str text;
    assert_non_null(st_gguf_key_find(gguf, name));
    /* The message shows the start of the name and still says what is wrong. */
    assert_int_equal(st_gguf_get_str(gguf, name, &text, NULL, &error), STRATA_FORMAT);
    check_message(&error, "kkkk…: expected a string, found u32");
    close_both(gguf, &writer);
    st_free(name);
}

static void alignments(void **state)
{
    (void)state;
    for (uint32_t alignment = ST_GGUF_ALIGNMENT_MIN; alignment <= ST_GGUF_ALIGNMENT_MAX; alignment *= 2) {
        gguf_writer writer;
        gguf_writer_begin(&writer, 3);
        writer.alignment = alignment;
        gguf_write_key_u32(&writer, "general.alignment", alignment);
        gguf_write_tensor(&writer, "a", ST_TYPE_Q4_0, 1, (uint64_t[]){32});
        gguf_write_tensor(&writer, "b", ST_TYPE_I8, 1, (uint64_t[]){1});
        st_gguf *gguf = open_writer(&writer);
        for (size_t i = 0; i < 2; i++) assert_int_equal(st_gguf_tensor_at(gguf, i)->file_offset % alignment, 0);
        assert_int_equal(st_gguf_tensor_bytes(gguf), 19);
        close_both(gguf, &writer);
    }
}

static void alignments_of_other_types(void **state)
{
    (void)state;
    static const st_gguf_type types[] = {ST_GGUF_U8, ST_GGUF_U16, ST_GGUF_I32, ST_GGUF_U64, ST_GGUF_I64};
    static const size_t bytes[] = {1, 2, 4, 8, 8};
    static const uint64_t value = 32;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        gguf_writer writer;
        st_gguf *gguf = NULL;
        strata_error error = {0};
        gguf_writer_begin(&writer, 3);
        gguf_write_key_bytes(&writer, "general.alignment", types[i], &value, bytes[i]);
        gguf_writer_finish(&writer);
        assert_int_equal(st_gguf_open_memory("m", writer.out.data, writer.out.length, &gguf, &error), STRATA_FORMAT);
        check_message(&error, "key general.alignment: expected u32, found ");
        gguf_writer_free(&writer);
    }
}

/* A file without tensors is valid with its padding, without it, and with other bytes behind it. */
static void files_without_tensors(void **state)
{
    (void)state;
    for (uint64_t extra = 0; extra <= 4096; extra += 2048) {
        gguf_writer writer;
        gguf_writer_begin(&writer, 3);
        gguf_write_key_u32(&writer, "test.key", 1);
        size_t directory_end = writer.out.length;
        writer.data_bytes = extra;
        gguf_writer_finish(&writer);
        st_gguf *gguf = NULL;
        size_t shortest = extra ? writer.out.length : directory_end;
        for (size_t size = shortest; size <= writer.out.length; size++) {
            assert_int_equal(st_gguf_open_memory("m", writer.out.data, size, &gguf, NULL), STRATA_OK);
            assert_int_equal(st_gguf_tensor_count(gguf), 0);
            st_gguf_close(gguf);
        }
        gguf_writer_free(&writer);
    }
}

static void a_string_of_64_mib_is_read(void **state)
{
    (void)state;
    gguf_writer writer;
    gguf_writer_begin(&writer, 3);
    gguf_write_key(&writer, "long", ST_GGUF_STRING);
    gguf_write_u64(&writer, ST_GGUF_STRING_BYTES_MAX);
    assert_true(st_buf_reserve(&writer.out, ST_GGUF_STRING_BYTES_MAX));
    memset(writer.out.data + writer.out.length, 'x', ST_GGUF_STRING_BYTES_MAX);
    writer.out.length += ST_GGUF_STRING_BYTES_MAX;
    st_gguf *gguf = open_writer(&writer);
    st_str text = {0};
    assert_int_equal(st_gguf_get_str(gguf, "long", &text, NULL, NULL), STRATA_OK);
    assert_int_equal(text.length, ST_GGUF_STRING_BYTES_MAX);
    close_both(gguf, &writer);
}

/* The most keys and tensors that a file may have, the tensors in reverse order of their data. */
static void the_maximum_of_keys_and_tensors(void **state)
{
    (void)state;
    gguf_writer writer;
    gguf_writer_begin(&writer, 3);
    char name[32];
    for (unsigned i = 0; i < ST_GGUF_KEYS_MAX; i++) {
        snprintf(name, sizeof name, "k%u", i);
        gguf_write_key_sample(&writer, name, ST_GGUF_U8, false);
    }
    for (unsigned i = 0; i < ST_GGUF_TENSORS_MAX; i++) {
        snprintf(name, sizeof name, "t%u", i);
        uint64_t offset = (uint64_t)(ST_GGUF_TENSORS_MAX - 1 - i) * 32;
        gguf_write_tensor_raw(&writer, name, strlen(name), ST_TYPE_F32, 1, (uint64_t[]){8}, offset);
    }
    writer.data_bytes = (uint64_t)ST_GGUF_TENSORS_MAX * 32;
    st_gguf *gguf = open_writer(&writer);
    assert_int_equal(st_gguf_key_count(gguf), ST_GGUF_KEYS_MAX);
    assert_int_equal(st_gguf_tensor_count(gguf), ST_GGUF_TENSORS_MAX);
    assert_non_null(st_gguf_tensor_find(gguf, "t131071"));
    close_both(gguf, &writer);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* The pages of the tensors' data cannot be read: opening touches none of them. */
static void opening_reads_no_tensor_data(void **state)
{
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    gguf_writer writer;
    gguf_writer_begin(&writer, 3);
    writer.alignment = page;
    gguf_write_key_u32(&writer, "general.alignment", (uint32_t)page);
    gguf_write_tensor(&writer, "a", ST_TYPE_F32, 1, (uint64_t[]){page});
    gguf_write_tensor(&writer, "b", ST_TYPE_Q6_K, 2, (uint64_t[]){256, 100});
    gguf_writer_finish(&writer);
    size_t size = writer.out.length, directory = size - (size_t)writer.data_bytes;
    assert_int_equal(directory % page, 0);
    unsigned char *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(bytes != MAP_FAILED);
    memcpy(bytes, writer.out.data, size);
    assert_int_equal(mprotect(bytes + directory, (size - directory + page - 1) / page * page, PROT_NONE), 0);
    st_gguf *gguf = NULL;
    assert_int_equal(st_gguf_open_memory("test.gguf", bytes, size, &gguf, NULL), STRATA_OK);
    assert_int_equal(st_gguf_tensor_count(gguf), 2);
    st_gguf_close(gguf);
    munmap(bytes, size);
    gguf_writer_free(&writer);
}

/* A file of 5 GiB, all holes: offsets beyond 32 bits. */
static void offsets_beyond_32_bits(void **state)
{
    (void)state;
    char path[] = "/tmp/strata-test-XXXXXX.gguf";
    int fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    gguf_writer writer;
    gguf_writer_begin(&writer, 3);
    gguf_write_tensor(&writer, "a", ST_TYPE_F32, 2, (uint64_t[]){1 << 20, 1 << 10});
    gguf_write_tensor(&writer, "b", ST_TYPE_Q8_0, 3, (uint64_t[]){1 << 20, 256, 4});
    uint64_t data_bytes = writer.data_bytes;
    writer.data_bytes = 0;
    gguf_writer_finish(&writer);
    size_t directory = writer.out.length;
    assert_int_equal(write(fd, writer.out.data, directory), (ssize_t)directory);
    gguf_writer_free(&writer);
    if (ftruncate(fd, (off_t)(directory + data_bytes)) != 0) {
        close(fd);
        unlink(path);
        skip(); /* the file system has no room for holes of that size */
    }
    st_gguf *gguf = open_path(path);
    assert_true(st_gguf_tensor_bytes(gguf) == data_bytes);
    assert_true(st_gguf_tensor_find(gguf, "b")->file_offset == directory + ((uint64_t)1 << 32));
    st_gguf_close(gguf);

    assert_int_equal(ftruncate(fd, (off_t)(directory + data_bytes - 5000)), 0);
    strata_error error;
    gguf = NULL;
    assert_int_equal(st_gguf_open(path, &gguf, &error), STRATA_FORMAT);
    check_message(&error, ": 5000 bytes are missing");
    assert_null(gguf);
    close(fd);
    unlink(path);
}

static void invalid_paths(void **state)
{
    (void)state;
    st_gguf *gguf = NULL;
    strata_error error;
    assert_int_equal(st_gguf_open("/nonexistent/model.gguf", &gguf, &error), STRATA_FILE);
    check_message(&error, "/nonexistent/model.gguf");
    assert_int_equal(st_gguf_open("/tmp", &gguf, &error), STRATA_FILE);
    assert_int_equal(st_gguf_open("/dev/null", &gguf, &error), STRATA_FILE);
    assert_int_equal(st_gguf_open("", &gguf, &error), STRATA_FILE);
    assert_null(gguf);
    st_gguf_close(NULL);
}

/* A long path loses its start, control characters in a name are replaced, and `error` may be NULL. */
static void messages_are_truncated_and_printable(void **state)
{
    (void)state;
    char path[3000];
    memset(path, 'p', sizeof path);
    memcpy(path + sizeof path - 12, "/model.gguf", 12);
    st_gguf *gguf = NULL;
    strata_error error;
    assert_int_equal(st_gguf_open_memory(path, "nonsense", 8, &gguf, &error), STRATA_FORMAT);
    check_message(&error, "ppp/model.gguf: expected the bytes");

    gguf_writer writer;
    gguf_writer_begin(&writer, 3);
    gguf_write_key(&writer, "bad\033[31m\r\nname", 99);
    gguf_writer_finish(&writer);
    assert_int_equal(st_gguf_open_memory("test.gguf", writer.out.data, writer.out.length, &gguf, &error),
                     STRATA_UNSUPPORTED);
    check_message(&error, "bad?[31m??name");
    assert_int_equal(st_gguf_open_memory("test.gguf", writer.out.data, writer.out.length, &gguf, NULL),
                     STRATA_UNSUPPORTED);
    gguf_writer_free(&writer);
    assert_null(gguf);
}

/* The five files that the mutations start from are valid. */
static void the_mutated_files_are_valid(void **state)
{
    (void)state;
    for (size_t i = 0; i < MUTATE_VALID_COUNT; i++) {
        gguf_writer writer;
        size_t directory_end, file_end;
        mutate_valid(i, &writer, &directory_end, &file_end);
        st_gguf *gguf = NULL;
        strata_error error;
        if (st_gguf_open_memory("test.gguf", writer.out.data, writer.out.length, &gguf, &error) != STRATA_OK)
            fail_msg("%s", error.message);
        (void)gguf_walk(gguf);
        close_both(gguf, &writer);
    }
}

/* Every standard key with a value of a right type opens. */
static void standard_keys_of_valid_types(void **state)
{
    (void)state;
    size_t count;
    const st_gguf_known *rows = st_gguf_known_rows(&count);
    assert_true(count > 150);
    gguf_writer writer;
    gguf_writer_begin(&writer, 3);
    for (size_t i = 0; i < count; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s%s", rows[i].name[0] == '.' ? "1" : "", rows[i].name); /* "1": the sample */
        unsigned kinds = rows[i].kinds;
        bool array = !(kinds & (ST_GGUF_IS_STRING | ST_GGUF_IS_BOOL | ST_GGUF_IS_FLOAT | ST_GGUF_IS_INT |
                                ST_GGUF_IS_UINT));
        st_gguf_type type = kinds & (ST_GGUF_IS_STRING | ST_GGUF_IS_STRINGS)  ? ST_GGUF_STRING
                            : kinds & (ST_GGUF_IS_FLOAT | ST_GGUF_IS_FLOATS)  ? ST_GGUF_F32
                            : kinds & (ST_GGUF_IS_UINT | ST_GGUF_IS_INT | ST_GGUF_IS_INTS) ? ST_GGUF_U16
                                                                                           : ST_GGUF_BOOL;
        if (strncmp(name, "split.", 6) == 0) gguf_write_key_u16(&writer, name, 0);
        else if (strcmp(name, "general.alignment") == 0) gguf_write_key_u32(&writer, name, 32);
        else gguf_write_key_sample(&writer, name, type, array);
    }
    st_gguf *gguf = open_writer(&writer);
    assert_int_equal(st_gguf_key_count(gguf), count);
    close_both(gguf, &writer);
}

/* The type of a key of another architecture is not checked. */
static void keys_of_other_architectures(void **state)
{
    (void)state;
    gguf_writer writer;
    gguf_writer_begin(&writer, 3);
    gguf_write_key_string(&writer, "qwen2.block_count", "many");
    gguf_write_key_string(&writer, "general.architecture", "llama");
    gguf_write_key_string(&writer, "llama.something_new", "x");
    gguf_write_key_string(&writer, ".block_count", "x");
    close_both(open_writer(&writer), &writer);
    gguf_writer_begin(&writer, 3);
    gguf_write_key_string(&writer, "llama.block_count", "many");
    close_both(open_writer(&writer), &writer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kit_files), cmocka_unit_test(kit_model), cmocka_unit_test(kit_whole),
        cmocka_unit_test(getters_of_every_type), cmocka_unit_test(getters_of_absent_keys),
        cmocka_unit_test(integers_at_their_limits), cmocka_unit_test(strings_in_order),
        cmocka_unit_test(names_of_maximum_length), cmocka_unit_test(alignments),
        cmocka_unit_test(alignments_of_other_types), cmocka_unit_test(files_without_tensors),
        cmocka_unit_test(a_string_of_64_mib_is_read), cmocka_unit_test(the_maximum_of_keys_and_tensors),
        cmocka_unit_test(opening_reads_no_tensor_data), cmocka_unit_test(offsets_beyond_32_bits),
        cmocka_unit_test(invalid_paths), cmocka_unit_test(messages_are_truncated_and_printable),
        cmocka_unit_test(the_mutated_files_are_valid), cmocka_unit_test(standard_keys_of_valid_types),
        cmocka_unit_test(keys_of_other_architectures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
