/* The layout: the offsets and sizes of every layer of a sequence. Pure. */
#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "kv/layout.h"
#include "quant/row.h"

const st_kv_type st_kv_types[ST_KV_TYPES] = {
    {"f32", ST_TYPE_F32}, {"f16", ST_TYPE_F16}, {"bf16", ST_TYPE_BF16}, {"q8_0", ST_TYPE_Q8_0}};

const char *st_kv_type_name(st_type type)
{
    for (size_t i = 0; i < ST_KV_TYPES; i++)
        if (st_kv_types[i].type == type) return st_kv_types[i].name;
    return NULL;
}

const st_kv_type *st_kv_type_find(const char *name)
{
    for (size_t i = 0; i < ST_KV_TYPES; i++)
        if (strcmp(st_kv_types[i].name, name) == 0) return &st_kv_types[i];
    return NULL;
}

st_type st_kv_default_type(const st_desc *desc)
{
    return desc->recurrent ? ST_TYPE_BF16 : ST_TYPE_F16;
}

size_t st_kv_layer_bytes(const st_kv_layer *layer)
{
    return layer->capacity * (layer->key_row_bytes + layer->value_row_bytes);
}

/* A layer with a window or chunks needs a ring of that span plus a batch, which is stored before attention runs. */
static uint32_t capacity_of(const st_kv_options *options, uint32_t span)
{
    if (span == 0 || options->no_rings) return options->context;
    uint64_t ring = (uint64_t)span + options->batch - 1;
    return ring < options->context ? (uint32_t)ring : options->context;
}

static bool lay_out_attention(const st_attention_desc *a, uint32_t index, const st_kv_options *options, size_t *end,
                              st_kv_layer *out)
{
    if (a->kv_layer != index) return true;
    out->span = a->window ? a->window : a->chunk;
    out->capacity = capacity_of(options, out->span);
    out->key_row_bytes = st_row_bytes(options->type, (size_t)a->kv_heads * a->key_length);
    out->value_row_bytes = st_row_bytes(options->type, (size_t)a->kv_heads * a->value_length);
    return st_range_append(end, out->capacity, out->key_row_bytes, &out->keys_offset) &&
           st_range_append(end, out->capacity, out->value_row_bytes, &out->values_offset);
}

static bool lay_out_state(const st_deltanet_desc *d, size_t *end, st_kv_layer *out)
{
    size_t channels = (size_t)d->state_size * (2 * (size_t)d->key_heads + d->value_heads);
    out->conv_bytes = channels * (d->conv_width - 1) * sizeof(float);
    if (!st_mul_size((size_t)d->value_heads * sizeof(float), (size_t)d->state_size * d->state_size, &out->delta_bytes))
        return false;
    return st_range_append(end, 1, out->conv_bytes, &out->conv_offset) && st_range_append(end, 1, out->delta_bytes, &out->delta_offset);
}

static bool takes_part(const st_kv_options *options, uint32_t layer)
{
    return !options->layer_device || options->layer_device[layer] == options->device;
}

/* The layer to fill, or a temporary one where the caller wants only sizes (layers is NULL). */
static st_kv_layer *layer_at(st_kv_layer *layers, uint32_t index, st_kv_layer *temporary)
{
    *temporary = (st_kv_layer){0};
    return layers ? &layers[index] : temporary;
}

static bool lay_out_caches(const st_desc *desc, st_kv_layer *layers, st_kv_layout *layout)
{
    size_t end = 0;
    for (uint32_t i = 0; i < layout->layer_count; i++) {
        st_kv_layer temporary, *layer = layer_at(layers, i, &temporary);
        if (desc->layers[i].kind != ST_LAYER_ATTENTION || !takes_part(&layout->options, i)) continue;
        if (!lay_out_attention(&desc->layers[i].attention, i, &layout->options, &end, layer)) return false;
        layout->exact.kv += st_kv_layer_bytes(layer);
    }
    layout->cache_bytes = end;
    return st_align_size(end, ST_RANGE_ALIGN, &layout->state_offset);
}

static bool lay_out_states(const st_desc *desc, st_kv_layer *layers, st_kv_layout *layout)
{
    size_t end = layout->state_offset;
    for (uint32_t i = 0; i < layout->layer_count; i++) {
        st_kv_layer temporary, *layer = layer_at(layers, i, &temporary);
        if (desc->layers[i].kind != ST_LAYER_DELTANET || !takes_part(&layout->options, i)) continue;
        if (!lay_out_state(&desc->layers[i].deltanet, &end, layer)) return false;
        layout->exact.state += layer->conv_bytes + layer->delta_bytes;
    }
    layout->state_bytes = end - layout->state_offset;
    return st_mul_size(layout->state_bytes, layout->options.snapshots, &layout->snapshot_bytes) &&
           st_add_size(end, layout->snapshot_bytes, &layout->total_bytes);
}

static bool lay_out(const st_desc *desc, st_kv_layer *layers, st_kv_layout *layout)
{
    if (!lay_out_caches(desc, layers, layout) || !lay_out_states(desc, layers, layout)) return false;
    /* These are parts of total_bytes, which did not overflow. */
    layout->exact.snapshots = layout->exact.state * layout->options.snapshots;
    layout->exact.padding = layout->total_bytes - layout->exact.kv - layout->exact.state - layout->exact.snapshots;
    return true;
}

bool st_kv_layout_price(const st_desc *desc, const st_kv_options *options, st_kv_layout *out)
{
    *out = (st_kv_layout){.options = *options, .layer_count = desc->layer_count + desc->nextn_count};
    return lay_out(desc, NULL, out);
}

strata_status st_kv_layout_build(const st_desc *desc, const st_kv_options *options, st_arena *arena,
                                 const st_kv_layout **out, strata_error *error)
{
    if (!st_kv_type_name(options->type))
        return st_error_set(error, STRATA_USAGE, NULL, "options.kv_type: expected " ST_KV_TYPE_NAMES);
    if (options->context == 0 || options->batch == 0)
        return st_error_set(error, STRATA_USAGE, NULL, "context %" PRIu32 ", batch %" PRIu32 ": expected at least 1",
                            options->context, options->batch);
    uint32_t count = desc->layer_count + desc->nextn_count;
    st_kv_layout *layout = st_arena_alloc(arena, 1, sizeof *layout);
    st_kv_layer *layers = st_arena_alloc(arena, count, sizeof *layers);
    if (!layout || !layers) return st_error_memory(error, count * sizeof *layers, "the layout of the KV cache");
    *layout = (st_kv_layout){.options = *options, .layer_count = count, .layers = layers};
    if (!lay_out(desc, layers, layout))
        return st_error_set(error, STRATA_MEMORY, "use a smaller options.context",
                            "the KV cache of %" PRIu32 " positions is larger than the address space", options->context);
    *out = layout;
    return STRATA_OK;
}
