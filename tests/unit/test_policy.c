/* The scheduler's decisions: named cases, and arrivals on a simulated clock. */
#include "support/kit.h"

#include <stdio.h>
#include <string.h>

#include "sched/policy.h"
#include "support/random.h"

enum { PAGE = 64 };

static st_pace pace_of(double step, double row)
{
    st_pace pace;
    st_pace_start(&pace, step, row);
    return pace;
}

static st_policy policy_of(uint32_t rows, uint32_t places)
{
    return (st_policy){.rows = rows, .places = places, .page_tokens = PAGE, .answer_seconds = 0.1, .prompt_seconds = 0.5};
}

static st_task waiting(double arrived, uint32_t position, uint32_t end)
{
    return (st_task){.arrived = arrived, .position = position, .end = end, .stop = UINT32_MAX};
}

static st_task admitted(double arrived, uint32_t position, uint32_t end)
{
    st_task task = waiting(arrived, position, end);
    task.admitted = true;
    return task;
}

static st_task answering(double arrived, uint32_t position)
{
    st_task task = admitted(arrived, position, position + 1);
    task.answers = true;
    return task;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void answers_go_first_and_prompts_fill_the_time(void **state)
{
    (void)state;
    st_pace pace = pace_of(0.010, 0.001);
    st_policy policy = policy_of(512, 8);
    st_policy_state s = {.pace = &pace, .room = 1000};
    st_task tasks[] = {answering(0, 100), admitted(1, 0, 4000), answering(2, 70)};
    st_policy_piece pieces[8];
    assert_int_equal(st_policy_step(&policy, &s, tasks, 3, pieces), 3);
    assert_int_equal(pieces[0].task, 1); /* rows of prompts lie before those of answers */
    assert_in_range(pieces[0].count, 85, 90);
    assert_int_equal(pieces[1].task, 0);
    assert_int_equal(pieces[1].count, 1);
    assert_int_equal(pieces[2].task, 2);
    tasks[0].admitted = tasks[2].admitted = false; /* nobody answers: the longer budget */
    assert_int_equal(st_policy_step(&policy, &s, tasks, 3, pieces), 1);
    assert_in_range(pieces[0].count, 485, 490);
}

static void prompts_keep_a_part_of_the_time(void **state)
{
    (void)state;
    st_pace pace = pace_of(0.300, 0.001); /* answers alone take three times the budget */
    st_policy policy = policy_of(512, 8);
    st_policy_state s = {.pace = &pace, .room = 1000};
    st_task tasks[] = {answering(0, 100), admitted(1, 0, 4000)};
    st_policy_piece pieces[8];
    assert_int_equal(st_policy_step(&policy, &s, tasks, 2, pieces), 2);
    assert_in_range(pieces[0].count, ST_POLICY_ROWS_MIN, 25);
    pace = pace_of(0.3, 10.0); /* and at least a few rows, whatever they cost */
    assert_int_equal(st_policy_step(&policy, &s, tasks, 2, pieces), 2);
    assert_int_equal(pieces[0].count, ST_POLICY_ROWS_MIN);
}

/* Steps of some rows cost as much as much larger ones, as those that read all experts do. */
static void prompts_have_enough_rows_while_nobody_answers(void **state)
{
    (void)state;
    st_pace pace = pace_of(0.400, 0.010);
    st_policy policy = policy_of(512, 8);
    st_policy_state s = {.pace = &pace, .room = 1000};
    st_task tasks[] = {admitted(1, 0, 4000), admitted(2, 0, 300), answering(3, 100)};
    st_policy_piece pieces[8];
    policy.prompt_rows = 128;
    assert_int_equal(st_policy_step(&policy, &s, tasks, 2, pieces), 1); /* no time is left for the second */
    assert_int_equal(pieces[0].task, 1);
    assert_int_equal(pieces[0].count, 128);
    tasks[1].position = 200;
    assert_int_equal(st_policy_step(&policy, &s, tasks, 2, pieces), 1);
    assert_int_equal(pieces[0].count, 100); /* its rest */
    tasks[1].position = 0;
    assert_int_equal(st_policy_step(&policy, &s, tasks, 3, pieces), 2);
    assert_int_equal(pieces[0].count, ST_POLICY_ROWS_MIN); /* an answer waits for the step */
}

static void short_prompts_pass_long_ones(void **state)
{
    (void)state;
    st_pace pace = pace_of(0.0, 0.001);
    st_policy policy = policy_of(512, 8);
    st_policy_state s = {.pace = &pace, .room = 1000};
    st_task tasks[] = {admitted(0, 1000, 8192), admitted(1, 0, 100), admitted(2, 50, 90)};
    st_policy_piece pieces[8];
    assert_int_equal(st_policy_step(&policy, &s, tasks, 3, pieces), 3);
    assert_int_equal(pieces[0].task, 1);
    assert_int_equal(pieces[0].count, 100);
    assert_int_equal(pieces[1].task, 2);
    assert_int_equal(pieces[1].count, 40);
    assert_int_equal(pieces[2].task, 0);
    assert_in_range(pieces[2].count, 355, 361);
    tasks[1].arrived = 8; /* the long one has waited for its own length */
    tasks[2].arrived = 8;
    assert_int_equal(st_policy_step(&policy, &s, tasks, 3, pieces), 1);
    assert_int_equal(pieces[0].task, 0);
    assert_in_range(pieces[0].count, 495, 501);
}

static void pieces_end_at_restore_points_and_multiples(void **state)
{
    (void)state;
    st_pace pace = pace_of(0.0, 0.0001);
    st_policy policy = policy_of(512, 8);
    st_policy_state s = {.pace = &pace, .room = 1000};
    st_task tasks[] = {admitted(0, 100, 1000)};
    st_policy_piece pieces[8];
    tasks[0].stop = 192;
    assert_int_equal(st_policy_step(&policy, &s, tasks, 1, pieces), 1);
    assert_int_equal(pieces[0].count, 92);
    tasks[0].stop = UINT32_MAX;
    policy.multiple = 128; /* whatever it costs */
    pace = pace_of(100.0, 100.0);
    assert_int_equal(st_policy_step(&policy, &s, tasks, 1, pieces), 1);
    assert_int_equal(pieces[0].count, 28);
    st_task both[] = {answering(0, 10), admitted(1, 128, 1000)};
    policy.rows = 128; /* no room for a whole piece beside the answer: the piece waits */
    assert_int_equal(st_policy_step(&policy, &s, both, 2, pieces), 1);
    assert_int_equal(pieces[0].task, 0);
}

static void blocked_tasks_do_not_run(void **state)
{
    (void)state;
    st_pace pace = pace_of(0.01, 0.001);
    st_policy policy = policy_of(512, 8);
    st_policy_state s = {.pace = &pace, .room = 1000};
    st_task tasks[] = {answering(0, 100), admitted(1, 0, 100), admitted(2, 0, 50)};
    st_policy_piece pieces[8];
    tasks[0].blocked = tasks[1].blocked = true;
    tasks[2].alone = true;
    assert_int_equal(st_policy_step(&policy, &s, tasks, 3, pieces), 0);
}

static void streamed_experts_take_large_pieces_and_then_give_time_back(void **state)
{
    (void)state;
    st_pace pace = pace_of(0.6, 0.0002);
    st_policy policy = policy_of(2048, 8);
    policy.streamed = true;
    st_policy_state s = {.pace = &pace, .room = 1000};
    st_task tasks[] = {answering(0, 100), admitted(1, 0, 10000)};
    st_policy_piece pieces[8];
    assert_int_equal(st_policy_step(&policy, &s, tasks, 2, pieces), 2);
    assert_int_equal(pieces[0].count, 2047);
    st_pace_load large = {.answers = 1, .rows = 2047}, alone = {.answers = 1};
    s.owed = st_policy_owed(&policy, 0.0, large, 0.9);
    assert_true(s.owed > 0.599 && s.owed < 0.601); /* 40 % of 1.5 s */
    double answered = 0.0;
    while (st_policy_step(&policy, &s, tasks, 2, pieces) == 1) {
        assert_int_equal(pieces[0].task, 0);
        s.owed = st_policy_owed(&policy, s.owed, alone, 0.02);
        answered += 0.02;
    }
    assert_true(answered > 0.59 && answered < 0.63);
    large.answers = 0; /* nobody answered: nothing is owed */
    assert_true(st_policy_owed(&policy, 0.0, large, 0.9) == 0.0);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void what_does_not_fit_waits(void **state)
{
    (void)state;
    st_pace pace = pace_of(0.01, 0.001);
    st_policy policy = policy_of(512, 4);
    st_policy_state s = {.pace = &pace, .room = 20};
    st_task tasks[] = {admitted(0, 0, 10 * PAGE), waiting(1, 0, 9 * PAGE), waiting(2, 0, 2 * PAGE)};
    assert_int_equal(st_policy_admit(&policy, &s, tasks, 2), ST_NO_TASK); /* 11 pages are promised, 10 needed */
    s.room = 21;
    assert_int_equal(st_policy_admit(&policy, &s, tasks, 2), 1);
    tasks[1].adopts = 1; /* a cached page is taken from the room too */
    assert_int_equal(st_policy_admit(&policy, &s, tasks, 2), ST_NO_TASK);
    tasks[0].admitted = false; /* whoever is alone is admitted */
    s.room = 0;
    assert_int_equal(st_policy_admit(&policy, &s, tasks, 1), 0);
}

static void places_are_limited_and_the_shortest_is_next(void **state)
{
    (void)state;
    st_pace pace = pace_of(0.0, 0.001);
    st_policy policy = policy_of(512, 2);
    st_policy_state s = {.pace = &pace, .room = 1000};
    st_task tasks[] = {answering(0, 100), waiting(1, 0, 9000), waiting(2, 0, 200)};
    assert_int_equal(st_policy_admit(&policy, &s, tasks, 3), 2);
    s.places_held = 1;
    assert_int_equal(st_policy_admit(&policy, &s, tasks, 3), ST_NO_TASK);
    s.places_held = 0;
    tasks[2].blocked = true;
    assert_int_equal(st_policy_admit(&policy, &s, tasks, 3), 1);
    tasks[2] = admitted(2, 0, 200);
    assert_int_equal(st_policy_admit(&policy, &s, tasks, 3), ST_NO_TASK);
}

static void a_task_that_is_alone_waits_for_all_and_holds_all_back(void **state)
{
    (void)state;
    st_pace pace = pace_of(0.0, 0.001);
    st_policy policy = policy_of(512, 4);
    st_policy_state s = {.pace = &pace, .room = 1000};
    st_task tasks[] = {answering(0, 100), waiting(1, 0, 100), waiting(2, 0, 100)};
    tasks[1].alone = true;
    assert_int_equal(st_policy_admit(&policy, &s, tasks, 3), ST_NO_TASK);
    tasks[0].admitted = false;
    tasks[0].blocked = true;
    assert_int_equal(st_policy_admit(&policy, &s, tasks, 3), 1);
    tasks[1].admitted = true;
    assert_int_equal(st_policy_admit(&policy, &s, tasks, 3), ST_NO_TASK);
}

static void the_last_to_arrive_gives_way(void **state)
{
    (void)state;
    st_pace pace = pace_of(0.0, 0.001);
    st_policy policy = policy_of(512, 4);
    st_policy_state s = {.pace = &pace, .room = 2};
    st_task tasks[] = {answering(0, 2 * PAGE), answering(5, 3 * PAGE), answering(3, 4 * PAGE)};
    assert_int_equal(st_policy_park(&policy, &s, tasks, 3), 1);
    s.room = 3;
    assert_int_equal(st_policy_park(&policy, &s, tasks, 3), ST_NO_TASK);
    s.room = 0;
    assert_int_equal(st_policy_park(&policy, &s, tasks, 1), ST_NO_TASK); /* nobody else to make room */
    tasks[1].position = 3 * PAGE + 1; /* in the middle of a page: nothing to take, unless the page is shared */
    tasks[1].end = tasks[1].position + 1;
    tasks[2].position = 4 * PAGE + 1;
    tasks[2].end = tasks[2].position + 1;
    s.room = 1;
    assert_int_equal(st_policy_park(&policy, &s, tasks, 3), ST_NO_TASK);
    tasks[2].copies = true;
    assert_int_equal(st_policy_park(&policy, &s, tasks, 3), 1);
}

static void pieces_stay_within_the_room(void **state)
{
    (void)state;
    st_pace pace = pace_of(0.0, 0.0001);
    st_policy policy = policy_of(512, 4);
    st_policy_state s = {.pace = &pace, .room = 3};
    st_task tasks[] = {answering(0, 2 * PAGE), admitted(1, 10, 1000)};
    st_policy_piece pieces[4];
    assert_int_equal(st_policy_step(&policy, &s, tasks, 2, pieces), 2);
    assert_int_equal(pieces[0].count, 3 * PAGE - 10); /* the page it has, and two more */
}

/* ---- arrivals on a simulated clock ------------------------------------------------------------------------------- */

enum { ARRIVALS = 10000, LIVE_MAX = 4000, POOL = 140, PLACES = 8 };

typedef struct sim_task {
    st_task task;
    uint32_t prompt, answer, answered;
    uint32_t held; /* pages */
    double admitted_at, first_at;
} sim_task;

typedef struct world {
    st_policy policy;
    st_pace pace;
    double now, owed;
    sim_task live[LIVE_MAX];
    uint32_t count, parked, done;
    double longest_wait, longest_share; /* seconds; in units of the task's own service time plus a minute */
} world;

static double cost(st_pace_load load)
{
    return 0.005 + 0.0008 * load.answers + 0.0003 * load.rows + 1e-8 * (double)load.attended;
}

static uint32_t held_pages(const world *w)
{
    uint32_t pages = 0;
    for (uint32_t i = 0; i < w->count; i++) pages += w->live[i].held;
    return pages;
}

static uint32_t list(const world *w, st_task *tasks)
{
    for (uint32_t i = 0; i < w->count; i++) tasks[i] = w->live[i].task;
    return w->count;
}

static void manage(world *w)
{
    static st_task tasks[LIVE_MAX];
    for (;;) {
        st_policy_state s = {.pace = &w->pace, .room = POOL - held_pages(w), .owed = w->owed};
        uint32_t i = st_policy_admit(&w->policy, &s, tasks, list(w, tasks));
        if (i == ST_NO_TASK) break;
        sim_task *t = &w->live[i];
        t->task.admitted = true;
        if (w->now - t->task.arrived > w->longest_wait) w->longest_wait = w->now - t->task.arrived;
    }
    for (;;) {
        st_policy_state s = {.pace = &w->pace, .room = POOL - held_pages(w)};
        uint32_t i = st_policy_park(&w->policy, &s, tasks, list(w, tasks));
        if (i == ST_NO_TASK) break;
        w->live[i].task.admitted = w->live[i].task.answers = false; /* its pages are gone: it runs all again */
        w->live[i].task.position = w->live[i].held = 0;
        w->parked++;
    }
}

static void advance(world *w, sim_task *t, uint32_t rows)
{
    t->task.position += rows;
    t->held = (t->task.position + PAGE - 1) / PAGE;
    if (t->task.position < t->task.end) return;
    if (t->answered == 0) t->first_at = w->now;
    t->task.end++;
    t->task.answers = true;
    t->answered++;
}

static void run_step(world *w)
{
    static st_task tasks[LIVE_MAX];
    st_policy_piece pieces[PLACES];
    st_policy_state s = {.pace = &w->pace, .room = POOL - held_pages(w), .owed = w->owed};
    uint32_t count = st_policy_step(&w->policy, &s, tasks, list(w, tasks), pieces);
    assert_true(count > 0);
    st_pace_load load = {0};
    for (uint32_t i = 0; i < count; i++) {
        const st_task *task = &tasks[pieces[i].task];
        if (task->answers) load.answers += pieces[i].count;
        else load.rows += pieces[i].count;
        load.attended += (uint64_t)pieces[i].count * task->position;
    }
    assert_true(load.rows + load.answers <= w->policy.rows);
    w->now += cost(load);
    st_pace_learn(&w->pace, load, cost(load));
    w->owed = st_policy_owed(&w->policy, w->owed, load, cost(load));
    for (uint32_t i = 0; i < count; i++) advance(w, &w->live[pieces[i].task], pieces[i].count);
    assert_true(held_pages(w) <= POOL);
}

static void take_out_finished(world *w)
{
    for (uint32_t i = w->count; i-- > 0;) {
        sim_task *t = &w->live[i];
        if (t->answered < t->answer) continue;
        double own = cost((st_pace_load){.rows = t->prompt}) + 60.0, took = t->first_at - t->task.arrived;
        if (took / own > w->longest_share) w->longest_share = took / own;
        w->done++;
        *t = w->live[--w->count];
    }
}

/* Prompts of all lengths arrive at random, a little slower than the machine can serve them. */
static void nobody_starves_in_10000_arrivals(void **state)
{
    (void)state;
    for (int streamed = 0; streamed < 2; streamed++) {
        static world w;
        memset(&w, 0, sizeof w);
        w.policy = policy_of(512, PLACES);
        w.policy.streamed = streamed;
        w.pace = pace_of(0.001, 0.001);
        random_state = 17;
        double next = 0.0, work = 0.0;
        for (uint32_t arrived = 0; w.done < ARRIVALS;) {
            while (arrived < ARRIVALS && next <= w.now) {
                assert_true(w.count < LIVE_MAX);
                uint32_t prompt = between(1, 20) == 1 ? between(2000, 8000) : between(1, 400);
                uint32_t answer = between(1, 10) == 1 ? between(100, 600) : between(1, 60);
                w.live[w.count++] = (sim_task){.task = waiting(next, 0, prompt), .prompt = prompt, .answer = answer};
                double own = 0.0003 * prompt + answer * 0.0015;
                work += own;
                next += own / (streamed ? 0.7 : 0.9) * (0.5 + between(0, 999) / 1000.0);
                arrived++;
            }
            if (w.count == 0) w.now = next;
            manage(&w);
            if (w.count) run_step(&w);
            take_out_finished(&w);
        }
        printf("# %s: %u arrivals, %.0f s of work in %.0f s, %u parked; the longest wait for a place %.2f s\n",
               streamed ? "streamed experts" : "weights at hand", w.done, work, w.now, w.parked, w.longest_wait);
        if (w.longest_wait > 120.0 || w.longest_share > 2.0)
            fail_msg("a wait of %.1f s, a first token after %.1f times what was fair", w.longest_wait, w.longest_share);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_go_first_and_prompts_fill_the_time), cmocka_unit_test(prompts_keep_a_part_of_the_time),
        cmocka_unit_test(prompts_have_enough_rows_while_nobody_answers),
        cmocka_unit_test(short_prompts_pass_long_ones), cmocka_unit_test(pieces_end_at_restore_points_and_multiples),
        cmocka_unit_test(blocked_tasks_do_not_run),
        cmocka_unit_test(streamed_experts_take_large_pieces_and_then_give_time_back),
        cmocka_unit_test(what_does_not_fit_waits), cmocka_unit_test(places_are_limited_and_the_shortest_is_next),
        cmocka_unit_test(a_task_that_is_alone_waits_for_all_and_holds_all_back),
        cmocka_unit_test(the_last_to_arrive_gives_way), cmocka_unit_test(pieces_stay_within_the_room),
        cmocka_unit_test(nobody_starves_in_10000_arrivals),
    };
    return cmocka_run_group_tests_name("policy", tests, NULL, NULL);
}
