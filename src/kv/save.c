#include "kv/save.h"

#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"

static const unsigned char magic[8] = {'S', 'T', 'R', 'A', 'T', 'A', 'K', 'V'};

/* Offsets in the header. */
enum { AT_VERSION = 8, AT_TOKENS = 12, AT_FIRST = 16, AT_PAGES = 20, AT_POINTS = 24, AT_IDENTITY = 32, AT_PARENT = 48,
       AT_PAGE_BYTES = 64, AT_TABLE_BYTES = 72, AT_FILE_BYTES = 80, AT_DIGEST = 96, DIGEST = 16, WORD = 4 };

/* --- numbers ------------------------------------------------------------------------------------------------------ */

static void put(unsigned char *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) at[i] = (unsigned char)(value >> (8 * i));
}

static uint64_t get(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes; i-- > 0;) value = value << 8 | at[i];
    return value;
}

static void put_digest(unsigned char *at, st_digest digest)
{
    put(at, digest.words[0], 8);
    put(at + 8, digest.words[1], 8);
}

static st_digest get_digest(const unsigned char *at)
{
    return (st_digest){{get(at, 8), get(at + 8, 8)}};
}

/* The digest of header and tables, without the digest itself. */
static st_digest digest_of(const unsigned char *bytes, uint64_t table_bytes)
{
    st_digest digest = st_digest_add((st_digest){{0}}, bytes, AT_DIGEST);
    return st_digest_add(digest, bytes + AT_DIGEST + DIGEST, (size_t)table_bytes - AT_DIGEST - DIGEST);
}

/* --- sizes -------------------------------------------------------------------------------------------------------- */

bool st_save_sizes(const st_save_shape *shape, uint64_t point_bytes, uint64_t *table_bytes, uint64_t *file_bytes)
{
    size_t pages, all;
    if (shape->page_count > ST_SAVE_PAGES_MAX || shape->point_count > ST_SAVE_POINTS_MAX || shape->page_tokens == 0 ||
        shape->page_tokens > ST_SAVE_TOKENS_MAX || shape->first_page > UINT32_MAX - ST_SAVE_PAGES_MAX)
        return false;
    uint64_t of_page = WORD * (uint64_t)shape->page_tokens + DIGEST;
    uint64_t table = ST_SAVE_HEADER_BYTES + shape->page_count * of_page +
                     (uint64_t)shape->point_count * ST_SAVE_POINT_BYTES;
    if (!st_mul_size(shape->page_count, (size_t)shape->page_bytes, &pages) ||
        !st_add_size((size_t)table, pages, &all) || !st_add_size(all, (size_t)point_bytes, &all))
        return false;
    *table_bytes = table;
    *file_bytes = all;
    return true;
}

static st_save_shape shape_of(const unsigned char *bytes)
{
    return (st_save_shape){.identity = get_digest(bytes + AT_IDENTITY), .parent = get_digest(bytes + AT_PARENT),
                           .page_tokens = (uint32_t)get(bytes + AT_TOKENS, 4),
                           .first_page = (uint32_t)get(bytes + AT_FIRST, 4),
                           .page_count = (uint32_t)get(bytes + AT_PAGES, 4),
                           .point_count = (uint32_t)get(bytes + AT_POINTS, 4),
                           .page_bytes = get(bytes + AT_PAGE_BYTES, 8)};
}

strata_status st_save_measure(const unsigned char *bytes, uint64_t file_bytes, uint64_t *table_bytes,
                              strata_error *error)
{
    st_save_shape shape = shape_of(bytes);
    uint64_t version = get(bytes + AT_VERSION, 4), least, stated = get(bytes + AT_FILE_BYTES, 8);
    if (file_bytes < ST_SAVE_HEADER_BYTES || memcmp(bytes, magic, sizeof magic) != 0)
        return st_error_set(error, STRATA_FORMAT, NULL, "expected saved KV state, found another file");
    if (version != ST_SAVE_VERSION)
        return st_error_set(error, STRATA_FORMAT, NULL, "saved KV state: expected version %d, found %" PRIu64,
                            ST_SAVE_VERSION, version);
    if (!st_save_sizes(&shape, 0, table_bytes, &least) || least > file_bytes || stated != file_bytes ||
        get(bytes + AT_TABLE_BYTES, 8) != *table_bytes)
        return st_error_set(error, STRATA_FORMAT, NULL,
                            "saved KV state: the header's sizes contradict the file's length, %" PRIu64 " bytes",
                            file_bytes);
    return STRATA_OK;
}

/* --- the tables --------------------------------------------------------------------------------------------------- */

strata_token st_save_id(const st_save_file *file, uint64_t index)
{
    return (strata_token)(int32_t)(uint32_t)get(file->ids + index * WORD, WORD);
}

st_digest st_save_page_digest(const st_save_file *file, uint32_t page)
{
    return get_digest(file->digests + (size_t)page * DIGEST);
}

uint64_t st_save_page_offset(const st_save_file *file, uint32_t page)
{
    return file->table_bytes + page * file->shape.page_bytes;
}

st_save_point st_save_point_at(const st_save_file *file, uint32_t point)
{
    const unsigned char *row = file->points + (size_t)point * ST_SAVE_POINT_BYTES;
    return (st_save_point){.page = (uint32_t)get(row, 4), .kind = (uint32_t)get(row + 4, 4), .offset = get(row + 8, 8),
                           .bytes = get(row + 16, 8), .digest = get_digest(row + 24)};
}

/* Points follow the pages, one directly after the other, to the file's end, and belong to pages of the file or to the
 * one before its first. */
static bool points_fit(const st_save_file *file)
{
    const st_save_shape *shape = &file->shape;
    uint64_t end = file->table_bytes + shape->page_count * shape->page_bytes;
    for (uint32_t i = 0; i < shape->point_count; i++) {
        st_save_point p = st_save_point_at(file, i);
        bool placed = p.offset == end && p.bytes <= file->file_bytes - end;
        if (!placed || p.page == 0 || p.page < shape->first_page || p.page - shape->first_page > shape->page_count)
            return false;
        end += p.bytes;
    }
    return end == file->file_bytes;
}

strata_status st_save_parse(const unsigned char *bytes, uint64_t length, uint64_t file_bytes, st_save_file *out,
                            strata_error *error)
{
    uint64_t table_bytes = ST_SAVE_HEADER_BYTES;
    strata_status status = STRATA_OK;
    if (length < ST_SAVE_HEADER_BYTES)
        status = st_error_set(error, STRATA_FORMAT, NULL,
                              "saved KV state: expected a header of %d bytes, found %" PRIu64, ST_SAVE_HEADER_BYTES,
                              length);
    if (status == STRATA_OK) status = st_save_measure(bytes, file_bytes, &table_bytes, error);
    if (status != STRATA_OK) return status;
    if (length < table_bytes)
        return st_error_set(error, STRATA_FORMAT, NULL,
                            "saved KV state: expected tables of %" PRIu64 " bytes, found %" PRIu64, table_bytes,
                            length);
    if (!st_digest_equal(digest_of(bytes, table_bytes), get_digest(bytes + AT_DIGEST)))
        return st_error_set(error, STRATA_FORMAT, NULL, "saved KV state: the tables are damaged");
    st_save_file file = {.shape = shape_of(bytes), .table_bytes = table_bytes, .file_bytes = file_bytes};
    file.ids = bytes + ST_SAVE_HEADER_BYTES;
    file.digests = file.ids + (size_t)file.shape.page_count * file.shape.page_tokens * WORD;
    file.points = file.digests + (size_t)file.shape.page_count * DIGEST;
    if (!points_fit(&file))
        return st_error_set(error, STRATA_FORMAT, NULL, "saved KV state: a restore point lies outside the file");
    *out = file;
    return STRATA_OK;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

void st_save_write(const st_save_shape *shape, const strata_token *ids, const st_digest *digests,
                   const st_save_point *points, uint64_t table_bytes, uint64_t file_bytes, unsigned char *out)
{
    unsigned char *at = out + ST_SAVE_HEADER_BYTES;
    memset(out, 0, ST_SAVE_HEADER_BYTES);
    memcpy(out, magic, sizeof magic);
    put(out + AT_VERSION, ST_SAVE_VERSION, 4);
    put(out + AT_TOKENS, shape->page_tokens, 4);
    put(out + AT_FIRST, shape->first_page, 4);
    put(out + AT_PAGES, shape->page_count, 4);
    put(out + AT_POINTS, shape->point_count, 4);
    put_digest(out + AT_IDENTITY, shape->identity);
    put_digest(out + AT_PARENT, shape->parent);
    put(out + AT_PAGE_BYTES, shape->page_bytes, 8);
    put(out + AT_TABLE_BYTES, table_bytes, 8);
    put(out + AT_FILE_BYTES, file_bytes, 8);
    for (size_t i = 0; i < (size_t)shape->page_count * shape->page_tokens; i++, at += WORD)
        put(at, (uint32_t)ids[i], WORD);
    for (uint32_t i = 0; i < shape->page_count; i++, at += DIGEST) put_digest(at, digests[i]);
    for (uint32_t i = 0; i < shape->point_count; i++, at += ST_SAVE_POINT_BYTES) {
        put(at, points[i].page, 4);
        put(at + 4, points[i].kind, 4);
        put(at + 8, points[i].offset, 8);
        put(at + 16, points[i].bytes, 8);
        put_digest(at + 24, points[i].digest);
    }
    st_save_seal(out, table_bytes);
}

void st_save_seal(unsigned char *bytes, uint64_t table_bytes)
{
    put_digest(bytes + AT_DIGEST, digest_of(bytes, table_bytes));
}

st_digest st_save_key(st_digest parent, const strata_token *ids, uint32_t count)
{
    unsigned char word[WORD * 64];
    st_digest key = parent;
    for (uint32_t done = 0; done < count;) {
        uint32_t part = count - done < 64 ? count - done : 64;
        for (uint32_t i = 0; i < part; i++) put(word + i * WORD, (uint32_t)ids[done + i], WORD);
        key = st_digest_add(key, word, part * WORD);
        done += part;
    }
    return key;
}
