#include "support/kv_rig.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

enum { KEY_FLOATS = 2, VALUE_FLOATS = 1, CARRY_FLOATS = 4 };

kv_faults kv_rig_faults;

/* --- a device whose calls fail ------------------------------------------------------------------------------------ */

static strata_status hit(strata_error *error)
{
    if (++kv_rig_faults.calls != kv_rig_faults.fail_at) return STRATA_OK;
    return st_error_set(error, STRATA_DEVICE, NULL, "device call %llu fails", (unsigned long long)kv_rig_faults.calls);
}

static void log_write(void *memory, size_t bytes)
{
    assert_true(kv_rig_faults.write_count < KV_RIG_WRITES);
    kv_rig_faults.writes[kv_rig_faults.write_count].memory = memory;
    kv_rig_faults.writes[kv_rig_faults.write_count++].bytes = bytes;
}

/* Copies on other queues wait for the work before them: what they overwrite is not lost any more. */
static void forget_writes(const void *memory, size_t bytes)
{
    const unsigned char *first = memory;
    for (uint32_t i = 0; i < kv_rig_faults.write_count; i++) {
        const unsigned char *at = kv_rig_faults.writes[i].memory;
        if (at >= first && at < first + bytes) kv_rig_faults.writes[i].bytes = 0;
    }
}

/* Restore points are found only once their copies have ended, so what is copied to them is certain. So is what other
 * queues have copied: the RAM tier waits for their events. */
static const unsigned char *restore_begin, *restore_end;
static const st_queue *main_queue;

static strata_status copy(st_queue *queue, st_copy_kind kind, void *to, const void *from, size_t bytes,
                          strata_error *error)
{
    strata_status status = hit(error);
    bool to_point = (unsigned char *)to >= restore_begin && (unsigned char *)to < restore_end;
    if (queue == main_queue && !to_point) log_write(to, bytes);
    if (queue != main_queue) forget_writes(to, bytes);
    return status == STRATA_OK ? st_backend_cpu()->copy(queue, kind, to, from, bytes, error) : status;
}

static strata_status zero(st_queue *queue, void *memory, size_t bytes, strata_error *error)
{
    strata_status status = hit(error);
    log_write(memory, bytes);
    return status == STRATA_OK ? st_backend_cpu()->zero(queue, memory, bytes, error) : status;
}

static strata_status event_new(st_device *device, st_event **out, strata_error *error)
{
    strata_status status = hit(error);
    return status == STRATA_OK ? st_backend_cpu()->event_new(device, out, error) : status;
}

static strata_status event_record(st_event *event, st_queue *queue, strata_error *error)
{
    strata_status status = hit(error);
    return status == STRATA_OK ? st_backend_cpu()->event_record(event, queue, error) : status;
}

static bool event_done(const st_event *event)
{
    return !kv_rig_faults.lags && st_backend_cpu()->event_done(event);
}

/* --- layers, shares and memory ------------------------------------------------------------------------------------ */

static void add_attention(kv_rig *rig, uint32_t window)
{
    uint32_t i = rig->desc.layer_count++;
    rig->layers[i] = (st_layer_desc){.kind = ST_LAYER_ATTENTION,
                                     .attention = {.heads = 1, .kv_heads = 1, .key_length = KEY_FLOATS,
                                                   .value_length = VALUE_FLOATS, .window = window, .kv_layer = i}};
}

static void describe(kv_rig *rig)
{
    rig->desc = (st_desc){.layers = rig->layers, .embedding = CARRY_FLOATS, .recurrent = rig->shape.state};
    add_attention(rig, 0);
    for (int i = 0; i < ST_KV_POOLS_MAX && rig->shape.windows[i]; i++) add_attention(rig, rig->shape.windows[i]);
    if (rig->shape.state) {
        st_deltanet_desc delta = {.key_heads = 1, .value_heads = 2, .state_size = 2, .conv_width = 3};
        rig->layers[rig->desc.layer_count++] = (st_layer_desc){.kind = ST_LAYER_DELTANET, .deltanet = delta};
    }
    if (rig->shape.nextn) {
        add_attention(rig, 0);
        rig->desc.layer_count--;
        rig->desc.nextn_count = 1;
    }
    for (uint32_t i = 0; i < KV_RIG_LAYERS; i++) rig->layer_share[i] = rig->shape.far && (i % 2 == 1) == !rig->shape.tier;
}

static void add_share(kv_rig *rig, uint8_t share)
{
    const kv_shape *s = &rig->shape;
    st_kv_options options = {.type = ST_TYPE_F32, .page_tokens = s->page, .context = s->context, .pool_tokens = s->pool,
                             .conversations = s->conversations, .batch = s->batch, .carry = s->nextn ? CARRY_FLOATS : 0,
                             .page_major = share > 0, .layer_device = rig->layer_share, .device = share};
    strata_error error;
    const st_kv_layout *layout = NULL;
    if (st_kv_layout_build(&rig->desc, &options, &rig->arena, &layout, &error) != STRATA_OK)
        fail_msg("%s", error.message);
    unsigned char *memory = st_alloc_array(layout->total_bytes, 1);
    assert_non_null(memory);
    memset(memory, 0xff, layout->total_bytes); /* NaN */
    rig->source.shares[rig->source.share_count++] =
        (st_kv_share){.layout = layout, .backend = &rig->backend, .device = rig->device,
                      .queue = rig->queue, .memory = memory};
    rig->source.restore_bytes += s->points * layout->point_bytes;
}

static void add_tier(kv_rig *rig)
{
    const st_kv_layout *layouts[ST_KV_SHARES_MAX];
    for (uint32_t i = 0; i < rig->source.share_count; i++) layouts[i] = rig->source.shares[i].layout;
    rig->source.tier_pages = rig->shape.tier;
    rig->source.tier = st_alloc_array(st_kv_tier_bytes(layouts, rig->source.share_count, rig->shape.tier), 1);
    assert_non_null(rig->source.tier);
}

void kv_rig_prepare(kv_rig *rig, const kv_shape *shape)
{
    *rig = (kv_rig){.shape = *shape, .backend = *st_backend_cpu()};
    kv_rig_faults.calls = kv_rig_faults.fail_at = kv_rig_faults.write_count = 0;
    kv_rig_faults.lags = false;
    rig->backend.copy = copy;
    rig->backend.zero = zero;
    rig->backend.event_new = event_new;
    rig->backend.event_record = event_record;
    rig->backend.event_done = event_done;
    st_device_options options = {.cpu = "ref", .threads = 1};
    assert_int_equal(st_backend_cpu()->open(&options, &rig->device, NULL), STRATA_OK);
    assert_int_equal(st_backend_cpu()->queue_new(rig->device, ST_QUEUE_COMPUTE, &rig->queue, NULL), STRATA_OK);
    describe(rig);
    for (uint8_t i = 0; i <= shape->far; i++) add_share(rig, i);
    rig->source.restore = st_alloc_array(rig->source.restore_bytes + 1, 1);
    rig->tables = st_alloc_array(st_kv_tables_max(rig->source.shares[0].layout), sizeof *rig->tables);
    assert_true(rig->source.restore && rig->tables);
    restore_begin = rig->source.restore;
    restore_end = restore_begin + rig->source.restore_bytes;
    main_queue = rig->queue;
    if (shape->tier) add_tier(rig);
}

strata_status kv_rig_new(kv_rig *rig, strata_error *error)
{
    return st_kv_new(&rig->source, &rig->kv, error);
}

void kv_rig_open(kv_rig *rig, const kv_shape *shape)
{
    strata_error error;
    kv_rig_prepare(rig, shape);
    if (kv_rig_new(rig, &error) != STRATA_OK) fail_msg("%s", error.message);
}

void kv_rig_close(kv_rig *rig)
{
    if (rig->kv) {
        st_kv_use use = st_kv_count(rig->kv);
        assert_int_equal(use.conversations, 0);
        assert_int_equal(use.slots_taken, 0);
        for (uint32_t i = 0; i < use.pool_count; i++) {
            assert_int_equal(use.pools[i].held, 0);
            if (i > 0) assert_int_equal(use.pools[i].free, use.pools[i].total);
        }
    }
    st_kv_free(rig->kv);
    for (uint32_t i = 0; i < rig->source.share_count; i++) st_free(rig->source.shares[i].memory);
    st_free(rig->source.restore);
    st_free(rig->source.tier);
    st_free(rig->tables);
    st_backend_cpu()->queue_free(rig->queue);
    st_backend_cpu()->close(rig->device);
    st_arena_free(&rig->arena);
}

st_conversation *kv_rig_conversation(kv_rig *rig)
{
    st_conversation *c = NULL;
    assert_int_equal(st_conversation_new(rig->kv, &c, NULL), STRATA_OK);
    return c;
}

void kv_rig_confirm(kv_rig *rig)
{
    kv_rig_faults.write_count = 0;
    st_kv_confirm(rig->kv);
}

void kv_rig_fail(kv_rig *rig)
{
    for (uint32_t i = 0; i < kv_rig_faults.write_count; i++)
        memset(kv_rig_faults.writes[i].memory, 0xff, kv_rig_faults.writes[i].bytes);
    kv_rig_faults.write_count = 0;
    st_kv_fail(rig->kv);
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

/* A number for all tokens up to a position, exact as a float. */
static uint32_t chain(uint32_t before, strata_token token)
{
    return ((before * 31 + (uint32_t)token + 1) * 2654435761u) >> 8;
}

static uint32_t chain_of(const strata_token *tokens, uint32_t count)
{
    uint32_t value = 0;
    for (uint32_t i = 0; i < count; i++) value = chain(value, tokens[i]);
    return value;
}

/* What the row of a layer holds, `upto` being the chain up to its position. */
static float expected(uint32_t layer, uint32_t upto)
{
    return (float)upto + (float)layer;
}

typedef struct reading {
    kv_rig *rig;
    st_conversation *c;
    st_step_conversation step;
    const strata_token *tokens;
} reading;

static reading read_of(kv_rig *rig, st_conversation *c)
{
    reading r = {.rig = rig, .c = c, .tokens = st_conversation_tokens(c)};
    uint32_t entries = st_conversation_write(c, st_conversation_position(c), 0, &r.step, rig->tables);
    assert_true(entries <= st_kv_tables_max(rig->source.shares[0].layout));
    return r;
}

static void touch(const reading *r, uint32_t layer, uint32_t position, uint32_t upto, bool writes)
{
    st_kv_view view = st_kv_view_of(r->rig->kv, layer);
    float *key = (float *)(void *)st_kv_key(&view, &r->step, r->rig->tables, position);
    float *value = (float *)(void *)st_kv_value(&view, &r->step, r->rig->tables, position);
    float row = expected(layer, upto);
    if (writes) {
        key[0] = row;
        key[1] = -row;
        value[0] = row + 1;
        log_write(key, KEY_FLOATS * sizeof *key);
        log_write(value, VALUE_FLOATS * sizeof *value);
    } else if (key[0] != row || key[1] != -row || value[0] != row + 1) {
        fail_msg("%s: conversation %u, layer %u: the row of position %u holds other tokens", r->rig->label,
                 st_conversation_number(r->c), layer, position);
    }
}

/* Checks, or writes, the rows from `first` to `end` − 1 of a layer. The NextN block has no row of the first token. */
static void touch_rows(const reading *r, uint32_t layer, uint32_t first, uint32_t end, bool writes)
{
    if (layer >= r->rig->desc.layer_count && first == 0) first = 1;
    uint32_t upto = chain_of(r->tokens, first);
    for (uint32_t p = first; p < end; p++) {
        upto = chain(upto, r->tokens[p]);
        touch(r, layer, p, upto, writes);
    }
}

/* Checks, or writes, the recurrent state and the hidden row of the slot: they depend on the tokens before
 * `position`. */
static void touch_slot(const reading *r, uint32_t position, bool writes)
{
    const kv_rig *rig = r->rig;
    uint32_t slot = st_conversation_slot(r->c), upto = chain_of(r->tokens, position);
    for (uint32_t i = 0; i < rig->desc.layer_count; i++) {
        if (rig->layers[i].kind != ST_LAYER_DELTANET) continue;
        const st_kv_layer *layer = &rig->source.shares[rig->layer_share[i]].layout->layers[i];
        st_state_view view = st_kv_state_of(rig->kv, i);
        float *parts[] = {view.conv + slot * view.slot_floats, view.delta + slot * view.slot_floats};
        size_t floats[] = {layer->conv_bytes / sizeof(float), layer->delta_bytes / sizeof(float)};
        for (int part = 0; part < 2; part++) {
            if (writes) log_write(parts[part], floats[part] * sizeof(float));
            for (size_t k = 0; k < floats[part]; k++) {
                if (writes) parts[part][k] = (float)upto;
                else if (parts[part][k] != (float)upto)
                    fail_msg("%s: conversation %u: wrong state at position %u", rig->label,
                             st_conversation_number(r->c), position);
            }
        }
    }
    float *carry = (float *)(void *)st_kv_carry(rig->kv, 0, slot);
    if (writes && rig->shape.nextn) log_write(carry, CARRY_FLOATS * sizeof *carry);
    for (int k = 0; rig->shape.nextn && k < CARRY_FLOATS; k++) {
        if (writes) carry[k] = (float)upto;
        else if (carry[k] != (float)upto)
            fail_msg("%s: conversation %u: wrong hidden row at position %u", rig->label, st_conversation_number(r->c),
                     position);
    }
}

/* The oldest position that the token at `position` attends to. */
static uint32_t oldest_of(const kv_rig *rig, uint32_t layer, uint32_t position)
{
    uint32_t window = rig->layers[layer].attention.window;
    return window && position + 1 > window ? position + 1 - window : 0;
}

static void check_at(const reading *r, uint32_t position)
{
    const kv_rig *rig = r->rig;
    for (uint32_t i = 0; i < rig->desc.layer_count + rig->desc.nextn_count; i++) {
        if (rig->layers[i].kind != ST_LAYER_ATTENTION) continue;
        touch_rows(r, i, oldest_of(rig, i, position), position, false);
    }
}

void kv_rig_check(kv_rig *rig, st_conversation *c)
{
    if (!st_conversation_ready(c) || st_conversation_position(c) == 0) return;
    reading r = read_of(rig, c);
    check_at(&r, st_conversation_position(c));
    if (rig->shape.state || rig->shape.nextn) touch_slot(&r, st_conversation_position(c), false);
}

void kv_rig_run(kv_rig *rig, st_conversation *c, uint32_t count)
{
    reading r = read_of(rig, c);
    uint32_t position = st_conversation_position(c), end = position + count;
    assert_true(st_conversation_slot(c) < rig->shape.conversations);
    if (rig->shape.state || (rig->shape.nextn && position > 0)) touch_slot(&r, position, false);
    for (uint32_t i = 0; i < rig->desc.layer_count + rig->desc.nextn_count; i++) {
        if (rig->layers[i].kind != ST_LAYER_ATTENTION) continue;
        touch_rows(&r, i, position, end, true);
        touch_rows(&r, i, oldest_of(rig, i, position), end, false);
    }
    touch_slot(&r, end, true);
    st_conversation_commit(c);
}

strata_status kv_rig_step(kv_rig *rig, st_conversation *c, uint32_t count, strata_error *error)
{
    strata_status status = st_conversation_prepare(c, count, error);
    if (status == STRATA_OK) kv_rig_run(rig, c, count);
    return status;
}

void kv_rig_tokens(strata_token *tokens, uint32_t count, uint32_t seed)
{
    for (uint32_t i = 0; i < count; i++) tokens[i] = (strata_token)((seed + i * 7919u) % 1000);
}

uint32_t kv_rig_prompt(kv_rig *rig, st_conversation *c, const strata_token *tokens, uint32_t count)
{
    st_seek seek;
    strata_error error;
    if (st_conversation_seek(c, tokens, count, true, &seek, &error) != STRATA_OK) fail_msg("%s", error.message);
    assert_int_equal(seek.kept, st_conversation_position(c));
    assert_true(seek.kept < count);
    kv_rig_check(rig, c);
    for (uint32_t left; (left = count - st_conversation_position(c)) > 0;) {
        if (kv_rig_step(rig, c, left < rig->shape.batch ? left : rig->shape.batch, &error) != STRATA_OK)
            fail_msg("%s", error.message);
        kv_rig_confirm(rig);
        st_conversation_keep(c, ST_RESTORE_MARK);
    }
    return seek.kept;
}
