/* The index of saved state: the files of a folder, and which page or restore point of which file has a key. Pure
 * bookkeeping. Private to store.c. */
#ifndef ST_KV_STORE_INDEX_H
#define ST_KV_STORE_INDEX_H

#include "kv/save.h"

#define ST_INDEX_NONE UINT32_MAX

typedef struct st_index_file {
    char name[64];
    uint64_t bytes, used;  /* used: when, in the order of use */
    unsigned char *tables; /* owned; NULL: the file belongs to something else or is damaged, and only takes room */
    st_save_file file;     /* of the tables */
} st_index_file;

typedef struct st_index_row {
    st_digest key;
    uint32_t file, row; /* file ST_INDEX_NONE: empty */
    bool point;
} st_index_row;

/* Zero-initialise to create; st_index_free to destroy. */
typedef struct st_store_index {
    st_index_file *files; /* [file_count] */
    uint32_t file_count, file_room;
    st_index_row *rows;   /* [row_room], a power of two: open addressing by key */
    size_t row_count, row_room;
    uint64_t bytes;       /* of all files */
} st_store_index;

void st_index_free(st_store_index *index);

/* Takes over the tables. False: no memory, and nothing changes. A key that is there already keeps its place. */
bool st_index_add(st_store_index *index, const st_index_file *file);

/* The file with the page, or the point, that ends with the key; *row (may be NULL) is its number there. */
uint32_t st_index_find(const st_store_index *index, st_digest key, bool point, uint32_t *row);

uint32_t st_index_named(const st_store_index *index, const char *name);
uint32_t st_index_oldest(const st_store_index *index); /* the least recently used file */

/* Removes a file; the last one gets its number. */
void st_index_remove(st_store_index *index, uint32_t file);
/* Finds nothing in the file any more; it still takes room. */
void st_index_forget(st_store_index *index, uint32_t file);

#endif
