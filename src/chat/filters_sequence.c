#include "chat/format.h"
#include "chat/native.h"

/* Filters for lists, dicts and other iterables. */

static jinja_value list_value(jinja_kind kind, jinja_list *list)
{
    return (jinja_value){.kind = kind, .list = list};
}

/* Lower-cases strings for comparisons that ignore case. */
static bool fold_case(jinja_machine *machine, jinja_value *value)
{
    return value->kind != JINJA_STRING || st_jinja_string_case(machine, value->string, JINJA_LOWER, value);
}

/* The key that an item is compared by: one of its attributes, or the item. */
static bool key_of(jinja_machine *machine, jinja_value item, jinja_value attribute, bool case_sensitive,
                   jinja_value *out)
{
    *out = item;
    if (st_jinja_given_value(attribute) && !st_jinja_path(machine, item, attribute, out)) return false;
    return case_sensitive || fold_case(machine, out);
}

/* Makes a generator: `fill` runs at its first iteration, and reports wrong arguments then. */
static bool generate(jinja_machine *machine, const jinja_call *call,
                     bool (*fill)(jinja_machine *, const jinja_call *, jinja_list *), jinja_value *out)
{
    jinja_list *list = st_jinja_list_new(machine, 0);
    jinja_call *kept = st_jinja_alloc(machine, 1, sizeof *kept);
    jinja_value *items = st_jinja_alloc(machine, call->rest.count, sizeof *items);
    if (!list || !kept || !items) return false;
    for (size_t i = 0; i < call->rest.count; i++) items[i] = call->rest.items[i];
    *kept = *call;
    kept->rest.items = items;
    list->fill = fill;
    list->call = kept;
    *out = list_value(JINJA_GENERATOR, list);
    return true;
}

#define LAZY_FILTER(name)                                                                              \
    static bool filter_##name(jinja_machine *machine, const jinja_call *call, jinja_value *out)        \
    {                                                                                                  \
        return generate(machine, call, fill_##name, out);                                              \
    }

/* ---- whole sequences ---- */

static bool filter_list(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_list *list;
    if (!st_jinja_collect(machine, call->self, &list)) return false;
    *out = list_value(JINJA_LIST, list);
    return true;
}

static bool filter_first(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_iterator iterator;
    jinja_list *spent = call->self.kind == JINJA_GENERATOR ? call->self.list : NULL;
    size_t position = spent ? spent->position : 0;
    if (!st_jinja_iterate(machine, call->self, &iterator)) return false;
    if (spent && position < spent->count) spent->position = position + 1; /* consumes one item */
    if (iterator.left == 0) return st_jinja_undefined_hint(machine, "no first item, the sequence was empty", out);
    return st_jinja_next(machine, &iterator, out);
}

static bool filter_last(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_list *list;
    if (call->self.kind == JINJA_GENERATOR) return st_jinja_fail(machine, "'generator' object is not reversible");
    if (!st_jinja_collect(machine, call->self, &list)) return false;
    if (list->count == 0) return st_jinja_undefined_hint(machine, "no last item, the sequence was empty", out);
    *out = list->items[list->count - 1];
    return true;
}

static bool reverse_string(jinja_machine *machine, const jinja_string *string, jinja_value *out)
{
    jinja_value bounds[3] = {{.kind = JINJA_NONE}, {.kind = JINJA_NONE}, st_jinja_integer(-1)};
    return st_jinja_slice(machine, st_jinja_text(string), bounds, out);
}

static bool filter_reverse(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_list *list;
    if (call->self.kind == JINJA_STRING) return reverse_string(machine, call->self.string, out);
    if (!st_jinja_collect(machine, call->self, &list)) return false;
    st_jinja_list_reverse(list);
    bool is_list = call->self.kind == JINJA_GENERATOR; /* Python cannot reverse a generator: Jinja makes a list of it */
    if (!is_list) list->type_name = "list_reverseiterator";
    *out = list_value(is_list ? JINJA_LIST : JINJA_GENERATOR, list);
    return true;
}

static bool filter_join(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_builder builder = {.machine = machine};
    jinja_iterator iterator;
    jinja_value item;
    const jinja_string *separator = NULL;
    if (st_jinja_given(call->slots[0]) && !st_jinja_to_string(machine, call->slots[0], &separator)) return false;
    if (!st_jinja_iterate(machine, call->self, &iterator)) return false;
    for (bool first = true; st_jinja_next(machine, &iterator, &item); first = false) {
        if (!first && separator && !st_jinja_add_string(&builder, separator)) return false;
        if (!key_of(machine, item, call->slots[1], true, &item) || !st_jinja_add_value(&builder, item)) return false;
    }
    return st_jinja_builder_finish(&builder, out);
}

static bool fill_items(jinja_machine *machine, const jinja_call *call, jinja_list *list)
{
    if (call->self.kind == JINJA_UNDEFINED) return true;
    if (call->self.kind != JINJA_DICT) return st_jinja_fail(machine, "can only get item pairs from a mapping");
    const jinja_dict *dict = call->self.dict;
    for (size_t i = 0; i < dict->count; i++) {
        jinja_value pair;
        if (!st_jinja_charge(machine, 1) ||
            !st_jinja_pair(machine, dict->entries[i].key, dict->entries[i].value, &pair) ||
            !st_jinja_list_push(machine, list, pair)) {
            return false;
        }
    }
    return true;
}

LAZY_FILTER(items)

/* ---- order ---- */

static bool sort_by(jinja_machine *machine, jinja_list *list, jinja_value attribute, bool case_sensitive, bool reverse)
{
    jinja_value *keys = st_jinja_alloc(machine, list->count, sizeof *keys);
    if (!keys) return false;
    for (size_t i = 0; i < list->count; i++) {
        if (!key_of(machine, list->items[i], attribute, case_sensitive, &keys[i])) return false;
    }
    return st_jinja_sort(machine, list->items, keys, list->count, reverse);
}

/* "a,b" sorts by a, then by b: stable sorts from the last to the first. */
static bool filter_sort(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_list *list;
    bool reverse = st_jinja_truth(call->slots[0]), case_sensitive = st_jinja_truth(call->slots[1]);
    jinja_value attribute = call->slots[2];
    if (!st_jinja_collect(machine, call->self, &list)) return false;
    *out = list_value(JINJA_LIST, list);
    if (attribute.kind != JINJA_STRING) return sort_by(machine, list, attribute, case_sensitive, reverse);
    const jinja_string *text = attribute.string;
    for (size_t end = text->length;;) {
        size_t from = end;
        while (from > 0 && text->bytes[from - 1] != ',') from--;
        jinja_value part;
        if (!st_jinja_string_slice(machine, text, from, end, &part)) return false;
        if (!sort_by(machine, list, part, case_sensitive, reverse)) return false;
        if (from == 0) return true;
        end = from - 1;
    }
}

static bool filter_dictsort(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    bool case_sensitive = st_jinja_truth(call->slots[0]), reverse = st_jinja_truth(call->slots[2]);
    const jinja_string *by = NULL;
    jinja_list *pairs = st_jinja_list_new(machine, 0);
    if (!pairs) return false;
    if (call->self.kind == JINJA_UNDEFINED) return st_jinja_fail_undefined(machine, call->self.undefined);
    if (call->self.kind != JINJA_DICT)
        return st_jinja_fail(machine, "'%s object' has no attribute 'items'", st_jinja_type_name(call->self));
    if (st_jinja_given(call->slots[1]) && !st_jinja_want_string(machine, call->slots[1], "dictsort", &by)) return false;
    bool by_value = by && st_str_is(st_jinja_view(by), "value");
    if (by && !by_value && !st_str_is(st_jinja_view(by), "key"))
        return st_jinja_fail(machine, "dictsort: by must be \"key\" or \"value\"");
    if (!fill_items(machine, call, pairs)) return false;
    *out = list_value(JINJA_LIST, pairs);
    return sort_by(machine, pairs, st_jinja_integer(by_value), case_sensitive, reverse);
}

static bool filter_extreme(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    int wanted = call->mode; /* how the result compares with the others: -1 or 1 */
    jinja_iterator iterator;
    jinja_value item, key, best_key = {0};
    bool case_sensitive = st_jinja_truth(call->slots[0]), any = false;
    if (!st_jinja_iterate(machine, call->self, &iterator)) return false;
    while (st_jinja_next(machine, &iterator, &item)) {
        int order = wanted;
        if (!key_of(machine, item, call->slots[1], case_sensitive, &key)) return false;
        if (any && !st_jinja_compare(machine, key, best_key, wanted < 0 ? "<" : ">", &order)) return false;
        if (order != wanted) continue;
        *out = item;
        best_key = key;
        any = true;
    }
    if (machine->status != STRATA_OK) return false;
    return any || st_jinja_undefined_hint(machine, "no aggregated item, the sequence was empty", out);
}

static bool filter_sum(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_iterator iterator;
    jinja_value item;
    *out = st_jinja_given(call->slots[1]) ? call->slots[1] : st_jinja_integer(0);
    if (!st_jinja_iterate(machine, call->self, &iterator)) return false;
    while (st_jinja_next(machine, &iterator, &item)) {
        if (!key_of(machine, item, call->slots[0], true, &item)) return false;
        if (!st_jinja_binary(machine, '+', *out, item, out)) return false;
    }
    return machine->status == STRATA_OK;
}

static bool fill_unique(jinja_machine *machine, const jinja_call *call, jinja_list *list)
{
    jinja_iterator iterator;
    jinja_value item, key, *found;
    jinja_dict *seen = st_jinja_dict_new(machine, 0);
    if (!seen || !st_jinja_iterate(machine, call->self, &iterator)) return false;
    while (st_jinja_next(machine, &iterator, &item)) {
        if (!key_of(machine, item, call->slots[1], st_jinja_truth(call->slots[0]), &key)) return false;
        if (!st_jinja_dict_find(machine, seen, key, &found)) return false;
        if (found) continue;
        if (!st_jinja_dict_set(machine, seen, key, st_jinja_none()) || !st_jinja_list_push(machine, list, item))
            return false;
    }
    return machine->status == STRATA_OK;
}

LAZY_FILTER(unique)

/* ---- groups ---- */

static bool push_list(jinja_machine *machine, jinja_list *lists, jinja_list **list)
{
    *list = st_jinja_list_new(machine, 0);
    return *list && st_jinja_list_push(machine, lists, list_value(JINJA_LIST, *list));
}

static bool fill_batch(jinja_machine *machine, const jinja_call *call, jinja_list *batches)
{
    jinja_iterator iterator;
    jinja_value item;
    int64_t size;
    jinja_list *batch = NULL;
    if (!st_jinja_integer_of(machine, call->slots[0], "batch", &size)) return false;
    if (!st_jinja_iterate(machine, call->self, &iterator)) return false;
    while (st_jinja_next(machine, &iterator, &item)) {
        if (!batch && !push_list(machine, batches, &batch)) return false;
        if ((int64_t)batch->count == size && !push_list(machine, batches, &batch)) return false;
        if (!st_jinja_list_push(machine, batch, item)) return false;
    }
    while (batch && st_jinja_given_value(call->slots[1]) && (int64_t)batch->count < size) {
        if (!st_jinja_charge(machine, 1) || !st_jinja_list_push(machine, batch, call->slots[1])) return false;
    }
    return machine->status == STRATA_OK;
}

LAZY_FILTER(batch)

static bool fill_slice(jinja_machine *machine, const jinja_call *call, jinja_list *columns)
{
    int64_t slices;
    jinja_list *items, *column;
    if (!st_jinja_integer_of(machine, call->slots[0], "slice", &slices)) return false;
    if (!st_jinja_collect(machine, call->self, &items)) return false;
    if (slices == 0) return st_jinja_fail(machine, "slice: integer division or modulo by zero");
    size_t each = slices > 0 ? items->count / (size_t)slices : 0,
           extra = slices > 0 ? items->count % (size_t)slices : 0, next = 0;
    for (int64_t i = 0; i < slices; i++) {
        size_t count = each + ((uint64_t)i < extra);
        if (!st_jinja_charge(machine, 1) || !push_list(machine, columns, &column)) return false;
        for (size_t k = 0; k < count; k++) {
            if (!st_jinja_list_push(machine, column, items->items[next++])) return false;
        }
        bool fill = st_jinja_given_value(call->slots[1]) && (uint64_t)i >= extra;
        if (fill && !st_jinja_list_push(machine, column, call->slots[1])) return false;
    }
    return true;
}

LAZY_FILTER(slice)

static bool group_key(jinja_machine *machine, const jinja_call *call, jinja_value item, bool folded, jinja_value *out)
{
    if (!st_jinja_path(machine, item, call->slots[0], out)) return false;
    if (out->kind == JINJA_UNDEFINED && st_jinja_given_value(call->slots[1])) *out = call->slots[1];
    return !folded || fold_case(machine, out);
}

static bool filter_groupby(jinja_machine *machine, const jinja_call *call, jinja_value *out)
{
    jinja_list *items, *groups = st_jinja_list_new(machine, 0), *group = NULL;
    bool folded = !st_jinja_truth(call->slots[2]);
    if (!groups || !st_jinja_collect(machine, call->self, &items)) return false;
    jinja_value *keys = st_jinja_alloc(machine, items->count, sizeof *keys);
    if (!keys) return false;
    for (size_t i = 0; i < items->count; i++) {
        if (!group_key(machine, call, items->items[i], folded, &keys[i])) return false;
    }
    if (!st_jinja_sort(machine, items->items, keys, items->count, false)) return false;
    for (size_t i = 0; i < items->count; i++) {
        bool same = false;
        if (i && !st_jinja_equal(machine, keys[i - 1], keys[i], &same)) return false;
        if (!same) {
            jinja_value key, pair;
            group = st_jinja_list_new(machine, 0);
            if (!group || !group_key(machine, call, items->items[i], false, &key)) return false;
            if (!st_jinja_pair(machine, key, list_value(JINJA_LIST, group), &pair)) return false;
            pair.list->type_name = "_GroupTuple";
            if (!st_jinja_list_push(machine, groups, pair)) return false;
        }
        if (!st_jinja_list_push(machine, group, items->items[i])) return false;
    }
    *out = list_value(JINJA_LIST, groups);
    return true;
}

/* ---- map, select, reject ---- */

/* The filter or test that the argument at `index` names, and the arguments after it. */
static bool named_row(jinja_machine *machine, const jinja_arguments *given, size_t index, bool is_test,
                      const jinja_native **native, jinja_arguments *rest)
{
    const jinja_string *name;
    if (!st_jinja_want_string(machine, given->items[index], is_test ? "test" : "filter", &name)) return false;
    st_str text = st_jinja_view(name);
    *native = is_test ? st_jinja_find(&st_jinja_tests, text) : st_jinja_find_filter(text);
    text = st_str_head(text, 100);
    if (!*native) return st_jinja_fail(machine, "no %s named '%.*s'", is_test ? "test" : "filter", ST_STR_ARG(text));
    *rest = *given;
    rest->items += index + 1;
    rest->count -= index + 1;
    return true;
}

static bool map_item(jinja_machine *machine, const jinja_native *native, const jinja_arguments *rest,
                     const jinja_keyword *attribute, const jinja_keyword *fallback, jinja_value *item)
{
    if (native) return st_jinja_call_native(machine, native, *item, rest, item);
    if (!st_jinja_path(machine, *item, attribute->value, item)) return false;
    if (fallback && item->kind == JINJA_UNDEFINED) *item = fallback->value;
    return true;
}

static bool fill_map(jinja_machine *machine, const jinja_call *call, jinja_list *list)
{
    const jinja_native *native = NULL;
    jinja_arguments rest = {0};
    jinja_iterator iterator;
    jinja_value item;
    const jinja_keyword *attribute = st_jinja_find_keyword(&call->rest, ST_STR("attribute")),
                        *fallback = st_jinja_find_keyword(&call->rest, ST_STR("default"));
    if (!st_jinja_truth(call->self)) return true; /* no items, and Jinja does not check the arguments */
    if (call->rest.count == 0 && !attribute) return st_jinja_fail(machine, "map requires a filter argument");
    if (call->rest.count && !named_row(machine, &call->rest, 0, false, &native, &rest)) return false;
    if (!st_jinja_iterate(machine, call->self, &iterator)) return false;
    while (st_jinja_next(machine, &iterator, &item)) {
        if (!map_item(machine, native, &rest, attribute, fallback, &item)) return false;
        if (!st_jinja_list_push(machine, list, item)) return false;
    }
    return machine->status == STRATA_OK;
}

LAZY_FILTER(map)

enum { SELECT = 1, BY_ATTRIBUTE = 2 };

static bool fill_choice(jinja_machine *machine, const jinja_call *call, jinja_list *list)
{
    bool by_attribute = call->mode & BY_ATTRIBUTE, wanted = call->mode & SELECT;
    const jinja_arguments *given = &call->rest;
    const jinja_native *native = NULL;
    jinja_arguments rest = {0};
    jinja_iterator iterator;
    jinja_value item;
    size_t index = by_attribute ? 1 : 0;
    if (!st_jinja_truth(call->self)) return true;
    if (given->count < index) return st_jinja_fail(machine, "missing parameter for attribute name");
    if (given->count > index && !named_row(machine, given, index, true, &native, &rest)) return false;
    if (!st_jinja_iterate(machine, call->self, &iterator)) return false;
    while (st_jinja_next(machine, &iterator, &item)) {
        jinja_value subject = item;
        if (by_attribute && !st_jinja_path(machine, item, given->items[0], &subject)) return false;
        if (native && !st_jinja_call_native(machine, native, subject, &rest, &subject)) return false;
        if (st_jinja_truth(subject) == wanted && !st_jinja_list_push(machine, list, item)) return false;
    }
    return machine->status == STRATA_OK;
}

LAZY_FILTER(choice)

static const jinja_native sequence_rows[] = {
    {"list", "", 0, filter_list, 0},
    {"first", "", 0, filter_first, 0},
    {"last", "", 0, filter_last, 0},
    {"reverse", "", 0, filter_reverse, 0},
    {"join", "d attribute", 0, filter_join, 0},
    {"items", "", 0, filter_items, 0},
    {"sort", "reverse case_sensitive attribute", 0, filter_sort, 0},
    {"dictsort", "case_sensitive by reverse", 0, filter_dictsort, 0},
    {"min", "case_sensitive attribute", 0, filter_extreme, -1},
    {"max", "case_sensitive attribute", 0, filter_extreme, 1},
    {"sum", "attribute start", 0, filter_sum, 0},
    {"unique", "case_sensitive attribute", 0, filter_unique, 0},
    {"batch", "linecount fill_with", 1, filter_batch, 0},
    {"slice", "slices fill_with", 1, filter_slice, 0},
    {"groupby", "attribute default case_sensitive", 1, filter_groupby, 0},
    {"map", "* **", 0, filter_map, 0},
    {"select", "* **", 0, filter_choice, SELECT},
    {"reject", "* **", 0, filter_choice, 0},
    {"selectattr", "* **", 0, filter_choice, SELECT | BY_ATTRIBUTE},
    {"rejectattr", "* **", 0, filter_choice, BY_ATTRIBUTE},
};
const jinja_native_table st_jinja_sequence_filters = {sequence_rows, sizeof sequence_rows / sizeof *sequence_rows};
