/* How many physical cores this process may use. Two hardware threads of a core share what our kernels need, so a thread
 * for each would only wait for the other. */
#ifndef ST_BASE_CORES_H
#define ST_BASE_CORES_H

#include <sched.h>
#include <stdint.h>

/* Those of this machine that the process may run on; at least 1. */
uint32_t st_cores_here(void);

/* The distinct cores of the CPUs in `mask`, as the folder `root` (/sys/devices/system/cpu) tells them; a CPU of which it
 * tells nothing is a core of its own. */
uint32_t st_cores_count(const char *root, const cpu_set_t *mask);

#endif
