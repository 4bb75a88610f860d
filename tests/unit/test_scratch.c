/* Scratch: the bytes that backends state, and the fence around them. */
#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "base/poison.h"
#include "support/golden.h"
#include "support/plan_rig.h"

#include <string.h>

/* The reference path never needs more than the CPU states, and more rows never need less. */
static void scratch_grows_with_rows(void **state)
{
    (void)state;
    golden g;
    assert_true(golden_open(&g, "qwen35moe")); /* every operation that has scratch */
    for (uint32_t i = 0; i < g.program->op_count; i++) {
        st_bound_op shape = st_bound_shape(g.program, g.binding, &g.program->ops[i]);
        st_scratch before = {0};
        for (uint32_t rows = 1; rows <= 600; rows += rows < 40 ? 1 : 37) {
            st_scratch cpu = st_backend_cpu()->scratch(&shape, rows), reference = st_cpu_ref_scratch(&shape, rows);
            assert_true(cpu.shared_bytes >= before.shared_bytes && cpu.worker_bytes >= before.worker_bytes);
            assert_true(cpu.shared_bytes >= reference.shared_bytes && cpu.worker_bytes >= reference.worker_bytes);
            before = cpu;
        }
    }
    golden_close(&g);
}

/* A GPU is charged the scratch that its own backend states, not the CPU's tiles. */
static void a_gpu_states_its_own_scratch(void **state)
{
    (void)state;
    enum { OPS = 1024, BATCH = 256 };
    static st_scratch host[OPS], card[OPS];
    plan_rig rig;
    plan_rig_open(&rig, &plan_small_moe);
    plan_rig_scratch(&rig, ST_HOST, BATCH, host, OPS);
    plan_rig_scratch(&rig, ST_CARD, BATCH, card, OPS);
    for (uint32_t i = 0; i < rig.source.program->op_count; i++) {
        if (rig.source.program->ops[i].kind != ST_OP_MATMUL && rig.source.program->ops[i].kind != ST_OP_EXPERTS) continue;
        assert_int_equal(card[i].shared_bytes, 0);
        assert_true(card[i].worker_bytes > 0 && card[i].worker_bytes < host[i].worker_bytes);
        assert_true(host[i].shared_bytes > 0);
    }
    plan_rig_close(&rig);
}

static bool is_poisoned(const unsigned char *at)
{
#ifdef __SANITIZE_ADDRESS__
    return __asan_address_is_poisoned(at);
#else
    (void)at;
    return false;
#endif
}

static void scratch_beyond_the_statement_is_poisoned(void **state)
{
    (void)state;
    enum { SHARED = 256, WORKER = 128, WORKERS = 3 };
    static const st_op op = {.kind = ST_OP_MATMUL};
    unsigned char *memory = st_alloc_aligned(SHARED + WORKERS * WORKER, 64);
    assert_non_null(memory);
    st_segment_source source = {.scratch = memory, .shared_bytes = SHARED, .worker_bytes = WORKER};
    st_scratch stated = {.shared_bytes = 64, .worker_bytes = 40};
    assert_int_equal(st_cpu_scratch_fence(&source, WORKERS, &op, stated, NULL), STRATA_OK);
    for (size_t i = 0; i < SHARED + WORKERS * WORKER; i++) {
        bool beyond = i < SHARED ? i >= stated.shared_bytes : (i - SHARED) % WORKER >= stated.worker_bytes;
        assert_int_equal(is_poisoned(memory + i), beyond && ST_POISONS);
    }
    st_cpu_scratch_unfence(&source, WORKERS);
    memset(memory, 1, SHARED + WORKERS * WORKER);
    st_free(memory);
}

/* A working set smaller than an operation's stated scratch is an error. */
static void too_little_scratch_is_an_error(void **state)
{
    (void)state;
    static const st_op op = {.kind = ST_OP_MATMUL};
    unsigned char memory[64];
    st_segment_source source = {.scratch = memory, .shared_bytes = 32, .worker_bytes = 32};
    const st_scratch stated[] = {{33, 0}, {0, 33}};
    for (size_t i = 0; i < 2; i++) {
        strata_error error;
        assert_int_equal(st_cpu_scratch_fence(&source, 1, &op, stated[i], &error), STRATA_RUNTIME);
        assert_non_null(strstr(error.message, "matmul"));
        assert_non_null(strstr(error.message, "33"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scratch_grows_with_rows), cmocka_unit_test(a_gpu_states_its_own_scratch),
        cmocka_unit_test(scratch_beyond_the_statement_is_poisoned), cmocka_unit_test(too_little_scratch_is_an_error),
    };
    return cmocka_run_group_tests_name("scratch", tests, NULL, NULL);
}
