#include "text.h"

#include <string.h>

void server_text_open(server_text *t, const server_marks *marks, bool thinking, const char *const *stops,
                      size_t stop_count)
{
    *t = (server_text){.state = TEXT_CONTENT, .stops = stops, .stop_count = stop_count, .stopped = SIZE_MAX};
    if (!marks || !marks->open[0]) return;
    t->marks = *marks;
    t->state = thinking ? TEXT_REASONING : TEXT_BEFORE;
    t->trim = thinking;
}

void server_text_free(server_text *t)
{
    server_buf_free(&t->raw);
    server_buf_free(&t->control);
    server_buf_free(&t->held);
}

bool server_text_failed(const server_text *t)
{
    return t->raw.failed || t->control.failed || t->held.failed;
}

static void drop(server_buf *buf, size_t count)
{
    if (count == 0) return;
    memmove(buf->data, buf->data + count, buf->length - count);
    buf->length -= count;
}

/* The longest end of `text` that is the beginning of `word`, but not all of it. */
static size_t overlap(const char *text, size_t length, const char *word)
{
    size_t word_length = strlen(word), most = length < word_length - 1 ? length : word_length - 1;
    for (size_t n = most; n > 0; n--)
        if (memcmp(text + length - n, word, n) == 0) return n;
    return 0;
}

static size_t find(const char *text, size_t length, const char *word)
{
    const char *found = length ? memmem(text, length, word, strlen(word)) : NULL;
    return found ? (size_t)(found - text) : SIZE_MAX;
}

/* ---- stop strings ---------------------------------------------------------------------------------------------- */

static void emit(server_text *t, server_kind kind, const char *text, size_t length)
{
    if (length > 0) t->emit(t->context, kind, text, length);
}

static void emit_content(server_text *t, const char *text, size_t length)
{
    server_buf_add(&t->held, text, length);
    size_t first = SIZE_MAX, keep = 0;
    for (size_t i = 0; i < t->stop_count; i++) {
        size_t place = find(t->held.data, t->held.length, t->stops[i]);
        if (place < first) {
            first = place;
            t->stopped = i;
        }
        size_t held = t->held.length ? overlap(t->held.data, t->held.length, t->stops[i]) : 0;
        if (held > keep) keep = held;
    }
    size_t shown = first != SIZE_MAX ? first : t->held.length - keep;
    emit(t, KIND_CONTENT, t->held.data, shown);
    drop(&t->held, shown);
}

/* ---- parts ----------------------------------------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static void drop_raw(server_text *t, size_t count)
{
    drop(&t->raw, count);
    drop(&t->control, count);
}

/* Moves the first `count` bytes to their part, without the text of control tokens. */
static void move(server_text *t, size_t count)
{
    for (size_t i = 0; i < count;) {
        size_t end = i;
        while (end < count && t->control.data[end] == t->control.data[i]) end++;
        if (!t->control.data[i]) {
            if (t->state == TEXT_REASONING) emit(t, KIND_REASONING, t->raw.data + i, end - i);
            else if (t->stopped == SIZE_MAX) emit_content(t, t->raw.data + i, end - i);
        }
        i = end;
    }
    drop_raw(t, count);
}

static size_t spaces_before(const server_text *t, size_t end)
{
    size_t start = end;
    while (start > 0 && is_space(t->raw.data[start - 1])) start--;
    return end - start;
}

static void trim(server_text *t)
{
    size_t count = 0;
    while (count < t->raw.length && (is_space(t->raw.data[count]) || t->control.data[count])) {
        /* A mark may be a control token. */
        if (t->control.data[count] && t->state == TEXT_REASONING) break;
        count++;
    }
    drop_raw(t, count);
    if (t->raw.length > 0) t->trim = false;
}

/* Before the first text: does it begin with the open mark? False: more text is needed. */
static bool begin(server_text *t, bool last)
{
    size_t spaces = 0, open = strlen(t->marks.open);
    while (spaces < t->raw.length && is_space(t->raw.data[spaces])) spaces++;
    size_t rest = t->raw.length - spaces;
    bool like = rest == 0 || memcmp(t->raw.data + spaces, t->marks.open, rest < open ? rest : open) == 0;
    if (like && rest < open && !last) return false;
    if (like && rest >= open) {
        drop_raw(t, spaces + open);
        t->state = TEXT_REASONING;
        t->trim = true;
    } else {
        t->state = TEXT_CONTENT;
    }
    return true;
}

/* Emits reasoning up to the close mark. False: more text is needed. */
static bool reason(server_text *t, bool last)
{
    size_t close = find(t->raw.data, t->raw.length, t->marks.close);
    if (close != SIZE_MAX) {
        size_t spaces = spaces_before(t, close);
        move(t, close - spaces);
        drop_raw(t, spaces + strlen(t->marks.close));
        t->state = TEXT_CONTENT;
        t->trim = true;
        return true;
    }
    size_t keep = 0;
    if (!last && t->raw.length > 0) {
        keep = overlap(t->raw.data, t->raw.length, t->marks.close);
        keep += spaces_before(t, t->raw.length - keep);
    }
    move(t, t->raw.length - keep);
    return false;
}

static void sort_out(server_text *t, bool last)
{
    if (t->state == TEXT_BEFORE && !begin(t, last)) return;
    if (t->trim) trim(t);
    if (t->state == TEXT_REASONING && !reason(t, last)) return;
    if (t->trim) trim(t);
    if (t->state == TEXT_CONTENT) move(t, t->raw.length);
}

bool server_text_push(server_text *t, const char *text, size_t length, bool control)
{
    static const char plain[64] = {0};
    if (t->stopped != SIZE_MAX) return false;
    for (size_t i = 0; control && i < t->stop_count; i++)
        if (strlen(t->stops[i]) == length && memcmp(t->stops[i], text, length) == 0) t->stopped = i;
    if (t->stopped != SIZE_MAX) return false;
    server_buf_add(&t->raw, text, length);
    for (size_t done = 0; done < length; done += sizeof plain) {
        size_t count = length - done < sizeof plain ? length - done : sizeof plain;
        server_buf_add(&t->control, plain, count);
    }
    if (server_text_failed(t)) return true;
    if (control) memset(t->control.data + t->control.length - length, 1, length);
    sort_out(t, false);
    return t->stopped == SIZE_MAX;
}

void server_text_finish(server_text *t)
{
    if (server_text_failed(t)) return;
    sort_out(t, true);
    if (t->stopped == SIZE_MAX) emit(t, KIND_CONTENT, t->held.data, t->held.length);
    t->held.length = 0;
}
