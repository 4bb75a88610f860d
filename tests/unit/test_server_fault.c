/* What clients learn of failures: the request's own in full, the machine's by kind alone. */
#include "support/kit.h"

#include <stdio.h>
#include <string.h>

#include "server/fault.h"

static void the_machines_failures_stay_in_the_log(void **state)
{
    (void)state;
    static const strata_status own[] = {STRATA_INPUT, STRATA_USAGE, STRATA_LIMIT, STRATA_TEMPLATE, STRATA_MEMORY, STRATA_INTERRUPTED};
    for (int status = STRATA_OK + 1; status < STRATA_STATUS_COUNT; status++) {
        bool shown = false;
        for (size_t i = 0; i < sizeof own / sizeof *own; i++) shown = shown || (int)own[i] == status;
        strata_error error = {.status = (strata_status)status, .message = "/home/me/model.gguf: 64 bytes at 0x7f00"};
        server_fail fail;
        memset(&fail, 'x', sizeof fail);
        assert_false(server_refuse_error(&fail, &error));
        assert_int_equal(strstr(fail.message, "0x7f00") != NULL, shown);
        assert_int_equal(strstr(fail.message, "/home/me") != NULL, shown);
        assert_string_equal(fail.log, shown ? "" : error.message);
        assert_int_equal(server_fault_rows[fail.fault].status == 500, !shown);
        assert_true(fail.message[0] != '\0');
    }
}

static void every_fault_has_its_names(void **state)
{
    (void)state;
    for (int i = 0; i < FAULT_COUNT; i++) {
        const server_fault_row *row = &server_fault_rows[i];
        assert_in_range(row->status, 400, 599);
        assert_non_null(row->type);
        assert_non_null(row->anthropic);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_machines_failures_stay_in_the_log),
                                       cmocka_unit_test(every_fault_has_its_names)};
    return cmocka_run_group_tests_name("server faults", tests, NULL, NULL);
}
