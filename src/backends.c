#include "backends.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/statement.h"
#include "backend/sim/sim.h"

static strata_status sim_world_new(const st_plan_source *source, void **out, strata_error *error)
{
    st_sim_options options = {.host = source->devices[ST_HOST], .card = source->devices[ST_CARD],
                              .program = source->program, .binding = source->binding};
    st_sim_world *world;
    strata_status status = st_sim_world_new(&options, &world, error);
    if (status == STRATA_OK) *out = world;
    return status;
}

static void sim_world_free(void *world)
{
    st_sim_world_free(world);
}

static double sim_seconds(const void *world)
{
    return st_sim_world_seconds(world);
}

/* The first row is the default. */
static const st_backend_row rows[] = {
    {.name = "cpu", .host = st_backend_cpu},
    {.name = "sim", .host = st_backend_sim_host, .card = st_backend_sim_card, .world_new = sim_world_new,
     .world_free = sim_world_free, .seconds = sim_seconds},
    {.name = "cuda", .host = st_backend_cpu, .plugin = "cuda", .statement = &st_cuda_statement},
};
enum { ROWS = sizeof rows / sizeof *rows, INDEX_DIGITS = 3 };

/* The decimal number of a GPU. */
static bool parse_index(const char *text, uint32_t *out)
{
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > INDEX_DIGITS || text[digits]) return false;
    *out = (uint32_t)strtoul(text, NULL, 10);
    return true;
}

const st_backend_row *st_backend_find(const char *text, uint32_t *index)
{
    *index = 0;
    if (!text) return &rows[0];
    size_t length = strcspn(text, ":");
    for (size_t i = 0; i < ROWS; i++) {
        if (strlen(rows[i].name) != length || memcmp(rows[i].name, text, length) != 0) continue;
        return !text[length] || (rows[i].plugin && parse_index(text + length + 1, index)) ? &rows[i] : NULL;
    }
    return NULL;
}

const st_backend_row *st_backend_default_gpu(void)
{
    size_t i = 0;
    while (!rows[i].plugin) i++;
    return &rows[i];
}

bool st_backend_has_gpu(const st_backend_row *row)
{
    return row->card || row->plugin;
}

const char *st_backend_names(char *text, size_t size)
{
    size_t used = 0;
    for (size_t i = 0; i < ROWS && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i == 0 ? "" : i + 1 == ROWS ? " or " : ", ",
                                 rows[i].name);
    return text;
}

strata_status st_backends_open(st_backends *backends, const st_backend_row *row, const st_plan_source *source,
                               st_device_options options, st_load_device gpu, uint32_t count, strata_error *error)
{
    *backends = (st_backends){.row = row, .devices[ST_CARD] = gpu};
    backends->devices[ST_HOST].backend = row->host();
    if (row->card) backends->devices[ST_CARD].backend = row->card();
    strata_status status = row->world_new ? row->world_new(source, &backends->world, error) : STRATA_OK;
    options.world = backends->world;
    for (uint32_t d = 0; d < count && status == STRATA_OK; d++)
        if (!backends->devices[d].device)
            status = backends->devices[d].backend->open(&options, &backends->devices[d].device, error);
    return status;
}

void st_backends_close(st_backends *backends)
{
    for (uint32_t d = ST_DEVICES_MAX; d-- > 0;)
        if (backends->devices[d].device) backends->devices[d].backend->close(backends->devices[d].device);
    if (backends->world) backends->row->world_free(backends->world);
}
