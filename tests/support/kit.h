/* The golden kit: right answers by other implementations. A small copy lives in tests/data/kit; the whole of it may
 * stand beside the checkout or where STRATA_TEST_KIT says. */
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

/* The path of a file that only the whole kit has, or NULL; the test then calls skip(). Good until the next call. */
const char *kit_path_optional(const char *name);

/* Under a sanitizer or valgrind everything takes ten to fifty times as long: the longest tests then do a part of their
 * work. tests/run --valgrind says it with STRATA_TEST_SLOW=1. */
bool kit_is_slow(void);

/* The whole file; a missing or unreadable one fails the test. */
void kit_read(const char *path, st_buf *out);

#endif
