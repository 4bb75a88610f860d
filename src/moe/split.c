#include "moe/split.h"

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double over(double amount, double rate)
{
    return rate > 0 ? amount / rate : 0;
}

/* At the whole memory rate: a demand does not state the type of its experts. All of them are one operation, which has
 * its fixed time anyway. */
static double work_seconds(const st_profile *device, double bytes, double ops)
{
    st_work work = {.bytes = bytes, .ops = ops, .type = ST_PROFILE_TYPES, .op_class = ST_CLASS_EXPERTS};
    return st_profile_seconds(device, &work) - st_profile_fixed(device, &work);
}

double st_split_seconds(const st_profile *host, const st_profile *card, const st_split_demand *demand,
                        uint32_t fetched)
{
    double on_card = work_seconds(card, demand->resident_bytes, demand->resident_ops), last = 0, on_cpu = 0;
    for (uint32_t i = 0; i < demand->missing; i++) {
        double ops = demand->tokens[i] * demand->token_ops;
        if (i < fetched) on_card += last = work_seconds(card, demand->expert_bytes, ops);
        else on_cpu += work_seconds(host, demand->expert_bytes, ops);
    }
    if (fetched < demand->missing) on_cpu += demand->host_seconds;
    double link = over(fetched * demand->expert_bytes, card->link_up);
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
