#include "chat/format.h"
#include "chat/native.h"
#include "chat/printf.h"

enum { RANGE_MAX = 100000 }; /* as in Jinja's sandbox */

static bool global_range(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    int64_t bounds[3] = {0, 0, 1};
    for (size_t i = 0; i < 3; i++) {
        if (st_jinja_given(call->slots[i]) && !st_jinja_integer_of(machine, call->slots[i], "range()", &bounds[i]))
            return false;
    }
    int64_t start = st_jinja_given(call->slots[1]) ? bounds[0] : 0,
            stop = st_jinja_given(call->slots[1]) ? bounds[1] : bounds[0];
    int64_t step = bounds[2];
    if (step == 0) return st_jinja_fail(machine, "range() arg 3 must not be zero");
    bool forward = step > 0;
    uint64_t span = forward ? (stop > start ? (uint64_t)stop - (uint64_t)start : 0)
                            : (start > stop ? (uint64_t)start - (uint64_t)stop : 0);
    uint64_t stride = forward ? (uint64_t)step : 0 - (uint64_t)step;
    uint64_t count = span ? (span - 1) / stride + 1 : 0;
    if (count > RANGE_MAX) return st_jinja_fail_limit(machine, "numbers in a range()", RANGE_MAX);
    jinja_range *range = st_jinja_alloc(machine, 1, sizeof *range);
    if (!range) return false;
    *range = (jinja_range){.start = start, .stop = stop, .step = step, .count = (size_t)count};
    *out = (jinja_value){.kind = JINJA_RANGE, .range = range};
    return true;
}

static bool add_pairs(jinja_machine *machine, jinja_dict *dict, jinja_value pairs)
{
    jinja_iterator iterator;
    jinja_value item;
    if (pairs.kind == JINJA_DICT || pairs.kind == JINJA_NAMESPACE) {
        for (size_t i = 0; i < pairs.dict->count; i++) {
            if (!st_jinja_dict_set(machine, dict, pairs.dict->entries[i].key, pairs.dict->entries[i].value))
                return false;
        }
        return st_jinja_charge(machine, pairs.dict->count);
    }
    if (!st_jinja_iterate(machine, pairs, &iterator)) return false;
    while (st_jinja_next(machine, &iterator, &item)) {
        jinja_list *pair;
        if (!st_jinja_collect(machine, item, &pair)) return false;
        if (pair->count != 2) return st_jinja_fail(machine, "dict(): expected pairs, found %zu values", pair->count);
        if (!st_jinja_dict_set(machine, dict, pair->items[0], pair->items[1])) return false;
    }
    return machine->status == STRATA_OK;
}

static bool global_dict(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_dict *dict = st_jinja_dict_new(machine, call->rest.keyword_count);
    if (!dict) return false;
    if (st_jinja_given(call->slots[0]) && !add_pairs(machine, dict, call->slots[0])) return false;
    for (size_t i = 0; i < call->rest.keyword_count; i++) {
        jinja_value name;
        if (!st_jinja_string_new(machine, call->rest.keywords[i].name, false, &name)) return false;
        if (!st_jinja_dict_set(machine, dict, name, call->rest.keywords[i].value)) return false;
    }
    *out = (jinja_value){.kind = (jinja_kind)call->mode, .dict = dict};
    return true;
}

static bool global_raise(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *message;
    (void)out;
    if (!st_jinja_to_string(machine, call->slots[0], &message)) return false;
    st_str text = st_str_head(st_jinja_view(message), 600);
    return st_jinja_fail(machine, "%.*s", ST_STR_ARG(text));
}

static bool global_strftime(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_string *pattern;
    return st_jinja_want_string(machine, call->slots[0], "strftime_now()", &pattern) &&
           st_jinja_format_time(machine, pattern, machine->now_seconds, out);
}

/* joiner(): returns an empty string at its first call, then the separator. Its state is a namespace. */
static bool joiner_call(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_value *used = st_jinja_dict_get(call->self.dict, ST_STR("used"));
    jinja_value *separator = st_jinja_dict_get(call->self.dict, ST_STR("separator"));
    if (!used || !separator) return st_jinja_fail(machine, "joiner() has no state");
    if (used->boolean) *out = *separator;
    else if (!st_jinja_string_new(machine, ST_STR(""), false, out)) return false;
    used->boolean = true;
    return true;
}

static bool global_joiner(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    static const jinja_native row = {"joiner", "", 0, joiner_call, 0};
    jinja_bound *bound = st_jinja_alloc(machine, 1, sizeof *bound);
    jinja_dict *state = st_jinja_dict_new(machine, 2);
    jinja_value separator = call->slots[0], used, key;
    if (!bound || !state) return false;
    if (!st_jinja_given(separator) && !st_jinja_string_new(machine, ST_STR(", "), false, &separator)) return false;
    if (!st_jinja_string_new(machine, ST_STR("used"), false, &used)) return false;
    if (!st_jinja_string_new(machine, ST_STR("separator"), false, &key)) return false;
    if (!st_jinja_dict_set(machine, state, used, st_jinja_bool(false))) return false;
    if (!st_jinja_dict_set(machine, state, key, separator)) return false;
    *bound = (jinja_bound){&row, {.kind = JINJA_NAMESPACE, .dict = state}};
    *out = (jinja_value){.kind = JINJA_NATIVE, .native = bound};
    return true;
}

static const jinja_native global_rows[] = {
    {"range", "start stop step", 1, global_range, 0},
    {"dict", "pairs **", 0, global_dict, JINJA_DICT},
    {"namespace", "pairs **", 0, global_dict, JINJA_NAMESPACE},
    {"joiner", "sep", 0, global_joiner, 0},
    {"raise_exception", "message", 1, global_raise, 0},
    {"strftime_now", "format", 1, global_strftime, 0},
};
const jinja_native_table st_jinja_globals = {global_rows, sizeof global_rows / sizeof *global_rows};
