/* strata perplexity: the perplexity of a text. */
#include <math.h>
#include <stdlib.h>

#include "cli.h"

enum { CHUNK_DEFAULT = 512 };

/* Sums over all scored tokens. */
typedef struct score {
    const strata_token *chunk;
    size_t chunk_count;
    size_t scored;
    double sum, sum_squares; /* of the negative log-likelihoods */
    double seconds;          /* on the devices' clock */
    cli_progress progress;
} score;

static double negative_log_likelihood(const float *logits, size_t vocab, strata_token token)
{
    double highest = logits[0], sum = 0.0;
    for (size_t i = 1; i < vocab; i++)
        if (logits[i] > highest) highest = logits[i];
    for (size_t i = 0; i < vocab; i++) sum += exp(logits[i] - highest);
    // cppcheck-suppress invalidFunctionArg ; the highest alone makes the sum 1
    return highest + log(sum) - logits[token];
}

/* The row's logits give the probability of the next token. */
static bool score_row(void *context, size_t row, const float *logits, size_t vocab)
{
    score *s = context;
    if (row + 1 < s->chunk_count) {
        double nll = negative_log_likelihood(logits, vocab, s->chunk[row + 1]);
        s->sum += nll;
        s->sum_squares += nll * nll;
        s->scored++;
    }
    return cli_progress_step(&s->progress, s->progress.done + 1, s->progress.total);
}

static strata_status score_chunks(cli_engine *engine, const strata_token *ids, size_t count, size_t chunk, score *s,
                                  strata_error *error)
{
    strata_status status = STRATA_OK;
    double start = strata_engine_clock(engine->engine);
    cli_note_simulation(engine->arguments);
    cli_progress_begin(&s->progress, engine->arguments, "scoring", "tokens", count);
    cli_interrupt_hold(engine->session);
    for (size_t first = 0; status == STRATA_OK && first < count; first += chunk) {
        s->chunk = ids + first;
        s->chunk_count = count - first < chunk ? count - first : chunk;
        status = strata_session_score(engine->session, s->chunk, s->chunk_count, false, score_row, s, error);
    }
    cli_interrupt_release();
    cli_progress_end(&s->progress);
    s->seconds = strata_engine_clock(engine->engine) - start;
    if (status == STRATA_OK && s->scored == 0)
        return cli_fail(error, STRATA_INPUT, NULL, "perplexity: expected at least two tokens, found %zu", count);
    return status;
}

static strata_status print_score(const cli_arguments *arguments, const score *s, size_t tokens, size_t chunk,
                                 strata_error *error)
{
    double n = (double)s->scored, mean = s->sum / n, perplexity = exp(mean);
    double variance = s->scored > 1 ? (s->sum_squares / n - mean * mean) / (n - 1.0) : 0.0;
    double deviation = variance > 0.0 ? perplexity * sqrt(variance) : 0.0;
    if (!arguments->values[OPTION_JSON].set) {
        const char *mark = cli_simulated(arguments);
        printf("perplexity %.4f ± %.4f%s over %zu scored tokens of %zu (nll %.6f%s, chunks of %zu)\n", perplexity,
               deviation, mark, s->scored, tokens, mean, mark, chunk);
        return cli_flush(error);
    }
    json_t *object = json_pack("{s:f, s:f, s:f, s:I, s:I, s:I, s:f, s:b}", "perplexity", perplexity, "standard_error",
                               deviation, "nll", mean, "scored", (json_int_t)s->scored, "tokens", (json_int_t)tokens,
                               "chunk", (json_int_t)chunk, "seconds", s->seconds, "simulated",
                               cli_simulates(arguments));
    /* json_pack fails without memory, and if a logit was NaN. */
    strata_status status = object ? cli_print_json(object, JSON_INDENT(2), error)
                                  : cli_fail(error, STRATA_RUNTIME, NULL, "perplexity: the result is %f",
                                             perplexity);
    json_decref(object);
    return status;
}

static strata_status read_text(const cli_arguments *arguments, const strata_model *model, strata_token **ids,
                               size_t *count, strata_error *error)
{
    const cli_value *file = &arguments->values[OPTION_FILE], *list = &arguments->values[OPTION_IDS_FILE];
    if (list->set) {
        cli_ids read = {0};
        strata_status status = cli_read_ids(list->text, &read, error);
        *ids = read.ids;
        *count = read.count;
        return status;
    }
    char *text = NULL;
    size_t length = 0;
    strata_status status = cli_read(file->text, &text, &length, error);
    if (status == STRATA_OK) status = strata_tokenize(model, text, length, STRATA_TOKENIZE_PLAIN, ids, count, error);
    free(text);
    return status;
}

strata_status cli_cmd_perplexity(const cli_arguments *arguments, strata_error *error)
{
    const cli_value *values = arguments->values;
    cli_engine engine = {0};
    strata_token *ids = NULL;
    size_t count = 0;
    score s = {0};
    if (values[OPTION_FILE].set == values[OPTION_IDS_FILE].set)
        return cli_fail(error, STRATA_USAGE,
                        values[OPTION_FILE].set
                            ? NULL
                            : "give the text: -f FILE; the argument without a name is the model",
                        "perplexity: expected one of --file and --ids-file, found %s",
                        values[OPTION_FILE].set ? "both" : "neither");
    if (values[OPTION_CONTEXT].set && values[OPTION_CONTEXT].number < 2)
        return cli_fail(error, STRATA_USAGE, NULL, "perplexity: --ctx-size: expected at least 2, found \"%s\"",
                        values[OPTION_CONTEXT].text);
    strata_status status = cli_open_model(arguments, &engine.model, error);
    if (status == STRATA_OK) status = read_text(arguments, engine.model, &ids, &count, error);
    if (status == STRATA_OK) status = cli_engine_open(&engine, arguments, CHUNK_DEFAULT, false, error);
    size_t chunk = status == STRATA_OK ? strata_engine_context(engine.engine) : 1;
    if (status == STRATA_OK) status = score_chunks(&engine, ids, count, chunk, &s, error);
    if (status == STRATA_OK) status = print_score(arguments, &s, count, chunk, error);
    strata_free(ids);
    cli_engine_close(&engine);
    return status;
}
