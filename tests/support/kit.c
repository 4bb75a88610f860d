#include "support/kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

const char *kit_path_optional(const char *name)
{
    static char path[4096];
    const char *whole = getenv("STRATA_TEST_KIT");
    const char *roots[] = {"tests/data/kit", whole ? whole : "../shared/golden"};
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        snprintf(path, sizeof path, "%s/%s", roots[i], name);
        if (access(path, R_OK) == 0) return path;
    }
    return NULL;
}

const char *kit_path(const char *name)
{
    const char *path = kit_path_optional(name);
    if (!path) fail_msg("the kit's file %s is missing", name);
    return path;
}

const char *kit_default_model(void)
{
    static char path[4096];
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache) snprintf(path, sizeof path, "%s/strata/SmolLM2-135M-Instruct.Q4_1.gguf", cache);
    else snprintf(path, sizeof path, "%s/.cache/strata/SmolLM2-135M-Instruct.Q4_1.gguf", home ? home : "");
    return access(path, R_OK) == 0 ? path : NULL;
}

void kit_skip(const char *reason)
{
    fprintf(stderr, "# skipped: %s\n", reason);
    skip();
}

bool kit_is_slow(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#else
    const char *slow = getenv("STRATA_TEST_SLOW");
    return slow && strcmp(slow, "1") == 0;
#endif
}

int kit_run(const char *group, const struct CMUnitTest *tests, size_t count, CMFixtureFunction setup,
            CMFixtureFunction teardown, int argc, char **argv)
{
    bool list = argc > 1 && strcmp(argv[1], "--list") == 0;
    for (size_t i = 0; list && i < count; i++) puts(tests[i].name);
    if (list) return 0;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return _cmocka_run_group_tests(group, tests, count, setup, teardown);
}

void kit_read(const char *path, st_buf *out)
{
    strata_error error;
    if (st_file_read(path, (size_t)1 << 30, out, &error) != STRATA_OK) fail_msg("%s", error.message);
}
