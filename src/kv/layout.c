/* The layout: pools of pages, and the offsets and sizes of every layer. Pure. */
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

uint32_t st_kv_tables_max(const st_kv_layout *layout)
{
    uint64_t entries = 0, most = UINT32_MAX;
    for (uint32_t i = 0; i < layout->pool_count; i++) {
        const st_kv_pool *pool = &layout->pools[i];
        uint64_t all = (uint64_t)pool->table_max * layout->options.conversations;
        entries += i > 0 && pool->pages < all ? pool->pages : all; /* pages of full attention may be shared */
    }
    return (uint32_t)(entries < most ? entries : most);
}

size_t st_kv_tier_bytes(const st_kv_layout *const *layouts, uint32_t count, uint32_t pages)
{
    size_t bytes = 0, offset;
    for (uint32_t i = 0; i < count; i++)
        if (!st_range_append(&bytes, pages, layouts[i]->pools[0].page_bytes, &offset)) return SIZE_MAX;
    return bytes;
}

size_t st_kv_layer_bytes(const st_kv_layout *layout, const st_kv_layer *layer)
{
    return ((layer->key_row_bytes + layer->value_row_bytes) << layout->page_shift) * layout->pools[layer->pool].pages;
}

size_t st_kv_layer_state_bytes(const st_kv_layout *layout, const st_kv_layer *layer)
{
    return (layer->conv_bytes + layer->delta_bytes) * layout->options.conversations;
}

static bool takes_part(const st_kv_options *options, uint32_t layer)
{
    return !options->layer_device || options->layer_device[layer] == options->device;
}

/* --- pools -------------------------------------------------------------------------------------------------------- */

/* The positions that a layer's keys and values are kept for; 0: all. */
static uint32_t span_of(const st_kv_options *options, const st_attention_desc *a)
{
    uint32_t span = a->window ? a->window : a->chunk;
    return options->no_windows || span >= options->context ? 0 : span;
}

static bool stores(const st_desc *desc, uint32_t layer)
{
    return desc->layers[layer].kind == ST_LAYER_ATTENTION && desc->layers[layer].attention.kv_layer == layer;
}

/* A conversation holds the pages of its span and of its rows in the step, and one page behind them, so that it can be
 * cut by a few tokens. */
static bool size_pool(const st_kv_layout *layout, st_kv_pool *pool)
{
    const st_kv_options *o = &layout->options;
    uint64_t page = o->page_tokens, all = (o->context + page - 1) / page;
    uint64_t pages = (o->pool_tokens + page - 1) / page + 1;
    pool->table_max = (uint32_t)all;
    if (pool->span > 0) {
        uint64_t tail = (pool->span - 1 + page - 1) / page + 1, held = tail + 2, of_rows = (o->batch + page - 1) / page;
        pool->tail_max = (uint32_t)(tail < all ? tail : all);
        pool->table_max = (uint32_t)(held + of_rows < all ? held + of_rows : all);
        pages = held * o->conversations + of_rows;
        if (pages > all * o->conversations) pages = all * o->conversations;
    }
    pool->pages = (uint32_t)pages;
    return pages < UINT32_MAX;
}

static uint32_t find_pool(const st_kv_layout *layout, uint32_t span)
{
    uint32_t i = 0;
    while (i < layout->pool_count && layout->pools[i].span != span) i++;
    return i;
}

static bool lay_out_pools(const st_desc *desc, st_kv_layout *layout)
{
    while (1u << layout->page_shift < layout->options.page_tokens) layout->page_shift++;
    layout->pool_count = 1;
    for (uint32_t i = 0; i < layout->layer_count; i++) {
        if (!stores(desc, i)) continue;
        uint32_t span = span_of(&layout->options, &desc->layers[i].attention), pool = find_pool(layout, span);
        if (pool == layout->pool_count) layout->pools[layout->pool_count++].span = span;
    }
    bool sized = true;
    for (uint32_t i = 0; i < layout->pool_count; i++) sized = sized && size_pool(layout, &layout->pools[i]);
    return sized;
}

/* --- keys and values ---------------------------------------------------------------------------------------------- */

/* The layer to fill, or a temporary one where the caller wants only sizes (layers is NULL). */
static st_kv_layer *layer_at(st_kv_layer *layers, uint32_t index, st_kv_layer *temporary)
{
    *temporary = (st_kv_layer){0};
    return layers ? &layers[index] : temporary;
}

/* Sizes a layer's rows; in the page of its pool the layer follows those before it. */
static void size_layer(const st_attention_desc *a, st_kv_layout *layout, st_kv_layer *out)
{
    const st_kv_options *o = &layout->options;
    out->pool = find_pool(layout, span_of(o, a));
    st_kv_pool *pool = &layout->pools[out->pool];
    out->key_row_bytes = st_row_bytes(o->type, (size_t)a->kv_heads * a->key_length);
    out->value_row_bytes = a->latent_query ? 0 : st_row_bytes(o->type, (size_t)a->kv_heads * a->value_length);
    out->keys_offset = pool->page_bytes;
    out->values_offset = out->keys_offset + (out->key_row_bytes << layout->page_shift);
    pool->page_bytes = out->values_offset + (out->value_row_bytes << layout->page_shift);
    out->key_page_bytes = out->key_row_bytes << layout->page_shift;
    out->value_page_bytes = out->value_row_bytes << layout->page_shift;
}

/* Each layer has its pages one after the other, so that neighbouring pages continue in memory. */
static bool lay_out_by_layer(const st_kv_layout *layout, st_kv_layer *layer, size_t *end)
{
    uint32_t pages = layout->pools[layer->pool].pages;
    return st_range_append(end, pages, layer->key_page_bytes, &layer->keys_offset) &&
           st_range_append(end, pages, layer->value_page_bytes, &layer->values_offset);
}

/* Each page has its layers one after the other, so that one copy moves a page. */
static bool lay_out_by_page(const st_desc *desc, st_kv_layer *layers, st_kv_layout *layout, size_t *end)
{
    for (uint32_t i = 0; i < layout->pool_count; i++) {
        st_kv_pool *pool = &layout->pools[i];
        if (!st_range_append(end, pool->pages, pool->page_bytes, &pool->offset)) return false;
    }
    for (uint32_t i = 0; layers && i < layout->layer_count; i++) {
        if (!stores(desc, i) || !takes_part(&layout->options, i)) continue;
        st_kv_layer *layer = &layers[i];
        layer->keys_offset += layout->pools[layer->pool].offset;
        layer->values_offset += layout->pools[layer->pool].offset;
        layer->key_page_bytes = layer->value_page_bytes = layout->pools[layer->pool].page_bytes;
    }
    return true;
}

static bool lay_out_caches(const st_desc *desc, st_kv_layer *layers, st_kv_layout *layout)
{
    size_t end = 0;
    for (uint32_t i = 0; i < layout->layer_count; i++) {
        st_kv_layer temporary, *layer = layer_at(layers, i, &temporary);
        if (!stores(desc, i) || !takes_part(&layout->options, i)) continue;
        size_layer(&desc->layers[i].attention, layout, layer);
        if (!layout->options.page_major && !lay_out_by_layer(layout, layer, &end)) return false;
        layout->exact.kv += st_kv_layer_bytes(layout, layer);
    }
    if (layout->options.page_major && !lay_out_by_page(desc, layers, layout, &end)) return false;
    layout->cache_bytes = end;
    return st_align_size(end, ST_RANGE_ALIGN, &layout->state_offset);
}

/* --- recurrent state ---------------------------------------------------------------------------------------------- */

static bool lay_out_state(const st_state_shape *state, size_t *end, st_kv_layer *out)
{
    out->conv_bytes = (size_t)(state->conv_channels * state->conv_rows) * sizeof(float);
    if (!st_mul_size((size_t)state->floats, sizeof(float), &out->delta_bytes)) return false;
    return st_range_append(end, 1, out->conv_bytes, &out->conv_offset) &&
           st_range_append(end, 1, out->delta_bytes, &out->delta_offset);
}

/* A slot is one range, so that one copy saves it. */
static bool lay_out_slots(const st_desc *desc, st_kv_layer *layers, st_kv_layout *layout)
{
    size_t end = 0, slots, state = 0;
    for (uint32_t i = 0; i < layout->layer_count; i++) {
        st_kv_layer temporary, *layer = layer_at(layers, i, &temporary);
        st_state_shape shape = st_layer_state(desc, i);
        bool none = shape.conv_rows == 0 && shape.floats == 0;
        if (none || !takes_part(&layout->options, i)) continue;
        if (!lay_out_state(&shape, &end, layer)) return false;
        state += layer->conv_bytes + layer->delta_bytes;
        layer->conv_offset += layout->state_offset;
        layer->delta_offset += layout->state_offset;
    }
    if (!st_range_append(&end, layout->options.carry, sizeof(float), &layout->carry_offset)) return false;
    state += layout->options.carry * sizeof(float);
    if (!st_align_size(end, ST_RANGE_ALIGN, &layout->slot_bytes) ||
        !st_mul_size(layout->slot_bytes, layout->options.conversations, &slots))
        return false;
    layout->exact.state = state * layout->options.conversations;
    return st_add_size(layout->state_offset, slots, &layout->total_bytes);
}

/* The sizes are parts of total_bytes, which did not overflow. */
static bool lay_out(const st_desc *desc, st_kv_layer *layers, st_kv_layout *layout)
{
    if (!lay_out_pools(desc, layout) || !lay_out_caches(desc, layers, layout) || !lay_out_slots(desc, layers, layout))
        return false;
    layout->exact.padding = layout->total_bytes - layout->exact.kv - layout->exact.state;
    layout->needs_points = desc->recurrent || layout->options.carry > 0 || layout->pool_count > 1;
    layout->point_bytes = layout->slot_bytes;
    for (uint32_t i = 1; i < layout->pool_count; i++)
        layout->point_bytes += layout->pools[i].tail_max * layout->pools[i].page_bytes;
    return true;
}

bool st_kv_layout_price(const st_desc *desc, const st_kv_options *options, st_kv_layout *out)
{
    *out = (st_kv_layout){.options = *options, .layer_count = desc->layer_count + desc->nextn_count};
    return lay_out(desc, NULL, out);
}

/* The numbers of positions that the layers attend to, full attention included. */
static uint32_t count_spans(const st_desc *desc, const st_kv_options *options)
{
    uint32_t count = 1;
    for (uint32_t i = 0; i < desc->layer_count + desc->nextn_count; i++) {
        uint32_t span = stores(desc, i) ? span_of(options, &desc->layers[i].attention) : 0, before = 0;
        while (before < i && (!stores(desc, before) || span_of(options, &desc->layers[before].attention) != span))
            before++;
        count += span > 0 && before == i;
    }
    return count;
}

strata_status st_kv_layout_check(const st_desc *desc, const st_kv_options *options, strata_error *error)
{
    if (!st_kv_type_name(options->type))
        return st_error_set(error, STRATA_USAGE, NULL, "options.kv_type: expected " ST_KV_TYPE_NAMES);
    if (options->context == 0 || options->batch == 0 || options->conversations == 0)
        return st_error_set(error, STRATA_USAGE, NULL,
                            "context %" PRIu32 ", batch %" PRIu32 ", conversations %" PRIu32 ": expected at least 1",
                            options->context, options->batch, options->conversations);
    if (!st_is_power_of_two(options->page_tokens) || options->page_tokens > UINT32_C(1) << 16)
        return st_error_set(error, STRATA_USAGE, NULL,
                            "tokens of a page: expected a power of two up to 65536, found %" PRIu32,
                            options->page_tokens);
    if (options->pool_tokens < options->context)
        return st_error_set(error, STRATA_USAGE, NULL,
                            "a pool of %" PRIu32 " tokens: expected at least the context, %" PRIu32,
                            options->pool_tokens, options->context);
    uint32_t spans = count_spans(desc, options);
    if (spans > ST_KV_POOLS_MAX)
        return st_error_set(error, STRATA_UNSUPPORTED, NULL,
                            "the model's layers have %" PRIu32 " different attention spans: expected at most %d",
                            spans, ST_KV_POOLS_MAX);
    return STRATA_OK;
}

strata_status st_kv_layout_build(const st_desc *desc, const st_kv_options *options, st_arena *arena,
                                 const st_kv_layout **out, strata_error *error)
{
    strata_status status = st_kv_layout_check(desc, options, error);
    if (status != STRATA_OK) return status;
    uint32_t count = desc->layer_count + desc->nextn_count;
    st_kv_layout *layout = st_arena_alloc(arena, 1, sizeof *layout);
    st_kv_layer *layers = st_arena_alloc(arena, count, sizeof *layers);
    if (!layout || !layers) return st_error_memory(error, count * sizeof *layers, "the layout of the KV cache");
    *layout = (st_kv_layout){.options = *options, .layer_count = count, .layers = layers};
    if (!lay_out(desc, layers, layout))
        return st_error_set(error, STRATA_MEMORY, "use a smaller options.context",
                            "the KV cache of %" PRIu32 " positions is larger than the address space",
                            options->pool_tokens);
    *out = layout;
    return STRATA_OK;
}
