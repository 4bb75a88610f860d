#include "chat/value.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/check.h"
#include "base/error.h"
#include "base/map.h"
#include "chat/text.h"

enum { DICT_INDEX_FROM = 8, LEVELS_PER_DEPTH = 16, BYTES_PER_STEP = 256 };

/* ---- failures and limits ---- */

bool st_jinja_fail(jinja_machine *machine, const char *format, ...)
{
    if (machine->status != STRATA_OK) return false;
    char message[sizeof machine->error->message];
    va_list args;
    va_start(args, format);
    if (vsnprintf(message, sizeof message, format, args) < 0) message[0] = '\0';
    va_end(args);
    machine->status = st_error_set(machine->error, STRATA_TEMPLATE, NULL, "chat template: line %u: %s",
                                   (unsigned)machine->line, message);
    return false;
}

bool st_jinja_fail_limit(jinja_machine *machine, const char *limit, size_t value)
{
    if (machine->status != STRATA_OK) return false;
    machine->status = st_error_set(machine->error, STRATA_LIMIT, "shorten the conversation or use a simpler template",
                                   "chat template: line %u: more than the limit of %zu %s", (unsigned)machine->line,
                                   value, limit);
    return false;
}

void *st_jinja_alloc(jinja_machine *machine, size_t count, size_t size)
{
    size_t bytes, total;
    if (machine->status != STRATA_OK) return NULL;
    if (!st_mul_size(count, size, &bytes) || !st_add_size(machine->arena.used_bytes, bytes, &total) ||
        total > machine->limits.memory_bytes_max) {
        st_jinja_fail_limit(machine, "bytes of memory", machine->limits.memory_bytes_max);
        return NULL;
    }
    void *pointer = st_arena_alloc(&machine->arena, count, size);
    if (!pointer) machine->status = st_error_memory(machine->error, bytes, "chat template");
    return pointer;
}

void *st_jinja_grown(jinja_machine *machine, void *items, size_t count, size_t size, size_t *capacity)
{
    if (count < *capacity) return items;
    size_t grown = *capacity ? *capacity * 2 : 4;
    void *copy = st_jinja_alloc(machine, grown, size);
    if (!copy) return NULL;
    if (count) memcpy(copy, items, count * size);
    *capacity = grown;
    return copy;
}

bool st_jinja_charge(jinja_machine *machine, size_t steps)
{
    if (machine->status != STRATA_OK) return false;
    if (steps > machine->limits.steps_max - machine->steps) {
        return st_jinja_fail_limit(machine, "steps", machine->limits.steps_max);
    }
    machine->steps += steps;
    return true;
}

bool st_jinja_charge_bytes(jinja_machine *machine, size_t bytes)
{
    return st_jinja_charge(machine, bytes / BYTES_PER_STEP);
}

bool st_jinja_charge_search(jinja_machine *machine, size_t bytes, size_t part)
{
    size_t product;
    if (!st_mul_size(bytes, part, &product)) product = SIZE_MAX;
    return st_jinja_charge_bytes(machine, product);
}

bool st_jinja_enter(jinja_machine *machine)
{
    if (machine->levels / LEVELS_PER_DEPTH >= machine->limits.depth_max) {
        return st_jinja_fail_limit(machine, "levels of nesting", machine->limits.depth_max);
    }
    machine->levels++;
    return st_jinja_charge(machine, 1) || (machine->levels--, false);
}

void st_jinja_leave(jinja_machine *machine)
{
    machine->levels--;
}

/* ---- making values ---- */

static bool undefined_new(jinja_machine *machine, jinja_undefined content, jinja_value *out)
{
    jinja_undefined *undefined = st_jinja_alloc(machine, 1, sizeof *undefined);
    if (!undefined) return false;
    *undefined = content;
    *out = (jinja_value){.kind = JINJA_UNDEFINED, .undefined = undefined};
    return true;
}

bool st_jinja_undefined_name(jinja_machine *machine, st_str name, jinja_value *out)
{
    jinja_value key;
    if (!st_jinja_string_new(machine, name, false, &key)) return false;
    return undefined_new(machine, (jinja_undefined){.owner = JINJA_MISSING, .key = key}, out);
}

bool st_jinja_undefined_member(jinja_machine *machine, jinja_kind owner, jinja_value key, bool unsafe, jinja_value *out)
{
    return undefined_new(machine, (jinja_undefined){.owner = owner, .key = key, .unsafe = unsafe}, out);
}

bool st_jinja_undefined_hint(jinja_machine *machine, const char *hint, jinja_value *out)
{
    return undefined_new(machine, (jinja_undefined){.hint = hint}, out);
}

bool st_jinja_fail_undefined(jinja_machine *machine, const jinja_undefined *undefined)
{
    if (undefined->hint) return st_jinja_fail(machine, "%s", undefined->hint);
    const char *owner = st_jinja_type_name((jinja_value){.kind = undefined->owner});
    if (undefined->key.kind != JINJA_STRING) return st_jinja_fail(machine, "'%s object' has no such element", owner);
    st_str name = st_str_head(st_jinja_view(undefined->key.string), 200);
    if (undefined->unsafe) {
        return st_jinja_fail(machine,
                             "access to attribute '%.*s' of '%s' object is unsafe: templates may not change values",
                             ST_STR_ARG(name), owner);
    }
    if (undefined->owner == JINJA_MISSING) return st_jinja_fail(machine, "'%.*s' is undefined", ST_STR_ARG(name));
    return st_jinja_fail(machine, "'%s object' has no attribute '%.*s'", owner, ST_STR_ARG(name));
}

jinja_list *st_jinja_list_new(jinja_machine *machine, size_t capacity)
{
    jinja_list *list = st_jinja_alloc(machine, 1, sizeof *list);
    if (!list) return NULL;
    if (capacity) {
        list->items = st_jinja_alloc(machine, capacity, sizeof *list->items);
        if (!list->items) return NULL;
    }
    list->capacity = capacity;
    return list;
}

bool st_jinja_list_push(jinja_machine *machine, jinja_list *list, jinja_value value)
{
    jinja_value *items = st_jinja_grown(machine, list->items, list->count, sizeof *items, &list->capacity);
    if (!items) return false;
    list->items = items;
    list->items[list->count++] = value;
    return true;
}

void st_jinja_list_reverse(jinja_list *list)
{
    for (size_t i = 0; i < list->count / 2; i++) {
        jinja_value item = list->items[i];
        list->items[i] = list->items[list->count - 1 - i];
        list->items[list->count - 1 - i] = item;
    }
}

bool st_jinja_pair(jinja_machine *machine, jinja_value first, jinja_value second, jinja_value *out)
{
    jinja_list *list = st_jinja_list_new(machine, 2);
    if (!list) return false;
    list->items[0] = first;
    list->items[1] = second;
    list->count = 2;
    *out = (jinja_value){.kind = JINJA_TUPLE, .list = list};
    return true;
}

/* ---- dicts ---- */

/* Equal numbers have equal hashes, whatever their kind. */
static uint64_t hash_number(jinja_value value)
{
    double real = st_jinja_real_of(value);
    if (value.kind != JINJA_FLOAT || (real == floor(real) && fabs(real) < 9e15)) {
        int64_t whole = value.kind == JINJA_FLOAT ? (int64_t)real : st_jinja_whole(value);
        return st_hash_bytes(&whole, sizeof whole);
    }
    return st_hash_bytes(&real, sizeof real);
}

static bool hash_value(jinja_machine *machine, jinja_value value, uint64_t *out)
{
    if (value.kind == JINJA_STRING) {
        *out = st_hash_bytes(value.string->bytes, value.string->length);
        return st_jinja_charge_bytes(machine, value.string->length);
    }
    if (st_jinja_is_number(value)) {
        *out = hash_number(value);
        return true;
    }
    if (value.kind == JINJA_LIST || value.kind == JINJA_DICT || value.kind == JINJA_VIEW) {
        return st_jinja_fail(machine, "unhashable type: '%s'", st_jinja_type_name(value));
    }
    if (value.kind != JINJA_TUPLE) {
        *out = (uint64_t)value.kind; /* rare keys: equality tells them apart */
        return true;
    }
    if (!st_jinja_enter(machine)) return false;
    uint64_t hash = 2;
    bool ok = true;
    for (size_t i = 0; ok && i < value.list->count; i++) {
        uint64_t part = 0;
        ok = hash_value(machine, value.list->items[i], &part);
        hash = hash * 0x9E3779B97F4A7C15u + part;
    }
    st_jinja_leave(machine);
    *out = hash;
    return ok;
}

jinja_dict *st_jinja_dict_new(jinja_machine *machine, size_t capacity)
{
    jinja_dict *dict = st_jinja_alloc(machine, 1, sizeof *dict);
    if (!dict) return NULL;
    if (capacity) {
        dict->entries = st_jinja_alloc(machine, capacity, sizeof *dict->entries);
        if (!dict->entries) return NULL;
    }
    dict->capacity = capacity;
    return dict;
}

static void index_place(jinja_dict *dict, size_t entry)
{
    size_t mask = dict->index_capacity - 1, place = (size_t)dict->entries[entry].hash & mask;
    while (dict->index[place]) place = (place + 1) & mask;
    dict->index[place] = (uint32_t)entry + 1;
}

static bool dict_grow(jinja_machine *machine, jinja_dict *dict)
{
    jinja_entry *entries = st_jinja_grown(machine, dict->entries, dict->count, sizeof *entries, &dict->capacity);
    if (!entries) return false;
    dict->entries = entries;
    if (dict->count < DICT_INDEX_FROM || (dict->count + 1) * 2 <= dict->index_capacity) return true;
    size_t capacity = 32;
    while (capacity < (dict->count + 1) * 4) capacity *= 2;
    dict->index = st_jinja_alloc(machine, capacity, sizeof *dict->index);
    if (!dict->index) return false;
    dict->index_capacity = capacity;
    for (size_t i = 0; i < dict->count; i++) index_place(dict, i);
    return true;
}

static bool keys_equal(jinja_machine *machine, const jinja_entry *entry, uint64_t hash, jinja_value key, bool *equal)
{
    *equal = false;
    return entry->hash != hash || st_jinja_equal(machine, entry->key, key, equal);
}

static bool dict_locate(jinja_machine *machine, const jinja_dict *dict, jinja_value key, uint64_t hash,
                        jinja_entry **out)
{
    bool equal = false;
    *out = NULL;
    if (!dict->index) {
        for (size_t i = 0; i < dict->count; i++) {
            if (!keys_equal(machine, &dict->entries[i], hash, key, &equal)) return false;
            if (equal) *out = &dict->entries[i];
            if (equal) return true;
        }
        return true;
    }
    size_t mask = dict->index_capacity - 1;
    for (size_t place = (size_t)hash & mask; dict->index[place]; place = (place + 1) & mask) {
        jinja_entry *entry = &dict->entries[dict->index[place] - 1];
        if (!keys_equal(machine, entry, hash, key, &equal)) return false;
        if (equal) *out = entry;
        if (equal) return true;
    }
    return true;
}

bool st_jinja_dict_find(jinja_machine *machine, const jinja_dict *dict, jinja_value key, jinja_value **found)
{
    uint64_t hash = 0;
    jinja_entry *entry;
    *found = NULL;
    if (!hash_value(machine, key, &hash) || !dict_locate(machine, dict, key, hash, &entry)) return false;
    if (entry) *found = &entry->value;
    return true;
}

bool st_jinja_dict_set(jinja_machine *machine, jinja_dict *dict, jinja_value key, jinja_value value)
{
    uint64_t hash = 0;
    jinja_entry *entry;
    if (!hash_value(machine, key, &hash) || !dict_locate(machine, dict, key, hash, &entry)) return false;
    if (entry) {
        entry->value = value;
        return true;
    }
    if (!dict_grow(machine, dict)) return false;
    dict->entries[dict->count] = (jinja_entry){.key = key, .value = value, .hash = hash};
    dict->count++;
    if (dict->index) index_place(dict, dict->count - 1);
    return true;
}

static bool entry_is(const jinja_entry *entry, st_str key)
{
    return entry->key.kind == JINJA_STRING && st_str_equal(st_jinja_view(entry->key.string), key);
}

jinja_value *st_jinja_dict_get(const jinja_dict *dict, st_str key)
{
    if (!dict->index) {
        for (size_t i = 0; i < dict->count; i++) {
            if (entry_is(&dict->entries[i], key)) return &dict->entries[i].value;
        }
        return NULL;
    }
    size_t mask = dict->index_capacity - 1;
    for (size_t place = (size_t)st_hash_bytes(key.data, key.length) & mask; dict->index[place];
         place = (place + 1) & mask) {
        jinja_entry *entry = &dict->entries[dict->index[place] - 1];
        if (entry_is(entry, key)) return &entry->value;
    }
    return NULL;
}

/* ---- reading values ---- */

const char *st_jinja_type_name(jinja_value value)
{
    static const char *const names[JINJA_KIND_COUNT] = {
        [JINJA_MISSING] = "missing",     [JINJA_UNDEFINED] = "Undefined", [JINJA_NONE] = "NoneType",
        [JINJA_BOOL] = "bool",           [JINJA_INTEGER] = "int",         [JINJA_FLOAT] = "float",
        [JINJA_STRING] = "str",          [JINJA_LIST] = "list",           [JINJA_TUPLE] = "tuple",
        [JINJA_GENERATOR] = "generator", [JINJA_VIEW] = "dict_items",     [JINJA_RANGE] = "range",
        [JINJA_DICT] = "dict",           [JINJA_NAMESPACE] = "Namespace", [JINJA_LOOP] = "LoopContext",
        [JINJA_MACRO] = "Macro",         [JINJA_NATIVE] = "function",
    };
    if (st_jinja_is_list(value) && value.list && value.list->type_name) return value.list->type_name;
    return names[value.kind];
}

bool st_jinja_truth(jinja_value value)
{
    switch (value.kind) {
    case JINJA_MISSING:
    case JINJA_UNDEFINED:
    case JINJA_NONE: return false;
    case JINJA_BOOL: return value.boolean;
    case JINJA_INTEGER: return value.integer != 0;
    case JINJA_FLOAT: return value.real < 0 || value.real > 0 || isnan(value.real);
    case JINJA_STRING: return value.string->length != 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_VIEW: return value.list->count != 0;
    case JINJA_RANGE: return value.range->count != 0;
    case JINJA_DICT: return value.dict->count != 0;
    default: return true;
    }
}

double st_jinja_real_of(jinja_value number)
{
    return number.kind == JINJA_FLOAT ? number.real : (double)st_jinja_whole(number);
}

bool st_jinja_integer_of(jinja_machine *machine, jinja_value value, const char *what, int64_t *out)
{
    if (value.kind == JINJA_UNDEFINED) return st_jinja_fail_undefined(machine, value.undefined);
    if (!st_jinja_is_integer(value))
        return st_jinja_fail(machine, "%s: expected an integer, found '%s'", what, st_jinja_type_name(value));
    *out = st_jinja_whole(value);
    return true;
}

static int compare_numbers(jinja_value a, jinja_value b)
{
    if (a.kind != JINJA_FLOAT && b.kind != JINJA_FLOAT) {
        int64_t x = st_jinja_whole(a), y = st_jinja_whole(b);
        return x < y ? -1 : x > y;
    }
    double x = st_jinja_real_of(a), y = st_jinja_real_of(b);
    if (isnan(x) || isnan(y)) return 2; /* unordered: neither less, equal nor greater */
    return x < y ? -1 : x > y;
}

static bool equal_lists(jinja_machine *machine, const jinja_list *a, const jinja_list *b, bool *out)
{
    *out = a->count == b->count;
    for (size_t i = 0; *out && i < a->count; i++) {
        if (!st_jinja_equal(machine, a->items[i], b->items[i], out)) return false;
    }
    return true;
}

static bool equal_dicts(jinja_machine *machine, const jinja_dict *a, const jinja_dict *b, bool *out)
{
    *out = a->count == b->count;
    for (size_t i = 0; *out && i < a->count; i++) {
        jinja_value *other;
        if (!st_jinja_dict_find(machine, b, a->entries[i].key, &other)) return false;
        *out = other != NULL;
        if (other && !st_jinja_equal(machine, a->entries[i].value, *other, out)) return false;
    }
    return true;
}

static bool equal_same_kind(jinja_machine *machine, jinja_value a, jinja_value b, bool *out)
{
    switch (a.kind) {
    case JINJA_MISSING:
    case JINJA_UNDEFINED:
    case JINJA_NONE: *out = true; return true;
    case JINJA_STRING:
        *out = st_str_equal(st_jinja_view(a.string), st_jinja_view(b.string));
        return !*out || st_jinja_charge_bytes(machine, a.string->length);
    case JINJA_LIST:
    case JINJA_TUPLE: return equal_lists(machine, a.list, b.list, out);
    case JINJA_DICT: return equal_dicts(machine, a.dict, b.dict, out);
    case JINJA_RANGE:
        *out = a.range->count == b.range->count &&
               (a.range->count == 0 || (a.range->start == b.range->start &&
                                        (a.range->count == 1 || a.range->step == b.range->step)));
        return true;
    default: *out = a.dict == b.dict; return true; /* the same object */
    }
}

bool st_jinja_equal(jinja_machine *machine, jinja_value a, jinja_value b, bool *out)
{
    if (st_jinja_is_number(a) && st_jinja_is_number(b)) {
        *out = compare_numbers(a, b) == 0;
        return true;
    }
    *out = false;
    if (a.kind != b.kind) return true;
    if (!st_jinja_enter(machine)) return false;
    bool ok = equal_same_kind(machine, a, b, out);
    st_jinja_leave(machine);
    return ok;
}

static bool compare_lists(jinja_machine *machine, const jinja_list *a, const jinja_list *b, const char *operator,
                          int * out)
{
    for (size_t i = 0; i < a->count && i < b->count; i++) {
        bool equal;
        if (!st_jinja_equal(machine, a->items[i], b->items[i], &equal)) return false;
        if (!equal) return st_jinja_compare(machine, a->items[i], b->items[i], operator, out);
    }
    *out = a->count < b->count ? -1 : a->count > b->count;
    return true;
}

static int compare_strings(const jinja_string *a, const jinja_string *b)
{
    size_t shared = a->length < b->length ? a->length : b->length;
    int order = shared ? memcmp(a->bytes, b->bytes, shared) : 0;
    if (order) return order < 0 ? -1 : 1;
    return a->length < b->length ? -1 : a->length > b->length;
}

bool st_jinja_compare(jinja_machine *machine, jinja_value a, jinja_value b, const char *operator, int *out)
{
    if (st_jinja_is_number(a) && st_jinja_is_number(b)) {
        *out = compare_numbers(a, b);
        return true;
    }
    if (a.kind == JINJA_UNDEFINED) return st_jinja_fail_undefined(machine, a.undefined);
    if (b.kind == JINJA_UNDEFINED) return st_jinja_fail_undefined(machine, b.undefined);
    if (a.kind == JINJA_STRING && b.kind == JINJA_STRING) {
        *out = compare_strings(a.string, b.string);
        return st_jinja_charge_bytes(machine, a.string->length);
    }
    if (a.kind == b.kind && (a.kind == JINJA_LIST || a.kind == JINJA_TUPLE)) {
        if (!st_jinja_enter(machine)) return false;
        bool ok = compare_lists(machine, a.list, b.list, operator, out);
        st_jinja_leave(machine);
        return ok;
    }
    return st_jinja_fail(machine, "'%s' not supported between instances of '%s' and '%s'", operator,
                         st_jinja_type_name(a), st_jinja_type_name(b));
}

bool st_jinja_contains(jinja_machine *machine, jinja_value container, jinja_value item, bool *out)
{
    if (container.kind == JINJA_STRING) {
        if (item.kind != JINJA_STRING) {
            return st_jinja_fail(machine, "'in <string>' requires string as left operand, not %s",
                                 st_jinja_type_name(item));
        }
        *out = st_jinja_string_find(container.string, item.string, 0) != SIZE_MAX;
        return st_jinja_charge_bytes(machine, container.string->length);
    }
    if (container.kind == JINJA_DICT) {
        jinja_value *found;
        if (!st_jinja_dict_find(machine, container.dict, item, &found)) return false;
        *out = found != NULL;
        return true;
    }
    jinja_iterator iterator;
    if (!st_jinja_is_list(container) && container.kind != JINJA_RANGE && container.kind != JINJA_UNDEFINED) {
        return st_jinja_fail(machine, "argument of type '%s' is not iterable", st_jinja_type_name(container));
    }
    if (!st_jinja_iterate(machine, container, &iterator)) return false;
    *out = false;
    jinja_value candidate;
    while (!*out && st_jinja_next(machine, &iterator, &candidate)) {
        if (!st_jinja_equal(machine, candidate, item, out)) return false;
    }
    return machine->status == STRATA_OK;
}

bool st_jinja_length(jinja_machine *machine, jinja_value value, size_t *out)
{
    switch (value.kind) {
    case JINJA_UNDEFINED: *out = 0; return true;
    case JINJA_STRING:
        *out = st_jinja_string_count(value.string);
        return value.string->ascii || st_jinja_charge_bytes(machine, value.string->length);
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_VIEW: *out = value.list->count; return true;
    case JINJA_RANGE: *out = value.range->count; return true;
    case JINJA_DICT: *out = value.dict->count; return true;
    default: return st_jinja_fail(machine, "object of type '%s' has no len()", st_jinja_type_name(value));
    }
}

/* ---- iteration ---- */

/* A template may nest generators to any depth: the level limit bounds the C stack. */
static bool run_generator(jinja_machine *machine, jinja_list *list)
{
    if (!st_jinja_enter(machine)) return false;
    bool (*fill)(jinja_machine *, const struct jinja_call *, jinja_list *) = list->fill;
    list->fill = NULL;
    bool filled = fill(machine, list->call, list);
    st_jinja_leave(machine);
    return filled;
}

bool st_jinja_iterate(jinja_machine *machine, jinja_value value, jinja_iterator *out)
{
    *out = (jinja_iterator){.source = value};
    if (value.kind == JINJA_GENERATOR) {
        if (value.list->fill && !run_generator(machine, value.list)) return false;
        out->position = value.list->position;
        out->left = value.list->count - value.list->position;
        value.list->position = value.list->count;
        return true;
    }
    switch (value.kind) {
    case JINJA_UNDEFINED:
    case JINJA_STRING:
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_VIEW:
    case JINJA_RANGE:
    case JINJA_DICT: return st_jinja_length(machine, value, &out->left);
    default: return st_jinja_fail(machine, "'%s' object is not iterable", st_jinja_type_name(value));
    }
}

bool st_jinja_next(jinja_machine *machine, jinja_iterator *iterator, jinja_value *out)
{
    if (iterator->left == 0 || !st_jinja_charge(machine, 1)) return false;
    size_t position = iterator->position;
    jinja_value source = iterator->source;
    iterator->left--;
    if (source.kind == JINJA_STRING) {
        size_t length = st_jinja_string_step(source.string, position);
        iterator->position += length;
        jinja_string plain = *source.string;
        plain.safe = false; /* the characters of a safe string are not safe */
        const jinja_string *string = length < plain.length ? &plain : source.string;
        return st_jinja_string_slice(machine, string, position, position + length, out);
    }
    iterator->position++;
    if (source.kind == JINJA_DICT) *out = source.dict->entries[position].key;
    else if (source.kind == JINJA_RANGE)
        *out = st_jinja_integer(source.range->start + (int64_t)position * source.range->step);
    else *out = source.list->items[position];
    return true;
}

bool st_jinja_collect(jinja_machine *machine, jinja_value value, jinja_list **out)
{
    jinja_iterator iterator;
    if (!st_jinja_iterate(machine, value, &iterator)) return false;
    jinja_list *list = st_jinja_list_new(machine, iterator.left);
    if (!list) return false;
    jinja_value item;
    while (st_jinja_next(machine, &iterator, &item)) {
        if (!st_jinja_list_push(machine, list, item)) return false;
    }
    *out = list;
    return machine->status == STRATA_OK;
}
