#include "memory/ledger.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

#define MISTAKE "this is a mistake in strata: please report it"

/* One device's page. */
typedef struct page {
    char name[64];
    uint64_t capacity_bytes;
    st_ledger_line lines[ST_OWNER_COUNT];
    uint64_t late_bytes[ST_OWNER_COUNT]; /* committed after the lock */
    const st_backend *backend;           /* that allocated the block; NULL: none yet */
    st_device *handle;
    void *block;
    bool host_memory;
    bool asked;          /* the device told its free bytes exactly before the block was allocated */
    uint64_t free_bytes; /* as it told them then */
} page;

struct st_ledger {
    st_ledger_trace trace;
    void *context;
    bool locked;
    uint32_t device_count;
    page pages[];
};

strata_status st_ledger_new(uint32_t device_count, st_ledger_trace trace, void *context, st_ledger **out,
                            strata_error *error)
{
    if (device_count == 0 || device_count > ST_DEVICES_MAX)
        return st_error_set(error, STRATA_USAGE, NULL, "the ledger: expected 1 to %d devices, found %u", ST_DEVICES_MAX,
                            device_count);
    size_t bytes = sizeof(st_ledger) + device_count * sizeof(page);
    st_ledger *ledger = st_alloc_zero(1, bytes);
    if (!ledger) return st_error_memory(error, bytes, "the ledger");
    ledger->trace = trace;
    ledger->context = context;
    ledger->device_count = device_count;
    for (uint32_t i = 0; i < device_count; i++)
        snprintf(ledger->pages[i].name, sizeof ledger->pages[i].name, "device %u", i);
    *out = ledger;
    return STRATA_OK;
}

static void free_block(page *p)
{
    if (!p->block) return;
    if (p->host_memory) p->backend->host_free(p->handle, p->block);
    else p->backend->free(p->handle, p->block);
    p->block = NULL;
}

static uint64_t ask_free(const page *p)
{
    st_device_info info;
    p->backend->info(p->handle, &info);
    return info.free_bytes;
}

strata_status st_ledger_close(st_ledger *ledger, strata_error *error)
{
    strata_status status = STRATA_OK;
    if (!ledger) return status;
    for (uint32_t i = ledger->device_count; i-- > 0;) {
        page *p = &ledger->pages[i];
        free_block(p);
        if (!p->asked || ask_free(p) == p->free_bytes) continue;
        status = st_error_set(error, STRATA_MEMORY, MISTAKE,
                              "%s: expected the %llu bytes free as before loading, found %llu", p->name,
                              (unsigned long long)p->free_bytes, (unsigned long long)ask_free(p));
    }
    st_free(ledger);
    return status;
}

void st_ledger_name(st_ledger *ledger, uint32_t device, const char *name, uint64_t capacity_bytes)
{
    page *p = &ledger->pages[device];
    snprintf(p->name, sizeof p->name, "%s", name);
    p->capacity_bytes = capacity_bytes;
}

/* --- the numbers: a sum that overflows stays at UINT64_MAX, which no plan has ------------------------------------- */

static void add(uint64_t *sum, uint64_t bytes)
{
    if (__builtin_add_overflow(*sum, bytes, sum)) *sum = UINT64_MAX;
}

void st_ledger_reserve(st_ledger *ledger, uint32_t device, st_owner owner, uint64_t bytes)
{
    add(&ledger->pages[device].lines[owner].reserved, bytes);
}

void st_ledger_commit(st_ledger *ledger, uint32_t device, st_owner owner, uint64_t bytes)
{
    page *p = &ledger->pages[device];
    add(&p->lines[owner].committed, bytes);
    if (ledger->locked) add(&p->late_bytes[owner], bytes);
}

void st_ledger_lock(st_ledger *ledger)
{
    ledger->locked = true;
}

st_ledger_line st_ledger_at(const st_ledger *ledger, uint32_t device, st_owner owner)
{
    return ledger->pages[device].lines[owner];
}

static st_ledger_line sum_of(const page *p)
{
    st_ledger_line sum = {0};
    for (int owner = 0; owner < ST_OWNER_COUNT; owner++) {
        add(&sum.reserved, p->lines[owner].reserved);
        add(&sum.committed, p->lines[owner].committed);
    }
    return sum;
}

void st_ledger_mark(st_ledger *ledger, const char *moment)
{
    if (!ledger->trace) return;
    for (uint32_t i = 0; i < ledger->device_count; i++) {
        const page *p = &ledger->pages[i];
        uint64_t used = sum_of(p).committed;
        ledger->trace(ledger->context, moment, p->name, used, used < p->capacity_bytes ? p->capacity_bytes - used : 0);
    }
}

/* --- the one block ------------------------------------------------------------------------------------------------ */

strata_status st_ledger_allocate(st_ledger *ledger, uint32_t device, const st_backend *backend, st_device *handle,
                                 uint64_t bytes, bool host_memory, strata_error *error)
{
    page *p = &ledger->pages[device];
    if (p->backend)
        return st_error_set(error, STRATA_RUNTIME, NULL, "%s: expected one allocation, found a second of %llu bytes",
                            p->name, (unsigned long long)bytes);
    if ((size_t)bytes != bytes) return st_error_memory(error, SIZE_MAX, p->name);
    st_device_info info;
    backend->info(handle, &info);
    void *block = NULL;
    bool pinned;
    strata_status status = STRATA_OK;
    if (bytes && host_memory) status = backend->host_alloc(handle, (size_t)bytes, &block, &pinned, error);
    else if (bytes) status = backend->alloc(handle, (size_t)bytes, &block, error);
    if (status != STRATA_OK) {
        st_error_prefix(error, p->name);
        return status;
    }
    p->backend = backend;
    p->handle = handle;
    p->block = block;
    p->host_memory = host_memory;
    p->asked = info.exact && !host_memory;
    p->free_bytes = info.free_bytes;
    return STRATA_OK;
}

unsigned char *st_ledger_block(const st_ledger *ledger, uint32_t device)
{
    return ledger->pages[device].block;
}

/* --- planned against allocated ------------------------------------------------------------------------------------ */

static strata_status check_line(const page *p, st_owner owner, strata_error *error)
{
    const st_ledger_line *line = &p->lines[owner];
    if (p->late_bytes[owner])
        return st_error_set(error, STRATA_MEMORY, MISTAKE,
                            "%s: %s: expected nothing to be taken after loading, found %llu bytes", p->name,
                            st_owner_name(owner), (unsigned long long)p->late_bytes[owner]);
    if (owner != ST_OWNER_RUNTIME && line->reserved != line->committed)
        return st_error_set(error, STRATA_MEMORY, MISTAKE,
                            "%s: %s: expected the planned %llu bytes, found %llu allocated", p->name,
                            st_owner_name(owner), (unsigned long long)line->reserved,
                            (unsigned long long)line->committed);
    return STRATA_OK;
}

static strata_status check_device(const page *p, strata_error *error)
{
    if (!p->asked) return STRATA_OK;
    uint64_t free_now = ask_free(p), planned = sum_of(p).reserved - p->lines[ST_OWNER_RUNTIME].reserved;
    uint64_t taken = p->free_bytes > free_now ? p->free_bytes - free_now : 0;
    if (taken == planned) return STRATA_OK;
    return st_error_set(error, STRATA_MEMORY, MISTAKE,
                        "%s: expected the planned %llu bytes to be allocated, the device has %llu less than before",
                        p->name, (unsigned long long)planned, (unsigned long long)taken);
}

strata_status st_ledger_check(const st_ledger *ledger, strata_error *error)
{
    for (uint32_t i = 0; i < ledger->device_count; i++) {
        strata_status told = check_device(&ledger->pages[i], error);
        if (told != STRATA_OK) return told;
        for (int owner = 0; owner < ST_OWNER_COUNT; owner++) {
            strata_status status = check_line(&ledger->pages[i], (st_owner)owner, error);
            if (status != STRATA_OK) return status;
        }
    }
    return STRATA_OK;
}
