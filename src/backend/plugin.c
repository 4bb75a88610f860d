#include "backend/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

/* Cuts the path after its folder, without a slash at its end. */
static bool cut_to_folder(char path[PATH_MAX])
{
    char *slash = strrchr(path, '/');
    if (!slash) return false;
    *slash = '\0';
    return true;
}

/* The folder of the running program. */
static bool program_folder(char out[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", out, PATH_MAX - 1);
    if (length <= 0) return false;
    out[length] = '\0';
    return cut_to_folder(out);
}

/* The folder of the shared library that this code is in, if it is in one. */
static bool library_folder(char out[PATH_MAX])
{
    static const char here;
    Dl_info info;
    return dladdr(&here, &info) != 0 && info.dli_fname && realpath(info.dli_fname, out) && cut_to_folder(out);
}

static const struct {
    bool (*folder)(char out[PATH_MAX]);
    const char *place; /* relative to it */
} places[] = {{program_folder, "."},
              {program_folder, "../lib/strata"},
              {library_folder, "."},
              {library_folder, "strata"}};

enum { PLACES = sizeof places / sizeof *places };

/* Where the library is; false if it is in none of the places. */
static bool find(const char *name, const char *folder, char *path, size_t bytes)
{
    char found[PATH_MAX];
    if (folder && snprintf(path, bytes, "%s/libstrata-%s.so", folder, name) < (int)bytes && access(path, R_OK) == 0)
        return true;
    for (size_t i = 0; i < PLACES; i++)
        if (places[i].folder(found) &&
            snprintf(path, bytes, "%s/%s/libstrata-%s.so", found, places[i].place, name) < (int)bytes &&
            access(path, R_OK) == 0)
            return true;
    return false;
}

strata_status st_plugin_load(const char *name, const char *folder, const st_backend **out, strata_error *error)
{
    char path[2 * PATH_MAX];
    if (!find(name, folder, path, sizeof path))
        return st_error_set(error, STRATA_DEVICE,
                            "`make cuda` builds it (needs nvcc); placement.device sim simulates a GPU",
                            "libstrata-%s.so not found (only a GPU needs it)", name);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return st_error_set(error, STRATA_DEVICE, NULL, "libstrata-%s.so: %s", name, dlerror());
    st_backend_plugin_fn plugin;
    *(void **)(void *)&plugin = dlsym(library, ST_BACKEND_PLUGIN_SYMBOL); /* POSIX: void * holds function pointers */
    const st_backend *backend = plugin ? plugin() : NULL;
    if (!backend || backend->version != ST_BACKEND_VERSION) {
        uint32_t found = backend ? backend->version : 0;
        dlclose(library);
        return st_error_set(error, STRATA_DEVICE, "build both from the same source",
                            "%s: expected a backend of version %d, found %u", path, ST_BACKEND_VERSION, found);
    }
    *out = backend;
    return STRATA_OK;
}
