/* Float16 and bfloat16 conversions by integer arithmetic, so that no processor flag affects them. */
#include "quant/quant.h"

typedef union bits_or_float {
    uint32_t bits;
    float value;
} bits_or_float;

static float float_of_bits(uint32_t bits)
{
    return (bits_or_float){.bits = bits}.value;
}

static uint32_t bits_of_float(float value)
{
    return (bits_or_float){.value = value}.bits;
}

float st_half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = half >> 10 & 0x1F, fraction = half & 0x3FF;
    if (exponent == 0x1F) return float_of_bits(sign | 0x7F800000u | fraction << 13);
    if (exponent != 0) return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    if (fraction == 0) return float_of_bits(sign);
    /* A subnormal float16 is a normal float: shift until the leading one is at the implicit bit. */
    exponent = 113;
    while (!(fraction & 0x400)) {
        fraction <<= 1;
        exponent--;
    }
    return float_of_bits(sign | exponent << 23 | (fraction & 0x3FF) << 13);
}

/* value >> shift, rounded to nearest, ties to even; 1 <= shift <= 31. */
static uint32_t shift_rounding(uint32_t value, uint32_t shift)
{
    uint32_t kept = value >> shift, rest = value & ((1u << shift) - 1), tie = 1u << (shift - 1);
    return kept + (rest > tie || (rest == tie && (kept & 1)));
}

uint16_t st_float_to_half(float value)
{
    uint32_t bits = bits_of_float(value), magnitude = bits & 0x7FFFFFFF;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (magnitude > 0x7F800000) { /* NaN keeps its top payload bits and never becomes an infinity */
        uint32_t payload = magnitude >> 13 & 0x3FF;
        return (uint16_t)(sign | 0x7C00 | (payload ? payload : 0x200));
    }
    if (magnitude >= 0x477FF000) return (uint16_t)(sign | 0x7C00); /* rounds to 65536 or more */
    if (magnitude < 0x33000000) return sign;                       /* below half of the smallest subnormal */
    uint32_t exponent = magnitude >> 23;
    /* Rounding may carry into the exponent, which gives the correct result. */
    if (exponent >= 113) return (uint16_t)(sign | shift_rounding(magnitude - (112u << 23), 13));
    uint32_t fraction = (magnitude & 0x7FFFFF) | 0x800000;
    return (uint16_t)(sign | shift_rounding(fraction, 126 - exponent));
}

float st_bf16_to_float(uint16_t bits)
{
    return float_of_bits((uint32_t)bits << 16);
}

uint16_t st_float_to_bf16(float value)
{
    uint32_t bits = bits_of_float(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(bits >> 16 | 0x40); /* NaN stays NaN, and quiet */
    return (uint16_t)shift_rounding(bits, 16);
}
