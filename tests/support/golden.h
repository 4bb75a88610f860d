/* A tiny model of the kit with what other implementations compute for it. */
#ifndef TEST_SUPPORT_GOLDEN_H
#define TEST_SUPPORT_GOLDEN_H

#include "backend/sim/sim.h"
#include "run/load.h"
#include "support/kit.h"

typedef struct golden {
    st_gguf *model, *expect;
    st_arena arena;
    const st_desc *desc;
    const st_binding *binding;
    const st_program *program;
    const int32_t *tokens;
    uint32_t token_count;
    const float *logits;      /* [row_count, vocab] */
    const int32_t *rows;      /* [row_count]: positions; NULL: all of them */
    uint32_t row_count;
    const int32_t *greedy;    /* [greedy_count]; NULL: none */
    const float *greedy_margin;
    uint32_t greedy_count;
    const float *nextn_logits; /* [nextn_count, vocab]; NULL: none */
    uint32_t nextn_count;
} golden;

/* The models with expectations: one row for each, and the tests of whole models run all of them. */
typedef struct golden_family {
    const char *name;
    double error_max; /* of the reference path */
    uint32_t flags;
} golden_family;

enum {
    GOLDEN_EXPERTS = 1,
    GOLDEN_OUTSIDE = 2, /* only the kit beside the checkout has it */
    GOLDEN_LONG = 4,    /* more than 48 tokens: its tests run fewer variants */
};

extern const golden_family golden_families[];
extern const size_t golden_family_count;

bool golden_is_long(const golden_family *family);

/* Opens NAME.gguf and NAME.expect.gguf. Returns false if only the kit beside the checkout has them and it is absent;
 * the test then skips. A file of the repository's own copy must exist. */
bool golden_open(golden *g, const char *name);
void golden_close(golden *g);

/* Opens a model in memory, which must outlive it, with the tokens of `like`: for a modified copy of that model. */
void golden_open_bytes(golden *g, const golden *like, const void *bytes, size_t length);

/* Lowers the opened model again, with options; st_program_of_file_with. */
strata_status golden_lower(golden *g, const st_program_options *options, strata_error *error);

/* Opens a model without expectations; the tokens must outlive it. */
void golden_open_file(golden *g, const char *path, const strata_token *tokens, uint32_t count);

typedef struct golden_options {
    st_type kv_type;
    uint32_t batch, threads, context; /* context 0: room for the prompt and the greedy tokens */
    uint32_t conversations, page_tokens, pool_tokens; /* 0: 1, and the defaults */
    uint64_t restore_bytes;              /* 0: chosen */
    bool nextn, no_windows;
    const char *cpu;
    const st_plan_options *placed; /* placement on a GPU, simulated or the backend of mirror.h; NULL: no GPU, or all layers
                                      on that backend */
    const st_backend *backend;     /* of that GPU; NULL: the simulated one, or that of mirror.h */
    uint64_t card_bytes;           /* of that GPU; 0: ample */
    const st_profile *profiles;    /* host and GPU; NULL: the defaults */
    st_stream_options experts;     /* of an expert cache */
    st_watch *watch;               /* observes the routing */
    const st_recorded *recorded;   /* of a model lowered for it (golden_lower) */
    st_sim_call fails;             /* this kind of simulated call … */
    uint64_t fails_at;             /* … fails at its n-th call after the devices open; 0: none fails */
} golden_options;

/* Statistics of a model's routed experts, for golden_options.watch. */
enum { GOLDEN_EXPERTS_MAX = 64 };
typedef struct golden_watch {
    st_watch watch;
    bool seen[GOLDEN_EXPERTS_MAX];
    uint32_t distinct[GOLDEN_EXPERTS_MAX];
} golden_watch;

void golden_watch_open(golden_watch *w, const golden *g);
void golden_watch_close(golden_watch *w);
uint64_t golden_watch_count(const golden_watch *w, st_stat what); /* prompt and decoding */

/* Devices, weights on them and an executor; any failure fails the test. */
typedef struct golden_run {
    const golden *g;
    st_arena arena;
    st_profile profiles[ST_DEVICES_MAX];
    st_plan_source source;
    const st_plan *plan;
    st_sim_world *world; /* NULL: the GPU is not simulated */
    st_load_device devices[ST_DEVICES_MAX];
    st_load *load;
    st_run *run;                   /* the load's */
    st_conversation *conversation; /* the one that golden_feed and golden_greedy use */
    uint32_t batch;
} golden_run;

/* The same, returning the error: nothing stays open after a failure. */
strata_status golden_run_try(golden_run *r, const golden *g, const golden_options *options, strata_error *error);

void golden_run_open(golden_run *r, const golden *g, const golden_options *options);
void golden_run_close(golden_run *r);

/* Runs these ids as the conversation's next tokens. */
strata_status golden_step(golden_run *r, st_conversation *c, const strata_token *ids, uint32_t count, strata_error *error);

/* Cuts the conversation to at most `position` tokens; returns where it can continue. */
uint32_t golden_cut(golden_run *r, uint32_t position);

/* Feeds `count` tokens in batches and compares each expected row of logits. */
typedef struct golden_score {
    double error_squares, norm_squares;
    uint32_t agree, rows;       /* rows whose argmax agrees */
    double nextn_error_squares, nextn_norm_squares;
    uint32_t nextn_rows;
} golden_score;

void golden_feed(golden_run *r, uint32_t first, uint32_t count, golden_score *score);
double golden_error(const golden_score *score);       /* ‖a−b‖/‖b‖ */
double golden_nextn_error(const golden_score *score);

/* Decodes greedily after the prompt; returns how many ids match before the first difference. If the expected margin
 * there is below `margin`, the rest counts as matching. Slow runs (kit_is_slow) decode four. */
uint32_t golden_greedy(golden_run *r, float margin);

uint32_t golden_argmax(const float *logits, uint32_t count);

#endif
