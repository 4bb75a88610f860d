#include "plan/timeline.h"

#include <math.h>

#include "plan/plan.h"

static double spend(st_timeline *t, st_spent what, double seconds)
{
    t->spent[what] += seconds;
    return seconds;
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

double st_copy_seconds(const st_profile *devices, bool up, double bytes)
{
    double link = up ? devices[ST_CARD].link_up : devices[ST_CARD].link_down, memory = devices[ST_HOST].memory_rate;
    double rate = memory > 0 && memory < link ? memory : link;
    return rate > 0 ? bytes / rate : 0;
}

static double disk_seconds(const st_timeline *t, double weight_bytes)
{
    double rate = t->devices[ST_HOST].disk_rate;
    return t->disk_share > 0 && rate > 0 ? weight_bytes * t->disk_share / rate : 0;
}

/* The GPU cannot begin with what the host has not yet enqueued. */
static void card_begins(st_timeline *t)
{
    if (t->card < t->host) t->card = t->host;
}

static void launch(st_timeline *t)
{
    card_begins(t);
    t->card += spend(t, ST_SPENT_HANDOVER, t->devices[ST_CARD].launch_seconds);
}

static void copy(st_timeline *t, double seconds)
{
    card_begins(t);
    t->card += spend(t, ST_SPENT_LINK, seconds);
}

static void host_waits(st_timeline *t, const st_priced *e)
{
    if (e->mark == ST_NO_MARK) return;
    if (t->host < t->marks[e->mark]) t->host = t->marks[e->mark];
    if (!e->chained) t->host += spend(t, ST_SPENT_HANDOVER, t->devices[ST_CARD].handover_seconds);
}

static void walk_host(st_timeline *t, const st_priced *e)
{
    host_waits(t, e);
    t->host += spend(t, ST_SPENT_RAM, e->memory) + spend(t, ST_SPENT_ARITHMETIC, e->arithmetic) +
               spend(t, ST_SPENT_OPERATIONS, e->fixed) + spend(t, ST_SPENT_DISK, disk_seconds(t, e->weight_bytes));
}

static void walk_card(st_timeline *t, const st_priced *e)
{
    if (!e->chained) launch(t);
    t->card += spend(t, ST_SPENT_CARD_MEMORY, e->memory) + spend(t, ST_SPENT_ARITHMETIC, e->arithmetic) +
               spend(t, ST_SPENT_OPERATIONS, e->fixed);
}

static void walk_copy(st_timeline *t, const st_priced *e)
{
    if (e->chained) {
        if (e->up) card_begins(t); /* with what the host answers */
        t->card += spend(t, ST_SPENT_HANDOVER, e->handover) + spend(t, ST_SPENT_LINK, e->copy);
    } else {
        copy(t, e->copy);
    }
    t->marks[e->mark] = t->card;
}

/* --- experts with slots ------------------------------------------------------------------------------------------- */

typedef struct part {
    double seconds, fixed; /* in all; of it, what does not grow with the experts */
    st_spent on;
} part;

static part part_of(const st_timeline *t, const st_cached_experts *x, uint32_t device, double share)
{
    st_work work = x->work;
    work.bytes *= share;
    work.ops *= share;
    work.ops_filled *= share;
    const st_profile *profile = &t->devices[device];
    part p = {.seconds = st_profile_seconds(profile, &work), .fixed = st_profile_fixed(profile, &work)};
    p.on = device == ST_CARD ? ST_SPENT_CARD_MEMORY : ST_SPENT_RAM;
    if (!st_profile_reads(profile, &work)) p.on = ST_SPENT_ARITHMETIC;
    return p;
}

/* The GPU's share is priced as if it had all experts: a hit rate is a mean over layers with all and layers with few of
 * them, and a larger cache must not be predicted slower. */
static part card_part(const st_timeline *t, const st_cached_experts *x)
{
    return part_of(t, x, ST_CARD, 1);
}

static double resident_share(const st_timeline *t, const st_cached_experts *x)
{
    double share = t->slots ? (double)t->slots[x->layer] / x->experts : 0;
    return share < 1 ? share : 1;
}

/* Of one token's experts the hit rate; of a batch, which touches all, the resident share, if its own is unknown. */
static double share_on_card(const st_timeline *t, const st_cached_experts *x)
{
    double resident = resident_share(t, x);
    if (resident <= 0 || resident >= 1) return resident;
    if (x->rows > 1) return t->batch_rate >= 0 ? t->batch_rate : resident;
    return t->hit_rate >= 0 ? t->hit_rate : st_hit_rate_of(t->hits, x->experts, resident);
}

static part host_part(const st_timeline *t, const st_cached_experts *x)
{
    double share = 1 - share_on_card(t, x), disk = disk_seconds(t, x->work.bytes * share);
    part p = part_of(t, x, ST_HOST, share);
    if (disk > p.seconds) p.on = ST_SPENT_DISK;
    p.seconds += disk;
    return p;
}

/* A token misses a whole number of experts. The time of a layer is the mean over that number, with each expert missing
 * independently, and not the time of the mean number. */
static void mean_ends(const st_timeline *t, const st_priced *e, double begin, double slowed, double *end,
                      double *host_end)
{
    const st_cached_experts *x = &e->cached;
    double sum = x->up + (e->chained ? 0 : t->devices[ST_CARD].launch_seconds); /* to add the host's */
    part card = card_part(t, x), host = host_part(t, x);
    double missing = 1 - share_on_card(t, x);
    double each = missing > 0 ? (host.seconds - host.fixed) / missing / x->used * slowed : 0;
    double chance = missing < 1 ? pow(1 - missing, x->used) : 0;
    *end = *host_end = 0;
    for (uint32_t m = 0; m <= x->used; m++) {
        if (m == x->used && missing >= 1) chance = 1;
        double on_card = begin + card.seconds, on_host = t->host + (m > 0 ? host.fixed + each * m : 0);
        double both = on_card > on_host ? on_card : on_host;
        *end += chance * (both + e->handover + (m > 0 ? sum : 0));
        *host_end += chance * on_host;
        if (missing < 1) chance *= (double)(x->used - m) / (m + 1) * missing / (1 - missing);
    }
}

/* An upload takes bandwidth of RAM from the CPU: the factor by which the CPU slows down. */
static double slowed_by_uploads(const st_timeline *t, const st_cached_experts *x, double seconds)
{
    double memory = t->devices[ST_HOST].memory_rate, link = t->devices[ST_CARD].link_up;
    if (t->uploads <= 0 || seconds <= 0 || link <= 0 || memory <= 0) return 1;
    if (link > memory / 2) link = memory / 2; /* the CPU keeps half */
    double busy = t->uploads * x->work.bytes / x->used / link / seconds;
    return 1 + (busy < 1 ? busy : 1) * link / (memory - link);
}

static void walk_token(st_timeline *t, const st_priced *e)
{
    const st_cached_experts *x = &e->cached;
    part card = card_part(t, x), host = host_part(t, x);
    double begin = t->card, end, host_end;
    mean_ends(t, e, begin, 1, &end, &host_end);
    mean_ends(t, e, begin, slowed_by_uploads(t, x, end - t->layer_began), &end, &host_end);
    if (begin + card.seconds > host_end) spend(t, card.on, card.seconds);
    else spend(t, host.on, host_end - t->host);
    spend(t, ST_SPENT_LINK, x->up);
    spend(t, ST_SPENT_HANDOVER, e->handover);
    t->card = t->layer_began = end;
    t->host = host_end;
}

/* A batch's experts without a slot are divided: the host computes some while the GPU fetches the others. Seconds: */
typedef struct division {
    double card;         /* of the GPU, for all experts */
    double late;         /* until the host knows them, after the GPU has begun with those that have a slot */
    double host, fixed;  /* of the host, for all that are missing; beside it, for any number of them */
    double link, memory; /* of fetching all that are missing; of reading them once */
    double disk;         /* of reading them from there, whoever gets them */
    double add;          /* of adding the host's sum */
    double last;         /* of the GPU's work with the expert that arrives last */
    double missing;      /* how many there are, on average */
} division;

/* Copies and the host read the same memory. */
static double host_seconds(const division *d, double fetched)
{
    double alone = d->fixed + d->host * (1 - fetched);
    if (fetched >= 1) return 0;
    return d->disk + (fetched > 0 ? later(alone, d->memory) : alone);
}

static double link_seconds(const division *d, double fetched)
{
    return fetched > 0 ? d->disk + later(d->link * fetched + d->last, d->memory) : 0;
}

static double divided_seconds(const division *d, double fetched)
{
    double both = d->late + later(host_seconds(d, fetched), link_seconds(d, fetched));
    return later(d->card, both) + (fetched < 1 ? d->add : 0);
}

/* One of them gets all, or both end at about the same time: a whole number of experts is fetched. */
static double fetched_share(const division *d)
{
    double balanced = (d->fixed + d->host - d->last) / (d->host + d->link) * d->missing;
    const double shares[] = {0, floor(balanced) / d->missing, ceil(balanced) / d->missing, 1};
    double best = 0;
    for (int i = 1; i < 4; i++)
        if (shares[i] > 0 && shares[i] <= 1 && divided_seconds(d, shares[i]) < divided_seconds(d, best)) best = shares[i];
    return best;
}

static void walk_batch(st_timeline *t, const st_priced *e)
{
    const st_cached_experts *x = &e->cached;
    double share = 1 - share_on_card(t, x), missing = x->work.bytes * share, memory = t->devices[ST_HOST].memory_rate;
    double launch_seconds = e->chained ? 0 : t->devices[ST_CARD].launch_seconds;
    part card = card_part(t, x), host = host_part(t, x);
    division d = {.card = card.seconds, .late = t->host > t->card ? t->host - t->card : 0, .fixed = host.fixed,
                  .link = st_copy_seconds(t->devices, true, missing), .memory = memory > 0 ? missing / memory : 0,
                  .disk = disk_seconds(t, missing), .add = x->up + launch_seconds,
                  .last = (card.seconds - card.fixed) / x->touched, .missing = later(x->touched * share, 1)};
    d.host = host.seconds - host.fixed - d.disk;
    double fetched = e->chained ? 0 : fetched_share(&d), computed = host_seconds(&d, fetched), link = link_seconds(&d, fetched);
    if (d.card >= d.late + later(computed, link)) spend(t, card.on, card.seconds);
    else if (computed >= link) spend(t, host.on, computed);
    else spend(t, d.disk > d.link ? ST_SPENT_DISK : ST_SPENT_LINK, link);
    if (fetched < 1) spend(t, ST_SPENT_LINK, x->up);
    t->host += computed;
    t->card += divided_seconds(&d, fetched) + e->handover + (fetched > 0 ? launch_seconds : 0);
}

static void walk_experts(st_timeline *t, const st_priced *e)
{
    const st_cached_experts *x = &e->cached;
    host_waits(t, e);
    if (resident_share(t, x) >= 1) {
        part card = card_part(t, x);
        launch(t);
        t->card += spend(t, card.on, card.seconds);
    } else if (x->rows == 1) {
        walk_token(t, e);
    } else {
        walk_batch(t, e);
    }
}

/* --- fetches of streamed matrices ---------------------------------------------------------------------------------- */

static void begin_step(st_timeline *t)
{
    t->fetches = 0;
    t->taken = 0;
    for (uint32_t i = 0; i < ST_FETCH_BUFFERS; i++) t->asked[i] = t->host;
}

/* The GPU waits for the copy into the buffer of its next segment. */
static void await_fetch(st_timeline *t, const st_priced *e)
{
    uint32_t buffer = t->fetches % ST_FETCH_BUFFERS;
    double begin = later(t->fetched, later(t->asked[buffer], t->used_up[buffer]));
    t->fetched = begin + t->taken + st_copy_seconds(t->devices, true, e->fetch_bytes) + disk_seconds(t, e->fetch_bytes);
    t->taken = 0;
    card_begins(t);
    if (t->card < t->fetched) t->card += spend(t, ST_SPENT_LINK, t->fetched - t->card);
}

static void ask_for_fetch(st_timeline *t)
{
    uint32_t buffer = t->fetches++ % ST_FETCH_BUFFERS;
    t->used_up[buffer] = t->card;
    t->asked[buffer] = t->host;
}

/* --- in all ------------------------------------------------------------------------------------------------------- */

void st_timeline_walk(st_timeline *line, const st_priced *events, uint32_t count)
{
    begin_step(line);
    for (uint32_t i = 0; i < count; i++) {
        const st_priced *e = &events[i];
        if (e->fetch_bytes > 0) await_fetch(line, e);
        switch (e->kind) {
        case ST_EVENT_HOST: walk_host(line, e); break;
        case ST_EVENT_CARD: walk_card(line, e); break;
        case ST_EVENT_COPY: walk_copy(line, e); break;
        case ST_EVENT_EXPERTS: walk_experts(line, e); break;
        }
        if (e->up) line->taken += e->copy;
        if (e->fetch_bytes > 0) ask_for_fetch(line);
    }
}
