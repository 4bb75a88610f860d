#include "chat/eval.h"

enum { ARGUMENTS_INLINE = 6 };

/* ---- natives ---- */

const jinja_native *st_jinja_find(const jinja_native_table *table, st_str name)
{
    for (size_t i = 0; i < table->count; i++) {
        if (st_str_is(name, table->rows[i].name)) return &table->rows[i];
    }
    return NULL;
}

const jinja_native *st_jinja_find_filter(st_str name)
{
    const jinja_native_table *const tables[] = {&st_jinja_text_filters, &st_jinja_value_filters,
                                                &st_jinja_sequence_filters};
    const jinja_native *found = NULL;
    for (size_t i = 0; !found && i < sizeof tables / sizeof *tables; i++) found = st_jinja_find(tables[i], name);
    return found;
}

/* The next name of a blank-separated list; empty at the end. */
static st_str next_parameter(const char **parameters)
{
    const char *start = *parameters;
    while (*start == ' ') start++;
    const char *end = start;
    while (*end && *end != ' ') end++;
    *parameters = end;
    return (st_str){start, (size_t)(end - start)};
}

typedef struct signature {
    st_str names[JINJA_SLOTS];
    size_t count;
    bool more, more_keywords;
} signature;

static void read_signature(const char *parameters, signature *out)
{
    *out = (signature){0};
    for (st_str name; (name = next_parameter(&parameters)).length;) {
        if (st_str_is(name, "*")) out->more = true;
        else if (st_str_is(name, "**")) out->more_keywords = true;
        else if (out->count < JINJA_SLOTS) out->names[out->count++] = name;
    }
}

static bool bind_keywords(jinja_machine *machine, const jinja_native *native, const signature *sig,
                          const jinja_arguments *arguments, jinja_call *call)
{
    jinja_keyword *rest = NULL;
    for (size_t i = 0; i < arguments->keyword_count; i++) {
        const jinja_keyword *keyword = &arguments->keywords[i];
        size_t slot = 0;
        while (slot < sig->count && !st_str_equal(sig->names[slot], keyword->name)) slot++;
        st_str name = st_str_head(keyword->name, 60);
        if (slot < sig->count && call->slots[slot].kind != JINJA_MISSING) {
            return st_jinja_fail(machine, "%s() got multiple values for argument '%.*s'", native->name,
                                 ST_STR_ARG(name));
        }
        if (slot < sig->count) {
            call->slots[slot] = keyword->value;
            continue;
        }
        if (!sig->more_keywords) {
            return st_jinja_fail(machine, "%s() got an unexpected keyword argument '%.*s'", native->name,
                                 ST_STR_ARG(name));
        }
        if (!rest) rest = st_jinja_alloc(machine, arguments->keyword_count, sizeof *rest);
        if (!rest) return false;
        rest[call->rest.keyword_count++] = *keyword;
    }
    call->rest.keywords = rest;
    return true;
}

bool st_jinja_call_native(jinja_machine *machine, const jinja_native *native, jinja_value self,
                          const jinja_arguments *arguments, jinja_value *out)
{
    jinja_call call = {.self = self, .mode = native->mode};
    signature sig;
    read_signature(native->parameters, &sig);
    if (arguments->count > sig.count && !sig.more) {
        return st_jinja_fail(machine, "%s() takes at most %zu arguments, found %zu", native->name, sig.count,
                             arguments->count);
    }
    for (size_t i = 0; i < arguments->count && i < sig.count; i++) call.slots[i] = arguments->items[i];
    if (arguments->count > sig.count) {
        call.rest.items = arguments->items + sig.count;
        call.rest.count = arguments->count - sig.count;
    }
    if (arguments->keyword_count && !bind_keywords(machine, native, &sig, arguments, &call)) return false;
    for (size_t i = 0; i < native->required; i++) {
        if (call.slots[i].kind != JINJA_MISSING) continue;
        return st_jinja_fail(machine, "%s() misses its argument '%.*s'", native->name, ST_STR_ARG(sig.names[i]));
    }
    return native->run(machine, &call, out);
}

/* ---- macros ---- */

bool st_jinja_macro_new(jinja_machine *machine, const jinja_macro_definition *definition, jinja_value *out)
{
    struct jinja_macro *macro = st_jinja_alloc(machine, 1, sizeof *macro);
    if (!macro) return false;
    macro->definition = definition;
    macro->scope = machine->scope;
    for (jinja_scope *scope = machine->scope; scope && !scope->captured; scope = scope->parent) scope->captured = true;
    *out = (jinja_value){.kind = JINJA_MACRO, .macro = macro};
    return true;
}

const jinja_keyword *st_jinja_find_keyword(const jinja_arguments *arguments, st_str name)
{
    for (size_t i = 0; i < arguments->keyword_count; i++) {
        if (st_str_equal(arguments->keywords[i].name, name)) return &arguments->keywords[i];
    }
    return NULL;
}

static bool bind_parameter(jinja_machine *machine, const jinja_parameter *parameter, size_t i,
                           const jinja_arguments *arguments)
{
    const jinja_keyword *keyword = st_jinja_find_keyword(arguments, parameter->name);
    jinja_value value;
    if (keyword && i < arguments->count) {
        return st_jinja_fail(machine, "macro got multiple values for argument '%.*s'", ST_STR_ARG(parameter->name));
    } else if (i < arguments->count) {
        value = arguments->items[i];
    } else if (keyword) {
        value = keyword->value;
    } else if (parameter->fallback) {
        if (!st_jinja_eval(machine, parameter->fallback, &value)) return false;
    } else if (!st_jinja_undefined_name(machine, parameter->name, &value)) {
        return false;
    }
    return st_jinja_scope_set(machine, parameter->symbol, value);
}

static bool bind_varargs(jinja_machine *machine, const jinja_macro_definition *definition,
                         const jinja_arguments *arguments)
{
    size_t extra = arguments->count > definition->parameter_count ? arguments->count - definition->parameter_count : 0;
    if (!definition->uses_varargs) {
        if (extra == 0) return true;
        return st_jinja_fail(machine, "macro '%.*s' takes not more than %zu argument(s)", ST_STR_ARG(definition->name),
                             definition->parameter_count);
    }
    jinja_list *list = st_jinja_list_new(machine, extra);
    if (!list) return false;
    for (size_t i = 0; i < extra; i++) list->items[list->count++] = arguments->items[definition->parameter_count + i];
    return st_jinja_scope_set(machine, JINJA_SYMBOL_VARARGS, (jinja_value){.kind = JINJA_TUPLE, .list = list});
}

static bool is_parameter(const jinja_macro_definition *definition, st_str name)
{
    for (size_t i = 0; i < definition->parameter_count; i++) {
        if (st_str_equal(definition->parameters[i].name, name)) return true;
    }
    return definition->uses_caller && st_str_is(name, "caller");
}

static bool bind_kwargs(jinja_machine *machine, const jinja_macro_definition *definition,
                        const jinja_arguments *arguments)
{
    jinja_dict *dict = definition->uses_kwargs ? st_jinja_dict_new(machine, 0) : NULL;
    if (definition->uses_kwargs && !dict) return false;
    for (size_t i = 0; i < arguments->keyword_count; i++) {
        const jinja_keyword *keyword = &arguments->keywords[i];
        if (is_parameter(definition, keyword->name)) continue;
        jinja_value name;
        st_str shown = st_str_head(keyword->name, 60);
        if (!dict) return st_jinja_fail(machine, "macro takes no keyword argument '%.*s'", ST_STR_ARG(shown));
        if (!st_jinja_string_new(machine, keyword->name, false, &name)) return false;
        if (!st_jinja_dict_set(machine, dict, name, keyword->value)) return false;
    }
    return !dict || st_jinja_scope_set(machine, JINJA_SYMBOL_KWARGS, (jinja_value){.kind = JINJA_DICT, .dict = dict});
}

static bool bind_caller(jinja_machine *machine, const jinja_macro_definition *definition,
                        const jinja_arguments *arguments)
{
    if (!definition->uses_caller) return true;
    const jinja_keyword *keyword = st_jinja_find_keyword(arguments, ST_STR("caller"));
    jinja_value value;
    if (keyword) value = keyword->value;
    else if (!st_jinja_undefined_hint(machine, "no caller defined", &value)) return false;
    return st_jinja_scope_set(machine, JINJA_SYMBOL_CALLER, value);
}

static bool run_macro(jinja_machine *machine, const jinja_macro_definition *definition,
                      const jinja_arguments *arguments, jinja_value *out)
{
    for (size_t i = 0; i < definition->parameter_count; i++) {
        if (!bind_parameter(machine, &definition->parameters[i], i, arguments)) return false;
    }
    return bind_caller(machine, definition, arguments) && bind_varargs(machine, definition, arguments) &&
           bind_kwargs(machine, definition, arguments) && st_jinja_capture(machine, &definition->body, out);
}

static bool call_macro(jinja_machine *machine, const jinja_macro *macro, const jinja_arguments *arguments,
                       jinja_value *out)
{
    if (machine->calls >= machine->limits.depth_max) {
        return st_jinja_fail_limit(machine, "levels of nesting", machine->limits.depth_max);
    }
    jinja_scope *outer = machine->scope;
    machine->calls++;
    machine->scope = st_jinja_scope_new(machine, macro->scope);
    bool ok = machine->scope && run_macro(machine, macro->definition, arguments, out);
    machine->scope = outer;
    machine->calls--;
    return ok;
}

/* Calls a macro, a native or a recursive loop. */
static bool call_value(jinja_machine *machine, jinja_value callee, const jinja_arguments *arguments, jinja_value *out)
{
    switch (callee.kind) {
    case JINJA_NATIVE: return st_jinja_call_native(machine, callee.native->native, callee.native->self, arguments, out);
    case JINJA_MACRO: return call_macro(machine, callee.macro, arguments, out);
    case JINJA_LOOP:
        if (arguments->count != 1) return st_jinja_fail(machine, "loop() takes one argument");
        return st_jinja_loop_call(machine, callee.loop, arguments->items[0], out);
    case JINJA_UNDEFINED: return st_jinja_fail_undefined(machine, callee.undefined);
    default: return st_jinja_fail(machine, "'%s' object is not callable", st_jinja_type_name(callee));
    }
}

/* ---- call nodes ---- */

static bool add_star(jinja_machine *machine, const jinja_node *star, jinja_list *items)
{
    jinja_value value, item;
    jinja_iterator iterator;
    if (!st_jinja_eval(machine, star, &value) || !st_jinja_iterate(machine, value, &iterator)) return false;
    while (st_jinja_next(machine, &iterator, &item)) {
        if (!st_jinja_list_push(machine, items, item)) return false;
    }
    return machine->status == STRATA_OK;
}

static bool add_double_star(jinja_machine *machine, const jinja_node *node, jinja_keyword **keywords, size_t *count)
{
    jinja_value value;
    if (!st_jinja_eval(machine, node, &value)) return false;
    if (value.kind != JINJA_DICT) return st_jinja_fail(machine, "the argument after ** must be a mapping");
    jinja_keyword *all = st_jinja_alloc(machine, *count + value.dict->count, sizeof *all);
    if (!all) return false;
    if (*count) memcpy(all, *keywords, *count * sizeof *all);
    for (size_t i = 0; i < value.dict->count; i++) {
        const jinja_entry *entry = &value.dict->entries[i];
        if (entry->key.kind != JINJA_STRING) return st_jinja_fail(machine, "keywords must be strings");
        all[(*count)++] = (jinja_keyword){st_jinja_view(entry->key.string), entry->value};
    }
    *keywords = all;
    return true;
}

/* Evaluates the arguments, then calls: a callee, or the row of a filter or test with the value it applies to. */
static bool finish_call(jinja_machine *machine, const jinja_node *node, jinja_value subject,
                        const jinja_arguments *arguments, jinja_value *out)
{
    machine->line = node->line;
    if (node->type == JINJA_NODE_CALL) return call_value(machine, subject, arguments, out);
    if (node->native) return st_jinja_call_native(machine, node->native, subject, arguments, out);
    st_str name = st_str_head(st_jinja_view(node->constant.string), 100);
    return st_jinja_fail(machine, "no %s named '%.*s'", node->type == JINJA_NODE_FILTER ? "filter" : "test",
                         ST_STR_ARG(name));
}

bool st_jinja_eval_call(jinja_machine *machine, const jinja_node *node, const jinja_keyword *extra, jinja_value *out)
{
    static const jinja_call_arguments none = {0};
    const jinja_call_arguments *given = node->arguments ? node->arguments : &none;
    jinja_value subject, item_room[ARGUMENTS_INLINE];
    jinja_keyword keyword_room[ARGUMENTS_INLINE], *keywords = keyword_room;
    jinja_list items = {.items = item_room, .capacity = ARGUMENTS_INLINE};
    size_t keyword_count = 0;
    if (!st_jinja_eval(machine, node->a, &subject)) return false;
    for (size_t i = 0; i < given->positional.count; i++) {
        jinja_value value;
        if (!st_jinja_eval(machine, given->positional.items[i], &value)) return false;
        if (!st_jinja_list_push(machine, &items, value)) return false;
    }
    if (given->star && !add_star(machine, given->star, &items)) return false;
    if (given->keyword_count + 1 > ARGUMENTS_INLINE) {
        keywords = st_jinja_alloc(machine, given->keyword_count + 1, sizeof *keywords);
        if (!keywords) return false;
    }
    for (size_t i = 0; i < given->keyword_count; i++) {
        if (!st_jinja_eval(machine, given->keywords[i].value, &keywords[i].value)) return false;
        keywords[i].name = given->keywords[i].name;
        keyword_count++;
    }
    if (extra) keywords[keyword_count++] = *extra;
    if (given->double_star && !add_double_star(machine, given->double_star, &keywords, &keyword_count)) return false;
    jinja_arguments arguments = {items.items, items.count, keywords, keyword_count};
    return finish_call(machine, node, subject, &arguments, out);
}
