#include "plan/working.h"

#include "backend/backend.h"
#include "base/check.h"
#include "plan/schedule.h"

/* Nothing grows with the context: the needs are those of a first batch. */
st_scratch_need st_scratch_need_of(const st_program *program, const st_binding *binding, const st_op *op,
                                   uint32_t batch)
{
    st_op_cost cost = st_op_estimate(program, binding, op, batch, 0);
    st_scratch_need need = {SIZE_MAX, SIZE_MAX}; /* stays so where it does not fit: adding it up then fails */
    st_align_size(cost.shared_bytes, ST_RANGE_ALIGN, &need.shared_bytes);
    st_align_size(cost.worker_bytes, ST_RANGE_ALIGN, &need.worker_bytes);
    return need;
}

static bool in_range(st_op_range range, uint32_t op)
{
    return op - range.first < range.count;
}

static bool op_counts(const st_program *program, const st_working_options *options, uint32_t op)
{
    if (!options->nextn && (in_range(program->nextn.body, op) || in_range(program->nextn.head, op))) return false;
    if (!options->op_device || options->op_device[op] == options->device) return true;
    return options->expert_cache && options->device == ST_HOST && program->ops[op].kind == ST_OP_EXPERTS;
}

static void widen(st_working_set *set, st_scratch_need need)
{
    if (set->shared_bytes < need.shared_bytes) set->shared_bytes = need.shared_bytes;
    if (set->worker_bytes < need.worker_bytes) set->worker_bytes = need.worker_bytes;
}

/* Values may live on any device that computes, so each has the whole of them: a value has one offset everywhere. */
static bool lay_out(const st_desc *desc, const st_program *program, const st_working_options *options,
                    st_working_set *set)
{
    size_t end = 0, of_workers, step_bytes = st_step_bytes(options->batch);
    bool carries = options->nextn && program->nextn.body.count > 0;
    size_t sums = options->expert_cache && options->device == ST_CARD ? options->batch : 0, row = (size_t)desc->embedding * sizeof(float);
    return st_range_append(&end, program->row_bytes[ST_ROWS_ALL], options->batch, &set->values[ST_ROWS_ALL]) &&
           st_range_append(&end, program->row_bytes[ST_ROWS_OUT], options->out_rows, &set->values[ST_ROWS_OUT]) &&
           st_range_append(&end, 1, step_bytes, &set->steps[0]) && st_range_append(&end, 1, step_bytes, &set->steps[1]) &&
           st_range_append(&end, 1, set->shared_bytes, &set->scratch) &&
           st_range_append(&end, options->workers, set->worker_bytes, &of_workers) && /* right behind: both are aligned */
           st_range_append(&end, carries ? desc->embedding : 0, sizeof(float), &set->carry) &&
           st_range_append(&end, sums, row, &set->sums[0]) && st_range_append(&end, sums, row, &set->sums[1]) &&
           st_align_size(end, ST_RANGE_ALIGN, &set->bytes);
}

/* One operation runs at a time: the scratch is what the hungriest takes. */
bool st_working_set_of(const st_desc *desc, const st_program *program, const st_binding *binding,
                       const st_working_options *options, st_working_set *out)
{
    st_working_set set = {0};
    bool runs = false;
    for (uint32_t i = 0; i < program->op_count; i++) {
        if (!op_counts(program, options, i)) continue;
        runs = true;
        widen(&set, options->needs ? options->needs[i]
                                   : st_scratch_need_of(program, binding, &program->ops[i], options->batch));
    }
    if (runs && !lay_out(desc, program, options, &set)) return false;
    *out = set;
    return true;
}
