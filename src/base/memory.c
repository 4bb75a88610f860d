#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"

/* --- control groups: versions 1 and 2 ----------------------------------------------------------------------------- */

enum { TEXT_BYTES_MAX = 1 << 20, PATH_BYTES_MAX = 4096 };

/* The files of a version. */
typedef struct cgroup_version {
    const char *file_system, *controller; /* the mount's type, and the controller it must have ("": none is named) */
    const char *limit, *usage;            /* in bytes */
    const char *cache[2];                 /* fields of memory.stat: page cache that the kernel can reclaim */
    const char *hierarchical;             /* field of memory.stat: the smallest limit of the group and its ancestors */
} cgroup_version;

static const cgroup_version versions[] = {
    {"cgroup2", "", "memory.max", "memory.current", {"active_file", "inactive_file"}, "none"},
    {"cgroup", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_active_file", "total_inactive_file"},
     "hierarchical_memory_limit"},
};

/* The file ROOT/FOLDER/NAME as a string; NULL if it cannot be read. */
static const char *read_text(st_buf *text, const char *root, const char *folder, const char *name)
{
    char path[PATH_BYTES_MAX];
    text->length = 0;
    int length = snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    if (length < 0 || (size_t)length >= sizeof path) return NULL;
    if (st_file_read(path, TEXT_BYTES_MAX, text, NULL) != STRATA_OK || !st_buf_append_char(text, '\0')) return NULL;
    return text->data;
}

/* "max" is no number, and no limit. */
static bool parse_bytes(const char *text, uint64_t *out)
{
    char *end = NULL;
    if (!text || *text < '0' || *text > '9') return false;
    unsigned long long value = strtoull(text, &end, 10);
    if (*end != '\n' && *end != '\0') return false;
    *out = value;
    return true;
}

/* The value of the line "NAME VALUE"; `absent` without one. */
static uint64_t stat_field(const char *stat, const char *name, uint64_t absent)
{
    size_t length = strlen(name);
    for (const char *line = stat; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        uint64_t value;
        bool named = strncmp(line, name, length) == 0 && line[length] == ' ';
        if (named && parse_bytes(line + length + 1, &value)) return value;
    }
    return absent;
}

static bool list_has(const char *list, const char *item)
{
    size_t length = strlen(item);
    for (const char *at = list; length && (at = strstr(at, item)); at++)
        if ((at == list || at[-1] == ',') && strchr(",:\n ", at[length])) return true;
    return length == 0;
}

/* The process's path in the hierarchy: of the line "ID:CONTROLLERS:PATH". */
static bool find_path(const char *text, const cgroup_version *v, char out[PATH_BYTES_MAX])
{
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        const char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        bool unnamed = path == controllers + 1;
        if (*v->controller ? !list_has(controllers + 1, v->controller) : !unnamed) continue;
        snprintf(out, PATH_BYTES_MAX, "%.*s", (int)strcspn(path + 1, "\n"), path + 1);
        return out[0] == '/';
    }
    return false;
}

/* mountinfo writes blanks and backslashes as \ooo. */
static void unescape(char *path)
{
    char *to = path;
    for (const char *from = path; *from; to++) {
        bool escaped = *from == '\\' && strspn(from + 1, "01234567") >= 3;
        *to = escaped ? (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0')) : *from;
        from += escaped ? 4 : 1;
    }
    *to = '\0';
}

/* The hierarchy's mount: `top` is the group that the mount point shows. */
static bool find_mount(const char *text, const cgroup_version *v, char top[PATH_BYTES_MAX], char point[PATH_BYTES_MAX])
{
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        char type[32], options[1024];
        const char *dash = strstr(line, " - "), *end = strchr(line, '\n');
        if (!dash || (end && dash > end) || sscanf(dash, " - %31s %*s %1023s", type, options) != 2) continue;
        if (strcmp(type, v->file_system) != 0 || !list_has(options, v->controller)) continue;
        if (sscanf(line, "%*s %*s %*s %4095s %4095s", top, point) != 2) continue;
        unescape(top);
        unescape(point);
        return true;
    }
    return false;
}

static void apply_group(const char *root, const char *folder, const cgroup_version *v, st_buf *text, st_memory *memory)
{
    uint64_t limit = UINT64_MAX, used = 0;
    parse_bytes(read_text(text, root, folder, v->limit), &limit);
    parse_bytes(read_text(text, root, folder, v->usage), &used);
    const char *stat = read_text(text, root, folder, "memory.stat");
    uint64_t inherited = stat_field(stat, v->hierarchical, UINT64_MAX);
    uint64_t cache = stat_field(stat, v->cache[0], 0) + stat_field(stat, v->cache[1], 0);
    used -= cache < used ? cache : used;
    if (inherited < limit) limit = inherited;
    if (limit < memory->total_bytes) memory->total_bytes = limit;
    uint64_t left = limit > used ? limit - used : 0;
    if (left < memory->available_bytes) memory->available_bytes = left;
}

static void apply_version(const char *root, const cgroup_version *v, st_buf *text, st_memory *memory)
{
    char path[PATH_BYTES_MAX], top[PATH_BYTES_MAX], folder[2 * PATH_BYTES_MAX];
    const char *read = read_text(text, root, "/proc/self", "cgroup");
    if (!read || !find_path(read, v, path)) return;
    read = read_text(text, root, "/proc/self", "mountinfo");
    if (!read || !find_mount(read, v, top, folder)) return;
    /* A container without a namespace of its own sees its group as the mount, under its path on the host. A path
     * outside the namespace ("/..") has no folder here: the mount is all that can be seen. */
    size_t skip = strcmp(top, "/") == 0 ? 0 : strlen(top), base = strlen(folder);
    bool below = strncmp(path, top, skip) == 0 && (path[skip] == '/' || path[skip] == '\0') && !strstr(path, "/..");
    snprintf(folder + base, sizeof folder - base, "%s", below ? path + skip : "");
    size_t length = strlen(folder);
    while (length > base && folder[length - 1] == '/') folder[--length] = '\0';
    for (;;) {
        apply_group(root, folder, v, text, memory);
        if (length <= base) return;
        while (length > base && folder[--length] != '/') continue;
        folder[length] = '\0';
    }
}

void st_memory_limit(const char *root, st_memory *memory)
{
    st_buf text = {0};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) apply_version(root, &versions[i], &text, memory);
    st_buf_free(&text);
}

/* --- the host ----------------------------------------------------------------------------------------------------- */

/* A line such as "MemAvailable:   24043636 kB". */
static bool find_kib(const char *text, const char *name, uint64_t *bytes)
{
    const char *line = strstr(text, name);
    if (!line) return false;
    const char *digits = line + strlen(name);
    char *end = NULL;
    unsigned long long kib = strtoull(digits, &end, 10);
    if (end == digits || kib > UINT64_MAX / 1024) return false;
    *bytes = (uint64_t)kib * 1024;
    return true;
}

bool st_memory_read(const char *path, st_memory *out)
{
    st_buf buffer = {0};
    st_memory memory;
    const char *text = read_text(&buffer, "", "", path);
    bool found = text && find_kib(text, "MemTotal:", &memory.total_bytes) &&
                 find_kib(text, "MemAvailable:", &memory.available_bytes);
    st_buf_free(&buffer);
    if (found) *out = memory;
    return found;
}

st_memory st_memory_now(void)
{
    st_memory memory;
    if (!st_memory_read("/proc/meminfo", &memory)) {
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
        memory = (st_memory){(uint64_t)sysconf(_SC_PHYS_PAGES) * page, (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page};
    }
    st_memory_limit("", &memory);
    return memory;
}

uint64_t st_memory_probe_bytes(uint64_t cache_bytes, uint64_t available_bytes)
{
    const uint64_t least = (uint64_t)256 << 20, most = (uint64_t)4 << 30;
    uint64_t bytes = cache_bytes > most / 3 ? most : 3 * cache_bytes;
    if (bytes < least) bytes = least;
    return available_bytes / 4 < bytes ? available_bytes / 4 : bytes;
}

uint64_t st_memory_probe_bytes_now(void)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return st_memory_probe_bytes(cache > 0 ? (uint64_t)cache : 0, st_memory_now().available_bytes);
}
