/* Fuzzes model loading: directory, description, binding and program of any bytes. An accepted model is consistent, and
 * a small one runs a few tokens. The input is the head of the file; zeros follow as its tensor data, enough for a tiny
 * model. */
#include <stdlib.h>

#include "base/arena.h"
#include "run/load.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD_MAX = 1 << 16, DATA_BYTES = 4 << 20, CONTEXT = 12, BATCH = 4 };

static _Alignas(64) unsigned char file[HEAD_MAX + DATA_BYTES];

static void must(bool condition)
{
    if (!condition) abort();
}

static void check_error(strata_status status, const strata_error *error)
{
    must(status == STRATA_FORMAT || status == STRATA_UNSUPPORTED);
    must(error->status == status && error->message[0] != '\0');
}

/* Each value lies within the scratch of its rows, each operand of an operation exists, and matrix widths match. */
static void check_program(const st_program *program, const st_binding *binding)
{
    for (uint32_t i = 0; i < program->value_count; i++) {
        const st_value *v = &program->values[i];
        must(v->width > 0 && v->offset_bytes + v->width * sizeof(float) <= program->row_bytes[v->rows]);
    }
    for (uint32_t i = 0; i < program->op_count; i++) {
        const st_op *op = &program->ops[i];
        for (int k = 0; k < ST_OP_INPUTS; k++)
            must(op->in[k] >= ST_NO_VALUE && op->in[k] < (int32_t)program->value_count);
        must(op->out >= ST_NO_VALUE && op->out < (int32_t)program->value_count);
        for (int k = 0; k < ST_OP_WEIGHTS; k++)
            must(op->weight[k] >= ST_NO_WEIGHT && op->weight[k] < (int32_t)binding->count);
        if (op->kind == ST_OP_MATMUL) must(binding->weights[op->weight[0]].ne[0] == program->values[op->in[0]].width);
    }
}

static bool is_small(const st_plan_source *source, const st_plan *plan)
{
    double flops = 0;
    for (uint32_t i = 0; i < source->program->op_count; i++)
        flops += st_op_estimate(source->program, source->binding, &source->program->ops[i], BATCH, CONTEXT).flops;
    return flops < 3e7 && plan->devices[ST_HOST].block_bytes < 32 << 20;
}

static void run_some(st_run *run, strata_token last_id)
{
    const strata_token ids[CONTEXT] = {0, last_id, 0, 0, 0, last_id};
    st_conversation *c = NULL;
    st_seek seek;
    must(st_conversation_new(st_run_kv(run), &c, NULL) == STRATA_OK);
    static const uint32_t counts[] = {BATCH, 1, BATCH, 3};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        uint32_t row = counts[i] - 1, position = st_conversation_position(c);
        const float *logits;
        st_run_piece piece = {.conversation = c, .count = counts[i], .prompt = true};
        memcpy(st_conversation_tokens(c) + position, ids + position, counts[i] * sizeof *ids);
        must(st_run_step(run, &piece, 1, NULL) == STRATA_OK);
        must(st_run_logits(run, &row, 1, &logits, NULL) == STRATA_OK);
        st_conversation_keep(c, ST_RESTORE_PASSING);
        if (i == 1) must(st_conversation_seek(c, ids, 4, true, &seek, NULL) == STRATA_OK);
    }
    st_conversation_free(c);
}

static st_plan_options plan_options(const st_desc *desc)
{
    st_plan_options options = st_plan_options_default();
    options.context = CONTEXT;
    options.kv_type = ST_TYPE_F32;
    options.batch = BATCH;
    options.out_rows = 1;
    options.page_tokens = 2;
    options.nextn = desc->nextn_count > 0;
    options.workers[ST_HOST] = 1;
    return options;
}

static void check_model(const st_gguf *gguf, st_arena *arena)
{
    static st_device *device;
    strata_error error = {0};
    st_profile host = st_profile_default(ST_DEVICE_HOST);
    host.total_bytes = host.free_bytes = (uint64_t)1 << 40;
    st_plan_source source = {.devices = &host, .device_count = 1};
    const st_plan *plan = NULL;
    strata_status status = st_program_of_file(gguf, arena, &source.desc, &source.binding, &source.program, &error);
    if (status == STRATA_OK) {
        check_program(source.program, source.binding);
        st_plan_options options = plan_options(source.desc);
        status = st_plan_build(&source, &options, arena, &plan, &error);
    }
    if (status != STRATA_OK) {
        check_error(status, &error);
        return;
    }
    if (!is_small(&source, plan)) return;
    const st_device_options options = {.cpu = "ref", .threads = 1};
    if (!device) must(st_backend_cpu()->open(&options, &device, NULL) == STRATA_OK);
    st_load_device devices[ST_DEVICES_MAX] = {{.backend = st_backend_cpu(), .device = device}};
    st_load *load = NULL;
    must(st_load_new(&source, plan, devices, &(st_load_options){0}, &load, &error) == STRATA_OK);
    must(st_ledger_check(st_load_ledger(load), &error) == STRATA_OK);
    run_some(st_load_run(load), (strata_token)source.desc->vocab - 1);
    st_load_free(load);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > HEAD_MAX) return 0;
    if (size) memcpy(file, data, size);
    st_gguf *gguf = NULL;
    strata_error error = {0};
    strata_status status = st_gguf_open_memory("fuzz.gguf", file, size + DATA_BYTES, &gguf, &error);
    if (status == STRATA_OK) {
        st_arena arena = {0};
        check_model(gguf, &arena);
        st_arena_free(&arena);
        st_gguf_close(gguf);
    } else {
        check_error(status, &error);
    }
    memset(file, 0, size);
    return 0;
}
