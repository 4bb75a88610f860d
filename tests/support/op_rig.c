#include "support/op_rig.h"

#include <math.h>

#include "base/alloc.h"
#include "support/mirror.h"

enum { THREADS = 3, SHARED_BYTES = 1 << 16, WORKER_BYTES = 1 << 16 };

static st_device *device;
static st_queue *queue;
st_step *op_step;
static unsigned char *scratch;
static unsigned random_state = 1;

int op_rig_open(void **state)
{
    (void)state;
    const st_backend *cpu = st_backend_cpu();
    st_device_options options = {.cpu = "ref", .threads = THREADS};
    static const st_step_limits most = {.rows = ROWS, .out_rows = ROWS, .conversations = 1, .tables = OP_PAGES,
                                        .choice_words = OP_CHOICES};
    op_step = st_alloc_zero(1, st_step_bytes(&most));
    scratch = st_alloc_aligned(SHARED_BYTES + THREADS * WORKER_BYTES, 64);
    if (!op_step || !scratch) return 1;
    st_step_lay_out_choices(op_step, ROWS, 1, ROWS, OP_PAGES, OP_CHOICES);
    st_step_conversations(op_step)->rows = ROWS;
    op_step_at(0);
    return cpu->open(&options, &device, NULL) != STRATA_OK ||
           cpu->queue_new(device, ST_QUEUE_COMPUTE, &queue, NULL) != STRATA_OK;
}

int op_rig_close(void **state)
{
    (void)state;
    st_backend_cpu()->queue_free(queue);
    st_backend_cpu()->close(device);
    mirror_close();
    st_free(op_step);
    st_free(scratch);
    return 0;
}

void op_step_at(uint32_t position)
{
    st_step_conversations(op_step)->position = position;
    for (uint32_t i = 0; i < ROWS; i++) st_step_rows(op_step)[i].position = position + i;
}

void op_run(const st_bound_op *bound, st_rows rows)
{
    if (mirror_name()) {
        mirror_run(bound, 1, rows, op_step);
        return;
    }
    const st_backend *cpu = st_backend_cpu();
    st_segment *segment = NULL;
    st_segment_source source = {.ops = bound, .count = 1, .rows = rows, .step = op_step,
                                .step_bytes = op_step->bytes, .scratch = scratch, .shared_bytes = SHARED_BYTES, .worker_bytes = WORKER_BYTES};
    assert_int_equal(cpu->prepare(device, &source, &segment, NULL), STRATA_OK);
    uint32_t count = rows == ST_ROWS_ALL ? op_step->count : op_step->out_count;
    assert_int_equal(cpu->launch(segment, queue, count, NULL), STRATA_OK);
    cpu->segment_free(segment);
}

float random_value(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / (float)(1 << 23) - 1;
}

void randomise(float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) values[i] = random_value();
}

st_bound_weight floats(const float *data, uint64_t ne0, uint64_t ne1)
{
    return (st_bound_weight){.data = data, .info = st_type_find(ST_TYPE_F32), .type = ST_TYPE_F32, .ne = {ne0, ne1, 1},
                             .row_bytes = (size_t)ne0 * sizeof(float)};
}

void check_close(const char *what, size_t index, double found, double expected, double size)
{
    if (!(fabs(found - expected) <= CLOSE * size + 1e-9))
        fail_msg("%s[%zu]: %.9g, expected %.9g", what, index, found, expected);
}

double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

double silu(double x)
{
    return x / (1 + exp(-x));
}

double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
