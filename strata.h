/* strata: language models larger than the GPU.
 *
 * The public header: it owns every name that a program outside src/ may use. cli/ includes nothing else of the library.
 *
 * Conventions:
 *   - A call that can fail returns a strata_status and takes a strata_error as its last argument (may be
 *     NULL). A failed call leaves its outputs unchanged and nothing to free.
 *   - Every _free and _close accepts NULL.
 *   - Input text is bytes with a length and need not be valid UTF-8. Text that strata returns is valid UTF-8, and
 *     NUL terminated where it is a char *.
 *   - A strata_model is immutable once open and may be used from several threads at once.
 */
#ifndef STRATA_H
#define STRATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default) /* the shared library exports what this header declares */
#endif

#define STRATA_VERSION "0.1.0"

/* ---- status and errors ------------------------------------------------------------------------------------ */

/* Every status: name, process exit code, text. */
#define STRATA_STATUS_TABLE(X)                                                       \
    X(OK, 0, "ok")                                                                   \
    X(RUNTIME, 1, "something went wrong while running")                              \
    X(LIMIT, 1, "a limit was reached")                                               \
    X(TEMPLATE, 1, "the chat template failed")                                       \
    X(INPUT, 1, "the input is invalid")                                              \
    X(USAGE, 2, "wrong usage")                                                       \
    X(FILE, 3, "the file could not be read")                                         \
    X(FORMAT, 3, "the model file is invalid")                                        \
    X(UNSUPPORTED, 3, "the model file needs a feature that strata does not have")      \
    X(MEMORY, 4, "not enough memory")                                                \
    X(DEVICE, 5, "the device failed")                                                \
    X(DEVICE_LOST, 5, "the device was lost")                                         \
    X(NETWORK, 6, "the network failed")                                              \
    X(INTERRUPTED, 130, "interrupted")

typedef enum strata_status {
#define X(name, exit_code, text) STRATA_##name,
    STRATA_STATUS_TABLE(X)
#undef X
        STRATA_STATUS_COUNT
} strata_status;

const char *strata_status_name(strata_status status);
const char *strata_status_text(strata_status status);
int strata_status_exit_code(strata_status status);

/* An error in words. `message` names the file, key or tensor, what was expected and what was found; `hint` says
 * what to do and may be empty. Fields are named as options.context or placement.layers. */
typedef struct strata_error {
    strata_status status;
    char message[768];
    char hint[256];
} strata_error;

/* Frees a char * or an array that a strata_ call returned. */
void strata_free(void *pointer);

/* ---- log ------------------------------------------------------------------------------------------------------ */

/* Receives the library's log, one line without a newline at a time, from any thread. Without a function the lines go to
 * standard error. Set it before other calls. */
typedef enum strata_log_level { STRATA_LOG_ERROR, STRATA_LOG_WARN, STRATA_LOG_NOTE } strata_log_level;
typedef void (*strata_log)(void *context, strata_log_level level, const char *text);
void strata_log_to(strata_log log, void *context);

/* ---- model: an opened file, no weights in memory ----------------------------------------------------------- */

typedef struct strata_model strata_model;
typedef struct strata_model_options {
    const char *pre_tokenizer; /* use this pre-tokeniser row instead of the file's; NULL: the file's */
} strata_model_options;

/* Opens a GGUF file (or any file of a split) and checks its whole directory. The tokenizer is built on first use.
 * `options` may be NULL. */
strata_status strata_model_open(const char *path, const strata_model_options *options, strata_model **out,
                                strata_error *error);
void strata_model_close(strata_model *model);

/* What strata_model_describe adds to the description. */
enum {
    STRATA_DESCRIBE_TENSORS = 1u << 0, /* every tensor */
    STRATA_DESCRIBE_PROGRAM = 1u << 1, /* the forward pass; an error if strata cannot run the model */
};

/* The model's description as a JSON object (strata_free). docs/json.md lists its fields. */
strata_status strata_model_describe(const strata_model *model, unsigned flags, char **json, strata_error *error);

/* ---- tokens ------------------------------------------------------------------------------------------------- */

typedef int32_t strata_token;

enum {
    STRATA_TOKENIZE_BOS = 1u << 0,    /* begin with the BOS token (an error if the vocabulary has none) */
    STRATA_TOKENIZE_PLAIN = 1u << 1,  /* treat special tokens in the text as plain text */
    STRATA_TOKENIZE_PROMPT = 1u << 2, /* begin with BOS if the vocabulary asks for it and the text lacks it */
};

/* Text to ids (strata_free). Special tokens in the text are recognised unless STRATA_TOKENIZE_PLAIN is set. */
strata_status strata_tokenize(const strata_model *model, const char *text, size_t length, unsigned flags,
                              strata_token **tokens, size_t *count, strata_error *error);

/* Ids to text (strata_free): NUL terminated, `length` without the NUL. Control tokens are written out. */
strata_status strata_detokenize(const strata_model *model, const strata_token *tokens, size_t count, char **text,
                                size_t *length, strata_error *error);

/* Ids to text one id at a time, for streaming: never splits a code point. */
typedef struct strata_decoder strata_decoder;
strata_status strata_decoder_new(const strata_model *model, strata_decoder **out, strata_error *error);
void strata_decoder_free(strata_decoder *decoder);

/* The code points that this token completed; valid until the next call. `*length` may be 0. */
strata_status strata_decoder_push(strata_decoder *decoder, strata_token token, const char **text, size_t *length,
                                  strata_error *error);
/* The rest of the text: an incomplete code point becomes U+FFFD. Resets the decoder. */
strata_status strata_decoder_finish(strata_decoder *decoder, const char **text, size_t *length, strata_error *error);

/* ---- chat templates ------------------------------------------------------------------------------------------ */

typedef struct strata_template strata_template;
/* Compiles a Jinja chat template from its source. */
strata_status strata_template_new(const char *source, size_t length, strata_template **out, strata_error *error);
/* The model's own template (STRATA_TEMPLATE if the file has none), with the model's BOS and EOS tokens. */
strata_status strata_template_of_model(const strata_model *model, strata_template **out, strata_error *error);
void strata_template_free(strata_template *chat_template);

/* The ids of an earlier prompt with its sampled answer and end token. */
typedef struct strata_known {
    const strata_token *tokens; /* [count] */
    size_t count;
} strata_known;

typedef struct strata_render_options {
    int64_t now; /* seconds since the epoch for strftime_now; 0: the current time */
    /* Of strata_template_tokenize: where the rendered text begins with the text of one of these, up to a special token,
     * the result has its ids. An answer that comes back unchanged so keeps the ids it was sampled with. */
    const strata_known *known; /* [known_count] */
    size_t known_count;
} strata_render_options;

/* Renders `args`, a JSON object ("messages", "tools", "add_generation_prompt", …), to text (strata_free).
 * `options` may be NULL. */
strata_status strata_template_render(const strata_template *chat_template, const char *args, size_t args_length,
                                     const strata_render_options *options, char **text, size_t *length,
                                     strata_error *error);

/* Renders and tokenises. Bytes from the messages never become a control token, nor any special token that the
 * template's own text contains. As with STRATA_TOKENIZE_PROMPT the result has one BOS where the vocabulary asks for
 * it, whether or not the template writes it. */
strata_status strata_template_tokenize(const strata_template *chat_template, const strata_model *model,
                                       const char *args, size_t args_length, const strata_render_options *options,
                                       strata_token **tokens, size_t *count, strata_error *error);

/* ---- engine: a model ready to run ------------------------------------------------------------------------------- */

/* Called during long work with the amount done so far; returning false stops the work with STRATA_INTERRUPTED. */
typedef bool (*strata_progress)(void *context, uint64_t done, uint64_t total);
typedef struct strata_engine strata_engine;

/* Constraints on the plan. Start from STRATA_PLACEMENT_DEFAULT, which leaves every choice to the planner. It names every
 * field, because C++ compilers warn about a field that is left out. */
typedef struct strata_placement {
    const char *device;       /* "cpu": no GPU; "cuda", "cuda:1": an NVIDIA GPU; "sim": a simulated GPU; NULL: auto */
    const char *profile;      /* device profile: a name (strata_devices lists them) or a JSON file */
    uint64_t vram_bytes, ram_bytes; /* memory sizes; 0: the profile's, or this machine's */
    uint64_t vram_margin_bytes, ram_margin_bytes; /* kept free; UINT64_MAX: the default of the device */
    uint64_t overhead_bytes;  /* VRAM that the driver uses; UINT64_MAX: as measured, or the profile's */
    int32_t layers;           /* on the GPU, from the first; −1: all; −2: the planner chooses */
    const char *moe;          /* routed experts: "resident", "cache" or "cpu"; NULL: the fastest */
    int32_t expert_slots;     /* per layer; −1: as many as fit */
    uint32_t cpu_moe_layers, cpu_ffn_layers; /* layers with routed experts, or dense FFN, on the CPU */
    const char *expert_policy, *expert_profile; /* cache policy; recorded routing that fills the slots at load */
    const char *prefetch;     /* prefetch of experts: "same", "next" or "both"; NULL: none */
    bool deterministic;       /* uploads become visible at fixed points, so runs are reproducible bit by bit */
    bool disk;                /* weights that do not fit in RAM stay in the file and are read on use */
} strata_placement;

#define STRATA_PLACEMENT_DEFAULT                                                                                  \
    {.device = NULL, .profile = NULL, .vram_bytes = 0, .ram_bytes = 0, .vram_margin_bytes = UINT64_MAX,           \
     .ram_margin_bytes = UINT64_MAX, .overhead_bytes = UINT64_MAX, .layers = -2, .moe = NULL, .expert_slots = -1,  \
     .cpu_moe_layers = 0, .cpu_ffn_layers = 0, .expert_policy = NULL, .expert_profile = NULL, .prefetch = NULL,   \
     .deterministic = false, .disk = false}

typedef struct strata_engine_options {
    uint32_t context;    /* maximum tokens of one session; 0: as many as fit, at most the model's maximum */
    uint32_t batch;      /* prompt tokens per batch; 0: 512, or 2048 where weights are streamed from RAM */
    uint32_t sessions;   /* that run at a time, at most 64; others wait. Any number may be open. 0: 1 */
    uint32_t pool_tokens; /* of the KV cache that all sessions share: at least the context. 0: as many as `sessions` need, or
                             as fit. If they do not suffice, sessions wait for one another */
    uint32_t step_ms;    /* milliseconds of a step while a session generates, so that a long prompt does not delay its
                            tokens for longer. 0: 100. While none generates, steps take 500, or this if it is more */
    uint64_t restore_bytes; /* host RAM for restore points, which models with window, chunked or recurrent layers need
                               to reuse a prefix; 0: a few points for each session that runs; or STRATA_RESTORE_OFF */
    uint64_t kv_ram_bytes; /* host RAM, at most, for copies of the KV pages of a GPU, from which a session that lost its
                              pages comes back; 0: the planner chooses; or STRATA_KV_RAM_OFF */
    const char *kv_save;   /* folder for the state of idle sessions, which then survives a restart; made with rights
                              0700 if it does not exist; NULL: none. One engine at a time may use a folder */
    uint64_t kv_save_bytes; /* limit of the folder's files; the least recently used are removed. 0: 16 GiB */
    const strata_placement *placement; /* NULL: STRATA_PLACEMENT_DEFAULT */
    uint32_t threads;    /* 0: all physical cores */
    const char *cpu;     /* CPU kernels: "ref", "avx2", "avxvnni", "avx512" or "amx"; NULL: the fastest that the CPU
                            supports */
    const char *kv_type; /* "f32", "f16", "bf16" or "q8_0"; NULL: f16, or bf16 for models with recurrent layers */
    bool nextn;          /* also run the model's NextN block (multi-token prediction) */
    bool profile;        /* time every kind of operation, for strata_engine_describe */
    bool expert_stats;   /* count hits, misses and uploads of routed experts, for strata_engine_describe */
    const char *record_routing; /* file for the routing, complete when the engine is freed; NULL: none */
    const char *replay_routing; /* recorded routing that replaces the routers' choices, to measure a real one: session n
                                   follows turn n of the file, position by position. Its number of experts for each
                                   token, at most the model's, applies. NULL: none */
    strata_progress progress; /* bytes of weights loaded; may be NULL */
    /* Called at each step of loading with the bytes used and free on a device (may be NULL). */
    void (*trace_memory)(void *context, const char *moment, const char *device, uint64_t used, uint64_t free);
    void *progress_context;   /* passed to both */
} strata_engine_options;

#define STRATA_RESTORE_OFF UINT64_MAX
#define STRATA_KV_RAM_OFF UINT64_MAX

/* The plan by which strata_engine_new would load the model, as a JSON object (strata_free): docs/json.md. Reads only
 * the file's directory, and queries the memory of a GPU if one is found. */
strata_status strata_plan(const strata_model *model, const strata_engine_options *options, char **json,
                          strata_error *error);

/* The devices of this machine, or the devices that the placement describes, and the names of all profiles, as a JSON
 * object (strata_free). With `probe`, measures their rates and saves them; otherwise uses the saved measurement. */
strata_status strata_devices(const strata_placement *placement, bool probe, char **json, strata_error *error);

/* Replays a recorded routing against cache policies and the optimum; the result is a JSON object (strata_free):
 * docs/experts.md. */
typedef struct strata_replay_options {
    const char *slots, *policies, *profile; /* "8,32"; "lru,optimum"; a device profile. NULL: defaults */
    uint32_t admission;                     /* an expert is uploaded on its first or second touch; 0: by the policy */
    double budget, upload_cost;             /* uploads per layer and token (0: unlimited); the cost of one, in hits */
} strata_replay_options;
strata_status strata_replay(const char *trace_path, const strata_replay_options *options, char **json,
                            strata_error *error);

/* A recorded routing as a JSON object (strata_free): the shape of its model, and the tokens of its first turn. */
strata_status strata_routing_describe(const char *path, char **json, strata_error *error);

/* Loads a model by its plan. `model` must outlive the engine; `options` may be NULL. */
strata_status strata_engine_new(const strata_model *model, const strata_engine_options *options, strata_engine **out,
                                strata_error *error);
void strata_engine_free(strata_engine *engine);

uint32_t strata_engine_context(const strata_engine *engine);
/* Seconds on the devices' clock: real time, or virtual time on a simulated device. */
double strata_engine_clock(const strata_engine *engine);
/* Predicted tokens per second: decoding at a depth of `depth` tokens, and prefill of `count` more tokens there. An engine
 * that has decoded with an expert cache predicts with the hit rate and the uploads that it has counted, a new one with the
 * plan's. */
void strata_engine_predict(const strata_engine *engine, uint32_t depth, uint32_t count, double *decode, double *prompt);

/* The same for `conversations` that decode together: tokens per second in all. */
double strata_engine_predict_together(const strata_engine *engine, uint32_t depth, uint32_t conversations);

/* The engine's backend, kernels and memory, as a JSON object (strata_free): docs/json.md. */
strata_status strata_engine_describe(const strata_engine *engine, char **json, strata_error *error);

/* Measures the machine, as a JSON object (strata_free): bytes read and int8 operations per second with the engine's
 * threads; with `operations`, also the time of every operation with every weight type at real shapes. */
strata_status strata_engine_measure(strata_engine *engine, bool operations, char **json, strata_error *error);

/* ---- session: one conversation ------------------------------------------------------------------------------------
 * The sessions of an engine share one KV cache. Sessions with the same prefix share its pages, and a prefix cache keeps
 * the pages of closed sessions while there is room. An idle session may lose pages to others; its next call runs the
 * missing tokens again. A session is used by one thread at a time, different sessions from different threads. */

typedef struct strata_session strata_session;
strata_status strata_session_new(strata_engine *engine, strata_session **out, strata_error *error);
void strata_session_free(strata_session *session);
/* While true, calls of the session stop early and keep finished batches: a generation with STRATA_FINISH_CANCEL, others
 * with STRATA_INTERRUPTED. May be called from any thread and from a signal handler. */
void strata_session_interrupt(strata_session *session, bool interrupt);
/* Stops the call of the session that another thread is in after the step under way, so that its tokens stay stored; later
 * calls run. Returns whether a call was under way; without one it does nothing. */
bool strata_session_cancel(strata_session *session);

/* A new session with the same tokens, which shares all pages and continues the same random stream. */
strata_status strata_session_fork(strata_session *session, strata_session **out, strata_error *error);

typedef struct strata_prompt_options {
    const size_t *marks; /* [mark_count], ascending: positions where later prompts may branch off, such as the end of
                            the system prompt or of the last message; models that need restore points keep one there */
    size_t mark_count;
    strata_progress progress; /* counts tokens; may be NULL */
    /* Called once when the prompt has a place, before its first step; until then it waits for other sessions. Runs on the
     * engine's thread, as on_token does. May be NULL. */
    void (*on_admitted)(void *context);
    void *context;            /* of both */
} strata_prompt_options;

/* Sets the session's tokens to these (at least one) and runs the ones that neither this session nor the prefix
 * cache has stored; `*reused` (may be NULL) is the number of stored ones. A prompt longer than the context is
 * STRATA_LIMIT with both numbers. `options` may be NULL. */
strata_status strata_session_prompt(strata_session *session, const strata_token *tokens, size_t count,
                                    const strata_prompt_options *options, size_t *reused, strata_error *error);

/* The logits after the session's last token: [vocab], valid until the session's next call. */
strata_status strata_session_logits(strata_session *session, const float **logits, size_t *count, strata_error *error);

/* Runs the tokens from position 0, without the prefix cache, and passes the logits after each token to `on_row`, in
 * order; `on_row` returning false stops with STRATA_INTERRUPTED. With `nextn`, the rows are the NextN block's: one
 * fewer than tokens. */
typedef bool (*strata_on_row)(void *context, size_t row, const float *logits, size_t vocab);
strata_status strata_session_score(strata_session *session, const strata_token *tokens, size_t count, bool nextn,
                                   strata_on_row on_row, void *context, strata_error *error);

/* Sampling, in this order: bias, penalties, top-k, top-p, min-p, temperature. NaN logits are an error. */
typedef struct strata_bias {
    strata_token token;
    float bias; /* added to the token's logit; -INFINITY bans it */
} strata_bias;

typedef struct strata_sampling {
    float temperature;        /* 0: greedy */
    uint32_t top_k;           /* 0: off */
    float top_p, min_p;       /* 1 and 0: off */
    float repeat_penalty;     /* 1: off */
    float presence_penalty, frequency_penalty; /* 0: off */
    uint32_t penalty_tokens;  /* penalties apply to this many last tokens; UINT32_MAX: the whole context */
    uint64_t seed;            /* starts the random stream; STRATA_SEED_RANDOM: a random seed */
    const strata_bias *biases; /* [bias_count] */
    size_t bias_count;
} strata_sampling;
#define STRATA_SEED_RANDOM UINT64_MAX
#define STRATA_SAMPLING_DEFAULT {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, \
                                 .repeat_penalty = 1, .presence_penalty = 0, .frequency_penalty = 0, \
                                 .penalty_tokens = 64, .seed = STRATA_SEED_RANDOM, .biases = NULL, .bias_count = 0}

typedef enum strata_finish {
    STRATA_FINISH_END,    /* an end token or a stop string */
    STRATA_FINISH_LENGTH, /* max_tokens reached, or the context is full */
    STRATA_FINISH_CANCEL, /* on_text or on_token returned false, strata_session_interrupt or strata_session_cancel */
} strata_finish;
enum { STRATA_TOP_LOGPROBS_MAX = 20 };
typedef struct strata_likely {
    strata_token token;
    float logprob; /* log-probability, before biases and penalties */
} strata_likely;
/* A token as it was sampled. */
typedef struct strata_sampled {
    strata_token token;
    bool end;            /* it ends the answer; it is not appended to the session's tokens */
    bool control;        /* a control token, whose text on_text does not get unless show_control is set */
    const float *logits; /* [vocab]: before biases and penalties; valid during the call. NULL: without_logits */
    size_t vocab;
    float logprob;            /* of the token; NaN unless strata_generation.logprobs is set */
    const strata_likely *top; /* [top_count]: the most likely tokens, the likeliest first; valid during the call */
    size_t top_count;
} strata_sampled;
typedef struct strata_generation {
    strata_sampling sampling;
    size_t max_tokens;        /* 0: until an end token or a full context */
    const char *const *stops; /* stop strings: the answer ends before the first one */
    size_t stop_count;
    bool ignore_end;          /* never sample the vocabulary's end tokens */
    bool show_control;        /* also pass the text of control tokens to on_text */
    bool continue_random;     /* continue the random stream of the session's last generation, if there is one */
    const strata_token *given; /* [given_count]: the first tokens of the answer, run one by one without sampling */
    size_t given_count;
    /* Receives whole code points as they are generated, on the caller's thread; returning false cancels, and the answer
     * ends with that text. May be NULL. */
    bool (*on_text)(void *context, const char *text, size_t length);
    /* Receives every token of the answer, before its text goes to on_text; returning false cancels. Runs on the engine's
     * thread, which all sessions wait for: it must return soon and call nothing of the engine. May be NULL. */
    bool (*on_token)(void *context, const strata_sampled *sampled);
    void *context; /* of both */
    bool logprobs;            /* on_token gets the token's logprob … */
    size_t top_logprobs;      /* … and so many of the most likely tokens, at most STRATA_TOP_LOGPROBS_MAX */
    bool without_logits; /* on_token does not read sampled->logits, which may then be NULL: a GPU sends only the best
                            256 tokens, if they suffice (greedy, or a top_k from 1 to 256) */
} strata_generation;

typedef struct strata_answer {
    strata_finish finish;
    size_t tokens;        /* generated, without the end token */
    double first_seconds; /* until the first token was sampled */
    double seconds;       /* total */
} strata_answer;

/* Generates tokens and appends them to the session's. */
strata_status strata_session_generate(strata_session *session, const strata_generation *generation,
                                      strata_answer *answer, strata_error *error);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
