/* A draft of a plan: a set of decisions. Placing a draft assigns a device to every operation; sizing it computes the
 * bytes of every owner. Both are cheap, so the planner tries hundreds of drafts. Knows bytes; prices no time. */
#ifndef ST_PLAN_DRAFT_H
#define ST_PLAN_DRAFT_H

#include "base/number.h"
#include "plan/plan.h"

/* The facts of a layer that decide where it may run. */
typedef struct st_layer_facts {
    uint32_t dense_index;   /* among the dense layers; UINT32_MAX: its feed-forward part goes with its attention */
    uint32_t moe_index;     /* among the layers with routed experts; UINT32_MAX: it has none */
    uint32_t experts, used;
    bool state_on_card;     /* the GPU runs every operation on its KV cache or recurrent state */
    bool experts_on_card;   /* the GPU runs its routed experts */
} st_layer_facts;

typedef struct st_draft {
    /* decisions */
    st_moe_mode mode;       /* ST_MOE_AUTO: the model has no routed experts */
    uint32_t trunk;         /* layers, from the first, whose attention part is on the GPU; 0: the GPU is not used */
    uint32_t ffn;           /* dense feed-forward parts of these layers, from the first that the options allow */
    bool output, nextn;
    uint32_t slots, more;   /* per layer with a cache; the first `more` layers have one more */
    uint32_t context;
    bool stays;             /* dense parts in RAM are never copied to the GPU */
    /* written by st_draft_place */
    st_type kv_type;
    size_t weight_bytes[ST_DEVICES_MAX], expert_bytes[ST_DEVICES_MAX];
    size_t weights_end;     /* in the GPU's block, resident experts included */
    bool streams;           /* dense parts in RAM run on the GPU in steps of many rows */
    uint32_t dense_fetches; /* operations of such a step whose matrices are copied … */
    uint64_t dense_bytes;   /* … and the bytes of these */
    size_t dense_buffer_bytes; /* of the largest */
    /* written by st_draft_size */
    uint32_t batch, out_rows;
    uint32_t pool_tokens;
    uint64_t restore_bytes;
    uint32_t tier_pages;    /* of the RAM tier */
    uint64_t tier_bytes;
    st_step_limits step;
    st_plan_device devices[ST_DEVICES_MAX];
    st_plan_memory memory[ST_DEVICES_MAX]; /* without the layout's layers */
    size_t slots_offset, expert_staging_offset, expert_staging_bytes, dense_offset, memory_offset[ST_DEVICES_MAX];
    size_t block_used[ST_DEVICES_MAX]; /* before rounding up */
    bool fits[ST_DEVICES_MAX];
    uint64_t disk_bytes;    /* of the host's weights: not in RAM */
} st_draft;

enum { ST_PLAN_LINES_MAX = 48, ST_DEPTH_DEFAULT = 4096 };

typedef struct st_lines {
    const char *lines[ST_PLAN_LINES_MAX];
    uint32_t count;
} st_lines;

typedef struct st_planner {
    const st_plan_source *source;
    st_plan_options options; /* with the defaults that hold for every model */
    st_arena *arena;
    uint32_t layer_count;    /* without the NextN block */
    uint32_t kv_layer_count; /* with it */
    uint32_t dense_count, moe_count;
    uint32_t layers_asked;   /* options.layers beyond the model's, which now means all; 0: not beyond */
    bool card;               /* a GPU exists and the options allow it */
    uint32_t pool;           /* the KV pool holds so many contexts: at most one for each conversation */
    st_layer_facts *layers;  /* [kv_layer_count] */
    uint64_t *slot_bytes;    /* [kv_layer_count] */
    bool *card_runs;         /* [operations] */
    bool *may_stream;        /* [operations]: of dense layers, on any device that has their weights */
    uint32_t dense_rows;     /* steps of so many rows or more run dense parts in RAM on the GPU; 0: none */
    int32_t output_matrix;
    bool card_reduces;       /* the GPU runs ST_OP_CANDIDATES, which the program does not list … */
    st_scratch reducing;     /* … with this scratch */
    uint64_t capacity_bytes[ST_DEVICES_MAX], margin_bytes[ST_DEVICES_MAX];
    /* of the draft placed last */
    uint8_t *op_device, *kv_device, *weight_devices;
    uint8_t *dense_device;   /* [operations]: devices in steps of dense_rows rows or more */
    uint32_t *slots;         /* [kv_layer_count] */
    /* for a batch of scratch_batch tokens */
    st_scratch *scratch[ST_DEVICES_MAX]; /* [operations] */
    uint32_t scratch_batch;
    st_lines why, lacking;
    bool out_of_memory;      /* a line of why or lacking is missing */
    uint32_t tried_context;  /* of these predictions; all experts on the GPU may have been tried with less */
    double tried_tps[4];     /* [st_moe_mode]: predicted when the mode was chosen; 0: not tried, or it does not fit */
} st_planner;

/* --- place.c ------------------------------------------------------------------------------------------------------ */

/* Collects the facts of layers and operations. False: out of memory. */
bool st_planner_survey(st_planner *planner);

/* The order in which parts move to the GPU: each step contains the one before it, and takes more of the GPU and less of
 * the host. options.layers fixes the first step; the last has everything but expert slots. */
uint32_t st_draft_step_last(const st_planner *planner);
void st_draft_set_step(const st_planner *planner, uint32_t step, st_draft *draft);

/* Gives every operation, layer and weight a device. A layer with a cache may have no slots yet. */
void st_draft_place(st_planner *planner, st_draft *draft);

/* Lays out the GPU's weights in the binding's order, routed experts last. `offsets` (may be NULL) is [weights],
 * SIZE_MAX for weights that are not on the GPU. Returns the end of the last. */
size_t st_weights_lay_out(const st_planner *planner, size_t *offsets);

/* Whether routed experts of the layer may have slots in this draft. */
bool st_draft_has_cache(const st_planner *planner, const st_draft *draft, uint32_t layer);

/* Whether the body that ends before a GATHER leaves its rows on the GPU, by the devices of the operations before it. */
bool st_hidden_on_card(const st_planner *planner, const uint8_t *op_device, uint32_t gather);

/* --- dense.c ------------------------------------------------------------------------------------------------------ */

/* Finds the operations that may be streamed, and the number of rows from which that is faster. */
void st_planner_survey_dense(st_planner *planner);
/* Decides whether a placed draft streams, and what. */
void st_draft_place_dense(const st_planner *planner, st_draft *draft);
/* Whether the operation is on the host, and on the GPU in steps of many rows. */
bool st_draft_streams_op(const st_planner *planner, const st_draft *draft, uint32_t op);

/* --- sizes.c ------------------------------------------------------------------------------------------------------ */

/* The rows of a step where weights are streamed from RAM. */
uint32_t st_draft_large_batch(const st_planner *planner, const st_draft *draft);

/* The layout of the KV cache of a sized draft on a device. */
strata_status st_draft_kv(const st_planner *planner, const st_draft *draft, uint8_t device, const st_kv_layout **out,
                          strata_error *error);

/* The draft must be the one placed last; its context and slots may have changed since. */
void st_draft_size(st_planner *planner, st_draft *draft);
bool st_draft_fits(const st_draft *draft);
/* Bytes that the device lacks. 0: it fits. */
uint64_t st_draft_missing(const st_draft *draft, uint32_t device);

/* Whether the GPU reduces the logits that it computes to candidates. */
bool st_draft_reduces(const st_planner *planner, const st_draft *draft);

/* Gives a draft that was sized without slots as many as fit: evenly, then one more for the first layers. */
void st_draft_fill_slots(const st_planner *planner, st_draft *draft);
/* Bytes of the GPU for routed experts: resident ones, slots and staging. */
uint64_t st_draft_expert_budget(const st_draft *draft);

/* --- context.c ---------------------------------------------------------------------------------------------------- */

/* The best placement of a mode at a context, with its slots. False: none fits, and the draft is the smallest tried.
 * `whole`: everything but slots must be on the GPU. */
bool st_draft_at(st_planner *planner, st_moe_mode mode, bool whole, uint32_t context, st_draft *out);

/* The same; chooses the context where the options do not fix it. */
strata_status st_draft_with_context(st_planner *planner, st_moe_mode mode, st_draft *out, bool *fits,
                                    strata_error *error);

/* Whether the placement made last fits with the context and leaves no more weights on disk than `draft`. */
bool st_draft_holds(st_planner *planner, const st_draft *draft, uint32_t context);

/* The largest context from `from` (which fits) to `to`, in steps of `step`, that fits the draft's placement. */
uint32_t st_draft_largest_context(st_planner *planner, const st_draft *draft, uint32_t from, uint32_t to,
                                  uint32_t step);

uint32_t st_context_fixed(const st_planner *planner); /* by the options, clamped to the model's; 0: not fixed */
uint32_t st_context_usual(const st_planner *planner, st_moe_mode mode); /* the context at which modes are compared */

/* --- modes.c ------------------------------------------------------------------------------------------------------ */

/* Chooses the mode of routed experts and drafts it. Refuses if nothing fits. */
strata_status st_draft_choose(st_planner *planner, st_draft *out, strata_error *error);

/* The draft as a plan without layouts and stages; valid until another draft is placed. */
st_plan st_draft_view(const st_planner *planner, const st_draft *draft);

/* Tokens per second of decoding at ST_DEPTH_DEFAULT, or as deep as the context goes. */
strata_status st_draft_decode_tps(const st_planner *planner, const st_draft *draft, double *tps, strata_error *error);

/* --- refuse.c ----------------------------------------------------------------------------------------------------- */

/* The error for a draft that does not fit: device, bytes needed, available and missing, and options that would fit.
 * Places other drafts. */
strata_status st_draft_refuse(st_planner *planner, const st_draft *draft, strata_error *error);

/* --- why.c -------------------------------------------------------------------------------------------------------- */

/* Writes a line for every decision. The draft must be the one placed last. */
void st_draft_tell(st_planner *planner, const st_draft *draft, const st_plan *plan);
/* Writes what did not fit, and what would change it. Places other drafts. */
void st_draft_tell_lacking(st_planner *planner, const st_draft *draft);

enum { ST_DEVICE_TEXT = 80 };
/* "GPU rtx-4070-ti", "RAM of ddr5-5600"; a default name is left out */
const char *st_device_text(const st_profile *profile, char text[ST_DEVICE_TEXT]);

#endif
