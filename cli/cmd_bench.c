/* strata bench: how fast a model runs, and what share of the machine's speed that is. */
#include <stdlib.h>
#include <string.h>

#include "together.h"

enum {
    PROMPT_DEFAULT = 512, DECODE_DEFAULT = 64, REPETITIONS_DEFAULT = 5, TESTS = 2,
    REPETITIONS_SIMULATED = 1, /* the virtual clock gives the same time again */
    PARALLEL_MAX = 64, PARALLEL_LIST_MAX = 16,
    MIXED_PROMPT = 4096, MIXED_DECODERS = 3, MIXED_REPETITIONS = 3
};

/* Negative numbers are not applicable: null in JSON, a dash in the table. */
typedef struct bench_row {
    char name[48];
    uint32_t tokens;
    uint32_t depth;                 /* tokens in the context before */
    uint32_t parallel;              /* conversations; 0: one, and not asked for */
    double speed, slowest, fastest; /* tokens per second */
    double read_bytes, ops;         /* per token */
    double gb_per_s, gop_per_s, read_share, int8_share;
    double predicted, ratio;        /* tokens per second by the plan; speed / predicted */
    json_t *profile; /* NULL: not asked for */
} bench_row;

typedef struct bench {
    const cli_arguments *arguments;
    cli_engine engine;
    uint32_t depth, repetitions;
    uint32_t counts[TESTS]; /* tokens of each test; 0: skipped */
    uint32_t recorded[TESTS]; /* tokens of the prompt of --routing, and decoded ones; 0: no --routing */
    uint32_t parallel[PARALLEL_LIST_MAX]; /* conversations that decode together */
    size_t parallel_count;  /* 0: one conversation */
    together together;      /* of --parallel and --mixed */
    uint32_t vocab;
    strata_token *ids;      /* [context] */
    uint64_t random;
    double load_seconds, first_seconds;
    uint64_t peak_bytes;
    json_t *machine;        /* of strata_engine_measure */
    bench_row rows[1 + PARALLEL_LIST_MAX];
    size_t row_count;
} bench;

/* ---- running tokens ---------------------------------------------------------------------------------------------- */

/* New ids from `first` on. The first id of a prompt differs from the last run's, so that no prefix is reused. */
static void draw_ids(bench *b, size_t first, size_t count)
{
    strata_token last = b->ids[0];
    for (size_t i = first; i < first + count; i++) {
        b->random = b->random * 6364136223846793005u + 1442695040888963407u;
        b->ids[i] = (strata_token)((b->random >> 33) % b->vocab);
    }
    if (first == 0 && b->ids[0] == last) b->ids[0] = (strata_token)(((uint32_t)last + 1) % b->vocab);
}

/* Runs the first `count` ids as the prompt. */
static strata_status run_ids(bench *b, size_t count, strata_error *error)
{
    const float *logits;
    size_t vocab = 0;
    strata_status status = strata_session_prompt(b->engine.session, b->ids, count, NULL, NULL, error);
    if (status == STRATA_OK) status = strata_session_logits(b->engine.session, &logits, &vocab, error);
    if (status == STRATA_OK) b->vocab = (uint32_t)vocab;
    return status;
}

/* Runs a prompt of `base` tokens and prepares ids for `count` more. The ids of the depth are always the same, so that
 * their KV cache is reused. Reading the logits waits for the GPU. */
static strata_status begin_sequence(bench *b, size_t base, uint32_t count, strata_error *error)
{
    draw_ids(b, b->depth, base - b->depth + count + 1);
    return base > 0 ? run_ids(b, base, error) : STRATA_OK;
}

static strata_status run_prompt(bench *b, size_t base, uint32_t count, strata_error *error)
{
    return run_ids(b, base + count, error);
}

/* The last token is chosen, but not run: one more than wanted is given. */
static strata_status run_decode(bench *b, size_t base, uint32_t count, strata_error *error)
{
    strata_answer answer;
    strata_generation g = {.sampling = {.top_p = 1, .repeat_penalty = 1}, .max_tokens = count + 1,
                           .given = b->ids + base, .given_count = count + 1};
    return strata_session_generate(b->engine.session, &g, &answer, error);
}

/* ---- cost of a token --------------------------------------------------------------------------------------------- */

static double fact(const bench *b, const char *name)
{
    return json_number_value(json_object_get(b->engine.facts, name));
}

/* Recurrent state of one conversation: the engine has a slot for each that runs. */
static double state_bytes(const bench *b)
{
    double running = json_number_value(json_object_get(json_object_get(b->engine.facts, "plan"), "sequences"));
    return fact(b, "state_bytes") / (running > 1.0 ? running : 1.0);
}

/* Bytes that decoding a token reads on average: weights, recurrent state (read and written), and its KV cache. */
static double decode_bytes(const bench *b, uint32_t base, uint32_t count)
{
    double bytes = fact(b, "bytes_per_token") + 2.0 * state_bytes(b);
    double seen = base + (count + 1) / 2.0;
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(b->engine.facts, "kv_reads"), i, row) {
        double span = json_number_value(json_object_get(row, "span"));
        bytes += (span > 0.0 && span < seen ? span : seen) *
                 json_number_value(json_object_get(row, "bytes_per_position"));
    }
    return bytes;
}

static double decode_ops(const bench *b, uint32_t count)
{
    (void)count;
    return fact(b, "ops_per_token");
}

/* A prompt reads the weights once for many tokens: bytes per token mean nothing. */
static double prompt_bytes(const bench *b, uint32_t base, uint32_t count)
{
    (void)b;
    (void)base;
    (void)count;
    return -1.0;
}

static double prompt_ops(const bench *b, uint32_t count)
{
    (void)count;
    return fact(b, "prompt_ops_per_token");
}

/* The planner's prediction after `base` tokens; for decoding, that of the middle token. */
static double predict_decode(const bench *b, uint32_t base, uint32_t count, uint32_t conversations)
{
    return strata_engine_predict_together(b->engine.engine, base + (count - 1) / 2, conversations ? conversations : 1);
}

static double predict_prompt(const bench *b, uint32_t base, uint32_t count, uint32_t conversations)
{
    double decode, prompt;
    (void)conversations;
    strata_engine_predict(b->engine.engine, base, count, &decode, &prompt);
    return prompt;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

typedef struct bench_test {
    const char *name;
    cli_option_id option;
    uint32_t count; /* default */
    uint32_t warm;  /* most tokens of the warm-up */
    uint32_t least; /* fewest tokens to start from */
    bool together;  /* --parallel applies */
    bool behind;    /* starts behind the prompt of --routing */
    strata_status (*run)(bench *b, size_t base, uint32_t count, strata_error *error);
    double (*bytes)(const bench *b, uint32_t base, uint32_t count);
    double (*ops)(const bench *b, uint32_t count);
    double (*predict)(const bench *b, uint32_t base, uint32_t count, uint32_t conversations);
} bench_test;

static const bench_test tests[TESTS] = {
    {"pp", OPTION_PROMPT_TOKENS, PROMPT_DEFAULT, UINT32_MAX, 0, false, false, run_prompt, prompt_bytes, prompt_ops,
     predict_prompt},
    {"tg", OPTION_DECODE_TOKENS, DECODE_DEFAULT, 8, 1, true, true, run_decode, decode_bytes, decode_ops,
     predict_decode},
};

/* The tokens that a test starts from. */
static uint32_t base_of(const bench *b, const bench_test *test)
{
    uint32_t base = test->behind && b->recorded[0] ? b->recorded[0] : b->depth;
    return base > test->least ? base : test->least;
}

/* The depth that a row's name shows. */
static uint32_t depth_of(const bench *b, const bench_test *test)
{
    return b->recorded[0] ? base_of(b, test) : b->depth;
}

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sum_up(bench_row *row, double *speeds, size_t count)
{
    qsort(speeds, count, sizeof *speeds, compare_numbers);
    row->slowest = speeds[0];
    row->fastest = speeds[count - 1];
    row->speed = (speeds[(count - 1) / 2] + speeds[count / 2]) / 2.0;
}

/* The part of a repetition before the clock starts, and the timed part. */
static strata_status begin_row(bench *b, const bench_test *test, const bench_row *row, uint32_t count,
                               strata_error *error)
{
    if (!row->parallel) return begin_sequence(b, base_of(b, test), count, error);
    return together_prompt(&b->together, row->parallel, b->depth, b->depth ? 0 : 1, error);
}

static strata_status time_row(bench *b, const bench_test *test, const bench_row *row, uint32_t count, double *seconds,
                              strata_error *error)
{
    if (row->parallel) return together_decode(&b->together, row->parallel, count, seconds, error);
    double start = strata_engine_clock(b->engine.engine);
    strata_status status = test->run(b, base_of(b, test), count, error);
    *seconds = strata_engine_clock(b->engine.engine) - start;
    return status;
}

/* One repetition; its operations are added to `profile` if there is one. */
static strata_status time_once(bench *b, const bench_test *test, const bench_row *row, uint32_t count, json_t *profile,
                               double *speed, strata_error *error)
{
    json_t *before = NULL, *after = NULL;
    double seconds = 0.0, tokens = (double)count * (row->parallel ? row->parallel : 1);
    strata_status status = begin_row(b, test, row, count, error);
    if (status == STRATA_OK && profile) status = cli_profile_read(&b->engine, &before, error);
    if (status == STRATA_OK) status = time_row(b, test, row, count, &seconds, error);
    if (status == STRATA_OK && profile) status = cli_profile_read(&b->engine, &after, error);
    if (status == STRATA_OK && profile) status = cli_profile_add(profile, before, after, error);
    json_decref(before);
    json_decref(after);
    *speed = seconds > 0.0 ? tokens / seconds : 0.0;
    return status;
}

static strata_status run_test(bench *b, const bench_test *test, bench_row *row, strata_error *error)
{
    cli_progress progress;
    void *speeds = NULL;
    double unused;
    bool profile = b->arguments->values[OPTION_PROFILE].set;
    row->profile = profile ? json_array() : NULL;
    if (profile && !row->profile) return cli_fail(error, STRATA_MEMORY, NULL, "no memory for the profile");
    strata_status status = cli_allocate(b->repetitions, sizeof(double), "the repetitions", &speeds, error);
    if (status != STRATA_OK) return status;
    cli_progress_begin(&progress, b->arguments, row->name, "repetitions", b->repetitions);
    status = time_once(b, test, row, row->tokens < test->warm ? row->tokens : test->warm, NULL, &unused, error);
    for (uint32_t i = 0; status == STRATA_OK && i < b->repetitions; i++) {
        status = time_once(b, test, row, row->tokens, row->profile, (double *)speeds + i, error);
        cli_progress_step(&progress, i + 1, b->repetitions);
    }
    cli_progress_end(&progress);
    if (status == STRATA_OK) sum_up(row, speeds, b->repetitions);
    free(speeds);
    row->read_bytes = test->bytes(b, base_of(b, test), row->tokens);
    row->ops = test->ops(b, row->tokens);
    row->predicted = test->predict(b, base_of(b, test), row->tokens, row->parallel);
    return status;
}

/* Conversations that run together read weights once for all of them: bytes per token mean nothing. */
static strata_status run_row(bench *b, const bench_test *test, uint32_t tokens, uint32_t parallel, strata_error *error)
{
    bench_row *row = &b->rows[b->row_count++];
    char many[16] = "", depth[24] = "";
    row->tokens = tokens;
    row->parallel = parallel;
    row->depth = depth_of(b, test);
    if (parallel) snprintf(many, sizeof many, "@%u", parallel);
    if (row->depth) snprintf(depth, sizeof depth, " @ d%u", row->depth);
    snprintf(row->name, sizeof row->name, "%s%u%s%s", test->name, tokens, many, depth);
    strata_status status = run_test(b, test, row, error);
    if (parallel > 1) row->read_bytes = -1.0;
    return status;
}

static strata_status run_tests(bench *b, strata_error *error)
{
    strata_status status = STRATA_OK;
    for (size_t i = 0; status == STRATA_OK && i < TESTS; i++) {
        if (b->counts[i] == 0) continue;
        if (!tests[i].together || b->parallel_count == 0) status = run_row(b, &tests[i], b->counts[i], 0, error);
        else
            for (size_t k = 0; status == STRATA_OK && k < b->parallel_count; k++)
                status = run_row(b, &tests[i], b->counts[i], b->parallel[k], error);
    }
    return status;
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */

static strata_status measure_machine(bench *b, bool operations, strata_error *error)
{
    char *text = NULL;
    strata_status status = strata_engine_measure(b->engine.engine, operations, &text, error);
    if (status != STRATA_OK) return status;
    status = cli_parse_json("the machine", text, strlen(text), &b->machine, error);
    strata_free(text);
    return status;
}

static double machine_rate(const bench *b, const char *name)
{
    return json_number_value(json_object_get(b->machine, name));
}

static double share_of(double part, double whole)
{
    return part >= 0.0 && whole > 0.0 ? part / whole : -1.0;
}

/* With a GPU, the host's measured rates do not describe the whole machine. */
static bool has_card(const bench *b)
{
    return json_array_size(json_object_get(json_object_get(b->engine.facts, "plan"), "devices")) > 1;
}

static void find_shares(bench *b)
{
    bool alone = !has_card(b);
    for (size_t i = 0; i < b->row_count; i++) {
        bench_row *row = &b->rows[i];
        row->gb_per_s = row->read_bytes >= 0.0 ? row->read_bytes * row->speed * 1e-9 : -1.0;
        row->gop_per_s = row->ops * row->speed * 1e-9;
        row->read_share = alone ? share_of(row->gb_per_s * 1e9, machine_rate(b, "read_bytes_per_s")) : -1.0;
        row->int8_share = alone ? share_of(row->gop_per_s * 1e9, machine_rate(b, "int8_ops_per_s")) : -1.0;
        row->ratio = share_of(row->speed, row->predicted);
    }
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static json_t *number_or_null(double number)
{
    return number >= 0.0 ? json_real(number) : json_null();
}

static json_t *row_json(const bench *b, const bench_row *row)
{
    json_t *object = json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:o, s:o, s:o, s:o, s:o, s:o}", "test", row->name,
                               "tokens",
                               (int)row->tokens, "depth", (int)row->depth, "repetitions", (int)b->repetitions, "tps",
                               row->speed, "tps_min", row->slowest, "tps_max", row->fastest, "gb_per_s",
                               number_or_null(row->gb_per_s), "gop_per_s", number_or_null(row->gop_per_s), "read_share",
                               number_or_null(row->read_share), "int8_share", number_or_null(row->int8_share),
                               "predicted_tps",
                               number_or_null(row->predicted), "ratio", number_or_null(row->ratio));
    bool whole = object != NULL;
    if (whole && row->parallel)
        whole = json_object_set_new(object, "parallel", json_integer(row->parallel)) == 0 &&
                json_object_set_new(object, "tps_each", json_real(row->speed / row->parallel)) == 0;
    if (whole && row->profile) whole = json_object_set(object, "profile", row->profile) == 0;
    if (whole) return object;
    json_decref(object);
    return NULL;
}

/* The counts of routed experts so far, and with --expert-stats their statistics: the engine's facts are from before the
 * first token. */
static bool add_experts(const bench *b, json_t *root, json_t *engine)
{
    json_t *facts = NULL;
    if (cli_engine_facts(&b->engine, &facts, NULL) != STRATA_OK) return false;
    json_t *counts = json_object_get(facts, "experts"), *stats = json_object_get(facts, "expert_stats");
    if (!b->arguments->values[OPTION_EXPERT_STATS].set) stats = NULL;
    bool whole = (!counts || json_object_set(engine, "experts", counts) == 0) &&
                 (!stats || json_object_set(root, "expert_stats", stats) == 0);
    json_decref(facts);
    return whole;
}

static strata_status print_json(const bench *b, strata_error *error)
{
    json_t *rows = json_array(), *machine = json_copy(b->machine), *engine = json_copy(b->engine.facts);
    json_t *operations = json_incref(json_object_get(machine, "operations"));
    json_object_del(machine, "operations");
    json_object_del(engine, "profile");
    json_object_del(engine, "expert_stats"); /* from before the first token */
    json_object_del(engine, "expert_table");
    bool whole = true;
    for (size_t i = 0; i < b->row_count; i++)
        if (json_array_append_new(rows, row_json(b, &b->rows[i])) != 0) whole = false;
    bool ops = b->arguments->values[OPTION_OPS].set;
    json_t *root = json_pack("{s:o, s:o, s:o}", ops ? "operations" : "rows", json_incref(ops ? operations : rows),
                             "machine", machine, "engine", engine);
    if (!ops)
        whole = json_object_set_new(root, "simulated", json_boolean(cli_simulates(b->arguments))) == 0 &&
                json_object_set_new(root, "load_seconds", json_real(b->load_seconds)) == 0 &&
                json_object_set_new(root, "first_token_seconds", json_real(b->first_seconds)) == 0 &&
                json_object_set_new(root, "peak_bytes", json_integer((json_int_t)b->peak_bytes)) == 0 && whole;
    if (whole) whole = add_experts(b, root, engine);
    strata_status status = root && whole ? cli_print_json(root, JSON_INDENT(2), error)
                                         : cli_fail(error, STRATA_MEMORY, NULL, "no memory to write JSON");
    json_decref(rows);
    json_decref(operations);
    json_decref(root);
    return status;
}

static void print_number(double number, int width, int digits, const char *unit)
{
    if (number >= 0.0) printf("%*.*f%s", width, digits, number, unit);
    else printf("%*s%*s", width, "-", (int)strlen(unit), "");
}

static void print_machine(const bench *b)
{
    const json_t *facts = b->engine.facts;
    const char *mark = cli_simulated(b->arguments);
    double int8 = machine_rate(b, "int8_ops_per_s");
    printf("\nthe machine: reads %.1f GB/s%s", machine_rate(b, "read_bytes_per_s") * 1e-9, mark);
    if (int8 > 0.0) printf(", int8 %.0f Gop/s%s", int8 * 1e-9, mark);
    printf("; kernels \"%s\", %lld threads\n", json_string_value(json_object_get(facts, "kernels")),
           (long long)json_integer_value(json_object_get(facts, "threads")));
}

static void print_table(const bench *b)
{
    char name[64], spread[64], memory[160], peak[32];
    const char *mark = cli_simulated(b->arguments);
    int width = *mark ? 28 : 18;
    printf("%-*s %9s  %-25s%10s %6s %9s %9s %9s %9s\n", width, "test", "t/s", "(min – max)", "predicted", "ratio",
           "GB/s", "of reads", "Gop/s", "of int8");
    for (size_t i = 0; i < b->row_count; i++) {
        const bench_row *row = &b->rows[i];
        snprintf(spread, sizeof spread, "(%.1f – %.1f)", row->slowest, row->fastest);
        snprintf(name, sizeof name, "%s%s", row->name, mark);
        printf("%-*s %9.1f  %-25s", width, name, row->speed, spread);
        print_number(row->predicted, 10, 1, "");
        print_number(row->ratio, 7, 2, "");
        print_number(row->gb_per_s, 10, 2, "");
        print_number(row->read_share * 100.0, 8, 0, " %");
        print_number(row->gop_per_s, 10, 1, "");
        print_number(row->int8_share * 100.0, 8, 0, " %");
        putchar('\n');
    }
    print_machine(b);
    printf("memory: %s, peak %s; loaded in %.3f s, the first token %.3f s%s later\n",
           cli_engine_memory(&b->engine, memory, sizeof memory),
           cli_short_number(b->peak_bytes, "B", peak, sizeof peak), b->load_seconds, b->first_seconds, mark);
    for (size_t i = 0; i < b->row_count; i++) {
        if (!b->rows[i].profile) continue;
        printf("\n%s, %u repetition%s:\n", b->rows[i].name, b->repetitions, b->repetitions == 1 ? "" : "s");
        cli_print_profile(stdout, b->rows[i].profile, cli_simulates(b->arguments));
    }
}

static double row_number(const json_t *row, const char *field)
{
    return json_number_value(json_object_get(row, field));
}

static void print_operations(const bench *b)
{
    size_t i;
    json_t *row;
    printf("%-14s %-8s %6s %12s %9s %9s\n", "operation", "type", "rows", "µs", "GB/s", "Gop/s");
    json_array_foreach(json_object_get(b->machine, "operations"), i, row) {
        printf("%-14s %-8s %6lld %11.1f %9.2f %9.2f\n", json_string_value(json_object_get(row, "op")),
               json_string_value(json_object_get(row, "type")),
               (long long)json_integer_value(json_object_get(row, "rows")), row_number(row, "seconds") * 1e6,
               row_number(row, "gb_per_s"), row_number(row, "gop_per_s"));
    }
    print_machine(b);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* "1,4,16" */
static strata_status take_parallel(bench *b, uint32_t *most, strata_error *error)
{
    const char *text = b->arguments->values[OPTION_PARALLEL_LIST].text, *at = text;
    *most = 0;
    while (at) {
        char *end;
        long value = strtol(at, &end, 10);
        bool number = *at >= '0' && *at <= '9' && value >= 1 && value <= PARALLEL_MAX && (*end == ',' || *end == 0);
        if (!number || b->parallel_count == PARALLEL_LIST_MAX)
            return cli_fail(error, STRATA_USAGE, NULL,
                            "bench: --parallel: expected at most %d numbers from 1 to %d, separated by commas, "
                            "found %s",
                            PARALLEL_LIST_MAX, PARALLEL_MAX, text);
        b->parallel[b->parallel_count++] = (uint32_t)value;
        if (value > (long)*most) *most = (uint32_t)value;
        at = *end ? end + 1 : NULL;
    }
    return STRATA_OK;
}

/* Tokens of the recorded routing: the prompt, and decoded ones. */
static strata_status take_routing(bench *b, strata_error *error)
{
    static const char *const fields[TESTS] = {"prompt_tokens", "decode_tokens"};
    const cli_value *values = b->arguments->values;
    const char *path = values[OPTION_ROUTING].text;
    json_t *facts = NULL;
    char *text = NULL;
    if (!path) return STRATA_OK;
    if (values[OPTION_DEPTH].set || values[OPTION_PARALLEL_LIST].set || values[OPTION_MIXED].set ||
        values[OPTION_OPS].set)
        return cli_fail(error, STRATA_USAGE, NULL,
                        "bench: --routing runs one conversation from its first token on: expected no --depth, "
                        "--parallel, --mixed or --ops");
    strata_status status = strata_routing_describe(path, &text, error);
    if (status == STRATA_OK) status = cli_parse_json("the recorded routing", text, strlen(text), &facts, error);
    for (size_t i = 0; i < TESTS && status == STRATA_OK; i++) {
        b->recorded[i] = (uint32_t)json_integer_value(json_object_get(facts, fields[i]));
        int64_t asked = cli_integer(b->arguments, tests[i].option, b->recorded[i]);
        if (b->recorded[i] == 0 || asked > (int64_t)b->recorded[i])
            status = cli_fail(error, STRATA_INPUT, NULL, "bench: %s: expected at least %lld tokens of its %s, found %u",
                              path, (long long)(asked ? asked : 1), i ? "decoding" : "prompt", b->recorded[i]);
    }
    strata_free(text);
    json_decref(facts);
    return status;
}

/* The context that the tests need. */
static uint32_t take_counts(bench *b)
{
    uint32_t context = 1;
    for (size_t i = 0; i < TESTS; i++) {
        uint32_t usual = b->recorded[i] ? b->recorded[i] : tests[i].count;
        b->counts[i] = (uint32_t)cli_integer(b->arguments, tests[i].option, usual);
        uint32_t needed = base_of(b, &tests[i]) + b->counts[i];
        if (b->counts[i] > 0 && needed > context) context = needed;
    }
    return context;
}

/* A longer context than the tests need leaves less memory for experts and layers, as in a long conversation. */
static strata_status take_context(const cli_arguments *arguments, uint32_t *context, strata_error *error)
{
    int64_t asked = cli_integer(arguments, OPTION_CONTEXT, *context);
    if (asked > 0 && asked < *context)
        return cli_fail(error, STRATA_USAGE, "use fewer tokens (-p, -n, -d), or leave -c out",
                        "bench: --ctx-size: expected at least %u, what the tests need", *context);
    if (asked > 0) *context = (uint32_t)asked;
    return STRATA_OK;
}

static strata_status take_options(bench *b, uint32_t *context, strata_error *error)
{
    const cli_arguments *arguments = b->arguments;
    bool ops = arguments->values[OPTION_OPS].set, mixed = arguments->values[OPTION_MIXED].set;
    uint32_t most = 0;
    strata_status status = take_parallel(b, &most, error);
    if (status == STRATA_OK) status = take_routing(b, error);
    if (status != STRATA_OK) return status;
    b->depth = (uint32_t)cli_integer(arguments, OPTION_DEPTH, 0);
    *context = ops ? 1 : take_counts(b);
    b->engine.sessions = most;
    b->repetitions = (uint32_t)cli_integer(arguments, OPTION_REPETITIONS,
                                           mixed                      ? MIXED_REPETITIONS
                                           : cli_simulates(arguments) ? REPETITIONS_SIMULATED
                                                                      : REPETITIONS_DEFAULT);
    if (cli_simulates(arguments) && (mixed || ops))
        return cli_fail(error, STRATA_USAGE, "leave --device sim out", "bench: --%s measures real time, which a "
                        "simulated GPU does not have", mixed ? "mixed" : "ops");
    if (mixed) {
        b->counts[0] = (uint32_t)cli_integer(arguments, OPTION_PROMPT_TOKENS, MIXED_PROMPT);
        b->engine.sessions = 1 + (most ? most : MIXED_DECODERS);
        *context = b->counts[0] + 1;
    }
    if (mixed && (b->parallel_count > 1 || b->engine.sessions > PARALLEL_MAX || b->counts[0] == 0))
        return cli_fail(error, STRATA_USAGE, NULL,
                        "bench: --mixed: expected a prompt, and one --parallel of at most %d", PARALLEL_MAX - 1);
    if (!ops && b->counts[0] == 0 && b->counts[1] == 0)
        return cli_fail(error, STRATA_USAGE, NULL, "bench: -p 0 and -n 0 leave nothing to measure");
    status = take_context(arguments, context, error);
    return status == STRATA_OK ? cli_need(arguments, OPTION_MODEL, error) : status;
}

static strata_status load(bench *b, uint32_t context, strata_error *error)
{
    double start = cli_now_seconds();
    strata_status status = cli_engine_open(&b->engine, b->arguments, context, false, error);
    if (status != STRATA_OK) return status;
    b->load_seconds = cli_now_seconds() - start;
    cli_note_simulation(b->arguments);
    uint32_t got = strata_engine_context(b->engine.engine);
    if (got < context)
        return cli_fail(error, STRATA_LIMIT, "use fewer tokens (-p, -n, -d)",
                        "bench: %u tokens of context are needed, the plan has %u", context, got);
    void *ids = NULL;
    status = cli_allocate(got + 1, sizeof *b->ids, "the tokens", &ids, error);
    b->ids = ids;
    return status;
}

static strata_status run_bench(bench *b, strata_error *error)
{
    double start = strata_engine_clock(b->engine.engine);
    strata_status status = run_ids(b, 1, error); /* gives the size of the vocabulary */
    b->first_seconds = strata_engine_clock(b->engine.engine) - start;
    if (status != STRATA_OK) return status;
    if (b->engine.sessions) {
        status = together_open(&b->together, b->engine.engine, b->engine.sessions, b->vocab, error);
        if (status != STRATA_OK) return status;
    }
    if (b->arguments->values[OPTION_MIXED].set)
        return cli_bench_mixed(&b->together, b->arguments, b->counts[0], b->repetitions, error);
    if (b->depth) draw_ids(b, 0, b->depth);
    status = run_tests(b, error);
    b->peak_bytes = cli_peak_bytes(); /* before the machine is measured */
    if (status == STRATA_OK) status = measure_machine(b, false, error);
    if (status != STRATA_OK) return status;
    find_shares(b);
    return STRATA_OK;
}

strata_status cli_cmd_bench(const cli_arguments *arguments, strata_error *error)
{
    const cli_value *values = arguments->values;
    bench b = {.arguments = arguments};
    uint32_t context = 0;
    strata_status status = take_options(&b, &context, error);
    if (status == STRATA_OK) status = load(&b, context, error);
    if (status == STRATA_OK) status = values[OPTION_OPS].set ? measure_machine(&b, true, error) : run_bench(&b, error);
    bool print = status == STRATA_OK && !values[OPTION_MIXED].set; /* --mixed has printed */
    if (print && values[OPTION_JSON].set) status = print_json(&b, error);
    else if (print) {
        if (values[OPTION_OPS].set) print_operations(&b);
        else print_table(&b);
        status = cli_flush(error);
    }
    for (size_t i = 0; i < b.row_count; i++) json_decref(b.rows[i].profile);
    together_close(&b.together);
    free(b.ids);
    json_decref(b.machine);
    cli_engine_close(&b.engine);
    return status;
}
