/* How long a step takes, learnt from the steps that ran: a constant, plus a cost for each row of an answer, each row of
 * a prompt and each position that the rows attend to. Pure arithmetic: knows seconds and counts, and no clock. */
#ifndef ST_SCHED_PACE_H
#define ST_SCHED_PACE_H

#include <stdint.h>

/* What a step computes. */
typedef struct st_pace_load {
    uint32_t answers;  /* rows of answers */
    uint32_t rows;     /* rows of prompts */
    uint64_t attended; /* positions before each row, summed over all rows */
} st_pace_load;

enum { ST_PACE_TERMS = 4 };

typedef struct st_pace {
    double seconds[ST_PACE_TERMS]; /* a step, and the unit of each term */
    uint32_t learnt;               /* steps */
} st_pace;

/* First estimates: seconds of a step with one row, and of each row of a large prompt. */
void st_pace_start(st_pace *pace, double step_seconds, double row_seconds);

double st_pace_predict(const st_pace *pace, st_pace_load load);

/* A step took `seconds`. After the first few steps, a step that took several times as long as predicted is an
 * interruption by the machine rather than a cost, and counts as twice the prediction. */
void st_pace_learn(st_pace *pace, st_pace_load load, double seconds);

/* The most rows of a prompt, the first at `position`, with which a step that already computes `load` ends within
 * `seconds`; 0: none. */
uint32_t st_pace_rows(const st_pace *pace, st_pace_load load, uint32_t position, double seconds, uint32_t most);

#endif
