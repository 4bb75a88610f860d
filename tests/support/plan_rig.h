/* Models of any size for the planner: a directory without data over memory that is never touched, devices as data, and
 * the plan of one on the other. Any failure that is not the planner's own fails the test. */
#ifndef TEST_SUPPORT_PLAN_RIG_H
#define TEST_SUPPORT_PLAN_RIG_H

#include "plan/plan.h"
#include "support/gguf_writer.h"
#include "support/kit.h"

/* What is 0 is not there. */
typedef struct plan_shape {
    const char *arch;
    uint32_t layers, embedding, heads, kv_heads, head, ffn, vocab, context;
    uint32_t experts, used, expert_width, shared_width;
    uint32_t moe_step;                      /* llama4: one layer in so many has experts */
    uint32_t window, window_head, full_every; /* gemma4: one layer in so many is full, from the so-manieth on */
    uint32_t full_kv_heads; /* gemma4: of full layers, whose values are then their keys; 0: as the others */
    uint32_t per_layer, shared_kv;
    uint32_t delta_keys, delta_values, delta_size; /* qwen35: three layers of four */
    bool nextn;                             /* one block behind the layers */
    bool tied;                              /* the output matrix is the embedding */
    st_type type;                           /* of matrices … */
    st_type big; /* … and of the output, the values and the second half of the layers' down */
} plan_shape;

typedef struct plan_rig {
    unsigned char *file;
    size_t file_bytes;
    st_gguf *gguf;
    st_arena arena, plan_arena;
    st_profile devices[ST_DEVICES_MAX];
    st_plan_source source;
    st_plan_options options;
    const st_plan *plan;  /* NULL: it was refused */
    strata_status status;
    strata_error error;
} plan_rig;

/* Opens the model. The devices are a host and a card of 2⁴⁰ bytes each without overhead, granularity and margins, whose
 * rates are a desktop's; batch 16 and one row of logits. */
void plan_rig_open(plan_rig *rig, const plan_shape *shape);
void plan_rig_close(plan_rig *rig);

/* Plans anew by rig->devices and rig->options. */
strata_status plan_rig_plan(plan_rig *rig);
/* The same; a refusal fails the test. */
const st_plan *plan_rig_get(plan_rig *rig);
/* What the device states as the scratch of every operation; there is room for `count`. */
void plan_rig_scratch(const plan_rig *rig, uint32_t device, uint32_t batch, st_scratch *out, uint32_t count);

/* Four dense layers of float32 whose every tensor is a multiple of 256 bytes: sums can be done by hand. */
extern const plan_shape plan_small;
/* The same with 8 experts of which 2 are used. */
extern const plan_shape plan_small_moe;

/* What holds for every plan; fails the test if it does not. */
void plan_rig_check(const plan_rig *rig);

#endif
