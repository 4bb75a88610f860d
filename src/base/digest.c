#include "base/digest.h"

#include <string.h>

enum { LANES = 4, WORD = 8, BLOCK = LANES * WORD };

static const uint64_t odd[LANES] = {0x9E3779B97F4A7C15u, 0xC2B2AE3D27D4EB4Fu, 0x165667B19E3779F9u, 0xD6E8FEB86659FD93u};

static uint64_t rotate(uint64_t value, int bits)
{
    return value << bits | value >> (64 - bits);
}

/* Little-endian on every machine. */
static uint64_t word_at(const unsigned char *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static uint64_t spread(uint64_t value)
{
    value ^= value >> 32;
    value *= odd[0];
    value ^= value >> 29;
    value *= odd[1];
    return value ^ value >> 32;
}

static void mix_block(uint64_t lanes[LANES], const unsigned char *block)
{
    for (int i = 0; i < LANES; i++)
        lanes[i] = rotate((lanes[i] ^ word_at(block + i * WORD)) * odd[i], 29) + odd[(i + 1) % LANES];
}

st_digest st_digest_add(st_digest before, const void *bytes, size_t length)
{
    const unsigned char *at = bytes;
    uint64_t lanes[LANES] = {before.words[0], before.words[1] ^ odd[2], before.words[0] + odd[3], before.words[1]};
    size_t left = length;
    for (; left >= BLOCK; left -= BLOCK, at += BLOCK) mix_block(lanes, at);
    unsigned char last[BLOCK] = {0};
    if (left) memcpy(last, at, left);
    mix_block(lanes, last);
    st_digest out = {{length, ~(uint64_t)length}};
    for (int i = 0; i < LANES; i++) {
        out.words[0] = spread(out.words[0] ^ lanes[i]) + odd[i];
        out.words[1] = spread(out.words[1] + rotate(lanes[i], 17)) ^ odd[i];
    }
    return out;
}
