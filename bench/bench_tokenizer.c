/* The speed of the tokenizer: English text, texts with bad worst cases, and loading a large vocabulary. Uses the
 * whole kit beside the checkout, or else the small copy in tests/data. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "gguf/gguf.h"
#include "tokenizer/tokenizer.h"

enum { MEGA = 1000000, ENGLISH_BYTES = 8 * MEGA, SOURCE_BYTES = 5 * MEGA };

static double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static const char *kit_file(const char *name)
{
    static char path[4096];
    const char *kit = getenv("STRATA_TEST_KIT");
    const char *roots[] = {kit ? kit : "../shared/golden", "tests/data/kit"};
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        snprintf(path, sizeof path, "%s/tokenizer/%s.vocab.gguf", roots[i], name);
        if (access(path, R_OK) == 0) return path;
    }
    return NULL;
}

typedef struct bench_vocab {
    st_gguf *gguf;
    st_tokenizer *tokenizer;
    double open_s, build_s;
} bench_vocab;

static bool open_vocab(const char *name, bench_vocab *out)
{
    strata_error error;
    const char *path = kit_file(name);
    *out = (bench_vocab){0};
    if (!path) return false;
    double start = now_s();
    if (st_gguf_open(path, &out->gguf, &error) != STRATA_OK) goto fail;
    out->open_s = now_s() - start;
    if (st_tokenizer_new(out->gguf, NULL, &out->tokenizer, &error) != STRATA_OK) goto fail;
    out->build_s = now_s() - start - out->open_s;
    return true;
fail:
    fprintf(stderr, "%s\n", error.message);
    exit(1);
}

static void close_vocab(bench_vocab *vocab)
{
    st_tokenizer_free(vocab->tokenizer);
    st_gguf_close(vocab->gguf);
}

/* Repeats a text. */
static void fill(st_buf *out, size_t bytes, const char *text, size_t length)
{
    out->length = 0;
    while (out->length < bytes) st_buf_append(out, text, length);
    out->length = bytes;
    if (out->failed) exit(4);
}

static double encode_s(const st_tokenizer *tokenizer, const st_buf *text)
{
    strata_error error;
    st_tokens tokens = {0};
    double start = now_s();
    if (st_tokenizer_encode(tokenizer, (st_str){text->data, text->length}, NULL, &tokens, &error) != STRATA_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
    double seconds = now_s() - start;
    st_tokens_free(&tokens);
    return seconds;
}

/* A file of the repository as 5 MB of source text. */
static void read_text(st_buf *out, const char *path, size_t bytes)
{
    strata_error error;
    st_buf once = {0};
    if (st_file_read(path, 16 * MEGA, &once, &error) != STRATA_OK) {
        fprintf(stderr, "%s (run it from the root of the repository)\n", error.message);
        exit(3);
    }
    fill(out, bytes, once.data, once.length);
    st_buf_free(&once);
}

/* English-like text: words of the vocabulary in a skewed distribution that favours short ones, with full stops and
 * numbers. A short text repeated would overstate the hit rate of the piece cache. */
static void make_english(st_buf *out, const st_tokenizer *tokenizer, size_t bytes)
{
    uint64_t random = 88172645463325252u;
    size_t count = st_tokenizer_vocab_size(tokenizer) < 50000 ? st_tokenizer_vocab_size(tokenizer) : 50000;
    out->length = 0;
    while (out->length < bytes) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        double draw = (double)(random >> 11) / 9007199254740992.0;
        st_str word = st_tokenizer_text(tokenizer, (strata_token)((double)count * draw * draw * draw * draw));
        bool letters = word.length > 2 && (unsigned char)word.data[0] == 0xC4 && (unsigned char)word.data[1] == 0xA0;
        for (size_t i = 2; letters && i < word.length; i++)
            letters = (word.data[i] | 32) >= 'a' && (word.data[i] | 32) <= 'z';
        if (!letters) continue;
        st_buf_append_char(out, ' ');
        st_buf_append(out, word.data + 2, word.length - 2);
        if (random % 11 == 0) st_buf_append(out, random % 3 ? "," : ".\n", random % 3 ? 1 : 2);
        if (random % 97 == 0) st_buf_printf(out, " %u", (unsigned)(random >> 40) % 3000);
    }
    if (out->failed) exit(4);
}

int main(void)
{
    static const char *const names[] = {"gpt-2", "qwen2", "llama-bpe", "tekken", "deepseek-v3", "gemma4", "llama-spm"};
    st_buf text = {0};
    bench_vocab vocab;
    const char *english = kit_file("qwen2") ? "qwen2" : "gpt-2";
    if (!open_vocab(english, &vocab)) return 3;
    st_buf prose = {0};
    make_english(&prose, vocab.tokenizer, ENGLISH_BYTES);
    encode_s(vocab.tokenizer, &prose);
    printf("english, %s: %.1f MB/s\n", english, ENGLISH_BYTES / encode_s(vocab.tokenizer, &prose) / MEGA);
    prose.length = SOURCE_BYTES;
    close_vocab(&vocab);

    printf("%-12s %9s %9s %9s %9s %9s %9s %9s\n", "seconds", "1M a", "1M blank", "1M newl.", "5M source", "5M engl.",
           "open", "build");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!open_vocab(names[i], &vocab)) continue;
        printf("%-12s", names[i]);
        const char *units[] = {"a", " ", "\n"};
        for (size_t j = 0; j < 3; j++) {
            fill(&text, MEGA, units[j], 1);
            printf(" %9.3f", encode_s(vocab.tokenizer, &text));
        }
        read_text(&text, "src/base/file.c", SOURCE_BYTES);
        printf(" %9.3f", encode_s(vocab.tokenizer, &text));
        printf(" %9.3f", encode_s(vocab.tokenizer, &prose));
        printf(" %9.3f %9.3f\n", vocab.open_s, vocab.build_s);
        close_vocab(&vocab);
    }
    st_buf_free(&text);
    st_buf_free(&prose);
    return 0;
}
