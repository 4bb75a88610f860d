#include "kv/store_index.h"

#include <string.h>

#include "base/alloc.h"

enum { ROWS_LEAST = 64, FILES_LEAST = 16 };

void st_index_free(st_store_index *index)
{
    for (uint32_t i = 0; i < index->file_count; i++) st_free(index->files[i].tables);
    st_free(index->files);
    st_free(index->rows);
    *index = (st_store_index){0};
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

/* The row of a key, or the empty one where it belongs. */
static st_index_row *row_of(const st_store_index *index, st_digest key, bool point)
{
    size_t at = (size_t)(key.words[0] + point) & (index->row_room - 1);
    for (;; at = (at + 1) & (index->row_room - 1)) {
        st_index_row *row = &index->rows[at];
        if (row->file == ST_INDEX_NONE || (row->point == point && st_digest_equal(row->key, key))) return row;
    }
}

static void add_row(st_store_index *index, st_digest key, bool point, uint32_t file, uint32_t number)
{
    st_index_row *row = row_of(index, key, point);
    if (row->file != ST_INDEX_NONE) return;
    *row = (st_index_row){.key = key, .file = file, .row = number, .point = point};
    index->row_count++;
}

/* The rows of a file: each page by the key of its end, each point by the key of its page's end. */
static void add_rows(st_store_index *index, uint32_t number)
{
    const st_index_file *f = &index->files[number];
    if (!f->tables) return;
    const st_save_shape *shape = &f->file.shape;
    st_digest key = shape->parent;
    for (uint32_t i = 0; i <= shape->page_count; i++) {
        if (i > 0) {
            strata_token ids[256];
            /* Keys are chained in parts of 64 ids, so that any whole number of parts may be added at a time. */
            for (uint32_t done = 0; done < shape->page_tokens;) {
                uint32_t part = shape->page_tokens - done < 256 ? shape->page_tokens - done : 256;
                for (uint32_t k = 0; k < part; k++)
                    ids[k] = st_save_id(&f->file, (uint64_t)(i - 1) * shape->page_tokens + done + k);
                key = st_save_key(key, ids, part);
                done += part;
            }
            add_row(index, key, false, number, i - 1);
        }
        for (uint32_t k = 0; k < shape->point_count; k++)
            if (st_save_point_at(&f->file, k).page == shape->first_page + i) add_row(index, key, true, number, k);
    }
}

static bool make_rows(st_store_index *index, size_t room)
{
    st_index_row *rows = st_alloc_array(room, sizeof *rows);
    if (!rows) return false;
    for (size_t i = 0; i < room; i++) rows[i].file = ST_INDEX_NONE;
    st_free(index->rows);
    index->rows = rows;
    index->row_room = room;
    index->row_count = 0;
    return true;
}

/* Empties the table and adds the rows of all files. */
static void rebuild(st_store_index *index)
{
    for (size_t i = 0; i < index->row_room; i++) index->rows[i].file = ST_INDEX_NONE;
    index->row_count = 0;
    for (uint32_t i = 0; i < index->file_count; i++) add_rows(index, i);
}

/* At least half of the table stays empty. */
static bool reserve_rows(st_store_index *index, size_t more)
{
    size_t room = index->row_room ? index->row_room : ROWS_LEAST;
    while (room < 2 * (index->row_count + more)) room *= 2;
    if (room == index->row_room) return true;
    if (!make_rows(index, room)) return false;
    rebuild(index);
    return true;
}

uint32_t st_index_find(const st_store_index *index, st_digest key, bool point, uint32_t *row)
{
    if (index->row_room == 0) return ST_INDEX_NONE;
    const st_index_row *found = row_of(index, key, point);
    if (found->file != ST_INDEX_NONE && row) *row = found->row;
    return found->file;
}

/* --- files -------------------------------------------------------------------------------------------------------- */

static bool reserve_file(st_store_index *index)
{
    if (index->file_count < index->file_room) return true;
    uint32_t room = index->file_room ? 2 * index->file_room : FILES_LEAST;
    st_index_file *files = st_realloc(index->files, room * sizeof *files);
    if (!files) return false;
    index->files = files;
    index->file_room = room;
    return true;
}

bool st_index_add(st_store_index *index, const st_index_file *file)
{
    size_t rows = file->tables ? (size_t)file->file.shape.page_count + file->file.shape.point_count : 0;
    if (!reserve_file(index) || !reserve_rows(index, rows)) return false;
    index->files[index->file_count] = *file;
    index->bytes += file->bytes;
    add_rows(index, index->file_count++);
    return true;
}

uint32_t st_index_named(const st_store_index *index, const char *name)
{
    for (uint32_t i = 0; i < index->file_count; i++)
        if (strcmp(index->files[i].name, name) == 0) return i;
    return ST_INDEX_NONE;
}

uint32_t st_index_oldest(const st_store_index *index)
{
    uint32_t oldest = ST_INDEX_NONE;
    for (uint32_t i = 0; i < index->file_count; i++)
        if (oldest == ST_INDEX_NONE || index->files[i].used < index->files[oldest].used) oldest = i;
    return oldest;
}

void st_index_remove(st_store_index *index, uint32_t file)
{
    index->bytes -= index->files[file].bytes;
    st_free(index->files[file].tables);
    index->files[file] = index->files[--index->file_count];
    rebuild(index);
}

void st_index_forget(st_store_index *index, uint32_t file)
{
    st_free(index->files[file].tables);
    index->files[file].tables = NULL;
    rebuild(index);
}
