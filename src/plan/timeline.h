/* Two clocks, the host's and the GPU's, along the events of a step. Knows durations; knows no operation and no value.
 * */
#ifndef ST_PLAN_TIMELINE_H
#define ST_PLAN_TIMELINE_H

#include "backend/profile.h"
#include "plan/plan.h"

/* What time is spent on. */
typedef enum st_spent {
    ST_SPENT_CARD_MEMORY,
    ST_SPENT_RAM,
    ST_SPENT_LINK,
    ST_SPENT_HANDOVER,
    ST_SPENT_ARITHMETIC,
    ST_SPENT_DISK,
    ST_SPENT_OPERATIONS, /* what each takes beside its bytes and its arithmetic */
    ST_SPENT_COUNT
} st_spent;

typedef enum st_event_kind {
    ST_EVENT_HOST,    /* the host waits for the copy `mark`, if any, then works */
    ST_EVENT_CARD,    /* a segment in the GPU's queue */
    ST_EVENT_COPY,    /* in the GPU's queue, either way; its end is `mark` */
    ST_EVENT_EXPERTS, /* experts on the GPU run there, after the previous segment; once the copy `mark` has brought the
                         routing to the host, the others are divided: the host computes some, and the GPU fetches some */
} st_event_kind;

typedef struct st_cached_experts {
    uint32_t layer, experts, used, rows;
    double touched;  /* experts that the rows use, on average */
    st_work work;    /* of all of them */
    double up;       /* seconds of copying the host's sum to the GPU */
} st_cached_experts;

/* A priced event: seconds by what they are spent on. (st_event is a backend's.) */
typedef struct st_priced {
    st_event_kind kind;
    int32_t mark;    /* ST_NO_MARK: none */
    bool chained;    /* a link of a chain: launched before, handed over without copies and events */
    bool up;         /* a copy to the GPU */
    double handover;    /* of a hand-over of a chain, its half of the way */
    double memory, arithmetic, fixed, copy;
    double weight_bytes; /* that the host reads, in part from disk */
    double fetch_bytes;  /* of a segment on the GPU: matrices that are copied into the next of two buffers for it */
    st_cached_experts cached;
} st_priced;

enum { ST_NO_MARK = -1 };

typedef struct st_timeline {
    const st_profile *devices;
    double *marks;         /* when copies ended */
    const uint32_t *slots; /* [layers] */
    double hit_rate;       /* of layers that have some of their experts on the GPU; negative: by `hits` */
    double batch_rate;     /* likewise, of the experts that a batch's rows use on average; negative: the share that has a slot */
    const st_hit_curve *hits; /* NULL: assumed */
    double disk_share;     /* of the weights that the host reads */
    double host, card;     /* when each has finished its work so far */
    double uploads;        /* per layer with a cache */
    double layer_began;    /* when the last such layer ended */
    /* Fetches: the copy into a buffer is asked for when the last segment that uses the buffer is launched, or at the
     * start of the step; it begins when that segment has ended. Copies follow one another, and other copies to the
     * GPU take their time of the link. */
    double asked[ST_FETCH_BUFFERS], used_up[ST_FETCH_BUFFERS], fetched, taken;
    uint32_t fetches;      /* of this step */
    double spent[ST_SPENT_COUNT];
} st_timeline;

/* The events of one step. */
void st_timeline_walk(st_timeline *line, const st_priced *events, uint32_t count);

/* Seconds of a copy over the GPU's link and the host's memory. */
double st_copy_seconds(const st_profile *devices, bool up, double bytes);

#endif
