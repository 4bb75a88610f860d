/* Pre-tokenisers and normalisation, row by row, on cases checked by hand. */
#include "support/kit.h"

#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "tokenizer/pre.h"

typedef struct split_case {
    const char *row;
    const char *text;
    const char *pieces; /* with | between them */
} split_case;

/* U+0301 is a combining acute, U+0939 U+093F a letter with a mark, U+0660 a digit. */
static const split_case split_cases[] = {
    {"gpt-2", "I'm 25 years, don't!", "I|'m| 25| years|,| don|'t|!"},
    {"gpt2", "a  b\n\n c", "a| | b|\n\n| c"},
    {"gpt-2", "I'M", "I|'|M"},
    {"default", "x=1;  ", "x|=|1|;|  "},
    {"gpt-2", "a \u00A0\u3000b \u180E!", "a| \u00A0|\u3000|b| \u180E!"}, /* U+180E is no white space */
    {"llama-bpe", "I'M 1234567", "I|'M| |123|456|7"},
    {"llama3", "foo\n\n  bar();\n", "foo|\n\n| | bar|();\n"},
    {"llama-v3", "\t\tif", "\t|\tif"},
    {"qwen2", "a 123", "a| |1|2|3"},
    {"deepseek-r1-qwen", "don'T", "don|'T"},
    /* qwen2 does not count a mark as a letter, qwen35 does */
    {"qwen2", "he\u0301llo", "he|\u0301llo"},
    {"qwen35", "he\u0301llo", "he\u0301llo"},
    {"qwen35", "हिन्दी 12", "हिन्दी| |1|2"},
    {"qwen35", "!\u0301a", "!\u0301a"},
    {"qwen35", "..\u0301.", "..|\u0301|."},
    {"qwen35", "I'll (x)\n\n y  ", "I|'ll| (|x|)\n\n| y|  "},
    {"tekken", "HelloWorld 42", "Hello|World| |4|2"},
    {"tekken", "ABC a/b//\n", "ABC| a|/b|//\n"},
    {"gpt-4o", "HelloWorld I'm 12345", "Hello|World| I'm| |123|45"},
    {"llama4", "IT'S", "IT'S"},
    /* digits first, then ideographs and kana, then the rest */
    {"deepseek-v3", "abc1234中文かな。x", "abc|123|4|中文かな|。|x"},
    {"deepseek-v3", "a  1", "a|  |1"},
    {"deepseek-v3", "#include <stdio.h>\n", "#include| <|stdio|.h|>\n"},
    {"deepseek-v3", "foo_bar e\u0301", "foo|_bar| e\u0301"},
    {"smollm", "year 2024's 3x", "year| |2|0|2|4|'s| |3|x"},
    {"smollm", "a   7", "a|   |7"},
    {"smollm", "\u0660\u0661 ok", "\u0660|\u0661| ok"},
    {"olmo", "I'm 25", "I|'m| 25"},
    {"glm4", "I'LL pay 12345!\n", "I|'LL| pay| |123|45|!\n"},
    {"dbrx", "x1234 y", "x|123|4| y"},
    {"lfm2", "I'M 1234567", "I|'M| |123|456|7"},
    {"hunyuan", "a 123\n", "a| |1|2|3|\n"},
    {"seed-oss", "f(x);\n 12", "f|(x|);|\n| |1|2"}, /* punctuation and line ends are apart */
    {"seed-coder", "I'm", "I|'m"},
    {"bailingmoe2", "We'RE 12\n\n x", "We|'RE| |1|2|\n\n| x"},
    /* words of Han characters are runs of their own; other words are cut by case */
    {"kimi-k2", "Hello世界World 1234's", "Hello|世界|World| |123|4|'s"},
    {"kimi-k2", "IT'S ok()\n", "IT'S| ok|()\n"},
    {"o200k", "HelloWorld 12345", "Hello|World| |123|45"},
    {"minimax-m2", "fooBar's 7", "foo|Bar's| |7"},
    /* its class of punctuation has the ASCII letters, too, and cuts words again */
    {"deepseek-llm", "Hello, wörld 2024!\n中文 x", "Hello|,| w|ö|rld| |2024|!|\n|中文| x"},
    {"deepseek-llm", "a  ", "a|  "},
    {"hunyuan-dense", "abc1234中文", "abc|123|4|中文"},
    {"refact", "x = 42;", "x| =| |4|2|;"},
    {"command-r", "year 2024's", "year| |2|0|2|4|'s"},
    {"exaone4", "I'm 25", "I|'m| 25"},
};

static strata_status collect(void *context, st_str piece, strata_error *error)
{
    st_buf *out = context;
    (void)error;
    if (out->length) st_buf_append_char(out, '|');
    st_buf_append_str(out, piece);
    return STRATA_OK;
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof split_cases / sizeof *split_cases; i++) {
        const split_case *row = &split_cases[i];
        strata_error error;
        st_pre *pre;
        st_pre_walk *walk;
        st_buf pieces = {0};
        const st_pre_row *found = st_pre_find(st_str_from(row->row));
        assert_non_null(found);
        if (st_pre_new(found, &pre, &error) != STRATA_OK) fail_msg("%s: %s", row->row, error.message);
        assert_int_equal(st_pre_walk_new(pre, &walk, &error), STRATA_OK);
        assert_int_equal(st_pre_split(pre, walk, st_str_from(row->text), collect, &pieces, &error), STRATA_OK);
        st_buf_append_char(&pieces, '\0');
        assert_string_equal(pieces.data, row->pieces);
        st_buf_free(&pieces);
        st_pre_walk_free(walk);
        st_pre_free(pre);
    }
}

static void test_list(void **state)
{
    (void)state;
    char list[512];
    st_pre_list(list, sizeof list);
    const char *names[] = {"gpt-2", "default", "llama-bpe", "qwen2", "qwen35", "tekken", "deepseek-v3", "smollm"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_non_null(strstr(list, names[i]));
        assert_string_equal(st_pre_find(st_str_from(names[i]))->names[0], names[i]);
    }
    assert_null(st_pre_find(ST_STR("qwen")));
    assert_null(st_pre_find(ST_STR("")));
    char tiny[8];
    st_pre_list(tiny, sizeof tiny); /* truncated, with a NUL */
    assert_true(strlen(tiny) < sizeof tiny);
}

/* utf8proc's NFC is the reference. */
static void check_nfc(const char *text, size_t length)
{
    st_buf out = {0};
    assert_true(st_nfc_append(&out, (st_str){text, length}));
    utf8proc_uint8_t *expected = NULL;
    utf8proc_ssize_t expected_length = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)length, &expected,
                                                    UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    assert_true(expected_length >= 0);
    assert_int_equal(out.length, expected_length);
    if (out.length) assert_memory_equal(out.data, expected, out.length);
    if (st_nfc_is_trivial((st_str){text, length})) assert_true(length == 0 || memcmp(out.data, text, length) == 0);
    st_free(expected);
    st_buf_free(&out);
}

static void test_nfc_all_codes(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x110000; code++) {
        if (code >= 0xD800 && code < 0xE000) continue;
        if (code >= 0x30000 && code % 97) continue; /* ideographs, private use and a few tags: a sample is enough */
        char text[16] = "a";
        size_t length = 1 + st_utf8_encode(code, text + 1);
        length += st_utf8_encode(0x0301, text + length);
        length += st_utf8_encode(0x0323, text + length);
        check_nfc(text, length);
    }
}

static void test_nfc_random(void **state)
{
    (void)state;
    static const uint32_t codes[] = {'a',    'e',    ' ',    0xE9,   0x300,   0x301,   0x323,  0x345,
                                     0x5B0,  0x1100, 0x1161, 0x11A8, 0xAC00,  0x915,   0x93C,  0x94D,
                                     0x1E69, 0x212B, 0x4E2D, 0x2126, 0x1D15E, 0x1D165, 0x3099, 0x304B};
    uint64_t random = 20240607;
    for (int round = 0; round < 20000; round++) {
        char text[256];
        size_t length = 0, count = round % 40;
        for (size_t i = 0; i < count; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            length += st_utf8_encode(codes[(random >> 33) % (sizeof codes / sizeof *codes)], text + length);
        }
        check_nfc(text, length);
    }
}

/* Two marks in the wrong order, half a million times: quadratic sorting would take minutes. */
static void test_nfc_many_marks(void **state)
{
    (void)state;
    st_buf text = {0}, out = {0};
    st_buf_append_char(&text, 'a');
    for (int i = 0; i < 500000; i++) st_buf_append(&text, "\u0301\u0323", 4);
    assert_true(st_nfc_append(&out, (st_str){text.data, text.length}));
    assert_int_equal(out.length, 3 + 499999 * 2 + 500000 * 2); /* a with dot below, and the marks in order */
    assert_memory_equal(out.data, "\u1EA1\u0323", 5);
    assert_memory_equal(out.data + out.length - 2, "\u0301", 2);
    st_buf_free(&text);
    st_buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),       cmocka_unit_test(test_list),           cmocka_unit_test(test_nfc_all_codes),
        cmocka_unit_test(test_nfc_random), cmocka_unit_test(test_nfc_many_marks),
    };
    return cmocka_run_group_tests_name("tokenizer pre-tokenisers", tests, NULL, NULL);
}
