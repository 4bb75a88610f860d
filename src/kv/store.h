/* A folder of saved conversation state (save.h): an index of all its files, a thread that writes, and a limit in
 * bytes, within which the least recently used files are removed. Owns the folder while it is open: other processes
 * are refused. The files hold private prompts: the folder has rights 0700 and the files 0600. Knows keys and bytes;
 * knows no device, no page of memory and no model. Calls are safe from any thread.
 *
 * A file is written under another name, synced and renamed, so a crash leaves whole files and temporary ones, which
 * the next start removes. The folder itself is not synced: after a power failure a new file may be missing. Files
 * that are damaged or belong to another model are ignored. */
#ifndef ST_KV_STORE_H
#define ST_KV_STORE_H

#include <stdatomic.h>

#include "kv/save.h"

typedef struct st_store st_store;

typedef struct st_store_options {
    const char *path;
    st_digest identity;    /* of what the state belongs to */
    uint32_t page_tokens;
    size_t page_bytes;
    uint64_t limit_bytes;  /* of all files */
} st_store_options;

/* Makes the folder if it does not exist, and reads the index, but no page. STRATA_FILE: the folder cannot be used,
 * belongs to another user, has wider rights or is in use. */
strata_status st_store_open(const st_store_options *options, st_store **out, strata_error *error);
/* Writes what is queued. The caller has called st_store_done until it returned NULL for queued jobs, or frees them. */
void st_store_close(st_store *store);

/* Whether the page that ends with this key, or a restore point there, is saved or queued. */
bool st_store_has_page(st_store *store, st_digest key);
bool st_store_has_point(st_store *store, st_digest key);

/* Reads and checks a page with these ids [page_tokens] to `out` [page_bytes]. False: not found, or damaged; a damaged
 * file is then ignored. */
bool st_store_read_page(st_store *store, st_digest key, const strata_token *ids, void *out);

/* The bytes of a saved point; 0: none. */
size_t st_store_point_bytes(st_store *store, st_digest key);
bool st_store_read_point(st_store *store, st_digest key, uint32_t *kind, void *out, size_t bytes);

/* Removes the files that have the page, or a point, at this key: its rows are broken. */
void st_store_remove(st_store *store, st_digest key);

/* --- writing ------------------------------------------------------------------------------------------------------ */

typedef struct st_store_point {
    uint32_t page, kind; /* as st_save_point */
    const void *data;
    size_t bytes;
    uint32_t number; /* the caller's */
} st_store_point;

/* State to write: pages first_page … of a conversation, and points. Lives in one allocation (st_store_job_new). The
 * bytes must not change until st_store_done returns the job. */
typedef struct st_store_job {
    uint32_t first_page, page_count, point_count;
    st_digest *keys;       /* [page_count + 1]: the parent's, then those of the ends of the pages */
    strata_token *ids;     /* [page_count × page_tokens] */
    uint32_t *pages;       /* [page_count]: the caller's numbers, for `read` */
    st_store_point *points; /* [point_count] */
    /* Writes a page's bytes to `out`; called on the writer's thread. */
    void (*read)(void *context, uint32_t page, unsigned char *out);
    void *context;
    struct st_store_job *next;
} st_store_job;

/* NULL: no memory. */
st_store_job *st_store_job_new(const st_store *store, uint32_t page_count, uint32_t point_count);
/* Queues a job, which the store owns until st_store_done. */
void st_store_write(st_store *store, st_store_job *job);
/* A job that was written, failed or was cancelled, for the caller to free (st_free); NULL: none. */
st_store_job *st_store_done(st_store *store);
/* Gives up all queued jobs, and the one being written after its current page. Returns when no job is left; false:
 * none was there. */
bool st_store_cancel(st_store *store);
/* Waits until all queued jobs are written. */
void st_store_flush(st_store *store);

typedef struct st_store_use {
    uint32_t files, pages, points; /* of this identity */
    uint64_t bytes;                /* of all files */
} st_store_use;

st_store_use st_store_count(st_store *store);

#endif
