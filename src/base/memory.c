#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Files of the system are optional: they are read without base/file.h, whose injected failures are errors. */
enum { PATH_BYTES_MAX = 4096, LINE_BYTES_MAX = 3 * PATH_BYTES_MAX };

static FILE *open_text(const char *root, const char *folder, const char *name)
{
    char path[2 * PATH_BYTES_MAX];
    int length = snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    return length < 0 || (size_t)length >= sizeof path ? NULL : fopen(path, "re");
}

/* ---- control groups: versions 1 and 2 -------------------------------------------------------------------------- */

/* The files of a version. */
typedef struct cgroup_version {
    const char *file_system, *controller; /* the mount's type, and the controller it must have ("": none is named) */
    const char *limit, *usage;            /* in bytes */
    const char *cache[2];                 /* fields of memory.stat: page cache that the kernel can reclaim */
    const char *hierarchical; /* field of memory.stat: the smallest limit of the group and its ancestors ("": none) */
} cgroup_version;

static const cgroup_version versions[] = {
    {"cgroup2", "", "memory.max", "memory.current", {"active_file", "inactive_file"}, ""},
    {"cgroup", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     {"total_active_file", "total_inactive_file"}, "hierarchical_memory_limit"},
};

/* "max" is no number, and no limit. */
static bool parse_bytes(const char *text, uint64_t *out)
{
    char *end = NULL;
    if (*text < '0' || *text > '9') return false;
    unsigned long long value = strtoull(text, &end, 10);
    if (*end != '\n' && *end != '\0') return false;
    *out = value;
    return true;
}

/* A file that holds one number; does not write *out if there is none. */
static void read_number(const char *root, const char *folder, const char *name, uint64_t *out)
{
    char line[64];
    FILE *file = open_text(root, folder, name);
    if (!file) return;
    if (fgets(line, sizeof line, file)) parse_bytes(line, out);
    fclose(file);
}

/* The value of the line "NAME VALUE" in memory.stat; `absent` without one. */
static uint64_t read_stat(const char *root, const char *folder, const char *name, uint64_t absent)
{
    char line[256];
    uint64_t value = absent;
    size_t length = strlen(name);
    FILE *file = length ? open_text(root, folder, "memory.stat") : NULL;
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, length) == 0 && line[length] == ' ' && parse_bytes(line + length + 1, &value)) break;
    if (file) fclose(file);
    return value;
}

static bool list_has(const char *list, const char *item)
{
    size_t length = strlen(item);
    for (const char *at = list; length && (at = strstr(at, item)); at++)
        if ((at == list || at[-1] == ',') && strchr(",:\n ", at[length])) return true;
    return length == 0;
}

/* The place of the process in a hierarchy. */
typedef struct cgroup_place {
    char path[PATH_BYTES_MAX];
    char top[PATH_BYTES_MAX];       /* the group that the mount point shows */
    char folder[2 * PATH_BYTES_MAX]; /* the mount point */
} cgroup_place;

/* The process's path in the hierarchy, of the line "ID:CONTROLLERS:PATH". */
static bool parse_path(const char *line, const cgroup_version *v, cgroup_place *out)
{
    const char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path) return false;
    bool unnamed = path == controllers + 1;
    if (*v->controller ? !list_has(controllers + 1, v->controller) : !unnamed) return false;
    snprintf(out->path, sizeof out->path, "%.*s", (int)strcspn(path + 1, "\n"), path + 1);
    return out->path[0] == '/';
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

/* A line of mountinfo, if it is the mount of the hierarchy. */
static bool parse_mount(const char *line, const cgroup_version *v, cgroup_place *out)
{
    char type[32], options[1024];
    const char *dash = strstr(line, " - ");
    if (!dash || sscanf(dash, " - %31s %*s %1023s", type, options) != 2) return false;
    if (strcmp(type, v->file_system) != 0 || !list_has(options, v->controller)) return false;
    if (sscanf(line, "%*s %*s %*s %4095s %4095s", out->top, out->folder) != 2) return false;
    unescape(out->top);
    unescape(out->folder);
    return true;
}

/* Parses the lines of a file in /proc/self up to the first that `parse` accepts. */
static bool find_line(const char *root, const char *name, const cgroup_version *v, cgroup_place *place,
                      bool (*parse)(const char *line, const cgroup_version *v, cgroup_place *out))
{
    char line[LINE_BYTES_MAX];
    bool found = false;
    FILE *file = open_text(root, "/proc/self", name);
    while (file && !found && fgets(line, sizeof line, file)) found = parse(line, v, place);
    if (file) fclose(file);
    return found;
}

static void apply_group(const char *root, const char *folder, const cgroup_version *v, st_memory *memory)
{
    uint64_t limit = UINT64_MAX, used = 0;
    read_number(root, folder, v->limit, &limit);
    read_number(root, folder, v->usage, &used);
    uint64_t inherited = read_stat(root, folder, v->hierarchical, UINT64_MAX);
    uint64_t cache = read_stat(root, folder, v->cache[0], 0) + read_stat(root, folder, v->cache[1], 0);
    used -= cache < used ? cache : used;
    if (inherited < limit) limit = inherited;
    if (limit < memory->total_bytes) memory->total_bytes = limit;
    uint64_t left = limit > used ? limit - used : 0;
    if (left < memory->available_bytes) memory->available_bytes = left;
}

static void apply_version(const char *root, const cgroup_version *v, st_memory *memory)
{
    cgroup_place place;
    if (!find_line(root, "cgroup", v, &place, parse_path)) return;
    if (!find_line(root, "mountinfo", v, &place, parse_mount)) return;
    char *path = place.path, *folder = place.folder;
    /* A container without its own cgroup namespace sees its group as the mount, under its path on the host. A path
     * outside the namespace ("/..") has no folder: only the mount can be seen. */
    size_t skip = strcmp(place.top, "/") == 0 ? 0 : strlen(place.top), base = strlen(folder);
    bool below = strncmp(path, place.top, skip) == 0 && (path[skip] == '/' || path[skip] == '\0') &&
                 !strstr(path, "/..");
    snprintf(folder + base, sizeof place.folder - base, "%s", below ? path + skip : "");
    size_t length = strlen(folder);
    while (length > base && folder[length - 1] == '/') folder[--length] = '\0';
    for (;;) {
        apply_group(root, folder, v, memory);
        if (length <= base) return;
        while (length > base && folder[--length] != '/') continue;
        folder[length] = '\0';
    }
}

void st_memory_limit(const char *root, st_memory *memory)
{
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) apply_version(root, &versions[i], memory);
}

/* ---- the host -------------------------------------------------------------------------------------------------- */

/* A line such as "MemAvailable:   24043636 kB". */
static bool parse_kib(const char *line, const char *name, uint64_t *bytes)
{
    size_t length = strlen(name);
    char *end = NULL;
    if (strncmp(line, name, length) != 0) return false;
    unsigned long long kib = strtoull(line + length, &end, 10);
    if (end == line + length || kib > UINT64_MAX / 1024) return false;
    *bytes = (uint64_t)kib * 1024;
    return true;
}

bool st_memory_read(const char *path, st_memory *out)
{
    char line[256];
    st_memory memory;
    bool total = false, available = false;
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        if (parse_kib(line, "MemTotal:", &memory.total_bytes)) total = true;
        if (parse_kib(line, "MemAvailable:", &memory.available_bytes)) available = true;
    }
    if (file) fclose(file);
    if (total && available) *out = memory;
    return total && available;
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
