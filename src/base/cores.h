/* The number of physical cores that this process may use. The kernels saturate a core with one thread, so its second
 * hardware thread adds nothing. */
#ifndef ST_BASE_CORES_H
#define ST_BASE_CORES_H

#include <sched.h>
#include <stdint.h>

/* The cores of this machine within the affinity mask of the process; at least 1. */
uint32_t st_cores_here(void);

/* The distinct cores of the CPUs in `mask`, read from the folder `root` (/sys/devices/system/cpu). A CPU without
 * topology files counts as a core. */
uint32_t st_cores_count(const char *root, const cpu_set_t *mask);

#endif
