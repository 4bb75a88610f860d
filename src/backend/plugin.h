/* Backends that are shared libraries: libstrata-NAME.so beside the program, in lib beside it or in lib/strata of its
 * prefix. Owns the libraries, which stay loaded until the process ends. Knows no backend. */
#ifndef ST_BACKEND_PLUGIN_H
#define ST_BACKEND_PLUGIN_H

#include "backend/backend.h"

/* Loads the backend of that name. `folder` is searched first (NULL: only the usual places). Errors are STRATA_DEVICE:
 * not found (with the places that were searched), another version, or a library that cannot be loaded. */
strata_status st_plugin_load(const char *name, const char *folder, const st_backend **out, strata_error *error);

#endif
