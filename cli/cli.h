/* The command line: what its files share. Owns the terminal; sees strata.h alone. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "strata.h"

/* ---- the tables (options.def) ----------------------------------------------------------------------------------- */

typedef enum cli_command_id {
#define COMMAND(id, name, function, operand, required, summary, text) COMMAND_##id,
#include "options.def"
    COMMAND_COUNT
} cli_command_id;

typedef enum cli_option_id {
#define OPTION(id, name, short_name, argument, kind, commands, mirror, help) OPTION_##id,
#include "options.def"
    OPTION_COUNT
} cli_option_id;

typedef enum cli_kind {
    KIND_FLAG, /* no argument */
    KIND_TEXT,
    KIND_FILE, /* a path: completions offer files */
    KIND_DATE, /* YYYY-MM-DD; its value is the first second of that day, UTC */
    KIND_WHEN, /* auto, always, never: the value is its place in cli_when_names */
} cli_kind;

enum { CLI_WHEN_AUTO, CLI_WHEN_ALWAYS, CLI_WHEN_NEVER, CLI_WHEN_COUNT };
extern const char *const cli_when_names[CLI_WHEN_COUNT];

typedef struct cli_option {
    const char *name;
    char short_name;       /* 0: none */
    const char *argument;  /* NULL: none */
    cli_kind kind;
    unsigned commands;     /* bit 1 << COMMAND_… */
    const char *mirror;    /* the variable that stands in for it; NULL: none */
    const char *help;
} cli_option;

extern const cli_option cli_options[OPTION_COUNT];

typedef struct cli_value {
    bool set;
    const char *text;
    int64_t number;
} cli_value;

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

/* A command line, parsed. */
typedef struct cli_arguments {
    cli_command_id command;
    cli_value values[OPTION_COUNT];
    const char *operand; /* NULL: none given */
} cli_arguments;

/* options.c: finds a command by its name; false if there is none. */
bool cli_command_find(const char *name, cli_command_id *out);
/* Parses what follows the program's name, the command first. */
strata_status cli_parse(int count, char *const *words, cli_arguments *out, strata_error *error);
/* STRATA_USAGE unless the option was given. */
strata_status cli_need(const cli_arguments *arguments, cli_option_id id, strata_error *error);
/* The command nearest to `name`, NULL if none is near. */
const char *cli_command_nearest(const char *name);

/* number.c: strict numbers. The whole of `text` must be a decimal integer within the range. */
bool cli_parse_integer(const char *text, size_t length, int64_t minimum, int64_t maximum, int64_t *out);
bool cli_parse_date(const char *text, int64_t *out);

/* A growing list of ids. Zero-initialise to create; free(ids) to destroy. */
typedef struct cli_ids {
    strata_token *ids; /* [capacity] */
    size_t count;
    size_t capacity;
} cli_ids;

/* Ids separated by blanks, commas or newlines, or a JSON array, replace those of `out`. `where` is for messages, `bad`
 * the status for what is wrong in the text. */
strata_status cli_parse_ids(const char *where, strata_status bad, const char *text, size_t length, cli_ids *out,
                            strata_error *error);
/* The same for a JSON array alone. */
strata_status cli_parse_id_array(const char *where, strata_status bad, const char *text, size_t length, cli_ids *out,
                                 strata_error *error);

/* ---- reporting, input, output (report.c, input.c) --------------------------------------------------------------- */

/* Sets `error` and returns `status`. */
strata_status cli_fail(strata_error *error, strata_status status, const char *hint, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* `strata: error: …` and `strata: hint: …` on standard error. */
void cli_report(const strata_error *error);
/* A line for people on standard error. */
void cli_note(const char *text);

/* Reads a whole file (free), "-" being standard input. A failure is STRATA_INPUT. */
strata_status cli_read(const char *path, char **text, size_t *length, strata_error *error);

/* Parses JSON of any kind; NUL bytes may be in strings. `where` is for messages. */
strata_status cli_parse_json(const char *where, const char *text, size_t length, json_t **out, strata_error *error);

/* Everything on standard output goes through stdio and is checked here: an error that stdio met is STRATA_RUNTIME. */
strata_status cli_flush(strata_error *error);
/* Writes JSON and a newline. */
strata_status cli_print_json(const json_t *value, size_t flags, strata_error *error);
/* Ids as a JSON array, or separated by blanks; and a newline. */
strata_status cli_print_ids(const strata_token *ids, size_t count, bool json, strata_error *error);

/* What each command starts with: opens the model of -m. */
strata_status cli_open_model(const cli_arguments *arguments, strata_model **out, strata_error *error);

/* ---- the terminal (terminal.c) ---------------------------------------------------------------------------------- */

typedef struct cli_style {
    bool color;
    bool bars; /* a terminal that can show block characters */
} cli_style;

cli_style cli_style_of_stdout(const cli_arguments *arguments);
/* Text from a file: control characters are replaced, so that it cannot drive the terminal. */
void cli_print_text(const char *text, size_t length);
void cli_print_bold(const cli_style *style, const char *text);
void cli_print_bar(const cli_style *style, double share, size_t width);
/* 12345678 as 12,345,678 and as 12.3 MB. */
const char *cli_group_digits(uint64_t number, char *out, size_t size);
const char *cli_short_number(uint64_t number, const char *unit, char *out, size_t size);
/* Prints `text` wrapped at 80 columns; `column` is where the cursor stands, `indent` where later lines begin. */
void cli_print_wrapped(const char *text, size_t column, size_t indent);

/* ---- commands and pages ----------------------------------------------------------------------------------------- */

/* card.c: prints a card (the JSON of strata_model_describe) for people. */
void cli_print_card(const json_t *card, const cli_style *style);
void cli_print_tensors(const json_t *card, const cli_style *style);
/* The card as parsed JSON (json_decref). */
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
cli_command_function cli_cmd_run;
cli_command_function cli_cmd_tokenize;
cli_command_function cli_cmd_detokenize;
cli_command_function cli_cmd_template;
cli_command_function cli_cmd_version;
cli_command_function cli_cmd_help;

#endif
