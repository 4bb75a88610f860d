#include "backend/profile.h"

#include <stdio.h>
#include <strings.h>

#include "backend/sim/sim.h"
#include "quant/row.h"

enum { CARD_ALIGNMENT = 256, CARD_GRANULARITY = 2 << 20, CARD_OVERHEAD = 500 << 20, HOST_ALIGNMENT = 64 };

#define CARD_LAUNCH_SECONDS 3e-6
#define CARD_HANDOVER_SECONDS 20e-6
#define CARD_ROUND_TRIP_SECONDS 5e-6

/* --- work --------------------------------------------------------------------------------------------------------- */

/* Whether an operation's time depends on the values that it reads and writes. Compute-bound operations find their
 * values in the caches. */
static bool streams_values(st_op_kind kind)
{
    return kind != ST_OP_MATMUL && kind != ST_OP_EXPERTS && kind != ST_OP_ATTENTION && kind != ST_OP_KV_STORE &&
           kind != ST_OP_HEAD_MATMUL && (!st_op_has_state(kind) || kind == ST_OP_CONV);
}

/* Bytes of a position's keys and values as they are kept, for each byte as float32. */
static double kv_share(size_t keys, size_t values, st_type kv_type)
{
    double kept = (double)st_row_bytes(kv_type, keys) + (double)st_row_bytes(kv_type, values);
    return kept / ((double)(keys + values) * sizeof(float));
}

static double state_bytes(const st_program *program, const st_op *op, double float_bytes, st_type kv_type)
{
    if (op->kind == ST_OP_ATTENTION) {
        size_t heads = op->p.attention.kv_heads, key = op->p.attention.key_length;
        size_t value = op->p.attention.value_in_key ? 0 : op->p.attention.value_length;
        return float_bytes * kv_share(heads * key, heads * value, kv_type);
    }
    if (op->kind == ST_OP_KV_STORE) {
        size_t value = op->in[1] == ST_NO_VALUE ? 0 : program->values[op->in[1]].width;
        return float_bytes * kv_share(program->values[op->in[0]].width, value, kv_type);
    }
    return float_bytes;
}

static uint32_t largest_type(const st_binding *binding, const st_op *op)
{
    uint32_t type = ST_TYPE_F32;
    size_t most = 0;
    for (int i = 0; i < ST_OP_WEIGHTS; i++) {
        if (op->weight[i] == ST_NO_WEIGHT) continue;
        const st_weight *w = &binding->weights[op->weight[i]];
        if (w->bytes <= most) continue;
        most = w->bytes;
        type = w->tensor->type;
    }
    return type;
}

/* --- classes ------------------------------------------------------------------------------------------------------ */

const char *st_class_name(st_op_class op_class)
{
    static const char *const names[ST_CLASS_COUNT] = {
        [ST_CLASS_ROWS] = "rows",           [ST_CLASS_PRODUCT] = "product",
        [ST_CLASS_PLAIN_PRODUCT] = "plain_product",
        [ST_CLASS_POSITIONS] = "positions", [ST_CLASS_ATTENTION] = "attention",
        [ST_CLASS_WIDE_ATTENTION] = "wide_attention", [ST_CLASS_ROUTE] = "route",
        [ST_CLASS_EXPERTS] = "experts",     [ST_CLASS_RECURRENT] = "recurrent",
        [ST_CLASS_CANDIDATES] = "candidates"};
    return op_class < ST_CLASS_COUNT ? names[op_class] : NULL;
}

/* By kind; the others are ST_CLASS_ROWS. */
static const st_op_class kind_classes[ST_OP_COUNT] = {
    [ST_OP_MATMUL] = ST_CLASS_PRODUCT,     [ST_OP_HEAD_MATMUL] = ST_CLASS_PRODUCT, [ST_OP_ROPE] = ST_CLASS_POSITIONS,
    [ST_OP_KV_STORE] = ST_CLASS_POSITIONS, [ST_OP_ATTENTION] = ST_CLASS_ATTENTION, [ST_OP_ROUTE] = ST_CLASS_ROUTE,
    [ST_OP_EXPERTS] = ST_CLASS_EXPERTS,    [ST_OP_CONV] = ST_CLASS_RECURRENT,      [ST_OP_DELTANET] = ST_CLASS_RECURRENT,
    [ST_OP_SSM] = ST_CLASS_RECURRENT,      [ST_OP_CANDIDATES] = ST_CLASS_CANDIDATES,
};

/* The operation before it in the program; NULL: none, or the operation is of no program. */
static const st_op *op_before(const st_program *program, const st_op *op)
{
    uintptr_t first = (uintptr_t)program->ops, at = (uintptr_t)op;
    return program->ops && at > first && at < first + program->op_count * sizeof *op ? op - 1 : NULL;
}

/* A product of the same input and type as the one before it; what comes before the storing of keys and values. */
static bool is_joined(const st_program *program, const st_binding *binding, const st_op *op, st_op_class op_class)
{
    if (op_class == ST_CLASS_POSITIONS) return op->kind != ST_OP_KV_STORE;
    if (op_class != ST_CLASS_PRODUCT && op_class != ST_CLASS_PLAIN_PRODUCT) return false;
    const st_op *before = op_before(program, op);
    return before && before->kind == op->kind && before->in[0] == op->in[0] && before->weight[0] != ST_NO_WEIGHT &&
           largest_type(binding, before) == largest_type(binding, op);
}

static bool is_plain(uint32_t type)
{
    return type == ST_TYPE_F32 || type == ST_TYPE_F16 || type == ST_TYPE_BF16;
}

static st_op_class class_of(const st_program *program, const st_binding *binding, const st_op *op)
{
    st_op_class found = kind_classes[op->kind];
    if (found == ST_CLASS_PRODUCT && is_plain(largest_type(binding, op))) return ST_CLASS_PLAIN_PRODUCT;
    bool of_heads = op->kind == ST_OP_RMS_NORM && op->out != ST_NO_VALUE &&
                    op->p.norm.group < program->values[op->out].width;
    if (found == ST_CLASS_ATTENTION && op->p.attention.key_length > ST_WIDE_HEAD) return ST_CLASS_WIDE_ATTENTION;
    return of_heads ? ST_CLASS_POSITIONS : found;
}

/* A matrix has as many more rows, or one of floats as many more outputs; each expert that the rows use, as many more rows. */
static double ops_filled(const st_program *program, const st_op *op, st_op_class op_class, double ops, uint32_t rows)
{
    if (rows == 0) return 0;
    if (op->kind == ST_OP_EXPERTS) {
        double pairs = (double)rows * op->p.experts.used;
        return pairs > 0 ? ops * st_experts_touched(op, rows) / pairs : 0;
    }
    if (op_class == ST_CLASS_PRODUCT) return rows > 1 ? ops / rows : 0;
    double width = op->kind == ST_OP_MATMUL && op->out != ST_NO_VALUE ? program->values[op->out].width : 0;
    return width > 0 ? ops / (width * rows) : 0;
}

static double positions_of(const st_op *op, uint32_t rows, uint32_t depth)
{
    double seen = (double)depth + (rows + 1) / 2.0;
    double span = op->p.attention.window ? op->p.attention.window : op->p.attention.chunk;
    return span > 0 && seen > span ? span : seen;
}

st_work st_work_of(const st_program *program, const st_binding *binding, const st_op *op, uint32_t rows, uint32_t depth,
                   st_type kv_type)
{
    st_op_cost cost = st_op_estimate(program, binding, op, rows, depth);
    st_work work = {.ops = cost.flops, .type = largest_type(binding, op), .rows = rows,
                    .op_class = class_of(program, binding, op)};
    work.ops_filled = ops_filled(program, op, work.op_class, cost.flops, rows);
    work.joined = is_joined(program, binding, op, work.op_class);
    if (op->kind == ST_OP_ATTENTION) work.positions = positions_of(op, rows, depth);
    work.bytes = cost.weight_bytes + state_bytes(program, op, cost.state_bytes, kv_type);
    if (streams_values(op->kind)) work.bytes += cost.value_bytes;
    return work;
}

/* --- time --------------------------------------------------------------------------------------------------------- */

/* The operations with what the class fills up, at the rate of products. Few rows would take less one after the other: of
 * experts, those of each. Where times add up, experts of few rows are limited by reading although most of a tile is idle,
 * so what they fill up counts at most as much as their work: an approximation. */
static double filled(const st_profile *profile, const st_work *work, const st_class_rates *rates, double bytes)
{
    bool experts = work->op_class == ST_CLASS_EXPERTS && work->ops_filled > 0;
    double share = rates->op_share > 0 ? rates->op_share : 1, ops = work->ops / share;
    double all = ops + work->ops_filled * rates->fill / share;
    if (profile->memory_rate <= 0 || profile->op_rate <= 0) return ops;
    double rows = experts ? work->ops / work->ops_filled : work->rows, most = rows * bytes / profile->memory_rate * profile->op_rate;
    if (experts && profile->adds_up) most = 2 * ops;
    if (most <= ops) return ops;
    return all < most ? all : most;
}

/* Products of 16 and 64 rows took about the sum of both times on an H200: the arithmetic of all rows but one adds to the
 * time of reading. The longer of both has the sum. */
static void add_up(const st_profile *profile, st_work *demand)
{
    if (demand->rows <= 1 || profile->memory_rate <= 0 || profile->op_rate <= 0) return;
    double more = demand->ops * (1 - 1 / demand->rows), op_bytes = profile->memory_rate / profile->op_rate;
    if (demand->bytes >= demand->ops * op_bytes) demand->bytes += more * op_bytes;
    else demand->ops += demand->bytes / op_bytes;
}

st_work st_profile_demand(const st_profile *profile, const st_work *work)
{
    st_work demand = *work;
    const st_class_rates *rates = &profile->classes[work->op_class];
    double share = work->type < ST_PROFILE_TYPES ? profile->type_share[work->type] : 0;
    if (share > 0) demand.bytes /= share;
    if (rates->memory_share > 0) demand.bytes /= rates->memory_share;
    demand.ops = filled(profile, work, rates, demand.bytes);
    if (profile->adds_up) add_up(profile, &demand);
    return demand;
}

/* Few rows, one after the other, would take less. */
static double batch_seconds(const st_profile *profile, const st_work *work, const st_class_rates *rates)
{
    double row = rates->seconds + (profile->memory_rate > 0 ? work->bytes / profile->memory_rate : 0);
    double most = work->rows > 1 ? (work->rows - 1) * row : 0;
    return rates->batch_seconds < most ? rates->batch_seconds : most;
}

double st_profile_fixed(const st_profile *profile, const st_work *work)
{
    if (work->joined) return 0;
    const st_class_rates *rates = &profile->classes[work->op_class];
    double deep = work->positions / ST_DEEP_POSITIONS, fixed = rates->seconds;
    if (rates->deep_seconds > 0) fixed += (rates->deep_seconds - rates->seconds) * (deep < 1 ? deep : 1);
    return fixed + batch_seconds(profile, work, rates);
}

typedef struct work_seconds {
    double memory, arithmetic;
} work_seconds;

static work_seconds seconds_of(const st_profile *profile, const st_work *work)
{
    st_work demand = st_profile_demand(profile, work);
    return (work_seconds){.memory = profile->memory_rate > 0 ? demand.bytes / profile->memory_rate : 0,
                          .arithmetic = profile->op_rate > 0 ? demand.ops / profile->op_rate : 0};
}

bool st_profile_reads(const st_profile *profile, const st_work *work)
{
    work_seconds s = seconds_of(profile, work);
    return s.memory >= s.arithmetic;
}

double st_profile_seconds(const st_profile *profile, const st_work *work)
{
    work_seconds s = seconds_of(profile, work);
    return (s.memory > s.arithmetic ? s.memory : s.arithmetic) + st_profile_fixed(profile, work);
}

/* --- what runs ---------------------------------------------------------------------------------------------------- */

static bool has_type(uint64_t types, uint32_t type)
{
    return type < ST_PROFILE_TYPES && (types >> type & 1);
}

bool st_profile_runs(const st_profile *profile, const st_binding *binding, const st_op *op)
{
    uint64_t types = profile->types[op->kind];
    bool any = false;
    if (profile->runs && !profile->runs(op)) return false;
    for (int i = 0; i < ST_OP_WEIGHTS; i++) {
        if (op->weight[i] == ST_NO_WEIGHT) continue;
        any = true;
        if (!has_type(types, binding->weights[op->weight[i]].tensor->type)) return false;
    }
    return any || has_type(types, 0);
}

bool st_profile_type(const char *name, uint32_t *type)
{
    for (size_t i = 0; i < st_type_count(); i++) {
        *type = (uint32_t)st_type_at(i);
        if (*type < ST_PROFILE_TYPES && strcasecmp(st_type_find(*type)->name, name) == 0) return true;
    }
    return false;
}

void st_profile_set_statement(st_profile *profile, const st_backend_statement *statement)
{
    profile->runs = statement->runs;
    for (int op = 0; op < ST_OP_COUNT && statement->types; op++) profile->types[op] &= statement->types[op];
}

void st_profile_set_backend(st_profile *profile, const st_backend *backend)
{
    profile->scratch = backend->scratch;
    if (!backend->chain_new) profile->round_trip_seconds = 0;
    st_profile_set_statement(profile, &(st_backend_statement){.types = backend->types, .runs = backend->runs});
}

const char *st_rates_name(st_rates_source source)
{
    static const char *const names[] = {[ST_RATES_FILE] = "file", [ST_RATES_SHEET] = "data sheet",
                                        [ST_RATES_STAND_IN] = "stand-in", [ST_RATES_ASSUMED] = "assumed",
                                        [ST_RATES_MEASURED] = "measured"};
    return names[source];
}

st_profile st_profile_default(st_device_kind kind)
{
    st_profile profile = {.kind = kind, .alignment = HOST_ALIGNMENT, .granularity = 1,
                          .scratch = st_backend_cpu()->scratch};
    snprintf(profile.name, sizeof profile.name, "%s", kind == ST_DEVICE_CARD ? "card" : "host");
    if (kind == ST_DEVICE_CARD) {
        profile.scratch = st_backend_sim_card()->scratch;
        profile.adds_up = true;
        profile.alignment = CARD_ALIGNMENT;
        profile.granularity = CARD_GRANULARITY;
        profile.overhead_bytes = CARD_OVERHEAD;
        profile.launch_seconds = CARD_LAUNCH_SECONDS;
        profile.handover_seconds = CARD_HANDOVER_SECONDS;
        profile.round_trip_seconds = CARD_ROUND_TRIP_SECONDS;
    }
    uint64_t all = 0;
    for (size_t i = 0; i < st_type_count(); i++) all |= (uint64_t)1 << st_type_at(i);
    for (int op = 0; op < ST_OP_COUNT; op++) profile.types[op] = all;
    return profile;
}
