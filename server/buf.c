#include "buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(server_buf *buf, size_t more)
{
    if (buf->failed) return false;
    if (more >= SIZE_MAX / 4 || buf->length >= SIZE_MAX / 4) {
        buf->failed = true;
        return false;
    }
    if (buf->capacity - buf->length > more) return true;
    size_t capacity = (buf->length + more + 64) * 2;
    char *data = realloc(buf->data, capacity);
    if (!data) {
        buf->failed = true;
        return false;
    }
    buf->data = data;
    buf->capacity = capacity;
    return true;
}

void server_buf_add(server_buf *buf, const void *data, size_t length)
{
    if (length == 0 || !reserve(buf, length)) return;
    memcpy(buf->data + buf->length, data, length);
    buf->length += length;
    buf->data[buf->length] = '\0';
}

void server_buf_text(server_buf *buf, const char *text)
{
    server_buf_add(buf, text, strlen(text));
}

void server_buf_printf(server_buf *buf, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (length < 0 || (size_t)length >= sizeof text) buf->failed = true;
    else server_buf_add(buf, text, (size_t)length);
}

/* The bytes of the code point at `text`, or 0 if it is not valid UTF-8. */
static size_t code_point(const unsigned char *text, size_t length)
{
    unsigned char c = text[0];
    if (c < 0x80) return 1;
    size_t bytes = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
    if (c < 0xC2 || c > 0xF4 || bytes > length) return 0;
    for (size_t i = 1; i < bytes; i++)
        if ((text[i] & 0xC0) != 0x80) return 0;
    bool wrong = (c == 0xE0 && text[1] < 0xA0) || (c == 0xED && text[1] > 0x9F) || (c == 0xF0 && text[1] < 0x90) ||
                 (c == 0xF4 && text[1] > 0x8F);
    return wrong ? 0 : bytes;
}

static void add_escaped(server_buf *buf, unsigned char c)
{
    static const char names[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    for (const char *n = names; *n; n += 2)
        if ((unsigned char)*n == c) {
            server_buf_add(buf, (char[]){'\\', n[1]}, 2);
            return;
        }
    server_buf_printf(buf, "\\u%04x", c);
}

void server_buf_json(server_buf *buf, const char *text, size_t length)
{
    if (length == 0) text = "";
    const unsigned char *bytes = (const unsigned char *)text;
    server_buf_add(buf, "\"", 1);
    for (size_t i = 0, plain = 0; i <= length;) {
        bool stop = i == length || bytes[i] < 0x20 || bytes[i] == '"' || bytes[i] == '\\' || bytes[i] == 0x7F;
        size_t step = stop ? 0 : code_point(bytes + i, length - i);
        if (step > 0) {
            i += step;
            continue;
        }
        server_buf_add(buf, text + plain, i - plain);
        if (i == length) break;
        if (stop) add_escaped(buf, bytes[i]);
        else server_buf_text(buf, "\xEF\xBF\xBD");
        plain = ++i;
    }
    server_buf_add(buf, "\"", 1);
}

void server_buf_free(server_buf *buf)
{
    free(buf->data);
    *buf = (server_buf){0};
}

char *server_copy(const char *text, size_t length)
{
    char *copy = malloc(length + 1);
    if (!copy) return NULL;
    if (length) memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}

strata_status server_error(strata_error *error, strata_status status, const char *hint, const char *format, ...)
{
    if (!error) return status;
    va_list args;
    va_start(args, format);
    if (vsnprintf(error->message, sizeof error->message, format, args) < 0) error->message[0] = '\0';
    va_end(args);
    snprintf(error->hint, sizeof error->hint, "%s", hint ? hint : "");
    error->status = status;
    return status;
}
