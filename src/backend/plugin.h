/* Backends that come as shared libraries: libstrata-NAME.so beside the program, in lib beside it or in lib/strata of its
 * prefix. Owns the libraries, which stay loaded until the process ends. Knows no backend. */
#ifndef ST_BACKEND_PLUGIN_H
#define ST_BACKEND_PLUGIN_H

#include "backend/backend.h"

/* The backend of that name. `folder` is searched first (NULL: only the usual places). Not found is STRATA_DEVICE with the
 * places that were searched; a library of another version, or one that cannot be loaded, says so. */
strata_status st_plugin_load(const char *name, const char *folder, const st_backend **out, strata_error *error);

#endif
