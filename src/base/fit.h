/* A line through measured points: what does not grow with the work, and what each unit of it takes. */
#ifndef ST_BASE_FIT_H
#define ST_BASE_FIT_H

#include <stddef.h>

typedef struct st_fit_point {
    double work, seconds;
} st_fit_point;

typedef struct st_fit {
    double fixed, each; /* seconds; neither is negative */
} st_fit;

/* The line with the least sum of squared relative errors. Points without time are left out; without any, both are 0. */
static inline st_fit st_fit_line(const st_fit_point *points, size_t count)
{
    double a = 0, b = 0, c = 0, d = 0, e = 0; /* sums over (fixed + each × work) / seconds − 1 */
    for (size_t i = 0; i < count; i++) {
        if (!(points[i].seconds > 0)) continue;
        double one = 1 / points[i].seconds, work = points[i].work / points[i].seconds;
        a += one * one;
        b += one * work;
        c += work * work;
        d += one;
        e += work;
    }
    double determinant = a * c - b * b;
    st_fit fit = {0, 0};
    if (determinant > 1e-9 * a * c) {
        fit.fixed = (d * c - b * e) / determinant;
        fit.each = (a * e - b * d) / determinant;
        if (fit.fixed >= 0 && fit.each >= 0) return fit;
    }
    /* One of them is 0: without a fixed part unless more work takes less time. */
    if (c > 0 && fit.each >= 0) return (st_fit){.each = e / c};
    return (st_fit){.fixed = a > 0 ? d / a : 0};
}

#endif
