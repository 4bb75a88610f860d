/* src/base/large.c; src/base/memory.c: /proc/meminfo, and control groups in made-up trees of both versions, as containers and hosts
 * have them. */
#include "support/kit.h"
#include "support/tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "base/large.h"
#include "base/memory.h"
#include "base/slices.h"

#define GIB ((uint64_t)1 << 30)
#define V2_MOUNT "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1_MOUNT "33 25 0:30 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n"
#define OTHER_MOUNTS "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" \
    "31 25 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"

static void write_bytes(const char *path, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)value);
    tree_write(path, text);
}

/* A host of 64 GiB with 60 available is seen as one of `total` with `available`. */
static void expect(uint64_t total, uint64_t available)
{
    st_memory memory = {64 * GIB, 60 * GIB};
    st_memory_limit(tree_root, &memory);
    assert_int_equal(memory.total_bytes, total);
    assert_int_equal(memory.available_bytes, available);
}

static void no_control_groups(void **state)
{
    (void)state;
    expect(64 * GIB, 60 * GIB);
    tree_write("/proc/self/cgroup", "0::/\n");
    expect(64 * GIB, 60 * GIB);
    tree_write("/proc/self/mountinfo", OTHER_MOUNTS);
    expect(64 * GIB, 60 * GIB);
    tree_write("/proc/self/mountinfo", OTHER_MOUNTS V2_MOUNT); /* the root group has no memory.max */
    expect(64 * GIB, 60 * GIB);
}

/* A container with a cgroup namespace: its own group is the root of what it sees. */
static void v2_container(void **state)
{
    (void)state;
    tree_write("/proc/self/cgroup", "0::/\n");
    tree_write("/proc/self/mountinfo", OTHER_MOUNTS V2_MOUNT);
    write_bytes("/sys/fs/cgroup/memory.max", 4 * GIB);
    expect(4 * GIB, 4 * GIB);
    write_bytes("/sys/fs/cgroup/memory.current", 3 * GIB);
    expect(4 * GIB, 1 * GIB);
    /* 2.5 of the 3 GiB are page cache that can be reclaimed */
    tree_write("/sys/fs/cgroup/memory.stat",
               "anon 100\nfile 2684354560\ninactive_file 1610612736\nactive_file 1073741824\n");
    expect(4 * GIB, 4 * GIB - GIB / 2);
    write_bytes("/sys/fs/cgroup/memory.current", GIB); /* read at another time than the page cache: smaller than it */
    expect(4 * GIB, 4 * GIB);
    write_bytes("/sys/fs/cgroup/memory.current", 9 * GIB);
    expect(4 * GIB, 0);
    tree_write("/sys/fs/cgroup/memory.max", "max\n");
    write_bytes("/sys/fs/cgroup/memory.current", 3 * GIB);
    expect(64 * GIB, 60 * GIB);
    tree_write("/sys/fs/cgroup/memory.max", "");
    expect(64 * GIB, 60 * GIB);
    tree_write("/sys/fs/cgroup/memory.max", "12x\n");
    expect(64 * GIB, 60 * GIB);
}

/* The smallest limit of the group and its ancestors counts, for the total and for the available bytes. */
static void v2_hierarchy(void **state)
{
    (void)state;
    tree_write("/proc/self/cgroup", "1:name=systemd:/elsewhere\n0::/user.slice/user-1000.slice/app.scope\n");
    tree_write("/proc/self/mountinfo", V2_MOUNT);
    tree_write("/sys/fs/cgroup/user.slice/user-1000.slice/app.scope/memory.max", "max\n");
    expect(64 * GIB, 60 * GIB);
    write_bytes("/sys/fs/cgroup/user.slice/memory.max", 16 * GIB);
    expect(16 * GIB, 16 * GIB);
    write_bytes("/sys/fs/cgroup/user.slice/user-1000.slice/memory.max", 8 * GIB);
    expect(8 * GIB, 8 * GIB);
    write_bytes("/sys/fs/cgroup/user.slice/user-1000.slice/app.scope/memory.max", 32 * GIB);
    write_bytes("/sys/fs/cgroup/user.slice/memory.current", 14 * GIB); /* other processes fill the ancestor's group */
    expect(8 * GIB, 2 * GIB);
}

/* A path outside the namespace, or a folder that is not mounted: the mount point's own limit is left. */
static void v2_path_outside_the_mount(void **state)
{
    (void)state;
    tree_write("/proc/self/mountinfo", V2_MOUNT);
    write_bytes("/sys/fs/cgroup/memory.max", 4 * GIB);
    tree_write("/proc/self/cgroup", "0::/../../system.slice\n");
    expect(4 * GIB, 4 * GIB);
    tree_write("/proc/self/cgroup", "0::/not/mounted\n");
    expect(4 * GIB, 4 * GIB);
    tree_write("/proc/self/cgroup", "0::relative\n");
    expect(64 * GIB, 60 * GIB);
}

static void v1_hierarchy(void **state)
{
    (void)state;
    tree_write("/proc/self/cgroup", "12:cpu,cpuacct:/a\n11:memory:/a/b\n1:name=systemd:/a\n0::/a\n");
    tree_write("/proc/self/mountinfo", OTHER_MOUNTS V1_MOUNT);
    write_bytes("/sys/fs/cgroup/memory/memory.limit_in_bytes", 9223372036854771712u);
    write_bytes("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", 9223372036854771712u);
    expect(64 * GIB, 60 * GIB);
    write_bytes("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", 8 * GIB);
    write_bytes("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", 6 * GIB);
    tree_write("/sys/fs/cgroup/memory/a/memory.stat",
               "inactive_file 1\ntotal_inactive_file 1073741824\ntotal_active_file 1073741824\n");
    expect(8 * GIB, 4 * GIB);
}

/* A container without a cgroup namespace: its path is the host's, and the mount shows its group alone. */
static void v1_container(void **state)
{
    (void)state;
    tree_write("/proc/self/cgroup", "11:cpuset,memory:/docker/0123abc\n");
    tree_write("/proc/self/mountinfo",
               "33 25 0:30 /docker/0123abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    write_bytes("/sys/fs/cgroup/memory/memory.limit_in_bytes", 4 * GIB);
    write_bytes("/sys/fs/cgroup/memory/memory.usage_in_bytes", GIB);
    expect(4 * GIB, 3 * GIB);
    /* an ancestor's limit that only the statistics show */
    tree_write("/sys/fs/cgroup/memory/memory.stat", "hierarchical_memory_limit 2147483648\n");
    expect(2 * GIB, GIB);
}

/* Version 2 without a memory controller beside version 1, and a mount point with a blank. */
static void hybrid(void **state)
{
    (void)state;
    tree_write("/proc/self/cgroup", "5:memory:/x\n0::/x\n");
    tree_write("/proc/self/mountinfo", "29 23 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
                                       "33 25 0:30 / /sys/fs/my\\040groups rw - cgroup cgroup rw,memory\n");
    write_bytes("/sys/fs/my groups/x/memory.limit_in_bytes", 3 * GIB);
    expect(3 * GIB, 3 * GIB);
    tree_write("/proc/self/mountinfo", "33 25 0:30 / /sys/fs/end\\04 rw - cgroup cgroup rw,memory\n");
    write_bytes("/sys/fs/end\\04/x/memory.limit_in_bytes", 2 * GIB);
    expect(2 * GIB, 2 * GIB);
}

static void malformed_files(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "\n\n", "0", "0:", "0::", ":::", "0::/", "11:memory", "11:memory:/a",
                                        " - cgroup2", "\\", "\\777"};
    write_bytes("/sys/fs/cgroup/memory.max", 4 * GIB);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
            tree_write("/proc/self/cgroup", texts[i]);
            tree_write("/proc/self/mountinfo", texts[k]);
            expect(64 * GIB, 60 * GIB);
        }
}

/* A measurement that fits in the cache measures the cache: some machines have 300 MiB of it. */
static void probes_are_larger_than_the_cache(void **state)
{
    (void)state;
    const uint64_t mib = (uint64_t)1 << 20;
    assert_int_equal(st_memory_probe_bytes(300 * mib, 64 * GIB), 900 * mib);
    assert_int_equal(st_memory_probe_bytes(32 * mib, 64 * GIB), 256 * mib);
    assert_int_equal(st_memory_probe_bytes(0, 64 * GIB), 256 * mib);
    assert_int_equal(st_memory_probe_bytes(UINT64_MAX, 64 * GIB), 4 * GIB);
    assert_int_equal(st_memory_probe_bytes(300 * mib, 2 * GIB), 512 * mib);
    assert_int_equal(st_memory_probe_bytes(300 * mib, 0), 0);
    assert_in_range(st_memory_probe_bytes_now(), 1, st_memory_now().total_bytes / 4);
}

static unsigned char marked[100000];
static size_t slice_unit;
static _Atomic size_t slices_off; /* that do not begin at a unit */

static void mark(void *memory, size_t bytes)
{
    unsigned char *at = memory;
    if ((size_t)(at - marked) % slice_unit) slices_off++;
    for (size_t i = 0; i < bytes; i++) at[i]++;
}

/* Each byte is in one slice. */
static void slices_cover_a_range(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 50000, sizeof marked}, units[] = {1, 4096, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t k = 0; k < sizeof units / sizeof *units; k++) {
            memset(marked, 0, sizeof marked);
            slice_unit = units[k];
            st_slices_run(marked, sizes[i], units[k], mark);
            for (size_t at = 0; at < sizeof marked; at++) assert_int_equal(marked[at], at < sizes[i]);
        }
    assert_int_equal(slices_off, 0);
}

/* Whole large pages, zeroed, whatever was asked for. */
static void large_pages(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 4096, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 37 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *memory = st_large_new(sizes[i]);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % (2 << 20), 0);
        for (size_t at = 0; at < sizes[i]; at += 1021) assert_int_equal(memory[at], 0);
        memset(memory, 0xA5, sizes[i]);
        st_large_free(memory, sizes[i]);
    }
    static const size_t refused[] = {0, SIZE_MAX, SIZE_MAX - (4 << 20), SIZE_MAX / 2};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) assert_null(st_large_new(refused[i]));
    st_fault_arm(ST_FAULT_ALLOC, 1, false);
    assert_null(st_large_new(4096));
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    st_large_free(NULL, 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_control_groups, tree_make, tree_remove),
        cmocka_unit_test_setup_teardown(v2_container, tree_make, tree_remove),
        cmocka_unit_test_setup_teardown(v2_hierarchy, tree_make, tree_remove),
        cmocka_unit_test_setup_teardown(v2_path_outside_the_mount, tree_make, tree_remove),
        cmocka_unit_test_setup_teardown(v1_hierarchy, tree_make, tree_remove),
        cmocka_unit_test_setup_teardown(v1_container, tree_make, tree_remove),
        cmocka_unit_test_setup_teardown(hybrid, tree_make, tree_remove),
        cmocka_unit_test_setup_teardown(malformed_files, tree_make, tree_remove),
        cmocka_unit_test(probes_are_larger_than_the_cache),
        cmocka_unit_test(slices_cover_a_range),
        cmocka_unit_test(large_pages),
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
