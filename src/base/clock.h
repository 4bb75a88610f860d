/* The monotonic clock. */
#ifndef ST_BASE_CLOCK_H
#define ST_BASE_CLOCK_H

#include <time.h>

/* Seconds since an unspecified point. */
static inline double st_clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
