/* An order of use: a doubly linked list of numbers, the least recently used first. */
#ifndef ST_KV_ORDER_H
#define ST_KV_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/alloc.h"

#define ST_ORDER_END UINT32_MAX

typedef struct st_order_link {
    uint32_t older, newer;
} st_order_link;

typedef struct st_order {
    st_order_link *links; /* [count] */
    uint32_t oldest, newest;
} st_order;

/* An empty order of the numbers below `count`. False: no memory. Free `links` with st_free. */
static inline bool st_order_new(st_order *order, uint32_t count)
{
    *order = (st_order){.links = st_alloc_zero(count, sizeof *order->links), .oldest = ST_ORDER_END,
                        .newest = ST_ORDER_END};
    return order->links != NULL;
}

/* Adds a number that is not in the order, as the most recently used. */
static inline void st_order_add(st_order *order, uint32_t number)
{
    order->links[number] = (st_order_link){.older = order->newest, .newer = ST_ORDER_END};
    *(order->newest == ST_ORDER_END ? &order->oldest : &order->links[order->newest].newer) = number;
    order->newest = number;
}

/* Adds a number that is not in the order, as used just before `newer`, which is. */
static inline void st_order_add_before(st_order *order, uint32_t number, uint32_t newer)
{
    uint32_t older = order->links[newer].older;
    order->links[number] = (st_order_link){.older = older, .newer = newer};
    order->links[newer].older = number;
    *(older == ST_ORDER_END ? &order->oldest : &order->links[older].newer) = number;
}

static inline void st_order_remove(st_order *order, uint32_t number)
{
    st_order_link link = order->links[number];
    *(link.older == ST_ORDER_END ? &order->oldest : &order->links[link.older].newer) = link.newer;
    *(link.newer == ST_ORDER_END ? &order->newest : &order->links[link.newer].older) = link.older;
}

#endif
