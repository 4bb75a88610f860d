/* src/base/cores.c: topologies of several machines, and missing files. */
#include "support/kit.h"
#include "support/tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cores.h"

static void write_file(int cpu, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "/cpu%d/topology/%s", cpu, name);
    tree_write(path, text);
}

static void add_cpu(int cpu, const char *package, const char *core)
{
    write_file(cpu, "physical_package_id", package);
    write_file(cpu, "core_id", core);
}

static cpu_set_t mask_of(int first, int last)
{
    cpu_set_t mask;
    CPU_ZERO(&mask);
    for (int i = first; i <= last; i++) CPU_SET(i, &mask);
    return mask;
}

static uint32_t count(int first, int last)
{
    cpu_set_t mask = mask_of(first, last);
    return st_cores_count(tree_root, &mask);
}

/* Two packages of two cores with two threads each; core ids repeat in the other package. */
static void threads_of_a_core_count_once(void **state)
{
    (void)state;
    static const char *const package[] = {"0\n", "1\n"}, *const core[] = {"0\n", "4\n"};
    for (int cpu = 0; cpu < 8; cpu++) add_cpu(cpu, package[cpu / 2 % 2], core[cpu % 2]);
    assert_int_equal(count(0, 7), 4);
    assert_int_equal(count(0, 3), 4); /* one thread of each core */
    assert_int_equal(count(0, 1), 2); /* CPUs outside the mask do not count */
    cpu_set_t pair;
    CPU_ZERO(&pair);
    CPU_SET(1, &pair);
    CPU_SET(5, &pair);
    assert_int_equal(st_cores_count(tree_root, &pair), 1);
}

static void missing_topology_files(void **state)
{
    (void)state;
    assert_int_equal(count(0, 2), 3); /* a core per CPU */
    add_cpu(0, "0\n", "0\n");
    add_cpu(1, "0\n", "0\n");
    assert_int_equal(count(0, 2), 2);
    write_file(1, "core_id", "");
    assert_int_equal(count(0, 1), 2);
    write_file(1, "core_id", "none\n");
    assert_int_equal(count(0, 1), 2);
    cpu_set_t nothing = mask_of(1, 0);
    assert_int_equal(st_cores_count(tree_root, &nothing), 0);
}

/* Some virtual machines report −1. */
static void negative_ids(void **state)
{
    (void)state;
    for (int cpu = 0; cpu < 3; cpu++) add_cpu(cpu, "-1\n", cpu == 2 ? "1\n" : "0\n");
    assert_int_equal(count(0, 2), 2);
}

static void cores_follow_the_affinity_mask(void **state)
{
    (void)state;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    assert_in_range(st_cores_here(), 1, online);
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(st_cores_here(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(threads_of_a_core_count_once, tree_make, tree_remove),
        cmocka_unit_test_setup_teardown(missing_topology_files, tree_make, tree_remove),
        cmocka_unit_test_setup_teardown(negative_ids, tree_make, tree_remove),
        cmocka_unit_test(cores_follow_the_affinity_mask),
    };
    return cmocka_run_group_tests_name("cores", tests, NULL, NULL);
}
