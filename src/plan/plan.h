/* The plan: where every tensor, every layer's KV and every expert lives, how long the context is, what every byte is
 * for, how fast it should go, and why. A pure function of description, program, devices and options: it allocates
 * nothing but the plan itself, touches no device and no tensor data, and plans for a GPU that the machine lacks.
 * Knows bytes and rates; must not know a family, a backend's functions or an address. */
#ifndef ST_PLAN_PLAN_H
#define ST_PLAN_PLAN_H

#include "backend/profile.h"
#include "base/arena.h"
#include "kv/layout.h"
#include "plan/schedule.h"
#include "plan/working.h"

/* The owners of memory, in the plan and in the ledger. */
#define ST_OWNER_TABLE(X)                                                                                  \
    X(RUNTIME, "runtime")         /* a driver's context, modules and graphs */                             \
    X(WEIGHTS, "weights")         /* at their exact size; on the host: mapped from the file */             \
    X(EXPERTS, "experts")         /* routed experts: resident, or the host's copy (mapped, pinned by a cache) */ \
    X(SLOTS, "expert slots")                                                                               \
    X(KV, "kv")                                                                                            \
    X(STATE, "recurrent state")                                                                            \
    X(RESTORE, "restore points")                                                                           \
    X(TIER, "kv ram")             /* copies of KV pages of the GPU */                                      \
    X(SCRATCH, "scratch")         /* values, step blocks, scratch of operations */                         \
    X(STAGING, "staging")         /* buffers of copies between devices, of logits and of streamed weights */ \
    X(PADDING, "padding")         /* up to the alignment of a range */                                     \
    X(GRANULARITY, "granularity") /* up to the size in which the device allocates */

typedef enum st_owner {
#define X(id, name) ST_OWNER_##id,
    ST_OWNER_TABLE(X)
#undef X
        ST_OWNER_COUNT
} st_owner;

const char *st_owner_name(st_owner owner);

typedef enum st_moe_mode { ST_MOE_AUTO, ST_MOE_RESIDENT, ST_MOE_CPU, ST_MOE_CACHE } st_moe_mode;

const char *st_moe_mode_name(st_moe_mode mode);

enum {
    ST_LAYERS_AUTO = -2, /* as many as fit */
    ST_LAYERS_ALL = -1,
    ST_CONVERSATIONS_MAX = 64,
    ST_NO_DEVICE = 255, /* of a NextN block's KV where the block is not run */
};
#define ST_BYTES_AUTO UINT64_MAX
#define ST_NEVER UINT32_MAX

/* Hit rates of an expert cache on a recorded routing, by the share of a layer's experts that the GPU has: from 0 to 1,
 * ascending, with linear interpolation. */
typedef struct st_hit_point {
    double share, rate;
    double uploads; /* per layer and token */
} st_hit_point;

typedef struct st_hit_curve {
    const st_hit_point *points;
    uint32_t count; /* at least 2 */
} st_hit_curve;

typedef struct st_plan_options {
    int32_t layers;          /* on the GPU, from the first: a number, ST_LAYERS_AUTO or ST_LAYERS_ALL */
    uint32_t context;        /* 0: chosen */
    int32_t kv_type;         /* an st_type; −1: chosen */
    uint32_t batch;          /* 0: 512, or 2048 where weights are streamed from RAM */
    uint32_t out_rows;       /* rows of logits at a time */
    uint32_t conversations;  /* that run at a time. 0: 1 */
    uint32_t pool_tokens;    /* of the KV cache, which all conversations share: at least the context. 0: chosen */
    uint32_t page_tokens;    /* of the KV cache: a power of two. 0: ST_KV_PAGE_TOKENS */
    uint64_t restore_bytes;  /* host RAM for restore points; ST_BYTES_AUTO: chosen. 0 for models that need none */
    uint64_t tier_bytes;     /* host RAM for copies of the GPU's KV pages, at most; ST_BYTES_AUTO: chosen */
    uint32_t workers[ST_DEVICES_MAX]; /* each has scratch of its own */
    bool nextn;
    st_moe_mode moe;
    int32_t expert_slots;    /* per layer; −1: chosen */
    uint32_t cpu_moe_layers; /* the first layers whose routed experts stay in RAM and run on the CPU */
    uint32_t cpu_ffn_layers; /* the same for dense feed-forward parts */
    uint32_t dense_rows;     /* steps of so many rows run dense parts in RAM on the GPU. 0: chosen by the rates;
                                ST_NEVER: none do */
    uint64_t margin_bytes[ST_DEVICES_MAX]; /* ST_BYTES_AUTO: the device's default */
    bool disk;               /* weights may stay on disk and be read on use */
    bool watch;              /* the host reads the routing of every layer */
    const st_hit_curve *hits; /* outlives the plan; NULL: hit rates are assumed */
    bool no_windows;         /* window layers keep every position: for tests */
} st_plan_options;

typedef struct st_plan_device {
    const st_profile *profile;
    uint64_t capacity_bytes; /* usable in all, the margin included */
    uint64_t margin_bytes;
    uint64_t owners[ST_OWNER_COUNT];
    uint64_t planned_bytes;  /* the sum of the owners; + margin ≤ capacity */
    uint64_t block_bytes;    /* of the one allocation: all but mapped memory and the runtime */
} st_plan_device;

/* The memory of the executor on a device: the KV cache with the slots of recurrent state (layout.h), the working set
 * and, on the host, restore points, the RAM tier of KV pages and staging: a row of logits for each conversation that
 * runs and, beside a GPU, two step blocks, and out_rows rows of logits if the output matrix is on the GPU, with as many
 * lists of adjustments and records of candidates. Each begins at a multiple of 256. */
typedef struct st_plan_memory {
    const st_kv_layout *kv;  /* of the layers on this device */
    size_t kv_offset, restore_offset, tier_offset, working_offset, staging_offset;
    st_working_set working;
    size_t staging_steps[2], staging_logits, staging_slot_logits; /* offsets in the staging; answers: logits by slot */
    size_t staging_adjustments, staging_candidates; /* offsets, of a plan that reduces logits */
    size_t staging_bytes;
    size_t bytes;
} st_plan_memory;

typedef struct st_plan_speed {
    double decode_tps, prefill_tps;
    double together_tps; /* of all conversations that may run at a time, decoding at this depth; 0: there is one */
    const char *limit; /* the bottleneck of decoding: "the card's memory" (the GPU's), "RAM", "the link", … */
    uint32_t depth;    /* positions before the decoded token */
    uint32_t prefill;  /* tokens of the prompt that prefill_tps is for */
    bool estimate;
} st_plan_speed;

/* Where the matrices of an expert lie in a slot; an absent one has 0 bytes. */
typedef struct st_slot_layout {
    size_t matrix_bytes[ST_EXPERT_MATRICES], offset[ST_EXPERT_MATRICES];
    size_t bytes; /* of the slot */
} st_slot_layout;

st_slot_layout st_slot_layout_of(const st_binding *binding, const st_op *experts);

typedef struct st_plan_experts {
    st_moe_mode mode;          /* ST_MOE_AUTO: the model has none */
    uint64_t budget_bytes;     /* what the GPU has left for routed experts */
    const uint32_t *slots;     /* [layers, NextN]: how many of its experts the GPU holds, in slots or resident */
    const uint64_t *slot_bytes; /* [layers, NextN]: of one slot */
    double slots_per_layer;    /* mean over the layers with experts */
    double resident_share;
    double hit_rate;           /* assumed, or of the recorded routing */
    double uploads;            /* recorded, per layer and token: they slow the CPU's reads and fetches down. 0: not counted */
    const char *hit_source;    /* "recorded", "table" or "slots / experts"; "all or none" without a cache */
    const st_hit_curve *hits;  /* st_plan_options.hits */
} st_plan_experts;

/* Dense parts that stay in RAM: the GPU runs them in steps of many rows. The matrices of each operation are copied into
 * one of two buffers while the GPU computes with the other; norms and biases are on the GPU too. Steps of fewer rows
 * run them on the host. */
typedef struct st_plan_dense {
    uint32_t rows;               /* of such a step, at least; 0: there are none */
    const uint8_t *op_device;    /* [operations]: in such a step */
    uint32_t fetches;            /* operations whose matrices are copied … */
    uint64_t bytes;              /* … and the bytes of these, in each such step */
    size_t offset, buffer_bytes; /* in the GPU's block: the two buffers, and the bytes of one */
} st_plan_dense;

enum { ST_FETCH_BUFFERS = 2 };

/* Where the matrices of an operation lie in a buffer; other weights have 0 bytes. */
typedef struct st_fetch_layout {
    size_t matrix_bytes[ST_OP_WEIGHTS], offset[ST_OP_WEIGHTS];
    size_t copied_bytes, bytes; /* of the matrices, and with their alignment */
} st_fetch_layout;

st_fetch_layout st_fetch_layout_of(const st_binding *binding, const st_op *op);

enum { ST_PART_MAIN, ST_PART_NEXTN, ST_PARTS };

/* A part of the program in the order in which the executor runs it and the cost model prices it. */
typedef struct st_plan_part {
    st_stages body, head;
    uint8_t input_device;   /* where the body first reads the part's input */
    uint8_t hidden_devices; /* bit d: the body leaves the hidden state on device d */
    uint8_t logits_device;
} st_plan_part;

typedef struct st_plan {
    uint32_t context, batch, out_rows;
    uint32_t conversations; /* that run at a time */
    uint32_t pool_tokens;   /* of the KV cache of full attention, which all conversations share */
    uint64_t restore_bytes; /* of restore points */
    uint32_t tier_pages;    /* of the RAM tier: copies of KV pages of full attention. 0 without KV pages on a GPU */
    uint64_t tier_bytes;
    st_step_limits step;
    bool nextn;
    st_type kv_type;
    uint32_t device_count; /* 1: the GPU is not used */
    st_plan_device devices[ST_DEVICES_MAX];
    st_plan_memory memory[ST_DEVICES_MAX];
    const uint8_t *op_device;     /* [operations] */
    bool watched;                 /* the stages let the host read the routing */
    st_plan_part parts[ST_PARTS]; /* NextN's is empty unless `nextn` */
    st_plan_dense dense;
    st_plan_part streamed;        /* the main part in steps of dense.rows rows or more; empty if that is 0 */
    const uint8_t *weight_devices; /* [weights]: bit d: an operation on device d reads it. Routed experts in a cache are
                                      read on the host, where all are; the GPU has slots */
    const size_t *weight_offset[ST_DEVICES_MAX]; /* [weights]: in the device's block; SIZE_MAX: not in it */
    size_t slots_offset, expert_staging_offset; /* in the GPU's block: slots of layer 0, 1, …; what is in transit */
    size_t expert_staging_bytes;
    size_t memory_offset[ST_DEVICES_MAX];     /* in the device's block, behind all weights and slots */
    const uint8_t *kv_device;     /* [layers, NextN]: of its keys, values and state, or of those it reads */
    uint32_t layers_total, layers_on_card; /* whose attention part (and shared expert) is on the GPU */
    uint32_t ffn_on_card;         /* dense feed-forward parts */
    bool output_on_card, on_disk;
    bool reduces_logits;          /* the GPU can reduce its logits to candidates */
    st_plan_experts experts;
    st_plan_speed speed;
    const char *const *why;       /* lines */
    uint32_t why_count;
    const char *const *lacking;   /* lines: what did not fit and what would change it */
    uint32_t lacking_count;
} st_plan;

typedef struct st_plan_source {
    const st_desc *desc;
    const st_binding *binding;
    const st_program *program;
    const st_profile *devices; /* [device_count]: the host, then the GPU */
    uint32_t device_count;
} st_plan_source;

/* The plan lives in `arena`; the source must outlive it. What does not fit is STRATA_MEMORY with the device and the
 * bytes needed, available and missing; options that contradict each other are STRATA_USAGE. */
strata_status st_plan_build(const st_plan_source *source, const st_plan_options *options, st_arena *arena,
                            const st_plan **out, strata_error *error);

st_plan_options st_plan_options_default(void);

/* Writes plan->parts and plan->streamed, which live in `arena`, from op_device, dense, experts, nextn and watched.
 * st_plan_build does it too. */
strata_status st_plan_schedule(const st_plan_source *source, st_plan *plan, st_arena *arena, strata_error *error);

/* Whether a step of dense.rows rows or more copies the matrices of the operation to the GPU. */
bool st_plan_fetches(const st_plan_source *source, const st_plan *plan, uint32_t op);

/* The prediction of a scheduled plan for any depth and prompt; with another hit rate if it is not negative. */
st_plan_speed st_plan_predict(const st_plan_source *source, const st_plan *plan, uint32_t depth, uint32_t prefill,
                              double hit_rate);

/* The seconds of a prompt; 0: unknown. batch_rate: the share of the experts that its rows use on average which is found on
 * the GPU, over all layers with experts; negative: the share that the plan has there. */
double st_plan_prompt_seconds(const st_plan_source *source, const st_plan *plan, uint32_t tokens, double batch_rate);

/* Tokens per second of conversations that decode together at the depth, in all. 0: unknown. The hit rate is that of one row:
 * several rows find the experts that have a slot. */
double st_plan_together_tps(const st_plan_source *source, const st_plan *plan, uint32_t depth, uint32_t conversations,
                            double hit_rate);

/* The least rows of a step with which a prompt runs at ST_PROMPT_SPEED_KEPT of the speed that whole batches have: what a
 * step costs whatever its rows, as reading experts in RAM, is then a small part of it. */
#define ST_PROMPT_SPEED_KEPT 0.9
enum { ST_PROMPT_ROWS_MIN = 16 };
uint32_t st_plan_prompt_rows(const st_plan_source *source, const st_plan *plan);

/* Decoding alone, with the error. */
strata_status st_plan_decode_tps(const st_plan_source *source, const st_plan *plan, uint32_t depth, double *tps,
                                 strata_error *error);

/* The hit rate assumed when `share` of `experts` experts are resident. From this many experts on it comes from a table.
 * */
enum { ST_HIT_TABLE_EXPERTS = 64 };
double st_hit_rate_assumed(uint32_t experts, double share);

/* The point of a curve at `share`. */
st_hit_point st_hit_at(const st_hit_curve *curve, double share);

/* By the curve, or assumed without one. */
double st_hit_rate_of(const st_hit_curve *curve, uint32_t experts, double share);

#endif
