#include "plan/explain.h"

/* Writes a plan as JSON. A failed allocation sets `failed`, so that the writer checks once. */
typedef struct explainer {
    const st_plan_source *source;
    const st_plan *plan;
    bool failed;
} explainer;

/* Takes ownership of `value`; NULL is a failed allocation. */
static void set(explainer *e, json_t *object, const char *field, json_t *value)
{
    if (json_object_set_new(object, field, value) != 0) e->failed = true;
}

static void set_size(explainer *e, json_t *object, const char *field, uint64_t value)
{
    set(e, object, field, json_integer((json_int_t)value));
}

static void append(explainer *e, json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) != 0) e->failed = true;
}

static const char *device_kind(uint32_t device)
{
    return device == ST_HOST ? "host" : "card";
}

static json_t *lines_json(explainer *e, const char *const *lines, uint32_t count)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < count; i++) append(e, array, json_string(lines[i]));
    return array;
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

static json_t *device_json(explainer *e, uint32_t index)
{
    const st_plan_device *device = &e->plan->devices[index];
    uint64_t taken = device->planned_bytes + device->margin_bytes;
    json_t *object = json_object(), *owners = json_object();
    for (int owner = 0; owner < ST_OWNER_COUNT; owner++)
        if (device->owners[owner]) set_size(e, owners, st_owner_name((st_owner)owner), device->owners[owner]);
    set(e, object, "name", json_string(device->profile->name));
    set(e, object, "kind", json_string(device_kind(index)));
    set(e, object, "estimate", json_boolean(device->profile->estimate));
    set(e, object, "rates", json_string(st_rates_name(device->profile->rates)));
    if (device->profile->rates_of) set(e, object, "rates_of", json_string(device->profile->rates_of));
    if (device->profile->rates_spread > 0.0) set(e, object, "spread", json_real(device->profile->rates_spread));
    if (device->profile->no_backend) set(e, object, "no_backend", json_true());
    set_size(e, object, "total_bytes", device->profile->total_bytes);
    set_size(e, object, "capacity_bytes", device->capacity_bytes);
    set_size(e, object, "margin_bytes", device->margin_bytes);
    set_size(e, object, "planned_bytes", device->planned_bytes);
    set_size(e, object, "free_bytes", device->capacity_bytes > taken ? device->capacity_bytes - taken : 0);
    set(e, object, "owners", owners);
    return object;
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

static size_t weight_bytes(const explainer *e, const st_op *op)
{
    size_t bytes = 0;
    for (int i = 0; i < ST_OP_WEIGHTS; i++)
        if (op->weight[i] != ST_NO_WEIGHT) bytes += e->source->binding->weights[op->weight[i]].bytes;
    return bytes;
}

/* The device of a layer's part: that of its heaviest operation. Negative: the layer has no such part. */
static int block_device(const explainer *e, uint32_t layer, st_block block)
{
    const st_program *program = e->source->program;
    size_t most = 0;
    int device = -1;
    for (uint32_t i = 0; i < program->op_count; i++) {
        const st_op *op = &program->ops[i];
        if (op->layer != (int32_t)layer || op->block != block) continue;
        size_t bytes = weight_bytes(e, op);
        if (device >= 0 && bytes <= most) continue;
        most = bytes;
        device = e->plan->op_device[i];
    }
    return device;
}

/* The device of the KV cache that a layer reads: its own, or that of the earlier layer that it shares. */
static uint8_t kv_device(const explainer *e, uint32_t layer)
{
    const st_layer_desc *desc = &e->source->desc->layers[layer];
    return e->plan->kv_device[desc->kind == ST_LAYER_ATTENTION ? desc->attention.kv_layer : layer];
}

/* The kind of a layer's cache: "full", "window", "chunk", "shared" (an earlier layer's), "recurrent" or "none". */
static const char *kv_kind(const st_layer_desc *layer, uint32_t index)
{
    if (layer->kind == ST_LAYER_FFN) return "none";
    if (layer->kind != ST_LAYER_ATTENTION) return "recurrent";
    if (layer->attention.kv_layer != index) return "shared";
    return layer->attention.window ? "window" : layer->attention.chunk ? "chunk" : "full";
}

/* The layout of the device that has a layer's keys, values and state; NULL: none. */
static const st_kv_layout *layout_of(const explainer *e, uint32_t layer)
{
    uint8_t device = e->plan->kv_device[layer];
    const st_kv_layout *kv = device < e->plan->device_count ? e->plan->memory[device].kv : NULL;
    return kv && layer < kv->layer_count ? kv : NULL;
}

static uint64_t kept_bytes(const explainer *e, uint32_t layer)
{
    const st_kv_layout *kv = layout_of(e, layer);
    return kv ? st_kv_layer_bytes(kv, &kv->layers[layer]) + st_kv_layer_state_bytes(kv, &kv->layers[layer]) : 0;
}

/* A layer's own keys and values; all zero for a layer without them. */
typedef struct kept_rows {
    uint64_t span, positions, position_bytes;
} kept_rows;

static kept_rows rows_of(const explainer *e, uint32_t layer)
{
    const st_kv_layout *kv = layout_of(e, layer);
    const st_kv_layer *l = kv ? &kv->layers[layer] : NULL;
    if (!l || l->key_row_bytes + l->value_row_bytes == 0) return (kept_rows){0};
    const st_kv_pool *pool = &kv->pools[l->pool];
    return (kept_rows){.span = pool->span, .positions = (uint64_t)pool->pages << kv->page_shift,
                       .position_bytes = l->key_row_bytes + l->value_row_bytes};
}

/* Includes the NextN block where it runs or has a KV cache. */
static uint32_t layer_count(const explainer *e)
{
    const st_desc *desc = e->source->desc;
    uint32_t all = desc->layer_count + desc->nextn_count;
    return all > desc->layer_count && (e->plan->nextn || kept_bytes(e, all - 1)) ? all : desc->layer_count;
}

static void set_device(explainer *e, json_t *object, const char *field, int device)
{
    set(e, object, field, device < 0 ? json_null() : json_string(device_kind((uint32_t)device)));
}

static json_t *layer_json(explainer *e, uint32_t index)
{
    const st_layer_desc *layer = &e->source->desc->layers[index];
    kept_rows kept = rows_of(e, index);
    json_t *object = json_object();
    set_size(e, object, "layer", index);
    set(e, object, "kind", json_string(st_layer_kind_name(layer->kind)));
    if (index >= e->source->desc->layer_count) set(e, object, "nextn", json_true());
    set_device(e, object, "attention", block_device(e, index, ST_BLOCK_ATTENTION));
    set_device(e, object, "ffn", block_device(e, index, ST_BLOCK_FFN));
    if (layer->ffn.experts) {
        set_device(e, object, "experts", block_device(e, index, ST_BLOCK_EXPERTS));
        set_size(e, object, "expert_count", layer->ffn.experts);
        set_size(e, object, "expert_slots", e->plan->experts.slots ? e->plan->experts.slots[index] : 0);
    }
    set(e, object, "kv", json_string(kv_kind(layer, index)));
    set(e, object, "kv_device", json_string(device_kind(kv_device(e, index))));
    set_size(e, object, "kv_span", kept.span);
    set_size(e, object, "kv_positions", kept.positions);
    set_size(e, object, "kv_bytes", kept_bytes(e, index));
    return object;
}

/* ---- keys and values by kind of layer ---------------------------------------------------------------------------- */

/* Finds the row of layers with the same cache on the same device, or adds one. */
static json_t *kv_row(explainer *e, json_t *rows, uint32_t index)
{
    kept_rows kept = rows_of(e, index);
    const char *kind = kv_kind(&e->source->desc->layers[index], index);
    const char *device = device_kind(kv_device(e, index));
    json_int_t positions = (json_int_t)kept.positions, row_bytes = (json_int_t)kept.position_bytes;
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) {
        if (strcmp(json_string_value(json_object_get(row, "kind")), kind) == 0 &&
            strcmp(json_string_value(json_object_get(row, "device")), device) == 0 &&
            json_integer_value(json_object_get(row, "positions")) == positions &&
            json_integer_value(json_object_get(row, "position_bytes")) == row_bytes)
            return row;
    }
    row = json_pack("{s:s, s:s, s:i, s:I, s:I, s:I, s:I}", "kind", kind, "device", device, "layers", 0, "span",
                    (json_int_t)kept.span, "positions", positions, "position_bytes", row_bytes, "bytes",
                    (json_int_t)0);
    append(e, rows, row);
    return e->failed ? NULL : row;
}

static void add_to(const json_t *row, const char *field, uint64_t amount)
{
    json_t *sum = json_object_get(row, field);
    json_integer_set(sum, json_integer_value(sum) + (json_int_t)amount);
}

static json_t *kv_json(explainer *e)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < layer_count(e) && !e->failed; i++) {
        json_t *row = kv_row(e, rows, i);
        add_to(row, "layers", 1);
        add_to(row, "bytes", kept_bytes(e, i));
    }
    return rows;
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

static json_t *experts_json(explainer *e)
{
    const st_plan_experts *experts = &e->plan->experts;
    const st_desc *desc = e->source->desc;
    uint32_t layers = 0, used = 0, most = 0;
    for (uint32_t i = 0; i < desc->layer_count; i++) {
        const st_ffn_desc *ffn = &desc->layers[i].ffn;
        if (ffn->experts == 0) continue;
        layers++;
        used = ffn->experts_used;
        if (ffn->experts > most) most = ffn->experts;
    }
    json_t *object = json_object();
    set(e, object, "mode", json_string(st_moe_mode_name(experts->mode)));
    set_size(e, object, "budget_bytes", experts->budget_bytes);
    set(e, object, "slots_per_layer", json_real(experts->slots_per_layer));
    set(e, object, "resident_share", json_real(experts->resident_share));
    set_size(e, object, "layers", layers);
    set_size(e, object, "experts_per_layer", most);
    set_size(e, object, "used_per_token", used);
    if (experts->mode == ST_MOE_CACHE) {
        set(e, object, "hit_rate", json_real(experts->hit_rate));
        set(e, object, "hit_source", json_string(experts->hit_source ? experts->hit_source : "table"));
    }
    return object;
}

/* Dense parts in RAM that the GPU runs in steps of many rows. */
static json_t *dense_json(explainer *e)
{
    const st_plan_dense *dense = &e->plan->dense;
    json_t *object = json_object();
    set_size(e, object, "rows", dense->rows);
    set_size(e, object, "matrices", dense->fetches);
    set_size(e, object, "bytes", dense->bytes);
    set_size(e, object, "buffer_bytes", dense->buffer_bytes);
    return object;
}

static json_t *speed_json(explainer *e)
{
    const st_plan_speed *speed = &e->plan->speed;
    json_t *object = json_object();
    set(e, object, "decode_tps", json_real(speed->decode_tps));
    if (speed->together_tps > 0) set(e, object, "together_tps", json_real(speed->together_tps));
    set(e, object, "prefill_tps", json_real(speed->prefill_tps));
    set(e, object, "limit", json_string(speed->limit ? speed->limit : ""));
    set_size(e, object, "depth", speed->depth);
    set_size(e, object, "prefill_tokens", speed->prefill);
    set(e, object, "estimate", json_boolean(speed->estimate));
    return object;
}

static json_t *layers_json(explainer *e)
{
    const st_plan *plan = e->plan;
    json_t *object = json_object();
    set_size(e, object, "total", plan->layers_total);
    set_size(e, object, "device", plan->layers_on_card);
    set_size(e, object, "dense_ffn_device", plan->ffn_on_card);
    return object;
}

static json_t *weights_json(explainer *e)
{
    const st_binding *binding = e->source->binding;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < binding->count; i++) bytes += binding->weights[i].bytes;
    return json_integer((json_int_t)bytes);
}

static json_t *load_json(explainer *e)
{
    st_load_times times = st_plan_load_times(e->source, e->plan);
    json_t *object = json_object();
    set(e, object, "disk_seconds", json_real(times.disk_seconds));
    set(e, object, "cache_seconds", json_real(times.cache_seconds));
    return object;
}

static void set_lists(explainer *e, json_t *root)
{
    json_t *devices = json_array(), *map = json_array();
    for (uint32_t i = 0; i < e->plan->device_count; i++) append(e, devices, device_json(e, i));
    for (uint32_t i = 0; i < layer_count(e); i++) append(e, map, layer_json(e, i));
    set(e, root, "devices", devices);
    set(e, root, "layers", layers_json(e));
    set(e, root, "map", map);
    set(e, root, "kv", kv_json(e));
    if (e->plan->experts.mode != ST_MOE_AUTO) set(e, root, "experts", experts_json(e));
    if (e->plan->dense.rows) set(e, root, "streamed", dense_json(e));
    set(e, root, "predicted", speed_json(e));
    set(e, root, "load", load_json(e));
    set(e, root, "why", lines_json(e, e->plan->why, e->plan->why_count));
    set(e, root, "lacking", lines_json(e, e->plan->lacking, e->plan->lacking_count));
}

json_t *st_plan_json(const st_plan_source *source, const st_plan *plan)
{
    explainer e = {.source = source, .plan = plan};
    json_t *root = json_object();
    set_size(&e, root, "context", plan->context);
    set(&e, root, "kv_type", json_string(st_kv_type_name(plan->kv_type)));
    set_size(&e, root, "batch", plan->batch);
    set_size(&e, root, "sequences", plan->conversations);
    set_size(&e, root, "pool_tokens", plan->pool_tokens);
    set_size(&e, root, "restore_bytes", plan->restore_bytes);
    set_size(&e, root, "kv_ram_bytes", plan->tier_bytes);
    set(&e, root, "nextn", json_boolean(plan->nextn));
    set(&e, root, "weight_bytes", weights_json(&e));
    set(&e, root, "output", json_string(device_kind(plan->output_on_card ? ST_CARD : ST_HOST)));
    set(&e, root, "disk", json_boolean(plan->on_disk));
    set_lists(&e, root);
    if (!e.failed && root) return root;
    json_decref(root);
    return NULL;
}

static json_t *cell_json(explainer *e, const char *kv_type, const st_alternative *cell)
{
    json_t *object = json_object();
    set(e, object, "kv_type", json_string(kv_type));
    set_size(e, object, "context", cell->context);
    set(e, object, "fits", json_boolean(cell->fits));
    if (!cell->fits) return object;
    set(e, object, "decode_tps", json_real(cell->decode_tps));
    set(e, object, "prefill_tps", json_real(cell->prefill_tps));
    return object;
}

bool st_alternatives_json(const st_alternatives *a, json_t *plan)
{
    explainer e = {0};
    json_t *cells = json_array(), *longest = json_array();
    for (uint32_t i = 0; i < a->type_count; i++) {
        const char *kv_type = st_kv_type_name(a->types[i]);
        for (uint32_t j = 0; j < a->context_count; j++) append(&e, cells, cell_json(&e, kv_type, &a->table[i][j]));
        json_t *most = json_object();
        set(&e, most, "kv_type", json_string(kv_type));
        set_size(&e, most, "context", a->longest[i]);
        append(&e, longest, most);
    }
    set(&e, plan, "alternatives", cells);
    set(&e, plan, "longest", longest);
    set(&e, plan, "advice", a->advice[0] ? json_string(a->advice) : json_null());
    return !e.failed;
}
