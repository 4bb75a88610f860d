/* Strict number parsing: the whole text must be a number within its range. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "cli.h"

bool cli_parse_integer(const char *text, size_t length, int64_t minimum, int64_t maximum, int64_t *out)
{
    bool negative = length > 0 && text[0] == '-';
    size_t position = negative ? 1 : 0;
    int64_t value = 0;
    if (position == length) return false;
    for (; position < length; position++) {
        if (text[position] < '0' || text[position] > '9') return false;
        int digit = text[position] - '0';
        if (__builtin_mul_overflow(value, 10, &value)) return false;
        if (__builtin_sub_overflow(value, digit, &value)) return false; /* negative: one more value */
    }
    if (!negative && __builtin_sub_overflow(0, value, &value)) return false;
    if (value < minimum || value > maximum) return false;
    *out = value;
    return true;
}

bool cli_parse_date(const char *text, int64_t *out)
{
    int64_t year, month, day;
    if (strlen(text) != 10 || text[4] != '-' || text[7] != '-') return false;
    if (!cli_parse_integer(text, 4, 1970, 9999, &year) || !cli_parse_integer(text + 5, 2, 1, 12, &month) ||
        !cli_parse_integer(text + 8, 2, 1, 31, &day))
        return false;
    struct tm date = {.tm_year = (int)year - 1900, .tm_mon = (int)month - 1, .tm_mday = (int)day};
    time_t seconds = timegm(&date);
    /* timegm turns 30 February into 2 March, which is not the date given. Zero would mean the clock. */
    if (date.tm_mday != (int)day || seconds <= 0) return false;
    *out = (int64_t)seconds;
    return true;
}

bool cli_parse_real(const char *text, double low, double high, double *out)
{
    size_t length = strlen(text);
    /* strtod would also accept leading spaces, hexadecimal, inf and nan. */
    if (length == 0 || strspn(text, "0123456789.eE+-") != length) return false;
    char *end = NULL;
    double value = strtod(text, &end);
    if (end != text + length || !(value >= low && value <= high)) return false;
    *out = value;
    return true;
}

bool cli_parse_size(const char *text, int64_t minimum, int64_t *out)
{
    static const double kib = 1 << 10, mib = 1 << 20, gib = 1 << 30, tib = 1099511627776.0;
    static const struct { const char *name; double bytes; } units[] = {
        {"", 1},     {"B", 1},     {"kB", 1e3},   {"MB", 1e6},   {"GB", 1e9},   {"TB", 1e12},  {"K", kib},
        {"M", mib},  {"G", gib},   {"T", tib},    {"KiB", kib},  {"MiB", mib},  {"GiB", gib},  {"TiB", tib}};
    const double most = 4611686018427387904.0; /* 2^62 */
    size_t digits = strspn(text, "0123456789."), place = 0;
    char number[64];
    double value;
    if (digits >= sizeof number) return false;
    memcpy(number, text, digits);
    number[digits] = '\0';
    text += digits + strspn(text + digits, " ");
    while (place < sizeof units / sizeof *units && strcasecmp(text, units[place].name) != 0) place++;
    if (place == sizeof units / sizeof *units) return false;
    /* A number of bytes may exceed the precision of a double. */
    if (units[place].bytes == 1 && !cli_parse_integer(number, digits, minimum, (int64_t)1 << 62, out)) return false;
    /* "12" is a forgotten unit. */
    if (units[place].bytes == 1) return *text || *out == 0 || *out >= (int64_t)mib;
    if (!cli_parse_real(number, 0, most / units[place].bytes, &value)) return false;
    int64_t bytes = (int64_t)(value * units[place].bytes);
    if (bytes < minimum) return false;
    *out = bytes;
    return true;
}

static bool push_id(cli_ids *list, int64_t id)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 256;
        strata_token *ids = reallocarray(list->ids, capacity, sizeof *ids);
        if (!ids) return false;
        list->ids = ids;
        list->capacity = capacity;
    }
    list->ids[list->count++] = (strata_token)id;
    return true;
}

static strata_status fail_memory(const char *where, strata_error *error)
{
    return cli_fail(error, STRATA_MEMORY, NULL, "%s: no memory for the ids", where);
}

static strata_status parse_list(const char *where, strata_status bad, const char *text, size_t length, cli_ids *out,
                                strata_error *error)
{
    size_t position = 0;
    out->count = 0;
    for (;;) {
        while (position < length && (text[position] == ',' || isspace((unsigned char)text[position]))) position++;
        if (position == length) return STRATA_OK;
        size_t start = position;
        while (position < length && text[position] != ',' && !isspace((unsigned char)text[position])) position++;
        int64_t id;
        if (!cli_parse_integer(text + start, position - start, 0, INT32_MAX, &id))
            return cli_fail(error, bad, "ids are whole numbers separated by spaces or commas",
                            "%s: expected an id from 0 to %d, found \"%.*s\"", where, INT32_MAX,
                            (int)(position - start < 40 ? position - start : 40), text + start);
        if (!push_id(out, id)) return fail_memory(where, error);
    }
}

strata_status cli_parse_id_array(const char *where, strata_status bad, const char *text, size_t length, cli_ids *out,
                                 strata_error *error)
{
    json_t *array = NULL;
    out->count = 0;
    strata_status status = cli_parse_json(where, text, length, &array, error);
    if (status == STRATA_INPUT) return error->status = bad;
    if (status != STRATA_OK) return status;
    if (!json_is_array(array)) status = cli_fail(error, bad, NULL, "%s: expected a JSON array of ids", where);
    for (size_t i = 0; status == STRATA_OK && i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id > INT32_MAX)
            status = cli_fail(error, bad, NULL, "%s: item %zu: expected an id from 0 to %d", where, i, INT32_MAX);
        else if (!push_id(out, id))
            status = fail_memory(where, error);
    }
    json_decref(array);
    return status;
}

strata_status cli_parse_ids(const char *where, strata_status bad, const char *text, size_t length, cli_ids *out,
                            strata_error *error)
{
    size_t start = 0;
    while (start < length && isspace((unsigned char)text[start])) start++;
    if (start < length && text[start] == '[') return cli_parse_id_array(where, bad, text, length, out, error);
    return parse_list(where, bad, text, length, out, error);
}

strata_status cli_read_ids(const char *path, cli_ids *out, strata_error *error)
{
    char *text = NULL;
    size_t length = 0;
    strata_status status = cli_read(path, &text, &length, error);
    if (status == STRATA_OK) status = cli_parse_ids(path, STRATA_INPUT, text, length, out, error);
    free(text);
    return status;
}
