/* The tokenizer against the kit: ids of other implementations, with real vocabularies. */
#include "support/kit.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "gguf/gguf.h"
#include "tokenizer/tokenizer.h"

enum { TEXT_COUNT = 317 };

typedef struct vocabulary {
    const char *name;
    bool carried;    /* in the repository: a missing file is a failure */
    bool normalises; /* to NFC: decoding need not give the original text */
    bool marks;      /* a space and U+2581 encode the same */
    bool blank_first;
} vocabulary;

static const vocabulary vocabularies[] = {
    {.name = "gpt-2", .carried = true},
    {.name = "llama-spm", .carried = true, .marks = true, .blank_first = true},
    {.name = "qwen2", .normalises = true},
    {.name = "llama-bpe"},
    {.name = "tekken"},
    {.name = "deepseek-v3"},
    {.name = "gemma4", .marks = true},
};

typedef struct kit_vocab {
    const vocabulary *row;
    st_gguf *gguf;
    st_tokenizer *tokenizer;
    json_t *texts;
    json_t *ids;
} kit_vocab;

static json_t *load_json(const char *path)
{
    st_buf text = {0};
    kit_read(path, &text);
    json_error_t error;
    json_t *json = json_loadb(text.data, text.length, JSON_ALLOW_NUL, &error);
    if (!json) fail_msg("%s: %s", path, error.text);
    st_buf_free(&text);
    return json;
}

/* Returns false if the kit beside the checkout is absent. */
static bool open_fixture(kit_vocab *fixture, const vocabulary *row)
{
    char name[128];
    strata_error error;
    *fixture = (kit_vocab){.row = row};
    snprintf(name, sizeof name, "tokenizer/%s.vocab.gguf", row->name);
    const char *path = row->carried ? kit_path(name) : kit_path_optional(name);
    if (!path) return false;
    if (st_gguf_open(path, &fixture->gguf, &error) != STRATA_OK) fail_msg("%s", error.message);
    if (st_tokenizer_new(fixture->gguf, NULL, &fixture->tokenizer, &error) != STRATA_OK) fail_msg("%s", error.message);
    snprintf(name, sizeof name, "tokenizer/%s.ids.json", row->name);
    fixture->ids = load_json(kit_path(name));
    fixture->texts = load_json(kit_path("tokenizer/texts.json"));
    assert_int_equal(json_array_size(fixture->texts), TEXT_COUNT);
    assert_int_equal(json_array_size(fixture->ids), TEXT_COUNT);
    return true;
}

static void close_fixture(kit_vocab *fixture)
{
    json_decref(fixture->texts);
    json_decref(fixture->ids);
    st_tokenizer_free(fixture->tokenizer);
    st_gguf_close(fixture->gguf);
}

static st_str text_at(const kit_vocab *fixture, size_t index)
{
    json_t *text = json_array_get(fixture->texts, index);
    return (st_str){json_string_value(text), json_string_length(text)};
}

static void encode(const kit_vocab *fixture, st_str text, st_tokens *out)
{
    strata_error error;
    out->count = 0;
    if (st_tokenizer_encode(fixture->tokenizer, text, NULL, out, &error) != STRATA_OK) fail_msg("%s", error.message);
}

static bool same_ids(const st_tokens *tokens, json_t *expected)
{
    if (tokens->count != json_array_size(expected)) return false;
    for (size_t i = 0; i < tokens->count; i++)
        if (tokens->ids[i] != json_integer_value(json_array_get(expected, i))) return false;
    return true;
}

static void check_ids(const kit_vocab *fixture)
{
    st_tokens tokens = {0};
    size_t right = 0;
    for (size_t i = 0; i < TEXT_COUNT; i++) {
        encode(fixture, text_at(fixture, i), &tokens);
        if (same_ids(&tokens, json_array_get(fixture->ids, i))) right++;
        else print_error("%s: text %zu: other ids\n", fixture->row->name, i);
    }
    st_tokens_free(&tokens);
    assert_int_equal(right, TEXT_COUNT);
}

/* Whether decoding must reproduce the text: not after normalisation, nor where a special token adds a space. */
static bool must_return(const kit_vocab *fixture, st_str text, const st_tokens *tokens)
{
    if (fixture->row->marks && memmem(text.data, text.length, "\xE2\x96\x81", 3)) return false;
    for (size_t i = 0; fixture->row->blank_first && i < tokens->count; i++)
        if (st_tokenizer_type(fixture->tokenizer, tokens->ids[i]) == ST_TOKEN_CONTROL) return false;
    return true;
}

static void check_round_trip(const kit_vocab *fixture)
{
    st_tokens tokens = {0}, again = {0};
    strata_error error;
    size_t returned = 0;
    for (size_t i = 0; i < TEXT_COUNT; i++) {
        st_str text = text_at(fixture, i);
        encode(fixture, text, &tokens);
        st_buf whole = {0}, parts = {0};
        if (st_tokenizer_decode(fixture->tokenizer, tokens.ids, tokens.count, &whole, &error) != STRATA_OK)
            fail_msg("%s", error.message);
        bool equal = st_str_equal((st_str){whole.data, whole.length}, text);
        if (equal) returned++;
        if (!equal && fixture->row->normalises) { /* the decoded text is in NFC and has the same ids */
            encode(fixture, (st_str){whole.data, whole.length}, &again);
            equal = again.count == tokens.count &&
                    memcmp(again.ids, tokens.ids, tokens.count * sizeof *tokens.ids) == 0;
        }
        if (!equal && must_return(fixture, text, &tokens))
            fail_msg("%s: text %zu does not return", fixture->row->name, i);

        st_decode_state state = {0};
        for (size_t j = 0; j < tokens.count; j++)
            assert_int_equal(st_tokenizer_decode_push(fixture->tokenizer, &state, tokens.ids[j], &parts, &error),
                             STRATA_OK);
        assert_int_equal(st_tokenizer_decode_finish(&state, &parts, &error), STRATA_OK);
        assert_true(st_str_equal((st_str){whole.data, whole.length}, (st_str){parts.data, parts.length}));
        st_buf_free(&whole);
        st_buf_free(&parts);
    }
    assert_true(returned > TEXT_COUNT / 2);
    st_tokens_free(&tokens);
    st_tokens_free(&again);
}

static strata_token first_control(const st_tokenizer *tokenizer)
{
    strata_token id = 0;
    while (st_tokenizer_type(tokenizer, id) != ST_TOKEN_CONTROL) id++;
    return id;
}

/* Each text repeated with a special token between, long enough for the piece cache. */
static void check_repeated(const kit_vocab *fixture)
{
    strata_token between = first_control(fixture->tokenizer);
    st_tokens often = {0};
    st_buf text = {0};
    for (size_t i = 0; i < TEXT_COUNT; i++) {
        size_t times = 0, at = 0;
        json_t *once = json_array_get(fixture->ids, i);
        for (text.length = 0; text.length < 5000; times++) {
            st_buf_append_str(&text, text_at(fixture, i));
            st_buf_append_str(&text, st_tokenizer_text(fixture->tokenizer, between));
        }
        encode(fixture, (st_str){text.data, text.length}, &often);
        assert_int_equal(often.count, times * (json_array_size(once) + 1));
        while (at < often.count) {
            for (size_t j = 0; j < json_array_size(once); j++)
                assert_int_equal(often.ids[at++], json_integer_value(json_array_get(once, j)));
            assert_int_equal(often.ids[at++], between);
        }
    }
    st_buf_free(&text);
    st_tokens_free(&often);
}

static void test_vocabulary(void **state)
{
    kit_vocab fixture;
    if (!open_fixture(&fixture, *state)) skip();
    check_ids(&fixture);
    check_round_trip(&fixture);
    check_repeated(&fixture);
    close_fixture(&fixture);
}

int main(void)
{
    enum { COUNT = sizeof vocabularies / sizeof *vocabularies };
    struct CMUnitTest tests[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        union {
            const void *from;
            void *to;
        } row = {.from = &vocabularies[i]};
        tests[i] = (struct CMUnitTest){
            .name = vocabularies[i].name, .test_func = test_vocabulary, .initial_state = row.to};
    }
    return cmocka_run_group_tests_name("tokenizer golden", tests, NULL, NULL);
}
