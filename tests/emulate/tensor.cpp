#include "emulate/tensor.h"

#include <cuda_fp16.h>
#include <string.h>

#include "emulate/emulate.h"

enum { ALL_LANES = -1, HALVES = 1 << 16, ROW_BYTES = 16 };

/* A lane's part of a (16 × K) and of b (K × 8): registers with PER elements along K each. */
template <class T, int PER> struct fragments {
    T a[4][PER], b[2][PER];
};

/* Every f16 as a float. */
struct half_table {
    float floats[HALVES];

    half_table()
    {
        for (unsigned i = 0; i < HALVES; i++) floats[i] = __half2float(__ushort_as_half((unsigned short)i));
    }
};

static void unpack(unsigned word, float *out)
{
    static const half_table table;
    out[0] = table.floats[word & 0xFFFF];
    out[1] = table.floats[word >> 16];
}

/* The fragments of all lanes. */
template <class T, int PER>
static const emulate_value *exchange(const unsigned *a, unsigned b0, unsigned b1, int line)
{
    fragments<T, PER> own;
    emulate_value value = {};
    static_assert(sizeof own <= sizeof value, "a lane's fragments");
    for (int i = 0; i < 4; i++) unpack(a[i], own.a[i]);
    unpack(b0, own.b[0]);
    unpack(b1, own.b[1]);
    memcpy(value.words, &own, sizeof own);
    return emulate_meet((unsigned)ALL_LANES, value, line);
}

/* Lane 4 g + t has rows g and g + 8 and columns 2 t and 2 t + 1 of c. Along K, the registers of four neighbouring
 * lanes follow each other, then those of their second register. */
template <class T, int PER, class Sum>
static void multiply(Sum *c, const unsigned *a, unsigned b0, unsigned b1, int line)
{
    const emulate_value *all = exchange<T, PER>(a, b0, b1, line);
    unsigned g = emulate_lane() / 4, t = emulate_lane() % 4;
    for (unsigned half = 0; half < 2; half++) {
        for (unsigned k = 0; k < 4; k++) {
            fragments<T, PER> rows, columns[2];
            memcpy(&rows, all[4 * g + k].words, sizeof rows);
            for (unsigned i = 0; i < 2; i++) memcpy(&columns[i], all[4 * (2 * t + i) + k].words, sizeof columns[i]);
            for (unsigned e = 0; e < 4; e++)
                for (int i = 0; i < PER; i++) c[e] += (Sum)rows.a[2 * half + e / 2][i] * (Sum)columns[e % 2].b[half][i];
        }
    }
}

void emulate_mma_f16(float *c, const unsigned *a, unsigned b0, unsigned b1, int line)
{
    multiply<float, 2>(c, a, b0, b1, line);
}

void emulate_load_matrices(unsigned *out, const void *row, bool transposed, int line)
{
    emulate_value own = {};
    emulate_aligned(row, ROW_BYTES);
    memcpy(own.words, row, ROW_BYTES);
    const emulate_value *all = emulate_meet((unsigned)ALL_LANES, own, line);
    unsigned g = emulate_lane() / 4, t = emulate_lane() % 4;
    for (unsigned m = 0; m < 4; m++) {
        out[m] = 0;
        for (unsigned e = 0; e < 2; e++) {
            unsigned short element;
            unsigned r = transposed ? 2 * t + e : g, column = transposed ? g : 2 * t + e;
            memcpy(&element, (const char *)all[8 * m + r].words + 2 * column, sizeof element);
            out[m] |= (unsigned)element << 16 * e;
        }
    }
}
