#include "support/mirror.h"

#include <stdlib.h>
#include <string.h>

#include "backend/plugin.h"
#include "backend/profile.h"
#include "base/alloc.h"

enum { BLOCK_BYTES = 192 << 20, SCRATCH_BYTES = 64 << 20, ALIGNMENT = 256, GUARD = 256, RANGES_MAX = 256, OPS_MAX = 16, GUARD_BYTE = 0xA5,
       WAIT_US = 20 * 1000 * 1000 };

static struct {
    const st_backend *backend;
    st_device *device;
    st_queue *queue;
    st_event *event;
    unsigned char *block;          /* the device's memory: what is placed, then scratch */
    unsigned char *before, *after; /* the same bytes here */
} m;

/* A piece of the test's memory and where it is in the block. */
typedef struct range {
    void *host;
    size_t offset, bytes;
    bool written;
} range;

typedef struct placing {
    range ranges[RANGES_MAX];
    uint32_t count;
    size_t end;
} placing;

const char *mirror_name(void)
{
    const char *name = getenv("STRATA_TEST_BACKEND");
    return name && *name ? name : NULL;
}

const st_backend *mirror_backend(void)
{
    strata_error error;
    if (strcmp(mirror_name(), "ref") == 0) m.backend = st_backend_cpu(); /* a check of the mirror itself */
    if (!m.backend && st_plugin_load(mirror_name(), getenv("STRATA_TEST_PLUGINS"), &m.backend, &error) != STRATA_OK &&
        st_plugin_load(mirror_name(), "build", &m.backend, &error) != STRATA_OK)
        fail_msg("%s", error.message);
    return m.backend;
}

st_device *mirror_device(void)
{
    strata_error error;
    const st_backend *b = mirror_backend();
    void *block;
    if (m.device) return m.device;
    if (b->open(&(st_device_options){.cpu = "ref", .threads = 1}, &m.device, &error) != STRATA_OK ||
        b->queue_new(m.device, ST_QUEUE_COMPUTE, &m.queue, &error) != STRATA_OK ||
        b->event_new(m.device, &m.event, &error) != STRATA_OK ||
        b->alloc(m.device, BLOCK_BYTES + SCRATCH_BYTES, &block, &error) != STRATA_OK)
        fail_msg("%s", error.message);
    m.block = block;
    m.before = st_alloc(BLOCK_BYTES);
    m.after = st_alloc(BLOCK_BYTES);
    assert_true(m.before && m.after);
    return m.device;
}

bool mirror_runs(st_op_kind kind, uint32_t type)
{
    st_profile profile = st_profile_default(ST_DEVICE_CARD);
    if (mirror_name()) st_profile_set_backend(&profile, mirror_backend());
    return type < ST_PROFILE_TYPES && profile.types[kind] >> type & 1;
}

void mirror_close(void)
{
    if (!m.device) return;
    m.backend->free(m.device, m.block);
    m.backend->event_free(m.event);
    m.backend->queue_free(m.queue);
    m.backend->close(m.device);
    st_free(m.before);
    st_free(m.after);
    memset(&m, 0, sizeof m);
}

/* Memory that is placed twice is placed once: operations work in place. */
static void *place(placing *p, const void *host, size_t bytes, bool read, bool written)
{
    if (!host || bytes == 0) return NULL;
    for (uint32_t i = 0; i < p->count; i++) {
        range *r = &p->ranges[i];
        if (r->host != host) continue;
        assert_true(bytes <= r->bytes);
        r->written = r->written || written;
        return m.block + r->offset;
    }
    assert_true(p->count < RANGES_MAX);
    range *r = &p->ranges[p->count++];
    *r = (range){.host = (void *)(uintptr_t)host, .offset = p->end, .bytes = bytes, .written = written};
    p->end = (p->end + bytes + GUARD + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    assert_true(p->end <= BLOCK_BYTES);
    memset(m.before + r->offset, GUARD_BYTE, p->end - r->offset);
    if (read) memcpy(m.before + r->offset, host, bytes);
    else memset(m.before + r->offset, 0xFF, bytes); /* not a number, no index */
    return m.block + r->offset;
}

/* Experts are placed one by one: each may have memory of its own. */
static void place_weight(placing *p, st_bound_weight *w, const void **table)
{
    size_t bytes = w->row_bytes * w->ne[1];
    if (!w->parts) {
        w->data = place(p, w->data, bytes * (w->ne[2] > 1 ? w->ne[2] : 1), true, false);
        return;
    }
    for (size_t i = 0; i < w->ne[2]; i++) table[i] = place(p, w->parts[i], bytes, true, false);
    w->data = m.block; /* the table says where they are */
    w->parts = table;
}

static size_t rows_of(const st_step *step, st_rows rows)
{
    return rows == ST_ROWS_ALL ? step->count : step->out_count;
}

static void place_values(placing *p, st_bound_op *b, st_rows rows, const st_step *step)
{
    size_t count = rows_of(step, rows);
    st_op_kind kind = b->op->kind;
    for (int i = 0; i < ST_OP_INPUTS; i++) {
        size_t of = kind == ST_OP_GATHER ? step->count : count;
        b->in[i].data = place(p, b->in[i].data, of * b->in[i].width * sizeof(float), true, kind == ST_OP_ROUTE && i == 0);
    }
    bool in_place = kind == ST_OP_TEMPERATURE || kind == ST_OP_ROPE;
    b->out.data = place(p, b->out.data, count * b->out.width * sizeof(float), in_place, true);
    b->out2.data = place(p, b->out2.data, count * b->out2.width * sizeof(float), false, true);
}

static void place_state(placing *p, st_bound_op *b)
{
    const st_op *op = b->op;
    bool stores = op->kind == ST_OP_KV_STORE;
    st_kv_view *kv = &b->kv;
    size_t after = (uintptr_t)kv->values - (uintptr_t)kv->keys; /* of the keys' start; in their pages: placed with them */
    kv->keys = place(p, kv->keys, kv->pages * kv->key_page_bytes, true, stores);
    if (after < kv->key_page_bytes) kv->values = kv->keys + after;
    else kv->values = place(p, kv->values, kv->pages * kv->value_page_bytes, true, stores);
    st_state_view *state = &b->state;
    size_t others = state->slots ? (state->slots - 1) * state->slot_floats : 0;
    size_t size = op->p.deltanet.size, conv = (op->p.conv.width - 1) * (size_t)b->in[0].width;
    if (op->kind == ST_OP_CONV) state->conv = place(p, state->conv, (others + conv) * sizeof(float), true, true);
    size_t ssm = (size_t)op->p.ssm.heads * op->p.ssm.head_size * op->p.ssm.state_size;
    if (op->kind == ST_OP_SSM) state->delta = place(p, state->delta, (others + ssm) * sizeof(float), true, true);
    if (op->kind == ST_OP_DELTANET)
        state->delta = place(p, state->delta, (others + op->p.deltanet.value_heads * size * size) * sizeof(float), true, true);
}

static void must(strata_status status, const st_bound_op *b, const strata_error *error)
{
    if (status != STRATA_OK) fail_msg("%s: %s", st_op_name(b->op->kind), error->message);
}

static void copy_block(st_copy_kind kind, void *to, const void *from, size_t bytes, const st_bound_op *b)
{
    strata_error error;
    must(m.backend->copy(m.queue, kind, to, from, bytes, &error), b, &error);
}

static void wait_for_all(const st_bound_op *b)
{
    strata_error error;
    must(m.backend->event_record(m.event, m.queue, &error), b, &error);
    must(m.backend->event_wait_host(m.event, WAIT_US, &error), b, &error);
}

/* Results go back to the test; all else must be as it was. */
static void take_back(const placing *p, const st_bound_op *b)
{
    for (uint32_t i = 0; i < p->count; i++) {
        const range *r = &p->ranges[i];
        if (!r->written) continue;
        memcpy(r->host, m.after + r->offset, r->bytes);
        memcpy(m.before + r->offset, m.after + r->offset, r->bytes);
    }
    for (size_t i = 0; i < p->end; i++)
        if (m.before[i] != m.after[i]) fail_msg("%s wrote to byte %zu of the block, beside its output", st_op_name(b->op->kind), i);
}

/* The operation with its memory in the block; `tables` are its expert tables, which the caller frees. */
static st_bound_op place_op(placing *p, const st_bound_op *bound, st_rows rows, const st_step *step, const void **tables[ST_OP_WEIGHTS])
{
    st_bound_op b = *bound;
    place_values(p, &b, rows, step);
    place_state(p, &b);
    for (int i = 0; i < ST_OP_WEIGHTS; i++) {
        if (b.weight[i].parts) tables[i] = st_alloc_zero(b.weight[i].ne[2], sizeof **tables);
        if (b.weight[i].data) place_weight(p, &b.weight[i], tables[i]);
    }
    return b;
}

void mirror_run(const st_bound_op *ops, uint32_t count, st_rows rows, const st_step *step)
{
    strata_error error;
    placing p = {0};
    st_device *device = mirror_device();
    st_bound_op placed[OPS_MAX];
    const void **tables[OPS_MAX][ST_OP_WEIGHTS] = {0};
    assert_true(count <= OPS_MAX);
    for (uint32_t i = 0; i < count; i++) placed[i] = place_op(&p, &ops[i], rows, step, tables[i]);
    const st_bound_op *b = placed;
    st_segment *segment = NULL;
    st_segment_source source = {.ops = placed, .count = count, .rows = rows, .step_bytes = step->bytes, .scratch = m.block + BLOCK_BYTES,
                                .shared_bytes = SCRATCH_BYTES / 2, .worker_bytes = SCRATCH_BYTES / 2};
    source.step = place(&p, step, step->bytes, true, false);
    copy_block(ST_COPY_UP, m.block, m.before, p.end, b);
    must(m.backend->prepare(device, &source, &segment, &error), b, &error);
    must(m.backend->launch(segment, m.queue, (uint32_t)rows_of(step, rows), &error), b, &error);
    wait_for_all(b);
    copy_block(ST_COPY_DOWN, m.after, m.block, p.end, b);
    wait_for_all(b);
    m.backend->segment_free(segment);
    take_back(&p, b);
    for (uint32_t i = 0; i < count; i++)
        for (int k = 0; k < ST_OP_WEIGHTS; k++) st_free((void *)tables[i][k]);
}
