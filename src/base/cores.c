#include "base/cores.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct core {
    long package, id;
} core;

/* Reads a topology file, which holds one number. */
static bool read_number(const char *root, int cpu, const char *name, long *out)
{
    char path[512], text[32], *end;
    int length = snprintf(path, sizeof path, "%s/cpu%d/topology/%s", root, cpu, name);
    if (length < 0 || (size_t)length >= sizeof path) return false;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    ssize_t got = read(file, text, sizeof text - 1);
    close(file);
    if (got <= 0) return false;
    text[got] = 0;
    long number = strtol(text, &end, 10);
    if (end == text) return false;
    *out = number;
    return true;
}

static bool is_known(const core *cores, uint32_t count, core wanted)
{
    for (uint32_t i = 0; i < count; i++)
        if (cores[i].package == wanted.package && cores[i].id == wanted.id) return true;
    return false;
}

uint32_t st_cores_count(const char *root, const cpu_set_t *mask)
{
    core cores[CPU_SETSIZE];
    uint32_t known = 0, alone = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        core c;
        if (!CPU_ISSET(cpu, mask)) continue;
        if (!read_number(root, cpu, "physical_package_id", &c.package) || !read_number(root, cpu, "core_id", &c.id))
            alone++;
        else if (!is_known(cores, known, c)) cores[known++] = c;
    }
    return known + alone;
}

uint32_t st_cores_here(void)
{
    cpu_set_t mask;
    uint32_t cores = 0;
    if (sched_getaffinity(0, sizeof mask, &mask) == 0) cores = st_cores_count("/sys/devices/system/cpu", &mask);
    if (cores > 0) return cores;
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than cpu_set_t holds */
    return online < 1 ? 1 : (uint32_t)online;
}
