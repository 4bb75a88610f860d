#include <utf8proc.h>

#include "chat/format.h"
#include "chat/native.h"

/* Methods of strings that search and classify. */

/* Converts start and end of a search from characters (may be negative or absent) to bytes. */
static bool search_bounds(jinja_machine *machine, const jinja_call *call, size_t *from, size_t *to)
{
    const jinja_string *self = call->self.string;
    int64_t bounds[2] = {0, INT64_MAX}, count = (int64_t)st_jinja_string_count(self);
    for (size_t i = 0; i < 2; i++) {
        jinja_value slot = call->slots[i + 1];
        if (!st_jinja_given(slot) || slot.kind == JINJA_NONE) continue;
        if (!st_jinja_integer_of(machine, slot, "the bounds of the search", &bounds[i])) return false;
        if (bounds[i] < 0) bounds[i] = bounds[i] + count < 0 ? 0 : bounds[i] + count;
    }
    *from = bounds[0] > count ? SIZE_MAX : st_jinja_string_offset(self, (size_t)bounds[0]);
    *to = bounds[1] >= count ? self->length : st_jinja_string_offset(self, (size_t)bounds[1]);
    return st_jinja_charge_bytes(machine, self->length);
}

/* The position of the first (or last) match in characters; -1: none. */
static bool search(jinja_machine *machine, const jinja_call *call, bool last, int64_t *out)
{
    const jinja_string *part;
    size_t from, to, found = SIZE_MAX;
    if (!st_jinja_want_string(machine, call->slots[0], "find()", &part)) return false;
    if (!search_bounds(machine, call, &from, &to)) return false;
    jinja_string window = *call->self.string;
    *out = -1;
    if (from > to) return true;
    window.length = to;
    if (last && !st_jinja_charge_search(machine, to, part->length)) return false;
    if (!last) found = st_jinja_string_find(&window, part, from);
    for (size_t i = to + 1; last && i-- > from && i + part->length >= part->length;) {
        if (i + part->length > to || memcmp(window.bytes + i, part->bytes, part->length) != 0) continue;
        found = i;
        break;
    }
    window.length = found;
    if (found != SIZE_MAX) *out = (int64_t)st_jinja_string_count(&window);
    return true;
}

static bool method_find(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    int64_t found;
    if (!search(machine, call, false, &found)) return false;
    *out = st_jinja_integer(found);
    return true;
}

static bool method_rfind(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    int64_t found;
    if (!search(machine, call, true, &found)) return false;
    *out = st_jinja_integer(found);
    return true;
}

static bool method_index(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    if (!method_find(machine, call, out)) return false;
    return out->integer >= 0 || st_jinja_fail(machine, "substring not found");
}

static bool method_rindex(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    if (!method_rfind(machine, call, out)) return false;
    return out->integer >= 0 || st_jinja_fail(machine, "substring not found");
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

static bool edge(jinja_machine *machine, const jinja_call *call, bool end, jinja_value *out)
{
    const jinja_string *part;
    size_t from, to;
    bool found = false;
    if (!search_bounds(machine, call, &from, &to)) return false;
    if (call->slots[0].kind == JINJA_TUPLE) {
        const jinja_list *list = call->slots[0].list;
        for (size_t i = 0; !found && i < list->count; i++) {
            if (!st_jinja_want_string(machine, list->items[i], "startswith()", &part)) return false;
            found = has_edge(call->self.string, from, to, part, end);
        }
    } else {
        if (!st_jinja_want_string(machine, call->slots[0], end ? "endswith()" : "startswith()", &part)) return false;
        found = has_edge(call->self.string, from, to, part, end);
    }
    *out = st_jinja_bool(found);
    return true;
}

static bool method_startswith(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    return edge(machine, call, false, out);
}

static bool method_endswith(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    return edge(machine, call, true, out);
}

/* ---- classes of characters ---- */

static bool is_alpha(uint32_t code)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

static bool is_decimal(uint32_t code)
{
    return utf8proc_category((utf8proc_int32_t)code) == UTF8PROC_CATEGORY_ND;
}

static bool is_numeric(uint32_t code)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
    return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

static bool is_alphanumeric(uint32_t code)
{
    return is_alpha(code) || is_numeric(code);
}

static bool is_ascii(uint32_t code)
{
    return code < 0x80;
}

static bool all_are(jinja_machine *machine, const jinja_call *call, bool (*is)(uint32_t), bool if_empty,
                    jinja_value *out)
{
    const jinja_string *self = call->self.string;
    bool all = self->length > 0 || if_empty;
    for (size_t i = 0, length; all && i < self->length; i += length) all = is(st_jinja_string_code(self, i, &length));
    *out = st_jinja_bool(all);
    return st_jinja_charge_bytes(machine, self->length);
}

static bool method_isalpha(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    return all_are(machine, call, is_alpha, false, out);
}

static bool method_isdigit(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    return all_are(machine, call, is_decimal, false, out);
}

static bool method_isnumeric(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    return all_are(machine, call, is_numeric, false, out);
}

static bool method_isalnum(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    return all_are(machine, call, is_alphanumeric, false, out);
}

static bool method_isspace(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    return all_are(machine, call, st_jinja_is_space, false, out);
}

static bool method_isascii(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    return all_are(machine, call, is_ascii, true, out);
}

/* At least one cased letter, and none of the other case. */
static bool cased(jinja_machine *machine, const jinja_call *call, bool upper, jinja_value *out)
{
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

static bool method_islower(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    return cased(machine, call, false, out);
}

static bool method_isupper(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    return cased(machine, call, true, out);
}

static const jinja_native query_rows[] = {
    {"startswith", "prefix start end", 1, method_startswith},
    {"endswith", "suffix start end", 1, method_endswith},
    {"find", "sub start end", 1, method_find},
    {"rfind", "sub start end", 1, method_rfind},
    {"index", "sub start end", 1, method_index},
    {"rindex", "sub start end", 1, method_rindex},
    {"count", "sub start end", 1, method_count},
    {"isalpha", "", 0, method_isalpha},
    {"isdigit", "", 0, method_isdigit},
    {"isdecimal", "", 0, method_isdigit},
    {"isnumeric", "", 0, method_isnumeric},
    {"isalnum", "", 0, method_isalnum},
    {"isspace", "", 0, method_isspace},
    {"isascii", "", 0, method_isascii},
    {"islower", "", 0, method_islower},
    {"isupper", "", 0, method_isupper},
};
const jinja_native_table st_jinja_string_queries = {query_rows, sizeof query_rows / sizeof *query_rows};
