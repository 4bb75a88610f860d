/* The host's profile from the system's own files. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cores.h"
#include "base/memory.h"
#include "devices.h"
#include "placement.h"

/* The rates of a host that has not been measured: low estimates for a current machine. */
static const double unmeasured_read = 18e9, unmeasured_ops_per_core = 50e9, unmeasured_disk = 1e9;

void st_host_cpu_name(const char *path, char *out, size_t size)
{
    static const char key[] = "model name";
    char line[512];
    size_t length = 0;
    const char *name = NULL;
    FILE *file = fopen(path, "re");
    while (file && length == 0 && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        name = line + strlen(key) + strspn(line + strlen(key), " \t:");
        length = strcspn(name, "\n");
        while (length > 0 && isspace((unsigned char)name[length - 1])) length--;
    }
    if (file) fclose(file);
    snprintf(out, size, "%.*s", length ? (int)length : 3, length ? name : "CPU");
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7F) *c = '?';
}

static void set_measured(st_profile *p, const st_measurement *m)
{
    p->estimate = false;
    p->rates = ST_RATES_MEASURED;
    p->rates_spread = m->spread;
    p->memory_rate = m->read_rate;
    p->op_rate = m->op_rate;
    memcpy(p->classes, m->classes, sizeof p->classes);
    memcpy(p->type_share, m->type_share, sizeof p->type_share);
}

st_profile st_host_profile(void)
{
    st_profile p = st_profile_default(ST_DEVICE_HOST);
    st_memory memory = st_memory_now();
    st_measurement kept;
    st_host_cpu_name("/proc/cpuinfo", p.name, sizeof p.name);
    p.total_bytes = memory.total_bytes;
    p.free_bytes = memory.available_bytes;
    p.cores = st_cores_here();
    p.estimate = true;
    p.rates = ST_RATES_ASSUMED;
    p.memory_rate = unmeasured_read;
    p.op_rate = unmeasured_ops_per_core * p.cores;
    p.disk_rate = unmeasured_disk;
    p.row_seconds = ST_ROW_SECONDS;
    char *path = st_measurement_path();
    if (path && st_measurement_load(path, p.name, p.cores, &kept)) set_measured(&p, &kept);
    st_free(path);
    return p;
}
