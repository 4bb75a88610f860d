#include "chat/text.h"

#include <utf8proc.h>

#include "base/check.h"
#include "base/utf8.h"

/* Memory that several strings may share: each is a prefix of it, and the longest may grow in place. */
typedef struct jinja_tail {
    char *bytes;          /* [capacity] */
    unsigned char *marks; /* [capacity] or NULL */
    size_t used;
    size_t capacity;
} jinja_tail;

/* ---- builder ---- */

static bool builder_grow(jinja_builder *builder, size_t extra)
{
    jinja_machine *machine = builder->machine;
    size_t needed;
    if (!st_add_size(builder->length, extra, &needed) || (builder->length_max && needed > builder->length_max)) {
        if (builder->length_max) return st_jinja_fail_limit(machine, "bytes of output", builder->length_max);
        return st_jinja_fail_limit(machine, "bytes of memory", machine->limits.memory_bytes_max);
    }
    if (needed <= builder->capacity) return machine->status == STRATA_OK;
    size_t capacity = builder->capacity < 128 ? 128 : builder->capacity * 2;
    if (capacity < needed) capacity = needed;
    char *bytes = st_jinja_alloc(machine, capacity, 1);
    if (!bytes) return false;
    if (builder->length) memcpy(bytes, builder->bytes, builder->length);
    if (builder->marks) {
        unsigned char *marks = st_jinja_alloc(machine, capacity, 1);
        if (!marks) return false;
        memcpy(marks, builder->marks, builder->length);
        builder->marks = marks;
    }
    builder->bytes = bytes;
    builder->capacity = capacity;
    return true;
}

/* Allocates marks once the bytes differ in origin. */
static bool builder_mix(jinja_builder *builder)
{
    if (builder->marks) return true;
    builder->marks = st_jinja_alloc(builder->machine, builder->capacity, 1);
    if (!builder->marks) return false;
    memset(builder->marks, builder->foreign, builder->length);
    return true;
}

static bool has_other(const char *bytes, size_t length)
{
    unsigned char all = 0;
    for (size_t i = 0; i < length; i++) all |= (unsigned char)bytes[i];
    return all >= 0x80;
}

static bool add(jinja_builder *builder, const char *bytes, const unsigned char *marks, size_t length, bool foreign)
{
    if (length == 0) return builder->machine->status == STRATA_OK;
    if (!builder_grow(builder, length) || !builder->bytes) return false;
    if (builder->length == 0 && !marks) builder->foreign = foreign;
    if ((marks || foreign != builder->foreign) && !builder_mix(builder)) return false;
    memcpy(builder->bytes + builder->length, bytes, length);
    if (builder->marks) {
        if (marks) memcpy(builder->marks + builder->length, marks, length);
        else memset(builder->marks + builder->length, foreign, length);
    }
    builder->length += length;
    return true;
}

bool st_jinja_add_bytes(jinja_builder *builder, const char *bytes, size_t length, bool foreign)
{
    if (!builder->other) builder->other = has_other(bytes, length);
    return add(builder, bytes, NULL, length, foreign);
}

bool st_jinja_add_literal(jinja_builder *builder, const char *text)
{
    return st_jinja_add_bytes(builder, text, strlen(text), false);
}

bool st_jinja_add_slice(jinja_builder *builder, const jinja_string *string, size_t from, size_t to)
{
    if (!string->ascii) builder->other = true;
    return add(builder, string->bytes + from, string->marks ? string->marks + from : NULL, to - from, string->foreign);
}

bool st_jinja_add_string(jinja_builder *builder, const jinja_string *string)
{
    return st_jinja_add_slice(builder, string, 0, string->length);
}

bool st_jinja_add_code(jinja_builder *builder, uint32_t code, bool foreign)
{
    char bytes[4];
    return st_jinja_add_bytes(builder, bytes, st_utf8_encode(code, bytes), foreign);
}

static bool string_alloc(jinja_machine *machine, jinja_string content, jinja_value *out)
{
    jinja_string *string = st_jinja_alloc(machine, 1, sizeof *string);
    if (!string) return false;
    *string = content;
    *out = st_jinja_text(string);
    return true;
}

bool st_jinja_builder_finish(jinja_builder *builder, jinja_value *out)
{
    jinja_string content = {.bytes = builder->bytes ? builder->bytes : "", .marks = builder->marks,
                            .length = builder->length, .foreign = builder->foreign, .ascii = !builder->other};
    return string_alloc(builder->machine, content, out);
}

/* ---- making strings ---- */

bool st_jinja_string_new(jinja_machine *machine, st_str text, bool foreign, jinja_value *out)
{
    jinja_string content = {.bytes = text.data ? text.data : "", .length = text.length, .foreign = foreign,
                            .ascii = !has_other(text.data, text.length)};
    return string_alloc(machine, content, out);
}

bool st_jinja_string_slice(jinja_machine *machine, const jinja_string *string, size_t from, size_t to, jinja_value *out)
{
    if (from == 0 && to == string->length) {
        *out = st_jinja_text(string);
        return true;
    }
    jinja_string content = *string;
    content.bytes += from;
    if (content.marks) content.marks += from;
    content.length = to - from;
    content.tail = NULL;
    if (!content.ascii) content.ascii = !has_other(content.bytes, content.length);
    return string_alloc(machine, content, out);
}

static void copy_marks(unsigned char *to, const jinja_string *string)
{
    if (string->marks) memcpy(to, string->marks, string->length);
    else memset(to, string->foreign, string->length);
}

static jinja_tail *tail_new(jinja_machine *machine, const jinja_string *a, size_t total, bool mixed)
{
    size_t capacity = total + total / 2;
    jinja_tail *tail = st_jinja_alloc(machine, 1, sizeof *tail);
    if (!tail) return NULL;
    tail->bytes = st_jinja_alloc(machine, capacity, 1);
    if (!tail->bytes) return NULL;
    memcpy(tail->bytes, a->bytes, a->length);
    if (mixed) {
        tail->marks = st_jinja_alloc(machine, capacity, 1);
        if (!tail->marks) return NULL;
        copy_marks(tail->marks, a);
    }
    tail->capacity = capacity;
    tail->used = a->length;
    return tail;
}

bool st_jinja_string_concat(jinja_machine *machine, const jinja_string *a, const jinja_string *b, jinja_value *out)
{
    if (a->length == 0 || b->length == 0) {
        *out = st_jinja_text(a->length ? a : b);
        return true;
    }
    size_t total, room;
    if (!st_add_size(a->length, b->length, &total) || !st_add_size(total, total / 2, &room)) {
        return st_jinja_fail_limit(machine, "bytes of memory", machine->limits.memory_bytes_max);
    }
    bool mixed = a->marks || b->marks || a->foreign != b->foreign;
    jinja_tail *tail = a->tail;
    bool fits = tail && tail->used == a->length && total <= tail->capacity && (!mixed || tail->marks);
    if (!fits) tail = tail_new(machine, a, total, mixed);
    if (!tail) return false;
    memcpy(tail->bytes + a->length, b->bytes, b->length);
    if (tail->marks) copy_marks(tail->marks + a->length, b);
    tail->used = total;
    jinja_string content = {.bytes = tail->bytes, .marks = tail->marks, .length = total, .tail = tail,
                            .foreign = a->foreign, .ascii = a->ascii && b->ascii};
    return string_alloc(machine, content, out);
}

bool st_jinja_string_safe(jinja_machine *machine, const jinja_string *string, jinja_value *out)
{
    jinja_string content = *string;
    content.safe = true;
    return string_alloc(machine, content, out);
}

bool st_jinja_string_repeat(jinja_machine *machine, const jinja_string *string, int64_t count, jinja_value *out)
{
    jinja_builder builder = {.machine = machine};
    size_t total = 0;
    if (count > 0 && string->length) {
        if (!st_mul_size(string->length, (size_t)count, &total) || total > machine->limits.memory_bytes_max) {
            return st_jinja_fail_limit(machine, "bytes of memory", machine->limits.memory_bytes_max);
        }
        if (!st_jinja_charge_bytes(machine, total) || !builder_grow(&builder, total)) return false;
    }
    while (builder.length < total) {
        if (!st_jinja_add_string(&builder, string)) return false;
    }
    return st_jinja_builder_finish(&builder, out);
}

/* ---- reading strings ---- */

size_t st_jinja_string_step(const jinja_string *string, size_t position)
{
    unsigned char lead = (unsigned char)string->bytes[position];
    size_t step = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    return step <= string->length - position ? step : string->length - position;
}

uint32_t st_jinja_string_code(const jinja_string *string, size_t position, size_t *length)
{
    uint32_t code;
    *length = st_utf8_decode(string->bytes + position, string->length - position, &code);
    return code;
}

size_t st_jinja_string_count(const jinja_string *string)
{
    if (string->ascii) return string->length;
    size_t count = 0;
    for (size_t i = 0; i < string->length; i++) count += ((unsigned char)string->bytes[i] & 0xC0) != 0x80;
    return count;
}

size_t st_jinja_string_offset(const jinja_string *string, size_t characters)
{
    if (string->ascii) return characters < string->length ? characters : string->length;
    size_t position = 0;
    while (characters-- && position < string->length) position += st_jinja_string_step(string, position);
    return position;
}

size_t st_jinja_string_find(const jinja_string *string, const jinja_string *part, size_t from)
{
    if (from > string->length) return SIZE_MAX;
    if (part->length == 0) return from;
    const char *found = memmem(string->bytes + from, string->length - from, part->bytes, part->length);
    return found ? (size_t)(found - string->bytes) : SIZE_MAX;
}

size_t st_jinja_string_find_last(const jinja_string *string, const jinja_string *part, size_t from)
{
    if (from > string->length || part->length > string->length - from) return SIZE_MAX;
    for (size_t i = string->length - part->length + 1; i-- > from;) {
        if (memcmp(string->bytes + i, part->bytes, part->length) == 0) return i;
    }
    return SIZE_MAX;
}

bool st_jinja_is_space(uint32_t code)
{
    if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13) || (code >= 28 && code <= 31);
    return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
           code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

static bool strips(const jinja_string *string, size_t position, const jinja_string *characters)
{
    size_t length;
    uint32_t code = st_jinja_string_code(string, position, &length);
    if (!characters) return st_jinja_is_space(code);
    return memmem(characters->bytes, characters->length, string->bytes + position, length) != NULL;
}

bool st_jinja_string_strip(jinja_machine *machine, const jinja_string *string, const jinja_string *characters,
                           unsigned sides, jinja_value *out)
{
    size_t from = 0, to = string->length;
    if (!st_jinja_charge_search(machine, string->length, characters ? characters->length : 1)) return false;
    if (sides & JINJA_STRIP_LEFT) {
        while (from < to && strips(string, from, characters)) from += st_jinja_string_step(string, from);
    }
    while ((sides & JINJA_STRIP_RIGHT) && to > from) {
        size_t last = to - 1;
        while (last > from && ((unsigned char)string->bytes[last] & 0xC0) == 0x80) last--;
        if (!strips(string, last, characters)) break;
        to = last;
    }
    return st_jinja_string_slice(machine, string, from, to, out);
}

/* As in Python, an empty old text matches before each character and at the end. */
static bool replace_empty(jinja_builder *builder, const jinja_string *string, const jinja_string *to, int64_t limit)
{
    for (size_t position = 0;; limit--) {
        if (limit == 0) return st_jinja_add_slice(builder, string, position, string->length);
        if (!st_jinja_add_string(builder, to)) return false;
        if (position == string->length) return true;
        size_t step = st_jinja_string_step(string, position);
        if (!st_jinja_add_slice(builder, string, position, position + step)) return false;
        position += step;
    }
}

bool st_jinja_string_replace(jinja_machine *machine, const jinja_string *string, const jinja_string *from,
                             const jinja_string *to, int64_t limit, jinja_value *out)
{
    jinja_builder builder = {.machine = machine};
    if (!st_jinja_charge_bytes(machine, string->length)) return false;
    if (from->length == 0) {
        if (!replace_empty(&builder, string, to, limit)) return false;
        return st_jinja_builder_finish(&builder, out);
    }
    size_t position = 0, found = st_jinja_string_find(string, from, 0);
    if (found == SIZE_MAX || limit == 0) {
        *out = st_jinja_text(string);
        return true;
    }
    for (; found != SIZE_MAX && limit != 0; limit--) {
        if (!st_jinja_add_slice(&builder, string, position, found) || !st_jinja_add_string(&builder, to)) return false;
        position = found + from->length;
        found = st_jinja_string_find(string, from, position);
    }
    if (!st_jinja_add_slice(&builder, string, position, string->length)) return false;
    return st_jinja_builder_finish(&builder, out);
}

/* ---- case and escapes ---- */

static bool add_cased(jinja_builder *builder, uint32_t code, bool upper, bool title, bool foreign)
{
    if (upper && code == 0xDF)
        return st_jinja_add_bytes(builder, title ? "Ss" : "SS", 2, foreign); /* ß has no capital */
    utf8proc_int32_t from = (utf8proc_int32_t)code;
    utf8proc_int32_t to = !upper ? utf8proc_tolower(from) : title ? utf8proc_totitle(from) : utf8proc_toupper(from);
    return st_jinja_add_code(builder, (uint32_t)to, foreign);
}

static bool is_cased(uint32_t code)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT;
}

bool st_jinja_string_case(jinja_machine *machine, const jinja_string *string, jinja_case change, jinja_value *out)
{
    jinja_builder builder = {.machine = machine};
    bool after_cased = false;
    for (size_t position = 0, length; position < string->length; position += length) {
        uint32_t code = st_jinja_string_code(string, position, &length);
        bool foreign = st_jinja_is_foreign(string, position);
        bool upper = change == JINJA_UPPER || (change == JINJA_CAPITALIZE && position == 0) ||
                     (change == JINJA_TITLE && !after_cased) ||
                     (change == JINJA_SWAPCASE && utf8proc_islower((utf8proc_int32_t)code));
        bool title = change == JINJA_TITLE || change == JINJA_CAPITALIZE;
        if (!add_cased(&builder, code, upper, title, foreign)) return false;
        after_cased = is_cased(code);
    }
    return st_jinja_builder_finish(&builder, out);
}

bool st_jinja_string_escape(jinja_machine *machine, const jinja_string *string, jinja_value *out)
{
    static const struct {
        char character;
        const char *entity;
    } rows[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
    jinja_builder builder = {.machine = machine};
    for (size_t i = 0; i < string->length; i++) {
        const char *entity = NULL;
        for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
            if (string->bytes[i] == rows[row].character) entity = rows[row].entity;
        }
        bool ok = entity ? st_jinja_add_bytes(&builder, entity, strlen(entity), st_jinja_is_foreign(string, i))
                         : st_jinja_add_slice(&builder, string, i, i + 1);
        if (!ok) return false;
    }
    return st_jinja_builder_finish(&builder, out);
}
