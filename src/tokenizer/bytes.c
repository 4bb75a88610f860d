#include "base/utf8.h"
#include "tokenizer/internal.h"

/* Printable bytes map to themselves, the others in order to U+0100 and up. */
static bool is_itself(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

uint32_t st_byte_letter(unsigned char byte)
{
    if (is_itself(byte)) return byte;
    if (byte <= 0x20) return 0x100u + byte;             /* 33 of them */
    if (byte <= 0xA0) return 0x100u + 33 + byte - 0x7F; /* 34 of them */
    return 0x100 + 33 + 34;                             /* 0xAD */
}

int st_byte_of_letter(uint32_t code)
{
    if (code < 0x100) return is_itself(code) ? (int)code : -1;
    code -= 0x100;
    if (code < 33) return (int)code;
    if (code < 33 + 34) return (int)code - 33 + 0x7F;
    return code == 33 + 34 ? 0xAD : -1;
}

bool st_bytes_append_letters(st_buf *out, st_str bytes)
{
    for (size_t i = 0; i < bytes.length; i++) {
        char letter[4];
        st_buf_append(out, letter, st_utf8_encode(st_byte_letter((unsigned char)bytes.data[i]), letter));
    }
    return !out->failed;
}
