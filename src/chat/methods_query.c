#include <utf8proc.h>

#include "chat/format.h"
#include "chat/native.h"

/* Methods of strings that search and classify. */

enum { FIRST = 0, LAST = 1, REQUIRED = 2 }; /* which match; REQUIRED: an absent one is an error */

/* Converts start and end of a search from characters (may be negative or absent) to bytes. */
static bool search_bounds(jinja_machine *machine, const jinja_call *call, size_t *from, size_t *to)
{
    const jinja_string *self = call->self.string;
    int64_t bounds[2] = {0, INT64_MAX}, count = (int64_t)st_jinja_string_count(self);
    for (size_t i = 0; i < 2; i++) {
        jinja_value slot = call->slots[i + 1];
        if (!st_jinja_given_value(slot)) continue;
        if (!st_jinja_integer_of(machine, slot, "the bounds of the search", &bounds[i])) return false;
        if (bounds[i] < 0) bounds[i] = bounds[i] + count < 0 ? 0 : bounds[i] + count;
    }
    *from = bounds[0] > count ? SIZE_MAX : st_jinja_string_offset(self, (size_t)bounds[0]);
    *to = bounds[1] >= count ? self->length : st_jinja_string_offset(self, (size_t)bounds[1]);
    return st_jinja_charge_bytes(machine, self->length);
}

/* The position of the first or last match in characters; -1: none. */
static bool method_find(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *part;
    size_t from, to, found = SIZE_MAX;
    if (!st_jinja_want_string(machine, call->slots[0], "find()", &part)) return false;
    if (!search_bounds(machine, call, &from, &to)) return false;
    jinja_string window = *call->self.string;
    window.length = to;
    if (from <= to && call->mode & LAST) {
        if (!st_jinja_charge_search(machine, to, part->length)) return false;
        found = st_jinja_string_find_last(&window, part, from);
    } else if (from <= to) {
        found = st_jinja_string_find(&window, part, from);
    }
    window.length = found;
    *out = st_jinja_integer(found == SIZE_MAX ? -1 : (int64_t)st_jinja_string_count(&window));
    return found != SIZE_MAX || !(call->mode & REQUIRED) || st_jinja_fail(machine, "substring not found");
}

static bool method_count(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *part;
    size_t from, to;
    int64_t count = 0;
    if (!st_jinja_want_string(machine, call->slots[0], "count()", &part)) return false;
    if (!search_bounds(machine, call, &from, &to)) return false;
    jinja_string window = *call->self.string;
    window.length = to;
    if (from <= to && part->length == 0) {
        window.bytes += from;
        window.length -= from;
        count = (int64_t)st_jinja_string_count(&window) + 1;
    }
    while (part->length && from <= to && (from = st_jinja_string_find(&window, part, from)) != SIZE_MAX) {
        count++;
        from += part->length;
    }
    *out = st_jinja_integer(count);
    return true;
}

static bool has_edge(const jinja_string *text, size_t from, size_t to, const jinja_string *part, bool end)
{
    if (from > to || part->length > to - from) return false;
    return memcmp(text->bytes + (end ? to - part->length : from), part->bytes, part->length) == 0;
}

/* startswith() and endswith(): of one string or of any in a tuple. */
static bool method_edge(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    bool end = call->mode == LAST, found = false, is_tuple = call->slots[0].kind == JINJA_TUPLE;
    const jinja_value *parts = is_tuple ? call->slots[0].list->items : &call->slots[0];
    size_t from, to, count = is_tuple ? call->slots[0].list->count : 1;
    if (!search_bounds(machine, call, &from, &to)) return false;
    for (size_t i = 0; !found && i < count; i++) {
        const jinja_string *part;
        if (!st_jinja_want_string(machine, parts[i], end ? "endswith()" : "startswith()", &part)) return false;
        found = has_edge(call->self.string, from, to, part, end);
    }
    *out = st_jinja_bool(found);
    return true;
}

/* ---- classes of characters ---- */

enum { ALPHA = 1, DECIMAL = 2, NUMERIC = 4, SPACE = 8, ASCII = 16 };

/* Whether the character is in one of the classes. */
static bool is_of(int classes, uint32_t code)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
    return (classes & ALPHA && category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) ||
           (classes & DECIMAL && category == UTF8PROC_CATEGORY_ND) ||
           (classes & NUMERIC && category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) ||
           (classes & SPACE && st_jinja_is_space(code)) || (classes & ASCII && code < 0x80);
}

/* Whether all characters are of the classes; an empty string is ASCII and nothing else. */
static bool method_class(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *self = call->self.string;
    bool all = self->length > 0 || call->mode == ASCII;
    for (size_t i = 0, length; all && i < self->length; i += length)
        all = is_of(call->mode, st_jinja_string_code(self, i, &length));
    *out = st_jinja_bool(all);
    return st_jinja_charge_bytes(machine, self->length);
}

/* At least one cased letter, and none of the other case. */
static bool method_cased(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    bool upper = call->mode == JINJA_UPPER;
    const jinja_string *self = call->self.string;
    bool any = false, other = false;
    for (size_t i = 0, length; i < self->length; i += length) {
        utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)st_jinja_string_code(self, i, &length));
        bool is_upper = category == UTF8PROC_CATEGORY_LU, is_lower = category == UTF8PROC_CATEGORY_LL;
        any = any || (upper ? is_upper : is_lower);
        other = other || (upper ? is_lower : is_upper) || category == UTF8PROC_CATEGORY_LT;
    }
    *out = st_jinja_bool(any && !other);
    return st_jinja_charge_bytes(machine, self->length);
}

static const jinja_native query_rows[] = {
    {"startswith", "prefix start end", 1, method_edge, FIRST},
    {"endswith", "suffix start end", 1, method_edge, LAST},
    {"find", "sub start end", 1, method_find, FIRST},
    {"rfind", "sub start end", 1, method_find, LAST},
    {"index", "sub start end", 1, method_find, FIRST | REQUIRED},
    {"rindex", "sub start end", 1, method_find, LAST | REQUIRED},
    {"count", "sub start end", 1, method_count, 0},
    {"isalpha", "", 0, method_class, ALPHA},
    {"isdigit", "", 0, method_class, DECIMAL},
    {"isdecimal", "", 0, method_class, DECIMAL},
    {"isnumeric", "", 0, method_class, NUMERIC},
    {"isalnum", "", 0, method_class, ALPHA | NUMERIC},
    {"isspace", "", 0, method_class, SPACE},
    {"isascii", "", 0, method_class, ASCII},
    {"islower", "", 0, method_cased, JINJA_LOWER},
    {"isupper", "", 0, method_cased, JINJA_UPPER},
};
const jinja_native_table st_jinja_string_queries = {query_rows, sizeof query_rows / sizeof *query_rows};
