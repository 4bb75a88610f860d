/* Loading a tokenizer from a file: valid and invalid keys, and the errors. */
#include "support/kit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "support/vocab_builder.h"
#include "tokenizer/vocab.h"

typedef void (*change)(vocab_spec *spec);

typedef struct refusal {
    const char *name;
    change base;         /* makes a valid vocabulary */
    change broken;       /* makes it invalid */
    strata_status status;
    const char *says[3]; /* parts of the message */
} refusal;

#define CHANGE(name, statement)         \
    static void name(vocab_spec *spec)  \
    {                                   \
        statement;                      \
    }

CHANGE(no_model, spec->model = NULL)
static void no_keys_at_all(vocab_spec *spec)
{
    spec->model = spec->pre = NULL;
    spec->no_tokens = spec->no_types = spec->no_scores = spec->no_merges = true;
    spec->bos = spec->eos = spec->unknown = -1;
}
CHANGE(unknown_model, spec->model = "bert")
CHANGE(empty_model, spec->model = "")
CHANGE(unknown_pre, spec->pre = "no-such-row")
CHANGE(no_tokens, spec->no_tokens = true)
static void empty_tokens(vocab_spec *spec)
{
    spec->count = 0;
    spec->bos = spec->eos = spec->unknown = -1;
    spec->merge_count = 0;
}
CHANGE(more_types, spec->more_types = 1)
CHANGE(fewer_types, spec->more_types = -1)
CHANGE(type_seven, spec->tokens[5].type = 7)
CHANGE(type_negative, spec->tokens[5].type = -1)
CHANGE(more_scores, spec->more_scores = 3)
CHANGE(fewer_scores, spec->more_scores = -3)
CHANGE(no_scores, spec->no_scores = true)
CHANGE(score_nan, spec->tokens[0].score = NAN)
CHANGE(no_merges, spec->no_merges = true)
CHANGE(merge_no_blank, vocab_merge(spec, "he"))
CHANGE(merge_empty, vocab_merge(spec, ""))
CHANGE(merge_blank_only, vocab_merge(spec, " "))
CHANGE(merge_no_left, vocab_merge(spec, " h"))
CHANGE(merge_no_right, vocab_merge(spec, "h "))
CHANGE(bos_beyond, spec->bos = (int64_t)spec->count)
CHANGE(bos_minus_one, spec->bos = UINT32_MAX)
CHANGE(eos_beyond, spec->eos = (int64_t)spec->count)
CHANGE(eot_beyond, spec->eot = 1 << 30)
CHANGE(eom_beyond, spec->eom = (int64_t)spec->count + 1)
CHANGE(unknown_beyond, spec->unknown = (int64_t)spec->count)
CHANGE(byte_minus_one, spec->tokens[3].text = "<0x-1>")
CHANGE(byte_blank, spec->tokens[3].text = "<0x 1>")
CHANGE(byte_short, spec->tokens[3].text = "<0x1>")
CHANGE(byte_long, spec->tokens[3].text = "<0x100>")
CHANGE(byte_no_hex, spec->tokens[3].text = "<0xGG>")
CHANGE(byte_other, spec->tokens[3].text = "a word")
CHANGE(byte_empty, spec->tokens[3].text = "")
static void special_too_long(vocab_spec *spec)
{
    static char text[1100];
    memset(text, 'x', sizeof text - 1);
    vocab_add(spec, text, ST_TOKEN_CONTROL, 0);
}

static void sample(vocab_spec *spec, const char *key, st_gguf_type type, bool array)
{
    spec->sample_key = key;
    spec->sample_type = type;
    spec->sample_array = array;
}
CHANGE(tokens_numbers, sample(spec, "tokenizer.ggml.tokens", ST_GGUF_U32, true))
CHANGE(tokens_string, sample(spec, "tokenizer.ggml.tokens", ST_GGUF_STRING, false))
CHANGE(types_strings, sample(spec, "tokenizer.ggml.token_type", ST_GGUF_STRING, true))
CHANGE(types_floats, sample(spec, "tokenizer.ggml.token_type", ST_GGUF_F32, true))
CHANGE(scores_ints, sample(spec, "tokenizer.ggml.scores", ST_GGUF_I32, true))
CHANGE(scores_number, sample(spec, "tokenizer.ggml.scores", ST_GGUF_F32, false))
CHANGE(merges_bools, sample(spec, "tokenizer.ggml.merges", ST_GGUF_BOOL, true))
CHANGE(model_number, sample(spec, "tokenizer.ggml.model", ST_GGUF_U32, false))
CHANGE(pre_array, sample(spec, "tokenizer.ggml.pre", ST_GGUF_STRING, true))
CHANGE(bos_string, sample(spec, "tokenizer.ggml.bos_token_id", ST_GGUF_STRING, false))
CHANGE(eos_float, sample(spec, "tokenizer.ggml.eos_token_id", ST_GGUF_F32, false))

#define BPE vocab_spec_bpe
#define GEMMA vocab_spec_gemma
#define SPM vocab_spec_spm
#define FORMAT STRATA_FORMAT

static const refusal refusals[] = {
    {"no model key", BPE, no_model, FORMAT, {"tokenizer.ggml.model"}},
    {"no tokenizer keys", BPE, no_keys_at_all, FORMAT, {"tokenizer.ggml.model", "found none"}},
    {"unknown model", BPE, unknown_model, STRATA_UNSUPPORTED, {"ggml.model", "gpt2, gemma4, llama", "'bert'"}},
    {"empty model", BPE, empty_model, STRATA_UNSUPPORTED, {"tokenizer.ggml.model", "''"}},
    {"model is a number", BPE, model_number, FORMAT, {"tokenizer.ggml.model"}},
    {"unknown pre-tokeniser", BPE, unknown_pre, STRATA_UNSUPPORTED, {"tokenizer.ggml.pre", "qwen35", "'no-such-row'"}},
    {"pre-tokeniser is an array", BPE, pre_array, FORMAT, {"tokenizer.ggml.pre"}},
    {"no tokens", BPE, no_tokens, FORMAT, {"tokenizer.ggml.tokens"}},
    {"empty tokens", BPE, empty_tokens, FORMAT, {"tokenizer.ggml.tokens"}},
    {"tokens are numbers", BPE, tokens_numbers, FORMAT, {"tokenizer.ggml.tokens"}},
    {"tokens is a string", GEMMA, tokens_string, FORMAT, {"tokenizer.ggml.tokens"}},
    {"types too many", BPE, more_types, FORMAT, {"tokenizer.ggml.token_type"}},
    {"types too few", GEMMA, fewer_types, FORMAT, {"tokenizer.ggml.token_type"}},
    {"types are strings", BPE, types_strings, FORMAT, {"tokenizer.ggml.token_type"}},
    {"types are floats", BPE, types_floats, FORMAT, {"tokenizer.ggml.token_type"}},
    {"type 7", BPE, type_seven, FORMAT, {"tokenizer.ggml.token_type[5]", "found 7"}},
    {"type -1", SPM, type_negative, FORMAT, {"tokenizer.ggml.token_type[5]", "found -1"}},
    {"scores too many", SPM, more_scores, FORMAT, {"tokenizer.ggml.scores"}},
    {"scores too few", SPM, fewer_scores, FORMAT, {"tokenizer.ggml.scores"}},
    {"scores too few beside merges", GEMMA, fewer_scores, FORMAT, {"tokenizer.ggml.scores"}},
    {"no scores", SPM, no_scores, FORMAT, {"tokenizer.ggml.scores"}},
    {"scores are ints", SPM, scores_ints, FORMAT, {"tokenizer.ggml.scores"}},
    {"scores is a number", SPM, scores_number, FORMAT, {"tokenizer.ggml.scores"}},
    {"a score is NaN", SPM, score_nan, FORMAT, {"tokenizer.ggml.scores", "NaN"}},
    {"no merges", BPE, no_merges, FORMAT, {"tokenizer.ggml.merges"}},
    {"no merges, gemma4", GEMMA, no_merges, FORMAT, {"tokenizer.ggml.merges"}},
    {"merges are bools", BPE, merges_bools, FORMAT, {"tokenizer.ggml.merges"}},
    {"merge without a blank", BPE, merge_no_blank, FORMAT, {"tokenizer.ggml.merges[12]", "'he'"}},
    {"merge empty", BPE, merge_empty, FORMAT, {"tokenizer.ggml.merges[12]"}},
    {"merge of a blank", BPE, merge_blank_only, FORMAT, {"tokenizer.ggml.merges[12]"}},
    {"merge without left", BPE, merge_no_left, FORMAT, {"tokenizer.ggml.merges[12]"}},
    {"merge without right", BPE, merge_no_right, FORMAT, {"tokenizer.ggml.merges[12]"}},
    {"bos out of range", BPE, bos_beyond, FORMAT, {"tokenizer.ggml.bos_token_id"}},
    {"bos 2^32 - 1", BPE, bos_minus_one, FORMAT, {"tokenizer.ggml.bos_token_id", "4294967295"}},
    {"bos is a string", BPE, bos_string, FORMAT, {"tokenizer.ggml.bos_token_id"}},
    {"eos out of range", SPM, eos_beyond, FORMAT, {"tokenizer.ggml.eos_token_id"}},
    {"eos is a float", SPM, eos_float, FORMAT, {"tokenizer.ggml.eos_token_id"}},
    {"eot out of range", GEMMA, eot_beyond, FORMAT, {"tokenizer.ggml.eot_token_id"}},
    {"eom out of range", GEMMA, eom_beyond, FORMAT, {"tokenizer.ggml.eom_token_id"}},
    {"unknown out of range", SPM, unknown_beyond, FORMAT, {"tokenizer.ggml.unknown_token_id"}},
    {"byte <0x-1>", SPM, byte_minus_one, FORMAT, {"tokenizer.ggml.tokens[3]", "'<0x-1>'"}},
    {"byte <0x 1>", GEMMA, byte_blank, FORMAT, {"tokenizer.ggml.tokens[3]", "'<0x 1>'"}},
    {"byte <0x1>", SPM, byte_short, FORMAT, {"tokenizer.ggml.tokens[3]"}},
    {"byte <0x100>", SPM, byte_long, FORMAT, {"tokenizer.ggml.tokens[3]"}},
    {"byte <0xGG>", SPM, byte_no_hex, FORMAT, {"tokenizer.ggml.tokens[3]"}},
    {"byte that is a word", GEMMA, byte_other, FORMAT, {"tokenizer.ggml.tokens[3]"}},
    {"byte that is empty", GEMMA, byte_empty, FORMAT, {"tokenizer.ggml.tokens[3]"}},
    {"special token of 1,099 bytes", BPE, special_too_long, FORMAT, {"tokenizer.ggml.tokens[274]", "1099"}},
};

static void test_refusals(void **state)
{
    (void)state;
    static vocab_spec spec;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const refusal *row = &refusals[i];
        strata_error error = {0};
        vocab_made made;
        row->base(&spec);
        assert_int_equal(vocab_make(&spec, NULL, &made, &error), STRATA_OK);
        vocab_made_free(&made);
        row->broken(&spec);
        strata_status status = vocab_make(&spec, NULL, &made, &error);
        if (status != row->status || error.status != row->status)
            fail_msg("%s: expected %s, found %s: %s", row->name, strata_status_name(row->status),
                     strata_status_name(status), error.message);
        for (size_t j = 0; j < 3 && row->says[j]; j++)
            if (!strstr(error.message, row->says[j]))
                fail_msg("%s: no '%s' in: %s", row->name, row->says[j], error.message);
    }
}

static void test_pre_option(void **state)
{
    (void)state;
    static vocab_spec spec;
    vocab_made made;
    strata_error error;
    vocab_spec_bpe(&spec);
    assert_int_equal(vocab_make(&spec, "nothing", &made, &error), STRATA_UNSUPPORTED);
    assert_non_null(strstr(error.message, "'nothing'"));
    assert_non_null(strstr(error.message, "smollm"));
    assert_non_null(strstr(error.hint, "options.pre_tokenizer"));
    spec.pre = "no-such-row";
    assert_int_equal(vocab_make(&spec, NULL, &made, &error), STRATA_UNSUPPORTED);
    assert_non_null(strstr(error.hint, "options.pre_tokenizer"));
    assert_int_equal(vocab_make(&spec, "llama-v3", &made, &error), STRATA_OK);
    assert_string_equal(st_tokenizer_pre(made.tokenizer), "llama-bpe");
    vocab_made_free(&made);
    spec.pre = NULL;
    assert_int_equal(vocab_make(&spec, NULL, &made, &error), STRATA_OK);
    assert_string_equal(st_tokenizer_pre(made.tokenizer), "default");
    vocab_made_free(&made);
    vocab_spec_spm(&spec);
    spec.pre = "unknown"; /* ignored: the kind uses no pre-tokeniser */
    assert_int_equal(vocab_make(&spec, NULL, &made, &error), STRATA_OK);
    assert_string_equal(st_tokenizer_pre(made.tokenizer), "none");
    vocab_made_free(&made);
}

static void test_accessors(void **state)
{
    (void)state;
    static vocab_spec spec;
    vocab_made made;
    strata_error error;
    vocab_spec_bpe(&spec);
    assert_int_equal(vocab_make(&spec, NULL, &made, &error), STRATA_OK);
    const st_tokenizer *tokenizer = made.tokenizer;
    assert_int_equal(st_tokenizer_vocab_size(tokenizer), spec.count);
    assert_string_equal(st_tokenizer_kind(tokenizer), "bpe");
    assert_int_equal(st_tokenizer_bos(tokenizer), spec.bos);
    assert_int_equal(st_tokenizer_eos(tokenizer), spec.eos);
    assert_false(st_tokenizer_adds_bos(tokenizer));
    assert_true(st_str_is(st_tokenizer_text(tokenizer, vocab_id(&spec, "hello")), "hello"));
    assert_int_equal(st_tokenizer_type(tokenizer, vocab_id(&spec, "<tool>")), ST_TOKEN_USER);
    const strata_token wrong[] = {-1, INT32_MIN, (strata_token)spec.count, INT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(st_tokenizer_text(tokenizer, wrong[i]).length, 0);
        assert_int_equal(st_tokenizer_type(tokenizer, wrong[i]), ST_TOKEN_UNUSED);
        assert_false(st_tokenizer_is_end(tokenizer, wrong[i]));
    }
    vocab_made_free(&made);
}

static bool adds_bos(change base, const char *pre, int key, bool has_bos)
{
    static vocab_spec spec;
    vocab_made made;
    strata_error error;
    base(&spec);
    spec.adds_bos = key;
    if (pre) spec.pre = pre;
    if (!has_bos) spec.bos = -1;
    assert_int_equal(vocab_make(&spec, NULL, &made, &error), STRATA_OK);
    bool adds = st_tokenizer_adds_bos(made.tokenizer);
    vocab_made_free(&made);
    return adds;
}

static void test_bos_habits(void **state)
{
    (void)state;
    assert_false(adds_bos(BPE, NULL, -1, true));
    assert_true(adds_bos(BPE, NULL, 1, true));
    assert_true(adds_bos(BPE, "llama-bpe", -1, true));
    assert_false(adds_bos(BPE, "llama-bpe", 0, true));
    assert_false(adds_bos(BPE, "llama-bpe", -1, false));
    assert_true(adds_bos(SPM, NULL, -1, true));
    assert_false(adds_bos(SPM, NULL, 0, true));
    assert_false(adds_bos(SPM, NULL, 1, false));
    assert_true(adds_bos(GEMMA, NULL, -1, true));
}

typedef struct end_row {
    const char *text;
    int type;
    bool end;
} end_row;

/* Checks the rows in a vocabulary without and with the keys of EOT and EOM, which must make no difference. */
static void check_ends(const end_row *rows, size_t count)
{
    for (int keys = 0; keys < 2; keys++) {
        static vocab_spec spec;
        strata_token ids[32];
        vocab_made made;
        strata_error error;
        vocab_spec_bpe(&spec);
        for (size_t i = 0; i < count; i++) ids[i] = vocab_add(&spec, rows[i].text, rows[i].type, 0);
        strata_token pad = vocab_id(&spec, "[PAD]"), tool = vocab_id(&spec, "<tool>");
        if (keys) spec.eot = pad;
        if (keys) spec.eom = tool;
        assert_int_equal(vocab_make(&spec, NULL, &made, &error), STRATA_OK);
        assert_true(st_tokenizer_is_end(made.tokenizer, (strata_token)spec.eos));
        assert_int_equal(st_tokenizer_is_end(made.tokenizer, pad), keys);
        assert_int_equal(st_tokenizer_is_end(made.tokenizer, tool), keys);
        size_t ends, expected = 1 + (keys ? 2 : 0);
        (void)st_tokenizer_ends(made.tokenizer, &ends);
        for (size_t i = 0; i < count; i++) {
            if (st_tokenizer_is_end(made.tokenizer, ids[i]) != rows[i].end)
                fail_msg("%s, keys: %d", rows[i].text, keys);
            expected += rows[i].end;
        }
        assert_int_equal(ends, expected);
        vocab_made_free(&made);
    }
}

static void test_ends(void **state)
{
    (void)state;
    static const end_row rows[] = {
        {"<|endoftext|>", ST_TOKEN_CONTROL, true},      {"<|eot_id|>", ST_TOKEN_CONTROL, true},
        {"<|eom_id|>", ST_TOKEN_USER, true},            {"<end_of_turn>", ST_TOKEN_USER, true},
        {"<turn|>", ST_TOKEN_CONTROL, true},            {"<|end|>", ST_TOKEN_CONTROL, true},
        {"<|END_OF_TURN_TOKEN|>", ST_TOKEN_USER, true}, {"<|end_of_text|>", ST_TOKEN_CONTROL, true},
        {"</s>", ST_TOKEN_CONTROL, true},               {"</s>", ST_TOKEN_USER, false},
        {"<|im_end|>", ST_TOKEN_CONTROL, true},         {"<|im_end|>", ST_TOKEN_NORMAL, false},
        {"<|call|>", ST_TOKEN_CONTROL, true},           {"<|eot|>", ST_TOKEN_NORMAL, false},
        {"<|eot_id|>x", ST_TOKEN_CONTROL, false},       {"<|endofprompt|>", ST_TOKEN_CONTROL, false},
        {"<|im_start|>", ST_TOKEN_CONTROL, false}};
    check_ends(rows, sizeof rows / sizeof *rows);
}

/* In a vocabulary with <|return|>, <|end|> ends a message and the answer goes on. */
static void test_end_of_a_message(void **state)
{
    (void)state;
    static const end_row with[] = {{"<|return|>", ST_TOKEN_CONTROL, true}, {"<|end|>", ST_TOKEN_CONTROL, false},
                                   {"<|call|>", ST_TOKEN_CONTROL, true}};
    static const end_row without[] = {{"<|return|>", ST_TOKEN_NORMAL, false}, {"<|end|>", ST_TOKEN_CONTROL, true}};
    check_ends(with, 3);
    check_ends(without, 2);
}

/* Loads a vocabulary and captures what the library logs. */
static void load_logged(const vocab_spec *spec, vocab_made *made, char *log, size_t size)
{
    strata_error error;
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    int kept = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    strata_status status = vocab_make(spec, NULL, made, &error);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(file);
    log[fread(log, 1, size - 1, file)] = '\0';
    fclose(file);
    if (status != STRATA_OK) fail_msg("%s", error.message);
}

static void test_merges_of_absent_tokens(void **state)
{
    (void)state;
    static const char *const absent[] = {"zzz e", "e zzz", "h e l", "w b"};
    for (int kind = 0; kind < 2; kind++) {
        static vocab_spec spec, plain;
        vocab_made with, without;
        char log[1024], text[64];
        st_tokens ids = {0}, expected = {0};
        (kind ? GEMMA : BPE)(&plain);
        spec = plain;
        size_t count = spec.merge_count;
        spec.merge_count = 0; /* the skipped merges come first */
        for (size_t i = 0; i < 4; i++) vocab_merge(&spec, absent[i]);
        for (size_t i = 0; i < count; i++) vocab_merge(&spec, plain.merges[i]);
        load_logged(&plain, &without, log, sizeof log);
        assert_string_equal(log, "");
        load_logged(&spec, &with, log, sizeof log);
        snprintf(text, sizeof text, "skipped 4 of %zu merges", count + 4);
        if (!strstr(log, text)) fail_msg("%s: does not say %s", log, text);
        assert_ptr_equal(strchr(log, '\n'), log + strlen(log) - 1); /* one line */
        st_str sample = ST_STR("hello hell he wb zzze");
        assert_int_equal(st_tokenizer_encode(with.tokenizer, sample, NULL, &ids, NULL), STRATA_OK);
        assert_int_equal(st_tokenizer_encode(without.tokenizer, sample, NULL, &expected, NULL), STRATA_OK);
        assert_int_equal(ids.count, expected.count);
        assert_memory_equal(ids.ids, expected.ids, ids.count * sizeof *ids.ids);
        st_tokens_free(&ids);
        st_tokens_free(&expected);
        vocab_made_free(&with);
        vocab_made_free(&without);
    }
}

static void test_duplicates(void **state)
{
    (void)state;
    static vocab_spec spec;
    vocab_made made;
    strata_error error;
    st_tokens tokens = {0};
    vocab_spec_bpe(&spec);
    strata_token first = vocab_id(&spec, "hello"), special = vocab_id(&spec, "<tool>");
    vocab_add(&spec, "hello", ST_TOKEN_NORMAL, 0);
    vocab_add(&spec, "<tool>", ST_TOKEN_CONTROL, 0);
    vocab_add(&spec, "", ST_TOKEN_CONTROL, 0); /* matches nowhere */
    vocab_merge(&spec, "h e");
    assert_int_equal(vocab_make(&spec, NULL, &made, &error), STRATA_OK);
    assert_int_equal(st_tokenizer_encode(made.tokenizer, ST_STR("hello<tool>"), NULL, &tokens, &error), STRATA_OK);
    assert_int_equal(tokens.count, 2);
    assert_int_equal(tokens.ids[0], first);
    assert_int_equal(tokens.ids[1], special);
    st_tokens_free(&tokens);
    vocab_made_free(&made);
}

/* In a file without types, byte tokens are recognised by their text. */
static void test_no_types(void **state)
{
    (void)state;
    static vocab_spec spec;
    vocab_made made;
    strata_error error;
    st_tokens tokens = {0};
    vocab_spec_spm(&spec);
    spec.no_types = true;
    assert_int_equal(vocab_make(&spec, NULL, &made, &error), STRATA_OK);
    assert_int_equal(st_tokenizer_type(made.tokenizer, vocab_id(&spec, "<0x0A>")), ST_TOKEN_BYTE);
    assert_int_equal(st_tokenizer_encode(made.tokenizer, ST_STR("\x01"), NULL, &tokens, &error), STRATA_OK);
    assert_int_equal(tokens.count, 2);
    assert_int_equal(tokens.ids[1], vocab_id(&spec, "<0x01>"));
    st_tokens_free(&tokens);
    vocab_made_free(&made);
}

static void test_byte_of(void **state)
{
    (void)state;
    assert_int_equal(st_vocab_byte_of(ST_STR("<0x00>")), 0);
    assert_int_equal(st_vocab_byte_of(ST_STR("<0xfF>")), 255);
    const char *wrong[] = {"<0x-1>", "<0x+1>", "<0x 1>", "<0x1 >", "<0x001>", "<0X00>", "0x00", "<0x0>", "<0x00", ""};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(st_vocab_byte_of(st_str_from(wrong[i])), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),  cmocka_unit_test(test_pre_option), cmocka_unit_test(test_accessors),
        cmocka_unit_test(test_bos_habits), cmocka_unit_test(test_ends), cmocka_unit_test(test_end_of_a_message),
        cmocka_unit_test(test_merges_of_absent_tokens),     cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_no_types),  cmocka_unit_test(test_byte_of),
    };
    return cmocka_run_group_tests_name("tokenizer vocabulary", tests, NULL, NULL);
}
