/* Plans for other contexts and KV types, and the option that would make decoding fastest. Builds plans and compares
 * their predictions; decides nothing about the plan itself. Pure, as the planner is. */
#ifndef ST_PLAN_ALTERNATIVES_H
#define ST_PLAN_ALTERNATIVES_H

#include "plan/plan.h"

enum { ST_ALTERNATIVE_TYPES = 3, ST_ALTERNATIVE_CONTEXTS = 8 };

/* A context with a KV type; rates are 0 if it does not fit. */
typedef struct st_alternative {
    uint32_t context;
    bool fits;
    double decode_tps, prefill_tps;
} st_alternative;

typedef struct st_alternatives {
    st_type types[ST_ALTERNATIVE_TYPES]; /* [type_count], the plan's first */
    uint32_t type_count, context_count;
    st_alternative table[ST_ALTERNATIVE_TYPES][ST_ALTERNATIVE_CONTEXTS]; /* contexts ascend; one is the plan's */
    uint32_t longest[ST_ALTERNATIVE_TYPES]; /* the longest context that fits, to 1,024 tokens; 0: none */
    char advice[192]; /* the change of options that would make decoding fastest, with the rates; "": none by 5 % */
} st_alternatives;

strata_status st_plan_alternatives(const st_plan_source *source, const st_plan_options *options, const st_plan *plan,
                                   st_alternatives *out, strata_error *error);

/* The time to load the weights: read from disk, or from the page cache. 0: a rate is unknown. */
typedef struct st_load_times {
    double disk_seconds, cache_seconds;
} st_load_times;
st_load_times st_plan_load_times(const st_plan_source *source, const st_plan *plan);

#endif
