#include "backend/profiles.h"

#include <ctype.h>
#include <string.h>

#include "base/error.h"

#define GIB ((uint64_t)1 << 30)

/* Rates in 10⁹ per second. */
typedef struct card_row {
    const char *name;
    uint64_t vram_gib;
    double memory;  /* of the data sheet, unless it was reached */
    double ops;     /* of the data sheet: half precision on tensor cores, without sparsity */
    double link;    /* what pinned copies reach, either way */
    enum { SHEET, REACHED, NO_BACKEND } source; /* REACHED: `memory` was measured; NO_BACKEND: no backend runs on it */
} card_row;

/* What pinned copies reach over PCIe of a generation and so many lanes. */
enum { PCIE4_X8 = 13, PCIE4_X16 = 25, PCIE5_X8 = 25, PCIE5_X16 = 50 };

/* Where the figures are published is in docs/plan.md. */
static const card_row card_rows[] = {
    {"rtx-3060", 12, 360, 51e3, PCIE4_X16, SHEET},
    {"rtx-3070", 8, 448, 81e3, PCIE4_X16, SHEET},
    {"rtx-3080", 10, 760, 119e3, PCIE4_X16, SHEET},
    {"rtx-3090", 24, 936, 142e3, PCIE4_X16, SHEET},
    {"rtx-4060", 8, 272, 60e3, PCIE4_X8, SHEET},
    {"rtx-4060-ti-16gb", 16, 288, 88e3, PCIE4_X8, SHEET},
    {"rtx-4070", 12, 504, 117e3, PCIE4_X16, SHEET},
    {"rtx-4070-ti", 12, 504, 160e3, PCIE4_X16, SHEET},
    {"rtx-4080", 16, 717, 195e3, PCIE4_X16, SHEET},
    {"rtx-4090", 24, 1008, 330e3, PCIE4_X16, SHEET},
    {"rtx-5060-ti-16gb", 16, 448, 95e3, PCIE5_X8, SHEET},
    {"rtx-5070", 12, 672, 123e3, PCIE5_X16, SHEET},
    {"rtx-5070-ti", 16, 896, 176e3, PCIE5_X16, SHEET},
    {"rtx-5080", 16, 960, 225e3, PCIE5_X16, SHEET},
    {"rtx-5090", 32, 1792, 419e3, PCIE5_X16, SHEET},
    {"rtx-a6000", 48, 768, 155e3, PCIE4_X16, SHEET},
    {"h200", 139, 4300, 989e3, 55, REACHED},
    {"rx-7900-xtx", 24, 960, 123e3, PCIE4_X16, NO_BACKEND},
    {"rx-9070-xt", 16, 640, 195e3, PCIE5_X16, NO_BACKEND},
    {"arc-b580", 12, 456, 117e3, PCIE4_X8, NO_BACKEND},
};

/* Other names of a row. */
static const struct { const char *name, *row; } other_names[] = {
    {"rtx-4060-ti", "rtx-4060-ti-16gb"}, {"rtx-5060-ti", "rtx-5060-ti-16gb"},
};
enum { OTHER_NAMES = sizeof other_names / sizeof *other_names };

typedef struct host_row {
    const char *name;
    uint64_t ram_gib; /* 0: many sizes */
    uint32_t cores;
    double memory; /* what reading with all cores reaches */
    double ops;    /* int8, of all cores */
    double disk;
} host_row;

static const host_row host_rows[] = {
    {"ddr4-3200", 0, 8, 42, 800, 2},      /* two channels, AVX2 */
    {"ddr5-5600", 0, 12, 65, 3000, 3},    /* two channels, AVX-512 with VNNI */
    {"h200-host", 128, 16, 97, 4000, 2},
    {"epyc-2-cores", 0, 2, 18, 375, 1},   /* the least of what was measured */
};

enum { CARDS = sizeof card_rows / sizeof *card_rows, HOSTS = sizeof host_rows / sizeof *host_rows };

/* What operations of an H200 take beside their bytes, rounded: the latency of their kernels. */
static const st_class_rates card_classes[ST_CLASS_COUNT] = {
    [ST_CLASS_ROWS] = {.seconds = 1e-6},
    [ST_CLASS_PRODUCT] = {.seconds = 3e-6, .batch_seconds = 12e-6},
    [ST_CLASS_PLAIN_PRODUCT] = {.seconds = 3e-6},
    [ST_CLASS_POSITIONS] = {.seconds = 2e-6},
    [ST_CLASS_ATTENTION] = {.seconds = 5e-6},
    [ST_CLASS_WIDE_ATTENTION] = {.seconds = 8e-6},
    [ST_CLASS_ROUTE] = {.seconds = 1e-6},
    [ST_CLASS_EXPERTS] = {.seconds = 12e-6},
    [ST_CLASS_RECURRENT] = {.seconds = 2e-6},
    [ST_CLASS_CANDIDATES] = {.seconds = 22e-6},
};

static st_profile card_profile(const card_row *row)
{
    st_profile p = st_profile_default(ST_DEVICE_CARD);
    memcpy(p.name, row->name, strlen(row->name) + 1);
    p.estimate = true;
    p.total_bytes = p.free_bytes = row->vram_gib * GIB;
    p.rates = ST_RATES_SHEET;
    p.no_backend = row->source == NO_BACKEND;
    p.memory_rate = row->memory * 1e9 * (row->source == REACHED ? 1.0 : ST_DATA_SHEET_SHARE);
    p.op_rate = row->ops * 1e9 * ST_DATA_SHEET_SHARE;
    p.link_up = p.link_down = row->link * 1e9;
    memcpy(p.classes, card_classes, sizeof p.classes);
    return p;
}

static st_profile host_profile(const host_row *row)
{
    st_profile p = st_profile_default(ST_DEVICE_HOST);
    memcpy(p.name, row->name, strlen(row->name) + 1);
    p.estimate = true;
    p.rates = ST_RATES_SHEET;
    p.total_bytes = p.free_bytes = row->ram_gib * GIB;
    p.memory_rate = row->memory * 1e9;
    p.op_rate = row->ops * 1e9 * ST_DATA_SHEET_SHARE;
    p.disk_rate = row->disk * 1e9;
    p.cores = row->cores;
    p.row_seconds = ST_ROW_SECONDS;
    return p;
}

size_t st_profile_row_count(void)
{
    return CARDS + HOSTS;
}

st_profile st_profile_row(size_t index)
{
    return index < CARDS ? card_profile(&card_rows[index]) : host_profile(&host_rows[index - CARDS]);
}

static const char *row_name(size_t index)
{
    return index < CARDS ? card_rows[index].name : host_rows[index - CARDS].name;
}

/* Whether they are the same but for case, spaces and dashes. */
static bool name_is(const char *name, st_str text)
{
    size_t i = 0;
    for (;;) {
        while (*name == '-') name++;
        while (i < text.length && (text.data[i] == '-' || text.data[i] == '_' || text.data[i] == ' ')) i++;
        if (!*name || i == text.length) return !*name && i == text.length;
        if (*name++ != tolower((unsigned char)text.data[i++])) return false;
    }
}

/* Whether the text names the GPU or host; a GPU's series may be left out: "4090" is rtx-4090. */
static bool names(const char *name, bool card, st_str text)
{
    const char *model = card ? strchr(name, '-') : NULL;
    return name_is(name, text) || (model && name_is(model, text));
}

/* The row that the name stands for; the name itself if it is none of the others. */
static st_str row_of(st_str name)
{
    for (size_t i = 0; i < OTHER_NAMES; i++)
        if (names(other_names[i].name, true, name)) return st_str_from(other_names[i].row);
    return name;
}

bool st_profile_find(st_str name, st_profile *out)
{
    name = row_of(name);
    for (size_t i = 0; i < st_profile_row_count(); i++) {
        if (!names(row_name(i), i < CARDS, name)) continue;
        *out = st_profile_row(i);
        return true;
    }
    return false;
}

static strata_status refuse_name(st_str name, strata_error *error)
{
    char known[512] = "";
    for (size_t i = 0; i < st_profile_row_count(); i++) st_error_list(known, sizeof known, row_name(i));
    return st_error_set(error, STRATA_USAGE, "give a GPU, a host, GPU+HOST or a JSON file (docs/json.md)",
                        "placement.profile: expected one of %s, found %.*s", known,
                        ST_STR_ARG(st_str_head(name, 64)));
}

static strata_status take_name(st_str name, st_profile_set *set, strata_error *error)
{
    st_profile found;
    if (!st_profile_find(name, &found)) return refuse_name(name, error);
    bool card = found.kind == ST_DEVICE_CARD;
    if (card ? set->has_card : set->has_host)
        return st_error_set(error, STRATA_USAGE, "strata uses one GPU and one host",
                            "placement.profile: expected a GPU and a host, found two %s, %s and %s",
                            card ? "GPUs" : "hosts", card ? set->card.name : set->host.name, found.name);
    if (card) set->card = found;
    else set->host = found;
    set->has_card |= card;
    set->has_host |= !card;
    return STRATA_OK;
}

static bool is_path(const char *text)
{
    size_t length = strlen(text);
    return strchr(text, '/') || (length > 5 && strcmp(text + length - 5, ".json") == 0);
}

strata_status st_profile_set_of(const char *text, st_profile_set *out, strata_error *error)
{
    if (is_path(text)) return st_profile_file_read(text, out, error);
    st_profile_set set = {0};
    strata_status status = STRATA_OK;
    const char *part = text;
    do {
        size_t length = strcspn(part, "+");
        status = take_name((st_str){part, length}, &set, error);
        part += length;
    } while (status == STRATA_OK && *part++);
    if (status == STRATA_OK) *out = set;
    return status;
}
