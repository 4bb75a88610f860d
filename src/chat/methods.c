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

static jinja_list *view_new(jinja_machine *machine, const jinja_dict *dict, const char *type_name, jinja_value *out)
{
    jinja_list *list = st_jinja_list_new(machine, dict->count);
    if (!list || !st_jinja_charge(machine, dict->count)) return NULL;
    list->type_name = type_name;
    *out = (jinja_value){.kind = JINJA_VIEW, .list = list};
    return list;
}

static bool dict_items(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_dict *dict = call->self.dict;
    jinja_list *list = view_new(machine, dict, "dict_items", out);
    if (!list) return false;
    for (size_t i = 0; i < dict->count; i++, list->count++) {
        if (!st_jinja_pair(machine, dict->entries[i].key, dict->entries[i].value, &list->items[i])) return false;
    }
    return true;
}

static bool dict_keys(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_dict *dict = call->self.dict;
    jinja_list *list = view_new(machine, dict, "dict_keys", out);
    if (!list) return false;
    for (size_t i = 0; i < dict->count; i++) list->items[list->count++] = dict->entries[i].key;
    return true;
}

static bool dict_values(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    const jinja_dict *dict = call->self.dict;
    jinja_list *list = view_new(machine, dict, "dict_values", out);
    if (!list) return false;
    for (size_t i = 0; i < dict->count; i++) list->items[list->count++] = dict->entries[i].value;
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
    {"get", "key default", 1, dict_get},
    {"items", "", 0, dict_items},
    {"keys", "", 0, dict_keys},
    {"values", "", 0, dict_values},
    {"copy", "", 0, same_object},
    {"clear", "", 0, NULL},
    {"pop", "", 0, NULL},
    {"popitem", "", 0, NULL},
    {"setdefault", "", 0, NULL},
    {"update", "", 0, NULL},
};
const jinja_native_table st_jinja_dict_methods = {dict_rows, sizeof dict_rows / sizeof *dict_rows};

static const jinja_native list_rows[] = {
    {"index", "value", 1, list_index},
    {"count", "value", 1, list_count},
    {"copy", "", 0, same_object},
    {"append", "", 0, NULL},
    {"clear", "", 0, NULL},
    {"extend", "", 0, NULL},
    {"insert", "", 0, NULL},
    {"pop", "", 0, NULL},
    {"remove", "", 0, NULL},
    {"reverse", "", 0, NULL},
    {"sort", "", 0, NULL},
};
const jinja_native_table st_jinja_list_methods = {list_rows, sizeof list_rows / sizeof *list_rows};
