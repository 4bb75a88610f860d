/* Functions of the engine that templates call: filters, tests, methods and globals, as rows of tables. */
#ifndef ST_CHAT_NATIVE_H
#define ST_CHAT_NATIVE_H

#include "chat/value.h"

enum { JINJA_SLOTS = 6 };

typedef struct jinja_keyword {
    st_str name;
    jinja_value value;
} jinja_keyword;

typedef struct jinja_arguments {
    const jinja_value *items; /* [count] */
    size_t count;
    const jinja_keyword *keywords; /* [keyword_count] */
    size_t keyword_count;
} jinja_arguments;

/* One call: the value before the dot, the bar or `is`, and the arguments in parameter order. */
typedef struct jinja_call {
    jinja_value self;
    int mode;                       /* of the row */
    jinja_value slots[JINJA_SLOTS]; /* MISSING: not passed */
    jinja_arguments rest;           /* further arguments of a row with * and ** */
} jinja_call;

typedef bool (*jinja_function)(jinja_machine *machine, const jinja_call *call, jinja_value *out);

typedef struct jinja_native {
    const char *name;
    const char *parameters; /* blank-separated names; then * and ** for further positional and keyword arguments */
    size_t required;
    jinja_function run;
    int mode; /* tells the rows apart that share `run`: a direction, a case, a set of kinds */
} jinja_native;

struct jinja_bound {
    const jinja_native *native;
    jinja_value self;
};

typedef struct jinja_native_table {
    const jinja_native *rows;
    size_t count;
} jinja_native_table;

extern const jinja_native_table st_jinja_text_filters, st_jinja_value_filters, st_jinja_sequence_filters,
    st_jinja_tests;
extern const jinja_native_table st_jinja_string_methods, st_jinja_string_queries, st_jinja_dict_methods;
extern const jinja_native_table st_jinja_list_methods, st_jinja_loop_methods, st_jinja_globals;

const jinja_native *st_jinja_find(const jinja_native_table *table, st_str name); /* NULL: no such row */
const jinja_native *st_jinja_find_filter(st_str name);

/* Binds the arguments to the row's parameters and calls it. */
bool st_jinja_call_native(jinja_machine *machine, const jinja_native *native, jinja_value self,
                          const jinja_arguments *arguments, jinja_value *out);

/* value.name and value[key], within the sandbox. */
bool st_jinja_attribute(jinja_machine *machine, jinja_value object, jinja_value name, jinja_value *out);
bool st_jinja_item(jinja_machine *machine, jinja_value object, jinja_value key, jinja_value *out);
/* Resolves "a.b.0", for filters that take an attribute. */
bool st_jinja_path(jinja_machine *machine, jinja_value object, jinja_value path, jinja_value *out);

bool st_jinja_binary(jinja_machine *machine, unsigned operator, jinja_value a, jinja_value b, jinja_value *out);
/* == != < <= > >=, JINJA_IN and JINJA_NOT_IN. */
bool st_jinja_relation(jinja_machine *machine, unsigned operator, jinja_value a, jinja_value b, bool *out);
bool st_jinja_slice(jinja_machine *machine, jinja_value object, const jinja_value bounds[3], jinja_value *out);

const jinja_keyword *st_jinja_find_keyword(const jinja_arguments *arguments, st_str name); /* NULL: not passed */

/* Arguments of natives. `name` is for the message. */
static inline bool st_jinja_given(jinja_value slot)
{
    return slot.kind != JINJA_MISSING;
}
static inline bool st_jinja_given_value(jinja_value slot) /* neither absent nor None */
{
    return slot.kind != JINJA_MISSING && slot.kind != JINJA_NONE;
}
bool st_jinja_want_string(jinja_machine *machine, jinja_value value, const char *name, const jinja_string **out);

#endif
