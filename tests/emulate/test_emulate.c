/* The emulator finds wrong kernels, and computes right ones in every order. */
#include "emulate/wrong.h"

#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

enum { SEEDS = 12 }; /* ascending, descending, ten shuffled */

/* Runs the kernel in a process of its own, which must end with the message. */
static void expect_fault(void (*kernel)(void), const char *message)
{
    char text[8192];
    size_t length = 0;
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        kernel();
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t n; (n = read(ends[0], text + length, sizeof text - 1 - length)) > 0;) length += (size_t)n;
    close(ends[0]);
    text[length] = '\0';
    waitpid(child, &status, 0);
    if (!strstr(text, message)) fail_msg("expected \"%s\", found \"%s\"", message, text);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void faults(void **state)
{
    static const struct {
        void (*kernel)(void);
        const char *message;
    } cases[] = {
        {wrong_mask, "is not in its mask 0000ffff"},
        {wrong_exited_lane, "for lane 3, which has ended"},
        {wrong_source, "which is not in the mask 0000ffff"},
        {wrong_branch, "deadlock: it waits in a collective"},
        {wrong_barrier, "it is at the barrier of line"},
        {wrong_word, "misaligned address"},
        {wrong_copy, "is not a multiple of 16 bytes"},
        {wrong_grid, "a grid of 1 × 65536 × 1 blocks"},
        {wrong_block, "a block of 1025 × 1 × 1 threads"},
        {wrong_shared, "65536 bytes of dynamic shared memory: more than 49152 must be allowed"},
        {wrong_shared_size, "102400 bytes of dynamic shared memory, of 101376"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect_fault(cases[i].kernel, cases[i].message);
}

static void out_of_bounds(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    expect_fault(wrong_bounds, "heap-buffer-overflow");
#else
    skip();
#endif
}

/* Counts the orders in which the result is right. */
static int right_orders(bool (*kernel)(bool), bool argument)
{
    int right = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        emulate_order(seed);
        right += kernel(argument);
    }
    emulate_order(0);
    return right;
}

static void missing_barriers(void **state)
{
    static bool (*const cases[])(bool) = {shared_reverse, shared_rotate, shared_copied};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(right_orders(cases[i], true), SEEDS);
        assert_true(right_orders(cases[i], false) < SEEDS);
    }
}

static void right_results(void **state)
{
    static bool (*const cases[])(void) = {shared_unwritten, blocks_once, last_block_sums,
                                          halves_apart, product_f16};
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        emulate_order(seed);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            if (!cases[i]()) fail_msg("kernel %zu computes something else with seed %u", i, (unsigned)seed);
    }
    emulate_order(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults),
        cmocka_unit_test(out_of_bounds),
        cmocka_unit_test(missing_barriers),
        cmocka_unit_test(right_results),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
