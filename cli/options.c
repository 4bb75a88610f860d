/* The option tables and the parser of the command line. Knows what options are, not what they do. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

#define FOR(id) (1u << COMMAND_##id)
#define RUNS (FOR(RUN) | FOR(SERVE) | FOR(LOGITS) | FOR(PERPLEXITY) | FOR(BENCH))
#define TYPE_FLAG {.kind = KIND_FLAG}
#define TYPE_TEXT {.kind = KIND_TEXT}
#define TYPE_REPEATED {.kind = KIND_TEXT, .repeats = true}
#define TYPE_FILE {.kind = KIND_FILE}
#define TYPE_MODEL {.kind = KIND_MODEL}
#define TYPE_PROFILE {.kind = KIND_PROFILE}
#define TYPE_DATE {.kind = KIND_DATE}
#define TYPE_WORD(list) {.kind = KIND_WORD, .words = (list)}
#define TYPE_INTEGER(from, to) {.kind = KIND_INTEGER, .minimum = (from), .maximum = (to)}
#define TYPE_LAYERS {.kind = KIND_INTEGER, .words = "all auto", .minimum = -1, .maximum = INT32_MAX}
#define TYPE_REAL(from, to) {.kind = KIND_REAL, .low = (from), .high = (to)}
#define TYPE_SIZE(from) {.kind = KIND_SIZE, .minimum = (from)}
const cli_option cli_options[OPTION_COUNT] = {
#define OPTION(id, name, short_name, also, argument, type, commands, mirror, help) \
    {name, short_name, also, argument, TYPE_##type, commands, mirror, help},
#include "options.def"
};
#undef RUNS
#undef FOR

const cli_command cli_commands[COMMAND_COUNT] = {
#define COMMAND(id, name, function, operand, required, summary, text) \
    {name, operand, required, summary, text, function},
#include "options.def"
};

/* ---- names, and suggestions for misspelt ones -------------------------------------------------------------------- */

enum { NAME_MAX_LENGTH = 31 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The Damerau-Levenshtein distance of two words. */
static size_t edit_distance(const char *from, const char *to)
{
    size_t rows[3][NAME_MAX_LENGTH + 2] = {{0}};
    size_t from_length = strlen(from), to_length = strlen(to);
    if (from_length > NAME_MAX_LENGTH || to_length > NAME_MAX_LENGTH) return SIZE_MAX;
    for (size_t j = 0; j <= to_length; j++) rows[0][j] = j;
    for (size_t i = 1; i <= from_length; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= to_length; j++) {
            size_t cost = from[i - 1] == to[j - 1] ? 0 : 1;
            row[j] = least(least(above[j] + 1, row[j - 1] + 1), above[j - 1] + cost);
            if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1])
                row[j] = least(row[j], above2[j - 2] + 1);
        }
    }
    return rows[from_length % 3][to_length];
}

/* Keeps `candidate` in *best if it is nearer, and near enough to be a typing error. */
static void consider(const char *name, const char *candidate, const char **best, size_t *best_distance)
{
    size_t distance = edit_distance(name, candidate);
    size_t allowed = (strlen(name) + 2) / 3;
    if (distance > allowed || distance >= strlen(candidate) || distance >= *best_distance) return;
    *best = candidate;
    *best_distance = distance;
}

static const char *nearest_command(const char *name)
{
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;
    for (size_t i = 0; i < COMMAND_COUNT; i++) consider(name, cli_commands[i].name, &best, &best_distance);
    return best;
}

bool cli_command_find(const char *name, cli_command_id *out)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(name, cli_commands[i].name) != 0) continue;
        *out = (cli_command_id)i;
        return true;
    }
    return false;
}

/* ---- parsing ----------------------------------------------------------------------------------------------------- */

static bool name_is(const cli_option *option, const char *name, size_t length)
{
    return strlen(option->name) == length && memcmp(option->name, name, length) == 0;
}

/* The row of an option of this command; OPTION_COUNT if it is not found. */
static size_t find_option(cli_command_id command, const char *name, size_t length, char short_name)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const cli_option *option = &cli_options[i];
        if (!cli_option_is_for(option, command)) continue;
        if (short_name ? option->short_name == short_name : name_is(option, name, length)) return i;
    }
    return OPTION_COUNT;
}

/* The option that has this word as another spelling; OPTION_COUNT if it is not found. */
static size_t find_other_spelling(cli_command_id command, const char *word, size_t length)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (!cli_option_is_for(&cli_options[i], command) || !cli_options[i].also) continue;
        if (cli_word_index(cli_options[i].also, ' ', word, length) >= 0) return i;
    }
    return OPTION_COUNT;
}

/* Reports an option that this command does not have, with a suggestion. */
static strata_status fail_unknown(cli_command_id command, const char *word, size_t length, strata_error *error)
{
    const char *command_name = cli_commands[command].name;
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;
    bool is_long = length > 2 && word[1] == '-';
    char name[NAME_MAX_LENGTH + 1] = "", hint[128];
    if (is_long && length - 2 <= NAME_MAX_LENGTH) memcpy(name, word + 2, length - 2);
    for (size_t i = 0; i < OPTION_COUNT && name[0]; i++)
        if (cli_option_is_for(&cli_options[i], command)) consider(name, cli_options[i].name, &best, &best_distance);
    if (best) snprintf(hint, sizeof hint, "did you mean --%s?", best);
    else snprintf(hint, sizeof hint, "see strata help %s", command_name);
    return cli_fail(error, STRATA_USAGE, hint, "%s: unknown option %.*s", command_name,
                    (int)(length < 200 ? length : 200), word);
}

static bool parse_value(const cli_type *type, const char *text, cli_value *out)
{
    out->text = text;
    switch (type->kind) {
    case KIND_DATE: return cli_parse_date(text, &out->number);
    case KIND_WORD: return (out->number = cli_word_index(type->words, ' ', text, strlen(text))) >= 0;
    case KIND_INTEGER:
        /* the first word is -1, the next one -2 */
        out->number = type->words ? -1 - cli_word_index(type->words, ' ', text, strlen(text)) : 0;
        return out->number < 0 || cli_parse_integer(text, strlen(text), type->minimum, type->maximum, &out->number);
    case KIND_REAL: return cli_parse_real(text, type->low, type->high, &out->real);
    case KIND_SIZE: return cli_parse_size(text, type->minimum, &out->number);
    default: return true;
    }
}

/* "4k" tokens are 4096. */
static void hint_thousands(const cli_type *type, const char *text, char *hint, size_t size)
{
    size_t length = strlen(text);
    int64_t number;
    if (length < 2 || (text[length - 1] != 'k' && text[length - 1] != 'K')) return;
    if (!cli_parse_integer(text, length - 1, 1, INT32_MAX, &number) || number * 1024 > type->maximum) return;
    snprintf(hint, size, "did you mean %lld?", (long long)number * 1024);
}

static strata_status fail_value(const char *command, const char *from, const cli_option *option, const char *text,
                                strata_error *error)
{
    const cli_type *type = &option->type;
    char hint[128] = "";
    if (type->kind == KIND_INTEGER) {
        hint_thousands(type, text, hint, sizeof hint);
        return cli_fail(error, STRATA_USAGE, hint, "%s: %s: expected a whole number from %lld to %lld, found \"%s\"",
                        command, from, (long long)type->minimum, (long long)type->maximum, text);
    }
    if (type->kind == KIND_REAL)
        return cli_fail(error, STRATA_USAGE, NULL, "%s: %s: expected a number from %g to %g, found \"%s\"", command,
                        from, type->low, type->high, text);
    if (type->kind == KIND_DATE) snprintf(hint, sizeof hint, "a date from 1970-01-02 to 9999-12-31");
    bool digits = *text && text[0] != '0' && strlen(text) <= 6 && strspn(text, "0123456789") == strlen(text);
    /* nvidia-smi prints MiB */
    if (type->kind == KIND_SIZE && digits)
        snprintf(hint, sizeof hint, "did you mean %s%s?", text, strlen(text) > 3 ? "MiB" : "GiB");
    else if (type->kind == KIND_SIZE)
        snprintf(hint, sizeof hint, "examples: 12G or 12GiB, 500MiB, 64GB (10^9 each), or a number of bytes");
    if (type->kind == KIND_WORD) snprintf(hint, sizeof hint, "one of: %s", type->words);
    return cli_fail(error, STRATA_USAGE, hint, "%s: %s: expected %s, found \"%s\"", command, from, option->argument,
                    text);
}

static strata_status set_value(cli_arguments *out, size_t id, const char *from, const char *text, strata_error *error)
{
    const cli_option *option = &cli_options[id];
    cli_value value = {.set = true};
    if (text && !parse_value(&option->type, text, &value))
        return fail_value(cli_commands[out->command].name, from, option, text, error);
    out->values[id] = value;
    return STRATA_OK;
}

/* The words that are not parsed yet. */
typedef struct word_list {
    char *const *words;
    size_t left;
} word_list;

static const char *next_word(word_list *list)
{
    if (list->left == 0) return NULL;
    list->left--;
    return *list->words++;
}

/* Sets an option whose argument is `attached` or the next word. */
static strata_status take_option(cli_arguments *out, size_t id, const char *attached, word_list *rest,
                                 strata_error *error)
{
    const cli_option *option = &cli_options[id];
    const char *command = cli_commands[out->command].name;
    char name[NAME_MAX_LENGTH + 3];
    snprintf(name, sizeof name, "--%s", option->name);
    const char *text = attached;
    if (!option->argument && attached)
        return cli_fail(error, STRATA_USAGE, NULL, "%s: --%s: expected no argument, found \"%s\"", command,
                        option->name, attached);
    if (option->argument && !text) text = next_word(rest);
    if (option->argument && !text)
        return cli_fail(error, STRATA_USAGE, NULL, "%s: --%s: expected %s, found nothing", command,
                        option->name, option->argument);
    strata_status status = set_value(out, id, name, text, error);
    if (status == STRATA_OK) out->given[out->given_count++] = (cli_given){.id = (cli_option_id)id, .text = text};
    return status;
}

/* ---- spellings of llama.cpp -------------------------------------------------------------------------------------- */

/* Keys and values have one type: -ctk and -ctv must agree, in any order. */
static strata_status check_same(const cli_arguments *out, cli_option_id id, const char *word, const char *text,
                                strata_error *error)
{
    const cli_value *before = &out->values[id];
    char hint[128];
    if (!before->set || !before->text || !text || strcmp(before->text, text) == 0) return STRATA_OK;
    snprintf(hint, sizeof hint, "give one type for both: --%s %.32s", cli_options[id].name, before->text);
    return cli_fail(error, STRATA_USAGE, hint, "%s: %s %s: expected %s, as given before, for --%s",
                    cli_commands[out->command].name, word, text, before->text, cli_options[id].name);
}

static strata_status set_by_llama(cli_arguments *out, const cli_llama *row, const char *word, const char *text,
                                  strata_error *error)
{
    bool given = row->argument != NULL;
    if (!given) text = row->value;
    strata_status status = given ? check_same(out, row->option, word, text, error) : STRATA_OK;
    if (status == STRATA_OK) status = set_value(out, row->option, word, text, error);
    return status;
}

/* Maps, accepts or refuses an option of llama.cpp. */
static strata_status take_llama(cli_arguments *out, const cli_llama *row, const char *word, const char *attached,
                                word_list *rest, strata_error *error)
{
    const char *command = cli_commands[out->command].name, *text = attached;
    char name[NAME_MAX_LENGTH + 3];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    if (row->kind == CLI_LLAMA_REFUSED)
        return cli_fail(error, STRATA_USAGE, row->text, "%s: %s of llama.cpp is not an option of strata", command,
                        name);
    if (!text && rest->left > 0 && cli_llama_takes(row, rest->words[0])) text = next_word(rest);
    if (row->argument && row->argument[0] != '[' && !text)
        return cli_fail(error, STRATA_USAGE, NULL, "%s: %s: expected %s, found nothing", command, name, row->argument);
    if (!row->argument && attached)
        return cli_fail(error, STRATA_USAGE, NULL, "%s: %s: expected no argument, found \"%s\"", command, name,
                        attached);
    if (row->kind == CLI_LLAMA_SETS) return set_by_llama(out, row, name, text, error);
    out->needless[out->needless_count++] = (cli_needless){.word = word, .row = row};
    return STRATA_OK;
}

/* The options of llama.cpp that do nothing. */
static void note_needless(const cli_arguments *arguments)
{
    for (size_t i = 0; i < arguments->needless_count; i++) {
        const cli_needless *n = &arguments->needless[i];
        cli_note("note: %.*s is not needed: %s", (int)strcspn(n->word, "="), n->word, n->row->text);
    }
}

/* -prompt: it would be -p rompt. */
static strata_status refuse_single_dash(const cli_arguments *out, const char *word, size_t id, strata_error *error)
{
    char hint[64];
    snprintf(hint, sizeof hint, "did you mean --%s?", cli_options[id].name);
    return cli_fail(error, STRATA_USAGE, hint, "%s: unknown option %.200s", cli_commands[out->command].name, word);
}

/* --name, --name VALUE, --name=VALUE, -n, -n VALUE, -nVALUE, and other spellings like -sys. Short options cannot be
 * combined (-hm FILE). Whole words are looked for before -nVALUE. */
static strata_status take_dashed(cli_arguments *out, const char *word, word_list *rest, strata_error *error)
{
    size_t length = strcspn(word, "=");
    const char *attached = word[length] ? word + length + 1 : NULL;
    size_t id = find_other_spelling(out->command, word, length);
    if (id == OPTION_COUNT && word[1] == '-') id = find_option(out->command, word + 2, length - 2, 0);
    if (id == OPTION_COUNT && word[1] != '-' && length == 2) id = find_option(out->command, NULL, 0, word[1]);
    if (id != OPTION_COUNT) return take_option(out, id, attached, rest, error);
    const cli_llama *row = cli_llama_find(out->command, word, length);
    if (row) return take_llama(out, row, word, attached, rest, error);
    if (word[1] == '-') return fail_unknown(out->command, word, length, error);
    size_t meant = find_option(out->command, word + 1, length - 1, 0);
    if (meant != OPTION_COUNT && length > 2) return refuse_single_dash(out, word, meant, error);
    id = find_option(out->command, NULL, 0, word[1]);
    if (id == OPTION_COUNT) return fail_unknown(out->command, word, strlen(word), error);
    return take_option(out, id, word + 2, rest, error);
}

static strata_status take_operand(cli_arguments *out, const char *word, strata_error *error)
{
    const cli_command *command = &cli_commands[out->command];
    if (!command->operand || out->operand) {
        char hint[128];
        bool prompt = out->operand && cli_option_is_for(&cli_options[OPTION_PROMPT], out->command);
        snprintf(hint, sizeof hint, prompt ? "a prompt is the argument of -p" : "see strata help %s", command->name);
        return cli_fail(error, STRATA_USAGE, hint, "%s: unexpected argument \"%s\"", command->name, word);
    }
    out->operand = word;
    return STRATA_OK;
}

/* Takes options that were not given from their environment variables. */
static strata_status take_mirrors(cli_arguments *out, strata_error *error)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const cli_option *option = &cli_options[i];
        if (!option->mirror || out->values[i].set || !cli_option_is_for(option, out->command)) continue;
        const char *text = getenv(option->mirror);
        if (!text || !*text) continue;
        strata_status status = set_value(out, i, option->mirror, text, error);
        if (status != STRATA_OK) return status;
    }
    return STRATA_OK;
}

/* Commands of other programs, and what to type here. */
static const struct { const char *word, *hint; } foreign_commands[] = {
    {"chat", "did you mean strata run FILE?"},
    {"cli", "did you mean strata run FILE?"},
    {"show", "did you mean strata info FILE?"},
    {"list", "models are files: strata info FILE shows one"},
    {"ls", "models are files: strata info FILE shows one"},
    {"pull", "strata does not download models: download a .gguf file, then strata run FILE"},
    {"rm", "models are files: remove the file"},
    {"cp", "models are files: copy the file"},
    {"ps", "strata has no service in the background: a model is loaded while strata run or strata serve runs"},
    {"stop", "strata has no service in the background: Ctrl-C ends strata run and strata serve"},
    {"quantize", "strata does not write models: download a .gguf file with the quantisation"},
    {"convert", "strata does not write models: download a .gguf file"},
    {"embedding", "strata has no embeddings"},
    {"embed", "strata has no embeddings"},
};

const char *cli_command_meant(const char *word, char *text, size_t size)
{
    size_t length = strlen(word);
    const char *nearest = nearest_command(word);
    for (size_t i = 0; i < sizeof foreign_commands / sizeof *foreign_commands; i++)
        if (strcmp(word, foreign_commands[i].word) == 0) return foreign_commands[i].hint;
    bool model = length > 5 && strcmp(word + length - 5, ".gguf") == 0;
    if (model) snprintf(text, size, "did you mean strata run %.160s?", word);
    else if (nearest) snprintf(text, size, "did you mean %s?", nearest);
    return model || nearest ? text : NULL;
}

static strata_status parse_command(const char *word, cli_command_id *out, strata_error *error)
{
    if (!word)
        return cli_fail(error, STRATA_USAGE, "strata --help lists the commands", "expected a command, found none");
    if (cli_command_find(word, out)) return STRATA_OK;
    if (word[0] == '-')
        return cli_fail(error, STRATA_USAGE,
                        "options come after the command: strata run -m FILE; strata --help lists the commands",
                        "expected a command, found option %s", word);
    char text[192];
    const char *hint = cli_command_meant(word, text, sizeof text);
    return cli_fail(error, STRATA_USAGE, hint ? hint : "strata --help lists the commands", "unknown command \"%s\"",
                    word);
}

strata_status cli_parse(int count, char *const *words, cli_arguments *out, strata_error *error)
{
    word_list rest = {.words = words, .left = count > 0 ? (size_t)count : 0};
    cli_arguments made = {0};
    bool options_over = false;
    void *given = NULL, *needless = NULL;
    strata_status status = cli_allocate(rest.left + 1, sizeof *made.given, "the command line", &given, error);
    made.given = given;
    if (status == STRATA_OK)
        status = cli_allocate(rest.left + 1, sizeof *made.needless, "the command line", &needless, error);
    made.needless = needless;
    if (status == STRATA_OK) status = parse_command(next_word(&rest), &made.command, error);
    while (status == STRATA_OK && rest.left > 0) {
        const char *word = next_word(&rest);
        bool option = !options_over && word[0] == '-' && word[1];
        if (option && strcmp(word, "--") == 0) options_over = true;
        else if (option) status = take_dashed(&made, word, &rest, error);
        else status = take_operand(&made, word, error);
    }
    if (status == STRATA_OK) status = take_mirrors(&made, error);
    if (status == STRATA_OK && made.values[OPTION_QUIET].set) cli_be_quiet();
    const cli_command *command = &cli_commands[made.command];
    if (status == STRATA_OK && command->operand_required && !made.operand && !made.values[OPTION_HELP].set)
        status = cli_fail(error, STRATA_USAGE, NULL, "%s: expected %s, found none", command->name, command->operand);
    if (status == STRATA_OK && !made.values[OPTION_HELP].set) status = cli_find_model(&made, error);
    if (status == STRATA_OK) {
        note_needless(&made);
        *out = made;
    } else cli_arguments_free(&made);
    return status;
}

void cli_arguments_free(cli_arguments *arguments)
{
    free(arguments->given);
    free(arguments->needless);
    arguments->given = NULL;
    arguments->needless = NULL;
}

int64_t cli_integer(const cli_arguments *arguments, cli_option_id id, int64_t otherwise)
{
    return arguments->values[id].set ? arguments->values[id].number : otherwise;
}

double cli_real(const cli_arguments *arguments, cli_option_id id, double otherwise)
{
    return arguments->values[id].set ? arguments->values[id].real : otherwise;
}

const char **cli_repeated(const cli_arguments *arguments, cli_option_id id, size_t *count)
{
    size_t found = 0;
    for (size_t i = 0; i < arguments->given_count; i++) found += arguments->given[i].id == id;
    *count = found;
    const char **texts = found ? calloc(found, sizeof *texts) : NULL;
    found = 0;
    for (size_t i = 0; texts && i < arguments->given_count; i++)
        if (arguments->given[i].id == id) texts[found++] = arguments->given[i].text;
    return texts;
}

strata_status cli_need(const cli_arguments *arguments, cli_option_id id, strata_error *error)
{
    if (arguments->values[id].set) return STRATA_OK;
    if (id == OPTION_MODEL) return cli_need_model(arguments, error);
    const cli_option *option = &cli_options[id];
    char hint[192];
    snprintf(hint, sizeof hint, "give --%s %s: %s", option->name, option->argument ? option->argument : "",
             option->help);
    return cli_fail(error, STRATA_USAGE, hint, "%s: expected --%s, found none",
                    cli_commands[arguments->command].name, option->name);
}
