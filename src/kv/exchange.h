/* Carries out the RAM tier's decisions (tier.h): copies pages that become full from the pool to host memory, and
 * pages that come back from host memory to the pool, each direction on a copy queue of its own, behind no work of the
 * model. Copies that begin together are a flight. Until a flight has ended it holds its pages of the pool and of the
 * tier. Knows pages, queues and events; knows no tokens. Private to kv/. Allocates only in st_exchange_open. */
#ifndef ST_KV_EXCHANGE_H
#define ST_KV_EXCHANGE_H

#include "backend/backend.h"
#include "kv/tier.h"

struct st_kv;
struct st_conversation;

typedef enum st_lane_kind { ST_LANE_DOWN, ST_LANE_UP, ST_LANES } st_lane_kind;

enum { ST_LANE_FLIGHTS = 16 };

/* The copies of one direction. Flights are numbered from 1 and end in the order in which they begin. */
typedef struct st_lane {
    st_queue *queue;
    struct {
        st_event *event;
        uint32_t first; /* its pages: a list in st_exchange.moving */
    } flights[ST_LANE_FLIGHTS]; /* a ring */
    uint64_t begun, ended;      /* the last flight that has begun, and ended */
} st_lane;

typedef struct st_exchange {
    st_tier *tier; /* NULL: none */
    st_lane lanes[ST_LANES];
    struct {
        uint32_t page, next; /* of the pool; of the tier */
    } *moving;         /* [tier pages]: what the flights copy */
    uint64_t *arrival; /* [pages of the pool]: the flight that brings the page last */
    st_event *computed; /* what the devices were told to compute before a flight began */
} st_exchange;

strata_status st_exchange_open(struct st_kv *kv, strata_error *error);
void st_exchange_close(struct st_kv *kv);

/* Writes through: gives the first `count` prefixes of a conversation, which are confirmed and in the pool, a page of
 * the tier each. A failed copy only means that the tier does not have the page. */
void st_exchange_store(struct st_kv *kv, const st_prefix *names, uint32_t count);

/* Removes a prefix, and all that continues it, from the tier: its rows are broken. No flight is under way. */
void st_exchange_forget(struct st_kv *kv, st_prefix prefix);

/* Starts to bring the pages that are in the tier alone (kv->found) to the pages of the conversation's table, and
 * publishes them. Returns how many of the first `count` pages are there or on their way; c->arrives is their flight. */
uint32_t st_exchange_bring(struct st_kv *kv, struct st_conversation *c, uint32_t count);

/* Whether the page is still on its way to the pool. */
bool st_exchange_is_arriving(const struct st_kv *kv, uint32_t page);

/* Pages of the pool that flights alone hold: no conversation does. */
uint32_t st_exchange_holds(const struct st_kv *kv);

/* Ends the flights whose copies have ended, without waiting. */
void st_exchange_settle(struct st_kv *kv);
/* Waits until flight `number` to the pool has ended. If its copies have failed, the conversations that wait for its
 * pages are cut to the pages before them; the error is the device's. */
strata_status st_exchange_wait(struct st_kv *kv, uint64_t number, strata_error *error);
/* Waits for all flights of a direction; false: none was under way. */
bool st_exchange_finish(struct st_kv *kv, st_lane_kind kind);

#endif
