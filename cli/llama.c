/* The table of llama.cpp's options that strata maps, accepts or refuses; options.c acts on them. */
#include <string.h>

#include "cli.h"

static const cli_llama rows[] = {
#define SETS(spellings, argument, option, value, text) \
    {spellings, argument, CLI_LLAMA_SETS, OPTION_##option, value, text},
#define NEEDLESS(spellings, argument, text) {spellings, argument, CLI_LLAMA_NEEDLESS, OPTION_COUNT, NULL, text},
#define REFUSED(spellings, argument, text) {spellings, argument, CLI_LLAMA_REFUSED, OPTION_COUNT, NULL, text},
#include "llama.def"
};
enum { ROWS = sizeof rows / sizeof *rows };

int cli_word_index(const char *words, char separator, const char *word, size_t length)
{
    const char separators[] = {separator, '\0'};
    for (int place = 0; *words; place++) {
        size_t size = strcspn(words, separators);
        if (size == length && memcmp(words, word, length) == 0) return place;
        words += size;
        words += strspn(words, separators);
    }
    return -1;
}

const cli_llama *cli_llama_row(size_t index)
{
    return index < ROWS ? &rows[index] : NULL;
}

const cli_llama *cli_llama_find(cli_command_id command, const char *word, size_t length)
{
    if (!cli_option_is_for(&cli_options[OPTION_THREADS], command)) return NULL; /* neither loads nor plans */
    for (size_t i = 0; i < ROWS; i++) {
        const cli_llama *row = &rows[i];
        if (row->kind == CLI_LLAMA_SETS && !cli_option_is_for(&cli_options[row->option], command)) continue;
        if (cli_word_index(row->spellings, ' ', word, length) >= 0) return row;
    }
    return NULL;
}

bool cli_llama_takes(const cli_llama *row, const char *word)
{
    if (!row->argument || !word) return false;
    if (row->argument[0] != '[') return true;
    char words[64];
    size_t length = strlen(row->argument) - 2; /* without the brackets */
    if (length >= sizeof words) return false;
    memcpy(words, row->argument + 1, length);
    words[length] = '\0';
    return cli_word_index(words, '|', word, strlen(word)) >= 0;
}
