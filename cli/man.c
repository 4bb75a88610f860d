/* The man page in roff, made from the option tables. */
#include <string.h>

#include "cli.h"

/* Escapes text for roff: hyphens stay ASCII hyphens, and no line begins with a control character. */
static void print_roff(const char *text)
{
    if (*text == '.' || *text == '\'') fputs("\\&", stdout);
    for (; *text; text++) {
        if (*text == '\\') fputs("\\e", stdout);
        else if (*text == '-') fputs("\\-", stdout);
        else putchar(*text);
    }
}

static void print_paragraph(const char *text)
{
    print_roff(text);
    putchar('\n');
}

/* The end of an option's line; NULL: no argument. */
static void print_argument(const char *argument)
{
    if (argument) {
        printf(" \\fI");
        print_roff(argument);
        printf("\\fR");
    }
    putchar('\n');
}

static void print_option(const cli_option *option)
{
    printf(".TP\n");
    if (option->short_name) printf("\\fB\\-%c\\fR, ", option->short_name);
    printf("\\fB\\-\\-");
    print_roff(option->name);
    printf("\\fR");
    for (const char *word = option->also; word && *word; word += strspn(word, " ")) {
        char spelling[64];
        snprintf(spelling, sizeof spelling, "%.*s", (int)strcspn(word, " "), word);
        printf(", \\fB");
        print_roff(spelling);
        printf("\\fR");
        word += strlen(spelling);
    }
    print_argument(option->argument);
    print_paragraph(option->help);
}

static void print_command(cli_command_id id)
{
    const cli_command *command = &cli_commands[id];
    printf(".SS \"strata %s [OPTION...]", command->name);
    if (command->operand) printf(command->operand_required ? " %s" : " [%s]", command->operand);
    printf("\"\n");
    print_paragraph(command->text);
    for (size_t i = 0; i < OPTION_COUNT; i++)
        if (cli_option_is_for(&cli_options[i], id) && i != OPTION_HELP) print_option(&cli_options[i]);
}

/* An option of llama.cpp: mapped, not needed or refused. */
static void print_llama(const cli_llama *row)
{
    printf(".TP\n\\fB");
    print_roff(row->spellings);
    printf("\\fR");
    print_argument(row->argument);
    if (row->kind == CLI_LLAMA_SETS) {
        printf("is \\fB\\-\\-");
        print_roff(cli_options[row->option].name);
        printf("\\fR%s%s%s", row->value ? " " : "", row->value ? row->value : "", row->text ? ": " : "");
    } else printf(row->kind == CLI_LLAMA_NEEDLESS ? "is not needed: " : "is refused: ");
    print_paragraph(row->text ? row->text : "");
}

static void print_llamas(void)
{
    printf(".SH \"OPTIONS OF LLAMA.CPP\"\n"
           "Commands that load or plan a model know these options, too. Spellings with the meaning of an option of\n"
           "strata stand beside it above.\n");
    for (size_t i = 0; cli_llama_row(i); i++) print_llama(cli_llama_row(i));
}

static void print_environment(void)
{
    printf(".SH ENVIRONMENT\nAn environment variable sets an option that is not given.\n");
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (!cli_options[i].mirror) continue;
        printf(".TP\n\\fB%s\\fR\n\\fB\\-\\-", cli_options[i].mirror);
        print_roff(cli_options[i].name);
        printf("\\fR\n");
    }
    printf(".TP\n\\fBNO_COLOR\\fR\nIf not empty, no colours are used.\n");
}

void cli_print_man(void)
{
    printf(".TH STRATA 1 \"\" \"strata " STRATA_VERSION "\" \"User Commands\"\n"
           ".SH NAME\nstrata \\- language models larger than the GPU\n"
           ".SH SYNOPSIS\n.B strata\n\\fICOMMAND\\fR [\\fIOPTION\\fR...]\n"
           ".SH DESCRIPTION\n"
           "strata runs language models from GGUF files. Results go to standard output, messages to standard\n"
           "error. An option's argument is the next word, or follows an equals sign;\n"
           "\\fB\\-\\-\\fR ends the options. Every command takes \\fB\\-\\-help\\fR.\n"
           ".SH COMMANDS\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) print_command((cli_command_id)i);
    print_llamas();
    print_environment();
    printf(".SH \"EXIT STATUS\"\n");
    for (size_t i = 0; i < cli_exit_code_count; i++) {
        printf(".TP\n\\fB%d\\fR\n", cli_exit_codes[i].code);
        print_paragraph(cli_exit_codes[i].meaning);
    }
    printf(".SH FILES\n.TP\n\\fI$XDG_CACHE_HOME/strata/*.gguf\\fR\n"
           "The model that `make run` downloaded, the default of all commands; \\fI~/.cache\\fR if the variable is\n"
           "not set.\n"
           ".TP\n\\fI$XDG_STATE_HOME/strata/history\\fR\n"
           "The history of lines typed in chats; \\fI~/.local/state\\fR if the variable is not set.\n"
           ".TP\n\\fI$XDG_CACHE_HOME/strata/devices.json\\fR\n"
           "The measured speed of this machine; \\fI~/.cache\\fR if the variable is not set.\n");
    printf(".SH EXAMPLES\n.nf\n");
    print_paragraph("strata run model.gguf");
    print_paragraph("strata run model.gguf -p 'Why is the sky blue?' --temp 0 -n 200");
    print_paragraph("git diff | strata run model.gguf -p 'Explain this change:'");
    print_paragraph("strata perplexity -m model.gguf -f text.txt");
    print_paragraph("strata info model.gguf");
    print_paragraph("strata plan model.gguf --vram 12GiB --ram 64GiB");
    print_paragraph("strata plan model.gguf --device-profile rtx-4070-ti+ddr5-5600 -c 32768 --explain");
    print_paragraph("strata tokenize -m model.gguf -p 'Hello world' | strata detokenize -m model.gguf -f -");
    print_paragraph("echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}' |");
    print_paragraph("    strata template -m model.gguf --args -");
    printf(".fi\n");
}
