/* Fuzzes the decoder: the first byte selects a small vocabulary, every two bytes after it are an id. Decoding all ids
 * at once and one by one gives the same valid UTF-8, and an id out of range is an error that changes nothing. */
#include <stdlib.h>

#include "base/utf8.h"

/* Fuzz targets are linked with the library alone. */
#include "support/gguf_writer.c"
#include "support/vocab_builder.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCAB_COUNT = 4, IDS_MAX = 4096 };

static vocab_made made[VOCAB_COUNT];

static void must(bool condition)
{
    if (!condition) abort();
}

/* Token texts that no valid file has; they must decode too. */
static void spec_odd(vocab_spec *spec)
{
    vocab_spec_spm(spec);
    vocab_add(spec, "", ST_TOKEN_NORMAL, 0);
    vocab_add(spec, "\xE2\x96", ST_TOKEN_NORMAL, 0);
    vocab_add(spec, "\x81\xF0\x9F", ST_TOKEN_NORMAL, 0);
    vocab_add(spec, "\x98\x80", ST_TOKEN_USER, 0);
    vocab_add(spec, "\xC3", ST_TOKEN_CONTROL, 0);
    vocab_add(spec, "\xE2\x96\x81\xFF\xE2\x96\x81", ST_TOKEN_USER, 0);
}

static void make_all(void)
{
    static vocab_spec spec;
    void (*const bases[VOCAB_COUNT])(vocab_spec *) = {vocab_spec_bpe, vocab_spec_gemma, vocab_spec_spm, spec_odd};
    for (size_t i = 0; i < VOCAB_COUNT; i++) {
        bases[i](&spec);
        must(vocab_make(&spec, NULL, &made[i], NULL) == STRATA_OK);
    }
}

static bool valid(const st_buf *text)
{
    return text->length == 0 || st_utf8_valid_prefix(text->data, text->length) == text->length;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!made[0].tokenizer) make_all();
    if (size < 1) return 0;
    const st_tokenizer *tokenizer = made[data[0] % VOCAB_COUNT].tokenizer;
    strata_token ids[IDS_MAX], vocab_size = (strata_token)st_tokenizer_vocab_size(tokenizer);
    size_t count = 0;
    bool right = true;
    for (size_t i = 1; i + 1 < size && count < IDS_MAX; i += 2) {
        ids[count] = (strata_token)(data[i] | data[i + 1] << 8) % (vocab_size + 2) - 1;
        right = right && ids[count] >= 0 && ids[count] < vocab_size;
        count++;
    }
    st_buf whole = {0}, parts = {0};
    strata_status status = st_tokenizer_decode(tokenizer, ids, count, &whole, NULL);
    must(status == (right ? STRATA_OK : STRATA_INPUT));
    must(right || whole.length == 0);
    must(valid(&whole));
    st_decode_state state = {0};
    for (size_t i = 0; i < count; i++) {
        size_t before = parts.length;
        bool in_range = ids[i] >= 0 && ids[i] < vocab_size;
        status = st_tokenizer_decode_push(tokenizer, &state, ids[i], &parts, NULL);
        must(status == (in_range ? STRATA_OK : STRATA_INPUT));
        must(in_range || parts.length == before);
        must(valid(&parts));
    }
    must(st_tokenizer_decode_finish(&state, &parts, NULL) == STRATA_OK);
    must(valid(&parts));
    if (right) must(st_str_equal((st_str){whole.data, whole.length}, (st_str){parts.data, parts.length}));
    st_buf_free(&whole);
    st_buf_free(&parts);
    return 0;
}
