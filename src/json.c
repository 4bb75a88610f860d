#include "json.h"

#include "base/error.h"
#include "base/utf8.h"

enum { JSON_TYPICAL_BYTES = 1 << 16 };

json_t *st_json_text(st_str text)
{
    st_buf repaired = {0};
    json_t *value = NULL;
    if (st_utf8_repair(&repaired, text.data, text.length))
        value = json_stringn_nocheck(repaired.data ? repaired.data : "", repaired.length);
    st_buf_free(&repaired);
    return value;
}

strata_status st_json_give(json_t *root, size_t flags, const char *what, char **json, strata_error *error)
{
    char *text = root ? json_dumps(root, JSON_INDENT(2) | flags) : NULL;
    json_decref(root);
    if (!text) return st_error_memory(error, JSON_TYPICAL_BYTES, what);
    *json = text;
    return STRATA_OK;
}
