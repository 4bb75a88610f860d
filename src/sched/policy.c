#include "sched/policy.h"

static uint32_t rest(const st_task *task)
{
    return task->end > task->position ? task->end - task->position : 0;
}

double st_policy_key(const st_policy_state *state, const st_task *task)
{
    uint32_t rows = rest(task);
    st_pace_load load = {.rows = rows,
                         .attended = (uint64_t)rows * task->position + (uint64_t)rows * rows / 2};
    return task->arrived + st_pace_predict(state->pace, load);
}

uint32_t st_policy_pages(const st_policy *policy, const st_task *task, uint32_t count)
{
    uint64_t page = policy->page_tokens, position = task->position;
    uint64_t before = (position + page - 1) / page, after = (position + count + page - 1) / page;
    return (uint32_t)(after - before) + (count > 0 && task->copies);
}

/* --- admission ---------------------------------------------------------------------------------------------------- */

/* Every admitted task keeps the room that its prompt needs, and a page for its answer. */
static uint64_t pages_promised(const st_policy *policy, const st_task *tasks, uint32_t count)
{
    uint64_t pages = 0;
    for (uint32_t i = 0; i < count; i++)
        if (tasks[i].admitted) pages += st_policy_pages(policy, &tasks[i], rest(&tasks[i])) + 1;
    return pages;
}

static uint32_t first_waiting(const st_policy_state *state, const st_task *tasks, uint32_t count)
{
    uint32_t first = ST_NO_TASK;
    double key = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        if (tasks[i].admitted || tasks[i].blocked) continue;
        double own = st_policy_key(state, &tasks[i]);
        if (first != ST_NO_TASK && own >= key) continue;
        first = i;
        key = own;
    }
    return first;
}

uint32_t st_policy_admit(const st_policy *policy, const st_policy_state *state, const st_task *tasks, uint32_t count)
{
    uint32_t admitted = state->places_held, first = first_waiting(state, tasks, count);
    if (first == ST_NO_TASK) return ST_NO_TASK;
    for (uint32_t i = 0; i < count; i++) {
        if (tasks[i].admitted && tasks[i].alone) return ST_NO_TASK;
        admitted += tasks[i].admitted;
    }
    if (admitted == 0) return first;
    if (tasks[first].alone || admitted >= policy->places) return ST_NO_TASK;
    uint64_t needed = (uint64_t)st_policy_pages(policy, &tasks[first], rest(&tasks[first])) + 1 + tasks[first].adopts;
    return needed + pages_promised(policy, tasks, count) <= state->room ? first : ST_NO_TASK;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static bool can_run(const st_task *task)
{
    return task->admitted && !task->blocked && !task->alone && rest(task) > 0;
}

/* A prompt in the order in which prompts run: by key, then by index. */
typedef struct turn {
    double key;
    uint32_t task; /* ST_NO_TASK: none */
} turn;

static bool comes_before(turn a, turn b)
{
    return a.task != ST_NO_TASK &&
           (b.task == ST_NO_TASK || a.key < b.key || (a.key <= b.key && a.task < b.task));
}

/* The admitted prompt that runs after `last`; the first one if that is none. */
static turn next_prompt(const st_policy_state *state, const st_task *tasks, uint32_t count, turn last)
{
    turn next = {.task = ST_NO_TASK};
    for (uint32_t i = 0; i < count; i++) {
        if (!can_run(&tasks[i]) || tasks[i].answers) continue;
        turn own = {st_policy_key(state, &tasks[i]), i};
        if ((last.task == ST_NO_TASK || comes_before(last, own)) && comes_before(own, next)) next = own;
    }
    return next;
}

uint32_t st_policy_park(const st_policy *policy, const st_policy_state *state, const st_task *tasks, uint32_t count)
{
    uint64_t needed = 0;
    uint32_t admitted = 0, last = ST_NO_TASK, prompt = next_prompt(state, tasks, count, (turn){.task = ST_NO_TASK}).task;
    for (uint32_t i = 0; i < count; i++) {
        if (!tasks[i].admitted || tasks[i].alone) continue;
        admitted++;
        if (last == ST_NO_TASK || tasks[i].arrived >= tasks[last].arrived) last = i;
        if (tasks[i].answers) needed += st_policy_pages(policy, &tasks[i], 1);
    }
    if (prompt != ST_NO_TASK) needed += st_policy_pages(policy, &tasks[prompt], 1);
    return needed > state->room && admitted > 1 ? last : ST_NO_TASK;
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

typedef struct step {
    const st_policy *policy;
    const st_policy_state *state;
    st_pace_load load;
    uint32_t rows, room; /* left */
    bool answers;        /* somebody answers */
} step;

/* Rows of a prompt for which the time of the step suffices. Prompts have at least a quarter of the time, also where
 * answers alone take longer than the step may. */
static uint32_t rows_in_time(const step *s, const st_task *task)
{
    double budget = s->answers ? s->policy->answer_seconds : s->policy->prompt_seconds;
    if (s->policy->streamed) return s->rows;
    st_pace_load answers = {.answers = s->load.answers};
    double least = st_pace_predict(s->state->pace, answers) + budget / 4.0;
    return st_pace_rows(s->state->pace, s->load, task->position, budget > least ? budget : least, s->rows);
}

/* The most tokens for which `room` pages suffice. */
static uint32_t rows_in_room(const step *s, const st_task *task, uint32_t most)
{
    if (st_policy_pages(s->policy, task, most) <= s->room) return most;
    uint32_t low = 0, high = most;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (st_policy_pages(s->policy, task, middle) <= s->room) low = middle;
        else high = middle - 1;
    }
    return low;
}

/* The tokens of a prompt that the step takes; 0: none. `first`: no other prompt is in the step. */
static uint32_t prompt_rows(const step *s, const st_task *task, bool first)
{
    uint32_t most = rest(task), multiple = s->policy->multiple;
    if (task->stop > task->position && task->stop - task->position < most) most = task->stop - task->position;
    if (multiple) {
        uint32_t fixed = multiple - task->position % multiple;
        if (fixed > most) fixed = most;
        return fixed <= s->rows && rows_in_room(s, task, fixed) == fixed ? fixed : 0;
    }
    if (most > s->rows) most = s->rows;
    uint32_t rows = rows_in_time(s, task), least = s->answers ? 0 : s->policy->prompt_rows;
    if (least < ST_POLICY_ROWS_MIN) least = ST_POLICY_ROWS_MIN;
    if (first && rows < least) rows = least;
    return rows_in_room(s, task, rows < most ? rows : most);
}

static void add_piece(step *s, const st_task *task, uint32_t index, uint32_t rows, st_policy_piece *piece)
{
    *piece = (st_policy_piece){.task = index, .count = rows};
    s->rows -= rows;
    s->room -= st_policy_pages(s->policy, task, rows);
    s->load.attended += (uint64_t)rows * task->position + (uint64_t)rows * rows / 2;
    if (task->answers) s->load.answers += rows;
    else s->load.rows += rows;
}

static bool has_answers(const st_task *tasks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (tasks[i].admitted && tasks[i].answers) return true;
    return false;
}

static void reverse(st_policy_piece *pieces, uint32_t count)
{
    for (uint32_t i = 0; i < count / 2; i++) {
        st_policy_piece piece = pieces[i];
        pieces[i] = pieces[count - 1 - i];
        pieces[count - 1 - i] = piece;
    }
}

uint32_t st_policy_step(const st_policy *policy, const st_policy_state *state, const st_task *tasks, uint32_t count,
                        st_policy_piece *pieces)
{
    step s = {.policy = policy, .state = state, .rows = policy->rows, .room = state->room,
              .answers = has_answers(tasks, count)};
    uint32_t answers = 0, prompts = 0;
    for (uint32_t i = 0; i < count; i++)
        if (can_run(&tasks[i]) && tasks[i].answers && s.rows > 0 && st_policy_pages(policy, &tasks[i], 1) <= s.room)
            add_piece(&s, &tasks[i], i, 1, &pieces[answers++]);
    bool only_answers = policy->streamed && answers > 0 && state->owed > 0.0;
    turn last = {.task = ST_NO_TASK};
    while (!only_answers && s.rows > 0) {
        last = next_prompt(state, tasks, count, last);
        uint32_t rows = last.task == ST_NO_TASK ? 0 : prompt_rows(&s, &tasks[last.task], prompts == 0);
        if (rows == 0) break;
        add_piece(&s, &tasks[last.task], last.task, rows, &pieces[answers + prompts++]);
    }
    reverse(pieces, answers);
    reverse(pieces + answers, prompts);
    reverse(pieces, answers + prompts);
    return answers + prompts;
}

double st_policy_owed(const st_policy *policy, double owed, st_pace_load load, double seconds)
{
    if (!policy->streamed) return 0.0;
    if (load.rows > 0) return load.answers > 0 ? seconds * ST_POLICY_ANSWER_SHARE / (1.0 - ST_POLICY_ANSWER_SHARE) : 0.0;
    return owed > seconds ? owed - seconds : 0.0;
}
