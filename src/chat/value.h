/* The values of Jinja expressions, their memory, and the errors of a rendering. Owns truth, equality, order, dicts,
 * lists and iteration; knows neither the source nor the syntax tree.
 *
 * All memory is one arena per rendering (or per compiled template) and dies with it. A function that can fail
 * returns false or NULL and has then set the machine's error; the first error stays. */
#ifndef ST_CHAT_VALUE_H
#define ST_CHAT_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/str.h"
#include "chat/template.h"
#include "strata.h"

typedef struct jinja_machine jinja_machine;

typedef enum jinja_kind {
    JINJA_MISSING, /* no value: an absent variable or argument */
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INTEGER,
    JINJA_FLOAT,
    JINJA_STRING,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_GENERATOR, /* the result of map, select and other lazy filters: can be iterated once */
    JINJA_VIEW,      /* the result of dict.keys(), .values() and .items() */
    JINJA_RANGE,
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_LOOP,
    JINJA_MACRO,
    JINJA_NATIVE, /* a function of the engine, or a method bound to a value */
    JINJA_KIND_COUNT
} jinja_kind;

typedef struct jinja_string jinja_string;
typedef struct jinja_list jinja_list;
typedef struct jinja_dict jinja_dict;
typedef struct jinja_range jinja_range;
typedef struct jinja_undefined jinja_undefined;
typedef struct jinja_loop jinja_loop;
typedef struct jinja_macro jinja_macro;
typedef struct jinja_bound jinja_bound;
struct jinja_call;

typedef struct jinja_value {
    jinja_kind kind;
    union {
        bool boolean;
        int64_t integer;
        double real;
        const jinja_string *string;
        jinja_list *list; /* LIST, TUPLE, GENERATOR, VIEW */
        jinja_dict *dict; /* DICT, NAMESPACE */
        const jinja_range *range;
        const jinja_undefined *undefined;
        jinja_loop *loop;
        const jinja_macro *macro;
        const jinja_bound *native;
    };
} jinja_value;

/* Bytes, each with a mark of its origin. Immutable. */
struct jinja_string {
    const char *bytes;          /* [length], valid UTF-8 */
    const unsigned char *marks; /* [length], nonzero: foreign; NULL: `foreign` holds for all */
    size_t length;
    struct jinja_tail *tail; /* spare capacity behind the bytes: appending in a loop is linear; NULL: none */
    bool foreign;
    bool ascii; /* a byte is a character */
    bool safe;  /* made by the filters safe and escape: `+` escapes the other side */
};

struct jinja_list {
    jinja_value *items; /* [capacity] */
    size_t count;
    size_t capacity;
    size_t position;       /* of a generator: the items before it are consumed */
    const char *type_name; /* NULL: the kind's */
    /* Of a generator that has not run: its first iteration calls fill(machine, call, list). NULL: the items are
     * there. */
    bool (*fill)(jinja_machine *machine, const struct jinja_call *call, jinja_list *list);
    const struct jinja_call *call;
};

struct jinja_range {
    int64_t start;
    int64_t stop;
    int64_t step;
    size_t count;
};

struct jinja_undefined {
    const char *hint; /* the message; NULL: made of the next two */
    jinja_kind owner; /* MISSING: the key is a variable's name */
    jinja_value key;
    bool unsafe; /* an attribute that the sandbox hides */
};

typedef struct jinja_entry {
    jinja_value key;
    jinja_value value;
    uint64_t hash;
} jinja_entry;

struct jinja_dict {
    jinja_entry *entries; /* [capacity], in order of insertion */
    size_t count;
    size_t capacity;
    uint32_t *index; /* [index_capacity]: entry + 1, open addressing; NULL while small */
    size_t index_capacity;
};

/* The memory, the limits and the error of one compilation or one rendering. */
struct jinja_machine {
    st_arena arena;
    st_template_limits limits;
    size_t steps;
    size_t levels; /* nested evaluations */
    size_t calls;  /* nested macro calls */
    uint32_t line; /* of the source, for errors */
    int64_t now_seconds;
    strata_status status; /* OK until something failed */
    strata_error *error;
    const struct jinja_program *program;
    jinja_value *root; /* [program's symbols]: top-level variables */
    struct jinja_scope *scope; /* NULL: the top */
    jinja_value captured; /* the text of the block that is being filtered */
    struct jinja_builder *output;
};

/* ---- failures and limits ------------------------------------------------------------------------------------ */

/* An error of the template: STRATA_TEMPLATE with the line. Returns false. */
bool st_jinja_fail(jinja_machine *machine, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A limit was reached: STRATA_LIMIT. Returns false. */
bool st_jinja_fail_limit(jinja_machine *machine, const char *limit, size_t value);
void *st_jinja_alloc(jinja_machine *machine, size_t count, size_t size); /* zeroed; NULL: failed */
/* Makes room for one more item: returns `items`, or a copy with twice the capacity; NULL: failed. */
void *st_jinja_grown(jinja_machine *machine, void *items, size_t count, size_t size, size_t *capacity);
bool st_jinja_charge(jinja_machine *machine, size_t steps);
bool st_jinja_charge_bytes(jinja_machine *machine, size_t bytes); /* for work that grows with the length of a text */
bool st_jinja_charge_search(jinja_machine *machine, size_t bytes, size_t part); /* … with a product of lengths */
/* Enter before each recursion, leave after it: bounds the C stack. */
bool st_jinja_enter(jinja_machine *machine);
void st_jinja_leave(jinja_machine *machine);

/* ---- making values ------------------------------------------------------------------------------------------- */

static inline jinja_value st_jinja_none(void)
{
    return (jinja_value){.kind = JINJA_NONE};
}

static inline jinja_value st_jinja_bool(bool value)
{
    return (jinja_value){.kind = JINJA_BOOL, .boolean = value};
}

static inline jinja_value st_jinja_integer(int64_t value)
{
    return (jinja_value){.kind = JINJA_INTEGER, .integer = value};
}

static inline jinja_value st_jinja_float(double value)
{
    return (jinja_value){.kind = JINJA_FLOAT, .real = value};
}

static inline jinja_value st_jinja_text(const jinja_string *string)
{
    return (jinja_value){.kind = JINJA_STRING, .string = string};
}

static inline bool st_jinja_is_list(jinja_value value)
{
    return value.kind >= JINJA_LIST && value.kind <= JINJA_VIEW;
}

static inline bool st_jinja_is_number(jinja_value value)
{
    return value.kind >= JINJA_BOOL && value.kind <= JINJA_FLOAT;
}

static inline bool st_jinja_is_integer(jinja_value value)
{
    return value.kind == JINJA_BOOL || value.kind == JINJA_INTEGER;
}

static inline int64_t st_jinja_whole(jinja_value integer) /* BOOL or INTEGER */
{
    return integer.kind == JINJA_BOOL ? (int64_t)integer.boolean : integer.integer;
}

bool st_jinja_undefined_name(jinja_machine *machine, st_str name, jinja_value *out);
bool st_jinja_undefined_member(jinja_machine *machine, jinja_kind owner, jinja_value key, bool unsafe,
                               jinja_value *out);
bool st_jinja_undefined_hint(jinja_machine *machine, const char *hint, jinja_value *out);
bool st_jinja_fail_undefined(jinja_machine *machine, const jinja_undefined *undefined); /* names what is missing */

jinja_list *st_jinja_list_new(jinja_machine *machine, size_t capacity);
void st_jinja_list_reverse(jinja_list *list);
bool st_jinja_list_push(jinja_machine *machine, jinja_list *list, jinja_value value);
bool st_jinja_pair(jinja_machine *machine, jinja_value first, jinja_value second, jinja_value *out); /* a tuple */

jinja_dict *st_jinja_dict_new(jinja_machine *machine, size_t capacity);
bool st_jinja_dict_set(jinja_machine *machine, jinja_dict *dict, jinja_value key, jinja_value value);
/* *found is NULL for an absent key. Fails for a key that cannot be hashed. */
bool st_jinja_dict_find(jinja_machine *machine, const jinja_dict *dict, jinja_value key, jinja_value **found);
jinja_value *st_jinja_dict_get(const jinja_dict *dict, st_str key); /* NULL: absent */

/* ---- reading values ------------------------------------------------------------------------------------------ */

const char *st_jinja_type_name(jinja_value value); /* as in Python */
bool st_jinja_truth(jinja_value value);
bool st_jinja_equal(jinja_machine *machine, jinja_value a, jinja_value b, bool *out);
/* -1, 0 or 1; fails for values that Python cannot order, naming `operator`. */
bool st_jinja_compare(jinja_machine *machine, jinja_value a, jinja_value b, const char *operator, int *out);
bool st_jinja_contains(jinja_machine *machine, jinja_value container, jinja_value item, bool *out);
double st_jinja_real_of(jinja_value number); /* BOOL, INTEGER or FLOAT */
/* An index or a count: BOOL or INTEGER. */
bool st_jinja_integer_of(jinja_machine *machine, jinja_value value, const char *what, int64_t *out);
bool st_jinja_length(jinja_machine *machine, jinja_value value, size_t *out); /* Python's len() */

/* ---- iteration ------------------------------------------------------------------------------------------------ */

typedef struct jinja_iterator {
    jinja_value source;
    size_t position; /* item, or byte of a string */
    size_t left;     /* remaining items */
} jinja_iterator;

bool st_jinja_iterate(jinja_machine *machine, jinja_value value, jinja_iterator *out);
/* False at the end, or when the machine failed: its status tells which. */
bool st_jinja_next(jinja_machine *machine, jinja_iterator *iterator, jinja_value *out);
/* Collects all items in a new list. */
bool st_jinja_collect(jinja_machine *machine, jinja_value value, jinja_list **out);

#endif
