/* Which tensors a description expects, with their shapes, required or optional; and where they are in the file. Alone
 * knows tensor names. Touches no tensor data. */
#ifndef ST_MODEL_BIND_H
#define ST_MODEL_BIND_H

#include "base/arena.h"
#include "gguf/gguf.h"
#include "model/desc.h"
#include "strata.h"

/* Roles of tensors: roles.def has the names, shapes and presence rules. */
typedef enum st_role {
#define ROLE(id, name, presence, ...) ST_ROLE_##id,
#include "model/roles.def"
#undef ROLE
    ST_ROLE_COUNT
} st_role;

typedef struct st_weight {
    st_role role;
    int32_t layer;                /* −1: of the model, not of a layer */
    const st_gguf_tensor *tensor; /* the whole, or the first of `parts` */
    const st_gguf_tensor *const *parts; /* [ne[2]] one tensor per expert (old files); NULL: one tensor holds all */
    uint64_t ne[3];
    size_t bytes;                 /* of all parts */
} st_weight;

typedef struct st_binding {
    const st_weight *weights;
    uint32_t count;
    const int32_t *index; /* [(layers + 1) × ST_ROLE_COUNT]: −1 where absent */
} st_binding;

/* Finds and checks every tensor. A missing one, or one of another shape, is STRATA_FORMAT with its name, the expected
 * and the found shape; so is a layer beyond the description's. */
strata_status st_binding_build(const st_desc *desc, const st_gguf *gguf, st_arena *arena, const st_binding **out,
                               strata_error *error);

/* Bytes of one expert's matrix; and where it is, `data` being the tensor that holds all of them. */
static inline size_t st_weight_expert_bytes(const st_weight *weight)
{
    return weight->bytes / weight->ne[2];
}

static inline const unsigned char *st_weight_expert(const st_weight *weight, const unsigned char *data, uint64_t expert)
{
    return weight->parts ? weight->parts[expert]->data : data + expert * st_weight_expert_bytes(weight);
}

/* Whether tensors of the role hold routed experts, stacked. */
bool st_role_is_expert(st_role role);

/* The index of a weight, or ST_NO_WEIGHT (−1). Layer −1 for the model's own. */
int32_t st_binding_find(const st_binding *binding, st_role role, int32_t layer);

#endif
