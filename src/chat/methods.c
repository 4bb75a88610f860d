#include "chat/format.h"
#include "chat/native.h"

/* Methods of dicts and lists. A row without a function would modify its object: the sandbox hides it. */

bool st_jinja_want_string(jinja_machine *machine, jinja_value value, const char *name, const jinja_string **out)
{
    if (value.kind == JINJA_UNDEFINED) return st_jinja_fail_undefined(machine, value.undefined);
    if (value.kind != JINJA_STRING) {
        return st_jinja_fail(machine, "%s: expected a string, found '%s'", name, st_jinja_type_name(value));
    }
    *out = value.string;
    return true;
}

static bool dict_get(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_value *found;
    if (!st_jinja_dict_find(machine, call->self.dict, call->slots[0], &found)) return false;
    *out = found ? *found : st_jinja_given(call->slots[1]) ? call->slots[1] : st_jinja_none();
    return true;
}

enum { KEYS = 1, VALUES = 2, ITEMS = KEYS | VALUES };

static bool dict_view(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    static const char *const type_names[] = {[KEYS] = "dict_keys", [VALUES] = "dict_values", [ITEMS] = "dict_items"};
    const jinja_dict *dict = call->self.dict;
    jinja_list *list = st_jinja_list_new(machine, dict->count);
    if (!list || !st_jinja_charge(machine, dict->count)) return false;
    for (size_t i = 0; i < dict->count; i++, list->count++) {
        const jinja_entry *entry = &dict->entries[i];
        list->items[i] = call->mode == KEYS ? entry->key : entry->value;
        if (call->mode == ITEMS && !st_jinja_pair(machine, entry->key, entry->value, &list->items[i])) return false;
    }
    list->type_name = type_names[call->mode];
    *out = (jinja_value){.kind = JINJA_VIEW, .list = list};
    return true;
}

/* Templates cannot modify a dict or a list, so copy() returns the object itself. */
static bool same_object(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    (void)machine;
    *out = call->self;
    return true;
}

static bool list_index(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_iterator iterator;
    jinja_value item;
    if (!st_jinja_iterate(machine, call->self, &iterator)) return false;
    for (int64_t i = 0; st_jinja_next(machine, &iterator, &item); i++) {
        bool equal;
        if (!st_jinja_equal(machine, item, call->slots[0], &equal)) return false;
        *out = st_jinja_integer(i);
        if (equal) return true;
    }
    return st_jinja_fail(machine, "the value is not in the %s", st_jinja_type_name(call->self));
}

static bool list_count(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_iterator iterator;
    jinja_value item;
    int64_t count = 0;
    if (!st_jinja_iterate(machine, call->self, &iterator)) return false;
    while (st_jinja_next(machine, &iterator, &item)) {
        bool equal;
        if (!st_jinja_equal(machine, item, call->slots[0], &equal)) return false;
        count += equal;
    }
    *out = st_jinja_integer(count);
    return machine->status == STRATA_OK;
}

static const jinja_native dict_rows[] = {
    {"get", "key default", 1, dict_get, 0},
    {"items", "", 0, dict_view, ITEMS},
    {"keys", "", 0, dict_view, KEYS},
    {"values", "", 0, dict_view, VALUES},
    {"copy", "", 0, same_object, 0},
    {"clear", "", 0, NULL, 0},
    {"pop", "", 0, NULL, 0},
    {"popitem", "", 0, NULL, 0},
    {"setdefault", "", 0, NULL, 0},
    {"update", "", 0, NULL, 0},
};
const jinja_native_table st_jinja_dict_methods = {dict_rows, sizeof dict_rows / sizeof *dict_rows};

static const jinja_native list_rows[] = {
    {"index", "value", 1, list_index, 0},
    {"count", "value", 1, list_count, 0},
    {"copy", "", 0, same_object, 0},
    {"append", "", 0, NULL, 0},
    {"clear", "", 0, NULL, 0},
    {"extend", "", 0, NULL, 0},
    {"insert", "", 0, NULL, 0},
    {"pop", "", 0, NULL, 0},
    {"remove", "", 0, NULL, 0},
    {"reverse", "", 0, NULL, 0},
    {"sort", "", 0, NULL, 0},
};
const jinja_native_table st_jinja_list_methods = {list_rows, sizeof list_rows / sizeof *list_rows};
