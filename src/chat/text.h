/* Strings with marks: every operation keeps, for each byte, whether it came from the arguments. Owns the builder
 * that all output goes through. Positions are bytes unless a name says characters. */
#ifndef ST_CHAT_TEXT_H
#define ST_CHAT_TEXT_H

#include "chat/value.h"

/* A text under construction. Zero-initialise and set `machine`. */
typedef struct jinja_builder {
    jinja_machine *machine;
    char *bytes;          /* [capacity] */
    unsigned char *marks; /* [capacity]; NULL while all bytes have one origin */
    size_t length;
    size_t capacity;
    size_t length_max; /* 0: no limit but memory */
    bool foreign;      /* of all bytes while marks is NULL */
    bool other;        /* not all bytes are ASCII */
} jinja_builder;

bool st_jinja_add_bytes(jinja_builder *builder, const char *bytes, size_t length, bool foreign);
bool st_jinja_add_literal(jinja_builder *builder, const char *text); /* the template's own */
bool st_jinja_add_slice(jinja_builder *builder, const jinja_string *string, size_t from, size_t to);
bool st_jinja_add_string(jinja_builder *builder, const jinja_string *string);
bool st_jinja_add_code(jinja_builder *builder, uint32_t code, bool foreign);
bool st_jinja_builder_finish(jinja_builder *builder, jinja_value *out);

static inline bool st_jinja_is_foreign(const jinja_string *string, size_t position)
{
    return string->marks ? string->marks[position] != 0 : string->foreign;
}

static inline st_str st_jinja_view(const jinja_string *string)
{
    return (st_str){string->bytes, string->length};
}

/* Does not copy: the bytes must outlive the value. */
bool st_jinja_string_new(jinja_machine *machine, st_str text, bool foreign, jinja_value *out);
bool st_jinja_string_slice(jinja_machine *machine, const jinja_string *string, size_t from, size_t to,
                           jinja_value *out);
bool st_jinja_string_concat(jinja_machine *machine, const jinja_string *a, const jinja_string *b, jinja_value *out);
bool st_jinja_string_safe(jinja_machine *machine, const jinja_string *string, jinja_value *out); /* a safe copy */
bool st_jinja_string_repeat(jinja_machine *machine, const jinja_string *string, int64_t count, jinja_value *out);

size_t st_jinja_string_count(const jinja_string *string);                 /* characters */
size_t st_jinja_string_step(const jinja_string *string, size_t position); /* bytes of the character there */
size_t st_jinja_string_offset(const jinja_string *string, size_t characters);
/* The first or last match of `part` at or after `from`; SIZE_MAX: absent. */
size_t st_jinja_string_find(const jinja_string *string, const jinja_string *part, size_t from);
size_t st_jinja_string_find_last(const jinja_string *string, const jinja_string *part, size_t from);
uint32_t st_jinja_string_code(const jinja_string *string, size_t position, size_t *length);

bool st_jinja_is_space(uint32_t code); /* as Python's str.isspace */
enum { JINJA_STRIP_LEFT = 1, JINJA_STRIP_RIGHT = 2 };
/* `characters` NULL: white space. */
bool st_jinja_string_strip(jinja_machine *machine, const jinja_string *string, const jinja_string *characters,
                           unsigned sides, jinja_value *out);
/* `limit` < 0: all. */
bool st_jinja_string_replace(jinja_machine *machine, const jinja_string *string, const jinja_string *from,
                             const jinja_string *to, int64_t limit, jinja_value *out);

typedef enum jinja_case { JINJA_UPPER, JINJA_LOWER, JINJA_TITLE, JINJA_CAPITALIZE, JINJA_SWAPCASE } jinja_case;
bool st_jinja_string_case(jinja_machine *machine, const jinja_string *string, jinja_case change, jinja_value *out);
bool st_jinja_string_escape(jinja_machine *machine, const jinja_string *string, jinja_value *out); /* HTML */

#endif
