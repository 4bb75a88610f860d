#include "moe/split.h"

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static double over(double amount, double rate)
{
    return rate > 0 ? amount / rate : 0;
}

/* At the whole memory rate: a demand does not state the type of its experts. All of them are one operation, which has
 * its fixed time besides. `row_ops`: of a row in each of them. */
static double work_seconds(const st_profile *device, double bytes, double ops, double row_ops)
{
    st_work work = {.bytes = bytes, .ops = ops, .ops_filled = row_ops, .type = ST_PROFILE_TYPES, .op_class = ST_CLASS_EXPERTS};
    return st_profile_seconds(device, &work) - st_profile_fixed(device, &work);
}

/* Of any number of experts. */
static double fixed_seconds(const st_profile *device)
{
    return st_profile_fixed(device, &(st_work){.op_class = ST_CLASS_EXPERTS});
}

/* What the CPU takes by its rates for what is not fetched, with the memory to itself. */
static double host_seconds(const st_profile *host, const st_split_demand *demand, uint32_t fetched)
{
    double seconds = fetched < demand->missing ? fixed_seconds(host) : 0;
    for (uint32_t i = fetched; i < demand->missing; i++)
        seconds += work_seconds(host, demand->expert_bytes, demand->tokens[i] * demand->token_ops, demand->token_ops);
    return seconds;
}

/* What it takes longer at most because the copies of the fetched experts read the host's memory as well. */
static double slowed_seconds(const st_profile *host, const st_profile *card, const st_split_demand *demand,
                             uint32_t fetched)
{
    double memory = host->memory_rate, link = smaller(card->link_up, memory / 2); /* the CPU keeps half */
    double reads = (demand->missing - fetched) * demand->expert_bytes, copies = fetched * demand->expert_bytes;
    if (memory <= 0) return 0;
    double slowed = fixed_seconds(host) + smaller(reads / (memory - link), (reads + copies) / memory);
    return larger(slowed - host_seconds(host, demand, fetched), 0);
}

double st_split_host_factor(const st_profile *host, const st_profile *card, const st_split_demand *demand,
                            uint32_t fetched, double seconds)
{
    double alone = host_seconds(host, demand, fetched), slowed = slowed_seconds(host, card, demand, fetched);
    if (alone <= 0 || seconds <= 0) return demand->host_factor;
    return larger((seconds - slowed) / alone, smaller(demand->host_factor, seconds / alone));
}

double st_split_seconds(const st_profile *host, const st_profile *card, const st_split_demand *demand,
                        uint32_t fetched)
{
    double resident = over(demand->resident_bytes, demand->expert_bytes), last = 0;
    double on_card = work_seconds(card, demand->resident_bytes, demand->resident_ops, resident * demand->token_ops);
    double on_cpu = host_seconds(host, demand, fetched) * (demand->host_factor > 0 ? demand->host_factor : 1);
    for (uint32_t i = 0; i < fetched; i++)
        on_card += last = work_seconds(card, demand->expert_bytes, demand->tokens[i] * demand->token_ops, demand->token_ops);
    if (fetched < demand->missing) on_cpu += demand->host_seconds;
    double link = over(demand->queued_bytes + fetched * demand->expert_bytes, card->link_up);
    double dram = over(demand->missing * demand->expert_bytes, host->memory_rate);
    /* The last expert is computed after its copy. */
    double both = fetched ? larger(link + last + card->launch_seconds, dram) : 0;
    return larger(larger(on_card, on_cpu), both);
}

uint32_t st_split_fetch(const st_profile *host, const st_profile *card, const st_split_demand *demand)
{
    uint32_t best = 0;
    double least = st_split_seconds(host, card, demand, 0);
    for (uint32_t fetched = 1; fetched <= demand->missing; fetched++) {
        double seconds = st_split_seconds(host, card, demand, fetched);
        if (seconds >= least) continue;
        least = seconds;
        best = fetched;
    }
    return best;
}
