/* src/backend/sim/clock.c and share.c: virtual time against times computed by hand, and invariants of any schedule. */
#include "support/kit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/sim/clock.h"
#include "backend/sim/share.h"
#include "base/fault.h"

/* Round numbers: a GPU of 100 bytes and 1000 operations a second, a link of 25, DRAM of 60. */
static const double rates[ST_RESOURCE_COUNT] = {
    [ST_RESOURCE_DEVICE_MEMORY] = 100, [ST_RESOURCE_DEVICE_OPS] = 1000, [ST_RESOURCE_LINK_UP] = 25,
    [ST_RESOURCE_LINK_DOWN] = 20,      [ST_RESOURCE_HOST_DRAM] = 60,    [ST_RESOURCE_CPU_OPS] = 500,
};

static void check_seconds(const char *what, double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-9 * (1 + fabs(expected))))
        fail_msg("%s: %.12g s, expected %.12g", what, found, expected);
}

static st_clock *new_clock(void)
{
    st_clock *clock = NULL;
    assert_int_equal(st_clock_new(rates, &clock, NULL), STRATA_OK);
    return clock;
}

static uint32_t new_queue(st_clock *clock)
{
    uint32_t queue = UINT32_MAX;
    assert_int_equal(st_clock_queue_new(clock, &queue, NULL), STRATA_OK);
    return queue;
}

static uint64_t new_point(st_clock *clock, uint32_t queue)
{
    uint64_t point = 0;
    assert_int_equal(st_clock_point(clock, queue, &point, NULL), STRATA_OK);
    assert_true(point != 0);
    return point;
}

static void wait_for(st_clock *clock, uint64_t point)
{
    strata_error error;
    if (st_clock_wait(clock, point, 0, &error) != STRATA_OK) fail_msg("%s", error.message);
}

static st_demand memory(double bytes)
{
    return (st_demand){.amount = {[ST_RESOURCE_DEVICE_MEMORY] = bytes}};
}

static st_demand dram(double bytes)
{
    return (st_demand){.amount = {[ST_RESOURCE_HOST_DRAM] = bytes}};
}

static st_demand up(double bytes)
{
    return (st_demand){.amount = {[ST_RESOURCE_LINK_UP] = bytes, [ST_RESOURCE_HOST_DRAM] = bytes}};
}

/* A command that notes when it starts and ends. */
typedef struct note {
    st_clock *clock;
    double started, ended;
    int order;      /* rank of its end among all commands */
    int drops;
    strata_status result;
    int phases;     /* number of phases, each a second of device memory … */
    int next_phase;
    double latency; /* … after this delay before the first */
} note;

static int ends;

static void note_start(void *context)
{
    note *n = context;
    assert_true(n->started < 0);
    n->started = st_clock_now(n->clock);
}

static strata_status note_end(void *context, strata_error *error)
{
    note *n = context;
    n->ended = st_clock_now(n->clock);
    n->order = ends++;
    if (n->result != STRATA_OK && error) snprintf(error->message, sizeof error->message, "as it was told to");
    return n->result;
}

static bool note_next(void *context, st_demand *demand)
{
    note *n = context;
    if (n->next_phase == n->phases) return false;
    *demand = memory(100);
    if (n->next_phase++ == 0) demand->latency = n->latency;
    return true;
}

static void note_drop(void *context)
{
    note *n = context;
    n->drops++;
}

static note new_note(st_clock *clock)
{
    return (note){.clock = clock, .started = -1, .ended = -1, .order = -1};
}

static void push(st_clock *clock, uint32_t queue, st_demand demand, note *n)
{
    *n = new_note(clock);
    st_command command = {.demand = demand, .start = note_start, .end = note_end, .drop = note_drop, .context = n};
    assert_int_equal(st_clock_push(clock, queue, &command, NULL), STRATA_OK);
}

/* --- sharing ------------------------------------------------------------------------------------------------------ */

static void a_copy_and_the_cpu_share_dram(void **state)
{
    (void)state;
    st_share copy = {.usage = {[ST_RESOURCE_LINK_UP] = 25, [ST_RESOURCE_HOST_DRAM] = 25}};
    st_share work = {.usage = {[ST_RESOURCE_HOST_DRAM] = 60}};
    st_share_out(rates, (st_share *const[]){&copy, &work}, 2);
    check_seconds("copy", copy.pace, 1);
    check_seconds("CPU", work.pace, 35.0 / 60);
}

static void equal_commands_share_equally(void **state)
{
    (void)state;
    st_share a = {.usage = {[ST_RESOURCE_DEVICE_MEMORY] = 100}}, b = a, c = a;
    st_share_out(rates, (st_share *const[]){&a, &b, &c}, 3);
    check_seconds("a", a.pace, 1.0 / 3);
    check_seconds("b", b.pace, 1.0 / 3);
    check_seconds("c", c.pace, 1.0 / 3);
    /* A command that needs less than a third of the rate gets all it needs. */
    a.usage[ST_RESOURCE_DEVICE_MEMORY] = 20;
    st_share_out(rates, (st_share *const[]){&a, &b, &c}, 3);
    check_seconds("a", a.pace, 1);
    check_seconds("b", b.pace, 0.4);
    check_seconds("c", c.pace, 0.4);
}

static void a_slowed_command_frees_its_other_resource(void **state)
{
    (void)state;
    /* a is one of three on device memory: a third. Of the link it then takes a third, and d gets two thirds. */
    st_share a = {.usage = {[ST_RESOURCE_DEVICE_MEMORY] = 100, [ST_RESOURCE_LINK_UP] = 25}};
    st_share b = {.usage = {[ST_RESOURCE_DEVICE_MEMORY] = 100}}, c = b, d = {.usage = {[ST_RESOURCE_LINK_UP] = 25}};
    st_share_out(rates, (st_share *const[]){&a, &b, &c, &d}, 4);
    check_seconds("a", a.pace, 1.0 / 3);
    check_seconds("b", b.pace, 1.0 / 3);
    check_seconds("c", c.pace, 1.0 / 3);
    check_seconds("d", d.pace, 2.0 / 3);
}

static unsigned random_state;

static double random_real(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (double)(random_state >> 8) / (double)(1 << 24);
}

static uint32_t random_below(uint32_t count)
{
    return (uint32_t)(random_real() * count);
}

/* The use of one resource by all commands. */
static double sum_of(const st_share *shares, uint32_t count, int resource)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) sum += shares[i].pace * shares[i].usage[resource];
    return sum;
}

static bool is_used_up(const st_share *shares, uint32_t count, int resource)
{
    return sum_of(shares, count, resource) >= rates[resource] * (1 - 1e-9);
}

static bool has_bottleneck(const st_share *shares, uint32_t count, uint32_t index)
{
    for (int r = 0; r < ST_RESOURCE_COUNT; r++)
        if (shares[index].usage[r] > 0 && is_used_up(shares, count, r)) return true;
    return false;
}

static void share_some(st_share *shares, uint32_t count)
{
    st_share *list[8];
    for (uint32_t i = 0; i < count; i++) list[i] = &shares[i];
    st_share_out(rates, list, count);
}

/* From full rates down to almost zero. */
static double random_usage(int resource)
{
    return rates[resource] * pow(random_real(), 1 + 12 * random_below(2));
}

/* No resource exceeds its rate, and a command below full speed uses an exhausted one: none could be faster without
 * slowing another. */
static void shares_are_max_min_fair(void **state)
{
    (void)state;
    random_state = 7;
    for (int round = 0; round < 20000; round++) {
        st_share shares[8] = {{.pace = 0}};
        uint32_t count = 1 + random_below(8);
        for (uint32_t i = 0; i < count; i++)
            for (int r = 0; r < ST_RESOURCE_COUNT; r++)
                if (random_below(3) == 0) shares[i].usage[r] = random_usage(r);
        share_some(shares, count);
        for (int r = 0; r < ST_RESOURCE_COUNT; r++) assert_true(sum_of(shares, count, r) <= rates[r] * (1 + 1e-9));
        for (uint32_t i = 0; i < count; i++) {
            assert_true(shares[i].pace > 0 && shares[i].pace <= 1);
            if (shares[i].pace < 1 && !has_bottleneck(shares, count, i))
                fail_msg("round %d: %u could be faster", round, i);
        }
    }
}

/* Under contention for one resource, a slowed command gets as much of it as any other. */
static void one_resource_is_shared_equally(void **state)
{
    (void)state;
    random_state = 8;
    for (int round = 0; round < 20000; round++) {
        st_share shares[8] = {{.pace = 0}};
        uint32_t count = 1 + random_below(8);
        int r = ST_RESOURCE_HOST_DRAM;
        double most = 0;
        for (uint32_t i = 0; i < count; i++) shares[i].usage[r] = random_usage(r);
        share_some(shares, count);
        for (uint32_t i = 0; i < count; i++) most = fmax(most, shares[i].pace * shares[i].usage[r]);
        for (uint32_t i = 0; i < count; i++)
            assert_true(shares[i].pace == 1 || shares[i].pace * shares[i].usage[r] >= most * (1 - 1e-9));
    }
}

/* --- time --------------------------------------------------------------------------------------------------------- */

static void a_single_command_runs_at_its_slowest_resource(void **state)
{
    (void)state;
    st_clock *clock = new_clock();
    uint32_t queue = new_queue(clock);
    st_demand demand = {.latency = 0.5, .amount = {[ST_RESOURCE_DEVICE_MEMORY] = 200, [ST_RESOURCE_DEVICE_OPS] = 3000}};
    note first, second;
    push(clock, queue, demand, &first);
    push(clock, queue, memory(50), &second);
    check_seconds("without a wait", st_clock_now(clock), 0);
    wait_for(clock, new_point(clock, queue));
    check_seconds("first starts", first.started, 0);
    check_seconds("first ends", first.ended, 3.5);
    check_seconds("second starts", second.started, 3.5);
    check_seconds("second ends", second.ended, 4);
    check_seconds("now", st_clock_now(clock), 4);
    assert_int_equal(first.drops + second.drops, 2);
    st_clock_free(clock);
}

static void the_host_works_while_a_copy_runs(void **state)
{
    (void)state;
    st_clock *clock = new_clock();
    uint32_t queue = new_queue(clock);
    note copy;
    push(clock, queue, up(100), &copy);
    uint64_t point = new_point(clock, queue);
    st_demand work = dram(210); /* 4 s at 35, then 70 bytes at 60 */
    assert_int_equal(st_clock_work(clock, &work, NULL), STRATA_OK);
    check_seconds("copy ends", copy.ended, 4);
    check_seconds("work ends", st_clock_now(clock), 4 + 70.0 / 60);
    double seconds = -1;
    assert_true(st_clock_reached(clock, point, &seconds));
    check_seconds("point", seconds, 4);
    wait_for(clock, point); /* already reached: takes no time */
    check_seconds("now", st_clock_now(clock), 4 + 70.0 / 60);
    st_clock_free(clock);
}

static void latency_uses_no_resource(void **state)
{
    (void)state;
    st_clock *clock = new_clock();
    uint32_t a = new_queue(clock), b = new_queue(clock);
    note first, second;
    st_demand late = memory(100);
    late.latency = 2;
    push(clock, a, late, &first);
    push(clock, b, memory(300), &second); /* 2 s alone, 200 bytes; then both at 50: 2 s each for 100 */
    wait_for(clock, new_point(clock, a));
    check_seconds("first", first.ended, 4);
    wait_for(clock, new_point(clock, b));
    check_seconds("second", second.ended, 4);
    st_clock_free(clock);
}

static void queues_wait_for_each_other(void **state)
{
    (void)state;
    st_clock *clock = new_clock();
    uint32_t a = new_queue(clock), b = new_queue(clock), c = new_queue(clock);
    note load, run, back, other;
    push(clock, a, up(75), &load); /* 3 s */
    uint64_t loaded = new_point(clock, a);
    assert_int_equal(st_clock_depend(clock, b, loaded, NULL), STRATA_OK);
    push(clock, b, memory(200), &run); /* 2 s */
    uint64_t ran = new_point(clock, b);
    push(clock, c, memory(100), &other); /* 1 s: waits for no other command */
    assert_int_equal(st_clock_depend(clock, c, ran, NULL), STRATA_OK);
    st_demand down = {.amount = {[ST_RESOURCE_LINK_DOWN] = 20}};
    push(clock, c, down, &back); /* 1 s */
    st_clock_forget(clock, loaded); /* its dependants still wait for it */
    uint64_t done = new_point(clock, c);
    wait_for(clock, done);
    check_seconds("other", other.ended, 1);
    check_seconds("run starts", run.started, 3);
    check_seconds("run ends", run.ended, 5);
    check_seconds("back", back.ended, 6);
    assert_false(st_clock_reached(clock, loaded, NULL));
    assert_true(st_clock_reached(clock, ran, NULL));
    st_clock_free(clock);
}

static void simultaneous_events_are_ordered(void **state)
{
    (void)state;
    st_clock *clock = new_clock();
    uint32_t queues[3] = {new_queue(clock), new_queue(clock), new_queue(clock)};
    note notes[3], next;
    ends = 0;
    for (int i = 2; i >= 0; i--) push(clock, queues[i], memory(100), &notes[i]);
    push(clock, queues[0], memory(0), &next); /* starts after the others ended */
    wait_for(clock, new_point(clock, queues[0]));
    for (int i = 0; i < 3; i++) {
        check_seconds("each", notes[i].ended, 3);
        assert_int_equal(notes[i].order, i);
    }
    assert_int_equal(next.order, 3);
    check_seconds("next", next.ended, 3);
    st_clock_free(clock);
}

static void phases_run_in_order(void **state)
{
    (void)state;
    st_clock *clock = new_clock();
    uint32_t queue = new_queue(clock);
    note n = new_note(clock), none = new_note(clock);
    n.phases = 3;
    n.latency = 0.25;
    ends = 0;
    st_command command = {.start = note_start, .next = note_next, .end = note_end, .drop = note_drop, .context = &n};
    assert_int_equal(st_clock_push(clock, queue, &command, NULL), STRATA_OK);
    command.context = &none; /* no phase at all */
    assert_int_equal(st_clock_push(clock, queue, &command, NULL), STRATA_OK);
    wait_for(clock, new_point(clock, queue));
    check_seconds("the last", n.ended, 3.25);
    assert_int_equal(ends, 3);
    assert_int_equal(n.drops, 1);
    assert_int_equal(none.drops, 1);
    assert_true(none.started >= 0 && none.ended < 0);
    st_clock_free(clock);
}

static void points_of_an_idle_queue_have_passed(void **state)
{
    (void)state;
    st_clock *clock = new_clock();
    uint32_t queue = new_queue(clock);
    double seconds;
    st_demand pause = {.latency = 1.5};
    assert_int_equal(st_clock_work(clock, &pause, NULL), STRATA_OK);
    uint64_t point = new_point(clock, queue);
    assert_true(st_clock_reached(clock, point, &seconds));
    check_seconds("at once", seconds, 1.5);
    st_clock_forget(clock, point);
    assert_false(st_clock_reached(clock, point, &seconds));
    uint64_t again = new_point(clock, queue);
    assert_true(again != point); /* a new point gets a new number */
    assert_false(st_clock_reached(clock, point, &seconds));
    assert_int_equal(st_clock_wait(clock, point, 0, NULL), STRATA_DEVICE);
    assert_int_equal(st_clock_depend(clock, queue, point, NULL), STRATA_DEVICE);
    assert_int_equal(st_clock_wait(clock, 0, 0, NULL), STRATA_DEVICE);
    st_clock_free(clock);
}

static void waits_that_cannot_end_are_errors(void **state)
{
    (void)state;
    strata_error error;
    st_clock *clock = new_clock();
    uint32_t a = new_queue(clock), b = new_queue(clock);
    note first, second;
    push(clock, a, memory(100), &first);
    push(clock, b, memory(100), &second);
    /* a waits for b, and b for a. */
    assert_int_equal(st_clock_depend(clock, a, new_point(clock, b), NULL), STRATA_OK);
    note never_a, never_b;
    push(clock, a, memory(1), &never_a);
    uint64_t after = new_point(clock, a);
    assert_int_equal(st_clock_depend(clock, b, after, NULL), STRATA_OK);
    push(clock, b, memory(1), &never_b);
    uint64_t end = new_point(clock, b);
    wait_for(clock, end); /* no deadlock yet: b's point was recorded before */
    assert_int_equal(never_b.drops, 1);

    uint32_t c = new_queue(clock);
    note stuck;
    push(clock, c, memory(100), &first);
    uint64_t promised = new_point(clock, c);
    assert_int_equal(st_clock_depend(clock, a, promised, NULL), STRATA_OK);
    push(clock, a, memory(100), &stuck);
    uint64_t lost = new_point(clock, a);
    st_clock_queue_free(clock, c); /* its points will never be reached */
    assert_int_equal(first.drops, 1);
    assert_int_equal(st_clock_wait(clock, promised, 0, &error), STRATA_DEVICE);
    assert_non_null(strstr(error.message, "freed"));
    assert_int_equal(st_clock_wait(clock, lost, 0, &error), STRATA_DEVICE);
    assert_int_equal(stuck.drops, 0);
    st_clock_free(clock);
    assert_int_equal(stuck.drops, 1);
}

static void a_failure_stops_its_queue_alone(void **state)
{
    (void)state;
    strata_error error;
    st_clock *clock = new_clock();
    uint32_t a = new_queue(clock), b = new_queue(clock), c = new_queue(clock);
    note bad, behind, other, waiting;
    push(clock, a, memory(100), &bad);
    bad.result = STRATA_DEVICE_LOST;
    push(clock, a, memory(100), &behind);
    uint64_t point = new_point(clock, a);
    push(clock, b, memory(400), &other);
    assert_int_equal(st_clock_depend(clock, c, point, NULL), STRATA_OK);
    push(clock, c, memory(1), &waiting);
    uint64_t other_point = new_point(clock, b), waiting_point = new_point(clock, c);
    assert_int_equal(st_clock_wait(clock, point, 0, &error), STRATA_DEVICE_LOST);
    assert_string_equal(error.message, "as it was told to");
    check_seconds("when", st_clock_now(clock), 2);
    assert_true(behind.started < 0 && bad.drops == 1 && behind.drops == 1);
    wait_for(clock, other_point);
    check_seconds("other", other.ended, 5);
    assert_int_equal(st_clock_wait(clock, waiting_point, 0, &error), STRATA_DEVICE_LOST);
    note refused = new_note(clock);
    st_command command = {.drop = note_drop, .context = &refused};
    assert_int_equal(st_clock_push(clock, a, &command, &error), STRATA_DEVICE_LOST);
    assert_int_equal(st_clock_point(clock, a, &point, &error), STRATA_DEVICE_LOST);
    assert_int_equal(refused.drops, 0);
    st_clock_free(clock);
    assert_int_equal(waiting.drops, 1);
}

static bool is_set(void *context)
{
    return *(const bool *)context;
}

static strata_status set(void *context, strata_error *error)
{
    (void)error;
    *(bool *)context = true;
    return STRATA_OK;
}

static void a_wait_for_a_condition_times_out(void **state)
{
    (void)state;
    strata_error error;
    bool flag = false, other = false;
    st_clock *clock = new_clock();
    uint32_t a = new_queue(clock), b = new_queue(clock);
    st_command wait = {.ready = is_set, .patience = 3, .demand = memory(100), .context = &flag};
    st_command signal = {.demand = memory(200), .end = set, .context = &flag};
    assert_int_equal(st_clock_push(clock, a, &wait, NULL), STRATA_OK);
    assert_int_equal(st_clock_push(clock, b, &signal, NULL), STRATA_OK);
    wait_for(clock, new_point(clock, a));
    check_seconds("set after 2, then 1", st_clock_now(clock), 3);

    wait.context = &other;
    assert_int_equal(st_clock_push(clock, a, &wait, NULL), STRATA_OK);
    assert_int_equal(st_clock_wait(clock, new_point(clock, a), 0, &error), STRATA_DEVICE);
    assert_non_null(strstr(error.message, "3000000"));
    check_seconds("timeout", st_clock_now(clock), 6);
    st_clock_queue_free(clock, a);

    /* Commands of the host. */
    signal.context = &other;
    assert_int_equal(st_clock_push(clock, b, &signal, NULL), STRATA_OK);
    assert_int_equal(st_clock_wait_until(clock, is_set, &other, 1, &error), STRATA_DEVICE);
    assert_non_null(strstr(error.message, "1000000"));
    check_seconds("limit", st_clock_now(clock), 7);
    assert_int_equal(st_clock_wait_until(clock, is_set, &other, 1.5, &error), STRATA_OK);
    check_seconds("in time", st_clock_now(clock), 8);
    other = false;
    assert_int_equal(st_clock_wait_until(clock, is_set, &other, 0, &error), STRATA_DEVICE);
    check_seconds("timed out", st_clock_now(clock), 8);
    st_clock_free(clock);
}

/* --- invariants --------------------------------------------------------------------------------------------------- */

enum { QUEUES = 4, COMMANDS = 60, POINTS = 30 };

typedef struct story {
    note notes[COMMANDS];
    st_demand demands[COMMANDS];
    uint32_t queue[COMMANDS];
    double end;
} story;

static double alone(const st_demand *demand)
{
    double seconds = 0;
    for (int r = 0; r < ST_RESOURCE_COUNT; r++) seconds = fmax(seconds, demand->amount[r] / rates[r]);
    return demand->latency + seconds;
}

static st_demand random_demand(void)
{
    st_demand demand = {.latency = random_below(2) * random_real()};
    for (int r = 0; r < ST_RESOURCE_COUNT; r++)
        if (random_below(3) == 0) demand.amount[r] = rates[r] * random_real();
    return demand;
}

/* Random commands, points and waits; sums the demand on each resource. */
static void tell(unsigned seed, story *s)
{
    random_state = seed;
    st_clock *clock = new_clock();
    uint32_t queues[QUEUES];
    uint64_t points[POINTS];
    uint32_t point_count = 0;
    double asked[ST_RESOURCE_COUNT] = {0}, longest = 0;
    for (int i = 0; i < QUEUES; i++) queues[i] = new_queue(clock);
    for (int i = 0; i < COMMANDS; i++) {
        s->queue[i] = random_below(QUEUES);
        s->demands[i] = random_demand();
        push(clock, queues[s->queue[i]], s->demands[i], &s->notes[i]);
        longest += alone(&s->demands[i]);
        for (int r = 0; r < ST_RESOURCE_COUNT; r++) asked[r] += s->demands[i].amount[r];
        if (random_below(2) && point_count < POINTS)
            points[point_count++] = new_point(clock, queues[random_below(QUEUES)]);
        if (random_below(2) && point_count)
            assert_int_equal(
                st_clock_depend(clock, queues[random_below(QUEUES)], points[random_below(point_count)], NULL), STRATA_OK);
        if (random_below(6) == 0 && point_count) wait_for(clock, points[random_below(point_count)]);
        if (random_below(6)) continue;
        st_demand work = random_demand();
        assert_int_equal(st_clock_work(clock, &work, NULL), STRATA_OK);
        longest += alone(&work);
        for (int r = 0; r < ST_RESOURCE_COUNT; r++) asked[r] += work.amount[r];
    }
    for (int i = 0; i < QUEUES; i++) wait_for(clock, new_point(clock, queues[i]));
    s->end = st_clock_now(clock);
    assert_true(s->end <= longest * (1 + 1e-9)); /* sharing is never slower than running one command after the other */
    for (int r = 0; r < ST_RESOURCE_COUNT; r++) /* no resource gives more than its rate */
        assert_true(asked[r] / rates[r] <= s->end * (1 + 1e-9));
    st_clock_free(clock);
}

static void random_commands_keep_the_invariants(void **state)
{
    (void)state;
    static story s, again;
    for (unsigned seed = 1; seed <= (kit_is_slow() ? 30 : 300); seed++) {
        double queue_end[QUEUES] = {0};
        tell(seed, &s);
        tell(seed, &again);
        for (int i = 0; i < COMMANDS; i++) {
            const note *n = &s.notes[i];
            assert_int_equal(n->drops, 1);
            assert_true(n->started >= queue_end[s.queue[i]]);
            assert_true(n->ended - n->started >= alone(&s.demands[i]) * (1 - 1e-9) - 1e-12);
            queue_end[s.queue[i]] = n->ended;
            assert_true(n->ended == again.notes[i].ended); /* to the last bit */
        }
        assert_true(s.end == again.end);
    }
}

static void memory_use_is_constant(void **state)
{
    (void)state;
    st_clock *clock = new_clock();
    uint32_t a = new_queue(clock), b = new_queue(clock);
    for (int round = 0; round < 2000; round++) {
        if (round == 10) st_fault_arm(ST_FAULT_ALLOC, UINT64_MAX, false); /* counts from here */
        note notes[21];
        for (int i = 0; i < 20; i++) push(clock, i % 2 ? a : b, memory(1), &notes[i]);
        uint64_t there = new_point(clock, a);
        assert_int_equal(st_clock_depend(clock, b, there, NULL), STRATA_OK);
        push(clock, b, memory(1), &notes[20]);
        uint64_t back = new_point(clock, b);
        wait_for(clock, back);
        st_clock_forget(clock, there);
        st_clock_forget(clock, back);
    }
    assert_int_equal(st_fault_calls(ST_FAULT_ALLOC), 0);
    st_fault_arm(ST_FAULT_ALLOC, 0, false);
    st_clock_free(clock);
}

static strata_status try_all(st_clock **out)
{
    st_clock *clock = NULL;
    uint32_t a, b;
    uint64_t point = 0;
    strata_status status = st_clock_new(rates, &clock, NULL);
    if (status == STRATA_OK) status = st_clock_queue_new(clock, &a, NULL);
    if (status == STRATA_OK) status = st_clock_queue_new(clock, &b, NULL);
    st_command command = {.demand = memory(1)};
    for (int i = 0; i < 40 && status == STRATA_OK; i++) status = st_clock_push(clock, a, &command, NULL);
    if (status == STRATA_OK) status = st_clock_point(clock, a, &point, NULL);
    if (status == STRATA_OK) status = st_clock_depend(clock, b, point, NULL);
    if (status == STRATA_OK) status = st_clock_wait(clock, point, 0, NULL);
    *out = clock;
    return status;
}

static void failed_allocations_are_errors(void **state)
{
    (void)state;
    strata_status status = STRATA_MEMORY;
    uint64_t nth = 0;
    while (status != STRATA_OK) {
        st_clock *clock;
        st_fault_arm(ST_FAULT_ALLOC, ++nth, false);
        status = try_all(&clock);
        st_fault_arm(ST_FAULT_ALLOC, 0, false);
        if (status != STRATA_OK) assert_int_equal(status, STRATA_MEMORY);
        else check_seconds("clean", st_clock_now(clock), 0.4);
        st_clock_free(clock);
    }
    assert_true(nth >= 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_and_the_cpu_share_dram), cmocka_unit_test(equal_commands_share_equally),
        cmocka_unit_test(a_slowed_command_frees_its_other_resource), cmocka_unit_test(shares_are_max_min_fair),
        cmocka_unit_test(one_resource_is_shared_equally),
        cmocka_unit_test(a_single_command_runs_at_its_slowest_resource),
        cmocka_unit_test(the_host_works_while_a_copy_runs), cmocka_unit_test(latency_uses_no_resource),
        cmocka_unit_test(queues_wait_for_each_other), cmocka_unit_test(simultaneous_events_are_ordered),
        cmocka_unit_test(phases_run_in_order), cmocka_unit_test(points_of_an_idle_queue_have_passed),
        cmocka_unit_test(waits_that_cannot_end_are_errors), cmocka_unit_test(a_failure_stops_its_queue_alone),
        cmocka_unit_test(a_wait_for_a_condition_times_out), cmocka_unit_test(random_commands_keep_the_invariants),
        cmocka_unit_test(memory_use_is_constant), cmocka_unit_test(failed_allocations_are_errors),
    };
    return cmocka_run_group_tests_name("clock", tests, NULL, NULL);
}
