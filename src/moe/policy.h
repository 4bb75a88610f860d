/* What a cached expert is worth: one row per policy over the marks of a layer. A policy knows when and how often experts
 * were asked for and with which weight; it knows no slots but who is in one, and no uploads. */
#ifndef ST_MOE_POLICY_H
#define ST_MOE_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The marks of one layer; [experts] each. */
typedef struct st_marks {
    uint32_t experts, slots, used;
    int64_t clock;         /* one tick per touch */
    int64_t *stamp;        /* the last touch; 0: never, below: placed at load, the first of them nearest to 0 */
    double *slow, *fast;   /* decayed uses, times the gains below */
    double slow_gain, fast_gain;
    double slow_sum, fast_sum; /* what one use in every token of the event adds up to, decay included */
    bool *resident;        /* in a slot, or on the way to one */
    bool *guarded;         /* in the protected segment */
    uint32_t guarded_count;
} st_marks;

/* What an event says of one expert, per token: how much of a token's demand it was (0 to 1), by count and by weight. */
typedef struct st_touch {
    uint32_t expert;
    double share, weight;
} st_touch;

typedef struct st_policy {
    const char *name;
    uint32_t admission; /* the touch that it uploads on unless told otherwise */
    bool choosy;        /* what is worth less than all in the slots is not uploaded */
    double slow_weight, fast_share; /* of decayed uses: the part of the router's weights, and of the fast decay */
    double unit;        /* the worth of one that every token uses; 0: its worth is no frequency */
    void (*touch)(const struct st_policy *policy, st_marks *marks, const st_touch *touch);
    double (*worth)(const struct st_policy *policy, const st_marks *marks, uint32_t expert);
} st_policy;

/* The rows, the default first. */
extern const st_policy st_policies[];
extern const size_t st_policy_count;
const st_policy *st_policy_find(const char *name); /* NULL: the default. NULL back: there is none of that name */

/* `tokens` went by, before their touches. */
void st_marks_age(st_marks *marks, uint32_t tokens);
void st_marks_enter(st_marks *marks, uint32_t expert);
void st_marks_leave(st_marks *marks, uint32_t expert);

/* Whether `a` would rather be evicted than `b`: worth less, or asked for longer ago. */
bool st_policy_before(const st_policy *policy, const st_marks *marks, uint32_t a, uint32_t b);

#endif
