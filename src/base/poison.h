/* Memory that must not be touched: the address sanitizer reports a read or a write of it. Builds without that sanitizer
 * have ST_POISONS = 0, and the functions do nothing. */
#ifndef ST_BASE_POISON_H
#define ST_BASE_POISON_H

#include <stddef.h>
#include <stdint.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1 /* as gcc says it */
#endif
#endif

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { ST_POISONS = 1 };
#define ST_CHECKS_RANGES __attribute__((no_sanitize("address", "undefined")))
#else
enum { ST_POISONS = 0 };
#define ST_CHECKS_RANGES
#define __asan_region_is_poisoned(memory, bytes) ((void)(memory), (void)(bytes), NULL)
#define ASAN_POISON_MEMORY_REGION(memory, bytes) ((void)(memory), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(memory, bytes) ((void)(memory), (void)(bytes))
#endif

static inline void st_poison(const void *memory, size_t bytes)
{
    ASAN_POISON_MEMORY_REGION(memory, bytes);
}

static inline void st_unpoison(const void *memory, size_t bytes)
{
    ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
}

/* An inner loop that is marked ST_CHECKS_RANGES checks each of its arrays once, instead of every element: tests that
 * run whole models under the sanitizer spend their time there. */
static inline void st_check_range(const void *memory, size_t bytes)
{
    const volatile unsigned char *bad = __asan_region_is_poisoned((void *)(uintptr_t)memory, bytes);
    if (bad) (void)*bad; /* this read is reported */
}

#endif
