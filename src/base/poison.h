/* Memory that must not be touched: the address sanitizer reports a read or a write of it. Builds without that sanitizer
 * have ST_POISONS = 0, and the functions do nothing. */
#ifndef ST_BASE_POISON_H
#define ST_BASE_POISON_H

#include <stddef.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1 /* as gcc says it */
#endif
#endif

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { ST_POISONS = 1 };
#else
enum { ST_POISONS = 0 };
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

#endif
