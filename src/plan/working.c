#include "plan/working.h"

#include "base/check.h"
#include "plan/schedule.h"
#include "sampler/candidates.h"

static bool op_counts(const st_program *program, const st_working_options *options, uint32_t op)
{
    if (!options->nextn && st_op_is_nextn(program, op)) return false;
    if (!options->op_device || options->op_device[op] == options->device) return true;
    if (options->dense_device && options->dense_device[op] == options->device) return true;
    return options->expert_cache && options->device == ST_HOST && program->ops[op].kind == ST_OP_EXPERTS;
}

static void widen(size_t *largest, size_t bytes)
{
    size_t aligned = SIZE_MAX; /* stays so where it overflows: then laying out fails */
    st_align_size(bytes, ST_RANGE_ALIGN, &aligned);
    if (*largest < aligned) *largest = aligned;
}

/* A value may be used on any device, and has the same offset on all: every device has room for all values. */
static bool lay_out(const st_desc *desc, const st_program *program, const st_working_options *options,
                    st_working_set *set)
{
    size_t end = 0, of_workers, step_bytes = st_step_bytes(&options->step);
    size_t sums = options->expert_cache && options->device == ST_CARD ? options->step.rows : 0;
    size_t row = (size_t)desc->embedding * sizeof(float), reduced = options->candidates ? options->step.out_rows : 0;
    return st_range_append(&end, program->row_bytes[ST_ROWS_ALL], options->step.rows, &set->values[ST_ROWS_ALL]) &&
           st_range_append(&end, program->row_bytes[ST_ROWS_OUT], options->step.out_rows, &set->values[ST_ROWS_OUT]) &&
           st_range_append(&end, 1, step_bytes, &set->steps[0]) &&
           st_range_append(&end, 1, step_bytes, &set->steps[1]) &&
           st_range_append(&end, 1, set->shared_bytes, &set->scratch) &&
           st_range_append(&end, options->workers, set->worker_bytes, &of_workers) && /* adjacent: both are aligned */
           st_range_append(&end, sums, row, &set->sums[0]) && st_range_append(&end, sums, row, &set->sums[1]) &&
           st_range_append(&end, reduced, sizeof(st_adjustments), &set->adjustments) &&
           st_range_append(&end, reduced, sizeof(st_candidates), &set->candidates) &&
           st_align_size(end, ST_RANGE_ALIGN, &set->bytes);
}

/* One operation runs at a time, so the scratch is as large as the largest statement. */
bool st_working_set_of(const st_desc *desc, const st_program *program, const st_working_options *options,
                       st_working_set *out)
{
    st_working_set set = {0};
    bool runs = options->watched && options->device == ST_HOST;
    for (uint32_t i = 0; i < program->op_count; i++) {
        if (!op_counts(program, options, i)) continue;
        runs = true;
        widen(&set.shared_bytes, options->scratch[i].shared_bytes);
        widen(&set.worker_bytes, options->scratch[i].worker_bytes);
    }
    if (options->candidates) {
        widen(&set.shared_bytes, options->candidates->shared_bytes);
        widen(&set.worker_bytes, options->candidates->worker_bytes);
    }
    if (runs && !lay_out(desc, program, options, &set)) return false;
    *out = set;
    return true;
}
