/* Device profiles: a table of common GPUs and hosts, and profiles read from JSON files. Knows data sheets and
 * measurements of other machines; probes and measures nothing itself. */
#ifndef ST_BACKEND_PROFILES_H
#define ST_BACKEND_PROFILES_H

#include <jansson.h>

#include "backend/profile.h"
#include "base/str.h"
#include "strata.h"

/* The share of a data sheet's memory and arithmetic rates that counts. Rates of copies and file reads count in full. */
#define ST_DATA_SHEET_SHARE 0.75

/* Ranges of the values in files, in their units: 10⁹ bytes and 10⁹ operations per second, microseconds, shares above 0. */
#define ST_FILE_RATE_MIN 0.001
#define ST_FILE_BYTES_RATE_MAX 1e6
#define ST_FILE_OPS_RATE_MAX 1e9
#define ST_FILE_US_MAX 1e6
#define ST_FILE_SHARE_MIN 1e-6

/* The table, GPUs first. A host's total_bytes of 0: such hosts have many memory sizes. */
size_t st_profile_row_count(void);
st_profile st_profile_row(size_t index);

/* A row by its name; case, spaces, dashes and a GPU's series do not matter: "RTX 4070 Ti" and "4070ti" are rtx-4070-ti.
 * False: there is none. */
bool st_profile_find(st_str name, st_profile *out);

/* The machine that the user describes. */
typedef struct st_profile_set {
    bool has_card, has_host;
    st_profile card, host;
} st_profile_set;

/* `text` is a GPU's name, a host's, GPU+HOST, or the path of a JSON file (it ends in .json or has a slash). An unknown
 * name is STRATA_USAGE with the known names; an invalid file is STRATA_INPUT with the field. */
strata_status st_profile_set_of(const char *text, st_profile_set *out, strata_error *error);

/* profile_file.c: the file alone, and its text. */
strata_status st_profile_file_read(const char *path, st_profile_set *out, strata_error *error);
strata_status st_profile_file_parse(const char *where, const char *text, size_t length, st_profile_set *out,
                                    strata_error *error);

/* profile_classes.c: the rates of classes that are known; NULL: no memory. */
json_t *st_classes_json(const st_class_rates classes[ST_CLASS_COUNT]);
/* Sets the rates that the object has. False: `wrong` is what was expected. */
bool st_classes_read(json_t *object, st_class_rates classes[ST_CLASS_COUNT], char *wrong, size_t size);

/* "12GiB" or "12G", "500 MiB", "64GB" or plain bytes; the whole text, at most 2⁶² bytes. */
bool st_profile_parse_size(const char *text, uint64_t *out);

#endif
