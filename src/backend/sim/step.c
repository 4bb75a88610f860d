/* Checks of the step block that an operation reads: its counts, the rows of its conversations, and the numbers that a
 * kernel uses as indices without a check: token ids, output rows, pages and state slots. */
#include <stdarg.h>
#include <stdio.h>

#include "backend/cpu/cpu.h"
#include "backend/sim/world.h"
#include "base/error.h"

typedef struct check {
    const st_segment_source *source;
    const st_bound_op *bound;
    uint32_t rows; /* of the launch */
    strata_error *error;
} check;

__attribute__((format(printf, 3, 4)))
static strata_status refuse(const check *c, const char *hint, const char *format, ...)
{
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return st_error_set(c->error, STRATA_DEVICE, hint, "%s of layer %d: %s", st_op_name(c->bound->op->kind),
                        c->bound->op->layer, what);
}

/* --- the block ---------------------------------------------------------------------------------------------------- */

static const char *const wait_for_step = "wait for the copy of the step before the launch";

bool st_sim_step_is_sane(const st_step *step, size_t room)
{
    const uint64_t word = sizeof *step->values;
    uint64_t rows_at = step->out_max + step->conversation_count * (sizeof(st_step_conversation) / word);
    uint64_t choices_at = rows_at + step->count * (sizeof(st_step_row) / word);
    uint64_t tables_at = choices_at + (uint64_t)step->count * step->choice_words;
    uint64_t bytes = sizeof *step + (tables_at + step->table_count) * word;
    return step->out_count <= step->out_max && step->rows_at == rows_at && step->choices_at == choices_at &&
           step->tables_at == tables_at && step->bytes == bytes && bytes <= room;
}

static strata_status check_counts(const check *c)
{
    const st_step *step = c->source->step;
    if (!st_sim_step_is_sane(step, c->source->step_bytes))
        return refuse(c, wait_for_step,
                      "the step says %u rows of %u conversations, %u of %u output rows, %u table entries, %u bytes: "
                      "expected numbers that agree and at most %zu bytes", step->count, step->conversation_count,
                      step->out_count, step->out_max, step->table_count, step->bytes, c->source->step_bytes);
    uint32_t counted = c->source->rows == ST_ROWS_ALL ? step->count : step->out_count;
    if (c->rows > 0 && c->rows == counted) return STRATA_OK;
    return refuse(c, wait_for_step, "launched with %u rows, the step says %u", c->rows, counted);
}

/* The rows of the conversations follow each other, each at its position. */
static strata_status check_rows(const check *c)
{
    st_step *step = c->source->step;
    const st_step_row *rows = st_step_rows(step);
    uint32_t row = 0;
    for (uint32_t i = 0; i < step->conversation_count; i++) {
        const st_step_conversation *t = &st_step_conversations(step)[i];
        if (t->rows == 0 || t->first_row != row || t->rows > step->count - row || t->position > UINT32_MAX - t->rows)
            return refuse(c, NULL,
                          "conversation %u has %u rows from row %u on, at position %u: expected 1 to %u from row %u on",
                          i, t->rows, t->first_row, t->position, step->count - row, row);
        for (uint32_t k = 0; k < t->rows; k++, row++)
            if (rows[row].conversation != i || rows[row].position != t->position + k)
                return refuse(c, NULL,
                              "row %u is at position %u of conversation %u: expected position %u of conversation %u",
                              row, rows[row].position, rows[row].conversation, t->position + k, i);
    }
    if (row == step->count) return STRATA_OK;
    return refuse(c, NULL, "the conversations of the step have %u rows, the step says %u", row, step->count);
}

/* --- indices ------------------------------------------------------------------------------------------------------ */

static strata_status check_ids(const check *c)
{
    const st_step_row *rows = st_step_rows(c->source->step);
    uint64_t limit = c->bound->weight[0].ne[1];
    for (uint32_t i = 0; i < c->rows; i++)
        if (rows[i].id < 0 || (uint64_t)rows[i].id >= limit)
            return refuse(c, wait_for_step, "expected token ids from 0 to %llu, found %d",
                          (unsigned long long)limit - 1, rows[i].id);
    return STRATA_OK;
}

static strata_status check_out_rows(const check *c)
{
    st_step *step = c->source->step;
    for (uint32_t i = 0; i < c->rows; i++)
        if (st_step_out_rows(step)[i] >= step->count)
            return refuse(c, wait_for_step, "expected output rows from 0 to %u, found %u", step->count - 1,
                          st_step_out_rows(step)[i]);
    return STRATA_OK;
}

st_sim_span st_sim_positions(const st_bound_op *bound, const st_step_conversation *conversation)
{
    uint32_t first = conversation->position;
    if (bound->op->kind == ST_OP_ATTENTION) first = st_cpu_first_seen(bound->op, first);
    return (st_sim_span){.first = first, .end = (uint64_t)conversation->position + conversation->rows};
}

/* The entry of the page tables for a position. False: the position is before the conversation's table or behind it. */
static bool find_entry(const st_step *step, const st_kv_view *kv, const st_step_conversation *conversation,
                       uint64_t position, uint64_t *entry)
{
    const st_step_pages *pages = &conversation->pages[kv->pool];
    uint64_t index = position >> kv->page_shift;
    *entry = pages->table + index - pages->first_page;
    return index >= pages->first_page && *entry < step->table_count;
}

bool st_sim_next_page(const st_step *step, const st_kv_view *kv, const st_step_conversation *conversation,
                      st_sim_span *left, st_sim_page_rows *out)
{
    uint64_t entry, end = ((left->first >> kv->page_shift) + 1) << kv->page_shift;
    if (left->first >= left->end || !find_entry(step, kv, conversation, left->first, &entry)) return false;
    *out = (st_sim_page_rows){.page = step->values[step->tables_at + entry],
                              .first = st_kv_page_row(kv, (uint32_t)left->first),
                              .count = (size_t)((end < left->end ? end : left->end) - left->first)};
    if (out->page >= kv->pages) return false;
    left->first += out->count;
    return true;
}

static strata_status refuse_page(const check *c, uint32_t index, uint64_t position)
{
    st_step *step = c->source->step;
    const st_kv_view *kv = &c->bound->kv;
    unsigned long long at = position;
    uint64_t entry;
    if (!find_entry(step, kv, &st_step_conversations(step)[index], position, &entry))
        return refuse(c, NULL, "conversation %u, position %llu: expected a page of pool %u, found none in its table",
                      index, at, kv->pool);
    return refuse(c, wait_for_step,
                  "conversation %u, position %llu: expected one of the %u pages of pool %u, found page %u", index, at,
                  kv->pages, kv->pool, st_step_tables(step)[entry]);
}

/* Every position that the operation reads or writes has a page of the pool. */
static strata_status check_pages(const check *c)
{
    st_step *step = c->source->step;
    const st_kv_view *kv = &c->bound->kv;
    if (kv->pool >= ST_KV_POOLS_MAX || kv->page_shift > 31)
        return refuse(c, NULL, "expected a pool below %d and pages of at most 2^31 positions, found pool %u and 2^%u",
                      ST_KV_POOLS_MAX, kv->pool, kv->page_shift);
    for (uint32_t i = 0; i < step->conversation_count; i++) {
        const st_step_conversation *conversation = &st_step_conversations(step)[i];
        st_sim_span left = st_sim_positions(c->bound, conversation);
        st_sim_page_rows rows;
        while (st_sim_next_page(step, kv, conversation, &left, &rows)) continue;
        if (left.first < left.end) return refuse_page(c, i, left.first);
    }
    return STRATA_OK;
}

static bool stores_to(const check *c, const st_step_conversation *conversation, uint32_t page)
{
    st_sim_span left = st_sim_positions(c->bound, conversation);
    st_sim_page_rows rows;
    while (st_sim_next_page(c->source->step, &c->bound->kv, conversation, &left, &rows))
        if (rows.page == page) return true;
    return false;
}

/* A page that conversations share is copied before one of them stores to it. */
static strata_status check_store(const check *c)
{
    st_step *step = c->source->step;
    const st_step_conversation *conversations = st_step_conversations(step);
    strata_status status = check_pages(c);
    for (uint32_t i = 1; i < step->conversation_count && status == STRATA_OK; i++) {
        st_sim_span left = st_sim_positions(c->bound, &conversations[i]);
        st_sim_page_rows rows;
        while (status == STRATA_OK && st_sim_next_page(step, &c->bound->kv, &conversations[i], &left, &rows))
            for (uint32_t k = 0; k < i && status == STRATA_OK; k++)
                if (stores_to(c, &conversations[k], rows.page))
                    status = refuse(c, "copy a shared page before a conversation stores to it",
                                    "conversations %u and %u both store to page %u of pool %u", k, i, rows.page,
                                    c->bound->kv.pool);
    }
    return status;
}

static strata_status check_slots(const check *c)
{
    st_step *step = c->source->step;
    const st_step_conversation *conversations = st_step_conversations(step);
    for (uint32_t i = 0; i < step->conversation_count; i++) {
        uint32_t slot = conversations[i].slot;
        if (slot >= c->bound->state.slots)
            return refuse(c, NULL, "conversation %u: expected one of %u state slots, found slot %u", i,
                          c->bound->state.slots, slot);
        for (uint32_t k = 0; k < i; k++)
            if (conversations[k].slot == slot)
                return refuse(c, NULL, "conversations %u and %u both have state slot %u", k, i, slot);
    }
    return STRATA_OK;
}

/* Recorded choices are experts of the layer; a negative first one leaves the choice to the router. */
static strata_status check_choices(const check *c)
{
    st_step *step = c->source->step;
    uint32_t at = c->bound->op->p.route.choices_at, used = c->bound->op->p.route.used;
    if (!c->bound->op->p.route.recorded) return STRATA_OK;
    if (step->choice_words < 2 * used || at > step->choice_words - 2 * used)
        return refuse(c, NULL, "expected recorded choices of %u words from word %u of a row on, found %u words in all",
                      2 * used, at, step->choice_words);
    for (uint32_t row = 0; row < c->rows; row++) {
        const uint32_t *choice = st_step_choices(step, row) + at;
        for (uint32_t k = 0; k < used && (int32_t)choice[0] >= 0; k++)
            if (choice[k] >= c->bound->op->p.route.experts)
                return refuse(c, wait_for_step, "row %u: expected recorded experts from 0 to %u, found %u", row,
                              c->bound->op->p.route.experts - 1, choice[k]);
    }
    return STRATA_OK;
}

static strata_status (*const index_checks[ST_OP_COUNT])(const check *c) = {
    [ST_OP_EMBED] = check_ids,      [ST_OP_GATHER] = check_out_rows, [ST_OP_KV_STORE] = check_store,
    [ST_OP_ATTENTION] = check_pages, [ST_OP_CONV] = check_slots,      [ST_OP_DELTANET] = check_slots,
    [ST_OP_SSM] = check_slots,      [ST_OP_ROUTE] = check_choices,
};

strata_status st_sim_check_step(const st_segment_source *source, const st_bound_op *bound, uint32_t rows,
                                strata_error *error)
{
    check c = {.source = source, .bound = bound, .rows = rows, .error = error};
    strata_status status = check_counts(&c);
    if (status == STRATA_OK) status = check_rows(&c);
    return status == STRATA_OK && index_checks[bound->op->kind] ? index_checks[bound->op->kind](&c) : status;
}
