/* Operations on the backend that STRATA_TEST_BACKEND names: a plugin, or `ref`, the CPU's reference. Unset, the tests run as
 * they are. An operation's memory is copied to the device, the operation runs there, and what it may change is copied back.
 * What it may not change is compared: a kernel that writes beside its output fails the test. */
#ifndef TEST_SUPPORT_MIRROR_H
#define TEST_SUPPORT_MIRROR_H

#include "backend/backend.h"
#include "support/kit.h"

/* The backend's name; NULL: none is asked for. */
const char *mirror_name(void);

/* The backend and its device, opened once; a missing plugin or device fails the test. */
const st_backend *mirror_backend(void);
st_device *mirror_device(void);

/* Whether it runs an operation with weights of the type; without a backend, everything runs. */
bool mirror_runs(st_op_kind kind, uint32_t type);

/* Runs the operations there, in one segment. Fails the test with the backend's error. */
void mirror_run(const st_bound_op *ops, uint32_t count, st_rows rows, const st_step *step);

void mirror_close(void);

#endif
