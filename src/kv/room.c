/* What the scheduler asks about the KV cache. */
#include <string.h>

#include "kv/memory.h"

uint32_t st_kv_mark_running(const st_kv *kv)
{
    uint32_t pages = kv->layout->pools[0].pages, marked = 0;
    memset(kv->marks, 0, (pages + 63) / 64 * sizeof *kv->marks);
    for (const st_conversation *c = kv->first; c; c = c->next)
        for (uint32_t i = c->tables[0].first; (c->runs || c->running) && i < c->tables[0].end; i++) {
            uint32_t page = c->tables[0].pages[i];
            marked += !st_kv_marked(kv, page);
            kv->marks[page / 64] |= (uint64_t)1 << page % 64;
        }
    return marked;
}

bool st_kv_marked(const st_kv *kv, uint32_t page)
{
    return kv->marks[page / 64] >> page % 64 & 1;
}

uint32_t st_kv_room(const st_kv *kv, uint32_t enough)
{
    st_pages_counts counts = st_pages_count(kv->pages[0]);
    if (counts.free + counts.cached >= enough) return enough;
    uint32_t room = counts.total - st_kv_mark_running(kv);
    return room < enough ? room : enough;
}

bool st_kv_has_state(const st_kv *kv)
{
    return kv->has_state;
}
