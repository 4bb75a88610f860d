#include "chat/eval.h"
#include "chat/format.h"

typedef jinja_flow (*exec_function)(jinja_machine *machine, const jinja_node *node);

static jinja_flow flow_of(bool ok)
{
    return ok ? JINJA_FLOW_NEXT : JINJA_FLOW_FAIL;
}

/* ---- scopes ---- */

jinja_scope *st_jinja_scope_new(jinja_machine *machine, jinja_scope *parent)
{
    jinja_scope *scope = st_jinja_alloc(machine, 1, sizeof *scope);
    if (scope) scope->parent = parent;
    return scope;
}

bool st_jinja_scope_set(jinja_machine *machine, uint32_t symbol, jinja_value value)
{
    jinja_scope *scope = machine->scope;
    if (!scope) {
        machine->root[symbol] = value;
        return true;
    }
    for (size_t i = 0; i < scope->count; i++) {
        if (scope->bindings[i].symbol != symbol) continue;
        scope->bindings[i].value = value;
        return true;
    }
    jinja_binding *bindings =
        st_jinja_grown(machine, scope->bindings, scope->count, sizeof *bindings, &scope->capacity);
    if (!bindings) return false;
    scope->bindings = bindings;
    scope->bindings[scope->count++] = (jinja_binding){symbol, value};
    return true;
}

bool st_jinja_scope_get(jinja_machine *machine, uint32_t symbol, jinja_value *out)
{
    for (const jinja_scope *scope = machine->scope; scope; scope = scope->parent) {
        for (size_t i = 0; i < scope->count; i++) {
            if (scope->bindings[i].symbol != symbol) continue;
            *out = scope->bindings[i].value;
            return true;
        }
    }
    if (machine->root[symbol].kind != JINJA_MISSING) {
        *out = machine->root[symbol];
        return true;
    }
    const jinja_symbol *known = &machine->program->symbols[symbol];
    if (!known->global.native) return st_jinja_undefined_name(machine, known->name, out);
    *out = (jinja_value){.kind = JINJA_NATIVE, .native = &known->global};
    return true;
}

/* Runs a body in a scope of its own. */
static jinja_flow exec_scoped(jinja_machine *machine, const jinja_body *body)
{
    jinja_scope *outer = machine->scope;
    machine->scope = st_jinja_scope_new(machine, outer);
    jinja_flow flow = machine->scope ? st_jinja_exec(machine, body) : JINJA_FLOW_FAIL;
    machine->scope = outer;
    return flow;
}

bool st_jinja_capture(jinja_machine *machine, const jinja_body *body, jinja_value *out)
{
    jinja_builder builder = {.machine = machine}, *outer = machine->output;
    machine->output = &builder;
    jinja_flow flow = st_jinja_exec(machine, body);
    machine->output = outer;
    return flow != JINJA_FLOW_FAIL && st_jinja_builder_finish(&builder, out);
}

static bool capture_scoped(jinja_machine *machine, const jinja_body *body, jinja_value *out)
{
    jinja_scope *outer = machine->scope;
    machine->scope = st_jinja_scope_new(machine, outer);
    bool ok = machine->scope && st_jinja_capture(machine, body, out);
    machine->scope = outer;
    return ok;
}

/* ---- assignment ---- */

static bool assign(jinja_machine *machine, const jinja_node *target, jinja_value value);

static bool assign_each(jinja_machine *machine, const jinja_node *target, jinja_value value)
{
    jinja_list *items;
    if (value.kind == JINJA_UNDEFINED) return st_jinja_fail_undefined(machine, value.undefined);
    if (value.kind == JINJA_TUPLE || value.kind == JINJA_LIST) items = value.list;
    else if (!st_jinja_collect(machine, value, &items)) return false;
    if (items->count != target->items.count) {
        return st_jinja_fail(machine, "expected %zu values to unpack, found %zu", target->items.count, items->count);
    }
    for (size_t i = 0; i < items->count; i++) {
        if (!assign(machine, target->items.items[i], items->items[i])) return false;
    }
    return true;
}

static bool assign(jinja_machine *machine, const jinja_node *target, jinja_value value)
{
    if (target->type == JINJA_NODE_NAME) return st_jinja_scope_set(machine, target->symbol, value);
    if (target->type == JINJA_NODE_TUPLE) return assign_each(machine, target, value);
    jinja_value object;
    if (!st_jinja_scope_get(machine, target->symbol, &object)) return false;
    if (object.kind == JINJA_UNDEFINED) return st_jinja_fail_undefined(machine, object.undefined);
    if (object.kind != JINJA_NAMESPACE)
        return st_jinja_fail(machine, "cannot assign attribute on non-namespace object");
    return st_jinja_dict_set(machine, object.dict, target->constant, value);
}

/* ---- loops ---- */

/* The items for which the loop's filter holds. */
static bool filter_items(jinja_machine *machine, const jinja_node *node, jinja_value *iterable)
{
    jinja_iterator iterator;
    jinja_scope *outer = machine->scope;
    jinja_list *kept = st_jinja_list_new(machine, 0);
    if (!kept || !st_jinja_iterate(machine, *iterable, &iterator)) return false;
    machine->scope = st_jinja_scope_new(machine, outer);
    jinja_value item, test;
    bool ok = machine->scope != NULL;
    while (ok && st_jinja_next(machine, &iterator, &item)) {
        ok = assign(machine, node->a, item) && st_jinja_eval(machine, node->c, &test);
        if (ok && st_jinja_truth(test)) ok = st_jinja_list_push(machine, kept, item);
    }
    machine->scope = outer;
    *iterable = (jinja_value){.kind = JINJA_LIST, .list = kept};
    return ok && machine->status == STRATA_OK;
}

static jinja_flow run_turns(jinja_machine *machine, jinja_loop *loop)
{
    const jinja_node *node = loop->node;
    jinja_value self = {.kind = JINJA_LOOP, .loop = loop};
    jinja_scope *scope = NULL;
    jinja_flow flow = JINJA_FLOW_NEXT;
    for (; st_jinja_next(machine, &loop->iterator, &loop->current); loop->index0++, loop->previous = loop->current) {
        if (!scope || scope->captured) scope = st_jinja_scope_new(machine, loop->scope);
        if (!scope) return JINJA_FLOW_FAIL;
        scope->count = 0;
        machine->scope = scope;
        if (!st_jinja_scope_set(machine, JINJA_SYMBOL_LOOP, self)) return JINJA_FLOW_FAIL;
        if (!assign(machine, node->a, loop->current)) return JINJA_FLOW_FAIL;
        flow = st_jinja_exec(machine, &node->body);
        if (flow == JINJA_FLOW_BREAK || flow == JINJA_FLOW_FAIL) break;
    }
    return flow == JINJA_FLOW_FAIL ? flow : flow_of(machine->status == STRATA_OK);
}

static jinja_flow run_loop(jinja_machine *machine, const jinja_node *node, jinja_value iterable, size_t depth0)
{
    jinja_scope *outer = machine->scope;
    jinja_loop *loop = st_jinja_alloc(machine, 1, sizeof *loop);
    if (!loop) return JINJA_FLOW_FAIL;
    if (node->c && !filter_items(machine, node, &iterable)) return JINJA_FLOW_FAIL;
    loop->node = node;
    loop->scope = outer;
    loop->depth0 = depth0;
    if (!st_jinja_iterate(machine, iterable, &loop->iterator)) return JINJA_FLOW_FAIL;
    loop->length = loop->iterator.left;
    if (loop->length == 0) return exec_scoped(machine, &node->otherwise);
    jinja_flow flow = run_turns(machine, loop);
    machine->scope = outer;
    return flow;
}

bool st_jinja_loop_call(jinja_machine *machine, const jinja_loop *loop, jinja_value iterable, jinja_value *out)
{
    if (!loop->node->recursive) {
        return st_jinja_fail(machine, "the loop must have the 'recursive' marker to be called recursively");
    }
    jinja_builder builder = {.machine = machine}, *outer_output = machine->output;
    jinja_scope *outer = machine->scope;
    machine->output = &builder;
    machine->scope = loop->scope;
    jinja_flow flow = run_loop(machine, loop->node, iterable, loop->depth0 + 1);
    machine->scope = outer;
    machine->output = outer_output;
    return flow != JINJA_FLOW_FAIL && st_jinja_builder_finish(&builder, out);
}

/* ---- statements ---- */

static jinja_flow exec_data(jinja_machine *machine, const jinja_node *node)
{
    return flow_of(st_jinja_add_string(machine->output, node->constant.string));
}

static jinja_flow exec_print(jinja_machine *machine, const jinja_node *node)
{
    jinja_value value;
    return flow_of(st_jinja_eval(machine, node->a, &value) && st_jinja_add_value(machine->output, value));
}

static jinja_flow exec_if(jinja_machine *machine, const jinja_node *node)
{
    for (;;) {
        jinja_value test;
        if (!st_jinja_eval(machine, node->a, &test)) return JINJA_FLOW_FAIL;
        if (st_jinja_truth(test)) return st_jinja_exec(machine, &node->body);
        const jinja_body *otherwise = &node->otherwise;
        bool is_elif = otherwise->count == 1 && otherwise->items[0]->type == JINJA_NODE_IF;
        if (!is_elif) return st_jinja_exec(machine, otherwise);
        node = otherwise->items[0];
    }
}

static jinja_flow exec_for(jinja_machine *machine, const jinja_node *node)
{
    jinja_value iterable;
    if (!st_jinja_eval(machine, node->b, &iterable)) return JINJA_FLOW_FAIL;
    machine->line = node->line;
    return run_loop(machine, node, iterable, 0);
}

static jinja_flow exec_set(jinja_machine *machine, const jinja_node *node)
{
    jinja_value value;
    if (!st_jinja_eval(machine, node->b, &value)) return JINJA_FLOW_FAIL;
    machine->line = node->line;
    return flow_of(assign(machine, node->a, value));
}

/* Applies a block's filters to its text. */
static bool filtered_capture(jinja_machine *machine, const jinja_node *node, jinja_value *out)
{
    jinja_value outer = machine->captured;
    if (!capture_scoped(machine, &node->body, &machine->captured)) return false;
    bool ok = st_jinja_eval(machine, node->b, out);
    machine->captured = outer;
    return ok;
}

static jinja_flow exec_set_block(jinja_machine *machine, const jinja_node *node)
{
    jinja_value value;
    return flow_of(filtered_capture(machine, node, &value) && assign(machine, node->a, value));
}

static jinja_flow exec_filter_block(jinja_machine *machine, const jinja_node *node)
{
    jinja_value value;
    return flow_of(filtered_capture(machine, node, &value) && st_jinja_add_value(machine->output, value));
}

static jinja_flow exec_macro(jinja_machine *machine, const jinja_node *node)
{
    jinja_value macro;
    return flow_of(st_jinja_macro_new(machine, node->macro, &macro) &&
                   st_jinja_scope_set(machine, node->macro->symbol, macro));
}

static jinja_flow exec_call_block(jinja_machine *machine, const jinja_node *node)
{
    jinja_keyword caller = {.name = ST_STR("caller")};
    jinja_value value;
    return flow_of(st_jinja_macro_new(machine, node->macro, &caller.value) &&
                   st_jinja_eval_call(machine, node->a, &caller, &value) && st_jinja_add_value(machine->output, value));
}

/* Evaluates all values before the first name is set. */
static jinja_flow exec_with(jinja_machine *machine, const jinja_node *node)
{
    jinja_list *values = st_jinja_list_new(machine, node->items.count / 2);
    if (!values) return JINJA_FLOW_FAIL;
    for (size_t i = 1; i < node->items.count; i += 2) {
        if (!st_jinja_eval(machine, node->items.items[i], &values->items[i / 2])) return JINJA_FLOW_FAIL;
    }
    jinja_scope *outer = machine->scope;
    machine->scope = st_jinja_scope_new(machine, outer);
    bool ok = machine->scope != NULL;
    for (size_t i = 0; ok && i < node->items.count; i += 2)
        ok = assign(machine, node->items.items[i], values->items[i / 2]);
    jinja_flow flow = ok ? st_jinja_exec(machine, &node->body) : JINJA_FLOW_FAIL;
    machine->scope = outer;
    return flow;
}

static jinja_flow exec_break(jinja_machine *machine, const jinja_node *node)
{
    (void)machine;
    return node->type == JINJA_NODE_BREAK ? JINJA_FLOW_BREAK : JINJA_FLOW_CONTINUE;
}

static const exec_function exec_rows[] = {
    [JINJA_NODE_DATA] = exec_data,           [JINJA_NODE_PRINT] = exec_print,
    [JINJA_NODE_IF] = exec_if,               [JINJA_NODE_FOR] = exec_for,
    [JINJA_NODE_SET] = exec_set,             [JINJA_NODE_SET_BLOCK] = exec_set_block,
    [JINJA_NODE_MACRO] = exec_macro,         [JINJA_NODE_CALL_BLOCK] = exec_call_block,
    [JINJA_NODE_WITH] = exec_with,           [JINJA_NODE_FILTER_BLOCK] = exec_filter_block,
    [JINJA_NODE_BREAK] = exec_break,         [JINJA_NODE_CONTINUE] = exec_break,
};

jinja_flow st_jinja_exec(jinja_machine *machine, const jinja_body *body)
{
    jinja_flow flow = JINJA_FLOW_NEXT;
    if (!st_jinja_enter(machine)) return JINJA_FLOW_FAIL;
    for (size_t i = 0; flow == JINJA_FLOW_NEXT && i < body->count; i++) {
        machine->line = body->items[i]->line;
        flow = st_jinja_charge(machine, 1) ? exec_rows[body->items[i]->type](machine, body->items[i]) : JINJA_FLOW_FAIL;
    }
    st_jinja_leave(machine);
    return flow;
}
