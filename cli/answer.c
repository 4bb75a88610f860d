/* One answer: sampling options, prompt, streamed text, and a line with the speed. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

/* ---- options of generation --------------------------------------------------------------------------------------- */

/* ID+X or ID-X. */
static strata_status parse_bias(const char *text, strata_bias *out, strata_error *error)
{
    static const double bias_limit = 1e9;
    size_t digits = strspn(text, "0123456789");
    int64_t id;
    double bias;
    if ((text[digits] == '+' || text[digits] == '-') && cli_parse_integer(text, digits, 0, INT32_MAX, &id) &&
        cli_parse_real(text + digits, -bias_limit, bias_limit, &bias)) {
        *out = (strata_bias){.token = (strata_token)id, .bias = (float)bias};
        return STRATA_OK;
    }
    return cli_fail(error, STRATA_USAGE, "give a token id, a sign and a number up to 1e9: 42+1.5",
                    "run: --logit-bias: expected ID(+|-)X, found \"%s\"", text);
}

static strata_status take_biases(cli_talk *talk, strata_error *error)
{
    size_t count = 0;
    void *biases = NULL;
    const char **texts = cli_repeated(talk->arguments, OPTION_LOGIT_BIAS, &count);
    strata_status status = cli_allocate(count, sizeof *talk->biases, "--logit-bias", &biases, error);
    if (status == STRATA_OK && count > 0 && !texts)
        status = cli_fail(error, STRATA_MEMORY, NULL, "no memory for --logit-bias");
    talk->biases = biases;
    for (size_t i = 0; status == STRATA_OK && i < count; i++) status = parse_bias(texts[i], &talk->biases[i], error);
    talk->generation.sampling.biases = talk->biases;
    talk->generation.sampling.bias_count = count;
    free(texts);
    return status;
}

/* A copy of the text (free) with the escapes \n, \r, \t and \\ replaced; others stay. NULL: no memory. */
static char *unescape(const char *text)
{
    static const char letters[] = "nrt\\", meant[] = "\n\r\t\\";
    char *made = malloc(strlen(text) + 1), *end = made;
    if (!made) return NULL;
    for (; *text; text++) {
        const char *letter = text[0] == '\\' && text[1] ? strchr(letters, text[1]) : NULL;
        *end++ = letter ? meant[letter - letters] : *text;
        text += letter != NULL;
    }
    *end = '\0';
    return made;
}

static strata_status take_stops(cli_talk *talk, strata_error *error)
{
    size_t count = 0;
    void *stops = NULL;
    const char **given = cli_repeated(talk->arguments, OPTION_STOP, &count);
    strata_status status = cli_allocate(count, sizeof *talk->stops, "--stop", &stops, error);
    talk->stops = stops;
    for (size_t i = 0; status == STRATA_OK && i < count; i++) {
        talk->stops[i] = given ? unescape(given[i]) : NULL;
        if (!talk->stops[i]) status = cli_fail(error, STRATA_MEMORY, NULL, "no memory for --stop");
        else if (!*talk->stops[i])
            status = cli_fail(error, STRATA_USAGE, NULL, "run: --stop: expected a text, found an empty string");
        talk->stop_count = i + 1;
    }
    free(given);
    talk->generation.stops = (const char *const *)talk->stops;
    talk->generation.stop_count = talk->stop_count;
    return status;
}

/* A random seed that can be typed again. */
static uint64_t random_seed(void)
{
    uint32_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) seed = (uint32_t)(cli_now_seconds() * 1e6);
    return seed;
}

strata_status cli_talk_open(cli_talk *talk, cli_engine *engine, strata_error *error)
{
    const cli_arguments *arguments = talk->arguments;
    strata_sampling s = STRATA_SAMPLING_DEFAULT;
    s.temperature = (float)cli_real(arguments, OPTION_TEMPERATURE, s.temperature);
    s.top_k = (uint32_t)cli_integer(arguments, OPTION_TOP_K, s.top_k);
    s.top_p = (float)cli_real(arguments, OPTION_TOP_P, s.top_p);
    s.min_p = (float)cli_real(arguments, OPTION_MIN_P, s.min_p);
    s.repeat_penalty = (float)cli_real(arguments, OPTION_REPEAT_PENALTY, s.repeat_penalty);
    s.presence_penalty = (float)cli_real(arguments, OPTION_PRESENCE_PENALTY, s.presence_penalty);
    s.frequency_penalty = (float)cli_real(arguments, OPTION_FREQUENCY_PENALTY, s.frequency_penalty);
    int64_t seed = cli_integer(arguments, OPTION_SEED, -1);
    int64_t last = cli_integer(arguments, OPTION_REPEAT_LAST_N, s.penalty_tokens);
    int64_t predict = cli_integer(arguments, OPTION_PREDICT, -1);
    s.seed = seed < 0 ? random_seed() : (uint64_t)seed;
    s.penalty_tokens = last < 0 ? UINT32_MAX : (uint32_t)last;
    talk->engine = engine;
    talk->generation = (strata_generation){.sampling = s, .max_tokens = predict > 0 ? (size_t)predict : 0,
                                           .ignore_end = arguments->values[OPTION_IGNORE_EOS].set,
                                           .show_control = arguments->values[OPTION_SPECIAL].set,
                                           .continue_random = true}; /* one stream over the turns of a chat */
    talk->silent = predict == 0;
    talk->out = cli_style_of(arguments, stdout);
    talk->json = arguments->values[OPTION_JSON].set;
    talk->stats = cli_is_quiet() || talk->json ? CLI_STATS_OFF : CLI_STATS_FULL;
    strata_status status = take_biases(talk, error);
    return status == STRATA_OK ? take_stops(talk, error) : status;
}

void cli_talk_close(cli_talk *talk)
{
    free(talk->biases);
    for (size_t i = 0; i < talk->stop_count; i++) free(talk->stops[i]);
    free(talk->stops);
}

/* ---- streaming text ---------------------------------------------------------------------------------------------- */

typedef struct listener {
    const cli_talk *talk;
    cli_answer *answer;
    size_t capacity;
    strata_status status; /* of printing or storing the text */
    strata_error *error;
} listener;

static bool keep_text(listener *l, const char *text, size_t length)
{
    cli_answer *answer = l->answer;
    if (l->capacity - answer->length < length) {
        size_t capacity = (l->capacity + length) * 2;
        char *grown = realloc(answer->text, capacity);
        if (!grown) {
            l->status = cli_fail(l->error, STRATA_MEMORY, NULL, "no memory for the answer");
            return false;
        }
        answer->text = grown;
        l->capacity = capacity;
    }
    memcpy(answer->text + answer->length, text, length);
    answer->length += length;
    return true;
}

/* Replaces control characters: the model may generate escape sequences. */
static void print_for_terminal(const char *text, size_t length)
{
    while (length > 0) {
        size_t plain = 0;
        while (plain < length && text[plain] != '\n' && text[plain] != '\t') plain++;
        cli_print_text(text, plain);
        if (plain < length) putchar(text[plain++]);
        text += plain;
        length -= plain;
    }
}

static bool print_and_keep(void *context, const char *text, size_t length)
{
    listener *l = context;
    if (l->talk->json) l->status = STRATA_OK; /* printed at the end */
    else if (l->talk->out.terminal) print_for_terminal(text, length);
    else fwrite(text, 1, length, stdout);
    if (!l->talk->json) l->status = cli_flush(l->error);
    return l->status == STRATA_OK && keep_text(l, text, length) && !cli_interrupted();
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

static double rate(double count, double seconds)
{
    return seconds > 0.0 ? count / seconds : 0.0;
}

/* The prompt gives the first token: decoding begins with the second. */
static double decode_rate(const cli_timing *t)
{
    if (t->answer.tokens < 2) return 0.0;
    return rate((double)(t->answer.tokens - 1), t->answer.seconds - t->answer.first_seconds);
}

/* What a chat prints, and the first part of the whole line. `simulated` stands behind every rate of a simulated GPU. */
static void print_short(const cli_timing *t, const char *simulated, const char *more)
{
    char reused[48] = "", decode[64] = "";
    if (t->reused_tokens) snprintf(reused, sizeof reused, ", %zu reused", t->reused_tokens);
    if (t->answer.tokens > 1) snprintf(decode, sizeof decode, " at %.1f t/s%s", decode_rate(t), simulated);
    cli_say("prompt: %llu token%s at %.1f t/s%s%s, first token after %.2f s%s; answer: %zu token%s%s%s",
            (unsigned long long)t->prompt_tokens, t->prompt_tokens == 1 ? "" : "s",
            rate((double)t->prompt_tokens, t->prompt_seconds), simulated, reused,
            t->prompt_seconds + t->answer.first_seconds, simulated, t->answer.tokens,
            t->answer.tokens == 1 ? "" : "s", decode, more);
}

static void print_timing(const cli_talk *talk, const cli_timing *t)
{
    char memory[160], peak[32], traffic[48] = "", more[352] = "";
    const cli_engine *engine = talk->engine;
    const char *simulated = cli_simulated(talk->arguments);
    double bytes = decode_rate(t) * json_number_value(json_object_get(engine->facts, "bytes_per_token"));
    if (bytes > 0.0) snprintf(traffic, sizeof traffic, " (%.2f GB/s%s)", bytes / 1e9, simulated);
    if (talk->stats == CLI_STATS_FULL)
        snprintf(more, sizeof more, "%s; seed %llu; %s, peak memory %s", traffic,
                 (unsigned long long)talk->generation.sampling.seed, cli_engine_memory(engine, memory, sizeof memory),
                 cli_short_number(cli_peak_bytes(), "B", peak, sizeof peak));
    cli_style style = cli_style_of(talk->arguments, stderr);
    if (style.color) fputs("\033[2m", stderr);
    print_short(t, simulated, more);
    if (style.color) fputs("\033[0m", stderr);
}

/* ---- the answer -------------------------------------------------------------------------------------------------- */

static strata_status run_prompt(cli_talk *talk, strata_session *session, const cli_prompt *prompt, cli_timing *t,
                                strata_error *error)
{
    cli_progress progress;
    cli_progress_begin(&progress, talk->arguments, "prompt", "tokens", prompt->count);
    double start = strata_engine_clock(talk->engine->engine);
    strata_prompt_options options = {.marks = prompt->marks,
                                     .mark_count = prompt->mark_count,
                                     .progress = cli_progress_step,
                                     .context = &progress};
    strata_status status =
        strata_session_prompt(session, prompt->ids, prompt->count, &options, &t->reused_tokens, error);
    t->prompt_seconds = strata_engine_clock(talk->engine->engine) - start;
    t->prompt_tokens = progress.done;
    cli_progress_end(&progress);
    return status;
}

/* Why the answer ended: "end", "length" (-n), "context" (it is full) or "interrupted". */
static const char *finish_of(const cli_talk *talk, const cli_answer *answer, const cli_timing *t)
{
    if (answer->interrupted) return "interrupted";
    if (talk->silent) return "length";
    if (t->answer.finish != STRATA_FINISH_LENGTH) return "end";
    return talk->generation.max_tokens && t->answer.tokens >= talk->generation.max_tokens ? "length" : "context";
}

/* Whether standard output and standard error go to one file or pipe: `2>&1`. */
static bool same_file(void)
{
    struct stat out, err;
    return fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 && out.st_dev == err.st_dev &&
           out.st_ino == err.st_ino;
}

static void print_end(const cli_talk *talk, const cli_answer *answer, const cli_timing *t)
{
    bool newline = answer->length > 0 && answer->text[answer->length - 1] == '\n';
    bool open = !talk->json && !newline && answer->length > 0;
    if (open && isatty(STDOUT_FILENO)) {
        putchar('\n');
        fflush(stdout);
    } else if (open && !cli_is_quiet() && same_file()) fputc('\n', stderr);
    if (strcmp(answer->finish, "context") == 0)
        cli_note("the context is full (%u tokens): the answer ends here", strata_engine_context(talk->engine->engine));
    if (strcmp(answer->finish, "length") == 0 && !talk->silent && !talk->json)
        cli_note("the answer was cut after %zu token%s (-n %zu)", t->answer.tokens, t->answer.tokens == 1 ? "" : "s",
                 talk->generation.max_tokens);
    bool begun = !answer->interrupted || t->answer.tokens > 0;
    if (!begun) cli_note("stopped before the first token");
    if (begun && talk->stats != CLI_STATS_OFF) print_timing(talk, t);
}

strata_status cli_answer_prompt(cli_talk *talk, strata_session *session, const cli_prompt *prompt, cli_answer *out,
                                strata_error *error)
{
    cli_answer made = {0};
    strata_error text_error = {0};
    listener l = {.talk = talk, .answer = &made, .error = &text_error};
    cli_timing t = {0};
    strata_generation generation = talk->generation;
    generation.on_text = print_and_keep;
    generation.context = &l;
    cli_interrupt_hold(session);
    strata_status status = run_prompt(talk, session, prompt, &t, error);
    if (status == STRATA_OK && !talk->silent)
        status = strata_session_generate(session, &generation, &t.answer, error);
    made.interrupted = cli_interrupt_release();
    if (status == STRATA_INTERRUPTED) status = STRATA_OK; /* an interrupted prompt has an empty answer */
    if (status == STRATA_OK && l.status != STRATA_OK) {
        status = l.status;
        *error = text_error;
    }
    if (status != STRATA_OK) {
        free(made.text);
        return status;
    }
    made.timing = t;
    made.finish = finish_of(talk, &made, &t);
    print_end(talk, &made, &t);
    *out = made;
    return STRATA_OK;
}

strata_status cli_print_answer(const cli_talk *talk, const cli_answer *answer, strata_error *error)
{
    const cli_timing *t = &answer->timing;
    json_t *text = json_stringn(answer->text ? answer->text : "", answer->length);
    uint64_t prompt_tokens = t->prompt_tokens + t->reused_tokens;
    json_t *root = json_pack("{s:o, s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:b}", "answer", text, "finish",
                             answer->finish, "prompt_tokens", (json_int_t)prompt_tokens, "reused",
                             (json_int_t)t->reused_tokens, "tokens", (json_int_t)t->answer.tokens, "seed",
                             (json_int_t)talk->generation.sampling.seed, "prompt_seconds", t->prompt_seconds,
                             "first_seconds", t->prompt_seconds + t->answer.first_seconds, "seconds",
                             t->prompt_seconds + t->answer.seconds, "simulated", cli_simulates(talk->arguments));
    if (!root) return cli_fail(error, STRATA_MEMORY, NULL, "no memory to write JSON");
    strata_status status = cli_print_json(root, JSON_REAL_PRECISION(6), error);
    json_decref(root);
    return status;
}
