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

#endif
