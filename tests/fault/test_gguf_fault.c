/* Opening a file while its n-th allocation or file call fails, once or from then on, for every n until a run has no
 * failure: a typed error, no leak (checked by the sanitizer), and the next open works. */
#include "support/kit.h"

#include <stdio.h>

#include "base/fault.h"
#include "support/gguf_walk.h"
#include "support/mutate_split.h"

typedef struct fault_case {
    const char *name;
    st_fault_kind kind;
    bool split;
    bool persistent;
} fault_case;

static const fault_case fault_cases[] = {
    {"an allocation, plain file, once", ST_FAULT_ALLOC, false, false},
    {"an allocation, plain file, from then on", ST_FAULT_ALLOC, false, true},
    {"an allocation, split file, once", ST_FAULT_ALLOC, true, false},
    {"an allocation, split file, from then on", ST_FAULT_ALLOC, true, true},
    {"a file call, plain file, once", ST_FAULT_FILE, false, false},
    {"a file call, plain file, from then on", ST_FAULT_FILE, false, true},
    {"a file call, split file, once", ST_FAULT_FILE, true, false},
    {"a file call, split file, from then on", ST_FAULT_FILE, true, true},
};

static split_folder folder;

static int make_folder(void **state)
{
    (void)state;
    split_folder_make(&folder);
    split_write_all(&folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    split_folder_remove(&folder);
    return 0;
}

static void check_opens(const char *path)
{
    st_gguf *gguf = NULL;
    strata_error error = {0};
    if (st_gguf_open(path, &gguf, &error) != STRATA_OK) fail_msg("%s", error.message);
    (void)gguf_walk(gguf);
    st_gguf_close(gguf);
}

static void check_faults(void **state)
{
    const fault_case *row = *state;
    char path[4096];
    snprintf(path, sizeof path, "%s", row->split ? split_path(&folder, 1, SPLIT_FILES) : kit_path("gemma4-moe.gguf"));
    strata_status expected = row->kind == ST_FAULT_ALLOC ? STRATA_MEMORY : STRATA_FILE;
    uint64_t failed = 0;
    for (uint64_t nth = 1;; nth++) {
        st_gguf *gguf = NULL;
        strata_error error = {0};
        st_fault_arm(row->kind, nth, row->persistent);
        strata_status status = st_gguf_open(path, &gguf, &error);
        uint64_t calls = st_fault_calls(row->kind);
        st_fault_arm(row->kind, 0, false);
        if (status == STRATA_OK) {
            st_gguf_close(gguf);
            assert_true(calls < nth); /* fewer than n calls: nothing failed */
            break;
        }
        failed++;
        assert_null(gguf);
        assert_int_equal(status, expected);
        assert_int_equal(error.status, expected);
        assert_true(error.message[0] != '\0');
        check_opens(path);
        assert_true(nth < 100000);
    }
    assert_true(failed >= 3);
}

int main(void)
{
    enum { COUNT = sizeof fault_cases / sizeof *fault_cases };
    struct CMUnitTest tests[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        tests[i] = (struct CMUnitTest){.name = fault_cases[i].name, .test_func = check_faults,
                                       .initial_state = (void *)(uintptr_t)&fault_cases[i]};
    return _cmocka_run_group_tests("gguf fault", tests, COUNT, make_folder, remove_folder);
}
