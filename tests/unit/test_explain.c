/* src/plan/explain.c: a hand-made plan as JSON: sums, omitted fields and names. */
#include "support/kit.h"

#include <string.h>

#include "plan/explain.h"

enum { OPS_MAX = 4096, LAYERS_MAX = 64, PAGE = 16 };

/* A model of the kit and a hand-made plan for it. */
typedef struct rig {
    st_gguf *gguf;
    st_arena arena;
    st_profile devices[2];
    st_plan_source source;
    st_plan plan;
    uint8_t op_device[OPS_MAX], kv_device[LAYERS_MAX];
    uint32_t slots[LAYERS_MAX];
    json_t *json;
} rig;

static void check(strata_status status, const strata_error *error)
{
    if (status != STRATA_OK) fail_msg("%s", error->message);
}

static void open_rig(rig *r, const char *model)
{
    strata_error error;
    memset(r, 0, sizeof *r);
    check(st_gguf_open(kit_path(model), &r->gguf, &error), &error);
    check(st_program_of_file(r->gguf, &r->arena, &r->source.desc, &r->source.binding, &r->source.program, &error), &error);
    r->devices[0] = st_profile_default(ST_DEVICE_HOST);
    r->devices[1] = st_profile_default(ST_DEVICE_CARD);
    r->source.devices = r->devices;
    r->source.device_count = 2;
    assert_true(r->source.program->op_count <= OPS_MAX && r->source.desc->layer_count + 1 < LAYERS_MAX);
    r->plan = (st_plan){.context = 256, .pool_tokens = 300, .restore_bytes = 4000, .tier_bytes = 5000, .batch = 32, .conversations = 2,
                        .kv_type = ST_TYPE_BF16, .device_count = 2, .op_device = r->op_device,
                        .kv_device = r->kv_device, .layers_total = r->source.desc->layer_count};
    for (int d = 0; d < 2; d++)
        r->plan.devices[d] = (st_plan_device){.profile = &r->devices[d], .capacity_bytes = 1000, .margin_bytes = 100};
}

/* Everything of a layer runs on the GPU. */
static void place_layer(rig *r, uint32_t layer)
{
    const st_program *program = r->source.program;
    for (uint32_t i = 0; i < program->op_count; i++)
        if (program->ops[i].layer == (int32_t)layer && program->ops[i].block != ST_BLOCK_EXPERTS) r->op_device[i] = ST_CARD;
    r->kv_device[layer] = ST_CARD;
    r->plan.layers_on_card++;
}

static void lay_out(rig *r)
{
    strata_error error;
    for (uint8_t d = 0; d < 2; d++) {
        st_kv_options options = {.type = r->plan.kv_type, .page_tokens = PAGE, .context = r->plan.context,
                                 .pool_tokens = r->plan.pool_tokens, .conversations = r->plan.conversations,
                                 .batch = r->plan.batch, .layer_device = r->kv_device, .device = d};
        check(st_kv_layout_build(r->source.desc, &options, &r->arena, &r->plan.memory[d].kv, &error), &error);
    }
}

static const json_t *explain(rig *r)
{
    json_decref(r->json);
    r->json = st_plan_json(&r->source, &r->plan);
    assert_non_null(r->json);
    return r->json;
}

static void close_rig(rig *r)
{
    json_decref(r->json);
    st_arena_free(&r->arena);
    st_gguf_close(r->gguf);
}

static json_int_t number(const json_t *object, const char *field)
{
    const json_t *value = json_object_get(object, field);
    if (!json_is_integer(value)) fail_msg("%s: expected a whole number", field);
    return json_integer_value(value);
}

static const char *text(const json_t *object, const char *field)
{
    const char *value = json_string_value(json_object_get(object, field));
    if (!value) fail_msg("%s: expected a text", field);
    return value;
}

static void owners_add_up(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, "llama.gguf");
    lay_out(&r);
    st_plan_device *card = &r.plan.devices[ST_CARD];
    card->owners[ST_OWNER_RUNTIME] = 50;
    card->owners[ST_OWNER_WEIGHTS] = 300;
    card->owners[ST_OWNER_PADDING] = 7;
    card->planned_bytes = 357;
    const json_t *plan = explain(&r), *devices = json_object_get(plan, "devices");
    assert_int_equal(json_array_size(devices), 2);
    const json_t *device = json_array_get(devices, 1), *owners = json_object_get(device, "owners");
    assert_string_equal(text(device, "kind"), "card");
    assert_string_equal(text(json_array_get(devices, 0), "kind"), "host");
    assert_int_equal(number(device, "capacity_bytes"), 1000);
    assert_int_equal(number(device, "margin_bytes"), 100);
    assert_int_equal(number(device, "planned_bytes"), 357);
    assert_int_equal(number(device, "free_bytes"), 543);
    assert_int_equal(json_object_size(owners), 3); /* owners of zero bytes are left out */
    assert_int_equal(number(owners, "runtime") + number(owners, "weights") + number(owners, "padding"), 357);
    uint64_t weights = 0;
    for (uint32_t i = 0; i < r.source.binding->count; i++) weights += r.source.binding->weights[i].bytes;
    assert_int_equal(number(plan, "weight_bytes"), weights);
    assert_int_equal(number(plan, "context"), 256);
    assert_int_equal(number(plan, "pool_tokens"), 300);
    assert_int_equal(number(plan, "restore_bytes"), 4000);
    assert_int_equal(number(plan, "kv_ram_bytes"), 5000);
    assert_int_equal(number(plan, "sequences"), 2);
    assert_int_equal(number(plan, "batch"), 32);
    assert_string_equal(text(plan, "kv_type"), "bf16");
    assert_string_equal(text(plan, "output"), "host");
    assert_null(json_object_get(plan, "experts")); /* the model has none */
    r.plan.device_count = 1;
    assert_int_equal(json_array_size(json_object_get(explain(&r), "devices")), 1);
    close_rig(&r);
}

static void kv_types_have_the_names_of_the_options(void **state)
{
    (void)state;
    static const struct { st_type type; const char *name; } rows[] = {
        {ST_TYPE_F32, "f32"}, {ST_TYPE_F16, "f16"}, {ST_TYPE_BF16, "bf16"}, {ST_TYPE_Q8_0, "q8_0"}};
    rig r;
    open_rig(&r, "llama.gguf");
    for (size_t i = 0; i < 3; i++) {
        r.plan.kv_type = rows[i].type;
        lay_out(&r);
        assert_string_equal(text(explain(&r), "kv_type"), rows[i].name);
    }
    close_rig(&r);
}

/* The map, the kinds of layers and the layouts have the same total of bytes. */
static void check_kv_sums(const rig *r)
{
    json_int_t by_layer = 0, by_kind = 0, layers = 0;
    uint64_t laid_out = 0;
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(r->json, "map"), i, row) by_layer += number(row, "kv_bytes");
    json_array_foreach(json_object_get(r->json, "kv"), i, row) {
        by_kind += number(row, "bytes");
        layers += number(row, "layers");
    }
    for (int d = 0; d < 2; d++)
        for (uint32_t l = 0; l < r->plan.memory[d].kv->layer_count; l++) {
            const st_kv_layout *kv = r->plan.memory[d].kv;
            laid_out += st_kv_layer_bytes(kv, &kv->layers[l]) + st_kv_layer_state_bytes(kv, &kv->layers[l]);
        }
    assert_int_equal(layers, json_array_size(json_object_get(r->json, "map")));
    assert_true(layers >= r->source.desc->layer_count);
    assert_int_equal(by_layer, by_kind);
    assert_int_equal(by_layer, laid_out);
}

static void the_map_shows_every_layers_device(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, "qwen3moe.gguf");
    uint32_t layers = r.source.desc->layer_count;
    for (uint32_t i = 0; i < layers / 2; i++) {
        place_layer(&r, i);
        r.slots[i] = 3 + i;
    }
    r.plan.experts = (st_plan_experts){.mode = ST_MOE_CACHE, .budget_bytes = 12345, .slots = r.slots, .slots_per_layer = 1.75,
                                       .resident_share = 0.25, .hit_rate = 0.5, .hit_source = "slots / experts"};
    r.plan.output_on_card = true;
    lay_out(&r);
    const json_t *plan = explain(&r), *map = json_object_get(plan, "map"), *experts = json_object_get(plan, "experts");
    assert_int_equal(json_array_size(map), layers);
    for (uint32_t i = 0; i < layers; i++) {
        const json_t *layer = json_array_get(map, i);
        const char *device = i < layers / 2 ? "card" : "host";
        assert_int_equal(number(layer, "layer"), i);
        assert_string_equal(text(layer, "attention"), device);
        assert_string_equal(text(layer, "ffn"), device);
        assert_string_equal(text(layer, "kv_device"), device);
        assert_string_equal(text(layer, "experts"), "host");
        assert_string_equal(text(layer, "kv"), "full");
        assert_int_equal(number(layer, "expert_slots"), i < layers / 2 ? 3 + i : 0);
        assert_int_equal(number(layer, "expert_count"), r.source.desc->layers[i].ffn.experts);
        assert_int_equal(number(layer, "kv_positions"), r.plan.memory[ST_HOST].kv->pools[0].pages * PAGE);
    }
    assert_int_equal(json_array_size(json_object_get(plan, "kv")), 2); /* one kind, on two devices */
    check_kv_sums(&r);
    assert_int_equal(number(json_object_get(plan, "layers"), "device"), layers / 2);
    assert_int_equal(number(json_object_get(plan, "layers"), "total"), layers);
    assert_string_equal(text(plan, "output"), "card");
    assert_string_equal(text(experts, "mode"), "cache");
    assert_int_equal(number(experts, "budget_bytes"), 12345);
    assert_true(json_real_value(json_object_get(experts, "slots_per_layer")) == 1.75);
    assert_true(json_real_value(json_object_get(experts, "resident_share")) == 0.25);
    assert_true(json_real_value(json_object_get(experts, "hit_rate")) == 0.5);
    assert_string_equal(text(experts, "hit_source"), "slots / experts");
    r.plan.experts.mode = ST_MOE_CPU;
    assert_null(json_object_get(json_object_get(explain(&r), "experts"), "hit_rate")); /* no cache, no hits */
    close_rig(&r);
}

static const json_t *kv_of_kind(const json_t *plan, const char *kind)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(plan, "kv"), i, row)
        if (strcmp(text(row, "kind"), kind) == 0) return row;
    fail_msg("no layers of kind %s", kind);
    return NULL;
}

static void kv_is_summed_by_kind_of_layer(void **state)
{
    (void)state;
    rig r;
    open_rig(&r, "gemma4-e.gguf"); /* windows, and layers that read an earlier layer's cache */
    lay_out(&r);
    const json_t *plan = explain(&r), *window = kv_of_kind(plan, "window"), *shared = kv_of_kind(plan, "shared");
    uint32_t span = (uint32_t)number(window, "span");
    assert_true(span > 0 && span < 256);
    const st_kv_layout *kv = r.plan.memory[ST_HOST].kv;
    assert_int_equal(kv->pools[1].span, span);
    assert_int_equal(number(window, "positions"), kv->pools[1].pages * PAGE);
    assert_int_equal(number(shared, "bytes"), 0);
    assert_int_equal(number(shared, "positions"), 0);
    assert_int_equal(number(kv_of_kind(plan, "full"), "positions"), kv->pools[0].pages * PAGE);
    assert_true(number(kv_of_kind(plan, "full"), "positions") >= r.plan.pool_tokens);
    check_kv_sums(&r);
    close_rig(&r);
    open_rig(&r, "qwen35.gguf"); /* DeltaNet beside attention */
    place_layer(&r, 0);
    lay_out(&r);
    plan = explain(&r);
    assert_string_equal(text(json_array_get(json_object_get(plan, "map"), 0), "kind"), "deltanet");
    assert_int_equal(number(kv_of_kind(plan, "recurrent"), "positions"), 0);
    assert_true(number(kv_of_kind(plan, "recurrent"), "bytes") > 0);
    check_kv_sums(&r);
    size_t with_nextn = json_array_size(json_object_get(plan, "map"));
    assert_int_equal(with_nextn, r.source.desc->layer_count + r.source.desc->nextn_count);
    r.kv_device[r.source.desc->layer_count] = UINT8_MAX; /* has no KV cache */
    lay_out(&r);
    assert_int_equal(json_array_size(json_object_get(explain(&r), "map")), with_nextn - 1);
    check_kv_sums(&r);
    close_rig(&r);
}

static void speed_and_reasons_are_written(void **state)
{
    (void)state;
    static const char *const why[] = {"one", "two — with “quotes”"}, *const lacking[] = {"three"};
    rig r;
    open_rig(&r, "llama.gguf");
    lay_out(&r);
    r.plan.speed = (st_plan_speed){.decode_tps = 12.5, .prefill_tps = 400, .limit = "DRAM", .depth = 4096, .prefill = 512,
                                   .estimate = true};
    r.plan.why = why;
    r.plan.why_count = 2;
    r.plan.lacking = lacking;
    r.plan.lacking_count = 1;
    const json_t *plan = explain(&r), *speed = json_object_get(plan, "predicted");
    assert_true(json_real_value(json_object_get(speed, "decode_tps")) == 12.5);
    assert_true(json_real_value(json_object_get(speed, "prefill_tps")) == 400);
    assert_string_equal(text(speed, "limit"), "DRAM");
    assert_int_equal(number(speed, "depth"), 4096);
    assert_int_equal(number(speed, "prefill_tokens"), 512);
    assert_true(json_is_true(json_object_get(speed, "estimate")));
    assert_int_equal(json_array_size(json_object_get(plan, "why")), 2);
    assert_string_equal(json_string_value(json_array_get(json_object_get(plan, "why"), 1)), why[1]);
    assert_string_equal(json_string_value(json_array_get(json_object_get(plan, "lacking"), 0)), "three");
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(owners_add_up), cmocka_unit_test(kv_types_have_the_names_of_the_options),
        cmocka_unit_test(the_map_shows_every_layers_device), cmocka_unit_test(kv_is_summed_by_kind_of_layer),
        cmocka_unit_test(speed_and_reasons_are_written),
    };
    return cmocka_run_group_tests_name("explain", tests, NULL, NULL);
}
