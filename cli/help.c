/* The help texts, made from the option tables. */
#include <string.h>

#include "cli.h"

const cli_exit_code cli_exit_codes[] = {
    {0, "done"},
    {1, "a run-time error, or invalid input"},
    {2, "wrong usage of the command line"},
    {3, "the model file cannot be read, is invalid or is not supported"},
    {4, "not enough memory"},
    {5, "the device failed"},
    {6, "the network failed"},
    {130, "interrupted"},
};
const size_t cli_exit_code_count = sizeof cli_exit_codes / sizeof *cli_exit_codes;

enum { COLUMN_COMMAND = 14, COLUMN_OPTION = 26 };

static void print_exit_codes(void)
{
    printf("\nExit codes:\n");
    for (size_t i = 0; i < cli_exit_code_count; i++)
        printf("  %-4d%s\n", cli_exit_codes[i].code, cli_exit_codes[i].meaning);
}

void cli_print_help(void)
{
    printf("strata " STRATA_VERSION ": language models larger than the GPU\n\n"
           "Usage: strata COMMAND [OPTION...]\n\nCommands:\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        printf("  %-*s%s\n", COLUMN_COMMAND - 2, cli_commands[i].name, cli_commands[i].summary);
    printf("\nstrata help COMMAND shows the options of a command; man strata shows all of them.\n");
    print_exit_codes();
}

static void print_option(const cli_option *option)
{
    char left[64];
    int used = option->short_name ? snprintf(left, sizeof left, "  -%c, ", option->short_name)
                                  : snprintf(left, sizeof left, "      ");
    used += snprintf(left + used, sizeof left - (size_t)used, "--%s%s%s", option->name, option->argument ? " " : "",
                     option->argument ? option->argument : "");
    printf("%-*s", COLUMN_OPTION, left);
    if (used >= COLUMN_OPTION) printf("\n%*s", COLUMN_OPTION, "");
    cli_print_wrapped(option->help, COLUMN_OPTION, COLUMN_OPTION);
    if (option->also) printf("%*s(also %s)\n", COLUMN_OPTION, "", option->also);
    if (option->mirror) printf("%*s(environment variable: %s)\n", COLUMN_OPTION, "", option->mirror);
}

void cli_print_command_help(cli_command_id id)
{
    const cli_command *command = &cli_commands[id];
    printf("Usage: strata %s [OPTION...]", command->name);
    if (command->operand) printf(command->operand_required ? " %s" : " [%s]", command->operand);
    printf("\n\n");
    cli_print_wrapped(command->text, 0, 0);
    printf("\nOptions:\n");
    for (size_t i = 0; i < OPTION_COUNT; i++)
        if (cli_option_is_for(&cli_options[i], id)) print_option(&cli_options[i]);
}

strata_status cli_cmd_help(const cli_arguments *arguments, strata_error *error)
{
    cli_command_id command;
    if (!arguments->operand) {
        cli_print_help();
        return STRATA_OK;
    }
    if (cli_command_find(arguments->operand, &command)) {
        cli_print_command_help(command);
        return STRATA_OK;
    }
    char text[192];
    const char *hint = cli_command_meant(arguments->operand, text, sizeof text);
    return cli_fail(error, STRATA_USAGE, hint ? hint : "strata --help lists the commands",
                    "help: unknown command \"%s\"", arguments->operand);
}
