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

/* All experts on the device. The GPU's share is priced as if it had all of them: a hit rate is a mean over layers with all
 * and layers with few of them, and a larger cache must not be predicted slower. */
static part part_of(const st_timeline *t, const st_cached_experts *x, uint32_t device)
{
    const st_profile *profile = &t->devices[device];
    part p = {.seconds = st_profile_seconds(profile, &x->work), .fixed = st_profile_fixed(profile, &x->work)};
    p.on = device == ST_CARD ? ST_SPENT_CARD_MEMORY : ST_SPENT_RAM;
    if (!st_profile_reads(profile, &x->work)) p.on = ST_SPENT_ARITHMETIC;
    return p;
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

/* The host computes some of the experts that have no slot while the GPU fetches the others. Seconds: */
typedef struct division {
    part card;   /* of the GPU for all experts */
    double late; /* from the start of the experts with a slot on the GPU to the start of the host's work */
    double host, link, memory, disk; /* of each that is missing: to compute it, to fetch it, to read it, to read it from disk */
    double queued; /* of uploads that are under way */
    double fixed;  /* of the host's operation, whatever its experts */
    double last;   /* of the GPU's work with the expert that arrives last */
    double launch; /* of the fetched ones */
    double add;    /* of adding the host's sum */
    double missing; /* how many there are */
    st_spent host_on;
} division;

/* The host computes `slowed` times as long as alone. */
static division division_of(const st_timeline *t, const st_priced *e, double missing, double slowed)
{
    const st_cached_experts *x = &e->cached;
    double bytes = x->work.bytes / x->touched, memory = t->devices[ST_HOST].memory_rate;
    part card = part_of(t, x, ST_CARD), host = part_of(t, x, ST_HOST);
    division d = {.card = card, .late = t->host - t->card, .host = (host.seconds - host.fixed) / x->touched * slowed,
                  .link = st_copy_seconds(t->devices, true, bytes), .memory = memory > 0 ? bytes / memory : 0,
                  .disk = disk_seconds(t, bytes), .fixed = host.fixed, .last = (card.seconds - card.fixed) / x->touched,
                  .launch = e->chained ? 0 : t->devices[ST_CARD].launch_seconds, .missing = missing};
    d.add = x->up + d.launch;
    d.queued = x->rows == 1 && t->uploads > 0 ? t->uploads * d.link : 0;
    d.host_on = d.disk > d.host ? ST_SPENT_DISK : host.on;
    return d;
}

/* Copies and the host read the same memory. */
static double host_seconds(const division *d, double fetched)
{
    double alone = d->fixed + d->host * (d->missing - fetched);
    if (fetched >= d->missing) return 0;
    return d->disk * d->missing + (fetched > 0 ? later(alone, d->memory * d->missing) : alone);
}

static double link_seconds(const division *d, double fetched)
{
    if (fetched <= 0) return 0;
    return d->disk * d->missing + later(d->queued + d->link * fetched + d->last, d->memory * d->missing) + d->launch;
}

static double divided_seconds(const division *d, double fetched)
{
    double both = d->late + later(host_seconds(d, fetched), link_seconds(d, fetched));
    return later(d->card.seconds, both) + (fetched < d->missing ? d->add : 0);
}

/* How many are fetched: none, all, or as many as let both end at about the same time. The GPU's work in a chain is launched before
 * it is known what is missing. */
static double fetched_of(const division *d, bool chained)
{
    double balanced = (d->fixed + d->host * d->missing - d->queued - d->last - d->launch) / (d->host + d->link), best = 0;
    const double counts[] = {floor(balanced), ceil(balanced), d->missing};
    for (int i = 0; i < 3 && !chained && d->link > 0; i++)
        if (counts[i] > 0 && counts[i] <= d->missing && divided_seconds(d, counts[i]) < divided_seconds(d, best)) best = counts[i];
    return best;
}

/* On what takes longest. */
static void spend_divided(st_timeline *t, const division *d, double host, double link)
{
    if (d->card.seconds >= d->late + later(host, link)) spend(t, d->card.on, d->card.seconds);
    else if (host >= link) spend(t, d->host_on, host);
    else spend(t, d->disk > d->link ? ST_SPENT_DISK : ST_SPENT_LINK, link);
}

/* A token misses a whole number of experts. The time of a layer is the mean over that number, with each expert missing
 * independently, and not the time of the mean number. */
static double mean_seconds(const st_timeline *t, const st_priced *e, division *d, double *host, double *link)
{
    uint32_t used = e->cached.used;
    double missing = 1 - share_on_card(t, &e->cached), chance = missing < 1 ? pow(1 - missing, used) : 0;
    double sum = chance * later(d->card.seconds, d->late); /* no expert is missing */
    *host = *link = 0;
    for (uint32_t m = 1; m <= used; m++) {
        if (missing < 1) chance *= (double)(used - m + 1) / m * missing / (1 - missing);
        else chance = m == used;
        d->missing = m;
        double fetched = fetched_of(d, e->chained);
        sum += chance * divided_seconds(d, fetched);
        *host += chance * host_seconds(d, fetched);
        *link += chance * link_seconds(d, fetched);
    }
    return sum;
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
    double host, link;
    division alone = division_of(t, e, 0, 1);
    double seconds = mean_seconds(t, e, &alone, &host, &link);
    division d = division_of(t, e, 0, slowed_by_uploads(t, &e->cached, t->card + seconds + e->handover - t->layer_began));
    seconds = mean_seconds(t, e, &d, &host, &link);
    spend_divided(t, &d, host, link);
    spend(t, ST_SPENT_LINK, e->cached.up);
    spend(t, ST_SPENT_HANDOVER, e->handover);
    t->card = t->layer_began = t->card + seconds + e->handover;
    t->host += host;
}

/* The mean number of experts is missing; a mean below one is the probability that one is missing. */
static void walk_batch(st_timeline *t, const st_priced *e)
{
    const st_cached_experts *x = &e->cached;
    double missing = x->touched * (1 - share_on_card(t, x)), chance = missing < 1 ? missing : 1;
    division d = division_of(t, e, later(missing, 1), 1);
    double fetched = fetched_of(&d, e->chained), host = chance * host_seconds(&d, fetched);
    spend_divided(t, &d, host, chance * link_seconds(&d, fetched));
    if (fetched < d.missing) spend(t, ST_SPENT_LINK, chance * x->up);
    t->card += chance * divided_seconds(&d, fetched) + (1 - chance) * later(d.card.seconds, d.late) + e->handover;
    t->host += host;
}

static void walk_experts(st_timeline *t, const st_priced *e)
{
    host_waits(t, e);
    if (e->cached.rows == 1) walk_token(t, e);
    else walk_batch(t, e);
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
