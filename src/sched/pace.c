#include "sched/pace.h"

#include <math.h>

/* The units bring the terms to similar sizes, so that an error is shared among them in proportion to what they
 * contribute to a usual step. */
enum { UNIT_ANSWERS = 8, UNIT_ROWS = 128, UNIT_ATTENDED = 128 * 2048 };
enum { FIRST_STEPS = 8 };      /* they correct estimates that may be far off */
static const double RATE = 0.5; /* of an error that a step corrects */

static void terms_of(st_pace_load load, double x[ST_PACE_TERMS])
{
    x[0] = 1.0;
    x[1] = (double)load.answers / UNIT_ANSWERS;
    x[2] = (double)load.rows / UNIT_ROWS;
    x[3] = (double)load.attended / UNIT_ATTENDED;
}

void st_pace_start(st_pace *pace, double step_seconds, double row_seconds)
{
    *pace = (st_pace){.seconds = {step_seconds, 0.0, row_seconds * UNIT_ROWS, 0.0}};
}

double st_pace_predict(const st_pace *pace, st_pace_load load)
{
    double x[ST_PACE_TERMS], sum = 0.0;
    terms_of(load, x);
    for (int i = 0; i < ST_PACE_TERMS; i++) sum += pace->seconds[i] * x[i];
    return sum;
}

void st_pace_learn(st_pace *pace, st_pace_load load, double seconds)
{
    double x[ST_PACE_TERMS], norm = 0.0, predicted = st_pace_predict(pace, load);
    if (!(seconds >= 0.0) || isinf(seconds)) return;
    if (pace->learnt >= FIRST_STEPS && seconds > 2.0 * predicted) seconds = 2.0 * predicted;
    terms_of(load, x);
    for (int i = 0; i < ST_PACE_TERMS; i++) norm += x[i] * x[i];
    double rate = pace->learnt < FIRST_STEPS ? 1.0 : RATE;
    for (int i = 0; i < ST_PACE_TERMS; i++)
        pace->seconds[i] = fmax(0.0, pace->seconds[i] + rate * (seconds - predicted) * x[i] / norm);
    pace->learnt += pace->learnt < FIRST_STEPS;
}

/* The load with `rows` more rows of a prompt, the first at `position`. */
static st_pace_load with_rows(st_pace_load load, uint32_t position, uint32_t rows)
{
    load.rows += rows;
    load.attended += (uint64_t)rows * position + (uint64_t)rows * rows / 2;
    return load;
}

uint32_t st_pace_rows(const st_pace *pace, st_pace_load load, uint32_t position, double seconds, uint32_t most)
{
    uint32_t low = 0, high = most; /* the prediction grows with the rows */
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (st_pace_predict(pace, with_rows(load, position, middle)) <= seconds) low = middle;
        else high = middle - 1;
    }
    return low;
}
