#include "support/vocab_builder.h"

#include <stdio.h>

/* GPT-2's byte alphabet as a list, independent of the library's rule. */
static const char *letter_of(unsigned byte)
{
    static char letters[256][4];
    unsigned next = 0x100;
    for (unsigned b = 0; b < 256; b++) {
        bool itself = (b > 32 && b < 127) || (b > 160 && b != 173);
        unsigned code = itself ? b : next++;
        if (code < 0x80) {
            letters[b][0] = (char)code;
        } else {
            letters[b][0] = (char)(0xC0 | code >> 6);
            letters[b][1] = (char)(0x80 | (code & 0x3F));
        }
    }
    return letters[byte];
}

static const char *byte_token(unsigned byte)
{
    static char texts[256][8];
    snprintf(texts[byte], sizeof texts[byte], "<0x%02X>", byte & 0xFFu);
    return texts[byte];
}

strata_token vocab_add(vocab_spec *spec, const char *text, int type, float score)
{
    spec->tokens[spec->count] = (vocab_token){text, type, score};
    return (strata_token)spec->count++;
}

void vocab_merge(vocab_spec *spec, const char *merge)
{
    spec->merges[spec->merge_count++] = merge;
}

strata_token vocab_id(const vocab_spec *spec, const char *text)
{
    for (size_t i = 0; i < spec->count; i++)
        if (strcmp(spec->tokens[i].text, text) == 0) return (strata_token)i;
    return -1;
}

static void begin(vocab_spec *spec, const char *model)
{
    *spec = (vocab_spec){.model = model, .eot = -1, .eom = -1, .unknown = -1, .bos = -1, .eos = -1, .adds_bos = -1,
                         .adds_space = -1};
}

static void add_all(vocab_spec *spec, const char *const *texts, size_t count, int type, float score)
{
    for (size_t i = 0; i < count; i++) vocab_add(spec, texts[i], type, score - (float)i);
}

void vocab_spec_bpe(vocab_spec *spec)
{
    static const char *const words[] = {"he", "ll", "hell", "hello", "\xC4\xA0w", "or", "ld", "\xC4\xA0wor",
                                        "\xC4\xA0world", "aa", "aaaa", "\xC4\xA0\xC4\xA0"};
    static const char *const merges[] = {"h e", "l l", "he ll", "hell o", "\xC4\xA0 w", "o r", "l d", "\xC4\xA0w or",
                                         "\xC4\xA0wor ld", "a a", "aa aa", "\xC4\xA0 \xC4\xA0"};
    begin(spec, "gpt2");
    spec->pre = "gpt-2";
    for (unsigned byte = 0; byte < 256; byte++) vocab_add(spec, letter_of(byte), ST_TOKEN_NORMAL, 0);
    add_all(spec, words, sizeof words / sizeof *words, ST_TOKEN_NORMAL, 0);
    for (size_t i = 0; i < sizeof merges / sizeof *merges; i++) vocab_merge(spec, merges[i]);
    spec->bos = vocab_add(spec, "<|start|>", ST_TOKEN_CONTROL, 0);
    spec->eos = vocab_add(spec, "<|im_end|>", ST_TOKEN_CONTROL, 0);
    vocab_add(spec, "<|im", ST_TOKEN_USER, 0);
    vocab_add(spec, "<tool>", ST_TOKEN_USER, 0);
    vocab_add(spec, "<|im_end|><|im_end|>", ST_TOKEN_USER, 0);
    vocab_add(spec, "[PAD]", ST_TOKEN_UNUSED, 0);
}

static void add_marked(vocab_spec *spec)
{
    static const char *const singles[] = {"\xE2\x96\x81", "a", "b", "h", "e", "l", "o", "w", "r", "d", "\n", "é"};
    vocab_add(spec, "<unk>", ST_TOKEN_UNKNOWN, 0);
    spec->bos = vocab_add(spec, "<s>", ST_TOKEN_CONTROL, 0);
    spec->eos = vocab_add(spec, "</s>", ST_TOKEN_CONTROL, 0);
    spec->unknown = 0;
    for (unsigned byte = 0; byte < 256; byte++) vocab_add(spec, byte_token(byte), ST_TOKEN_BYTE, 0);
    add_all(spec, singles, sizeof singles / sizeof *singles, ST_TOKEN_NORMAL, -100);
}

void vocab_spec_gemma(vocab_spec *spec)
{
    static const char *const words[] = {"he", "ll", "hell", "hello", "\xE2\x96\x81w", "\xE2\x96\x81\xE2\x96\x81", "aa"};
    static const char *const merges[] = {"h e", "l l", "he ll", "hell o", "\xE2\x96\x81 w",
                                         "\xE2\x96\x81 \xE2\x96\x81", "a a", "\n \n"};
    begin(spec, "gemma4");
    add_marked(spec);
    add_all(spec, words, sizeof words / sizeof *words, ST_TOKEN_NORMAL, -1000);
    vocab_add(spec, "\n\n", ST_TOKEN_USER, -1000);
    vocab_add(spec, "<turn|>", ST_TOKEN_CONTROL, -1000);
    for (size_t i = 0; i < sizeof merges / sizeof *merges; i++) vocab_merge(spec, merges[i]);
}

void vocab_spec_spm(vocab_spec *spec)
{
    static const char *const words[] = {"he", "ll", "hell", "hello", "\xE2\x96\x81hello", "\xE2\x96\x81w",
                                        "\xE2\x96\x81\xE2\x96\x81", "aa", "aaaa"};
    begin(spec, "llama");
    spec->pre = "default";
    add_marked(spec);
    add_all(spec, words, sizeof words / sizeof *words, ST_TOKEN_NORMAL, -1);
}

static bool is_sample(const vocab_spec *spec, gguf_writer *out, const char *key)
{
    if (!spec->sample_key || strcmp(spec->sample_key, key) != 0) return false;
    gguf_write_key_sample(out, key, spec->sample_type, spec->sample_array);
    return true;
}

static void write_arrays(const vocab_spec *spec, gguf_writer *out)
{
    if (!spec->no_tokens && !is_sample(spec, out, "tokenizer.ggml.tokens")) {
        gguf_write_key_array(out, "tokenizer.ggml.tokens", ST_GGUF_STRING, spec->count);
        for (size_t i = 0; i < spec->count; i++)
            gguf_write_string(out, spec->tokens[i].text, strlen(spec->tokens[i].text));
    }
    size_t types = spec->count + (size_t)spec->more_types; /* wraps for negative numbers */
    size_t scores = spec->count + (size_t)spec->more_scores;
    if (!spec->no_types && !is_sample(spec, out, "tokenizer.ggml.token_type")) {
        gguf_write_key_array(out, "tokenizer.ggml.token_type", ST_GGUF_I32, types);
        for (size_t i = 0; i < types; i++)
            gguf_write_u32(out, (uint32_t)(i < spec->count ? spec->tokens[i].type : ST_TOKEN_NORMAL));
    }
    if (!spec->no_scores && !is_sample(spec, out, "tokenizer.ggml.scores")) {
        gguf_write_key_array(out, "tokenizer.ggml.scores", ST_GGUF_F32, scores);
        for (size_t i = 0; i < scores; i++) {
            uint32_t bits;
            float score = i < spec->count ? spec->tokens[i].score : 0;
            memcpy(&bits, &score, sizeof bits);
            gguf_write_u32(out, bits);
        }
    }
    if (!spec->no_merges && !is_sample(spec, out, "tokenizer.ggml.merges"))
        gguf_write_key_strings(out, "tokenizer.ggml.merges", spec->merges, spec->merge_count);
}

void vocab_write(const vocab_spec *spec, gguf_writer *out)
{
    const struct {
        const char *key;
        int64_t id;
    } ids[] = {{"tokenizer.ggml.bos_token_id", spec->bos}, {"tokenizer.ggml.eos_token_id", spec->eos},
               {"tokenizer.ggml.eot_token_id", spec->eot}, {"tokenizer.ggml.eom_token_id", spec->eom},
               {"tokenizer.ggml.unknown_token_id", spec->unknown}};
    gguf_writer_begin(out, 3);
    gguf_write_key_string(out, "general.architecture", "llama");
    if (spec->model && !is_sample(spec, out, "tokenizer.ggml.model"))
        gguf_write_key_string(out, "tokenizer.ggml.model", spec->model);
    if (spec->pre && !is_sample(spec, out, "tokenizer.ggml.pre"))
        gguf_write_key_string(out, "tokenizer.ggml.pre", spec->pre);
    write_arrays(spec, out);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if (ids[i].id >= 0 && !is_sample(spec, out, ids[i].key))
            gguf_write_key_u32(out, ids[i].key, (uint32_t)ids[i].id);
    if (spec->adds_bos >= 0) gguf_write_key_bool(out, "tokenizer.ggml.add_bos_token", spec->adds_bos);
    if (spec->adds_space >= 0) gguf_write_key_bool(out, "tokenizer.ggml.add_space_prefix", spec->adds_space);
    gguf_writer_finish(out);
}

strata_status vocab_make(const vocab_spec *spec, const char *pre_tokenizer, vocab_made *out, strata_error *error)
{
    *out = (vocab_made){0};
    vocab_write(spec, &out->writer);
    strata_status status = st_gguf_open_memory("vocabulary", out->writer.out.data, out->writer.out.length, &out->gguf,
                                               error);
    if (status == STRATA_OK) status = st_tokenizer_new(out->gguf, pre_tokenizer, &out->tokenizer, error);
    if (status != STRATA_OK) vocab_made_free(out);
    return status;
}

void vocab_made_free(vocab_made *made)
{
    st_tokenizer_free(made->tokenizer);
    st_gguf_close(made->gguf);
    gguf_writer_free(&made->writer);
    *made = (vocab_made){0};
}
