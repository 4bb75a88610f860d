/* The time to read a GGUF directory with many tensors, and one with a large vocabulary. Both are in memory: the disk
 * is not measured. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/buf.h"
#include "gguf/gguf.h"

enum { TENSORS = 1000, WORDS = 262144, RUNS = 50 };

static double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void put_u32(st_buf *out, uint32_t value)
{
    st_buf_append(out, &value, sizeof value);
}

static void put_u64(st_buf *out, uint64_t value)
{
    st_buf_append(out, &value, sizeof value);
}

static void put_string(st_buf *out, const char *text)
{
    put_u64(out, strlen(text));
    st_buf_append(out, text, strlen(text));
}

static void put_header(st_buf *out, uint64_t tensors, uint64_t keys)
{
    st_buf_append(out, "GGUF", 4);
    put_u32(out, 3);
    put_u64(out, tensors);
    put_u64(out, keys);
}

static void build_tensors(st_buf *out)
{
    put_header(out, TENSORS, 0);
    for (unsigned i = 0; i < TENSORS; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.ffn_down_exps.weight", i);
        put_string(out, name);
        put_u32(out, 2);
        put_u64(out, 32);
        put_u64(out, 1);
        put_u32(out, ST_TYPE_Q8_0);
        put_u64(out, (uint64_t)i * 64);
    }
    while (out->length % 32 != 0 && !out->failed) st_buf_append_char(out, 0);
    for (unsigned i = 0; i < TENSORS * 64; i++) st_buf_append_char(out, 0);
}

static void build_words(st_buf *out)
{
    put_header(out, 0, 1);
    put_string(out, "tokenizer.ggml.tokens");
    put_u32(out, ST_GGUF_ARRAY);
    put_u32(out, ST_GGUF_STRING);
    put_u64(out, WORDS);
    for (unsigned i = 0; i < WORDS; i++) {
        char word[16];
        snprintf(word, sizeof word, "word%u", i);
        put_string(out, word);
    }
}

static void measure(const char *what, void (*build)(st_buf *out))
{
    st_buf bytes = {0};
    build(&bytes);
    if (bytes.failed) exit(4);
    double best = 1e9;
    for (int i = 0; i < RUNS; i++) {
        st_gguf *gguf = NULL;
        strata_error error;
        double start = now_s();
        if (st_gguf_open_memory("bench.gguf", bytes.data, bytes.length, &gguf, &error) != STRATA_OK) {
            fprintf(stderr, "%s\n", error.message);
            exit(1);
        }
        double took = now_s() - start;
        if (took < best) best = took;
        st_gguf_close(gguf);
    }
    printf("%-40s %9.3f ms  (%zu bytes, best of %d)\n", what, best * 1e3, bytes.length, RUNS);
    st_buf_free(&bytes);
}

int main(void)
{
    measure("open: 1,000 tensors", build_tensors);
    measure("open: array of 262,144 strings", build_words);
    return 0;
}
