#include <limits.h>

#include "chat/eval.h"
#include "chat/format.h"

/* ---- attributes ---- */

static const jinja_native *find_method(jinja_kind kind, st_str name)
{
    const jinja_native *found = NULL;
    switch (kind) {
    case JINJA_STRING:
        found = st_jinja_find(&st_jinja_string_methods, name);
        return found ? found : st_jinja_find(&st_jinja_string_queries, name);
    case JINJA_DICT: return st_jinja_find(&st_jinja_dict_methods, name);
    case JINJA_LIST: return st_jinja_find(&st_jinja_list_methods, name);
    case JINJA_LOOP: return st_jinja_find(&st_jinja_loop_methods, name);
    case JINJA_TUPLE:
    case JINJA_RANGE:
        found = st_jinja_find(&st_jinja_list_methods, name);
        return found && found->run ? found : NULL; /* immutable: no append and the like */
    default: return NULL;
    }
}

/* A method bound to `object`; *out is MISSING if there is none of that name. The sandbox hides methods without a
 * function in their row, and every name between double underscores. */
static bool method_of(jinja_machine *machine, jinja_value object, jinja_value name, jinja_value *out)
{
    st_str text = st_jinja_view(name.string);
    const jinja_native *native = find_method(object.kind, text);
    *out = (jinja_value){.kind = JINJA_MISSING};
    bool dunder =
        text.length > 4 && memcmp(text.data, "__", 2) == 0 && memcmp(text.data + text.length - 2, "__", 2) == 0;
    if (dunder || (native && !native->run)) return st_jinja_undefined_member(machine, object.kind, name, true, out);
    if (!native) return true;
    jinja_bound *bound = st_jinja_alloc(machine, 1, sizeof *bound);
    if (!bound) return false;
    *bound = (jinja_bound){native, object};
    *out = (jinja_value){.kind = JINJA_NATIVE, .native = bound};
    return true;
}

/* The named members of a tuple that groupby made; MISSING for any other name or value. */
static jinja_value group_part(jinja_value object, st_str name)
{
    if (object.kind == JINJA_TUPLE && object.list->type_name && object.list->count == 2) {
        if (st_str_is(name, "grouper")) return object.list->items[0];
        if (st_str_is(name, "list")) return object.list->items[1];
    }
    return (jinja_value){.kind = JINJA_MISSING};
}

static jinja_value range_part(const jinja_range *range, st_str name)
{
    if (st_str_is(name, "start")) return st_jinja_integer(range->start);
    if (st_str_is(name, "stop")) return st_jinja_integer(range->stop);
    if (st_str_is(name, "step")) return st_jinja_integer(range->step);
    return (jinja_value){.kind = JINJA_MISSING};
}

static bool python_attribute(jinja_machine *machine, jinja_value object, jinja_value name, jinja_value *out)
{
    st_str text = st_jinja_view(name.string);
    *out = object.kind == JINJA_RANGE ? range_part(object.range, text) : group_part(object, text);
    if (out->kind != JINJA_MISSING) return true;
    if (object.kind == JINJA_LOOP) {
        if (!st_jinja_loop_attribute(machine, object, text, out)) return false;
        if (out->kind != JINJA_MISSING) return true;
    }
    if (object.kind == JINJA_NAMESPACE) {
        jinja_value *found = st_jinja_dict_get(object.dict, text);
        if (found) *out = *found;
        if (found) return true;
    }
    if (object.kind == JINJA_MACRO && st_str_is(text, "name")) {
        return st_jinja_string_new(machine, object.macro->definition->name, false, out);
    }
    return method_of(machine, object, name, out);
}

bool st_jinja_attribute(jinja_machine *machine, jinja_value object, jinja_value name, jinja_value *out)
{
    if (object.kind == JINJA_UNDEFINED) return st_jinja_fail_undefined(machine, object.undefined);
    if (!python_attribute(machine, object, name, out)) return false;
    if (out->kind != JINJA_MISSING) return true;
    if (object.kind == JINJA_DICT) {
        jinja_value *found = st_jinja_dict_get(object.dict, st_jinja_view(name.string));
        if (found) *out = *found;
        if (found) return true;
    }
    return st_jinja_undefined_member(machine, object.kind, name, false, out);
}

/* ---- items ---- */

static bool string_item(jinja_machine *machine, const jinja_string *string, int64_t index, jinja_value *out)
{
    size_t count = st_jinja_string_count(string);
    if (!string->ascii && !st_jinja_charge_bytes(machine, string->length)) return false;
    if (index < 0) index += (int64_t)count;
    if (index < 0 || (uint64_t)index >= count) return true;
    size_t offset = st_jinja_string_offset(string, (size_t)index);
    return st_jinja_string_slice(machine, string, offset, offset + st_jinja_string_step(string, offset), out);
}

/* *out stays MISSING if there is no such element. */
static bool index_item(jinja_machine *machine, jinja_value object, int64_t index, jinja_value *out)
{
    if (object.kind == JINJA_STRING) return string_item(machine, object.string, index, out);
    bool is_range = object.kind == JINJA_RANGE;
    if (!is_range && object.kind != JINJA_LIST && object.kind != JINJA_TUPLE) return true;
    size_t count = is_range ? object.range->count : object.list->count;
    if (index < 0) index += (int64_t)count;
    if (index < 0 || (uint64_t)index >= count) return true;
    *out = is_range ? st_jinja_integer(object.range->start + index * object.range->step) : object.list->items[index];
    return true;
}

static bool is_hashable(jinja_value key)
{
    return key.kind != JINJA_LIST && key.kind != JINJA_DICT && key.kind != JINJA_VIEW;
}

bool st_jinja_item(jinja_machine *machine, jinja_value object, jinja_value key, jinja_value *out)
{
    if (object.kind == JINJA_UNDEFINED) return st_jinja_fail_undefined(machine, object.undefined);
    *out = (jinja_value){.kind = JINJA_MISSING};
    if (object.kind == JINJA_DICT && is_hashable(key)) {
        jinja_value *found;
        if (!st_jinja_dict_find(machine, object.dict, key, &found)) return false;
        if (found) *out = *found;
    } else if (st_jinja_is_integer(key) && !index_item(machine, object, st_jinja_whole(key), out)) {
        return false;
    }
    if (out->kind == JINJA_MISSING && key.kind == JINJA_STRING && !python_attribute(machine, object, key, out))
        return false;
    if (out->kind != JINJA_MISSING) return true;
    return st_jinja_undefined_member(machine, object.kind, key, false, out);
}

bool st_jinja_path(jinja_machine *machine, jinja_value object, jinja_value path, jinja_value *out)
{
    if (path.kind != JINJA_STRING) return st_jinja_item(machine, object, path, out);
    const jinja_string *text = path.string;
    *out = object;
    for (size_t from = 0; from <= text->length;) {
        const char *dot = memchr(text->bytes + from, '.', text->length - from);
        size_t to = dot ? (size_t)(dot - text->bytes) : text->length;
        int64_t number = 0;
        bool is_number = to > from && to - from < 10;
        for (size_t i = from; is_number && i < to; i++) {
            is_number = text->bytes[i] >= '0' && text->bytes[i] <= '9';
            number = number * 10 + (text->bytes[i] - '0');
        }
        jinja_value key = st_jinja_integer(number);
        if (!is_number && !st_jinja_string_slice(machine, text, from, to, &key)) return false;
        if (!st_jinja_item(machine, *out, key, out)) return false;
        from = to + 1;
    }
    return true;
}

/* ---- slices ---- */

static bool slice_bound(jinja_machine *machine, jinja_value value, int64_t fallback, int64_t *out)
{
    *out = fallback;
    return value.kind == JINJA_NONE || st_jinja_integer_of(machine, value, "slice", out);
}

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* Resolves slice bounds for `count` items as Python does. */
static bool slice_range(jinja_machine *machine, const jinja_value bounds[3], size_t count, jinja_range *out)
{
    int64_t length = (int64_t)count, step, start, stop;
    if (!slice_bound(machine, bounds[2], 1, &step)) return false;
    if (step == 0) return st_jinja_fail(machine, "slice step cannot be zero");
    step = clamp(step, -INT64_MAX, INT64_MAX);
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? length - 1 : length;
    if (!slice_bound(machine, bounds[0], step < 0 ? high : low, &start)) return false;
    if (!slice_bound(machine, bounds[1], step < 0 ? low : high, &stop)) return false;
    if (bounds[0].kind != JINJA_NONE) start = clamp(start < 0 ? start + length : start, low, high);
    if (bounds[1].kind != JINJA_NONE) stop = clamp(stop < 0 ? stop + length : stop, low, high);
    int64_t span = step > 0 ? stop - start : start - stop, stride = step > 0 ? step : -step;
    *out = (jinja_range){start, stop, step, span > 0 ? (size_t)((span - 1) / stride) + 1 : 0};
    return true;
}

static bool slice_string(jinja_machine *machine, const jinja_string *string, const jinja_range *range, jinja_value *out)
{
    if (!st_jinja_charge_bytes(machine, string->length)) return false;
    if (range->step == 1 || range->count == 0) {
        size_t from = range->count ? st_jinja_string_offset(string, (size_t)range->start) : 0;
        size_t to = range->count ? st_jinja_string_offset(string, (size_t)range->start + range->count) : 0;
        return st_jinja_string_slice(machine, string, from, to, out);
    }
    size_t count = st_jinja_string_count(string), position = 0;
    size_t *offsets = st_jinja_alloc(machine, count + 1, sizeof *offsets);
    if (!offsets) return false;
    for (size_t i = 0; i < count; i++) {
        offsets[i] = position;
        position += st_jinja_string_step(string, position);
    }
    offsets[count] = position;
    jinja_builder builder = {.machine = machine};
    for (size_t i = 0; i < range->count; i++) {
        size_t at = (size_t)(range->start + (int64_t)i * range->step);
        if (!st_jinja_add_slice(&builder, string, offsets[at], offsets[at + 1])) return false;
    }
    return st_jinja_builder_finish(&builder, out);
}

static bool slice_of_range(jinja_machine *machine, const jinja_range *whole, const jinja_range *part, jinja_value *out)
{
    jinja_range *range = st_jinja_alloc(machine, 1, sizeof *range);
    if (!range) return false;
    *range = (jinja_range){.count = part->count};
    bool fits = !__builtin_mul_overflow(whole->step, part->step, &range->step) &&
                !__builtin_mul_overflow(part->start, whole->step, &range->start) &&
                !__builtin_add_overflow(range->start, whole->start, &range->start) &&
                !__builtin_mul_overflow(part->stop, whole->step, &range->stop) &&
                !__builtin_add_overflow(range->stop, whole->start, &range->stop);
    *out = (jinja_value){.kind = JINJA_RANGE, .range = range};
    return fits || st_jinja_fail(machine, "the range does not fit 64-bit integers");
}

bool st_jinja_slice(jinja_machine *machine, jinja_value object, const jinja_value bounds[3], jinja_value *out)
{
    size_t count;
    jinja_range range = {0};
    if (object.kind == JINJA_UNDEFINED) return st_jinja_fail_undefined(machine, object.undefined);
    bool sliceable = object.kind == JINJA_STRING || object.kind == JINJA_LIST || object.kind == JINJA_TUPLE ||
                     object.kind == JINJA_RANGE;
    if (!sliceable) return st_jinja_fail(machine, "'%s' object cannot be sliced", st_jinja_type_name(object));
    if (!st_jinja_length(machine, object, &count) || !slice_range(machine, bounds, count, &range)) return false;
    if (object.kind == JINJA_STRING) return slice_string(machine, object.string, &range, out);
    if (object.kind == JINJA_RANGE) return slice_of_range(machine, object.range, &range, out);
    jinja_list *list = st_jinja_list_new(machine, range.count);
    if (!list || !st_jinja_charge(machine, range.count)) return false;
    for (size_t i = 0; i < range.count; i++) {
        int64_t at = range.start + (int64_t)i * range.step;
        if (!index_item(machine, object, at, &list->items[i])) return false;
        list->count++;
    }
    *out = (jinja_value){.kind = object.kind == JINJA_TUPLE ? JINJA_TUPLE : JINJA_LIST, .list = list};
    return true;
}

/* ---- loop ---- */

static bool loop_previous(jinja_machine *machine, const jinja_loop *loop, jinja_value *out)
{
    *out = loop->previous;
    return loop->index0 || st_jinja_undefined_hint(machine, "there is no previous item", out);
}

static bool loop_next(jinja_machine *machine, const jinja_loop *loop, jinja_value *out)
{
    jinja_iterator peek = loop->iterator;
    if (peek.left == 0) return st_jinja_undefined_hint(machine, "there is no next item", out);
    return st_jinja_next(machine, &peek, out);
}

bool st_jinja_loop_attribute(jinja_machine *machine, jinja_value value, st_str name, jinja_value *out)
{
    const jinja_loop *loop = value.loop;
    const struct {
        const char *name;
        jinja_value value;
    } rows[] = {
        {"index", st_jinja_integer((int64_t)loop->index0 + 1)},
        {"index0", st_jinja_integer((int64_t)loop->index0)},
        {"first", st_jinja_bool(loop->index0 == 0)},
        {"last", st_jinja_bool(loop->iterator.left == 0)},
        {"length", st_jinja_integer((int64_t)loop->length)},
        {"revindex", st_jinja_integer((int64_t)(loop->length - loop->index0))},
        {"revindex0", st_jinja_integer((int64_t)(loop->length - loop->index0) - 1)},
        {"depth", st_jinja_integer((int64_t)loop->depth0 + 1)},
        {"depth0", st_jinja_integer((int64_t)loop->depth0)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!st_str_is(name, rows[i].name)) continue;
        *out = rows[i].value;
        return true;
    }
    if (st_str_is(name, "previtem")) return loop_previous(machine, loop, out);
    if (st_str_is(name, "nextitem")) return loop_next(machine, loop, out);
    *out = (jinja_value){.kind = JINJA_MISSING};
    return true;
}

static bool loop_cycle(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    if (call->rest.count == 0) return st_jinja_fail(machine, "no items for cycling given");
    *out = call->rest.items[call->self.loop->index0 % call->rest.count];
    return true;
}

static bool loop_changed(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_loop *loop = call->self.loop;
    jinja_list *list = st_jinja_list_new(machine, call->rest.count);
    bool equal = false;
    if (!list) return false;
    for (size_t i = 0; i < call->rest.count; i++) list->items[list->count++] = call->rest.items[i];
    jinja_value now = {.kind = JINJA_TUPLE, .list = list};
    if (!st_jinja_equal(machine, loop->changed, now, &equal)) return false;
    loop->changed = now;
    *out = st_jinja_bool(!equal);
    return true;
}

static const jinja_native loop_rows[] = {
    {"cycle", "*", 0, loop_cycle, 0},
    {"changed", "*", 0, loop_changed, 0},
};
const jinja_native_table st_jinja_loop_methods = {loop_rows, sizeof loop_rows / sizeof *loop_rows};
