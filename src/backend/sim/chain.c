/* Chains of the simulated GPU: every link is a command of the queue. A hand-over takes half a round trip and its
 * bytes on the link; a link that needs an answer starts when the host has given it. The race checker sees which memory
 * a hand-over uses, so a host that reads or writes it at the wrong time is found. */
#include <string.h>

#include "backend/sim/world.h"
#include "base/alloc.h"
#include "base/error.h"

typedef struct chain_link {
    st_link is;
    uint32_t sent;     /* the sequence of the last launch in which the SEND was done … */
    uint32_t answered; /* … or the RECEIVE or ADD was answered */
    bool none;         /* with nothing to add */
} chain_link;

struct st_chain {
    st_sim_card *card;
    chain_link *links; /* [count] */
    uint32_t count;
    double limit;      /* seconds */
    uint32_t sequence; /* of the last launch */
    uint64_t end;      /* a point behind it */
};

/* A hand-over that has not ended. */
typedef struct handover {
    st_sim_actor actor;
    st_sim_world *world;
    chain_link *link;
    uint32_t sequence, rows;
    double launch; /* seconds, of the first link */
    bool begun;
} handover;

static size_t value_bytes(const handover *t, uint32_t value)
{
    return (size_t)t->rows * t->link->is.values[value].width * sizeof(float);
}

static bool is_sent(const handover *t)
{
    return t->link->is.kind == ST_LINK_SEND;
}

/* Whether the values travel: an answer may be that there are none. */
static bool travels(const handover *t)
{
    return is_sent(t) || !t->link->none;
}

static bool is_answered(void *context)
{
    const handover *t = context;
    return is_sent(t) || t->link->answered == t->sequence;
}

static void visit_handover(const st_sim_actor *actor, st_sim_visitor *visitor, void *context)
{
    const handover *t = (const handover *)(const void *)actor;
    for (uint32_t i = 0; i < t->link->is.value_count && travels(t); i++) {
        const st_link_value *v = &t->link->is.values[i];
        visitor(context, (st_sim_access){.address = v->to, .bytes = value_bytes(t, i), .write = true});
        visitor(context, (st_sim_access){.address = v->from, .bytes = value_bytes(t, i)});
    }
}

static bool next_handover(void *context, st_demand *demand)
{
    handover *t = context;
    if (t->begun) return false;
    t->begun = true;
    double bytes = 0;
    for (uint32_t i = 0; i < t->link->is.value_count && travels(t); i++) bytes += (double)value_bytes(t, i);
    *demand = (st_demand){.latency = t->launch + t->world->card.round_trip_seconds / 2};
    demand->amount[is_sent(t) ? ST_RESOURCE_LINK_DOWN : ST_RESOURCE_LINK_UP] = bytes;
    demand->amount[ST_RESOURCE_HOST_DRAM] = bytes;
    st_sim_begin(t->world, &t->actor);
    for (uint32_t i = 0; i < t->link->is.value_count && t->link->is.kind != ST_LINK_ADD; i++)
        st_sim_poison(t->link->is.values[i].to, value_bytes(t, i));
    return true;
}

static void carry(const handover *t)
{
    for (uint32_t i = 0; i < t->link->is.value_count && travels(t); i++) {
        const st_link_value *v = &t->link->is.values[i];
        if (t->link->is.kind != ST_LINK_ADD) {
            memcpy(v->to, v->from, value_bytes(t, i));
            continue;
        }
        float *sum = v->to;
        const float *term = v->from;
        for (size_t k = 0; k < value_bytes(t, i) / sizeof *sum; k++) sum[k] += term[k];
    }
}

static strata_status end_handover(void *context, strata_error *error)
{
    handover *t = context;
    st_sim_end(t->world, &t->actor);
    if (t->world->lost) return st_sim_tell_lost(error);
    if (t->actor.raced) return st_sim_tell_race("hand-over", -1, error);
    carry(t);
    if (is_sent(t)) t->link->sent = t->sequence;
    return STRATA_OK;
}

static void drop_handover(void *context)
{
    handover *t = context;
    st_sim_end(t->world, &t->actor);
    st_free(t);
}

static strata_status push_handover(const st_chain *chain, chain_link *link, uint32_t queue, uint32_t rows, double launch,
                               strata_error *error)
{
    handover *t = st_alloc(sizeof *t);
    if (!t) return st_error_memory(error, sizeof *t, "a hand-over of the simulated GPU");
    *t = (handover){.actor.visit = visit_handover, .world = chain->card->world, .link = link, .sequence = chain->sequence,
                .rows = rows, .launch = launch};
    st_command command = {.ready = is_answered, .patience = chain->limit, .next = next_handover, .end = end_handover,
                          .drop = drop_handover, .context = t};
    strata_status status = st_clock_push(chain->card->world->clock, queue, &command, error);
    if (status != STRATA_OK) st_free(t);
    return status;
}

/* --- expert tables ------------------------------------------------------------------------------------------------ */

static bool needs_answer(const chain_link *link)
{
    return link->is.kind == ST_LINK_RECEIVE || link->is.kind == ST_LINK_ADD;
}

/* The GPU reads the tables of the segments from link `first` on, up to the next that needs an answer. */
static void show_tables(const st_chain *chain, uint32_t first)
{
    for (uint32_t i = first; i < chain->count && !needs_answer(&chain->links[i]); i++)
        if (chain->links[i].is.kind == ST_LINK_RUN) st_sim_segment_show(chain->links[i].is.segment);
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

strata_status st_sim_chain_launch(st_chain *chain, uint32_t queue, uint32_t rows, uint32_t sequence,
                                  strata_error *error)
{
    strata_status status = STRATA_OK;
    double launch = chain->card->world->card.launch_seconds;
    chain->sequence = sequence;
    chain->end = 0;
    show_tables(chain, 0);
    for (uint32_t i = 0; i < chain->count && status == STRATA_OK; i++) {
        chain_link *link = &chain->links[i];
        if (link->is.kind == ST_LINK_RUN)
            status = st_sim_segment_chain(link->is.segment, queue, rows, launch, error);
        else status = push_handover(chain, link, queue, rows, launch, error);
        launch = 0;
    }
    return status;
}

void st_sim_chain_ends(st_chain *chain, uint64_t point)
{
    chain->end = point;
}

typedef struct chain_wait {
    const st_chain *chain;
    uint32_t link;
} chain_wait;

/* The link is done, or never will be. */
static bool is_over(void *context)
{
    const chain_wait *w = context;
    const st_chain *chain = w->chain;
    return chain->links[w->link].sent == chain->sequence || st_clock_decided(chain->card->world->clock, chain->end);
}

strata_status st_sim_chain_await(st_chain *chain, uint32_t link, uint64_t limit_us, const atomic_bool *interrupt,
                                 strata_error *error)
{
    st_clock *clock = chain->card->world->clock;
    chain_wait wait = {chain, link};
    if (interrupt && atomic_load_explicit(interrupt, memory_order_relaxed))
        return st_error_set(error, STRATA_INTERRUPTED, NULL, "the computation was interrupted");
    strata_status status = st_clock_wait_until(clock, is_over, &wait, 1e-6 * (double)limit_us, error);
    if (status != STRATA_OK || chain->links[link].sent == chain->sequence) return status;
    status = st_clock_wait(clock, chain->end, 0, error);
    if (status != STRATA_OK) return status;
    return st_error_set(error, STRATA_DEVICE, NULL, "awaited a hand-over that the launch does not have");
}

void st_sim_chain_answer(st_chain *chain, uint32_t link, bool none)
{
    show_tables(chain, link + 1);
    chain->links[link].none = none;
    chain->links[link].answered = chain->sequence;
}

void st_sim_chain_abandon(st_chain *chain)
{
    for (uint32_t i = 0; i < chain->count; i++) {
        if (!needs_answer(&chain->links[i]) || chain->links[i].answered == chain->sequence) continue;
        st_sim_chain_answer(chain, i, true);
    }
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

static strata_status check_link(const st_sim_card *card, const st_link *link, strata_error *error)
{
    for (uint32_t i = 0; i < link->value_count; i++) {
        const st_link_value *v = &link->values[i];
        const void *device = link->kind == ST_LINK_SEND ? v->from : v->to;
        const void *host = link->kind == ST_LINK_SEND ? v->to : v->from;
        size_t bytes = v->width * sizeof(float); /* the rows are known at a launch */
        if (!st_sim_memory_holds(&card->world->memory, device, bytes))
            return st_error_set(error, STRATA_DEVICE, NULL, "hand-over: expected %zu bytes of GPU memory, found %p",
                                bytes, device);
        if (!host || st_sim_memory_touches(&card->world->memory, host, bytes))
            return st_error_set(error, STRATA_DEVICE, NULL, "hand-over: expected %zu bytes of host memory, found %p",
                                bytes, host);
    }
    return STRATA_OK;
}

strata_status st_sim_chain_new(st_sim_card *card, const st_chain_source *source, st_chain **out, strata_error *error)
{
    strata_status status = STRATA_OK;
    for (uint32_t i = 0; i < source->count && status == STRATA_OK; i++)
        status = check_link(card, &source->links[i], error);
    if (status != STRATA_OK) return status;
    st_chain *chain = st_alloc_zero(1, sizeof *chain);
    chain_link *links = st_alloc_zero(source->count, sizeof *links);
    if (!chain || !links) {
        st_free(chain);
        st_free(links);
        return st_error_memory(error, source->count * sizeof *links, "a chain of the simulated GPU");
    }
    for (uint32_t i = 0; i < source->count; i++) links[i].is = source->links[i];
    *chain = (st_chain){.card = card, .links = links, .count = source->count,
                        .limit = 1e-6 * (double)source->limit_us};
    *out = chain;
    return STRATA_OK;
}

void st_sim_chain_free(st_chain *chain)
{
    if (!chain) return;
    st_free(chain->links);
    st_free(chain);
}
