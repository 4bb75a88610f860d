/* src/memory/ledger.c: bytes reserved and allocated by each owner, and the one block of each device. */
#include "support/sim_rig.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/fault.h"
#include "memory/ledger.h"

enum { HOST = 0, CARD = 1, GRANULE = SIM_GRANULARITY };

static st_ledger *new_ledger(st_ledger_trace trace, void *context)
{
    st_ledger *ledger = NULL;
    assert_int_equal(st_ledger_new(2, trace, context, &ledger, NULL), STRATA_OK);
    st_ledger_name(ledger, HOST, "host", 64000000);
    st_ledger_name(ledger, CARD, "card", 12884901888);
    return ledger;
}

static void expect_failure(const st_ledger *ledger, const char *const *words)
{
    strata_error error;
    assert_int_equal(st_ledger_check(ledger, &error), STRATA_MEMORY);
    for (; *words; words++)
        if (!strstr(error.message, *words)) fail_msg("\"%s\" is not in: %s", *words, error.message);
}

static void sums_are_exact(void **state)
{
    (void)state;
    st_ledger *ledger = new_ledger(NULL, NULL);
    uint64_t sum = 0;
    /* Large and odd sizes: nothing is rounded. */
    for (int owner = 0; owner < ST_OWNER_COUNT; owner++) {
        for (uint64_t i = 1; i <= 1000; i++) {
            uint64_t bytes = ((uint64_t)1 << 40) / i + (uint64_t)owner;
            st_ledger_reserve(ledger, CARD, (st_owner)owner, bytes);
            st_ledger_commit(ledger, CARD, (st_owner)owner, bytes - 1);
            st_ledger_commit(ledger, CARD, (st_owner)owner, 1);
            sum += bytes;
        }
    }
    assert_int_equal(st_ledger_check(ledger, NULL), STRATA_OK);
    uint64_t reserved = 0, committed = 0;
    for (int owner = 0; owner < ST_OWNER_COUNT; owner++) {
        st_ledger_line line = st_ledger_at(ledger, CARD, (st_owner)owner);
        st_ledger_line other = st_ledger_at(ledger, HOST, (st_owner)owner);
        reserved += line.reserved;
        committed += line.committed;
        assert_true(other.reserved == 0 && other.committed == 0);
    }
    assert_true(reserved == sum && committed == sum);
    assert_int_equal(st_ledger_close(ledger, NULL), STRATA_OK);
}

static void errors_name_planned_and_allocated_bytes(void **state)
{
    (void)state;
    st_ledger *ledger = new_ledger(NULL, NULL);
    st_ledger_reserve(ledger, CARD, ST_OWNER_WEIGHTS, 1000);
    st_ledger_reserve(ledger, CARD, ST_OWNER_KV, 123456789);
    st_ledger_commit(ledger, CARD, ST_OWNER_WEIGHTS, 1000);
    st_ledger_commit(ledger, CARD, ST_OWNER_KV, 123456788);
    expect_failure(ledger, (const char *const[]){"card", "kv", "123456789", "123456788", NULL});
    st_ledger_commit(ledger, CARD, ST_OWNER_KV, 1);
    assert_int_equal(st_ledger_check(ledger, NULL), STRATA_OK);
    st_ledger_commit(ledger, HOST, ST_OWNER_STAGING, 7); /* not in the plan */
    expect_failure(ledger, (const char *const[]){"host", "staging", "planned 0", "found 7", NULL});
    st_ledger_reserve(ledger, HOST, ST_OWNER_STAGING, 7);
    assert_int_equal(st_ledger_check(ledger, NULL), STRATA_OK);
    /* The driver's memory is measured, not compared. */
    st_ledger_reserve(ledger, CARD, ST_OWNER_RUNTIME, 500);
    st_ledger_commit(ledger, CARD, ST_OWNER_RUNTIME, 600);
    assert_int_equal(st_ledger_check(ledger, NULL), STRATA_OK);
    assert_int_equal(st_ledger_close(ledger, NULL), STRATA_OK);
}

static void allocation_after_lock_is_an_error(void **state)
{
    (void)state;
    st_ledger *ledger = new_ledger(NULL, NULL);
    st_ledger_reserve(ledger, CARD, ST_OWNER_SCRATCH, 30);
    st_ledger_commit(ledger, CARD, ST_OWNER_SCRATCH, 30);
    st_ledger_lock(ledger);
    assert_int_equal(st_ledger_check(ledger, NULL), STRATA_OK);
    /* An error even though the sums agree. */
    st_ledger_reserve(ledger, CARD, ST_OWNER_SCRATCH, 10);
    st_ledger_commit(ledger, CARD, ST_OWNER_SCRATCH, 10);
    assert_int_equal(st_ledger_at(ledger, CARD, ST_OWNER_SCRATCH).committed, 40);
    expect_failure(ledger, (const char *const[]){"card", "scratch", "after", "10 bytes", NULL});
    assert_int_equal(st_ledger_close(ledger, NULL), STRATA_OK);
}

static void sums_that_overflow_are_errors(void **state)
{
    (void)state;
    st_ledger *ledger = new_ledger(NULL, NULL);
    st_ledger_reserve(ledger, HOST, ST_OWNER_KV, 4);
    st_ledger_commit(ledger, HOST, ST_OWNER_KV, UINT64_MAX);
    st_ledger_commit(ledger, HOST, ST_OWNER_KV, 5);
    expect_failure(ledger, (const char *const[]){"18446744073709551615", NULL});
    assert_int_equal(st_ledger_close(ledger, NULL), STRATA_OK);
}

static void one_block_per_device(void **state)
{
    (void)state;
    st_sim_options options = sim_options();
    st_sim_world *world = sim_world_open(&options);
    const st_backend *card = st_backend_sim_card(), *host = st_backend_sim_host();
    st_device *card_device = NULL, *host_device = NULL;
    strata_error error;
    assert_int_equal(card->open(&(st_device_options){.world = world}, &card_device, NULL), STRATA_OK);
    assert_int_equal(host->open(&(st_device_options){.world = world, .threads = 1}, &host_device, NULL), STRATA_OK);
    st_ledger *ledger = new_ledger(NULL, NULL);
    assert_null(st_ledger_block(ledger, CARD));
    assert_int_equal(st_ledger_allocate(ledger, CARD, card, card_device, 10 * GRANULE, false, &error), STRATA_OK);
    assert_int_equal(st_sim_used_bytes(world), 10 * GRANULE);
    assert_non_null(st_ledger_block(ledger, CARD));
    assert_int_equal(st_ledger_allocate(ledger, CARD, card, card_device, GRANULE, false, &error), STRATA_RUNTIME);
    assert_non_null(strstr(error.message, "card"));
    assert_int_equal(st_ledger_allocate(ledger, HOST, host, host_device, 1000, true, &error), STRATA_OK);
    memset(st_ledger_block(ledger, HOST), 1, 1000);
    assert_int_equal(st_ledger_close(ledger, NULL), STRATA_OK);
    assert_int_equal(st_sim_used_bytes(world), 0);

    /* A failure names the device, allocates nothing and can be retried. */
    ledger = new_ledger(NULL, NULL);
    assert_int_equal(st_ledger_allocate(ledger, CARD, card, card_device, 2 * SIM_CAPACITY, false, &error), STRATA_MEMORY);
    assert_int_equal(strncmp(error.message, "card: ", 6), 0);
    assert_null(st_ledger_block(ledger, CARD));
    assert_int_equal(st_ledger_allocate(ledger, CARD, card, card_device, SIM_CAPACITY, false, &error), STRATA_OK);
    /* A block of zero bytes is still the device's one block. */
    assert_int_equal(st_ledger_allocate(ledger, HOST, host, host_device, 0, true, &error), STRATA_OK);
    assert_null(st_ledger_block(ledger, HOST));
    assert_int_equal(st_ledger_allocate(ledger, HOST, host, host_device, 0, true, &error), STRATA_RUNTIME);
    assert_int_equal(st_ledger_close(ledger, NULL), STRATA_OK);
    assert_int_equal(st_ledger_close(NULL, NULL), STRATA_OK);
    card->close(card_device);
    host->close(host_device);
    st_sim_world_free(world);
}

/* The device reports its free bytes: loading takes exactly what was planned, and closing frees all of it. */
static void free_memory_is_compared_with_the_plan(void **state)
{
    (void)state;
    st_sim_options options = sim_options();
    st_sim_world *world = sim_world_open(&options);
    const st_backend *card = st_backend_sim_card();
    st_device *device = NULL;
    strata_error error;
    assert_int_equal(card->open(&(st_device_options){.world = world}, &device, NULL), STRATA_OK);
    st_ledger *ledger = new_ledger(NULL, NULL);
    st_ledger_reserve(ledger, CARD, ST_OWNER_RUNTIME, 77); /* the driver's memory is not in the block */
    st_ledger_reserve(ledger, CARD, ST_OWNER_WEIGHTS, 3 * GRANULE - 5);
    st_ledger_reserve(ledger, CARD, ST_OWNER_GRANULARITY, 5);
    assert_int_equal(st_ledger_allocate(ledger, CARD, card, device, 3 * GRANULE, false, &error), STRATA_OK);
    st_ledger_commit(ledger, CARD, ST_OWNER_WEIGHTS, 3 * GRANULE - 5);
    st_ledger_commit(ledger, CARD, ST_OWNER_GRANULARITY, 5);
    assert_int_equal(st_ledger_check(ledger, NULL), STRATA_OK);

    /* an allocation outside the plan */
    void *more = NULL;
    assert_int_equal(card->alloc(device, 1, &more, &error), STRATA_OK);
    expect_failure(ledger, (const char *const[]){"card", "planned 1536 bytes", "2048 less", NULL});
    assert_int_equal(st_ledger_close(ledger, &error), STRATA_MEMORY);
    assert_non_null(strstr(error.message, "1048576 bytes free"));
    assert_non_null(strstr(error.message, "found 1048064"));
    card->free(device, more);

    /* an allocation of another size than planned */
    ledger = new_ledger(NULL, NULL);
    st_ledger_reserve(ledger, CARD, ST_OWNER_KV, 2 * GRANULE);
    st_ledger_commit(ledger, CARD, ST_OWNER_KV, 2 * GRANULE);
    assert_int_equal(st_ledger_allocate(ledger, CARD, card, device, GRANULE + 1, false, &error), STRATA_OK);
    assert_int_equal(st_ledger_check(ledger, NULL), STRATA_OK); /* rounded up to the granularity, as planned */
    assert_int_equal(st_ledger_close(ledger, NULL), STRATA_OK);
    ledger = new_ledger(NULL, NULL);
    st_ledger_reserve(ledger, CARD, ST_OWNER_KV, 2 * GRANULE);
    st_ledger_commit(ledger, CARD, ST_OWNER_KV, 2 * GRANULE);
    assert_int_equal(st_ledger_allocate(ledger, CARD, card, device, GRANULE, false, &error), STRATA_OK);
    expect_failure(ledger, (const char *const[]){"card", "planned 1024 bytes", "512 less", NULL});
    assert_int_equal(st_ledger_close(ledger, NULL), STRATA_OK);
    card->close(device);
    st_sim_world_free(world);
}

static void note_line(void *context, const char *moment, const char *device, uint64_t used_bytes, uint64_t free_bytes)
{
    st_buf_printf(context, "%s %s %llu %llu\n", moment, device, (unsigned long long)used_bytes,
                  (unsigned long long)free_bytes);
}

static void marks_are_traced(void **state)
{
    (void)state;
    st_buf lines = {0};
    st_ledger *ledger = new_ledger(note_line, &lines);
    st_ledger_mark(ledger, "start");
    st_ledger_commit(ledger, HOST, ST_OWNER_WEIGHTS, 64000001); /* more than the device has */
    st_ledger_commit(ledger, CARD, ST_OWNER_WEIGHTS, 884901888);
    st_ledger_commit(ledger, CARD, ST_OWNER_KV, 5);
    st_ledger_mark(ledger, "end");
    st_buf_append_char(&lines, '\0');
    assert_string_equal(lines.data, "start host 0 64000000\nstart card 0 12884901888\n"
                                    "end host 64000001 0\nend card 884901893 11999999995\n");
    st_buf_free(&lines);
    assert_int_equal(st_ledger_close(ledger, NULL), STRATA_OK);
}

static void invalid_arguments_are_refused(void **state)
{
    (void)state;
    st_ledger *ledger = NULL;
    assert_int_equal(st_ledger_new(0, NULL, NULL, &ledger, NULL), STRATA_USAGE);
    assert_int_equal(st_ledger_new(ST_DEVICES_MAX + 1, NULL, NULL, &ledger, NULL), STRATA_USAGE);
    st_fault_arm(ST_FAULT_ALLOC, 1, false);
    assert_int_equal(st_ledger_new(1, NULL, NULL, &ledger, NULL), STRATA_MEMORY);
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    assert_null(ledger);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_exact), cmocka_unit_test(errors_name_planned_and_allocated_bytes),
        cmocka_unit_test(allocation_after_lock_is_an_error), cmocka_unit_test(sums_that_overflow_are_errors),
        cmocka_unit_test(one_block_per_device), cmocka_unit_test(free_memory_is_compared_with_the_plan),
        cmocka_unit_test(marks_are_traced), cmocka_unit_test(invalid_arguments_are_refused),
    };
    return cmocka_run_group_tests_name("ledger", tests, NULL, NULL);
}
