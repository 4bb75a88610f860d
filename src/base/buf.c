#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/check.h"

bool st_buf_reserve(st_buf *buf, size_t extra)
{
    if (buf->failed) return false;
    size_t needed;
    if (!st_add_size(buf->length, extra, &needed)) goto fail;
    if (needed <= buf->capacity) return true;
    size_t capacity = buf->capacity ? buf->capacity : 64;
    while (capacity < needed)
        if (!st_mul_size(capacity, 2, &capacity)) goto fail;
    char *data = st_realloc(buf->data, capacity);
    if (!data) goto fail;
    buf->data = data;
    buf->capacity = capacity;
    return true;
fail:
    buf->failed = true;
    return false;
}

bool st_buf_append(st_buf *buf, const void *bytes, size_t length)
{
    if (!st_buf_reserve(buf, length)) return false;
    if (length) memcpy(buf->data + buf->length, bytes, length);
    buf->length += length;
    return true;
}

bool st_buf_append_str(st_buf *buf, st_str text)
{
    return st_buf_append(buf, text.data, text.length);
}

bool st_buf_append_char(st_buf *buf, char c)
{
    return st_buf_append(buf, &c, 1);
}

bool st_buf_printf(st_buf *buf, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    bool ok = length >= 0 && st_buf_reserve(buf, (size_t)length + 1);
    if (ok) {
        vsnprintf(buf->data + buf->length, (size_t)length + 1, format, again);
        buf->length += (size_t)length;
    } else {
        buf->failed = true;
    }
    va_end(again);
    return ok;
}

char *st_buf_take(st_buf *buf, size_t *length)
{
    st_buf_append_char(buf, '\0');
    if (buf->failed) {
        st_buf_free(buf);
        return NULL;
    }
    char *data = buf->data;
    if (length) *length = buf->length - 1;
    *buf = (st_buf){0};
    return data;
}

void st_buf_free(st_buf *buf)
{
    st_free(buf->data);
    *buf = (st_buf){0};
}
