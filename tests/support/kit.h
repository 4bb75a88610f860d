/* The golden kit: reference results of other implementations. A small copy is in tests/data/kit; the whole kit may be
 * beside the checkout or in the folder STRATA_TEST_KIT. */
#ifndef TEST_SUPPORT_KIT_H
#define TEST_SUPPORT_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buf.h"

/* The path of a file of the kit that the repository carries: a missing one fails the test. Good until the next call. */
const char *kit_path(const char *name);

/* The path of a file that only the whole kit has, or NULL; the test then calls kit_skip. Good until the next call. */
const char *kit_path_optional(const char *name);

/* The default model in the user's cache, or NULL; the test then skips for KIT_NO_MODEL. Good until the next call. */
const char *kit_default_model(void);
#define KIT_NO_MODEL "the default model is not in the cache (tools/fetch-model downloads it)"

/* Skips the test; tests/run shows the reason. Does not return. */
void kit_skip(const char *reason);

/* True under a sanitizer or valgrind, where code runs ten to fifty times slower: the longest tests then run a part
 * of their cases. tests/run --valgrind sets STRATA_TEST_SLOW=1. */
bool kit_is_slow(void);

/* Runs a group of tests. A first argument is a pattern (`*`, `?`) of those to run; --list prints their names instead. */
int kit_run(const char *group, const struct CMUnitTest *tests, size_t count, CMFixtureFunction setup,
            CMFixtureFunction teardown, int argc, char **argv);

/* The whole file; a missing or unreadable one fails the test. */
void kit_read(const char *path, st_buf *out);

#endif
