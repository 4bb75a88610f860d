/* Which model a command uses: the operand, -m, STRATA_MODEL, or the model that `make run` downloaded. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cli.h"

/* The file name of tools/fetch-model. */
static const char default_model[] = "SmolLM2-135M-Instruct.Q4_1.gguf";

static bool was_given(const cli_arguments *arguments, cli_option_id id)
{
    for (size_t i = 0; i < arguments->given_count; i++)
        if (arguments->given[i].id == id) return true;
    return false;
}

/* The path of a model in the folder of downloads, if the file exists. */
static bool find_downloaded(const char *name, char *path, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = -1;
    if (cache && cache[0] == '/') length = snprintf(path, size, "%s/strata/%s", cache, name);
    else if (home && home[0] == '/') length = snprintf(path, size, "%s/.cache/strata/%s", home, name);
    return length > 0 && (size_t)length < size && access(path, R_OK) == 0;
}

/* Names of models on the network. */
static bool is_remote(const char *name)
{
    static const char *const beginnings[] = {"hf.co/", "huggingface.co/", "ollama.com/"};
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        if (strncmp(name, beginnings[i], strlen(beginnings[i])) == 0) return true;
    return strstr(name, "://") != NULL;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

void cli_hint_missing(const char *name, strata_error *error)
{
    enum { LEAST = 5 }; /* letters of the default model's name that mean it */
    char path[200];
    size_t length = strlen(name);
    bool means_default = length >= LEAST && strncasecmp(name, default_model, length) == 0;
    if (access(name, F_OK) == 0) return;
    if (is_remote(name) || (!ends_with(name, ".gguf") && !strchr(name, '/')))
        snprintf(error->hint, sizeof error->hint,
                 "a model is a GGUF file; strata does not download models: download the file, then give its path");
    if (!strchr(name, '/') && find_downloaded(means_default ? default_model : name, path, sizeof path))
        snprintf(error->hint, sizeof error->hint, "did you mean %s?", path);
}

strata_status cli_find_model(cli_arguments *arguments, strata_error *error)
{
    static char downloaded[4096];
    cli_value *model = &arguments->values[OPTION_MODEL];
    const cli_command *command = &cli_commands[arguments->command];
    if (!cli_option_is_for(&cli_options[OPTION_MODEL], arguments->command)) return STRATA_OK;
    if (arguments->operand && was_given(arguments, OPTION_MODEL))
        return cli_fail(error, STRATA_USAGE, "leave one of them out", "%s: expected one model, found %s and -m %s",
                        command->name, arguments->operand, model->text);
    if (arguments->operand) *model = (cli_value){.set = true, .text = arguments->operand};
    /* A template may come from a file alone. */
    if (model->set || arguments->values[OPTION_TEMPLATE_FILE].set) return STRATA_OK;
    if (!find_downloaded(default_model, downloaded, sizeof downloaded)) return STRATA_OK;
    *model = (cli_value){.set = true, .text = downloaded};
    cli_note("note: no model was given: %s", downloaded);
    return STRATA_OK;
}

strata_status cli_need_model(const cli_arguments *arguments, strata_error *error)
{
    if (arguments->values[OPTION_MODEL].set) return STRATA_OK;
    const char *command = cli_commands[arguments->command].name;
    char hint[192];
    snprintf(hint, sizeof hint, "give a GGUF file: strata %s FILE, or set STRATA_MODEL=FILE; `make run` downloads a "
             "small model, which is the default then", command);
    return cli_fail(error, STRATA_USAGE, hint, "%s: expected a model, found none", command);
}
