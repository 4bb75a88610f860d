#include "kv/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/fault.h"
#include "base/log.h"
#include "kv/store_index.h"

enum { NAME_BYTES = 64, TABLE_MOST = 1 << 30, NICER = 10 };
#define ENDING ".kv"
#define TEMPORARY ".tmp"

struct st_store {
    st_store_options options;
    char *path;
    int folder;
    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread, closing;
    st_store_index index;
    uint64_t clock;         /* counts uses of files */
    st_store_job *queue, **queue_end, *done;
    st_store_job *writing;  /* NULL: none */
    bool syncing;           /* all bytes of a job are written, and the file is being synced */
    atomic_bool cancelled;  /* the job being written is given up */
    unsigned char *page;    /* [page_bytes]: of the writer */
    bool told_full;
};

/* --- system calls, any of which a test can make fail -------------------------------------------------------------- */

static bool must_fail(void)
{
    if (!st_fault_hit(ST_FAULT_FILE)) return false;
    errno = EIO;
    return true;
}

static bool write_all(int fd, const void *bytes, size_t length)
{
    const unsigned char *at = bytes;
    while (length > 0) {
        ssize_t written = must_fail() ? -1 : write(fd, at, length);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        at += written;
        length -= (size_t)written;
    }
    return true;
}

static bool read_all(int fd, void *bytes, size_t length, uint64_t offset)
{
    unsigned char *at = bytes;
    while (length > 0) {
        ssize_t got = must_fail() ? -1 : pread(fd, at, length, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        offset += (uint64_t)got;
        length -= (size_t)got;
    }
    return true;
}

/* --- the folder --------------------------------------------------------------------------------------------------- */

static strata_status refuse_folder(const st_store *store, const char *what, strata_error *error)
{
    return st_error_set(error, STRATA_FILE, NULL, "options.kv_save: %s: cannot %s: %s", store->path, what,
                        strerror(errno));
}

static strata_status open_folder(st_store *store, strata_error *error)
{
    struct stat info;
    if (mkdir(store->path, 0700) != 0 && errno != EEXIST) return refuse_folder(store, "make the folder", error);
    store->folder = must_fail() ? -1 : open(store->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (store->folder < 0) return refuse_folder(store, "open the folder", error);
    if (must_fail() || fstat(store->folder, &info) != 0) return refuse_folder(store, "stat the folder", error);
    if (info.st_uid != geteuid())
        return st_error_set(error, STRATA_FILE, "use a folder of your own",
                            "options.kv_save: %s: the folder belongs to another user", store->path);
    if (info.st_mode & 077)
        return st_error_set(error, STRATA_FILE, "run chmod 700 on the folder, or use another one",
                            "options.kv_save: %s: expected rights 0700, since the files hold private prompts; "
                            "found %04o", store->path, (unsigned)(info.st_mode & 07777));
    if (flock(store->folder, LOCK_EX | LOCK_NB) != 0)
        return st_error_set(error, STRATA_FILE, "use another folder",
                            "options.kv_save: %s: another process uses the folder", store->path);
    return STRATA_OK;
}

static bool ends_with(const char *name, const char *ending)
{
    size_t length = strlen(name), end = strlen(ending);
    return length > end && strcmp(name + length - end, ending) == 0;
}

/* Whether the store could have made a file of this name: only such files are ever removed. */
static bool is_own_name(const char *name, const char *ending)
{
    size_t hex = strspn(name, "0123456789abcdef-");
    return hex >= 32 && hex < NAME_BYTES - 8 && strcmp(name + hex, ending) == 0;
}

/* --- reading the index -------------------------------------------------------------------------------------------- */

/* Reads and checks header and tables. *bytes is then the caller's to free. */
static strata_status read_tables(int fd, uint64_t file_bytes, unsigned char **bytes, st_save_file *out,
                                 strata_error *error)
{
    unsigned char header[ST_SAVE_HEADER_BYTES];
    uint64_t length = 0;
    if (file_bytes < sizeof header || !read_all(fd, header, sizeof header, 0))
        return st_error_set(error, STRATA_FORMAT, NULL, "the file is too short, or cannot be read");
    strata_status status = st_save_measure(header, file_bytes, &length, error);
    if (status != STRATA_OK) return status;
    *bytes = length <= TABLE_MOST ? st_alloc((size_t)length) : NULL;
    if (!*bytes) return st_error_memory(error, (size_t)length, "the index of saved state");
    if (!read_all(fd, *bytes, (size_t)length, 0))
        status = st_error_set(error, STRATA_FORMAT, NULL, "the file cannot be read");
    if (status == STRATA_OK) status = st_save_parse(*bytes, length, file_bytes, out, error);
    if (status == STRATA_OK) return STRATA_OK;
    st_free(*bytes);
    *bytes = NULL;
    return status;
}

static bool is_foreign(const st_store *store, const st_save_shape *shape)
{
    return !st_digest_equal(shape->identity, store->options.identity) ||
           shape->page_tokens != store->options.page_tokens || shape->page_bytes != store->options.page_bytes;
}

/* Adds one file of the folder to the index. Returns false if it belongs to something else. */
static bool add_file(st_store *store, const char *name)
{
    struct stat info;
    unsigned char *tables = NULL;
    st_save_file file;
    strata_error error = {0};
    bool foreign = false;
    int fd = must_fail() ? -1 : openat(store->folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid() || info.st_mode & 077) {
        st_log(ST_LOG_NOTE, "%s/%s: expected a regular file with rights 0600 of this user: ignored", store->path, name);
        if (fd >= 0) close(fd);
        return true;
    }
    st_index_file row = {.bytes = (uint64_t)info.st_size, .used = (uint64_t)info.st_mtime};
    snprintf(row.name, sizeof row.name, "%s", name);
    strata_status status = read_tables(fd, row.bytes, &tables, &file, &error);
    close(fd);
    if (status != STRATA_OK) st_log(ST_LOG_NOTE, "%s/%s: %s: ignored", store->path, name, error.message);
    else {
        foreign = is_foreign(store, &file.shape);
        row.tables = tables;
        row.file = file;
    }
    if (foreign) {
        st_free(tables);
        row.tables = NULL;
    }
    if (!st_index_add(&store->index, &row)) st_free(row.tables);
    return !foreign;
}

static strata_status read_index(st_store *store, strata_error *error)
{
    int copy = dup(store->folder);
    DIR *folder = copy >= 0 && !must_fail() ? fdopendir(copy) : NULL;
    if (!folder) {
        if (copy >= 0) close(copy);
        return refuse_folder(store, "list the folder", error);
    }
    uint32_t foreign = 0;
    const struct dirent *entry;
    while ((entry = readdir(folder))) {
        if (is_own_name(entry->d_name, TEMPORARY)) unlinkat(store->folder, entry->d_name, 0);
        else if (is_own_name(entry->d_name, ENDING)) foreign += !add_file(store, entry->d_name);
        else if (ends_with(entry->d_name, ENDING))
            st_log(ST_LOG_NOTE, "%s/%s: not a file of saved state: ignored", store->path, entry->d_name);
    }
    closedir(folder);
    if (foreign)
        st_log(ST_LOG_NOTE, "%s: %" PRIu32 " files belong to other models or options: ignored", store->path, foreign);
    for (uint32_t i = 0; i < store->index.file_count; i++)
        if (store->index.files[i].used > store->clock) store->clock = store->index.files[i].used;
    return STRATA_OK;
}

/* --- removal ------------------------------------------------------------------------------------------------------ */

static void remove_file(st_store *store, uint32_t file)
{
    (void)unlinkat(store->folder, store->index.files[file].name, 0);
    st_index_remove(&store->index, file);
}

/* Removes the least recently used files until `bytes` more fit. False: more than the limit. */
static bool make_room(st_store *store, uint64_t bytes)
{
    if (bytes > store->options.limit_bytes) return false;
    while (store->index.bytes > store->options.limit_bytes - bytes) {
        uint32_t oldest = st_index_oldest(&store->index);
        if (oldest == ST_INDEX_NONE) return false;
        remove_file(store, oldest);
    }
    return true;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

typedef struct writing {
    st_store *store;
    const st_store_job *job; /* until it is given back */
    st_save_shape shape;
    uint64_t table_bytes, file_bytes;
    unsigned char *tables;
    st_digest *digests;
    st_save_point *points;
    char name[NAME_BYTES], temporary[NAME_BYTES];
    bool given_up; /* the job was cancelled */
} writing;

static void name_file(writing *w)
{
    const st_store_job *job = w->job;
    st_digest end = job->keys[job->page_count];
    int length = snprintf(w->name, sizeof w->name, "%016" PRIx64 "%016" PRIx64 "-%x", end.words[0], end.words[1],
                          job->page_count);
    snprintf(w->temporary, sizeof w->temporary, "%.*s%s", length, w->name, TEMPORARY);
    snprintf(w->name + length, sizeof w->name - (size_t)length, "%s", ENDING);
}

static bool measure(writing *w)
{
    const st_store_job *job = w->job;
    const st_store_options *o = &w->store->options;
    uint64_t points = 0;
    w->shape = (st_save_shape){.identity = o->identity, .parent = job->keys[0], .page_tokens = o->page_tokens,
                               .first_page = job->first_page, .page_count = job->page_count,
                               .point_count = job->point_count, .page_bytes = o->page_bytes};
    for (uint32_t i = 0; i < job->point_count; i++) points += job->points[i].bytes;
    if (!st_save_sizes(&w->shape, points, &w->table_bytes, &w->file_bytes)) return false;
    w->tables = st_alloc((size_t)w->table_bytes);
    w->digests = st_alloc_array(job->page_count, sizeof *w->digests);
    w->points = st_alloc_array(job->point_count, sizeof *w->points);
    name_file(w);
    return w->tables && w->digests && w->points;
}

static bool is_cancelled(writing *w)
{
    w->given_up = w->given_up || atomic_load(&w->store->cancelled);
    return w->given_up;
}

/* Pages and points, then the tables, which have their digests. */
static bool write_bytes(writing *w, int fd)
{
    st_store *store = w->store;
    const st_store_job *job = w->job;
    uint64_t at = w->table_bytes + job->page_count * w->shape.page_bytes;
    if (must_fail() || lseek(fd, (off_t)w->table_bytes, SEEK_SET) < 0) return false;
    for (uint32_t i = 0; i < job->page_count; i++) {
        if (is_cancelled(w)) return false;
        job->read(job->context, job->pages[i], store->page);
        w->digests[i] = st_digest_add((st_digest){{0}}, store->page, store->options.page_bytes);
        if (!write_all(fd, store->page, store->options.page_bytes)) return false;
    }
    for (uint32_t i = 0; i < job->point_count; i++) {
        const st_store_point *p = &job->points[i];
        if (is_cancelled(w)) return false;
        w->points[i] = (st_save_point){.page = p->page, .kind = p->kind, .offset = at, .bytes = p->bytes,
                                       .digest = st_digest_add((st_digest){{0}}, p->data, p->bytes)};
        if (!write_all(fd, p->data, p->bytes)) return false;
        at += p->bytes;
    }
    st_save_write(&w->shape, job->ids, w->digests, w->points, w->table_bytes, w->file_bytes, w->tables);
    if (must_fail() || lseek(fd, 0, SEEK_SET) != 0) return false;
    return write_all(fd, w->tables, (size_t)w->table_bytes);
}

/* The job's bytes are no longer needed: the caller may have its pages back while the disk is still busy. */
static void give_back(st_store *store, bool syncing)
{
    pthread_mutex_lock(&store->lock);
    st_store_job *job = store->writing;
    if (job) {
        job->next = store->done;
        store->done = job;
    }
    store->writing = NULL;
    store->syncing = syncing;
    pthread_cond_broadcast(&store->changed);
    pthread_mutex_unlock(&store->lock);
}

static bool write_file(writing *w)
{
    st_store *store = w->store;
    int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC;
    int fd = must_fail() ? -1 : openat(store->folder, w->temporary, flags, 0600);
    if (fd < 0) return false;
    bool written = write_bytes(w, fd);
    give_back(store, true);
    written = written && !must_fail() && fdatasync(fd) == 0;
    written = close(fd) == 0 && written;
    written = written && !must_fail() && renameat(store->folder, w->temporary, store->folder, w->name) == 0;
    if (!written) unlinkat(store->folder, w->temporary, 0);
    return written;
}

/* Adds the written file to the index. The lock is held. */
static void index_written(writing *w)
{
    st_index_file row = {.bytes = w->file_bytes, .used = ++w->store->clock, .tables = w->tables};
    memcpy(row.name, w->name, sizeof row.name);
    if (st_save_parse(w->tables, w->table_bytes, w->file_bytes, &row.file, NULL) != STRATA_OK) return;
    uint32_t same = st_index_named(&w->store->index, w->name);
    if (same != ST_INDEX_NONE) st_index_remove(&w->store->index, same);
    if (st_index_add(&w->store->index, &row)) w->tables = NULL;
}

static void write_job(st_store *store, const st_store_job *job)
{
    writing w = {.store = store, .job = job};
    bool measured = measure(&w);
    pthread_mutex_lock(&store->lock);
    bool room = measured && make_room(store, w.file_bytes);
    if (measured && !room && !store->told_full) {
        st_log(ST_LOG_NOTE, "%s: state of %" PRIu64 " bytes is larger than the limit: not saved", store->path,
               w.file_bytes);
        store->told_full = true;
    }
    pthread_mutex_unlock(&store->lock);
    bool written = room && write_file(&w);
    if (room && !written && !w.given_up)
        st_log(ST_LOG_NOTE, "%s: writing saved state failed: %s", store->path, strerror(errno));
    pthread_mutex_lock(&store->lock);
    if (written) index_written(&w);
    pthread_mutex_unlock(&store->lock);
    st_free(w.tables);
    st_free(w.digests);
    st_free(w.points);
}

/* The writer gets a tenth of a core that others want, too: on Linux the priority is the thread's own. Less than that, and
 * a busy machine would keep the program from ending. */
static void *run_writer(void *context)
{
    st_store *store = context;
    (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + NICER);
    pthread_mutex_lock(&store->lock);
    for (;;) {
        while (!store->queue && !store->closing) pthread_cond_wait(&store->changed, &store->lock);
        st_store_job *job = store->writing = store->queue;
        if (!job) break;
        store->queue = job->next;
        if (!store->queue) store->queue_end = &store->queue;
        pthread_mutex_unlock(&store->lock);
        if (!atomic_load(&store->cancelled)) write_job(store, job);
        give_back(store, false);
        pthread_mutex_lock(&store->lock);
    }
    pthread_mutex_unlock(&store->lock);
    return NULL;
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

strata_status st_store_open(const st_store_options *options, st_store **out, strata_error *error)
{
    st_store *store = st_alloc_zero(1, sizeof *store);
    if (!store) return st_error_memory(error, sizeof *store, "saved state");
    store->options = *options;
    store->folder = -1;
    store->queue_end = &store->queue;
    pthread_mutex_init(&store->lock, NULL);
    pthread_cond_init(&store->changed, NULL);
    store->path = st_strndup(options->path, strlen(options->path));
    store->page = st_alloc(options->page_bytes ? options->page_bytes : 1);
    strata_status status = STRATA_OK;
    if (!store->path || !store->page) status = st_error_memory(error, options->page_bytes, "saved state");
    if (status == STRATA_OK) status = open_folder(store, error);
    if (status == STRATA_OK) status = read_index(store, error);
    if (status == STRATA_OK) {
        (void)make_room(store, 0);
        store->has_thread = pthread_create(&store->thread, NULL, run_writer, store) == 0;
        if (!store->has_thread)
            status = st_error_set(error, STRATA_RUNTIME, NULL, "cannot start the thread that saves state");
    }
    if (status != STRATA_OK) st_store_close(store);
    else *out = store;
    return status;
}

void st_store_close(st_store *store)
{
    if (!store) return;
    pthread_mutex_lock(&store->lock);
    store->closing = true;
    pthread_cond_broadcast(&store->changed);
    pthread_mutex_unlock(&store->lock);
    if (store->has_thread) pthread_join(store->thread, NULL);
    for (st_store_job *job; (job = store->done);) {
        store->done = job->next;
        st_free(job);
    }
    if (store->folder >= 0) close(store->folder);
    st_index_free(&store->index);
    pthread_cond_destroy(&store->changed);
    pthread_mutex_destroy(&store->lock);
    st_free(store->page);
    st_free(store->path);
    st_free(store);
}

/* --- jobs --------------------------------------------------------------------------------------------------------- */

st_store_job *st_store_job_new(const st_store *store, uint32_t page_count, uint32_t point_count)
{
    size_t ids = (size_t)page_count * store->options.page_tokens * sizeof(strata_token);
    size_t points = point_count * sizeof(st_store_point), pages = page_count * sizeof(uint32_t);
    size_t keys = ((size_t)page_count + 1) * sizeof(st_digest);
    st_store_job *job = st_alloc(sizeof *job + points + keys + ids + pages);
    if (!job) return NULL;
    *job = (st_store_job){.page_count = page_count, .point_count = point_count};
    job->points = (st_store_point *)(void *)(job + 1);
    job->keys = (st_digest *)(void *)(job->points + point_count);
    job->ids = (strata_token *)(void *)(job->keys + page_count + 1);
    job->pages = (uint32_t *)(void *)(job->ids + (size_t)page_count * store->options.page_tokens);
    return job;
}

void st_store_write(st_store *store, st_store_job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&store->lock);
    *store->queue_end = job;
    store->queue_end = &job->next;
    pthread_cond_broadcast(&store->changed);
    pthread_mutex_unlock(&store->lock);
}

st_store_job *st_store_done(st_store *store)
{
    pthread_mutex_lock(&store->lock);
    st_store_job *job = store->done;
    if (job) store->done = job->next;
    pthread_mutex_unlock(&store->lock);
    return job;
}


bool st_store_cancel(st_store *store)
{
    pthread_mutex_lock(&store->lock);
    bool any = store->queue || store->writing;
    atomic_store(&store->cancelled, true);
    while (store->queue || store->writing) pthread_cond_wait(&store->changed, &store->lock);
    atomic_store(&store->cancelled, false);
    pthread_mutex_unlock(&store->lock);
    return any;
}

void st_store_flush(st_store *store)
{
    pthread_mutex_lock(&store->lock);
    while (store->queue || store->writing || store->syncing) pthread_cond_wait(&store->changed, &store->lock);
    pthread_mutex_unlock(&store->lock);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Whether a job that is not written yet has the page, or the point, at this key. */
static bool job_has(const st_store_job *job, st_digest key, bool point)
{
    uint32_t i = point ? 0 : 1;
    while (i <= job->page_count && !st_digest_equal(job->keys[i], key)) i++;
    if (i > job->page_count || !point) return i <= job->page_count;
    uint32_t k = 0;
    while (k < job->point_count && job->points[k].page != job->first_page + i) k++;
    return k < job->point_count;
}

static bool has(st_store *store, st_digest key, bool point)
{
    pthread_mutex_lock(&store->lock);
    bool found = st_index_find(&store->index, key, point, NULL) != ST_INDEX_NONE;
    if (!found && store->writing) found = job_has(store->writing, key, point);
    for (const st_store_job *job = store->queue; job && !found; job = job->next) found = job_has(job, key, point);
    pthread_mutex_unlock(&store->lock);
    return found;
}

bool st_store_has_page(st_store *store, st_digest key)
{
    return has(store, key, false);
}

bool st_store_has_point(st_store *store, st_digest key)
{
    return has(store, key, true);
}

/* Reads bytes of a file and compares their digest. A file that fails is ignored from then on. The lock is held. */
static bool read_checked(st_store *store, uint32_t file, uint64_t offset, void *out, size_t bytes, st_digest expected)
{
    st_index_file *row = &store->index.files[file];
    int fd = must_fail() ? -1 : openat(store->folder, row->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    bool right = fd >= 0 && read_all(fd, out, bytes, offset) &&
                 st_digest_equal(st_digest_add((st_digest){{0}}, out, bytes), expected);
    if (right) {
        row->used = ++store->clock;
        (void)futimens(fd, NULL); /* the next start knows which files were used last */
    }
    if (fd >= 0) close(fd);
    if (right) return true;
    st_log(ST_LOG_NOTE, "%s/%s: the file is damaged or cannot be read: ignored", store->path, row->name);
    st_index_forget(&store->index, file);
    return false;
}

bool st_store_read_page(st_store *store, st_digest key, const strata_token *ids, void *out)
{
    uint32_t row, tokens = store->options.page_tokens;
    pthread_mutex_lock(&store->lock);
    uint32_t file = st_index_find(&store->index, key, false, &row);
    bool read = file != ST_INDEX_NONE;
    const st_save_file *saved = read ? &store->index.files[file].file : NULL;
    for (uint32_t i = 0; read && i < tokens; i++) read = st_save_id(saved, (uint64_t)row * tokens + i) == ids[i];
    if (read)
        read = read_checked(store, file, st_save_page_offset(saved, row), out, store->options.page_bytes,
                            st_save_page_digest(saved, row));
    pthread_mutex_unlock(&store->lock);
    return read;
}

size_t st_store_point_bytes(st_store *store, st_digest key)
{
    uint32_t row;
    pthread_mutex_lock(&store->lock);
    uint32_t file = st_index_find(&store->index, key, true, &row);
    size_t bytes = file == ST_INDEX_NONE ? 0 : (size_t)st_save_point_at(&store->index.files[file].file, row).bytes;
    pthread_mutex_unlock(&store->lock);
    return bytes;
}

bool st_store_read_point(st_store *store, st_digest key, uint32_t *kind, void *out, size_t bytes)
{
    uint32_t row;
    pthread_mutex_lock(&store->lock);
    uint32_t file = st_index_find(&store->index, key, true, &row);
    bool read = file != ST_INDEX_NONE;
    st_save_point point = {0};
    if (read) point = st_save_point_at(&store->index.files[file].file, row);
    read = read && point.bytes == bytes && read_checked(store, file, point.offset, out, bytes, point.digest);
    if (read) *kind = point.kind;
    pthread_mutex_unlock(&store->lock);
    return read;
}

void st_store_remove(st_store *store, st_digest key)
{
    pthread_mutex_lock(&store->lock);
    for (int point = 0; point < 2; point++) {
        uint32_t file = st_index_find(&store->index, key, point, NULL);
        if (file != ST_INDEX_NONE) remove_file(store, file);
    }
    pthread_mutex_unlock(&store->lock);
}

st_store_use st_store_count(st_store *store)
{
    pthread_mutex_lock(&store->lock);
    st_store_use use = {.bytes = store->index.bytes};
    for (uint32_t i = 0; i < store->index.file_count; i++) {
        const st_index_file *row = &store->index.files[i];
        if (!row->tables) continue;
        use.files++;
        use.pages += row->file.shape.page_count;
        use.points += row->file.shape.point_count;
    }
    pthread_mutex_unlock(&store->lock);
    return use;
}
