/* The strata program. */
#include <fcntl.h>
#include <locale.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

/* The next opened file would get the number of a closed standard stream. */
static void open_standard_streams(void)
{
    for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; stream++)
        if (fcntl(stream, F_GETFD) < 0) (void)!open("/dev/null", O_RDONLY); /* the lowest free number: this one */
}

/* Prints the man page or a completion script, for the build. */
static bool print_page(int count, char *const *words, strata_status *status, strata_error *error)
{
    if (count == 1 && strcmp(words[0], "--print-man") == 0) {
        cli_print_man();
        *status = STRATA_OK;
        return true;
    }
    if (count == 2 && strcmp(words[0], "--print-completion") == 0) {
        *status = cli_print_completion(words[1], error);
        return true;
    }
    return false;
}

static strata_status run_program(int count, char **words, strata_error *error)
{
    static char help[] = "help", version[] = "version";
    strata_status status;
    if (print_page(count, words, &status, error)) return status;
    if (count > 0 && (strcmp(words[0], "--help") == 0 || strcmp(words[0], "-h") == 0)) words[0] = help;
    if (count > 0 && strcmp(words[0], "--version") == 0) words[0] = version;
    cli_arguments arguments;
    status = cli_parse(count, words, &arguments, error);
    if (status != STRATA_OK) return status;
    if (arguments.values[OPTION_HELP].set) {
        cli_print_command_help(arguments.command);
        status = STRATA_OK;
    } else {
        status = cli_commands[arguments.command].function(&arguments, error);
    }
    cli_arguments_free(&arguments);
    return status;
}

int main(int argc, char **argv)
{
    strata_error error = {0}, flush_error = {0};
    setlocale(LC_CTYPE, "");
    open_standard_streams();
    cli_interrupt_install();
    strata_log_to(cli_log, NULL);
    strata_status status = run_program(argc > 0 ? argc - 1 : 0, argv + (argc > 0), &error);
    strata_status flushed = cli_flush(&flush_error);
    if (status == STRATA_OK && flushed != STRATA_OK) {
        status = flushed;
        error = flush_error;
    }
    if (status != STRATA_OK && status != STRATA_INTERRUPTED) cli_report(&error); /* the user knows about an interrupt */
    return strata_status_exit_code(status);
}
