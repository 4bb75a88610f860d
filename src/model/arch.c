#include "model/arch.h"

/* One row per family; a field that a row omits is false, zero or the first value of its axis. */
static const st_arch rows[] = {
    {.name = "llama", .rope = ST_ROPE_PAIRS, .renormalise = true},
    {.name = "qwen2", .rope = ST_ROPE_HALVES, .bias = ST_BIAS_REQUIRED},
    {.name = "qwen3", .rope = ST_ROPE_HALVES, .qk_norm = ST_QK_NORM_HEAD},
    {.name = "qwen2moe", .rope = ST_ROPE_HALVES, .bias = ST_BIAS_REQUIRED, .shared_expert = ST_SHARED_GATED},
    {.name = "qwen3moe", .rope = ST_ROPE_HALVES, .qk_norm = ST_QK_NORM_HEAD, .renormalise = true},
    {.name = "olmoe", .rope = ST_ROPE_HALVES, .qk_norm = ST_QK_NORM_ROW},
    {.name = "llama4",
     .rope = ST_ROPE_PAIRS,
     .qk_norm = ST_QK_NORM_AFTER_ROPE,
     .qk_norm_not_with_experts = 128,
     .pattern = ST_LAYERS_CHUNKED,
     .interval = 4,
     .chunk = 8192,
     .full_without_rope = true,
     .temperature = 0.1f,
     .router = ST_ROUTER_SIGMOID,
     .weight_on_input = true,
     .shared_expert = ST_SHARED_ALWAYS,
     .shared_width = ST_SHARED_WIDTH_EXPERT},
    {.name = "gemma4",
     .rope = ST_ROPE_HALVES,
     .qk_norm = ST_QK_NORM_HEAD,
     .value_norm = true,
     .value_may_be_key = true,
     .unit_scale = true,
     .pattern = ST_LAYERS_WINDOWED,
     .rope_factors_full_only = true,
     .activation = ST_ACT_GELU,
     .renormalise = true,
     .dense_beside_experts = true,
     .scaled_embedding = true,
     .post_norms = true},
    {.name = "qwen35",
     .rope = ST_ROPE_HALVES,
     .qk_norm = ST_QK_NORM_HEAD,
     .gated_attention = true,
     .pattern = ST_LAYERS_RECURRENT,
     .ffn_norm_is_post_attention = true},
    {.name = "qwen35moe",
     .rope = ST_ROPE_HALVES,
     .qk_norm = ST_QK_NORM_HEAD,
     .gated_attention = true,
     .pattern = ST_LAYERS_RECURRENT,
     .renormalise = true,
     .shared_expert = ST_SHARED_GATED,
     .ffn_norm_is_post_attention = true},
    {.name = "glm4moe",
     .rope = ST_ROPE_HALVES,
     .qk_norm = ST_QK_NORM_HEAD,
     .qk_norm_optional = true,
     .router = ST_ROUTER_SIGMOID,
     .selection = ST_SELECTION_BIASED,
     .shared_expert = ST_SHARED_ALWAYS,
     .shared_width = ST_SHARED_WIDTH_TENSOR,
     .ffn_norm_is_post_attention = true,
     .nextn_optional = true},
    {.name = "minimax-m2",
     .rope = ST_ROPE_HALVES,
     .qk_norm = ST_QK_NORM_ROW,
     .router = ST_ROUTER_SIGMOID,
     .selection = ST_SELECTION_BIASED,
     .renormalise = true},
    {.name = "ernie4_5-moe",
     .rope = ST_ROPE_PAIRS,
     .selection = ST_SELECTION_BIASED,
     .renormalise = true,
     .shared_expert = ST_SHARED_ALWAYS,
     .shared_width = ST_SHARED_WIDTH_TENSOR},
};

const st_arch *st_arch_find(st_str name)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (st_str_is(name, rows[i].name)) return &rows[i];
    return NULL;
}

size_t st_arch_count(void)
{
    return sizeof rows / sizeof *rows;
}

const char *st_arch_name_at(size_t index)
{
    return rows[index].name;
}
