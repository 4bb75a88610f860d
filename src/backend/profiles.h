/* The devices that people have, as data: a table of cards and hosts, and profiles read from JSON files. Knows data sheets
 * and what was measured elsewhere; looks at no machine and measures nothing. */
#ifndef ST_BACKEND_PROFILES_H
#define ST_BACKEND_PROFILES_H

#include "backend/profile.h"
#include "base/str.h"
#include "strata.h"

/* What of a data sheet's memory and arithmetic rates counts. What copies and reads reach is counted whole. */
#define ST_DATA_SHEET_SHARE 0.75

/* The table, cards first. A host's total_bytes of 0: the row says nothing of its memory. */
size_t st_profile_row_count(void);
st_profile st_profile_row(size_t index);

/* A row by its name; case, blanks and dashes do not matter ("RTX 4070 Ti" is rtx-4070-ti). False: there is none. */
bool st_profile_find(st_str name, st_profile *out);

/* A machine as somebody describes it. */
typedef struct st_profile_set {
    bool has_card, has_host;
    st_profile card, host;
} st_profile_set;

/* The name of a card, of a host, or of both with a plus between them; or the path of a JSON file (it ends in .json or has a
 * slash). An unknown name is STRATA_USAGE with the known ones, a file with a mistake STRATA_INPUT with the field's name. */
strata_status st_profile_set_of(const char *text, st_profile_set *out, strata_error *error);

/* profile_file.c: the file alone, and its text. */
strata_status st_profile_file_read(const char *path, st_profile_set *out, strata_error *error);
strata_status st_profile_file_parse(const char *where, const char *text, size_t length, st_profile_set *out,
                                    strata_error *error);

/* "12GiB", "500 MiB", "64GB" or plain bytes; the whole text, at most 2⁶² bytes. */
bool st_profile_parse_size(const char *text, uint64_t *out);

#endif
