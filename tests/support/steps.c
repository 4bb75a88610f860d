#include "support/steps.h"

#include <string.h>

#include "base/alloc.h"
#include "quant/row.h"
#include "support/kit.h"
#include "support/random.h"

enum { SPARE_PAGES = 3 }; /* of a pool, in no table; the last one surrounds the tables */

static void *must(void *memory)
{
    assert_non_null(memory);
    return memory;
}

/* --- pages -------------------------------------------------------------------------------------------------------- */

static uint32_t first_seen(const step_pool *pool, uint32_t position)
{
    uint32_t first = 0;
    if (pool->window && position + 1 > pool->window) first = position + 1 - pool->window;
    if (pool->chunk && position / pool->chunk * pool->chunk > first) first = position / pool->chunk * pool->chunk;
    return first;
}

/* Positions that a conversation has in common with the others. */
static uint32_t shared_positions(const step_pool *pool, const step_part *part)
{
    return pool->shared < part->position ? pool->shared : part->position;
}

static uint32_t first_page(const step_pool *pool, const step_part *part)
{
    return first_seen(pool, part->position) >> pool->page_shift;
}

static uint32_t table_length(const step_pool *pool, const step_part *part)
{
    return ((part->position + part->rows - 1) >> pool->page_shift) - first_page(pool, part) + 1;
}

static uint32_t shared_pages(const step_pool *pool)
{
    return pool->shared >> pool->page_shift;
}

static void count_pages(step_pool *pool, const step_part *parts, uint32_t count)
{
    pool->pages = shared_pages(pool) + SPARE_PAGES;
    for (uint32_t i = 0; i < count; i++) pool->pages += table_length(pool, &parts[i]);
}

/* Page numbers in the order in which they are handed out. The last spare page is not among them. */
static uint32_t *order_of(const step_pool *pool)
{
    uint32_t count = pool->pages - 1, run = 1 + (uint32_t)(pool->order % 4), runs = (count + run - 1) / run, made = 0;
    uint32_t *order = must(st_alloc_array(count, sizeof *order)), *starts = must(st_alloc_array(runs, sizeof *starts));
    for (uint32_t i = 0; i < runs; i++) starts[i] = i * run;
    random_state = pool->order;
    for (uint32_t i = runs; pool->order && i > 1; i--) {
        uint32_t other = random_bits() % i, kept = starts[i - 1];
        starts[i - 1] = starts[other];
        starts[other] = kept;
    }
    for (uint32_t i = 0; i < runs; i++)
        for (uint32_t k = starts[i]; k < starts[i] + run && k < count; k++) order[made++] = k;
    st_free(starts);
    return order;
}

/* Writes the tables of a pool, each between two entries that name a page of NaN. */
static uint32_t write_tables(const step_pool *pool, uint32_t index, const step_part *parts, st_step *step, uint32_t at)
{
    uint32_t *order = order_of(pool), *tables = st_step_tables(step), next = shared_pages(pool);
    for (uint32_t i = 0; i < step->conversation_count; i++) {
        uint32_t first = first_page(pool, &parts[i]), shared = shared_positions(pool, &parts[i]) >> pool->page_shift;
        tables[at++] = pool->pages - 1;
        st_step_conversations(step)[i].pages[index] = (st_step_pages){first, at};
        for (uint32_t k = 0; k < table_length(pool, &parts[i]); k++)
            tables[at++] = first + k < shared ? order[first + k] : order[next++];
    }
    tables[at++] = pool->pages - 1;
    st_free(order);
    return at;
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

st_step *step_new(const step_part *parts, uint32_t count, step_pool *pools, uint32_t pool_count)
{
    st_step_limits most = {.conversations = count};
    for (uint32_t i = 0; i < count; i++) most.rows += parts[i].rows;
    most.out_rows = most.rows;
    for (uint32_t i = 0; i < pool_count; i++) {
        count_pages(&pools[i], parts, count);
        for (uint32_t k = 0; k < count; k++) most.tables += 1 + table_length(&pools[i], &parts[k]);
        most.tables++;
    }
    st_step *step = must(st_alloc_zero(1, st_step_bytes(&most)));
    st_step_lay_out(step, most.out_rows, count, most.rows, most.tables);
    step->out_count = most.rows;
    uint32_t row = 0, at = 0;
    for (uint32_t i = 0; i < count; i++) {
        st_step_conversations(step)[i] = (st_step_conversation){.first_row = row, .rows = parts[i].rows,
                                                                .position = parts[i].position, .slot = parts[i].slot};
        for (uint32_t k = 0; k < parts[i].rows; k++, row++) {
            st_step_rows(step)[row] = (st_step_row){.position = parts[i].position + k, .conversation = i};
            st_step_out_rows(step)[row] = row;
        }
    }
    for (uint32_t i = 0; i < pool_count; i++) at = write_tables(&pools[i], i, parts, step, at);
    assert_int_equal(at, most.tables);
    return step;
}

st_step *step_rows(uint32_t rows, uint32_t position)
{
    return step_new(&(step_part){.rows = rows, .position = position}, 1, NULL, 0);
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* All ones is NaN in every float type, and in the scale of a q8_0 block. */
static void *not_a_number(size_t bytes)
{
    return memset(must(st_alloc(bytes)), 0xFF, bytes);
}

st_kv_view step_view(const step_pool *pool, uint32_t index, st_type type, size_t key_width, size_t value_width, size_t gap)
{
    st_kv_view view = {.pool = index, .page_shift = pool->page_shift, .pages = pool->pages, .type = type,
                       .key_row_bytes = st_row_bytes(type, key_width), .value_row_bytes = st_row_bytes(type, value_width)};
    view.key_page_bytes = (view.key_row_bytes << view.page_shift) + gap;
    view.value_page_bytes = (view.value_row_bytes << view.page_shift) + gap;
    view.keys = not_a_number(view.pages * view.key_page_bytes);
    view.values = not_a_number(view.pages * view.value_page_bytes);
    return view;
}

void step_view_free(st_kv_view *view)
{
    st_free(view->keys);
    st_free(view->values);
}

static void fill_row(st_type type, size_t width, float *row, unsigned char *out)
{
    for (size_t i = 0; i < width; i++) row[i] = random_float();
    st_row_store(type, row, width, out);
}

void step_fill(const st_kv_view *view, const step_pool *pool, st_step *step, const step_part *parts, size_t key_width,
               size_t value_width, bool rows)
{
    float *row = must(st_alloc_array(key_width > value_width ? key_width : value_width, sizeof *row));
    const uint32_t *tables = st_step_tables(step);
    for (uint32_t i = 0; i < step->conversation_count; i++) {
        const st_step_conversation *c = &st_step_conversations(step)[i];
        uint32_t end = c->position + (rows ? c->rows : 0);
        for (uint32_t position = first_seen(pool, c->position); position < end; position++) {
            uint64_t seed = position < shared_positions(pool, &parts[i]) ? 1 : parts[i].seed;
            random_state = seed * 0x9E3779B97F4A7C15u + position * UINT64_C(0xD1342543DE82EF95);
            fill_row(view->type, key_width, row, st_kv_key(view, c, tables, position));
            fill_row(view->type, value_width, row, st_kv_value(view, c, tables, position));
        }
    }
    st_free(row);
}

float *step_slots(uint32_t slots, size_t slot_floats)
{
    return not_a_number(slots * slot_floats * sizeof(float));
}
