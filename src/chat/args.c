#include "chat/args.h"

#include "base/error.h"
#include "chat/text.h"

/* ---- JSON → values ---- */

typedef struct place {
    size_t depth;   /* 1: a member of the arguments */
    bool in_array;  /* its object is an element of an array that is a member of the arguments */
    st_str key;     /* empty in arrays */
} place;

/* Some templates build control tokens from roles; only a plain word is trusted with that. */
static bool is_plain_word(st_str text)
{
    for (size_t i = 0; i < text.length; i++) {
        char c = text.data[i];
        if ((c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_') return false;
    }
    return true;
}

static bool is_own(const place *at, st_str text)
{
    if (at->depth == 1) return st_str_is(at->key, "bos_token") || st_str_is(at->key, "eos_token");
    return at->in_array && at->depth == 3 && st_str_is(at->key, "role") && is_plain_word(text);
}

static bool convert(jinja_machine *machine, const json_t *json, const place *at, jinja_value *out);

static bool convert_array(jinja_machine *machine, const json_t *json, const place *at, jinja_value *out)
{
    size_t count = json_array_size(json);
    jinja_list *list = st_jinja_list_new(machine, count);
    if (!list) return false;
    place inner = {.depth = at->depth + 1, .in_array = at->depth == 1};
    for (size_t i = 0; i < count; i++, list->count++) {
        if (!convert(machine, json_array_get(json, i), &inner, &list->items[i])) return false;
    }
    *out = (jinja_value){.kind = JINJA_LIST, .list = list};
    return true;
}

/* jansson's iterators take a non-const pointer but do not write. */
static json_t *mutable_json(const json_t *json)
{
    union {
        const json_t *in;
        json_t *out;
    } pointer = {json};
    return pointer.out;
}

static bool convert_object(jinja_machine *machine, const json_t *json, const place *at, jinja_value *out)
{
    jinja_dict *dict = st_jinja_dict_new(machine, json_object_size(json));
    json_t *object = mutable_json(json);
    if (!dict) return false;
    for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i)) {
        st_str name = {json_object_iter_key(i), json_object_iter_key_len(i)};
        place inner = {.depth = at->depth + 1, .in_array = at->in_array && at->depth == 2, .key = name};
        jinja_value key, value;
        if (!st_jinja_string_new(machine, name, true, &key) ||
            !convert(machine, json_object_iter_value(i), &inner, &value) ||
            !st_jinja_dict_set(machine, dict, key, value)) {
            return false;
        }
    }
    *out = (jinja_value){.kind = JINJA_DICT, .dict = dict};
    return true;
}

static bool convert(jinja_machine *machine, const json_t *json, const place *at, jinja_value *out)
{
    if (at->depth > machine->limits.depth_max) {
        return st_jinja_fail_limit(machine, "levels of nesting", machine->limits.depth_max);
    }
    switch (json_typeof(json)) {
    case JSON_OBJECT: return convert_object(machine, json, at, out);
    case JSON_ARRAY: return convert_array(machine, json, at, out);
    case JSON_STRING: {
        st_str text = {json_string_value(json), json_string_length(json)};
        return st_jinja_string_new(machine, text, !is_own(at, text), out);
    }
    case JSON_INTEGER: *out = st_jinja_integer(json_integer_value(json)); return true;
    case JSON_REAL: *out = st_jinja_float(json_real_value(json)); return true;
    case JSON_TRUE: *out = st_jinja_bool(true); return true;
    case JSON_FALSE: *out = st_jinja_bool(false); return true;
    default: *out = st_jinja_none(); return true;
    }
}

bool st_jinja_set_args(jinja_machine *machine, const json_t *args)
{
    if (!args || !json_is_object(args)) {
        machine->status =
            st_error_set(machine->error, STRATA_INPUT, NULL, "template arguments: expected a JSON object");
        return false;
    }
    json_t *object = mutable_json(args);
    for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i)) {
        place at = {.depth = 1, .key = {json_object_iter_key(i), json_object_iter_key_len(i)}};
        const uint32_t *symbol = st_map_find(&machine->program->symbol_ids, at.key);
        if (!symbol) continue; /* the template does not use it */
        if (!convert(machine, json_object_iter_value(i), &at, &machine->root[*symbol])) return false;
    }
    return true;
}
