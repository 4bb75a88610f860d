#include "chat/eval.h"

#include "chat/format.h"
#include "chat/lexer.h"

#define OP1(c) JINJA_OPERATOR(c, 0)

typedef bool (*eval_function)(jinja_machine *machine, const jinja_node *node, jinja_value *out);

static bool eval_constant(jinja_machine *machine, const jinja_node *node, jinja_value *out)
{
    (void)machine;
    *out = node->constant;
    return true;
}

static bool eval_name(jinja_machine *machine, const jinja_node *node, jinja_value *out)
{
    return st_jinja_scope_get(machine, node->symbol, out);
}

static bool eval_captured(jinja_machine *machine, const jinja_node *node, jinja_value *out)
{
    (void)node;
    *out = machine->captured;
    return true;
}

static bool eval_list(jinja_machine *machine, const jinja_node *node, jinja_value *out)
{
    jinja_list *list = st_jinja_list_new(machine, node->items.count);
    if (!list) return false;
    for (size_t i = 0; i < node->items.count; i++) {
        if (!st_jinja_eval(machine, node->items.items[i], &list->items[i])) return false;
        list->count++;
    }
    *out = (jinja_value){.kind = node->type == JINJA_NODE_TUPLE ? JINJA_TUPLE : JINJA_LIST, .list = list};
    return true;
}

static bool eval_dict(jinja_machine *machine, const jinja_node *node, jinja_value *out)
{
    jinja_dict *dict = st_jinja_dict_new(machine, node->items.count / 2);
    if (!dict) return false;
    for (size_t i = 0; i + 1 < node->items.count; i += 2) {
        jinja_value key, value;
        if (!st_jinja_eval(machine, node->items.items[i], &key) ||
            !st_jinja_eval(machine, node->items.items[i + 1], &value) ||
            !st_jinja_dict_set(machine, dict, key, value)) {
            return false;
        }
    }
    *out = (jinja_value){.kind = JINJA_DICT, .dict = dict};
    return true;
}

static bool eval_attribute(jinja_machine *machine, const jinja_node *node, jinja_value *out)
{
    jinja_value object;
    if (!st_jinja_eval(machine, node->a, &object)) return false;
    machine->line = node->line;
    return st_jinja_attribute(machine, object, node->constant, out);
}

static bool eval_item(jinja_machine *machine, const jinja_node *node, jinja_value *out)
{
    jinja_value object, key;
    if (!st_jinja_eval(machine, node->a, &object) || !st_jinja_eval(machine, node->b, &key)) return false;
    machine->line = node->line;
    return st_jinja_item(machine, object, key, out);
}

static bool eval_slice(jinja_machine *machine, const jinja_node *node, jinja_value *out)
{
    jinja_value object, bounds[3] = {{.kind = JINJA_NONE}, {.kind = JINJA_NONE}, {.kind = JINJA_NONE}};
    if (!st_jinja_eval(machine, node->a, &object)) return false;
    for (size_t i = 0; i < 3; i++) {
        if (node->items.items[i] && !st_jinja_eval(machine, node->items.items[i], &bounds[i])) return false;
    }
    machine->line = node->line;
    return st_jinja_slice(machine, object, bounds, out);
}

static bool eval_call(jinja_machine *machine, const jinja_node *node, jinja_value *out)
{
    return st_jinja_eval_call(machine, node, NULL, out);
}

static bool eval_not(jinja_machine *machine, const jinja_node *node, jinja_value *out)
{
    jinja_value value;
    if (!st_jinja_eval(machine, node->a, &value)) return false;
    *out = st_jinja_bool(!st_jinja_truth(value));
    return true;
}

static bool eval_sign(jinja_machine *machine, const jinja_node *node, jinja_value *out)
{
    jinja_value value;
    if (!st_jinja_eval(machine, node->a, &value)) return false;
    bool negative = node->type == JINJA_NODE_NEGATIVE;
    if (value.kind == JINJA_UNDEFINED) return st_jinja_fail_undefined(machine, value.undefined);
    if (!st_jinja_is_number(value)) {
        return st_jinja_fail(machine, "bad operand type for unary %c: '%s'", negative ? '-' : '+',
                             st_jinja_type_name(value));
    }
    if (value.kind == JINJA_FLOAT) {
        *out = st_jinja_float(negative ? -value.real : value.real);
        return true;
    }
    return st_jinja_binary(machine, negative ? OP1('-') : OP1('+'), st_jinja_integer(0), value, out);
}

static bool eval_binary(jinja_machine *machine, const jinja_node *node, jinja_value *out)
{
    jinja_value a, b;
    if (!st_jinja_eval(machine, node->a, &a) || !st_jinja_eval(machine, node->b, &b)) return false;
    machine->line = node->line;
    return st_jinja_binary(machine, node->operator, a, b, out);
}

static bool eval_concat(jinja_machine *machine, const jinja_node *node, jinja_value *out)
{
    jinja_value text = {0};
    for (size_t i = 0; i < node->items.count; i++) {
        jinja_value value;
        const jinja_string *piece;
        if (!st_jinja_eval(machine, node->items.items[i], &value) || !st_jinja_to_string(machine, value, &piece))
            return false;
        if (i == 0) text = st_jinja_text(piece);
        else if (!st_jinja_string_concat(machine, text.string, piece, &text)) return false;
    }
    *out = text;
    return true;
}

static bool eval_logic(jinja_machine *machine, const jinja_node *node, jinja_value *out)
{
    if (!st_jinja_eval(machine, node->a, out)) return false;
    bool decided = st_jinja_truth(*out) == (node->type == JINJA_NODE_OR);
    return decided || st_jinja_eval(machine, node->b, out);
}

static bool eval_compare(jinja_machine *machine, const jinja_node *node, jinja_value *out)
{
    jinja_value left, right;
    if (!st_jinja_eval(machine, node->a, &left)) return false;
    for (size_t i = 0; i < node->items.count; i++, left = right) {
        bool holds = false;
        if (!st_jinja_eval(machine, node->items.items[i], &right)) return false;
        machine->line = node->line;
        if (!st_jinja_relation(machine, node->operators[i], left, right, &holds)) return false;
        *out = st_jinja_bool(holds);
        if (!holds) return true;
    }
    return true;
}

static bool eval_condition(jinja_machine *machine, const jinja_node *node, jinja_value *out)
{
    jinja_value test;
    if (!st_jinja_eval(machine, node->a, &test)) return false;
    if (st_jinja_truth(test)) return st_jinja_eval(machine, node->b, out);
    if (node->c) return st_jinja_eval(machine, node->c, out);
    return st_jinja_undefined_hint(machine,
                                   "the inline if-expression evaluated to false and no else section was defined", out);
}

static const eval_function eval_rows[] = {
    [JINJA_NODE_CONSTANT] = eval_constant, [JINJA_NODE_NAME] = eval_name,
    [JINJA_NODE_LIST] = eval_list,         [JINJA_NODE_TUPLE] = eval_list,
    [JINJA_NODE_DICT] = eval_dict,         [JINJA_NODE_ATTRIBUTE] = eval_attribute,
    [JINJA_NODE_ITEM] = eval_item,         [JINJA_NODE_SLICE] = eval_slice,
    [JINJA_NODE_CALL] = eval_call,         [JINJA_NODE_FILTER] = eval_call,
    [JINJA_NODE_TEST] = eval_call,         [JINJA_NODE_NOT] = eval_not,
    [JINJA_NODE_NEGATIVE] = eval_sign,     [JINJA_NODE_POSITIVE] = eval_sign,
    [JINJA_NODE_BINARY] = eval_binary,     [JINJA_NODE_CONCAT] = eval_concat,
    [JINJA_NODE_AND] = eval_logic,         [JINJA_NODE_OR] = eval_logic,
    [JINJA_NODE_COMPARE] = eval_compare,   [JINJA_NODE_CONDITION] = eval_condition,
    [JINJA_NODE_CAPTURED] = eval_captured,
};

bool st_jinja_eval(jinja_machine *machine, const jinja_node *node, jinja_value *out)
{
    if (!st_jinja_enter(machine)) return false;
    machine->line = node->line;
    bool ok = eval_rows[node->type](machine, node, out);
    st_jinja_leave(machine);
    return ok;
}
