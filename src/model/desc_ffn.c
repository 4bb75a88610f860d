/* The feed-forward part of a layer's description: dense, routed experts, shared expert. */
#include "base/error.h"
#include "model/desc_parts.h"

/* --- routed experts ----------------------------------------------------------------------------------------------- */

/* A router's kind by its number in expert_gating_func, from 1 on. */
static const st_router gating[] = {ST_ROUTER_SOFTMAX, ST_ROUTER_SIGMOID, ST_ROUTER_SOFTMAX_CHOSEN};
enum { GATINGS = sizeof gating / sizeof *gating };

static st_router read_router(st_keys *keys, const st_arch *arch, uint32_t layer)
{
    uint32_t stated = st_keys_u32(keys, "expert_gating_func", 0, 0, UINT32_MAX - 1);
    if (stated > GATINGS) {
        if (keys->status == STRATA_OK)
            keys->status = st_error_set(keys->error, STRATA_UNSUPPORTED, NULL,
                                        "%s: key %s: expected 1 to %d, found %u", st_gguf_path(keys->gguf),
                                        st_keys_name(keys, "expert_gating_func"), GATINGS, stated);
        return arch->router;
    }
    if (stated > 0) return gating[stated - 1];
    bool biased = arch->selection == ST_SELECTION_BY_ROUTER && st_keys_tensor(keys, layer, "exp_probs_b.bias");
    return biased ? ST_ROUTER_SIGMOID : arch->router;
}

/* Softmax routers score a group by its best expert, sigmoid routers by its best two. */
static void read_groups(st_keys *keys, st_ffn_desc *out)
{
    out->groups = st_keys_u32(keys, "expert_group_count", 1, 0, out->experts);
    if (out->groups <= 1) {
        out->groups = out->groups_used = 1;
        return;
    }
    out->groups_used = st_keys_u32(keys, "expert_group_used_count", ST_KEY_REQUIRED, 1, out->groups);
    out->group_top = out->router == ST_ROUTER_SOFTMAX ? 1 : 2;
    if (out->experts % out->groups)
        st_keys_refuse(keys, "expert_group_count", "a divisor of expert_count", out->groups);
    else if (out->experts / out->groups * out->groups_used < out->experts_used)
        st_keys_refuse(keys, "expert_group_used_count", "groups with enough experts for a token", out->groups_used);
}

static uint32_t read_shared_width(st_keys *keys, const st_arch *arch, uint32_t layer, uint32_t width,
                                  uint32_t expert_width)
{
    uint32_t fallback = arch->shared_width == ST_SHARED_WIDTH_KEY ? width : expert_width;
    if (arch->shared_width != ST_SHARED_WIDTH_TENSOR)
        return st_keys_u32(keys, "expert_shared_feed_forward_length", fallback ? fallback : ST_KEY_REQUIRED, 1,
                           ST_WIDTH_MAX);
    const st_gguf_tensor *up = st_keys_tensor(keys, layer, "ffn_up_shexp.weight");
    if (up && up->ne[1] <= ST_WIDTH_MAX) return (uint32_t)up->ne[1];
    /* The binding refuses the file, with the tensor's name. */
    uint64_t count = st_keys_u32(keys, "expert_shared_count", 1, 0, ST_EXPERTS_MAX);
    return st_keys_check(keys, "expert_shared_count", count * expert_width, 0, ST_WIDTH_MAX);
}

static void read_experts(st_keys *keys, const st_arch *arch, uint32_t layer, uint32_t width, st_ffn_desc *out)
{
    out->experts_used = st_keys_u32(keys, "expert_used_count", ST_KEY_REQUIRED, 1, out->experts);
    out->expert_width =
        st_keys_u32(keys, "expert_feed_forward_length", width ? width : ST_KEY_REQUIRED, 1, ST_WIDTH_MAX);
    out->router = read_router(keys, arch, layer);
    out->renormalise = st_keys_bool(keys, "expert_weights_norm", arch->renormalise);
    out->weights_scale = st_keys_f32(keys, "expert_weights_scale", 1, 1e-6, 1e6);
    read_groups(keys, out);
    bool shared = arch->shared_expert == ST_SHARED_IF_STATED
                      ? st_keys_u32(keys, "expert_shared_feed_forward_length", 0, 0, ST_WIDTH_MAX) > 0
                      : arch->shared_expert != ST_SHARED_NONE;
    if (shared)
        out->shared_width = read_shared_width(keys, arch, layer, width, out->expert_width);
}

/* --- the layer ---------------------------------------------------------------------------------------------------- */

static bool layer_is_routed(st_keys *keys, uint32_t layer, uint32_t experts)
{
    uint32_t step = st_keys_u32(keys, "interleave_moe_layer_step", 1, 1, ST_LAYERS_MAX);
    uint32_t dense = st_keys_u32(keys, "leading_dense_block_count", 0, 0, ST_LAYERS_MAX);
    return experts > 0 && layer >= dense && (layer + 1) % step == 0;
}

void st_desc_read_ffn(st_keys *keys, const st_desc *desc, uint32_t layer, st_ffn_desc *out)
{
    const st_arch *arch = desc->arch;
    uint32_t layers = desc->layer_count;
    uint32_t experts = st_keys_u32(keys, "expert_count", 0, 0, ST_EXPERTS_MAX);
    bool routed = layer_is_routed(keys, layer, experts);
    uint32_t needed = routed && !arch->dense_beside_experts ? 0 : ST_KEY_REQUIRED;
    uint32_t width =
        st_keys_layer_u32(keys, "feed_forward_length", layer, layers, needed, needed ? 1 : 0, ST_WIDTH_MAX);
    if (!routed || arch->dense_beside_experts) out->dense_width = width;
    if (!routed) return;
    out->experts = experts;
    read_experts(keys, arch, layer, width, out);
}
