/* Models of any size for the planner: a GGUF directory without data over address space that is never touched, device
 * profiles, and the resulting plan. Any failure outside the planner fails the test. */
#ifndef TEST_SUPPORT_PLAN_RIG_H
#define TEST_SUPPORT_PLAN_RIG_H

#include "plan/plan.h"
#include "support/gguf_writer.h"
#include "support/kit.h"

/* A field of 0 means that the model lacks the feature. */
typedef struct plan_shape {
    const char *arch;
    uint32_t layers, embedding, heads, kv_heads, head, ffn, vocab, context;
    uint32_t experts, used, expert_width, shared_width;
    uint32_t moe_step;                      /* llama4: every n-th layer has experts */
    uint32_t window, window_head, full_every; /* gemma4: every n-th layer has full attention, the n-th first */
    uint32_t full_kv_heads; /* gemma4: of full-attention layers, which then use keys as values; 0: same as the others */
    uint32_t per_layer, shared_kv;
    uint32_t delta_keys, delta_values, delta_size; /* qwen35: three layers of four */
    bool nextn;                             /* one NextN block after the layers */
    bool tied;                              /* the output matrix is the embedding */
    st_type type;                           /* of most matrices */
    st_type big; /* of the output, attention values, and ffn_down in the second half of the layers */
} plan_shape;

typedef struct plan_rig {
    unsigned char *file;
    size_t file_bytes;
    st_gguf *gguf;
    st_arena arena, plan_arena;
    st_profile devices[ST_DEVICES_MAX];
    st_plan_source source;
    st_plan_options options;
    const st_plan *plan;  /* NULL: the planner refused */
    strata_status status;
    strata_error error;
} plan_rig;

/* Opens the model. The devices are a host and a GPU of 2⁴⁰ bytes each, without overhead, granularity or margins, with
 * the rates of a desktop; batch 16 and one row of logits. */
void plan_rig_open(plan_rig *rig, const plan_shape *shape);
void plan_rig_close(plan_rig *rig);
/* The same with a model whose keys and tensors are written; frees the writer. */
void plan_rig_open_file(plan_rig *rig, gguf_writer *writer);

/* Plans again with rig->devices and rig->options. */
strata_status plan_rig_plan(plan_rig *rig);
/* The same; a refusal fails the test. */
const st_plan *plan_rig_get(plan_rig *rig);
/* The scratch that the device states for every operation; `out` has room for `count`. */
void plan_rig_scratch(const plan_rig *rig, uint32_t device, uint32_t batch, st_scratch *out, uint32_t count);

/* Four dense float32 layers, every tensor a multiple of 256 bytes, so that sums can be checked by hand. */
extern const plan_shape plan_small;
/* The same with 8 experts, 2 used per token. */
extern const plan_shape plan_small_moe;

/* Checks the invariants of every plan; fails the test if one is violated. */
void plan_rig_check(const plan_rig *rig);

#endif
