/* Sessions that decode at the same time, for `strata bench`. Knows sessions and threads; knows no options and prints
 * nothing. */
#ifndef CLI_TOGETHER_H
#define CLI_TOGETHER_H

#include "cli.h"

/* Sessions, each with a thread while they decode. Zero-initialise; together_close frees. */
typedef struct together {
    strata_engine *engine;
    struct together_session *sessions; /* [count] */
    uint32_t count, context, vocab;
    uint64_t random;
} together;

strata_status together_open(together *t, strata_engine *engine, uint32_t count, uint32_t vocab, strata_error *error);
void together_close(together *t);

/* The first `active` sessions run a prompt of `depth` tokens, whose ids are the same in every call, and of `more`
 * tokens, at least one in all. */
strata_status together_prompt(together *t, uint32_t active, uint32_t depth, uint32_t more, strata_error *error);

/* The first `active` sessions decode `tokens` tokens each. *seconds: from the first to the last. */
strata_status together_decode(together *t, uint32_t active, uint32_t tokens, double *seconds, strata_error *error);

typedef struct together_mixed {
    double alone_seconds, prompt_seconds; /* of the prompt, until its logits are known */
    double *gaps;                         /* [gap_count]: seconds between two tokens of a session; free */
    size_t gap_count;
    size_t tokens;                        /* that the sessions decoded meanwhile */
} together_mixed;

/* A prompt of `prompt` tokens runs alone, and then while the other sessions decode. */
strata_status together_mix(together *t, uint32_t prompt, together_mixed *out, strata_error *error);

/* `strata bench --mixed`: together_mix several times, printed. */
strata_status cli_bench_mixed(together *t, const cli_arguments *arguments, uint32_t prompt, uint32_t repetitions,
                              strata_error *error);

#endif
