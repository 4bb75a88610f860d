/* Every allocation of the tokenizer fails once: a typed error, no leak, and the next call works. */
#include "support/kit.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/fault.h"
#include "support/vocab_builder.h"

enum { CALLS_MAX = 10000 };

typedef struct fault_subject {
    vocab_spec spec;
    gguf_writer writer;
    st_gguf *gguf;
    st_tokenizer *tokenizer;
    st_token_guard *guard;
} fault_subject;

/* A call succeeds, or fails with STRATA_MEMORY and changes nothing. */
typedef strata_status (*fault_step)(fault_subject *subject, strata_error *error);

static strata_status make_tokenizer(fault_subject *subject, strata_error *error)
{
    st_tokenizer *tokenizer = NULL;
    strata_status status = st_tokenizer_new(subject->gguf, NULL, &tokenizer, error);
    assert_true((status == STRATA_OK) == (tokenizer != NULL));
    st_tokenizer_free(tokenizer);
    return status;
}

static strata_status make_guard(fault_subject *subject, strata_error *error)
{
    st_token_guard *guard = NULL;
    strata_status status = st_token_guard_new(subject->tokenizer, ST_STR("<tool>"), &guard, error);
    assert_true((status == STRATA_OK) == (guard != NULL));
    st_token_guard_free(guard);
    return status;
}

/* A new tokenizer each time, so that the patterns are compiled. The text is long and invalid UTF-8, with a map. */
static strata_status encode(fault_subject *subject, strata_error *error)
{
    static char text[6000];
    static unsigned char foreign[sizeof text];
    static const char part[] = "hello wo\u0301rld <|im_end|>\n \xFF 日本 <tool> e\u0301\u0323";
    for (size_t i = 0; i < sizeof text; i++) text[i] = i < 300 ? 'a' : part[i % (sizeof part - 1)];
    for (size_t i = 0; i < sizeof foreign; i++) foreign[i] = i % 100 < 50;
    st_tokens tokens = {0};
    strata_status status = st_tokens_push(&tokens, 7) ? STRATA_OK : STRATA_MEMORY;
    if (status == STRATA_MEMORY) return st_error_memory(error, 1, "the test");
    const st_encode_options options = {.guard = subject->guard, .foreign = foreign};
    status = st_tokenizer_encode(subject->tokenizer, (st_str){text, sizeof text}, &options, &tokens, error);
    assert_int_equal(tokens.ids[0], 7);
    assert_true((status == STRATA_OK) == (tokens.count > 1));
    st_tokens_free(&tokens);
    return status;
}

static strata_status decode(fault_subject *subject, strata_error *error)
{
    strata_token ids[400];
    for (size_t i = 0; i < 400; i++) ids[i] = (strata_token)(i * 7 % subject->spec.count);
    st_buf out = {0};
    strata_status status = st_tokenizer_decode(subject->tokenizer, ids, 400, &out, error);
    assert_true((status == STRATA_OK) == (out.length > 0));
    assert_false(out.failed);
    st_buf_free(&out);
    return status;
}

static void prepare(fault_subject *subject)
{
    strata_error error;
    assert_int_equal(st_tokenizer_new(subject->gguf, NULL, &subject->tokenizer, &error), STRATA_OK);
    assert_int_equal(st_token_guard_new(subject->tokenizer, ST_STR("<tool>"), &subject->guard, &error), STRATA_OK);
}

static void fail_each(fault_subject *subject, fault_step step, bool persistent, bool fresh)
{
    for (uint64_t nth = 1; nth < CALLS_MAX; nth++) {
        strata_error error = {0};
        if (fresh) { /* compile the patterns again */
            st_token_guard_free(subject->guard);
            st_tokenizer_free(subject->tokenizer);
            prepare(subject);
        }
        st_fault_arm(ST_FAULT_ALLOC, nth, persistent);
        strata_status status = step(subject, &error);
        uint64_t calls = st_fault_calls(ST_FAULT_ALLOC);
        st_fault_arm(ST_FAULT_ALLOC, 0, false);
        if (calls < nth) {
            assert_int_equal(status, STRATA_OK);
            assert_true(nth > 1);
            return;
        }
        /* Some failures have no effect: without memory for machine code, patterns are interpreted. */
        if (status != STRATA_OK) {
            assert_int_equal(status, STRATA_MEMORY);
            assert_int_equal(error.status, STRATA_MEMORY);
            assert_true(error.message[0] != '\0');
        }
        assert_int_equal(step(subject, &error), STRATA_OK);
    }
    fail_msg("no end after %d allocations", CALLS_MAX);
}

static void run(void (*base)(vocab_spec *spec), const char *pre)
{
    static fault_subject subject;
    strata_error error;
    memset(&subject, 0, sizeof subject);
    base(&subject.spec);
    if (pre) subject.spec.pre = pre;
    vocab_write(&subject.spec, &subject.writer);
    const st_buf *bytes = &subject.writer.out;
    assert_int_equal(st_gguf_open_memory("vocabulary", bytes->data, bytes->length, &subject.gguf, &error), STRATA_OK);
    prepare(&subject);
    for (int persistent = 0; persistent < 2; persistent++) {
        fail_each(&subject, make_tokenizer, persistent, false);
        fail_each(&subject, make_guard, persistent, false);
        fail_each(&subject, encode, persistent, true);
        fail_each(&subject, encode, persistent, false);
        fail_each(&subject, decode, persistent, false);
    }
    st_token_guard_free(subject.guard);
    st_tokenizer_free(subject.tokenizer);
    st_gguf_close(subject.gguf);
    gguf_writer_free(&subject.writer);
}

static void test_bpe(void **state)
{
    (void)state;
    run(vocab_spec_bpe, "qwen2");
}

static void test_bpe_sequential_patterns(void **state)
{
    (void)state;
    run(vocab_spec_bpe, "deepseek-v3");
}

static void test_bpe_whole_token_first(void **state)
{
    (void)state;
    run(vocab_spec_bpe, "tekken");
}

static void test_gemma(void **state)
{
    (void)state;
    run(vocab_spec_gemma, NULL);
}

static void test_spm(void **state)
{
    (void)state;
    run(vocab_spec_spm, NULL);
}

/* A long merge needs memory from the heap. */
static void long_merge(vocab_spec *spec)
{
    static char left[401], right[401], both[801], merge[802];
    memset(left, 'x', 400);
    memset(right, 'y', 400);
    snprintf(both, sizeof both, "%s%s", left, right);
    snprintf(merge, sizeof merge, "%s %s", left, right);
    vocab_spec_bpe(spec);
    vocab_add(spec, left, ST_TOKEN_NORMAL, 0);
    vocab_add(spec, right, ST_TOKEN_NORMAL, 0);
    vocab_add(spec, both, ST_TOKEN_NORMAL, 0);
    vocab_merge(spec, merge);
}

static void test_long_merge(void **state)
{
    (void)state;
    run(long_merge, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bpe),
        cmocka_unit_test(test_bpe_sequential_patterns),
        cmocka_unit_test(test_bpe_whole_token_first),
        cmocka_unit_test(test_gemma),
        cmocka_unit_test(test_spm),
        cmocka_unit_test(test_long_merge),
    };
    return cmocka_run_group_tests_name("tokenizer faults", tests, NULL, NULL);
}
