/* Encoding and decoding with small vocabularies made by hand. */
#include "support/kit.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "support/vocab_builder.h"

static vocab_spec spec;
static vocab_made made;
static st_tokens tokens;
static strata_error error;

static void start(void (*base)(vocab_spec *spec))
{
    base(&spec);
}

static void make(void)
{
    if (vocab_make(&spec, NULL, &made, &error) != STRATA_OK) fail_msg("%s", error.message);
}

static void end(void)
{
    vocab_made_free(&made);
    st_tokens_free(&tokens);
}

static void encode(st_str text, const st_encode_options *options)
{
    tokens.count = 0;
    if (st_tokenizer_encode(made.tokenizer, text, options, &tokens, &error) != STRATA_OK) fail_msg("%s", error.message);
}

/* The stored texts of the ids, separated by |. */
static const char *texts_of_ids(void)
{
    static char out[4096];
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < tokens.count && used < sizeof out; i++) {
        st_str text = st_tokenizer_text(made.tokenizer, tokens.ids[i]);
        used += (size_t)snprintf(out + used, sizeof out - used, "%s%.*s", i ? "|" : "", ST_STR_ARG(text));
    }
    return out;
}

static void check_encode(const char *text, const char *expected)
{
    encode(st_str_from(text), NULL);
    assert_string_equal(texts_of_ids(), expected);
}

static void check_decode(const strata_token *ids, size_t count, const char *expected)
{
    st_buf whole = {0}, parts = {0};
    assert_int_equal(st_tokenizer_decode(made.tokenizer, ids, count, &whole, &error), STRATA_OK);
    st_decode_state state = {0};
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(st_tokenizer_decode_push(made.tokenizer, &state, ids[i], &parts, &error), STRATA_OK);
        assert_true(memchr(parts.data ? parts.data : "", 0xC3, parts.length) == NULL || parts.length >= 2);
    }
    assert_int_equal(st_tokenizer_decode_finish(&state, &parts, &error), STRATA_OK);
    st_buf_append_char(&whole, '\0');
    st_buf_append_char(&parts, '\0');
    assert_string_equal(whole.data, expected);
    assert_string_equal(parts.data, expected);
    st_buf_free(&whole);
    st_buf_free(&parts);
}

static void check_round_trip(const char *text)
{
    encode(st_str_from(text), NULL);
    check_decode(tokens.ids, tokens.count, text);
}

static void test_bpe(void **state)
{
    (void)state;
    start(vocab_spec_bpe);
    make();
    check_encode("", "");
    check_encode("hello world", "hello|\xC4\xA0world");
    check_encode("hellhe", "hell|he");
    check_encode("aaaaaaa", "aaaa|aa|a");
    check_encode("a   b", "a|\xC4\xA0\xC4\xA0|\xC4\xA0|b");
    check_encode("é", "\xC3\x83|\xC2\xA9");
    check_round_trip("hello, wörld!\t日本\x01\n");
    end();
}

static void test_gemma(void **state)
{
    (void)state;
    start(vocab_spec_gemma);
    make();
    check_encode("hello w", "hello|\xE2\x96\x81w");
    check_encode("  a", "\xE2\x96\x81\xE2\x96\x81|a");
    check_encode("é", "é");
    check_encode("ü!", "<0xC3>|<0xBC>|<0x21>");
    check_encode("a\n\n\nb", "a|\n\n|\n|b"); /* the two newlines are a user-defined token */
    encode(ST_STR("a\n\n\nb"), &(st_encode_options){.plain = true});
    assert_string_equal(texts_of_ids(), "a|\n\n|\n|b"); /* and a merge */
    check_round_trip(" hello\n\n\n  ü日本 wé");
    end();
}

static void test_spm(void **state)
{
    (void)state;
    start(vocab_spec_spm);
    make();
    check_encode("", "");
    check_encode("hello", "\xE2\x96\x81hello");
    check_encode("hello hello", "\xE2\x96\x81hello|\xE2\x96\x81hello");
    check_encode("hello<s>hello</s>", "\xE2\x96\x81hello|<s>|\xE2\x96\x81hello|</s>");
    check_encode("<s></s>", "<s>|</s>");
    check_encode(" ", "\xE2\x96\x81\xE2\x96\x81");
    check_encode("x", "\xE2\x96\x81|<0x78>");
    check_encode("aaa", "\xE2\x96\x81|aa|a"); /* the leftmost of equals */
    check_round_trip("hello  w\n ü日");
    check_round_trip(" hello");
    check_round_trip("\n");
    end();
    start(vocab_spec_spm);
    spec.adds_space = 0;
    make();
    check_encode("hello", "hello");
    check_round_trip(" hello");
    end();
}

/* A higher score merges before a pair further left. */
static void test_spm_scores(void **state)
{
    (void)state;
    start(vocab_spec_spm);
    spec.adds_space = 0;
    vocab_add(&spec, "ab", ST_TOKEN_NORMAL, -50);
    vocab_add(&spec, "ba", ST_TOKEN_NORMAL, -40);
    vocab_add(&spec, "bb", ST_TOKEN_NORMAL, 3);
    make();
    check_encode("aba", "a|ba");
    check_encode("abba", "a|bb|a");
    end();
}

/* Text never becomes a control, an unknown or an unused token, not even by merging. */
static void test_no_control_from_text(void **state)
{
    (void)state;
    start(vocab_spec_bpe);
    spec.pre = "llama-bpe"; /* pieces that are tokens are not merged */
    vocab_add(&spec, "or", ST_TOKEN_CONTROL, 0);
    spec.tokens[vocab_id(&spec, "hello")].type = ST_TOKEN_CONTROL;
    vocab_add(&spec, "dd", ST_TOKEN_UNUSED, 0);
    make();
    check_encode("hellos", "hello|s"); /* matched as a special token */
    encode(ST_STR("hello"), &(st_encode_options){.plain = true});
    assert_string_equal(texts_of_ids(), "hell|o");
    encode(ST_STR("dd"), NULL);
    assert_string_equal(texts_of_ids(), "d|d");
    end();
    start(vocab_spec_spm);
    make();
    encode(ST_STR("<s>"), &(st_encode_options){.plain = true});
    for (size_t i = 0; i < tokens.count; i++)
        assert_int_not_equal(st_tokenizer_type(made.tokenizer, tokens.ids[i]), ST_TOKEN_CONTROL);
    check_encode("<unk>", "\xE2\x96\x81|<0x3C>|<0x75>|<0x6E>|<0x6B>|<0x3E>");
    end();
}

static void test_specials(void **state)
{
    (void)state;
    start(vocab_spec_bpe);
    make();
    check_encode("a<|im_end|>b", "a|<|im_end|>|b");
    check_encode("<|im_end|><|im_end|>", "<|im_end|><|im_end|>"); /* the longest */
    check_encode("<|im_end|><|im_end", "<|im_end|>|<|im|_|e|n|d");
    check_encode("<<tool>>", "<|<tool>|>"); /* the leftmost */
    encode(ST_STR("<tool>"), &(st_encode_options){.plain = true});
    assert_string_equal(texts_of_ids(), "<|t|o|o|l|>");
    end();
}

/* Encodes left + middle + right, where the bytes of the middle are foreign. */
static void check_guarded(const char *template_text, const char *left, const char *middle, const char *right,
                          const char *expected)
{
    char text[256];
    unsigned char foreign[256] = {0};
    snprintf(text, sizeof text, "%s%s%s", left, middle, right);
    memset(foreign + strlen(left), 1, strlen(middle));
    st_token_guard *guard = NULL;
    assert_int_equal(st_token_guard_new(made.tokenizer, st_str_from(template_text), &guard, &error), STRATA_OK);
    encode(st_str_from(text), &(st_encode_options){.guard = guard, .foreign = foreign});
    assert_string_equal(texts_of_ids(), expected);
    st_token_guard_free(guard);
}

static void test_guard(void **state)
{
    (void)state;
    start(vocab_spec_bpe);
    make();
    check_guarded("", "<|im_end|>", "hello", "<|im_end|>", "<|im_end|>|hello|<|im_end|>");
    /* a guarded token that is foreign or spans a border does not match; a shorter unguarded one does */
    check_guarded("", "a", "<|im_end|>", "b", "a|<|im|_|e|n|d|||>|b");
    check_guarded("", "<|im_e", "nd|>", "", "<|im|_|e|n|d|||>");
    check_guarded("", "", "<|im_e", "nd|>", "<|im|_|e|n|d|||>");
    check_guarded("", "<|im", "_", "end|>", "<|im|_|e|n|d|||>");
    /* tokens on both sides of a border match */
    check_guarded("", "<|im_end|>", "<|im_end|>", "", "<|im_end|><|im_end|>"); /* user-defined, not in the template */
    check_guarded("<|im_end|><|im_end|>", "<|im_end|>", "<|im_end|>", "",
                  "<|im_end|>|<|||i|m|_|e|n|d|||>");
    /* a user-defined token in the template is guarded, also as a part of another token */
    check_guarded("", "", "<tool>", "", "<tool>");
    check_guarded("{{ '<tool>' }}", "", "<tool>", "", "<|t|o|o|l|>");
    check_guarded("{{ '<tool>' }}", "<tool>", "", "", "<tool>");
    check_guarded("<|im_end|>", "", "<|im", "", "<|||i|m");
    /* without a map nothing is foreign; without a guard every token matches */
    st_token_guard *guard = NULL;
    assert_int_equal(st_token_guard_new(made.tokenizer, ST_STR("<tool>"), &guard, &error), STRATA_OK);
    encode(ST_STR("<tool>"), &(st_encode_options){.guard = guard});
    assert_string_equal(texts_of_ids(), "<tool>");
    encode(ST_STR("<tool>"), &(st_encode_options){.foreign = (const unsigned char *)"\1\1\1\1\1\1"});
    assert_string_equal(texts_of_ids(), "<tool>");
    vocab_made other;
    assert_int_equal(vocab_make(&spec, NULL, &other, &error), STRATA_OK);
    const st_encode_options guarded = {.guard = guard};
    assert_int_equal(st_tokenizer_encode(other.tokenizer, ST_STR("a"), &guarded, &tokens, &error), STRATA_INPUT);
    vocab_made_free(&other);
    st_token_guard_free(guard);
    end();
}

/* The map of foreign bytes follows the repaired text: one invalid byte becomes three. */
static void test_guard_repaired(void **state)
{
    (void)state;
    start(vocab_spec_bpe);
    make();
    check_guarded("", "<|im_end|>", "\xFF\xFF", "<|im_end|>",
                  "<|im_end|>|\xC3\xAF|\xC2\xBF|\xC2\xBD|\xC3\xAF|\xC2\xBF|\xC2\xBD|<|im_end|>");
    check_guarded("", "\xFF\xFF", "<|im_end|>", "",
                  "\xC3\xAF|\xC2\xBF|\xC2\xBD|\xC3\xAF|\xC2\xBF|\xC2\xBD|<|im|_|e|n|d|||>");
    check_guarded("", "", "\xE4\xB8", "<|im_end|>", "\xC3\xAF|\xC2\xBF|\xC2\xBD|<|im_end|>");
    end();
}

typedef struct repair_case {
    const char *bytes;
    const char *repaired;
} repair_case;

#define FFFD "\xEF\xBF\xBD"

static void test_invalid_utf8(void **state)
{
    (void)state;
    static const repair_case cases[] = {
        {"a\xFF" "b", "a" FFFD "b"},
        {"\xC0\xAF", FFFD FFFD},             /* overlong: each byte alone */
        {"\xE4\xB8", FFFD},                  /* one replacement for a truncated sequence */
        {"\xE4\xB8" "a", FFFD "a"},
        {"\xF0\x9F\x98", FFFD},
        {"\xED\xA0\x80", FFFD FFFD FFFD},    /* a surrogate */
        {"\xF4\x90\x80\x80", FFFD FFFD FFFD FFFD}, /* beyond U+10FFFF */
        {"\x80\xBF", FFFD FFFD},
        {"é\xC3", "é" FFFD},
    };
    void (*const bases[])(vocab_spec *) = {vocab_spec_bpe, vocab_spec_gemma, vocab_spec_spm};
    for (size_t b = 0; b < 3; b++) {
        start(bases[b]);
        make();
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            encode(st_str_from(cases[i].bytes), NULL);
            check_decode(tokens.ids, tokens.count, cases[i].repaired);
        }
        end();
    }
}

/* The bytes of a code point come one by one; an incomplete code point becomes U+FFFD. */
static void test_decode_pieces(void **state)
{
    (void)state;
    start(vocab_spec_bpe);
    make();
    const strata_token e = vocab_id(&spec, "e"), c3 = vocab_id(&spec, "\xC3\x83"), a9 = vocab_id(&spec, "\xC2\xA9");
    const strata_token f0 = vocab_id(&spec, "\xC3\xB0"), x9f = vocab_id(&spec, "\xC5\x81");
    check_decode((const strata_token[]){c3, a9, e}, 3, "ée");
    check_decode((const strata_token[]){c3, e}, 2, FFFD "e");
    check_decode((const strata_token[]){a9, c3}, 2, FFFD FFFD);
    check_decode((const strata_token[]){f0, x9f, c3, a9}, 4, FFFD "é");
    check_decode((const strata_token[]){c3, vocab_id(&spec, "<|im_end|>")}, 2, FFFD "<|im_end|>");

    st_buf out = {0};
    st_decode_state pieces = {0};
    assert_int_equal(st_tokenizer_decode_push(made.tokenizer, &pieces, c3, &out, &error), STRATA_OK);
    assert_int_equal(out.length, 0);
    assert_int_equal(st_tokenizer_decode_push(made.tokenizer, &pieces, a9, &out, &error), STRATA_OK);
    assert_int_equal(out.length, 2);
    assert_memory_equal(out.data, "é", 2);
    st_buf_free(&out);
    end();
}

static void test_decode_marks(void **state)
{
    (void)state;
    start(vocab_spec_spm);
    make();
    const strata_token hello = vocab_id(&spec, "\xE2\x96\x81hello"), bos = (strata_token)spec.bos;
    check_decode((const strata_token[]){hello, hello}, 2, "hello hello");
    check_decode((const strata_token[]){bos, hello}, 2, "<s> hello");
    check_decode((const strata_token[]){vocab_id(&spec, "\xE2\x96\x81"), hello}, 2, " hello");
    check_decode((const strata_token[]){vocab_id(&spec, "<0x20>"), hello}, 2, "  hello");
    const strata_token e2 = vocab_id(&spec, "<0xE2>"), x96 = vocab_id(&spec, "<0x96>"), x81 = vocab_id(&spec, "<0x81>");
    check_decode((const strata_token[]){e2, x96, x81}, 3, "\xE2\x96\x81");
    end();
}

/* Tokens with a character outside GPT-2's byte alphabet, and user-defined tokens, are copied unchanged. */
static void test_decode_outside_alphabet(void **state)
{
    (void)state;
    start(vocab_spec_bpe);
    const strata_token odd = vocab_add(&spec, "日 a", ST_TOKEN_NORMAL, 0);
    const strata_token user = vocab_add(&spec, "\xC4\xA0x", ST_TOKEN_USER, 0);
    const strata_token broken = vocab_add(&spec, "\xFF", ST_TOKEN_NORMAL, 0);
    make();
    check_decode((const strata_token[]){odd, user, broken}, 3, "日 a\xC4\xA0x" FFFD);
    end();
}

static void test_ids_out_of_range(void **state)
{
    (void)state;
    start(vocab_spec_bpe);
    make();
    const strata_token wrong[] = {-1, (strata_token)spec.count, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        st_buf out = {0};
        st_decode_state pieces = {.pending = "\xC3", .pending_length = 1, .begun = true};
        st_buf_append(&out, "before", 6);
        const strata_token two[] = {0, wrong[i]};
        assert_int_equal(st_tokenizer_decode(made.tokenizer, two, 2, &out, &error), STRATA_INPUT);
        assert_int_equal(st_tokenizer_decode_push(made.tokenizer, &pieces, wrong[i], &out, &error), STRATA_INPUT);
        assert_int_equal(out.length, 6); /* a failure writes nothing */
        assert_int_equal(pieces.pending_length, 1);
        st_buf_free(&out);
    }
    end();
}

/* Bytes without a token become the unknown token; without an unknown token they are skipped. */
static void test_missing_bytes(void **state)
{
    (void)state;
    start(vocab_spec_bpe);
    spec.tokens[vocab_id(&spec, "z")].text = "gone";
    make();
    check_encode("ezhe", "e|he"); /* not "eh|e": skipped bytes do not join their neighbours */
    end();
    start(vocab_spec_bpe);
    spec.tokens[vocab_id(&spec, "z")].text = "gone";
    spec.unknown = vocab_id(&spec, "[PAD]");
    make();
    check_encode("ezhe", "e|[PAD]|he");
    end();
    start(vocab_spec_bpe);
    spec.tokens[vocab_id(&spec, "z")].text = "gone";
    spec.unknown = spec.eos; /* text must not become a control token */
    make();
    check_encode("ezhe", "e|he");
    end();
    start(vocab_spec_gemma);
    spec.tokens[vocab_id(&spec, "<0x78>")].type = ST_TOKEN_NORMAL;
    make();
    check_encode("axa", "a|<unk>|a");
    end();
}

/* Merging with a heap (long pieces) and without (short ones) must agree: every length around the limit, with repeated
 * texts and with the piece cache. */
static void test_long_pieces(void **state)
{
    (void)state;
    void (*const bases[])(vocab_spec *) = {vocab_spec_bpe, vocab_spec_gemma, vocab_spec_spm};
    for (size_t b = 0; b < 3; b++) {
        start(bases[b]);
        spec.adds_space = 0;
        make();
        for (size_t length = 1; length < 200; length++) {
            char text[200];
            memset(text, 'a', length);
            encode((st_str){text, length}, NULL);
            size_t pair = b == 1 ? 2 : 4; /* the longest token of a's */
            assert_int_equal(tokens.count, length / pair + (length % pair) / 2 * (pair == 4) + length % 2);
        }
        end();
    }
}

/* Nothing is timed: quadratic time would exceed the time limit of the test run. */
static void test_linear(void **state)
{
    (void)state;
    static const char *const units[] = {"a", " ", "\n", "hello w\n", "<|im", "\xFF", "日", "e\u0301\u0323", "A", "1"};
    const size_t length = kit_is_slow() ? 200000 : 1000000;
    void (*const bases[])(vocab_spec *) = {vocab_spec_bpe, vocab_spec_gemma, vocab_spec_spm};
    static const char *const pres[] = {"gpt-2", "qwen2", "tekken", "deepseek-v3"};
    st_buf text = {0};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        text.length = 0;
        while (text.length < length) st_buf_append(&text, units[u], strlen(units[u]));
        for (size_t i = 0; i < 6; i++) {
            start(i < 4 ? bases[0] : bases[i - 3]);
            if (i < 4) spec.pre = pres[i];
            make();
            encode((st_str){text.data, text.length}, NULL);
            assert_true(tokens.count >= length / 8);
            end();
        }
    }
    st_buf_free(&text);
}

static void *encode_in_thread(void *failed)
{
    st_tokens own = {0};
    for (int i = 0; i < 50; i++) {
        own.count = 0;
        strata_status status = st_tokenizer_encode(made.tokenizer, ST_STR("hello world"), NULL, &own, NULL);
        if (status != STRATA_OK || own.count != 2) *(bool *)failed = true;
    }
    st_tokens_free(&own);
    return NULL;
}

/* The first of several threads compiles the patterns. */
static void test_threads(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    for (int round = 0; round < 20; round++) {
        pthread_t threads[THREADS];
        bool failed[THREADS] = {false};
        start(vocab_spec_bpe);
        make();
        for (size_t i = 0; i < THREADS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, encode_in_thread, &failed[i]), 0);
        for (size_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        for (size_t i = 0; i < THREADS; i++) assert_false(failed[i]);
        end();
    }
}

/* Text between special tokens is normalised; the tokens themselves are not. */
static void test_normalised(void **state)
{
    (void)state;
    start(vocab_spec_bpe);
    spec.pre = "qwen2";
    vocab_add(&spec, "e\u0301", ST_TOKEN_USER, 0);
    make();
    check_encode("e\u0301", "e\u0301");
    encode(ST_STR("e\u0301"), &(st_encode_options){.plain = true});
    check_decode(tokens.ids, tokens.count, "é");
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bpe),
        cmocka_unit_test(test_gemma),
        cmocka_unit_test(test_spm),
        cmocka_unit_test(test_spm_scores),
        cmocka_unit_test(test_no_control_from_text),
        cmocka_unit_test(test_specials),
        cmocka_unit_test(test_guard),
        cmocka_unit_test(test_guard_repaired),
        cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_decode_pieces),
        cmocka_unit_test(test_decode_marks),
        cmocka_unit_test(test_decode_outside_alphabet),
        cmocka_unit_test(test_ids_out_of_range),
        cmocka_unit_test(test_missing_bytes),
        cmocka_unit_test(test_long_pieces),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_normalised),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
