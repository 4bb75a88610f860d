/* A plan in the making. A draft is a handful of decisions; placing it says where every operation runs, sizing it what
 * that takes on each device. Both are cheap, so that the planner may try hundreds. Knows bytes; prices no time. */
#ifndef ST_PLAN_DRAFT_H
#define ST_PLAN_DRAFT_H

#include "base/number.h"
#include "plan/plan.h"

/* What of a layer decides where it can be. */
typedef struct st_layer_facts {
    uint32_t dense_index;   /* which dense layer from the first; UINT32_MAX: its feed-forward part goes with the rest */
    uint32_t moe_index;     /* which layer with routed experts from the first; UINT32_MAX: it has none */
    uint32_t experts, used;
    bool state_on_card;     /* the card runs all that works on its keys, values or state */
    bool experts_on_card;   /* the card runs its routed experts */
} st_layer_facts;

typedef struct st_draft {
    /* decisions */
    st_moe_mode mode;       /* ST_MOE_AUTO: the model has no routed experts */
    uint32_t trunk;         /* layers, from the first, whose attention part is on the card; 0: no card takes part */
    uint32_t ffn;           /* dense feed-forward parts of those, from the first that may be there */
    bool output, nextn;
    uint32_t slots, more;   /* of every layer with a cache; the first `more` of them have one more */
    uint32_t context;
    /* by placing */
    st_type kv_type;
    size_t weight_bytes[ST_DEVICES_MAX], expert_bytes[ST_DEVICES_MAX];
    size_t weights_end;     /* in the card's block, resident experts included */
    /* by sizing */
    uint32_t batch, out_rows;
    st_plan_device devices[ST_DEVICES_MAX];
    st_plan_sequence sequence[ST_DEVICES_MAX]; /* without the layout's layers */
    size_t slots_offset, expert_staging_offset, expert_staging_bytes, sequences_offset[ST_DEVICES_MAX];
    size_t block_used[ST_DEVICES_MAX]; /* before rounding up */
    bool fits[ST_DEVICES_MAX];
    uint64_t disk_bytes;    /* of the host's weights: what stays in the file */
} st_draft;

enum { ST_PLAN_LINES_MAX = 48, ST_DEPTH_DEFAULT = 4096 };

typedef struct st_lines {
    const char *lines[ST_PLAN_LINES_MAX];
    uint32_t count;
} st_lines;

typedef struct st_planner {
    const st_plan_source *source;
    st_plan_options options; /* what has one default for all models is filled in */
    st_arena *arena;
    uint32_t layer_count;    /* of the forward pass */
    uint32_t kv_layer_count; /* and the NextN block */
    uint32_t dense_count, moe_count;
    bool card;               /* there is one, and the options allow it */
    st_layer_facts *layers;  /* [kv_layer_count] */
    uint64_t *slot_bytes;    /* [kv_layer_count] */
    bool *card_runs;         /* [operations] */
    int32_t output_matrix;
    uint64_t capacity_bytes[ST_DEVICES_MAX], margin_bytes[ST_DEVICES_MAX];
    /* of the draft last placed */
    uint8_t *op_device, *kv_device, *weight_devices;
    uint32_t *slots;         /* [kv_layer_count] */
    /* of the batch last asked for */
    st_scratch *scratch[ST_DEVICES_MAX]; /* [operations] */
    uint32_t scratch_batch;
    st_lines why, lacking;
    bool out_of_memory;      /* a line found none */
    double tried_tps[4];     /* [st_moe_mode]: predicted when the mode was chosen; 0: not tried, or it does not fit */
} st_planner;

/* --- place.c ----------------------------------------------------------------------------------------------------- */

/* Fills in what the planner knows of layers and operations. False: out of memory. */
bool st_planner_survey(st_planner *planner);

/* The order in which parts come to the card: every step has all that the one before it has, and takes more of the card
 * and less of the host. -g fixes the first step; the last has everything but expert slots. */
uint32_t st_draft_step_last(const st_planner *planner);
void st_draft_set_step(const st_planner *planner, uint32_t step, st_draft *draft);

/* Where every operation, layer and weight goes. A layer with a cache may have no slots yet. */
void st_draft_place(st_planner *planner, st_draft *draft);

/* The card's weights in the binding's order, routed experts behind all others; `offsets` (NULL: not wanted) is
 * [weights], SIZE_MAX where one is not there. Returns where they end. */
size_t st_weights_lay_out(const st_planner *planner, size_t *offsets);

/* Whether routed experts of the layer may have slots in this draft. */
bool st_draft_has_cache(const st_planner *planner, const st_draft *draft, uint32_t layer);

/* --- sizes.c ----------------------------------------------------------------------------------------------------- */

/* Of the draft that was placed last; its context and slots may have changed since. */
void st_draft_size(st_planner *planner, st_draft *draft);
bool st_draft_fits(const st_draft *draft);
/* What a device is short of. 0: it fits. */
uint64_t st_draft_missing(const st_draft *draft, uint32_t device);

/* As many slots as fit, evenly, one more for the first layers; of a draft that was sized without any. */
void st_draft_fill_slots(const st_planner *planner, st_draft *draft);
/* What the card has for routed experts, its experts, slots and their staging included. */
uint64_t st_draft_expert_budget(const st_draft *draft);

/* --- context.c --------------------------------------------------------------------------------------------------- */

/* The best placement of the mode for a context; its slots if it has any. False: it does not fit, and the draft is the
 * smallest that was tried. `whole`: everything but slots has to be on the card. */
bool st_draft_at(st_planner *planner, st_moe_mode mode, bool whole, uint32_t context, st_draft *out);

/* The same with the context chosen where the options leave it open. */
strata_status st_draft_with_context(st_planner *planner, st_moe_mode mode, st_draft *out, bool *fits,
                                    strata_error *error);

/* The largest context from `from` (which fits) to `to`, in steps of `step`, that the draft's placement has room for. */
uint32_t st_draft_largest_context(st_planner *planner, const st_draft *draft, uint32_t from, uint32_t to,
                                  uint32_t step);

uint32_t st_context_fixed(const st_planner *planner); /* clamped to the model's; 0: to be chosen */
uint32_t st_context_usual(const st_planner *planner, st_moe_mode mode); /* at which modes are compared */

/* --- modes.c ----------------------------------------------------------------------------------------------------- */

/* Chooses the mode of routed experts and drafts it. A refusal if nothing fits. */
strata_status st_draft_choose(st_planner *planner, st_draft *out, strata_error *error);

/* A draft as far as a prediction looks at it; good until the next one is placed. */
st_plan st_draft_view(const st_planner *planner, const st_draft *draft);

/* Tokens per second of decoding at ST_DEPTH_DEFAULT, or as deep as the context goes. */
strata_status st_draft_decode_tps(const st_planner *planner, const st_draft *draft, double *tps, strata_error *error);

/* --- refuse.c ---------------------------------------------------------------------------------------------------- */

/* The draft does not fit: which device, what is there, what is asked for, what would help. Places other drafts. */
strata_status st_draft_refuse(st_planner *planner, const st_draft *draft, strata_error *error);

/* --- why.c ------------------------------------------------------------------------------------------------------- */

/* A line for every decision; the draft was placed last. */
void st_draft_tell(st_planner *planner, const st_draft *draft, const st_plan *plan);
/* What did not fit, and what would change it. Places other drafts. */
void st_draft_tell_lacking(st_planner *planner, const st_draft *draft);

enum { ST_DEVICE_TEXT = 80 };
/* "card rtx-4070-ti", "RAM of ddr5-5600"; the name is left out where it says nothing */
const char *st_device_text(const st_profile *profile, char text[ST_DEVICE_TEXT]);

#endif
