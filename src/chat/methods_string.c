#include "chat/format.h"
#include "chat/native.h"
#include "chat/printf.h"

/* Methods of strings that return strings or lists of strings. The mode of a row is the side of the string that the
 * method works from, or the case that it changes to. */
enum { LEFT = JINJA_STRIP_LEFT, RIGHT = JINJA_STRIP_RIGHT, BOTH = LEFT | RIGHT };

/* ---- strip, case, replace ---- */

static bool method_strip(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *characters = NULL;
    bool given = st_jinja_given_value(call->slots[0]);
    if (given && !st_jinja_want_string(machine, call->slots[0], "strip()", &characters)) return false;
    return st_jinja_string_strip(machine, call->self.string, characters, (unsigned)call->mode, out);
}

static bool method_case(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    return st_jinja_string_case(machine, call->self.string, (jinja_case)call->mode, out);
}

static bool method_replace(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *from, *to;
    int64_t limit = -1;
    return st_jinja_want_string(machine, call->slots[0], "replace()", &from) &&
           st_jinja_want_string(machine, call->slots[1], "replace()", &to) &&
           (!st_jinja_given(call->slots[2]) || st_jinja_integer_of(machine, call->slots[2], "replace()", &limit)) &&
           st_jinja_string_replace(machine, call->self.string, from, to, limit, out);
}

static bool method_remove(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *self = call->self.string, *part;
    bool suffix = call->mode == RIGHT;
    if (!st_jinja_want_string(machine, call->slots[0], suffix ? "removesuffix()" : "removeprefix()", &part))
        return false;
    size_t from = suffix ? 0 : part->length, to = suffix ? self->length - part->length : self->length;
    bool has = part->length <= self->length &&
               memcmp(self->bytes + (suffix ? to : 0), part->bytes, part->length) == 0;
    return st_jinja_string_slice(machine, self, has ? from : 0, has ? to : self->length, out);
}

/* ---- split ---- */

static bool push_slice(jinja_machine *machine, jinja_list *list, const jinja_string *string, size_t from, size_t to)
{
    jinja_value piece;
    return st_jinja_charge(machine, 1) && st_jinja_string_slice(machine, string, from, to, &piece) &&
           st_jinja_list_push(machine, list, piece);
}

static bool split_space(jinja_machine *machine, const jinja_string *string, int64_t limit, jinja_list *list)
{
    size_t position = 0, length = 0;
    for (;;) {
        while (position < string->length && st_jinja_is_space(st_jinja_string_code(string, position, &length)))
            position += length;
        if (position == string->length) return true;
        size_t from = position;
        if (limit == 0) {
            jinja_value rest, stripped;
            return st_jinja_string_slice(machine, string, from, string->length, &rest) &&
                   st_jinja_string_strip(machine, rest.string, NULL, JINJA_STRIP_RIGHT, &stripped) &&
                   st_jinja_list_push(machine, list, stripped);
        }
        while (position < string->length && !st_jinja_is_space(st_jinja_string_code(string, position, &length)))
            position += length;
        if (!push_slice(machine, list, string, from, position)) return false;
        limit--;
    }
}

static bool split_at(jinja_machine *machine, const jinja_string *string, const jinja_string *separator, int64_t limit,
                     jinja_list *list)
{
    size_t position = 0;
    for (; limit != 0; limit--) {
        size_t found = st_jinja_string_find(string, separator, position);
        if (found == SIZE_MAX) break;
        if (!push_slice(machine, list, string, position, found)) return false;
        position = found + separator->length;
    }
    return push_slice(machine, list, string, position, string->length);
}

static bool split_at_right(jinja_machine *machine, const jinja_string *string, const jinja_string *separator,
                           int64_t limit, jinja_list *list)
{
    jinja_string before = *string; /* what is left to split */
    if (!st_jinja_charge_search(machine, string->length, separator->length)) return false;
    for (; limit != 0; limit--) {
        size_t found = st_jinja_string_find_last(&before, separator, 0);
        if (found == SIZE_MAX) break;
        if (!push_slice(machine, list, string, found + separator->length, before.length)) return false;
        before.length = found;
    }
    if (!push_slice(machine, list, string, 0, before.length)) return false;
    st_jinja_list_reverse(list);
    return true;
}

static size_t space_before(const jinja_string *string, size_t end, bool space)
{
    while (end > 0) {
        size_t last = end - 1, length;
        while (last > 0 && ((unsigned char)string->bytes[last] & 0xC0) == 0x80) last--;
        if (st_jinja_is_space(st_jinja_string_code(string, last, &length)) != space) break;
        end = last;
    }
    return end;
}

static bool split_space_right(jinja_machine *machine, const jinja_string *string, int64_t limit, jinja_list *list)
{
    size_t end = space_before(string, string->length, true);
    for (; end > 0 && limit != 0; limit--) {
        size_t from = space_before(string, end, false);
        if (!push_slice(machine, list, string, from, end)) return false;
        end = space_before(string, from, true);
    }
    if (end > 0) {
        jinja_value rest, stripped;
        if (!st_jinja_string_slice(machine, string, 0, end, &rest) ||
            !st_jinja_string_strip(machine, rest.string, NULL, JINJA_STRIP_LEFT, &stripped) ||
            !st_jinja_list_push(machine, list, stripped)) {
            return false;
        }
    }
    st_jinja_list_reverse(list);
    return true;
}

static bool method_split(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *self = call->self.string, *separator = NULL;
    int64_t limit = -1;
    jinja_list *list = st_jinja_list_new(machine, 0);
    bool given = st_jinja_given_value(call->slots[0]), ok;
    if (!list || !st_jinja_charge_bytes(machine, self->length)) return false;
    if (given && !st_jinja_want_string(machine, call->slots[0], "split()", &separator)) return false;
    if (given && separator->length == 0) return st_jinja_fail(machine, "empty separator");
    if (st_jinja_given(call->slots[1]) && !st_jinja_integer_of(machine, call->slots[1], "split()", &limit))
        return false;
    if (call->mode == RIGHT)
        ok = given ? split_at_right(machine, self, separator, limit, list)
                   : split_space_right(machine, self, limit, list);
    else ok = given ? split_at(machine, self, separator, limit, list) : split_space(machine, self, limit, list);
    *out = (jinja_value){.kind = JINJA_LIST, .list = list};
    return ok;
}

static bool method_partition(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    bool right = call->mode == RIGHT;
    const jinja_string *self = call->self.string, *separator;
    jinja_list *list = st_jinja_list_new(machine, 3);
    if (!list || !st_jinja_want_string(machine, call->slots[0], "partition()", &separator)) return false;
    if (separator->length == 0) return st_jinja_fail(machine, "empty separator");
    if (!st_jinja_charge_search(machine, self->length, right ? separator->length : 1)) return false;
    size_t found = right ? st_jinja_string_find_last(self, separator, 0) : st_jinja_string_find(self, separator, 0);
    size_t from = found, to = found + separator->length;
    if (found == SIZE_MAX) from = to = right ? 0 : self->length;
    *out = (jinja_value){.kind = JINJA_TUPLE, .list = list};
    return push_slice(machine, list, self, 0, from) && push_slice(machine, list, self, from, to) &&
           push_slice(machine, list, self, to, self->length);
}

static bool is_line_break(uint32_t code)
{
    return (code >= 10 && code <= 13) || (code >= 28 && code <= 30) || code == 0x85 || code == 0x2028 || code == 0x2029;
}

static bool method_splitlines(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *self = call->self.string;
    jinja_list *list = st_jinja_list_new(machine, 0);
    bool keep = st_jinja_truth(call->slots[0]);
    if (!list || !st_jinja_charge_bytes(machine, self->length)) return false;
    size_t from = 0;
    for (size_t i = 0, length; i < self->length; i += length) {
        uint32_t code = st_jinja_string_code(self, i, &length);
        if (!is_line_break(code)) continue;
        if (code == '\r' && i + 1 < self->length && self->bytes[i + 1] == '\n') length = 2;
        if (!push_slice(machine, list, self, from, keep ? i + length : i)) return false;
        from = i + length;
    }
    *out = (jinja_value){.kind = JINJA_LIST, .list = list};
    return from == self->length || push_slice(machine, list, self, from, self->length);
}

/* ---- join, format, padding ---- */

static bool method_join(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_builder builder = {.machine = machine};
    jinja_iterator iterator;
    jinja_value item;
    if (!st_jinja_iterate(machine, call->slots[0], &iterator)) return false;
    for (bool first = true; st_jinja_next(machine, &iterator, &item); first = false) {
        const jinja_string *text;
        if (!first && !st_jinja_add_string(&builder, call->self.string)) return false;
        if (!st_jinja_want_string(machine, item, "join()", &text) || !st_jinja_add_string(&builder, text)) return false;
    }
    return st_jinja_builder_finish(&builder, out);
}

static bool method_format(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    return st_jinja_format_braces(machine, call->self.string, &call->rest, out);
}

static bool method_pad(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *self = call->self.string, *fill = NULL;
    int64_t width;
    if (!st_jinja_integer_of(machine, call->slots[0], "the width", &width)) return false;
    if (st_jinja_given(call->slots[1]) && !st_jinja_want_string(machine, call->slots[1], "the fill character", &fill))
        return false;
    if (fill && st_jinja_string_count(fill) != 1)
        return st_jinja_fail(machine, "the fill character must be one character");
    size_t count = st_jinja_string_count(self), room = width > 0 && (uint64_t)width > count ? (size_t)width - count : 0;
    /* Python's rounding for center: the odd blank goes left when the width is odd too */
    size_t before = call->mode == LEFT ? room : call->mode == RIGHT ? 0 : room / 2 + (room & (size_t)width & 1);
    jinja_value pieces[2];
    jinja_string blank = {.bytes = " ", .length = 1, .ascii = true};
    if (!st_jinja_string_repeat(machine, fill ? fill : &blank, (int64_t)before, &pieces[0]) ||
        !st_jinja_string_repeat(machine, fill ? fill : &blank, (int64_t)(room - before), &pieces[1])) {
        return false;
    }
    jinja_builder builder = {.machine = machine};
    return st_jinja_add_string(&builder, pieces[0].string) && st_jinja_add_string(&builder, self) &&
           st_jinja_add_string(&builder, pieces[1].string) && st_jinja_builder_finish(&builder, out);
}

static bool method_zfill(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *self = call->self.string;
    int64_t width;
    if (!st_jinja_integer_of(machine, call->slots[0], "zfill()", &width)) return false;
    size_t count = st_jinja_string_count(self), room = width > 0 && (uint64_t)width > count ? (size_t)width - count : 0;
    size_t sign = self->length && (self->bytes[0] == '-' || self->bytes[0] == '+');
    jinja_value zeros;
    jinja_string zero = {.bytes = "0", .length = 1, .ascii = true};
    jinja_builder builder = {.machine = machine};
    return st_jinja_string_repeat(machine, &zero, (int64_t)room, &zeros) &&
           st_jinja_add_slice(&builder, self, 0, sign) && st_jinja_add_string(&builder, zeros.string) &&
           st_jinja_add_slice(&builder, self, sign, self->length) && st_jinja_builder_finish(&builder, out);
}

static const jinja_native string_rows[] = {
    {"strip", "chars", 0, method_strip, BOTH},
    {"lstrip", "chars", 0, method_strip, LEFT},
    {"rstrip", "chars", 0, method_strip, RIGHT},
    {"split", "sep maxsplit", 0, method_split, LEFT},
    {"rsplit", "sep maxsplit", 0, method_split, RIGHT},
    {"splitlines", "keepends", 0, method_splitlines, 0},
    {"partition", "sep", 1, method_partition, LEFT},
    {"rpartition", "sep", 1, method_partition, RIGHT},
    {"replace", "old new count", 2, method_replace, 0},
    {"removeprefix", "prefix", 1, method_remove, LEFT},
    {"removesuffix", "suffix", 1, method_remove, RIGHT},
    {"upper", "", 0, method_case, JINJA_UPPER},
    {"lower", "", 0, method_case, JINJA_LOWER},
    {"casefold", "", 0, method_case, JINJA_LOWER},
    {"title", "", 0, method_case, JINJA_TITLE},
    {"capitalize", "", 0, method_case, JINJA_CAPITALIZE},
    {"swapcase", "", 0, method_case, JINJA_SWAPCASE},
    {"join", "iterable", 1, method_join, 0},
    {"format", "* **", 0, method_format, 0},
    {"center", "width fillchar", 1, method_pad, BOTH},
    {"ljust", "width fillchar", 1, method_pad, RIGHT},
    {"rjust", "width fillchar", 1, method_pad, LEFT},
    {"zfill", "width", 1, method_zfill, 0},
};
const jinja_native_table st_jinja_string_methods = {string_rows, sizeof string_rows / sizeof *string_rows};
