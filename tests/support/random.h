/* Random numbers for tests: the same in every run, from a seed that a failing test can print. */
#ifndef TEST_SUPPORT_RANDOM_H
#define TEST_SUPPORT_RANDOM_H

#include <stdint.h>

static uint64_t random_state = 1;

static inline uint32_t random_bits(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33); /* 31 bits */
}

/* Between −1 and 1. */
static inline float random_even(void)
{
    return (float)random_bits() / (float)0x40000000u - 1.0f;
}

/* Roughly normal, with a variance of 4 / 3. */
static inline float random_float(void)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += random_even();
    return sum;
}

static inline uint32_t between(uint32_t low, uint32_t high)
{
    return low + random_bits() % (high - low + 1);
}

#endif
