/* Replacement policies: what an expert is worth, from the marks of its layer. A policy knows when, how often and with
 * which weight experts were chosen, and which are resident; it knows neither slots nor uploads. */
#ifndef ST_MOE_POLICY_H
#define ST_MOE_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The marks of one layer; [experts] each. */
typedef struct st_marks {
    uint32_t experts, slots, used;
    int64_t clock;         /* one tick per touch */
    int64_t *stamp;        /* of the last touch; 0: never; below 0: placed at load, −1 the first */
    double *slow, *fast;   /* decayed uses, times the gains below */
    double slow_gain, fast_gain;
    double slow_sum, fast_sum; /* decayed uses that an expert gets if every token of the event chooses it */
    bool *resident;        /* in a slot, or its upload is under way */
    bool *guarded;         /* in the protected segment */
    uint32_t guarded_count;
} st_marks;

/* One expert of an event: its share of the tokens (0 to 1), by count and by the router's weights. */
typedef struct st_touch {
    uint32_t expert;
    double share, weight;
} st_touch;

typedef struct st_policy {
    const char *name;
    uint32_t admission; /* the touch on which it uploads by default */
    bool choosy;        /* it uploads only an expert that is worth more than the one it evicts */
    double slow_weight, fast_share; /* of decayed uses: the part weighted by the router, and that of the fast decay */
    double unit;        /* the worth of an expert that every token uses; 0: the worth is not a frequency */
    void (*touch)(const struct st_policy *policy, st_marks *marks, const st_touch *touch);
    double (*worth)(const struct st_policy *policy, const st_marks *marks, uint32_t expert);
} st_policy;

/* The policies, the default first. */
extern const st_policy st_policies[];
extern const size_t st_policy_count;
const st_policy *st_policy_find(const char *name); /* NULL: the default. Returns NULL for an unknown name */

/* Decays the marks by `tokens`; called before their touches. */
void st_marks_age(st_marks *marks, uint32_t tokens);
void st_marks_enter(st_marks *marks, uint32_t expert);
void st_marks_leave(st_marks *marks, uint32_t expert);

/* Whether `a` is evicted before `b`: it is worth less, or its last touch is older. */
bool st_policy_before(const st_policy *policy, const st_marks *marks, uint32_t a, uint32_t b);

#endif
