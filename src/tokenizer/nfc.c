/* Normalisation to NFC. utf8proc provides tables and composition. Combining marks are sorted here, because utf8proc's
 * sort takes quadratic time for a long run of marks. */
#include <utf8proc.h>

#include "base/alloc.h"
#include "base/check.h"
#include "base/utf8.h"
#include "tokenizer/pre.h"

enum { DECOMPOSED_MAX = 18, CLASS_COUNT = 256 };

/* A growing array of code points. */
typedef struct code_run {
    utf8proc_int32_t *codes;  /* [capacity] */
    utf8proc_int32_t *sorted; /* [capacity], scratch of the sort */
    size_t count;
    size_t capacity;
} code_run;

/* Every code point below U+0300 is a starter and in NFC. */
bool st_nfc_is_trivial(st_str text)
{
    for (size_t i = 0; i < text.length; i++)
        if ((unsigned char)text.data[i] >= 0xCC) return false;
    return true;
}

static bool run_reserve(code_run *run, size_t extra)
{
    size_t needed, bytes, capacity = run->capacity ? run->capacity : 256;
    if (!st_add_size(run->count, extra, &needed)) return false;
    if (needed <= run->capacity) return true;
    while (capacity < needed)
        if (!st_mul_size(capacity, 2, &capacity)) return false;
    if (!st_mul_size(capacity, sizeof *run->codes, &bytes)) return false;
    utf8proc_int32_t *codes = st_realloc(run->codes, bytes);
    if (!codes) return false;
    run->codes = codes;
    utf8proc_int32_t *sorted = st_realloc(run->sorted, bytes);
    if (!sorted) return false;
    run->sorted = sorted;
    run->capacity = capacity;
    return true;
}

static unsigned class_of(utf8proc_int32_t code)
{
    return (unsigned)utf8proc_get_property(code)->combining_class & (CLASS_COUNT - 1);
}

/* Sorts marks by combining class, stably: insertion sort for few, counting sort for many. */
static void sort_marks(utf8proc_int32_t *marks, utf8proc_int32_t *sorted, size_t count)
{
    if (count <= 16) {
        for (size_t i = 1; i < count; i++) {
            utf8proc_int32_t code = marks[i];
            unsigned class = class_of(code);
            size_t j = i;
            for (; j > 0 && class_of(marks[j - 1]) > class; j--) marks[j] = marks[j - 1];
            marks[j] = code;
        }
        return;
    }
    size_t starts[CLASS_COUNT + 1] = {0};
    for (size_t i = 0; i < count; i++) starts[class_of(marks[i]) + 1]++;
    for (size_t i = 0; i < CLASS_COUNT; i++) starts[i + 1] += starts[i];
    for (size_t i = 0; i < count; i++) sorted[starts[class_of(marks[i])]++] = marks[i];
    memcpy(marks, sorted, count * sizeof *marks);
}

static void sort_run(code_run *run)
{
    size_t position = 0;
    while (position < run->count) {
        if (class_of(run->codes[position]) == 0) {
            position++;
            continue;
        }
        size_t end = position + 1;
        while (end < run->count && class_of(run->codes[end]) != 0) end++;
        if (end - position > 1) sort_marks(run->codes + position, run->sorted, end - position);
        position = end;
    }
}

static bool decompose(code_run *run, st_str text)
{
    size_t position = 0;
    run->count = 0;
    while (position < text.length) {
        uint32_t code;
        position += st_utf8_decode(text.data + position, text.length - position, &code);
        if (!run_reserve(run, DECOMPOSED_MAX)) return false;
        int last_class = 0;
        utf8proc_ssize_t added =
            utf8proc_decompose_char((utf8proc_int32_t)code, run->codes + run->count, DECOMPOSED_MAX,
                                    UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &last_class);
        if (added < 0 || added > DECOMPOSED_MAX) {
            run->codes[run->count] = (utf8proc_int32_t)code;
            added = 1;
        }
        run->count += (size_t)added;
    }
    return true;
}

static bool append_run(st_buf *out, code_run *run, st_str text)
{
    if (!decompose(run, text)) return false;
    sort_run(run);
    utf8proc_ssize_t count = utf8proc_normalize_utf32(run->codes, (utf8proc_ssize_t)run->count,
                                                      UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (count < 0) return st_buf_append_str(out, text);
    if (!st_buf_reserve(out, (size_t)count * 4)) return false;
    for (size_t i = 0; i < (size_t)count; i++)
        out->length += st_utf8_encode((uint32_t)run->codes[i], out->data + out->length);
    return true;
}

/* Nothing composes across the start of an ASCII character. So the text is normalised in runs that begin there, and pure
 * ASCII is copied. */
bool st_nfc_append(st_buf *out, st_str text)
{
    code_run run = {0};
    bool ok = true;
    size_t position = 0;
    while (ok && position < text.length) {
        size_t ascii = position;
        while (ascii < text.length && (unsigned char)text.data[ascii] < 0x80) ascii++;
        if (ascii == text.length) {
            ok = st_buf_append(out, text.data + position, ascii - position);
            break;
        }
        size_t start = ascii > position ? ascii - 1 : ascii, end = ascii;
        while (end < text.length && (unsigned char)text.data[end] >= 0x80) end++;
        st_str part = {text.data + start, end - start};
        ok = st_buf_append(out, text.data + position, start - position) &&
             (st_nfc_is_trivial(part) ? st_buf_append_str(out, part) : append_run(out, &run, part));
        position = end;
    }
    st_free(run.codes);
    st_free(run.sorted);
    return ok;
}
