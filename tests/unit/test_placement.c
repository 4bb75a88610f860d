/* src/placement.c, src/backend/profiles.c, profile_file.c and src/devices*.c: options, profile files and the machine's
 * own data become profiles and planner options, or an error that names the mistake. */
#include "support/kit.h"

#include <dirent.h>
#include <ftw.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/profiles.h"
#include "base/alloc.h"
#include "base/cores.h"
#include "base/fault.h"
#include "base/memory.h"
#include "devices.h"
#include "placement.h"

#define GIB ((uint64_t)1 << 30)

static char folder[64]; /* of this test's files, and its XDG_CACHE_HOME */

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/strata-placement-XXXXXX");
    return mkdtemp(folder) && setenv("XDG_CACHE_HOME", folder, 1) == 0 ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    return remove(path);
}

static int remove_folder(void **state)
{
    (void)state;
    return nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static const char *write_file(const char *name, const char *text)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    return path;
}

static st_placement place_options(const strata_engine_options *options)
{
    st_placement placement;
    strata_error error;
    if (st_placement_of(options, ST_PLACEMENT_PLAN, 2, &placement, &error) != STRATA_OK) fail_msg("%s", error.message);
    return placement;
}

static st_placement place(strata_placement given)
{
    return place_options(&(strata_engine_options){.placement = &given});
}

static void refuse_options(const strata_engine_options *options, const char *text)
{
    st_placement placement;
    strata_error error;
    memset(&placement, 0x55, sizeof placement);
    assert_int_equal(st_placement_of(options, ST_PLACEMENT_PLAN, 2, &placement, &error), STRATA_USAGE);
    if (!strstr(error.message, text)) fail_msg("expected \"%s\", found \"%s\"", text, error.message);
    assert_int_equal(placement.device_count, 0x55555555u); /* unchanged */
}

static void refuse(strata_placement given, const char *text)
{
    refuse_options(&(strata_engine_options){.placement = &given}, text);
}

#pragma GCC diagnostic ignored "-Woverride-init" /* a test's fields override the defaults */
#define PLACEMENT(...) ((strata_placement){.vram_margin_bytes = UINT64_MAX, .ram_margin_bytes = UINT64_MAX, \
                                           .overhead_bytes = UINT64_MAX, .layers = -2, .expert_slots = -1, __VA_ARGS__})

/* ---- devices ----------------------------------------------------------------------------------------------------- */

static void the_default_is_this_host(void **state)
{
    (void)state;
    st_placement p = place_options(&(strata_engine_options){0});
    const st_profile *host = &p.devices[ST_HOST];
    assert_int_equal(p.device_count, 1);
    assert_null(p.backend->card);
    assert_int_equal(host->kind, ST_DEVICE_HOST);
    assert_true(host->estimate); /* nothing was measured in this folder */
    assert_true(host->name[0] && host->memory_rate > 0 && host->op_rate > 0 && host->disk_rate > 0);
    assert_int_equal(host->cores, st_cores_here());
    assert_true(host->free_bytes > 0 && host->free_bytes <= host->total_bytes);
    p = place(PLACEMENT(.device = "cpu", .profile = "rtx-4090+ddr5-5600", .ram_bytes = 5 * GIB));
    assert_int_equal(p.device_count, 1);
    assert_string_equal(p.devices[ST_HOST].name, "ddr5-5600");
    assert_int_equal(p.devices[ST_HOST].total_bytes, 5 * GIB);
    assert_int_equal(p.devices[ST_HOST].free_bytes, 5 * GIB);
}

static void a_gpu_described_by_its_memory(void **state)
{
    (void)state;
    st_placement p = place(PLACEMENT(.vram_bytes = 12 * GIB, .ram_bytes = 64 * GIB));
    const st_profile *card = &p.devices[ST_CARD];
    assert_int_equal(p.device_count, 2);
    assert_null(p.backend->card);
    assert_int_equal(card->kind, ST_DEVICE_CARD);
    assert_string_equal(card->name, "card");
    assert_int_equal(card->total_bytes, 12 * GIB);
    assert_int_equal(card->free_bytes, 12 * GIB);
    assert_int_equal(card->overhead_bytes, (uint64_t)500 << 20);
    assert_int_equal(card->granularity, 2 << 20);
    assert_true(card->estimate);
    assert_true(card->memory_rate == 0.75 * 504e9 && card->link_up == 25e9);
    assert_int_equal(p.devices[ST_HOST].free_bytes, 64 * GIB);
    p = place(PLACEMENT(.profile = "RTX 5090", .vram_bytes = 12 * GIB, .overhead_bytes = 0, .device = "sim"));
    assert_string_equal(p.backend->name, "sim");
    assert_string_equal(p.devices[ST_CARD].name, "rtx-5090");
    assert_int_equal(p.devices[ST_CARD].free_bytes, 12 * GIB);
    assert_int_equal(p.devices[ST_CARD].overhead_bytes, 0);
    assert_true(p.devices[ST_CARD].memory_rate == 0.75 * 1792e9);
}

/* Every row of the table is a device that can be planned for. */
static void the_table_of_profiles(void **state)
{
    (void)state;
    static const struct { const char *name; double vram_gib, memory, link; } cards[] = {
        {"rtx-3060", 12, 360, 25}, {"rtx-3090", 24, 936, 25}, {"rtx-4060", 8, 272, 13}, {"rtx-4070-ti", 12, 504, 25},
        {"rtx-4090", 24, 1008, 25}, {"rtx-5070-ti", 16, 896, 50}, {"rtx-5090", 32, 1792, 50}, {"rtx-3070", 8, 448, 25},
        {"rtx-3080", 10, 760, 25}, {"rtx-4060-ti", 16, 288, 13}, {"rtx-4070", 12, 504, 25}, {"rtx-4080", 16, 717, 25},
        {"rtx-5060-ti", 16, 448, 25}, {"rtx-5070", 12, 672, 50}, {"rtx-5080", 16, 960, 50}, {"a6000", 48, 768, 25},
        {"RX 7900 XTX", 24, 960, 25}, {"4090", 24, 1008, 25}, {"9070-xt", 16, 640, 50}, {"Arc B580", 12, 456, 13}};
    for (size_t i = 0; i < st_profile_row_count(); i++) {
        st_profile row = st_profile_row(i), found;
        assert_true(row.estimate && row.memory_rate > 0 && row.op_rate > 0);
        assert_true(row.kind == ST_DEVICE_HOST || (row.total_bytes > 0 && row.link_up > 0 && row.link_down > 0));
        assert_true(row.kind == ST_DEVICE_CARD || (row.cores > 0 && row.disk_rate > 0));
        assert_true(st_profile_find(st_str_from(row.name), &found));
        assert_string_equal(found.name, row.name);
    }
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        st_profile card;
        assert_true(st_profile_find(st_str_from(cards[i].name), &card));
        assert_true((double)card.total_bytes == cards[i].vram_gib * GIB);
        assert_true(card.memory_rate == 0.75e9 * cards[i].memory && card.link_up == 1e9 * cards[i].link);
        assert_int_equal(card.no_backend, strncmp(card.name, "rtx-", 4) != 0); /* only CUDA runs yet */
    }
}

static void invalid_devices_are_refused(void **state)
{
    (void)state;
    refuse(PLACEMENT(.device = "tpu"), "expected cpu, sim or cuda, found tpu");
    refuse(PLACEMENT(.device = "cuda:"), "found cuda:");
    refuse(PLACEMENT(.device = "cuda:1x"), "found cuda:1x");
    refuse(PLACEMENT(.device = "cuda:12345"), "found cuda:12345");
    refuse(PLACEMENT(.device = "sim:1"), "found sim:1");
    refuse(PLACEMENT(.device = "sim"), "expected a GPU to simulate");
    refuse(PLACEMENT(.device = "sim", .profile = "ddr4-3200"), "expected a GPU to simulate");
    refuse(PLACEMENT(.device = "cpu", .vram_bytes = GIB), "expected no GPU, found placement.vram_bytes");
    refuse(PLACEMENT(.device = "cpu", .layers = 2), "expected no GPU, found placement.layers 2");
    refuse(PLACEMENT(.profile = "gtx-1080"), "expected one of rtx-3060, ");
    refuse(PLACEMENT(.profile = "rtx-4070-ti+rtx-3060"), "found two GPUs, rtx-4070-ti and rtx-3060");
    refuse(PLACEMENT(.profile = "ddr4-3200+ddr5-5600"), "found two hosts");
    refuse(PLACEMENT(.profile = "rtx-4070-ti+"), "expected one of");
    refuse(PLACEMENT(.profile = ""), "expected one of");
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static void options_reach_the_planner(void **state)
{
    (void)state;
    strata_placement given = PLACEMENT(.layers = 7, .moe = "cache", .expert_slots = 9, .cpu_moe_layers = 3,
                                       .cpu_ffn_layers = 4, .vram_margin_bytes = 11, .ram_margin_bytes = 12, .disk = true);
    strata_engine_options options = {.context = 4096, .batch = 64, .sessions = 5, .placement = &given, .kv_type = "q8_0",
                                     .nextn = true, .restore_bytes = 12345, .kv_ram_bytes = 54321};
    st_plan_options o = place_options(&options).options;
    assert_int_equal(o.layers, 7);
    assert_int_equal(o.moe, ST_MOE_CACHE);
    assert_int_equal(o.expert_slots, 9);
    assert_int_equal(o.cpu_moe_layers, 3);
    assert_int_equal(o.cpu_ffn_layers, 4);
    assert_int_equal(o.margin_bytes[ST_CARD], 11);
    assert_int_equal(o.margin_bytes[ST_HOST], 12);
    assert_true(o.disk && o.nextn);
    assert_int_equal(o.context, 4096);
    assert_int_equal(o.batch, 64);
    assert_int_equal(o.conversations, 5);
    assert_int_equal(o.kv_type, ST_TYPE_Q8_0);
    assert_int_equal(o.out_rows, 16);
    assert_int_equal(o.workers[ST_HOST], 2);
    assert_int_equal(o.workers[ST_CARD], 1);
    assert_int_equal(o.restore_bytes, 12345);
    assert_int_equal(o.tier_bytes, 54321);
    assert_int_equal(o.page_tokens, 0);
    options.kv_ram_bytes = STRATA_KV_RAM_OFF;
    assert_int_equal(place_options(&options).options.tier_bytes, 0);
    options.restore_bytes = STRATA_RESTORE_OFF;
    assert_int_equal(place_options(&options).options.restore_bytes, 0);
    o = place_options(&(strata_engine_options){0}).options;
    assert_int_equal(o.layers, ST_LAYERS_AUTO);
    assert_int_equal(o.kv_type, -1);
    assert_int_equal(o.expert_slots, -1);
    assert_int_equal(o.moe, ST_MOE_AUTO);
    assert_true(o.margin_bytes[0] == ST_BYTES_AUTO && o.margin_bytes[1] == ST_BYTES_AUTO);
    assert_true(o.restore_bytes == ST_BYTES_AUTO && o.tier_bytes == ST_BYTES_AUTO);
    static const struct { const char *word; st_moe_mode mode; } modes[] = {
        {"auto", ST_MOE_AUTO}, {"resident", ST_MOE_RESIDENT}, {"cpu", ST_MOE_CPU}};
    for (size_t i = 0; i < 3; i++) assert_int_equal(place(PLACEMENT(.moe = modes[i].word)).options.moe, modes[i].mode);
}

static void invalid_options_are_refused(void **state)
{
    (void)state;
    refuse(PLACEMENT(.moe = "gpu"), "placement.moe: expected resident, cache or cpu, found gpu");
    refuse_options(&(strata_engine_options){.kv_type = "q4_0"}, "options.kv_type: expected f32, f16, bf16 or q8_0, found q4_0");
}

/* ---- profiles in files ------------------------------------------------------------------------------------------- */

static void a_profile_with_every_field(void **state)
{
    (void)state;
    const char *path = write_file("p.json",
        "{\"card\": {\"name\": \"mine\", \"source\": \"measured\", \"vram\": \"12 GiB\", \"free\": 12000000000, "
        "\"memory_gb_per_s\": 450, \"ops_gop_per_s\": 90000.5, \"link_up_gb_per_s\": 24, \"link_down_gb_per_s\": 23, "
        "\"handover_us\": 9.5, \"launch_us\": 0, \"overhead\": \"300MiB\", \"granularity\": 65536, \"alignment\": 128, "
        "\"display\": true, \"type_share\": {\"Q4_K\": 0.5, \"f32\": 1}},"
        "\"host\": {\"name\": \"desk\", \"ram\": 68719476736, \"host_read_gb_per_s\": 60, \"ops_gop_per_s\": 1000, "
        "\"cores\": 12, \"disk_gb_per_s\": 3.5, \"row_us\": 2, \"expert_share\": 0.5, \"source\": \"data sheet\"}}");
    st_placement p = place(PLACEMENT(.profile = path));
    const st_profile *card = &p.devices[ST_CARD], *host = &p.devices[ST_HOST];
    assert_int_equal(p.device_count, 2);
    assert_string_equal(card->name, "mine");
    assert_int_equal(card->total_bytes, 12 * GIB);
    assert_int_equal(card->free_bytes, 12000000000);
    assert_true(!card->estimate && card->display);
    assert_true(card->memory_rate == 450e9 && card->op_rate == 90000.5e9 && card->link_up == 24e9 && card->link_down == 23e9);
    assert_true(card->handover_seconds == 9.5 * 1e-6 && card->launch_seconds == 0);
    assert_int_equal(card->overhead_bytes, 300 << 20);
    assert_int_equal(card->granularity, 65536);
    assert_int_equal(card->alignment, 128);
    assert_true(card->type_share[ST_TYPE_Q4_K] == 0.5 && card->type_share[ST_TYPE_F32] == 1);
    assert_string_equal(host->name, "desk");
    assert_int_equal(host->free_bytes, 64 * GIB);
    assert_true(host->estimate && host->memory_rate == 60e9 && host->op_rate == 0.75 * 1000e9 && host->disk_rate == 3.5e9);
    assert_true(host->classes[ST_CLASS_EXPERTS].op_share == 0.5 && card->classes[ST_CLASS_EXPERTS].op_share == 0); /* not reduced; absent */
    assert_int_equal(host->cores, 12);
    assert_true(host->row_seconds == 2 * 1e-6);
}

/* Absent fields come from the profile that `like` names; rates of a data sheet are reduced to three quarters. */
static void a_profile_with_few_fields(void **state)
{
    (void)state;
    const char *path = write_file("p.json", "{\"card\": {\"vram\": 1000000, \"memory_gb_per_s\": 100}}");
    st_placement p = place(PLACEMENT(.profile = path));
    assert_true(p.devices[ST_CARD].memory_rate == 75e9 && p.devices[ST_CARD].estimate);
    assert_string_equal(p.devices[ST_CARD].name, "card");
    assert_int_equal(p.devices[ST_CARD].free_bytes, 1000000);
    assert_int_equal(p.devices[ST_HOST].cores, st_cores_here());
    path = write_file("p.json", "{\"card\": {\"like\": \"rtx-3090\", \"link_up_gb_per_s\": 12}}");
    p = place(PLACEMENT(.profile = path));
    assert_string_equal(p.devices[ST_CARD].name, "rtx-3090");
    assert_true(p.devices[ST_CARD].memory_rate == 0.75 * 936e9 && p.devices[ST_CARD].link_up == 12e9);
    assert_int_equal(p.devices[ST_CARD].total_bytes, 24 * GIB);
    path = write_file("p.json", "{\"host\": {}}");
    p = place(PLACEMENT(.profile = path));
    assert_int_equal(p.device_count, 1);
    assert_true(p.devices[ST_HOST].free_bytes > 0 && p.devices[ST_HOST].estimate); /* this machine's memory */
}

static void invalid_profiles_are_refused(void **state)
{
    (void)state;
    static const struct { const char *text, *message; } rows[] = {
        {"", "line 1"},
        {"[1]", "expected an object with \"card\" (the GPU) or \"host\""},
        {"{}", "expected an object with \"card\" (the GPU) or \"host\""},
        {"{\"card\": 1}", "card: expected an object"},
        {"{\"gpu\": {}}", "gpu: expected only \"card\" (the GPU) and \"host\""},
        {"{\"card\": {}}", "card.vram: expected the GPU's memory"},
        {"{\"card\": {\"vram\": 1, \"vram\": 2}}", "duplicate"},
        {"{\"card\": {\"vram\": 1, \"bandwidth\": 2}}", "card.bandwidth: a GPU has no such field"},
        {"{\"card\": {\"vram\": 1, \"ram\": 2}}", "card.ram: a GPU has no such field"},
        {"{\"host\": {\"vram\": 1}}", "host.vram: a host has no such field"},
        {"{\"card\": {\"vram\": 0}}", "card.vram: expected a number of bytes"},
        {"{\"card\": {\"vram\": -1}}", "card.vram"},
        {"{\"card\": {\"vram\": 1.5}}", "card.vram"},
        {"{\"card\": {\"vram\": \"12 parsecs\"}}", "found \"12 parsecs\""},
        {"{\"card\": {\"vram\": 9223372036854775807}}", "card.vram"},
        {"{\"card\": {\"vram\": 5, \"free\": 6}}", "card.free: expected at most"},
        {"{\"card\": {\"vram\": 1, \"memory_gb_per_s\": 0}}", "card.memory_gb_per_s: expected a number from 0.001 to 1e+06, found 0"},
        {"{\"card\": {\"vram\": 1, \"memory_gb_per_s\": \"fast\"}}", "card.memory_gb_per_s"},
        {"{\"card\": {\"vram\": 1, \"link_up_gb_per_s\": -5}}", "card.link_up_gb_per_s"},
        {"{\"card\": {\"vram\": 1, \"ops_gop_per_s\": 1e30}}", "card.ops_gop_per_s"},
        {"{\"card\": {\"vram\": 1, \"launch_us\": -1}}", "card.launch_us"},
        {"{\"card\": {\"vram\": 1, \"granularity\": 3}}", "card.granularity: expected a power of two"},
        {"{\"card\": {\"vram\": 1, \"granularity\": 0}}", "card.granularity"},
        {"{\"card\": {\"vram\": 1, \"alignment\": 512}}", "card.alignment"},
        {"{\"card\": {\"vram\": 1, \"alignment\": 3}}", "card.alignment: expected a power of two"},
        {"{\"card\": {\"vram\": 1, \"display\": 1}}", "card.display: expected true or false"},
        {"{\"card\": {\"vram\": 1, \"source\": \"rumour\"}}", "card.source: expected \"data sheet\" or \"measured\""},
        {"{\"card\": {\"vram\": 1, \"source\": 5}}", "card.source"},
        {"{\"card\": {\"vram\": 1, \"like\": \"ddr4-3200\"}}", "card.like: expected the name of a GPU's profile"},
        {"{\"card\": {\"vram\": 1, \"name\": \"\"}}", "card.name"},
        {"{\"card\": {\"vram\": 1, \"type_share\": {\"Q9\": 1}}}", "card.type_share"},
        {"{\"card\": {\"vram\": 1, \"type_share\": {\"Q4_K\": 1.5}}}", "card.type_share: expected shares"},
        {"{\"card\": {\"vram\": 1, \"type_share\": {\"Q4_K\": 1e-310}}}", "card.type_share: expected shares"},
        {"{\"card\": {\"vram\": 1, \"operations\": 5}}", "card.operations: expected an object of classes of operations"},
        {"{\"card\": {\"vram\": 1, \"operations\": {\"matrix\": {}}}}", "card.operations: expected classes"},
        {"{\"card\": {\"vram\": 1, \"operations\": {\"rows\": 1}}}", "card.operations: expected an object for rows"},
        {"{\"card\": {\"vram\": 1, \"operations\": {\"rows\": {\"speed\": 1}}}}", "card.operations: expected rows with us"},
        {"{\"card\": {\"vram\": 1, \"operations\": {\"rows\": {\"us\": -1}}}}", "card.operations: expected rows.us from 0 to 1e+06"},
        {"{\"host\": {\"operations\": {\"experts\": {\"memory_share\": 0}}}}", "host.operations: expected experts.memory_share"},
        {"{\"host\": {\"cores\": 0}}", "host.cores: expected a whole number from 1 to 4096"},
        {"{\"host\": {\"cores\": 1.5}}", "host.cores"},
        {"{\"host\": {\"expert_share\": 0}}", "host.expert_share: expected a number from 0.001 to 1"},
        {"{\"host\": {\"expert_share\": 1.5}}", "host.expert_share"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        strata_placement given = PLACEMENT(.profile = write_file("bad.json", rows[i].text));
        st_placement placement;
        strata_error error;
        assert_int_equal(st_placement_of(&(strata_engine_options){.placement = &given}, ST_PLACEMENT_PLAN, 1, &placement, &error), STRATA_INPUT);
        if (!strstr(error.message, rows[i].message) || !strstr(error.message, "bad.json"))
            fail_msg("%s: expected \"%s\", found \"%s\"", rows[i].text, rows[i].message, error.message);
    }
    strata_placement missing = PLACEMENT(.profile = "/nowhere/at/all.json");
    st_placement placement;
    strata_error error;
    assert_int_equal(st_placement_of(&(strata_engine_options){.placement = &missing}, ST_PLACEMENT_PLAN, 1, &placement, &error), STRATA_INPUT);
    assert_int_equal(error.status, STRATA_INPUT);
}

static void sizes_are_parsed(void **state)
{
    (void)state;
    static const struct { const char *text; uint64_t bytes; } good[] = {
        {"0", 0}, {"1234", 1234}, {"12GiB", 12 * GIB}, {"500 MiB", (uint64_t)500 << 20}, {"64GB", 64000000000},
        {"1.5GiB", 3 * GIB / 2}, {"2kB", 2000}, {"2KiB", 2048}, {"1TiB", (uint64_t)1 << 40}, {"7b", 7}, {"12G", 12 * GIB}, {"3m", 3 << 20},
        {"4611686018427387903", 4611686018427387903}};
    static const char *const bad[] = {"", "GiB", "-1", "1e9", "12Gi", "12 GiB ", "12X", "1.2.3GB", "0x10", "99999999TiB", " 1"};
    uint64_t bytes;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(st_profile_parse_size(good[i].text, &bytes));
        assert_int_equal(bytes, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (st_profile_parse_size(bad[i], &bytes)) fail_msg("\"%s\" was accepted as a size", bad[i]);
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */

static void memory_and_cpu_name_are_read_from_proc(void **state)
{
    (void)state;
    st_memory memory = {0};
    const char *path = write_file("meminfo", "MemTotal:       24684100 kB\nMemFree:  5 kB\nMemAvailable:   24043636 kB\n");
    assert_true(st_memory_read(path, &memory));
    assert_int_equal(memory.total_bytes, (uint64_t)24684100 * 1024);
    assert_int_equal(memory.available_bytes, (uint64_t)24043636 * 1024);
    assert_false(st_memory_read(write_file("meminfo", "MemTotal: 1 kB\n"), &memory));
    assert_false(st_memory_read(write_file("meminfo", "MemTotal: x\nMemAvailable: 1 kB\n"), &memory));
    assert_false(st_memory_read(write_file("meminfo", "MemTotal: 99999999999999999999 kB\nMemAvailable: 1 kB\n"), &memory));
    assert_false(st_memory_read(write_file("meminfo", ""), &memory));
    assert_false(st_memory_read("/nowhere", &memory));
    assert_int_equal(memory.total_bytes, (uint64_t)24684100 * 1024);
    char name[64];
    st_host_cpu_name(write_file("cpuinfo", "processor\t: 0\nmodel name\t: Some CPU  \nflags: x\n"), name, sizeof name);
    assert_string_equal(name, "Some CPU");
    st_host_cpu_name(write_file("cpuinfo", "model name\t: \x1b[31mred\n"), name, sizeof name);
    assert_string_equal(name, "?[31mred");
    st_host_cpu_name(write_file("cpuinfo", "processor: 0\n"), name, sizeof name);
    assert_string_equal(name, "CPU");
    st_host_cpu_name("/nowhere", name, sizeof name);
    assert_string_equal(name, "CPU");
    st_host_cpu_name(write_file("cpuinfo", "model name: abcdefgh\n"), name, 4);
    assert_string_equal(name, "abc");
}

static size_t files_in(const char *path)
{
    DIR *dir = opendir(path);
    size_t count = 0;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* Rates for st_rate_settle, in order. */
typedef struct samples {
    const double *rates;
    size_t taken;
} samples;

static strata_status next_sample(void *context, double *rate, strata_error *error)
{
    samples *s = context;
    (void)error;
    *rate = s->rates[s->taken++];
    return STRATA_OK;
}

/* A machine that is busy for a while is measured until it is quiet; one that stays busy is reported. */
static void a_busy_machine_is_measured_again(void **state)
{
    (void)state;
    static const double quiet[] = {10, 9.5, 9.8}, calmed[] = {5, 10, 9.6, 9.9},
                        busy[] = {5, 10, 5, 10, 5, 10, 5, 10, 5};
    samples s = {.rates = quiet};
    double best = 0, spread = 0;
    assert_int_equal(st_rate_settle(next_sample, &s, &best, &spread, NULL), STRATA_OK);
    assert_true(s.taken == 3 && best == 10 && spread > 0.04 && spread < 0.06);
    s = (samples){.rates = calmed};
    assert_int_equal(st_rate_settle(next_sample, &s, &best, &spread, NULL), STRATA_OK);
    assert_true(s.taken == 4 && best == 10 && spread < ST_SPREAD_MAX);
    s = (samples){.rates = busy};
    assert_int_equal(st_rate_settle(next_sample, &s, &best, &spread, NULL), STRATA_OK);
    assert_true(s.taken == 9 && best == 10 && spread == 0.5);
}

static void a_measurement_is_stored(void **state)
{
    (void)state;
    char *path = st_measurement_path(), in[128];
    st_measurement first = {.cpu = "A", .cores = 4, .read_rate = 40e9, .int8_rate = 0, .op_rate = 500e9}, found = {0};
    st_measurement second = first;
    first.type_share[ST_TYPE_Q4_K] = 0.5;
    first.classes[ST_CLASS_EXPERTS].op_share = 0.75;
    first.spread = 0.25;
    snprintf(in, sizeof in, "%s/strata", folder);
    assert_true(strncmp(path, in, strlen(in)) == 0);
    assert_false(st_measurement_load(path, "A", 4, &found));
    assert_int_equal(st_measurement_save(path, &first, NULL), STRATA_OK);
    memcpy(second.cpu, "B", 2);
    second.read_rate = 10e9;
    assert_int_equal(st_measurement_save(path, &second, NULL), STRATA_OK);
    assert_int_equal(files_in(in), 1); /* no temporary file is left */
    assert_true(st_measurement_load(path, "A", 4, &found));
    assert_true(found.read_rate == 40e9 && found.op_rate == 500e9 && found.type_share[ST_TYPE_Q4_K] == 0.5);
    assert_true(found.classes[ST_CLASS_EXPERTS].op_share == 0.75 && found.spread == 0.25);
    assert_true(found.type_share[ST_TYPE_Q6_K] == 0 && found.int8_rate == 0);
    assert_true(st_measurement_load(path, "B", 4, &found) && found.read_rate == 10e9 && found.classes[ST_CLASS_EXPERTS].op_share == 0);
    assert_false(st_measurement_load(path, "A", 3, &found));
    first.read_rate = 41e9;
    assert_int_equal(st_measurement_save(path, &first, NULL), STRATA_OK); /* replaces its own entry */
    assert_true(st_measurement_load(path, "A", 4, &found) && found.read_rate == 41e9);
    assert_true(st_measurement_load(path, "B", 4, &found));
    st_free(path);
}

static void rates_of_a_gpu_are_stored(void **state)
{
    (void)state;
    char *path = st_measurement_path();
    st_measurement host = {.cpu = "A", .cores = 4, .read_rate = 40e9, .op_rate = 500e9}, host_found;
    st_device_rates first = {.read_bytes = 4e12, .batch_ops = 9e13, .link_up = 55e9, .link_down = 54e9, .handover_seconds = 1e-5,
                             .round_trip_seconds = 4e-6, .classes[ST_CLASS_PRODUCT] = {.seconds = 2e-6, .fill = 1e6},
                             .type_share[ST_TYPE_Q4_K] = 0.5};
    st_device_rates second = first, found;
    second.link_up = 25e9;
    assert_false(st_gpu_rates_load(path, "G", &found));
    assert_int_equal(st_measurement_save(path, &host, NULL), STRATA_OK);
    assert_int_equal(st_gpu_rates_save(path, "G", &first, NULL), STRATA_OK);
    assert_int_equal(st_gpu_rates_save(path, "H", &second, NULL), STRATA_OK);
    assert_true(st_gpu_rates_load(path, "G", &found));
    assert_true(found.read_bytes == 4e12 && found.link_up == 55e9 && found.link_down == 54e9 && found.batch_ops == 9e13);
    assert_true(found.type_share[ST_TYPE_Q4_K] == 0.5 && found.type_share[ST_TYPE_F32] == 0);
    assert_true(found.classes[ST_CLASS_PRODUCT].fill == 1e6 && found.classes[ST_CLASS_ROWS].seconds == 0);
    assert_true(found.classes[ST_CLASS_PRODUCT].seconds > 1.99e-6 && found.classes[ST_CLASS_PRODUCT].seconds < 2.01e-6);
    assert_true(found.handover_seconds > 0.99e-5 && found.handover_seconds < 1.01e-5);
    assert_true(found.round_trip_seconds > 3.99e-6 && found.round_trip_seconds < 4.01e-6);
    assert_true(st_gpu_rates_load(path, "H", &found) && found.link_up == 25e9);
    assert_true(st_measurement_load(path, "A", 4, &host_found)); /* the host's rates are kept */
    second.link_up = 26e9;
    assert_int_equal(st_gpu_rates_save(path, "H", &second, NULL), STRATA_OK);
    assert_true(st_gpu_rates_load(path, "H", &found) && found.link_up == 26e9);
    assert_int_equal(st_measurement_save(path, &host, NULL), STRATA_OK);
    assert_true(st_gpu_rates_load(path, "G", &found));
    write_file("strata/devices.json", "{\"gpus\": [{\"strata\": \"" STRATA_VERSION "\", \"gpu\": \"G\", \"read_gb_per_s\": 1}]}");
    assert_false(st_gpu_rates_load(path, "G", &found)); /* fields are missing */
    static const struct { const char *format, *rates, *operations; bool good; } rows[] = {
        {"\"format\": 5, ", "1, \"link_up_gb_per_s\": 1, \"round_trip_us\": 0", "{\"rows\": {\"us\": 1}}", true},
        {"\"format\": 4, ", "1, \"link_up_gb_per_s\": 1, \"round_trip_us\": 0", "{\"rows\": {\"us\": 1}}", false}, /* of an earlier version */
        {"", "1, \"link_up_gb_per_s\": 1, \"round_trip_us\": 0", "{\"rows\": {\"us\": 1}}", false},
        {"\"format\": 5, ", "1, \"link_up_gb_per_s\": 1, \"round_trip_us\": 0", "{\"rows\": {\"us\": -1}}", false},
        {"\"format\": 5, ", "1, \"link_up_gb_per_s\": 1, \"round_trip_us\": 0", "{\"experts\": {\"memory_share\": 2}}", false},
        {"\"format\": 5, ", "1, \"link_up_gb_per_s\": 1, \"round_trip_us\": 0", "null", false},
        {"\"format\": 5, ", "1, \"link_up_gb_per_s\": 1, \"round_trip_us\": -1", "{}", false},
        {"\"format\": 5, ", "1, \"link_up_gb_per_s\": 1", "{}", false},
        {"\"format\": 5, ", "1, \"link_up_gb_per_s\": 1e-300, \"round_trip_us\": 0", "{}", false},
        {"\"format\": 5, ", "1e308, \"link_up_gb_per_s\": 1, \"round_trip_us\": 0", "{}", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "{\"gpus\": [{\"strata\": \"%s\", %s\"gpu\": \"G\", \"batch_gop_per_s\": 1, \"link_down_gb_per_s\": 1, "
                 "\"handover_us\": 1, \"read_gb_per_s\": %s, \"operations\": %s}]}",
                 STRATA_VERSION, rows[i].format, rows[i].rates, rows[i].operations);
        write_file("strata/devices.json", text);
        assert_true(st_gpu_rates_load(path, "G", &found) == rows[i].good);
    }
    st_free(path);
}

static void a_damaged_measurement_is_ignored(void **state)
{
    (void)state;
    char *path = st_measurement_path(), in[128];
    st_measurement found;
    snprintf(in, sizeof in, "%s/strata", folder);
    assert_int_equal(mkdir(in, 0700), 0);
    static const char *const texts[] = {"", "{", "[]", "{\"machines\": 5}", "{\"machines\": [1, null, {}]}", "\xff\xfe"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_file("strata/devices.json", texts[i]);
        assert_false(st_measurement_load(path, "A", 4, &found));
        assert_true(place_options(&(strata_engine_options){0}).devices[ST_HOST].estimate);
    }
    assert_int_equal(st_measurement_save(path, &(st_measurement){.cpu = "A", .cores = 4, .read_rate = 1e9, .op_rate = 1e9},
                                         NULL), STRATA_OK); /* a damaged file is replaced */
    assert_true(st_measurement_load(path, "A", 4, &found));
    st_free(path);
}

/* An entry is used if its version, its format and all its values are right. */
static void measurements_out_of_range_are_ignored(void **state)
{
    (void)state;
    char entry[512], *path = st_measurement_path(), in[128];
    st_measurement found;
    snprintf(in, sizeof in, "%s/strata", folder);
    assert_int_equal(mkdir(in, 0700), 0);
    static const struct { const char *version, *format, *read, *batch, *others; bool good; } rows[] = {
        {STRATA_VERSION, "5", "1", "1", "\"spread\": 0.5, \"type_share\": {\"Q4_K\": 1}, \"operations\": {\"rows\": {\"us\": 1}}", true},
        {"0.0.0", "5", "1", "1", "\"spread\": 0, \"operations\": {}", false}, /* by another version, with other kernels */
        {STRATA_VERSION, "4", "1", "1", "\"spread\": 0, \"operations\": {}", false},
        {STRATA_VERSION, "null", "1", "1", "\"spread\": 0, \"operations\": {}", false},
        {STRATA_VERSION, "5", "0", "1", "\"spread\": 0, \"operations\": {}", false},
        {STRATA_VERSION, "5", "null", "1", "\"spread\": 0, \"operations\": {}", false},
        {STRATA_VERSION, "5", "\"x\"", "1", "\"spread\": 0, \"operations\": {}", false},
        {STRATA_VERSION, "5", "1e308", "1", "\"spread\": 0, \"operations\": {}", false}, /* infinite in bytes */
        {STRATA_VERSION, "5", "1e-300", "1", "\"spread\": 0, \"operations\": {}", false},
        {STRATA_VERSION, "5", "1", "-1", "\"spread\": 0, \"operations\": {}", false},
        {STRATA_VERSION, "5", "1", "1e308", "\"spread\": 0, \"operations\": {}", false},
        {STRATA_VERSION, "5", "1", "1", "\"spread\": -1, \"operations\": {}", false},
        {STRATA_VERSION, "5", "1", "1", "\"spread\": 0", false},
        {STRATA_VERSION, "5", "1", "1", "\"spread\": 0, \"operations\": {\"rows\": {\"us\": -1}}", false},
        {STRATA_VERSION, "5", "1", "1", "\"spread\": 0, \"operations\": {}, \"type_share\": {\"Q4_K\": 1e-310}", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(entry, sizeof entry,
                 "{\"machines\": [{\"strata\": \"%s\", \"format\": %s, \"cpu\": \"A\", \"cores\": 4, \"int8_gop_per_s\": 0, "
                 "\"read_gb_per_s\": %s, \"batch_gop_per_s\": %s, %s}]}",
                 rows[i].version, rows[i].format, rows[i].read, rows[i].batch, rows[i].others);
        write_file("strata/devices.json", entry);
        if (st_measurement_load(path, "A", 4, &found) != rows[i].good) fail_msg("%s", entry);
    }
    st_free(path);
}

static void an_unwritable_cache_folder_is_an_error(void **state)
{
    (void)state;
    strata_error error;
    st_measurement m = {.cpu = "A", .cores = 4, .read_rate = 1e9, .op_rate = 1e9};
    char path[128];
    snprintf(path, sizeof path, "%s/file/devices.json", folder);
    write_file("file", "");
    assert_int_equal(st_measurement_save(path, &m, &error), STRATA_RUNTIME);
    assert_non_null(strstr(error.message, "cannot write the measurement"));
    setenv("XDG_CACHE_HOME", "relative", 1);
    char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    setenv("HOME", folder, 1);
    char *fallback = st_measurement_path();
    snprintf(path, sizeof path, "%s/.cache/strata/devices.json", folder);
    assert_string_equal(fallback, path);
    st_free(fallback);
    unsetenv("HOME");
    assert_null(st_measurement_path());
    char *json = NULL;
    assert_int_equal(strata_devices(NULL, true, &json, &error), STRATA_RUNTIME); /* fails before it measures */
    assert_null(json);
    if (home) setenv("HOME", home, 1);
    free(home);
}

static void the_stored_measurement_is_used(void **state)
{
    (void)state;
    char *path = st_measurement_path();
    st_profile before = st_host_profile();
    st_measurement m = {.cores = before.cores, .read_rate = 123e9, .int8_rate = 5e9, .op_rate = 456e9};
    memcpy(m.cpu, before.name, sizeof m.cpu);
    m.type_share[ST_TYPE_Q8_0] = 0.25;
    m.classes[ST_CLASS_EXPERTS].op_share = 0.5;
    assert_int_equal(st_measurement_save(path, &m, NULL), STRATA_OK);
    st_profile host = place_options(&(strata_engine_options){.threads = 0}).devices[ST_HOST];
    assert_false(host.estimate);
    assert_true(host.memory_rate == 123e9 && host.type_share[ST_TYPE_Q8_0] == 0.25 && host.classes[ST_CLASS_EXPERTS].op_share == 0.5);
    char *text = NULL;
    assert_int_equal(strata_devices(NULL, false, &text, NULL), STRATA_OK);
    json_t *devices = json_loads(text, 0, NULL), *shown = json_object_get(devices, "host");
    assert_string_equal(json_string_value(json_object_get(devices, "measurement")), path);
    assert_int_equal(json_array_size(json_object_get(devices, "cards")), 0); /* no GPU found */
    assert_int_equal(json_array_size(json_object_get(devices, "profiles")), st_profile_row_count());
    assert_true(json_real_value(json_object_get(shown, "memory_gb_per_s")) == 123);
    assert_true(json_real_value(json_object_get(shown, "expert_share")) == 0.5);
    assert_true(json_is_false(json_object_get(shown, "estimate")));
    assert_true(json_real_value(json_object_get(json_object_get(shown, "type_share"), "Q8_0")) == 0.25);
    json_decref(devices);
    strata_free(text);
    st_free(path);
}

/* ---- the n-th allocation or file call fails ---------------------------------------------------------------------- */

static strata_status try_plan(const strata_model *model, char **json, strata_error *error)
{
    strata_placement given = PLACEMENT(.vram_bytes = GIB, .ram_bytes = 8 * GIB, .profile = "rtx-4070-ti");
    return strata_plan(model, &(strata_engine_options){.placement = &given}, json, error);
}

/* A typed error or a complete plan (an unreadable measurement is ignored); nothing leaks. */
static void failed_calls_while_planning_are_errors(void **state)
{
    (void)state;
    strata_model *model = NULL;
    strata_error error;
    uint64_t refused = 0;
    assert_int_equal(strata_model_open(kit_path("qwen3moe.gguf"), NULL, &model, &error), STRATA_OK);
    for (int kind = 0; kind < ST_FAULT_COUNT; kind++) {
        uint64_t n = 0, calls;
        do {
            char *json = NULL;
            st_fault_arm((st_fault_kind)kind, ++n, false);
            strata_status status = try_plan(model, &json, &error);
            calls = st_fault_calls((st_fault_kind)kind);
            st_fault_arm((st_fault_kind)kind, 0, false);
            assert_true(status == STRATA_OK || status == STRATA_MEMORY);
            assert_true((status == STRATA_OK) == (json != NULL));
            refused += status != STRATA_OK;
            strata_free(json);
        } while (calls >= n);
    }
    assert_true(refused > 3);
    strata_model_close(model);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

/* A described GPU runs what its backend states, without the backend's library; one that no backend runs on, everything. */
static void a_described_gpu_runs_what_its_backend_runs(void **state)
{
    (void)state;
    st_op wide = {.kind = ST_OP_SSM}, usual = {.kind = ST_OP_SSM};
    wide.p.ssm.state_size = 100000;
    usual.p.ssm.state_size = 128;
    static const char *const names[] = {NULL, "rtx-4090", "rx-7900-xtx"};
    for (int i = 0; i < 3; i++) {
        st_placement p = place(PLACEMENT(.profile = names[i], .vram_bytes = 12 * GIB));
        const st_profile *card = &p.devices[ST_CARD];
        bool states = i < 2;
        assert_int_equal(card->runs != NULL, states);
        if (states) assert_true(!card->runs(&wide) && card->runs(&usual));
        assert_int_equal(card->types[ST_OP_MATMUL] >> ST_TYPE_I8 & 1, !states);
        assert_true(card->types[ST_OP_HEAD_MATMUL] >> ST_TYPE_Q4_K & 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(the_default_is_this_host),
        IN_FOLDER(a_gpu_described_by_its_memory),
        IN_FOLDER(a_described_gpu_runs_what_its_backend_runs),
        cmocka_unit_test(the_table_of_profiles),
        IN_FOLDER(invalid_devices_are_refused),
        IN_FOLDER(options_reach_the_planner),
        IN_FOLDER(invalid_options_are_refused),
        IN_FOLDER(a_profile_with_every_field),
        IN_FOLDER(a_profile_with_few_fields),
        IN_FOLDER(invalid_profiles_are_refused),
        cmocka_unit_test(sizes_are_parsed),
        IN_FOLDER(memory_and_cpu_name_are_read_from_proc),
        cmocka_unit_test(a_busy_machine_is_measured_again),
        IN_FOLDER(a_measurement_is_stored),
        IN_FOLDER(rates_of_a_gpu_are_stored),
        IN_FOLDER(a_damaged_measurement_is_ignored),
        IN_FOLDER(measurements_out_of_range_are_ignored),
        IN_FOLDER(an_unwritable_cache_folder_is_an_error),
        IN_FOLDER(the_stored_measurement_is_used),
        IN_FOLDER(failed_calls_while_planning_are_errors),
    };
    return cmocka_run_group_tests_name("placement", tests, NULL, NULL);
}
