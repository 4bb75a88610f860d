/* Shared by the files of the command line. Owns the terminal; includes nothing of the library but strata.h. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "strata.h"

/* ---- the tables (options.def) ------------------------------------------------------------------------------------ */

typedef enum cli_command_id {
#define COMMAND(id, name, function, operand, required, summary, text) COMMAND_##id,
#include "options.def"
    COMMAND_COUNT
} cli_command_id;

typedef enum cli_option_id {
#define OPTION(id, name, short_name, also, argument, type, commands, mirror, help) OPTION_##id,
#include "options.def"
    OPTION_COUNT
} cli_option_id;

typedef enum cli_kind {
    KIND_FLAG, /* no argument */
    KIND_TEXT,
    KIND_FILE, /* a path: completions offer files */
    KIND_MODEL,   /* the path of a model: completions offer .gguf files */
    KIND_PROFILE, /* a device profile: completions offer the names and .json files */
    KIND_DATE, /* YYYY-MM-DD; its value is the first second of that day, UTC */
    KIND_WORD, /* one word of a list; its value is the index in the list */
    KIND_INTEGER,
    KIND_REAL,
    KIND_SIZE, /* a number of bytes, with or without a unit */
} cli_kind;

enum { CLI_WHEN_AUTO, CLI_WHEN_ALWAYS, CLI_WHEN_NEVER }; /* the words of --color */

typedef struct cli_type {
    cli_kind kind;
    bool repeats;             /* may be given several times: cli_repeated */
    const char *words;        /* KIND_WORD: separated by spaces; KIND_INTEGER: words for -1, -2, …, or NULL */
    int64_t minimum, maximum; /* KIND_INTEGER */
    double low, high;         /* KIND_REAL */
} cli_type;

typedef struct cli_option {
    const char *name;
    char short_name;       /* 0: none */
    const char *also;      /* other spellings with their dashes, separated by spaces; NULL: none */
    const char *argument;  /* NULL: none */
    cli_type type;
    unsigned commands;     /* bit 1 << COMMAND_… */
    const char *mirror;    /* the environment variable that sets it; NULL: none */
    const char *help;
} cli_option;

extern const cli_option cli_options[OPTION_COUNT];

typedef struct cli_value {
    bool set;
    const char *text;
    int64_t number;
    double real;
} cli_value;

/* An option as given, in the order of the command line. */
typedef struct cli_given {
    cli_option_id id;
    const char *text;
} cli_given;

/* An option of llama.cpp (llama.def). */
typedef enum cli_llama_kind { CLI_LLAMA_SETS, CLI_LLAMA_NEEDLESS, CLI_LLAMA_REFUSED } cli_llama_kind;

typedef struct cli_llama {
    const char *spellings; /* with their dashes, separated by spaces */
    const char *argument;  /* NULL: none; "[a|b]": only if the next word is one of these */
    cli_llama_kind kind;
    cli_option_id option;  /* CLI_LLAMA_SETS: the option that it sets, */
    const char *value;     /* to this value; NULL: to its argument, or a flag */
    const char *text;      /* why it does nothing, or what to use; NULL: none */
} cli_llama;

/* llama.c: the rows in order; NULL: there are no more. */
const cli_llama *cli_llama_row(size_t index);
/* The row with this spelling, of a command that loads or plans a model; NULL: none. */
const cli_llama *cli_llama_find(cli_command_id command, const char *word, size_t length);
/* Whether `word` is the row's argument. */
bool cli_llama_takes(const cli_llama *row, const char *word);
/* The index of a word in a list; -1: not found. */
int cli_word_index(const char *words, char separator, const char *word, size_t length);

/* An option of llama.cpp that was given and does nothing. */
typedef struct cli_needless {
    const char *word;
    const cli_llama *row;
} cli_needless;

struct cli_arguments;
typedef strata_status cli_command_function(const struct cli_arguments *arguments, strata_error *error);

typedef struct cli_command {
    const char *name;
    const char *operand; /* NULL: none */
    bool operand_required;
    const char *summary;
    const char *text;
    cli_command_function *function;
} cli_command;

extern const cli_command cli_commands[COMMAND_COUNT];

static inline bool cli_option_is_for(const cli_option *option, cli_command_id command)
{
    return (option->commands >> command & 1u) != 0;
}

/* A parsed command line. */
typedef struct cli_arguments {
    cli_command_id command;
    cli_value values[OPTION_COUNT];
    const char *operand; /* NULL: none given */
    cli_given *given;    /* [given_count] */
    size_t given_count;
    cli_needless *needless; /* [needless_count] */
    size_t needless_count;
} cli_arguments;

/* options.c: finds a command by its name; false: not found. */
bool cli_command_find(const char *name, cli_command_id *out);
/* Parses the words after the program's name, the command first. The result points into `words`. */
strata_status cli_parse(int count, char *const *words, cli_arguments *out, strata_error *error);
void cli_arguments_free(cli_arguments *arguments);
/* The option's value, or `otherwise` as its default. */
int64_t cli_integer(const cli_arguments *arguments, cli_option_id id, int64_t otherwise);
double cli_real(const cli_arguments *arguments, cli_option_id id, double otherwise);
/* The texts of a repeated option (free), in order. NULL: none were given, or no memory if *count > 0. */
const char **cli_repeated(const cli_arguments *arguments, cli_option_id id, size_t *count);
/* find.c: sets --model to the operand, or to the downloaded model if none is named. */
strata_status cli_find_model(cli_arguments *arguments, strata_error *error);
/* STRATA_USAGE with the ways to name a model, unless there is one. */
strata_status cli_need_model(const cli_arguments *arguments, strata_error *error);
/* The hint of an error about a model file that does not exist: names of other programs, links, and files in the folder
 * of downloads. */
void cli_hint_missing(const char *name, strata_error *error);
/* STRATA_USAGE unless the option was given. */
strata_status cli_need(const cli_arguments *arguments, cli_option_id id, strata_error *error);
/* The hint of an unknown command: what was probably meant; NULL: unknown. `text` has room for it. */
const char *cli_command_meant(const char *word, char *text, size_t size);

/* number.c: strict parsing. All of `text` must be a decimal integer within the range. */
bool cli_parse_integer(const char *text, size_t length, int64_t minimum, int64_t maximum, int64_t *out);
bool cli_parse_date(const char *text, int64_t *out);
/* All of `text` must be a finite decimal number within the range. */
bool cli_parse_real(const char *text, double low, double high, double *out);

/* "12GiB" or "12G", "1.5 GB" (10^9), or plain bytes: 0, or at least 1 MiB; at most 2^62. */
bool cli_parse_size(const char *text, int64_t minimum, int64_t *out);

/* A growing list of ids. Zero-initialise to create; free(ids) to destroy. */
typedef struct cli_ids {
    strata_token *ids; /* [capacity] */
    size_t count;
    size_t capacity;
} cli_ids;

/* Parses ids separated by spaces, commas or newlines, or a JSON array, into `out`. `where` names the source in errors,
 * `bad` is the status of syntax errors. */
strata_status cli_parse_ids(const char *where, strata_status bad, const char *text, size_t length, cli_ids *out,
                            strata_error *error);
/* Reads them from a file ("-" is standard input). */
strata_status cli_read_ids(const char *path, cli_ids *out, strata_error *error);
/* The same, but only a JSON array. */
strata_status cli_parse_id_array(const char *where, strata_status bad, const char *text, size_t length, cli_ids *out,
                                 strata_error *error);

/* ---- reporting, input, output (report.c, input.c) ---------------------------------------------------------------- */

/* Sets `error` and returns `status`. */
strata_status cli_fail(strata_error *error, strata_status status, const char *hint, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Allocates `count` zeroed items of `size` bytes (free), or fails with STRATA_MEMORY. */
strata_status cli_allocate(size_t count, size_t size, const char *what, void **out, strata_error *error);
/* Replaces the fields of strata.h that the library names by the options that set them. */
void cli_name_options(char *text);
/* A strata_log that names options and does not print into a progress bar. */
void cli_log(void *context, strata_log_level level, const char *text);
/* --quiet: no notes, no progress, and only errors from the library. */
void cli_be_quiet(void);
bool cli_is_quiet(void);
/* `strata: error: …` and `strata: hint: …` on standard error. */
void cli_report(const strata_error *error);
/* Prints a line on standard error, also with --quiet. */
void cli_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same, but not with --quiet. */
void cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Reads a whole file (free), "-" being standard input. A failure is STRATA_INPUT. */
strata_status cli_read(const char *path, char **text, size_t *length, strata_error *error);

/* Parses a JSON value; strings may contain NUL bytes. `where` names the source in errors. */
strata_status cli_parse_json(const char *where, const char *text, size_t length, json_t **out, strata_error *error);

/* json.c: a field of an object; 0 or "" if it is absent or of another type. */
uint64_t cli_number_of(const json_t *object, const char *field);
double cli_real_of(const json_t *object, const char *field);
const char *cli_text_of(const json_t *object, const char *field);
bool cli_text_is(const json_t *object, const char *field, const char *text);

/* Flushes standard output; any write error since the start is STRATA_RUNTIME. */
strata_status cli_flush(strata_error *error);
/* Writes JSON and a newline. */
strata_status cli_print_json(const json_t *value, size_t flags, strata_error *error);
/* Prints ids as a JSON array or separated by spaces, and a newline. */
strata_status cli_print_ids(const strata_token *ids, size_t count, bool json, strata_error *error);

/* output.c: a file that is written atomically; "-" is standard output. */
typedef struct cli_output {
    FILE *stream;
    const char *path;
    char *fresh; /* the temporary name; NULL: written directly */
} cli_output;

strata_status cli_output_open(const char *path, cli_output *output, strata_error *error);
/* Renames the file if `status` is STRATA_OK, and removes it otherwise. Returns `status`, or the error of closing. */
strata_status cli_output_close(cli_output *output, strata_status status, strata_error *error);

/* Opens the model of -m. */
strata_status cli_open_model(const cli_arguments *arguments, strata_model **out, strata_error *error);

/* ---- the terminal (terminal.c, progress.c, interrupt.c, line.c) -------------------------------------------------- */

typedef struct cli_style {
    FILE *stream;
    bool terminal; /* a terminal, and TERM is not dumb */
    bool color;
    bool bars;     /* a terminal that can show block characters */
} cli_style;

cli_style cli_style_of(const cli_arguments *arguments, FILE *stream);
/* Prints text with control characters replaced, so that it cannot send escape sequences. */
void cli_print_text(const char *text, size_t length);
void cli_print_bold(const cli_style *style, const char *text);
void cli_print_bar(const cli_style *style, double share, size_t width);
/* 12345678 as 12,345,678 and as 12.3 MB. */
const char *cli_group_digits(uint64_t number, char *out, size_t size);
const char *cli_short_number(uint64_t number, const char *unit, char *out, size_t size);
/* Prints `text` wrapped at 80 columns, from `column` on; later lines are indented by `indent`. */
void cli_print_wrapped(const char *text, size_t column, size_t indent);
double cli_now_seconds(void);
/* Peak resident memory of the program, including mapped files. */
uint64_t cli_peak_bytes(void);

/* A progress bar on standard error, if that is a terminal. */
typedef struct cli_progress {
    cli_style style;
    const char *label;
    const char *unit; /* "B", or the name of the counted items */
    double start_seconds, drawn_seconds;
    uint64_t done, total;
    bool shown;
} cli_progress;

void cli_progress_begin(cli_progress *progress, const cli_arguments *arguments, const char *label, const char *unit,
                        uint64_t total);
/* A strata_progress whose context is a cli_progress: false after an interrupt. */
bool cli_progress_step(void *context, uint64_t done, uint64_t total);
/* Removes the bar that is shown now until it is drawn again. */
void cli_progress_hide(void);
/* Removes the bar. */
void cli_progress_end(cli_progress *progress);

/* Interrupts: Ctrl-C exits at once with code 130 and restores the terminal. While interrupts are held, the first Ctrl-C
 * stops the session's prompt or answer, and the second one exits; what is typed meanwhile is not shown. */
void cli_interrupt_install(void);
void cli_interrupt_hold(strata_session *session);
/* While a line is read, Ctrl-C is noted and ends a read; with `paste` the terminal marks pasted text. */
void cli_interrupt_line(bool reading, bool paste);
/* Whether Ctrl-C was noted since cli_interrupt_line, or since the last call. */
bool cli_interrupt_take(void);
/* Ends the hold; returns whether there was an interrupt. */
bool cli_interrupt_release(void);
bool cli_interrupted(void);
/* The file to remove when an interrupt exits; NULL: none. */
void cli_interrupt_remove(const char *path);

/* A line editor with a persistent history. */
typedef struct cli_line cli_line;

/* How reading a line ended: with a line, at the end of the input, or with Ctrl-C. */
typedef enum cli_line_event { CLI_LINE_TEXT, CLI_LINE_END, CLI_LINE_CLEARED } cli_line_event;

/* `stream` shows prompt and line; it must be a terminal. */
strata_status cli_line_open(FILE *stream, bool color, cli_line **out, strata_error *error);
void cli_line_close(cli_line *line);
/* The next line without its newline, valid until the next call; a pasted block may have newlines. CLI_LINE_CLEARED:
 * Ctrl-C; not NULL if it cleared a half-typed line. */
const char *cli_line_read(cli_line *line, const char *prompt, cli_line_event *event);

/* ---- placement options (placement.c) ----------------------------------------------------------------------------- */

/* The placement that the options ask for; it points into the command line. */
strata_placement cli_placement_of(const cli_arguments *arguments);
/* Whether the options ask for a simulated GPU: rates are then simulated, too. */
bool cli_simulates(const cli_arguments *arguments);
/* " simulated", which stands behind every figure of a simulated GPU, or "". */
const char *cli_simulated(const cli_arguments *arguments);
/* Says why a long command takes longer than its figures. */
void cli_note_simulation(const cli_arguments *arguments);
/* Says that the context is shorter than -c asks. */
void cli_note_context(const cli_arguments *arguments, uint32_t context);
/* The engine options of commands that plan or load. `context` is the default (0: the library's); `placement` must
 * outlive the result. */
strata_engine_options cli_engine_options(const cli_arguments *arguments, const strata_placement *placement,
                                         uint32_t context);

/* ---- talking to a model (engine.c, prompt.c, answer.c, chat.c) --------------------------------------------------- */

/* A loaded model with its session and descriptions. */
typedef struct cli_engine {
    const cli_arguments *arguments;
    strata_model *model;
    json_t *card;  /* of strata_model_describe */
    json_t *facts; /* of strata_engine_describe */
    strata_engine *engine;
    strata_session *session; /* NULL: a chat has taken it */
    uint32_t sessions;       /* that run at a time; 0: as the options say */
} cli_engine;

/* Loads the model of -m as the options ask. `context` is the default (0: the library's). The model may already be open;
 * a failure closes it, too. */
strata_status cli_engine_open(cli_engine *engine, const cli_arguments *arguments, uint32_t context, bool nextn,
                              strata_error *error);
/* A number of bytes of strata_engine_describe; 0: not found. */
uint64_t cli_engine_bytes(const cli_engine *engine, const char *name);
/* The memory of engine and session: `weights 96.6 MB mapped, KV 377.5 MB, scratch 12.1 MB`. */
const char *cli_engine_memory(const cli_engine *engine, char *out, size_t size);
void cli_engine_close(cli_engine *engine);

/* profile.c: the current JSON of strata_engine_describe, and the profile in it (json_decref). */
strata_status cli_engine_facts(const cli_engine *engine, json_t **out, strata_error *error);
strata_status cli_profile_read(const cli_engine *engine, json_t **out, strata_error *error);
/* Adds the difference of two profiles to `sum`, an array. */
strata_status cli_profile_add(json_t *sum, const json_t *before, const json_t *after, strata_error *error);
/* Prints a table, the longest time first. `simulates`: says that the GPU's operations are not in it. */
void cli_print_profile(FILE *stream, const json_t *profile, bool simulates);

typedef enum cli_stats { CLI_STATS_OFF, CLI_STATS_SHORT, CLI_STATS_FULL } cli_stats;

/* The options of `strata run`: generation and output. */
typedef struct cli_talk {
    const cli_arguments *arguments;
    cli_engine *engine;
    strata_generation generation;
    strata_bias *biases;
    char **stops;    /* [stop_count]: unescaped */
    size_t stop_count;
    bool silent;     /* -n 0 */
    bool json;       /* the answer is printed as JSON at its end */
    cli_stats stats; /* printed after each answer */
    cli_style out;   /* of standard output */
} cli_talk;

strata_status cli_talk_open(cli_talk *talk, cli_engine *engine, strata_error *error);
void cli_talk_close(cli_talk *talk);

typedef struct cli_timing {
    uint64_t prompt_tokens; /* tokens that were run, without the reused prefix */
    size_t reused_tokens;
    double prompt_seconds;
    strata_answer answer;
} cli_timing;

/* An answer: free(text). */
typedef struct cli_answer {
    char *text;
    size_t length;
    bool interrupted;
    const char *finish; /* "end", "length", "context" or "interrupted" */
    cli_timing timing;
} cli_answer;

/* A prompt: strata_free(ids). Marks are the positions where later prompts may branch off. */
enum { CLI_MARKS_MAX = 3 };
typedef struct cli_prompt {
    strata_token *ids;
    size_t count;
    size_t marks[CLI_MARKS_MAX]; /* [mark_count], ascending */
    size_t mark_count;
} cli_prompt;

/* A message of a conversation; NULL: the text is not UTF-8, or there is no memory. */
json_t *cli_chat_message(const char *role, const char *text, size_t length);
/* Whether the first message is the system's. */
bool cli_chat_has_system(const json_t *messages);
/* A conversation rendered with the chat template, without marks. `answer`: the model's answer comes next. */
strata_status cli_chat_tokens(const strata_model *model, const strata_template *chat_template, json_t *messages,
                              bool answer, cli_prompt *out, strata_error *error);
/* The prompt for the model's answer, with marks at the first message, before the last message and behind it. */
strata_status cli_chat_prompt(const strata_model *model, const strata_template *chat_template, json_t *messages,
                              cli_prompt *out, strata_error *error);
/* Runs the prompt, streams the answer to standard output, and prints the speed on standard error. */
strata_status cli_answer_prompt(cli_talk *talk, strata_session *session, const cli_prompt *prompt, cli_answer *out,
                                strata_error *error);
/* Prints an answer as JSON (docs/json.md). */
strata_status cli_print_answer(const cli_talk *talk, const cli_answer *answer, strata_error *error);
/* Runs a chat on a terminal until its end. Takes the engine's session: branches of the chat have one each. */
strata_status cli_chat(cli_talk *talk, const strata_template *chat_template, const char *system, FILE *stream,
                       strata_error *error);

/* cmd_devices.c: where the rates of a device come from, in words. */
void cli_print_rates(const json_t *device);
/* plan_summary.c: the verdict, the summary of a plan and its table of contexts. */
void cli_print_verdict(const cli_arguments *arguments, const json_t *plan, const char *path, const cli_style *style);
void cli_print_summary(const cli_arguments *arguments, const json_t *plan);
void cli_print_alternatives(const cli_arguments *arguments, const json_t *plan, const cli_style *style);

/* ---- commands and pages ------------------------------------------------------------------------------------------ */

/* card.c: prints the JSON of strata_model_describe for people. */
void cli_print_card(const json_t *card, const cli_style *style);
void cli_print_tensors(const json_t *card, const cli_style *style);
void cli_print_program(const json_t *card, const cli_style *style);
/* The parsed JSON of strata_model_describe (json_decref). */
strata_status cli_describe(const strata_model *model, unsigned flags, json_t **out, strata_error *error);

typedef struct cli_exit_code {
    int code;
    const char *meaning;
} cli_exit_code;

extern const cli_exit_code cli_exit_codes[];
extern const size_t cli_exit_code_count;

void cli_print_help(void);
void cli_print_command_help(cli_command_id command);
void cli_print_man(void);
strata_status cli_print_completion(const char *shell, strata_error *error);

cli_command_function cli_cmd_info;
cli_command_function cli_cmd_plan;
cli_command_function cli_cmd_devices;
cli_command_function cli_cmd_run;
cli_command_function cli_cmd_logits;
cli_command_function cli_cmd_perplexity;
cli_command_function cli_cmd_bench;
cli_command_function cli_cmd_tokenize;
cli_command_function cli_cmd_detokenize;
cli_command_function cli_cmd_template;
cli_command_function cli_cmd_replay;
cli_command_function cli_cmd_serve;
cli_command_function cli_cmd_version;
cli_command_function cli_cmd_help;

/* ---- charts (chart.c) -------------------------------------------------------------------------------------------- */

typedef struct cli_chart_line {
    const char *name;
    bool dashed;
} cli_chart_line;

typedef struct cli_chart_point {
    size_t line;
    double x, y; /* from 0 to 1 */
} cli_chart_point;

typedef struct cli_chart {
    const char *title, *x_label, *y_label;
    cli_chart_line *lines;
    size_t line_count;
    cli_chart_point *points; /* by x */
    size_t point_count;
} cli_chart;

void cli_chart_print(const cli_chart *chart, FILE *out);

#endif
