/* The scheduler's decisions: which requests are admitted, what the next step holds, who gives way when memory runs out.
 * Pure functions over a list of tasks: they know tokens, pages and seconds, and no thread, clock, conversation or
 * device. A task is a request as the decisions see it. */
#ifndef ST_SCHED_POLICY_H
#define ST_SCHED_POLICY_H

#include <stdbool.h>

#include "sched/pace.h"

#define ST_NO_TASK UINT32_MAX

typedef struct st_task {
    double arrived;     /* seconds */
    uint32_t position;  /* tokens stored; of a task that waits: tokens in the prefix cache */
    uint32_t end;       /* tokens to be stored */
    uint32_t stop;      /* a piece ends here at the latest, for a restore point; UINT32_MAX: anywhere */
    uint32_t adopts;    /* of a task that waits: cached pages that would be held from then on */
    bool copies;        /* the page of its next token is shared: writing takes one page more */
    bool admitted;      /* has a place; else it waits for one */
    bool answers;       /* its next token was generated */
    bool blocked;       /* cannot run now */
    bool alone;         /* runs only while nobody else does */
} st_task;

typedef struct st_policy {
    uint32_t rows;        /* the most of a step */
    uint32_t places;      /* tasks admitted at a time */
    uint32_t page_tokens;
    uint32_t multiple;    /* pieces of prompts end at its multiples, whatever they cost; 0: anywhere */
    double answer_seconds; /* budget of a step while anybody answers */
    double prompt_seconds; /* otherwise */
    uint32_t prompt_rows;  /* … but a prompt then has these rows of a step, whatever they cost; 0: the least */
    bool streamed;        /* a step with rows of prompts streams weights: its cost hardly depends on the rows */
} st_policy;

/* With streamed weights, answers have this share of the time while prompts run. */
#define ST_POLICY_ANSWER_SHARE 0.4
enum { ST_POLICY_ROWS_MIN = 16 }; /* a prompt that runs gets at least these rows of a step */

/* The memory and the time of a decision. */
typedef struct st_policy_state {
    const st_pace *pace;
    uint32_t places_held; /* by nobody's task: kept for the next call of a session */
    uint32_t room;        /* pages that tasks may take */
    double owed;          /* seconds of answers alone, before the next rows of a prompt: st_policy_owed */
} st_policy_state;

/* Prompts run in the order of this number: seconds of arrival plus seconds that the rest of the prompt takes. A short
 * prompt passes a long one only if that came less than its own length before it: nobody starves. */
double st_policy_key(const st_policy_state *state, const st_task *task);

/* Pages that a task takes for its next `count` tokens. */
uint32_t st_policy_pages(const st_policy *policy, const st_task *task, uint32_t count);

/* The task to admit now; ST_NO_TASK: none. What does not fit waits, and so does everybody behind it. A task is
 * admitted if no other is, so that a refusal comes from the memory itself. */
uint32_t st_policy_admit(const st_policy *policy, const st_policy_state *state, const st_task *tasks, uint32_t count);

/* The admitted task that gives its pages up, because the next tokens of the others do not fit: the last to arrive;
 * ST_NO_TASK: none has to, or only one is admitted. */
uint32_t st_policy_park(const st_policy *policy, const st_policy_state *state, const st_task *tasks, uint32_t count);

typedef struct st_policy_piece {
    uint32_t task, count;
} st_policy_piece;

/* The pieces of the next step, at most one for each admitted task; 0: nothing can run. Prompts come first in the step,
 * in the order of their keys, and answers behind them. */
uint32_t st_policy_step(const st_policy *policy, const st_policy_state *state, const st_task *tasks, uint32_t count,
                        st_policy_piece *pieces);

/* What a step that took `seconds` changes in `owed`: with streamed weights, rows of prompts owe answers their share. */
double st_policy_owed(const st_policy *policy, double owed, st_pace_load load, double seconds);

#endif
