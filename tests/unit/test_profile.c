/* src/backend/profile.c: the work of operations and the time of devices, with numbers computed by hand. */
#include "support/golden.h"

#include "backend/profile.h"
#include "quant/row.h"

static void close_to(double a, double b)
{
    if (a < b * (1 - 1e-12) || a > b * (1 + 1e-12)) fail_msg("%.17g is not %.17g", a, b);
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static void time_is_the_slower_of_memory_and_arithmetic(void **state)
{
    (void)state;
    st_profile p = {.memory_rate = 1000, .op_rate = 500};
    close_to(st_profile_seconds(&p, &(st_work){.bytes = 3000, .ops = 1000}), 3);
    close_to(st_profile_seconds(&p, &(st_work){.bytes = 3000, .ops = 2000}), 4);
    p.type_share[ST_TYPE_Q4_K] = 0.5;
    close_to(st_profile_seconds(&p, &(st_work){.bytes = 3000, .ops = 2000, .type = ST_TYPE_Q4_K}), 6);
    close_to(st_profile_seconds(&p, &(st_work){.bytes = 3000, .ops = 2000, .type = ST_TYPE_Q6_K}), 4);
    close_to(st_profile_seconds(&p, &(st_work){.bytes = 3000, .type = 1000}), 3); /* a type that no file has */
}

static void experts_compute_at_their_share(void **state)
{
    (void)state;
    st_profile p = {.memory_rate = 1000, .op_rate = 500, .classes[ST_CLASS_EXPERTS].op_share = 0.25};
    st_work matrix = {.bytes = 3000, .ops = 1000}, experts = {.bytes = 3000, .ops = 1000, .op_class = ST_CLASS_EXPERTS};
    close_to(st_profile_seconds(&p, &matrix), 3);
    close_to(st_profile_seconds(&p, &experts), 8);
    p.type_share[ST_TYPE_F32] = 0.5;
    st_work demand = st_profile_demand(&p, &experts);
    assert_true(demand.bytes == 6000 && demand.ops == 4000);
    p.classes[ST_CLASS_EXPERTS].op_share = 0; /* unknown: the rate of matrices */
    demand = st_profile_demand(&p, &experts);
    assert_true(demand.bytes == 6000 && demand.ops == 1000);
}

/* Small matrices and few rows leave a device idle: a batch takes the time of more work, but never longer than its rows
 * one after the other. */
static void a_batch_fills_the_device(void **state)
{
    (void)state;
    st_profile p = {.memory_rate = 1000, .op_rate = 500, .classes[ST_CLASS_PLAIN_PRODUCT].fill = 8};
    st_work one = {.bytes = 3000, .ops = 100, .op_class = ST_CLASS_PLAIN_PRODUCT, .rows = 1, .ops_filled = 1000};
    close_to(st_profile_seconds(&p, &one), 3);
    assert_true(st_profile_reads(&p, &one));
    st_work few = one, many = one;
    few.rows = 2; /* two rows: at most 6 s, though 8,100 operations would take 16.2 s */
    few.ops = 200;
    close_to(st_profile_seconds(&p, &few), 6);
    many.rows = 64;
    many.ops = 6400;
    close_to(st_profile_seconds(&p, &many), 28.8);
    assert_false(st_profile_reads(&p, &many));
    p.classes[ST_CLASS_PLAIN_PRODUCT].op_share = 0.5; /* the work, and what it fills up */
    close_to(st_profile_seconds(&p, &few), 6);
    close_to(st_profile_seconds(&p, &many), 57.6);
    p.classes[ST_CLASS_PLAIN_PRODUCT] = (st_class_rates){0};
    close_to(st_profile_seconds(&p, &many), 12.8);
    many.op_class = ST_CLASS_ATTENTION; /* the fill of another class */
    p.classes[ST_CLASS_PLAIN_PRODUCT].fill = 8;
    close_to(st_profile_seconds(&p, &many), 12.8);
}

/* Unpacking a matrix takes the time of some rows, and small batches at most that of single rows. */
static void batches_unpack_their_matrices(void **state)
{
    (void)state;
    static const st_gguf_tensor tensor = {.type = ST_TYPE_Q8_0};
    static const st_weight matrix = {.tensor = &tensor, .ne = {32, 10, 1}, .bytes = 340};
    static const st_value values[] = {{.width = 32}, {.width = 10}};
    const st_op op = {.kind = ST_OP_MATMUL, .in = {0, -1, -1, -1, -1}, .out = 1, .out2 = -1, .weight = {0, -1, -1, -1, -1, -1, -1}};
    const st_program program = {.ops = &op, .op_count = 1, .values = values, .value_count = 2};
    const st_binding binding = {.weights = &matrix, .count = 1};
    st_profile p = {.memory_rate = 340 / 1.5, .op_rate = 640, .classes[ST_CLASS_PRODUCT] = {.fill = 16}};
    st_work work = st_work_of(&program, &binding, &op, 64, 0, ST_TYPE_F16);
    assert_int_equal(work.op_class, ST_CLASS_PRODUCT);
    close_to(st_profile_seconds(&p, &work), 64 + 16); /* a row has 640 operations */
    p.memory_rate = 340 / 1.125;
    close_to(st_profile_seconds(&p, &work), 64 * 1.125);
    p.memory_rate = 1e9; /* reading takes no time: what is unpacked is not known */
    close_to(st_profile_seconds(&p, &work), 64);
}

/* A CPU unpacks each expert, unless reading it for one row after the other takes less. A GPU's experts with few rows each
 * are limited by reading. */
static void experts_fill_up_rows_of_each(void **state)
{
    (void)state;
    st_profile p = {.memory_rate = 1000, .op_rate = 500, .classes[ST_CLASS_EXPERTS] = {.op_share = 0.5, .fill = 8}};
    st_work experts = {.bytes = 300, .ops = 1000, .op_class = ST_CLASS_EXPERTS, .rows = 4, .ops_filled = 50}; /* 20 rows of each */
    close_to(st_profile_seconds(&p, &experts), 5.6);
    experts.bytes = 240; /* 20 times 0.24 s */
    close_to(st_profile_seconds(&p, &experts), 4.8);
    experts.bytes = 10;
    close_to(st_profile_seconds(&p, &experts), 4); /* what is unpacked is not known */
    p.adds_up = true;
    experts.rows = 1;
    close_to(st_profile_seconds(&p, &experts), 5.6);
    experts.ops_filled = 500; /* at most as much as the work */
    close_to(st_profile_seconds(&p, &experts), 8);
}

/* A product of several rows has a time of its own, and the arithmetic of all rows but one adds to the reading. */
static void several_rows_add_up(void **state)
{
    (void)state;
    st_profile p = {.memory_rate = 1000, .op_rate = 500, .adds_up = true,
                    .classes[ST_CLASS_PRODUCT] = {.seconds = 1, .batch_seconds = 10}};
    st_work work = {.bytes = 3000, .ops = 100, .op_class = ST_CLASS_PRODUCT, .rows = 1};
    close_to(st_profile_seconds(&p, &work), 4);
    work.rows = 2; /* the second row alone would take 4 s */
    work.ops = 200;
    close_to(st_profile_seconds(&p, &work), 1 + 4 + 3 + 0.2);
    work.rows = 10;
    work.ops = 1000;
    close_to(st_profile_seconds(&p, &work), 1 + 10 + 3 + 1.8);
    assert_true(st_profile_reads(&p, &work));
    work.ops = 10000;
    close_to(st_profile_seconds(&p, &work), 1 + 10 + 3 + 20);
    assert_false(st_profile_reads(&p, &work));
    p.adds_up = false; /* a CPU reads while it computes */
    close_to(st_profile_seconds(&p, &work), 1 + 10 + 20);
}

static void a_class_has_its_own_time_and_rates(void **state)
{
    (void)state;
    st_profile p = {.memory_rate = 1000, .op_rate = 500,
                    .classes = {[ST_CLASS_ROWS] = {.seconds = 1},
                                [ST_CLASS_EXPERTS] = {.seconds = 2, .memory_share = 0.5},
                                [ST_CLASS_ATTENTION] = {.seconds = 4, .deep_seconds = 12, .op_share = 2}}};
    st_work work = {.bytes = 3000, .ops = 1000, .op_class = ST_CLASS_ROWS};
    close_to(st_profile_seconds(&p, &work), 4);
    work.op_class = ST_CLASS_EXPERTS;
    close_to(st_profile_seconds(&p, &work), 8);
    work.joined = true;
    close_to(st_profile_seconds(&p, &work), 6);
    st_work attention = {.ops = 1000, .op_class = ST_CLASS_ATTENTION};
    close_to(st_profile_seconds(&p, &attention), 5);
    attention.positions = ST_DEEP_POSITIONS / 4;
    close_to(st_profile_seconds(&p, &attention), 7);
    attention.positions = 10 * ST_DEEP_POSITIONS;
    close_to(st_profile_seconds(&p, &attention), 13);
    p.classes[ST_CLASS_ATTENTION].batch_seconds = 3; /* beside what depth takes */
    attention.rows = 4;
    close_to(st_profile_seconds(&p, &attention), 16);
    p.classes[ST_CLASS_ATTENTION].deep_seconds = 0;
    close_to(st_profile_fixed(&p, &attention), 7);
    attention.rows = 1;
    close_to(st_profile_fixed(&p, &attention), 4);
}

/* Of a layer: one product for q, k and v, one for gate and up; the norms of heads, rotations and the storing together. */
static void operations_that_run_together_have_one_time(void **state)
{
    (void)state;
    golden g;
    uint32_t counts[ST_CLASS_COUNT] = {0}, joined = 0;
    assert_true(golden_open(&g, "qwen3"));
    uint32_t layers = g.desc->layer_count;
    for (uint32_t i = 0; i < g.program->op_count; i++) {
        st_work work = st_work_of(g.program, g.binding, &g.program->ops[i], 1, 0, ST_TYPE_F16);
        counts[work.op_class] += !work.joined;
        joined += work.joined;
    }
    assert_int_equal(counts[ST_CLASS_POSITIONS], layers);
    assert_int_equal(counts[ST_CLASS_ATTENTION], layers);
    assert_int_equal(counts[ST_CLASS_PLAIN_PRODUCT], 4 * layers + 1); /* the model is in F32 */
    assert_int_equal(joined, 7 * layers); /* k, v, up; two norms, two rotations */
    assert_true(st_profile_default(ST_DEVICE_CARD).adds_up && !st_profile_default(ST_DEVICE_HOST).adds_up);
    golden_close(&g);
}

static void every_class_has_a_name(void **state)
{
    (void)state;
    for (int i = 0; i < ST_CLASS_COUNT; i++) {
        assert_non_null(st_class_name((st_op_class)i));
        for (int k = 0; k < i; k++) assert_string_not_equal(st_class_name((st_op_class)i), st_class_name((st_op_class)k));
    }
    assert_null(st_class_name(ST_CLASS_COUNT));
}

static void unknown_rates_cost_no_time(void **state)
{
    (void)state;
    st_profile nothing = {.op_rate = 0}, half = {.op_rate = 500};
    assert_true(st_profile_seconds(&nothing, &(st_work){.bytes = 3000, .ops = 1000}) == 0);
    close_to(st_profile_seconds(&half, &(st_work){.bytes = 3000, .ops = 1000}), 2);
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

static double row_of(st_type type, const st_op *op)
{
    size_t heads = op->p.attention.kv_heads;
    return (double)st_row_bytes(type, heads * op->p.attention.key_length) +
           (double)st_row_bytes(type, heads * op->p.attention.value_length);
}

static void check_work(const golden *g, const st_op *op, uint32_t rows, uint32_t depth, st_type kv)
{
    st_work work = st_work_of(g->program, g->binding, op, rows, depth, kv);
    st_op_cost cost = st_op_estimate(g->program, g->binding, op, rows, depth);
    assert_true(work.ops == cost.flops && (work.op_class == ST_CLASS_EXPERTS) == (op->kind == ST_OP_EXPERTS));
    if (op->kind == ST_OP_MATMUL || op->kind == ST_OP_EXPERTS) {
        close_to(work.bytes, cost.weight_bytes);
    } else if (op->kind == ST_OP_ATTENTION) {
        double seen = depth + (rows + 1) / 2.0, span = op->p.attention.window ? op->p.attention.window : op->p.attention.chunk;
        if (span > 0 && seen > span) seen = span;
        close_to(work.bytes, seen * row_of(kv, op));
    } else if (op->kind == ST_OP_KV_STORE) {
        uint32_t k = g->program->values[op->in[0]].width, v = g->program->values[op->in[1]].width;
        close_to(work.bytes, (double)rows * ((double)st_row_bytes(kv, k) + (double)st_row_bytes(kv, v)));
    } else if (op->kind == ST_OP_DELTANET) {
        close_to(work.bytes, cost.weight_bytes + cost.state_bytes); /* recurrent state is float32 for every KV type */
    } else if (op->kind == ST_OP_CONV) {
        close_to(work.bytes, cost.weight_bytes + cost.state_bytes + cost.value_bytes);
    } else {
        close_to(work.bytes, cost.weight_bytes + cost.value_bytes);
    }
}

static void kv_bytes_count_at_their_type(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "qwen35moe", "gemma4-e", "llama4"};
    static const st_type types[] = {ST_TYPE_F32, ST_TYPE_F16, ST_TYPE_BF16, ST_TYPE_Q8_0};
    uint32_t kinds[ST_OP_COUNT] = {0};
    for (size_t n = 0; n < 4; n++) {
        golden g;
        assert_true(golden_open(&g, names[n]));
        for (uint32_t i = 0; i < g.program->op_count; i++) {
            kinds[g.program->ops[i].kind]++;
            for (int t = 0; t < 4; t++) {
                check_work(&g, &g.program->ops[i], 1, 4096, types[t]);
                check_work(&g, &g.program->ops[i], 512, 0, types[t]);
            }
        }
        golden_close(&g);
    }
    assert_true(kinds[ST_OP_ATTENTION] && kinds[ST_OP_KV_STORE] && kinds[ST_OP_DELTANET] && kinds[ST_OP_EXPERTS]);
}

/* Weights of several types: the type is that of most bytes. */
static const st_gguf_tensor tensors[] = {{.type = ST_TYPE_F32}, {.type = ST_TYPE_Q4_K}, {.type = ST_TYPE_Q6_K}};
static const st_weight weights[] = {{.tensor = &tensors[0], .bytes = 10, .ne = {8, 8, 2}},
                                    {.tensor = &tensors[1], .bytes = 200, .ne = {8, 8, 2}},
                                    {.tensor = &tensors[2], .bytes = 100, .ne = {8, 8, 2}}};
static const st_binding binding = {.weights = weights, .count = 3};
static const st_value values[] = {{.width = 8}, {.width = 2}, {.width = 2}, {.width = 8}};
static const st_program program = {.values = values, .value_count = 4};

static st_op experts_op(void)
{
    return (st_op){.kind = ST_OP_EXPERTS, .in = {0, 1, 2, ST_NO_VALUE, ST_NO_VALUE}, .out = 3, .out2 = ST_NO_VALUE,
                   .weight = {1, 0, 2, ST_NO_WEIGHT, ST_NO_WEIGHT, ST_NO_WEIGHT, ST_NO_WEIGHT}, .p.experts = {.experts = 2, .used = 2, .width = 8}};
}

static void the_type_of_most_bytes_counts(void **state)
{
    (void)state;
    st_op op = experts_op();
    st_work work = st_work_of(&program, &binding, &op, 1, 0, ST_TYPE_F32);
    assert_int_equal(work.type, ST_TYPE_Q4_K);
    close_to(work.bytes, 310);
    op.weight[0] = 2;
    assert_int_equal(st_work_of(&program, &binding, &op, 1, 0, ST_TYPE_F32).type, ST_TYPE_Q6_K);
    st_op none = {.kind = ST_OP_ADD, .in = {0, 3, ST_NO_VALUE, ST_NO_VALUE, ST_NO_VALUE}, .out = 0, .out2 = ST_NO_VALUE};
    for (int i = 0; i < ST_OP_WEIGHTS; i++) none.weight[i] = ST_NO_WEIGHT;
    work = st_work_of(&program, &binding, &none, 3, 0, ST_TYPE_F32);
    assert_int_equal(work.type, ST_TYPE_F32);
    close_to(work.bytes, 3 * 24 * 4);
}

/* ---- what runs --------------------------------------------------------------------------------------------------- */

static void an_operation_needs_all_its_weight_types(void **state)
{
    (void)state;
    st_op op = experts_op();
    st_profile p = st_profile_default(ST_DEVICE_CARD);
    assert_true(st_profile_runs(&p, &binding, &op));
    static const st_type each[] = {ST_TYPE_F32, ST_TYPE_Q4_K, ST_TYPE_Q6_K};
    for (int i = 0; i < 3; i++) {
        st_profile without = p;
        without.types[ST_OP_EXPERTS] &= ~((uint64_t)1 << each[i]);
        assert_false(st_profile_runs(&without, &binding, &op));
        without.types[ST_OP_EXPERTS] = p.types[ST_OP_EXPERTS];
        without.types[ST_OP_MATMUL] = 0; /* the types of another operation */
        assert_true(st_profile_runs(&without, &binding, &op));
    }
    p.types[ST_OP_EXPERTS] &= ~((uint64_t)1 << ST_TYPE_IQ4_NL); /* a type that the operation does not use */
    assert_true(st_profile_runs(&p, &binding, &op));

    for (int i = 0; i < ST_OP_WEIGHTS; i++) op.weight[i] = ST_NO_WEIGHT;
    assert_true(st_profile_runs(&p, &binding, &op));
    p.types[ST_OP_EXPERTS] &= ~(uint64_t)1;
    assert_false(st_profile_runs(&p, &binding, &op));
}

static void default_profiles(void **state)
{
    (void)state;
    st_profile card = st_profile_default(ST_DEVICE_CARD), host = st_profile_default(ST_DEVICE_HOST);
    assert_int_equal(card.kind, ST_DEVICE_CARD);
    assert_int_equal(card.alignment, 256);
    assert_int_equal(card.granularity, 2 * 1024 * 1024);
    assert_int_equal(card.overhead_bytes, 500 * 1024 * 1024);
    assert_true(card.launch_seconds == 3e-6 && card.handover_seconds == 20e-6);
    assert_int_equal(host.kind, ST_DEVICE_HOST);
    assert_int_equal(host.alignment, 64);
    assert_int_equal(host.granularity, 1);
    assert_int_equal(host.overhead_bytes, 0);
    assert_true(host.launch_seconds == 0 && host.handover_seconds == 0);
    assert_true(card.name[0] && host.name[0]);
    for (size_t i = 0; i < st_type_count(); i++)
        for (int op = 0; op < ST_OP_COUNT; op++)
            assert_true(card.types[op] >> st_type_at(i) & host.types[op] >> st_type_at(i) & 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_is_the_slower_of_memory_and_arithmetic), cmocka_unit_test(experts_compute_at_their_share),
        cmocka_unit_test(a_batch_fills_the_device), cmocka_unit_test(batches_unpack_their_matrices),
        cmocka_unit_test(experts_fill_up_rows_of_each),
        cmocka_unit_test(several_rows_add_up),
        cmocka_unit_test(a_class_has_its_own_time_and_rates),
        cmocka_unit_test(operations_that_run_together_have_one_time),
        cmocka_unit_test(every_class_has_a_name),
        cmocka_unit_test(unknown_rates_cost_no_time), cmocka_unit_test(kv_bytes_count_at_their_type),
        cmocka_unit_test(the_type_of_most_bytes_counts), cmocka_unit_test(an_operation_needs_all_its_weight_types),
        cmocka_unit_test(default_profiles),
    };
    return cmocka_run_group_tests_name("profile", tests, NULL, NULL);
}
