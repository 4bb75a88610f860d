/* Dense parts that stay in RAM and run on the GPU in steps of many rows: which operations, from how many rows on, and
 * the buffers that their matrices are copied to. */
#include "plan/draft.h"

#include <string.h>

#include "base/check.h"
#include "plan/timeline.h"

/* Steps of up to ST_EARLY_ROWS_MAX rows may read weights before the copies in front of them have ended (backend.h). */
enum { ROWS_LEAST = ST_EARLY_ROWS_MAX + 1, ROWS_MOST = 1 << 16 };

st_fetch_layout st_fetch_layout_of(const st_binding *binding, const st_op *op)
{
    st_fetch_layout fetch = {0};
    for (int i = 0; i < ST_OP_WEIGHTS; i++) {
        const st_weight *w = op->weight[i] == ST_NO_WEIGHT ? NULL : &binding->weights[op->weight[i]];
        if (!w || w->ne[1] < 2) continue;
        fetch.offset[i] = fetch.bytes;
        fetch.matrix_bytes[i] = w->bytes;
        fetch.copied_bytes += w->bytes;
        fetch.bytes += st_align_up(w->bytes, ST_RANGE_ALIGN);
    }
    return fetch;
}

bool st_plan_fetches(const st_plan_source *source, const st_plan *plan, uint32_t op)
{
    return plan->dense.rows > 0 && plan->op_device[op] == ST_HOST && plan->dense.op_device[op] == ST_CARD &&
           st_fetch_layout_of(source->binding, &source->program->ops[op]).bytes > 0;
}

/* --- facts that hold for every draft ------------------------------------------------------------------------------ */

/* Operations of dense layers, except those on KV and state, which are where the layer is. */
static bool may_stream(const st_planner *p, uint32_t index)
{
    const st_plan_source *source = p->source;
    const st_op *op = &source->program->ops[index];
    st_op_range body = source->program->main.body;
    if (index - body.first >= body.count || op->layer < 0 || (uint32_t)op->layer >= p->layer_count) return false;
    if (p->layers[op->layer].dense_index == UINT32_MAX || st_op_has_kv(op->kind) || st_op_has_state(op->kind))
        return false;
    for (int i = 0; i < ST_OP_WEIGHTS; i++)
        if (op->weight[i] != ST_NO_WEIGHT && source->binding->weights[op->weight[i]].parts) return false;
    return p->card_runs[index];
}

/* Whether the GPU computes all dense matrices faster than the host if they are copied to it, each while the one before
 * is computed. */
static bool streaming_is_faster(const st_planner *p, uint32_t rows)
{
    const st_plan_source *s = p->source;
    const st_profile *host = &s->devices[ST_HOST], *card = &s->devices[ST_CARD];
    double computed = 0, streamed = 0;
    for (uint32_t i = 0; i < s->program->op_count; i++) {
        size_t bytes = p->may_stream[i] ? st_fetch_layout_of(s->binding, &s->program->ops[i]).copied_bytes : 0;
        if (bytes == 0) continue;
        st_work work = st_work_of(s->program, s->binding, &s->program->ops[i], rows, 0, ST_TYPE_F16);
        double copy = st_copy_seconds(s->devices, true, (double)bytes);
        double run = card->launch_seconds + st_profile_seconds(card, &work);
        computed += st_profile_seconds(host, &work);
        streamed += copy > run ? copy : run;
    }
    return streamed < computed;
}

/* More rows take the host longer, while the copies stay the same. */
static uint32_t find_rows(const st_planner *p)
{
    if (!p->card || p->dense_count == 0 || !streaming_is_faster(p, ROWS_MOST)) return 0;
    uint32_t low = ROWS_LEAST, high = ROWS_MOST;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (streaming_is_faster(p, middle)) high = middle;
        else low = middle + 1;
    }
    return low;
}

void st_planner_survey_dense(st_planner *p)
{
    for (uint32_t i = 0; i < p->source->program->op_count; i++) p->may_stream[i] = may_stream(p, i);
    p->dense_rows = p->options.dense_rows;
    if (p->dense_rows == 0) p->dense_rows = find_rows(p);
    if (p->dense_rows > ROWS_MOST || !p->card) p->dense_rows = 0;
}

/* --- a draft ------------------------------------------------------------------------------------------------------ */

bool st_draft_streams_op(const st_planner *p, const st_draft *draft, uint32_t op)
{
    return draft->streams && p->may_stream[op] && p->op_device[op] == ST_HOST;
}

/* The head gathers its rows where the body ends. */
static void place_ops(const st_planner *p, const st_draft *draft)
{
    const st_program *program = p->source->program;
    for (uint32_t i = 0; i < program->op_count; i++) {
        bool head = i - program->main.head.first < program->main.head.count;
        bool gathers = draft->streams && head && program->ops[i].kind == ST_OP_GATHER && p->card_runs[i];
        bool streamed = gathers ? st_hidden_on_card(p, p->dense_device, i) : st_draft_streams_op(p, draft, i);
        p->dense_device[i] = streamed ? ST_CARD : p->op_device[i];
    }
}

void st_draft_place_dense(const st_planner *p, st_draft *draft)
{
    const st_program *program = p->source->program;
    draft->dense_bytes = 0;
    draft->dense_buffer_bytes = 0;
    draft->dense_fetches = 0;
    draft->streams = !draft->stays && draft->trunk > 0 && p->dense_rows > 0 &&
                     p->dense_rows <= st_draft_large_batch(p, draft);
    for (uint32_t i = 0; i < program->op_count; i++) {
        if (!st_draft_streams_op(p, draft, i)) continue;
        st_fetch_layout fetch = st_fetch_layout_of(p->source->binding, &program->ops[i]);
        if (draft->dense_buffer_bytes < fetch.bytes) draft->dense_buffer_bytes = fetch.bytes;
        draft->dense_bytes += fetch.copied_bytes;
        draft->dense_fetches += fetch.bytes > 0;
    }
    if (draft->dense_fetches == 0) draft->streams = false;
    place_ops(p, draft);
}
