/* src/kv/save.c, store_index.c and store.c: the file format, the index and the folder of saved state, with failed calls. */
#include "support/kit.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "kv/store.h"
#include "support/random.h"
#include "support/tree.h"

enum { TOKENS = 4, BYTES = 100, POINT = 33 };

static const st_digest identity = {{1, 2}};

static char folder[128];

static st_store_options options_of(uint64_t limit)
{
    snprintf(folder, sizeof folder, "%s/state", tree_root);
    return (st_store_options){.path = folder, .identity = identity, .page_tokens = TOKENS, .page_bytes = BYTES,
                              .limit_bytes = limit};
}

static st_store *open_store(uint64_t limit)
{
    st_store_options options = options_of(limit);
    st_store *store = NULL;
    strata_error error;
    if (st_store_open(&options, &store, &error) != STRATA_OK) fail_msg("%s", error.message);
    return store;
}

static void ids_of(uint32_t text, uint32_t page, strata_token ids[TOKENS])
{
    for (uint32_t i = 0; i < TOKENS; i++) ids[i] = (strata_token)(text * 1000 + page * TOKENS + i);
}

/* The key of the first `pages` of a text. */
static st_digest key_of(uint32_t text, uint32_t pages)
{
    st_digest key = identity;
    for (uint32_t i = 0; i < pages; i++) {
        strata_token ids[TOKENS];
        ids_of(text, i, ids);
        key = st_save_key(key, ids, TOKENS);
    }
    return key;
}

/* The bytes of a page depend on its number, which has the text in it. */
static void read_page(void *context, uint32_t page, unsigned char *out)
{
    (void)context;
    for (uint32_t i = 0; i < BYTES; i++) out[i] = (unsigned char)(page * 7 + i);
}

static const unsigned char point_bytes[POINT] = "the bytes of a restore point ...";

/* Queues the pages `first` to `end` − 1 of a text, with a restore point at the end. */
static void save(st_store *store, uint32_t text, uint32_t first, uint32_t end)
{
    st_store_job *job = st_store_job_new(store, end - first, 1);
    if (!job) return; /* a failed allocation is part of a test */
    job->first_page = first;
    job->read = read_page;
    for (uint32_t i = first; i < end; i++) {
        ids_of(text, i, job->ids + (i - first) * TOKENS);
        job->pages[i - first] = text * 100 + i;
    }
    for (uint32_t i = first; i <= end; i++) job->keys[i - first] = key_of(text, i);
    job->points[0] = (st_store_point){.page = end, .kind = 1, .data = point_bytes, .bytes = POINT};
    st_store_write(store, job);
}

static uint32_t free_done(st_store *store)
{
    uint32_t count = 0;
    for (st_store_job *job; (job = st_store_done(store)); count++) st_free(job);
    return count;
}

static void flush(st_store *store)
{
    st_store_flush(store);
    (void)free_done(store);
}

/* Whether the page can be read; wrong bytes fail the test. */
static bool reads(st_store *store, uint32_t text, uint32_t page)
{
    unsigned char found[BYTES], wanted[BYTES];
    strata_token ids[TOKENS];
    ids_of(text, page, ids);
    if (!st_store_read_page(store, key_of(text, page + 1), ids, found)) return false;
    read_page(NULL, text * 100 + page, wanted);
    assert_memory_equal(found, wanted, BYTES);
    return true;
}

static bool reads_point(st_store *store, uint32_t text, uint32_t page)
{
    unsigned char found[POINT];
    uint32_t kind = 0;
    if (st_store_point_bytes(store, key_of(text, page)) != POINT) return false;
    if (!st_store_read_point(store, key_of(text, page), &kind, found, POINT)) return false;
    assert_int_equal(kind, 1);
    assert_memory_equal(found, point_bytes, POINT);
    return true;
}

/* --- digests and the format --------------------------------------------------------------------------------------- */

static void digests_differ(void **state)
{
    (void)state;
    unsigned char bytes[100] = {0};
    st_digest zero = {{0}}, all = st_digest_add(zero, bytes, sizeof bytes);
    for (size_t length = 0; length < sizeof bytes; length++)
        assert_false(st_digest_equal(st_digest_add(zero, bytes, length), all));
    for (int i = 0; i < 800; i++) {
        bytes[i / 8] ^= (unsigned char)(1 << i % 8);
        assert_false(st_digest_equal(st_digest_add(zero, bytes, sizeof bytes), all));
        bytes[i / 8] ^= (unsigned char)(1 << i % 8);
    }
    assert_true(st_digest_equal(st_digest_add(zero, bytes, sizeof bytes), all));
    assert_false(st_digest_equal(st_digest_add(all, bytes, sizeof bytes), all));
    /* the same on every machine, and in every version that reads the same files */
    st_digest known = st_digest_add(zero, "strata", 6);
    assert_true(known.words[0] == 0x8313680e028fb465u && known.words[1] == 0xd2db8192cccbc0c0u);
}

typedef struct image {
    unsigned char bytes[4096];
    uint64_t table_bytes, file_bytes;
} image;

static image image_of(uint32_t pages, uint32_t points)
{
    image m = {0};
    st_save_shape shape = {.identity = identity, .parent = key_of(1, 2), .page_tokens = TOKENS, .first_page = 2,
                           .page_count = pages, .point_count = points, .page_bytes = BYTES};
    strata_token ids[8 * TOKENS];
    st_digest digests[8] = {{{0}}};
    st_save_point rows[8] = {{0}};
    for (uint32_t i = 0; i < pages; i++) ids_of(1, 2 + i, ids + i * TOKENS);
    assert_true(st_save_sizes(&shape, points * (uint64_t)POINT, &m.table_bytes, &m.file_bytes));
    for (uint32_t i = 0; i < points; i++)
        rows[i] = (st_save_point){.page = 2 + i, .offset = m.table_bytes + pages * (uint64_t)BYTES + i * POINT, .bytes = POINT};
    st_save_write(&shape, ids, digests, rows, m.table_bytes, m.file_bytes, m.bytes);
    return m;
}

static void a_written_table_is_parsed(void **state)
{
    (void)state;
    for (uint32_t pages = 0; pages < 5; pages++) {
        image m = image_of(pages, pages + 1);
        st_save_file file;
        strata_error error;
        if (st_save_parse(m.bytes, m.table_bytes, m.file_bytes, &file, &error) != STRATA_OK) fail_msg("%s", error.message);
        assert_int_equal(file.shape.first_page, 2);
        assert_int_equal(file.shape.page_count, pages);
        for (uint32_t i = 0; i < pages * TOKENS; i++) assert_int_equal(st_save_id(&file, i), 1000 + 2 * TOKENS + i);
        assert_int_equal(st_save_point_at(&file, pages).offset + POINT, m.file_bytes);
    }
}

/* No bit of the table may change, and no length. */
static void any_change_of_a_table_is_found(void **state)
{
    (void)state;
    image m = image_of(3, 2);
    st_save_file file;
    for (uint64_t i = 0; i < m.table_bytes * 8; i++) {
        m.bytes[i / 8] ^= (unsigned char)(1 << i % 8);
        strata_error error = {0};
        assert_int_equal(st_save_parse(m.bytes, m.table_bytes, m.file_bytes, &file, &error), STRATA_FORMAT);
        assert_true(error.message[0] != 0);
        m.bytes[i / 8] ^= (unsigned char)(1 << i % 8);
    }
    for (uint64_t length = 0; length < m.table_bytes; length++)
        assert_int_equal(st_save_parse(m.bytes, length, m.file_bytes, &file, NULL), STRATA_FORMAT);
    for (uint64_t bytes = 0; bytes < m.file_bytes + 10; bytes++)
        if (bytes != m.file_bytes) assert_int_equal(st_save_parse(m.bytes, m.table_bytes, bytes, &file, NULL), STRATA_FORMAT);
}

static void impossible_sizes_are_refused(void **state)
{
    (void)state;
    uint64_t table, file;
    st_save_shape shape = {.page_tokens = 64, .page_count = ST_SAVE_PAGES_MAX, .page_bytes = UINT64_MAX / 2};
    assert_false(st_save_sizes(&shape, 0, &table, &file));
    shape.page_bytes = 1;
    assert_true(st_save_sizes(&shape, 0, &table, &file));
    assert_false(st_save_sizes(&shape, UINT64_MAX - 5, &table, &file));
    shape.page_count++;
    assert_false(st_save_sizes(&shape, 0, &table, &file));
    shape = (st_save_shape){.page_tokens = 0, .page_count = 1, .page_bytes = 1};
    assert_false(st_save_sizes(&shape, 0, &table, &file));
}

/* --- the folder --------------------------------------------------------------------------------------------------- */

static void what_is_written_is_found_after_a_restart(void **state)
{
    (void)state;
    st_store *store = open_store(1 << 20);
    assert_false(st_store_has_page(store, key_of(1, 1)));
    save(store, 1, 0, 3);
    bool found = false; /* also while it is queued, but for the moment between the disk and the index */
    for (int i = 0; i < 1000 && !found; i++) {
        found = st_store_has_page(store, key_of(1, 3));
        if (!found) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    assert_true(found);
    save(store, 1, 3, 5);
    save(store, 1, 5, 5); /* a point alone: of the same name as nothing else */
    save(store, 2, 0, 1);
    for (int restart = 0; restart < 2; restart++) {
        flush(store);
        for (uint32_t i = 0; i < 5; i++) assert_true(reads(store, 1, i));
        assert_true(reads_point(store, 1, 3) && reads_point(store, 1, 5) && reads_point(store, 2, 1));
        assert_true(reads(store, 2, 0));
        assert_false(reads(store, 2, 1));
        assert_false(reads_point(store, 1, 2));
        strata_token ids[TOKENS];
        unsigned char page[BYTES];
        ids_of(2, 0, ids);
        assert_false(st_store_read_page(store, key_of(1, 1), ids, page)); /* ids are compared */
        assert_int_equal(st_store_count(store).pages, 6);
        st_store_close(store);
        store = open_store(1 << 20);
    }
    st_store_remove(store, key_of(1, 2));
    assert_false(reads(store, 1, 0));
    assert_true(reads(store, 1, 3));
    st_store_close(store);
}

static void the_least_recently_used_file_is_removed(void **state)
{
    (void)state;
    st_store *store = open_store(1 << 20);
    save(store, 1, 0, 2);
    flush(store);
    uint64_t one = st_store_count(store).bytes;
    st_store_close(store);
    store = open_store(3 * one);
    save(store, 2, 0, 2);
    save(store, 3, 0, 2);
    flush(store);
    assert_true(reads(store, 1, 0)); /* text 2 is now the oldest */
    save(store, 4, 0, 2);
    flush(store);
    assert_true(reads(store, 1, 0) && reads(store, 3, 0) && reads(store, 4, 0));
    assert_false(reads(store, 2, 0));
    save(store, 5, 0, 20); /* larger than the limit */
    flush(store);
    assert_false(reads(store, 5, 0));
    assert_true(st_store_count(store).bytes <= 3 * one);
    st_store_close(store);
    store = open_store(one); /* a smaller limit */
    assert_true(st_store_count(store).bytes <= one);
    st_store_close(store);
}

static void other_files_are_left_alone(void **state)
{
    (void)state;
    char path[256], link_path[256];
    st_store *store = open_store(1 << 20);
    save(store, 1, 0, 2);
    flush(store);
    st_store_close(store);
    tree_write("/state/notes.txt", "mine");
    tree_write("/state/picture.kv", "mine");
    tree_write("/state/0123456789abcdef0123456789abcdef-1.tmp", "a crash left this");
    tree_write("/state/0123456789abcdef0123456789abcdef-2.kv", "");
    snprintf(path, sizeof path, "%s/elsewhere", tree_root);
    snprintf(link_path, sizeof link_path, "%s/0123456789abcdef0123456789abcdef-3.kv", folder);
    tree_write("/elsewhere", "secret");
    assert_int_equal(symlink(path, link_path), 0);
    store = open_store(1); /* everything must go, but only the store's own files */
    assert_int_equal(st_store_count(store).files, 0);
    st_store_close(store);
    snprintf(path, sizeof path, "%s/notes.txt", folder);
    assert_int_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/picture.kv", folder);
    assert_int_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/0123456789abcdef0123456789abcdef-1.tmp", folder);
    assert_int_not_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/elsewhere", tree_root);
    assert_int_equal(access(path, F_OK), 0);
}

static void folders_that_cannot_be_used_are_refused(void **state)
{
    (void)state;
    st_store_options options = options_of(1);
    st_store *store = NULL;
    strata_error error;
    tree_write("/state", "a file");
    assert_int_equal(st_store_open(&options, &store, &error), STRATA_FILE);
    assert_int_equal(unlink(folder), 0);
    assert_int_equal(mkdir(folder, 0750), 0);
    assert_int_equal(st_store_open(&options, &store, &error), STRATA_FILE);
    assert_non_null(strstr(error.message, "0750"));
    options.path = "/no/such/place";
    assert_int_equal(st_store_open(&options, &store, &error), STRATA_FILE);
    assert_null(store);
}

static void jobs_are_cancelled(void **state)
{
    (void)state;
    st_store *store = open_store(1 << 30);
    assert_false(st_store_cancel(store));
    for (uint32_t i = 0; i < 50; i++) save(store, i, 0, 8);
    (void)st_store_cancel(store);
    assert_int_equal(free_done(store), 50);
    save(store, 77, 0, 2);
    flush(store);
    assert_true(reads(store, 77, 1));
    st_store_close(store);
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* Whatever call fails: nothing wrong is ever read, nothing leaks, and a restart works. */
static void failed_calls(st_fault_kind kind)
{
    uint32_t clean = 0;
    for (uint64_t n = 1; clean < 3 && n < 400; n++) {
        tree_remove(NULL);
        tree_make(NULL);
        st_store_options options = options_of(1 << 20);
        st_store *store = NULL;
        strata_error error = {0};
        st_fault_arm(kind, n, false);
        strata_status status = st_store_open(&options, &store, &error);
        if (status == STRATA_OK) {
            save(store, 1, 0, 3);
            flush(store);
            (void)reads(store, 1, 2);
            (void)reads_point(store, 1, 3);
            st_store_close(store);
        } else assert_true(error.message[0] != 0 && !store);
        clean += st_fault_calls(kind) < n;
        st_fault_arm(kind, 0, false);
        store = open_store(1 << 20);
        (void)reads(store, 1, 0);
        save(store, 1, 0, 3);
        flush(store);
        assert_true(reads(store, 1, 0) && reads_point(store, 1, 3));
        st_store_close(store);
    }
    assert_int_equal(clean, 3);
}

static void failed_file_calls(void **state)
{
    (void)state;
    failed_calls(ST_FAULT_FILE);
}

static void failed_allocations(void **state)
{
    (void)state;
    failed_calls(ST_FAULT_ALLOC);
}

#define IN_FOLDER(function) cmocka_unit_test_setup_teardown(function, tree_make, tree_remove)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_differ), cmocka_unit_test(a_written_table_is_parsed),
        cmocka_unit_test(any_change_of_a_table_is_found), cmocka_unit_test(impossible_sizes_are_refused),
        IN_FOLDER(what_is_written_is_found_after_a_restart), IN_FOLDER(the_least_recently_used_file_is_removed),
        IN_FOLDER(other_files_are_left_alone), IN_FOLDER(folders_that_cannot_be_used_are_refused),
        IN_FOLDER(jobs_are_cancelled), IN_FOLDER(failed_file_calls), IN_FOLDER(failed_allocations),
    };
    return kit_run("store", tests, sizeof tests / sizeof *tests, NULL, NULL, argc, argv);
}
