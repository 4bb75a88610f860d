/* src/backend/cuda/positions.h: which operations between the projections and the attention run as one kernel. */
#include "support/kit.h"

#include "backend/cuda/positions.h"

enum { HEAD = 64, QUERIES = 4, KEYS = 2, OPERATIONS = 8 };

static float q[QUERIES * HEAD], k[KEYS * HEAD], v[KEYS * HEAD];
static st_op ops[OPERATIONS];
static st_bound_op bound[OPERATIONS];
static uint32_t count;

static st_bound_op *append(st_op_kind kind, float *value, uint32_t width)
{
    ops[count] = (st_op){.kind = kind};
    bound[count] = (st_bound_op){.op = &ops[count], .in[0] = {value, width}, .out = {value, width}};
    return &bound[count++];
}

static void norm(float *value, uint32_t width, uint32_t group)
{
    append(ST_OP_RMS_NORM, value, width);
    ops[count - 1].p.norm.group = group;
}

static void rope(float *value, uint32_t heads)
{
    append(ST_OP_ROPE, value, heads * HEAD);
    ops[count - 1].p.rope.heads = heads;
    ops[count - 1].p.rope.head_size = ops[count - 1].p.rope.dims = HEAD;
}

static void store(void)
{
    append(ST_OP_KV_STORE, k, KEYS * HEAD)->in[1] = (st_bound_value){v, KEYS * HEAD};
}

static uint32_t found(uint32_t from, st_cuda_positions *out)
{
    return st_cuda_find_positions(bound + from, count - from, out);
}

static void norms_ropes_and_the_store(void **state)
{
    (void)state;
    st_cuda_positions p;
    count = 0;
    norm(q, QUERIES * HEAD, HEAD), rope(q, QUERIES), norm(k, KEYS * HEAD, HEAD), rope(k, KEYS), norm(v, KEYS * HEAD, HEAD), store();
    assert_int_equal(found(0, &p), 6);
    assert_ptr_equal(p.norm[ST_CUDA_QUERIES], &bound[0]);
    assert_ptr_equal(p.rope[ST_CUDA_QUERIES], &bound[1]);
    assert_ptr_equal(p.norm[ST_CUDA_KEYS], &bound[2]);
    assert_ptr_equal(p.rope[ST_CUDA_KEYS], &bound[3]);
    assert_ptr_equal(p.norm[ST_CUDA_VALUES], &bound[4]);
    assert_ptr_equal(p.store, &bound[5]);
    assert_int_equal(found(1, &p), 5); /* the norm of the queries runs alone */
    assert_null(p.norm[ST_CUDA_QUERIES]);
    assert_int_equal(found(2, &p), 4); /* keys alone */
    assert_null(p.rope[ST_CUDA_QUERIES]);
    assert_ptr_equal(p.norm[ST_CUDA_KEYS], &bound[2]);
    assert_int_equal(found(4, &p), 0);
    for (uint32_t i = 0; i < 6; i++) assert_int_equal(st_cuda_find_positions(bound, i, &p), 0); /* the segment ends before the store */
}

static void what_stays_alone(void **state)
{
    (void)state;
    st_cuda_positions p;
    count = 0;
    norm(q, QUERIES * HEAD, QUERIES * HEAD), rope(q, QUERIES), norm(k, KEYS * HEAD, KEYS * HEAD), rope(k, KEYS), store();
    assert_int_equal(found(0, &p), 0); /* norms of whole rows */
    assert_int_equal(found(1, &p), 0);
    assert_int_equal(found(3, &p), 2);
    count = 0;
    rope(q, QUERIES), norm(q, QUERIES * HEAD, HEAD), rope(k, KEYS), norm(k, KEYS * HEAD, HEAD), store(); /* norms after RoPE */
    for (uint32_t i = 0; i < count; i++) assert_int_equal(found(i, &p), 0);
    count = 0;
    rope(q, QUERIES), rope(k, KEYS), store();
    assert_int_equal(found(0, &p), 3);
    ops[1].p.rope.head_size = HEAD / 2 + 8; /* no multiple of 32 */
    assert_int_equal(found(0, &p), 0);
    ops[1].p.rope.head_size = HEAD;
    ops[1].p.rope.offset = 32; /* RoPE of the end of each head */
    ops[1].p.rope.dims = 32;
    assert_int_equal(found(0, &p), 0);
    assert_int_equal(found(1, &p), 0);
    ops[1].p.rope.offset = 0;
    assert_int_equal(found(0, &p), 3);
    bound[2].in[1] = (st_bound_value){NULL, 0}; /* values in keys */
    assert_int_equal(found(0, &p), 0);
    bound[2].in[1] = (st_bound_value){v, KEYS * HEAD};
    bound[2].in[0].data = q; /* the store of other keys */
    assert_int_equal(found(0, &p), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(norms_ropes_and_the_store), cmocka_unit_test(what_stays_alone)};
    return kit_run("cuda_positions", tests, sizeof tests / sizeof *tests, NULL, NULL, argc, argv);
}
