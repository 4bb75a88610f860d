#include "base/utf8.h"

/* The range of the second byte excludes overlong forms, surrogates and code points beyond U+10FFFF. */
static size_t sequence_length(unsigned char lead, unsigned char *second_min, unsigned char *second_max)
{
    *second_min = 0x80;
    *second_max = 0xBF;
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) return 2;
    if (lead >= 0xE0 && lead <= 0xEF) {
        if (lead == 0xE0) *second_min = 0xA0;
        if (lead == 0xED) *second_max = 0x9F;
        return 3;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        if (lead == 0xF0) *second_min = 0x90;
        if (lead == 0xF4) *second_max = 0x8F;
        return 4;
    }
    return 0;
}

/* Checks one sequence: how many of its bytes are valid, and how many it needs. */
static size_t good_bytes(const unsigned char *text, size_t length, size_t *needed)
{
    unsigned char low, high;
    *needed = sequence_length(text[0], &low, &high);
    if (*needed == 0) return 0;
    size_t good = 1;
    while (good < *needed && good < length && text[good] >= low && text[good] <= high) {
        good++;
        low = 0x80;
        high = 0xBF;
    }
    return good;
}

size_t st_utf8_decode(const char *text, size_t length, uint32_t *code)
{
    const unsigned char *bytes = (const unsigned char *)text;
    if (bytes[0] < 0x80) {
        *code = bytes[0];
        return 1;
    }
    size_t needed, good = good_bytes(bytes, length, &needed);
    if (needed == 0 || good < needed) {
        *code = UINT32_MAX;
        return good ? good : 1;
    }
    uint32_t value = bytes[0] & (0xFFu >> (needed + 1));
    for (size_t i = 1; i < needed; i++) value = value << 6 | (bytes[i] & 0x3Fu);
    *code = value;
    return needed;
}

size_t st_utf8_encode(uint32_t code, char *out)
{
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) code = ST_UTF8_REPLACEMENT;
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (code & 0x3F));
        code >>= 6;
    }
    out[0] = (char)((0xF00u >> length & 0xFFu) | code);
    return length;
}

size_t st_utf8_valid_prefix(const char *text, size_t length)
{
    size_t position = 0;
    while (position < length) {
        uint32_t code;
        size_t taken = st_utf8_decode(text + position, length - position, &code);
        if (code == UINT32_MAX) break;
        position += taken;
    }
    return position;
}

size_t st_utf8_unfinished_tail(const char *text, size_t length)
{
    const unsigned char *bytes = (const unsigned char *)text;
    for (size_t back = 1; back <= 3 && back <= length; back++) {
        size_t start = length - back, needed;
        if ((bytes[start] & 0xC0) == 0x80) continue;
        return good_bytes(bytes + start, back, &needed) == back && needed > back ? back : 0;
    }
    return 0;
}

bool st_utf8_repair(st_buf *out, const char *text, size_t length)
{
    size_t position = 0;
    while (position < length) {
        size_t valid = st_utf8_valid_prefix(text + position, length - position);
        st_buf_append(out, text + position, valid);
        position += valid;
        if (position == length) break;
        uint32_t code;
        position += st_utf8_decode(text + position, length - position, &code);
        st_buf_append(out, "\xEF\xBF\xBD", 3);
    }
    return !out->failed;
}
