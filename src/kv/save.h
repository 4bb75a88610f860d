/* The file format of saved conversation state: pages of full attention of one conversation from some page on, and
 * restore points at ends of pages. Pure: bytes ↔ a checked description; knows no folder, no device and no model.
 * Every length and offset is checked before use.
 *
 * A prefix has a key, the digest of all tokens before its end, chained page by page from the identity: everything
 * that changes keys and values (the model, the type and layout of the KV cache). So a file of another model has other
 * keys.
 *
 * All numbers are little-endian: a header, the ids of all pages, a digest of each page, a row for each restore point,
 * then the pages and the points. The header has a digest of all that comes before the pages. */
#ifndef ST_KV_SAVE_H
#define ST_KV_SAVE_H

#include "base/digest.h"
#include "strata.h"

enum {
    ST_SAVE_VERSION = 1,
    ST_SAVE_HEADER_BYTES = 128,
    ST_SAVE_POINT_BYTES = 40,    /* of a row of the table of points */
    ST_SAVE_PAGES_MAX = 1 << 20, /* of a file */
    ST_SAVE_POINTS_MAX = 4096,
    ST_SAVE_TOKENS_MAX = 1 << 16, /* of a page */
};

typedef struct st_save_point {
    uint32_t page;    /* it belongs to the end of this page of the conversation, from 1 on */
    uint32_t kind;    /* st_restore_kind */
    uint64_t offset, bytes;
    st_digest digest;
} st_save_point;

typedef struct st_save_shape {
    st_digest identity; /* of what the state belongs to */
    st_digest parent;   /* key of everything before the first page; the identity if nothing is */
    uint32_t page_tokens, first_page, page_count, point_count;
    uint64_t page_bytes;
} st_save_shape;

typedef struct st_save_file {
    st_save_shape shape;
    uint64_t table_bytes; /* of everything before the pages */
    uint64_t file_bytes;
    const unsigned char *ids, *digests, *points; /* in the bytes that were parsed */
} st_save_file;

/* Sizes of a file with this shape, whose points have `point_bytes` in all. False: overflow, or a count is too large. */
bool st_save_sizes(const st_save_shape *shape, uint64_t point_bytes, uint64_t *table_bytes, uint64_t *file_bytes);

/* Reads the sizes from a header: how many bytes st_save_parse needs. `bytes` has ST_SAVE_HEADER_BYTES. STRATA_FORMAT:
 * it is no such file, or its counts contradict the file's length. */
strata_status st_save_measure(const unsigned char *bytes, uint64_t file_bytes, uint64_t *table_bytes,
                              strata_error *error);

/* Checks and describes the first table_bytes of a file, which must outlive the description. */
strata_status st_save_parse(const unsigned char *bytes, uint64_t length, uint64_t file_bytes, st_save_file *out,
                            strata_error *error);

strata_token st_save_id(const st_save_file *file, uint64_t index); /* of all pages, in order */
st_digest st_save_page_digest(const st_save_file *file, uint32_t page);
uint64_t st_save_page_offset(const st_save_file *file, uint32_t page);
st_save_point st_save_point_at(const st_save_file *file, uint32_t point);

/* Writes header and tables to `out` [table_bytes]. `ids` is [page_count × page_tokens], `digests` [page_count],
 * `points` [point_count] in the order of the file, their offsets set. */
void st_save_write(const st_save_shape *shape, const strata_token *ids, const st_digest *digests,
                   const st_save_point *points, uint64_t table_bytes, uint64_t file_bytes, unsigned char *out);

/* Writes the digest of header and tables [table_bytes] to the header. */
void st_save_seal(unsigned char *bytes, uint64_t table_bytes);

/* The key of a prefix from that of its parent and the ids of its last page. */
st_digest st_save_key(st_digest parent, const strata_token *ids, uint32_t count);

#endif
