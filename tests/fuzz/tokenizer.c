/* Fuzzes the encoder: the first byte selects a small vocabulary, the second the options, the rest is the text. Nothing
 * may crash, and decoding gives the text back unless the vocabulary normalises it. */
#include <stdlib.h>

#include "base/alloc.h"
#include "base/utf8.h"

/* Fuzz targets are linked with the library alone. */
#include "support/gguf_writer.c"
#include "support/vocab_builder.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct fuzz_vocab {
    void (*base)(vocab_spec *spec);
    const char *pre;
    bool normalises;
    bool marks;       /* U+2581 decodes to a space */
    bool blank_first; /* special tokens add spaces */
} fuzz_vocab;

static const fuzz_vocab vocabs[] = {
    {vocab_spec_bpe, "gpt-2", false, false, false},      {vocab_spec_bpe, "llama-bpe", false, false, false},
    {vocab_spec_bpe, "qwen2", true, false, false},       {vocab_spec_bpe, "qwen35", true, false, false},
    {vocab_spec_bpe, "tekken", false, false, false},     {vocab_spec_bpe, "deepseek-v3", false, false, false},
    {vocab_spec_bpe, "smollm", false, false, false},     {vocab_spec_bpe, "gpt-4o", false, false, false},
    {vocab_spec_gemma, NULL, false, true, false},        {vocab_spec_spm, NULL, false, true, true},
};

enum { VOCAB_COUNT = sizeof vocabs / sizeof *vocabs };

static vocab_made made[VOCAB_COUNT];
static st_token_guard *guards[VOCAB_COUNT];

static void must(bool condition)
{
    if (!condition) abort();
}

static void make_all(void)
{
    static vocab_spec spec;
    for (size_t i = 0; i < VOCAB_COUNT; i++) {
        vocabs[i].base(&spec);
        if (vocabs[i].pre) spec.pre = vocabs[i].pre;
        must(vocab_make(&spec, NULL, &made[i], NULL) == STRATA_OK);
        must(st_token_guard_new(made[i].tokenizer, ST_STR("<tool>"), &guards[i], NULL) == STRATA_OK);
    }
}

/* A text marked as foreign throughout yields no control token and none that the guard holds. */
static void check_guarded(const st_tokenizer *tokenizer, const st_tokens *tokens)
{
    for (size_t i = 0; i < tokens->count; i++) {
        must(st_tokenizer_type(tokenizer, tokens->ids[i]) != ST_TOKEN_CONTROL);
        must(!st_str_is(st_tokenizer_text(tokenizer, tokens->ids[i]), "<tool>"));
    }
}

static void check_round_trip(const fuzz_vocab *vocab, const st_tokenizer *tokenizer, const st_tokens *tokens,
                             st_str text)
{
    st_buf back = {0};
    must(st_tokenizer_decode(tokenizer, tokens->ids, tokens->count, &back, NULL) == STRATA_OK);
    must(back.length == 0 || st_utf8_valid_prefix(back.data, back.length) == back.length);
    bool comes_back = !vocab->normalises && st_utf8_valid_prefix(text.data, text.length) == text.length;
    if (vocab->marks && memmem(text.data, text.length, "\xE2\x96\x81", 3)) comes_back = false;
    for (size_t i = 0; vocab->blank_first && i < tokens->count; i++)
        if (st_tokenizer_type(tokenizer, tokens->ids[i]) == ST_TOKEN_CONTROL) comes_back = false;
    if (comes_back) must(st_str_equal((st_str){back.data, back.length}, text));
    st_buf_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!made[0].tokenizer) make_all();
    if (size < 2) return 0;
    size_t index = data[0] % VOCAB_COUNT, length = size - 2;
    unsigned flags = data[1];
    st_str text = {(const char *)data + 2, length};
    unsigned char *foreign = st_alloc(length);
    must(foreign != NULL);
    /* foreign bytes: none, all, or every other run of bytes */
    for (size_t i = 0; i < length; i++) foreign[i] = (flags & 4) || ((flags & 8) && i / (1 + (flags >> 4)) % 2);
    const st_token_guard *guard = flags & 2 ? guards[index] : NULL;
    const st_encode_options options = {.plain = flags & 1, .guard = guard, .foreign = foreign};
    st_tokens tokens = {0};
    must(st_tokenizer_encode(made[index].tokenizer, text, &options, &tokens, NULL) == STRATA_OK);
    if (options.plain || (options.guard && flags & 4)) check_guarded(made[index].tokenizer, &tokens);
    check_round_trip(&vocabs[index], made[index].tokenizer, &tokens, text);
    st_tokens_free(&tokens);
    st_free(foreign);
    return 0;
}
