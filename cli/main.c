/* The program: a command line in, an exit code out. */
#include <locale.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

static void exit_interrupted(int signal_number)
{
    (void)signal_number;
    _exit(strata_status_exit_code(STRATA_INTERRUPTED));
}

static void set_signals(void)
{
    struct sigaction interrupt, ignore = {.sa_handler = SIG_IGN};
    /* Whoever started us with interrupts ignored (nohup, a shell's background) wants it so. */
    if (sigaction(SIGINT, NULL, &interrupt) == 0 && interrupt.sa_handler != SIG_IGN) {
        interrupt = (struct sigaction){.sa_handler = exit_interrupted};
        sigaction(SIGINT, &interrupt, NULL);
    }
    sigaction(SIGPIPE, &ignore, NULL); /* a closed pipe is then a failed write, and is reported */
}

/* What is not a command: the pages that the build installs. */
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
        return STRATA_OK;
    }
    return cli_commands[arguments.command].function(&arguments, error);
}

int main(int argc, char **argv)
{
    strata_error error = {0}, flush_error = {0};
    setlocale(LC_CTYPE, "");
    set_signals();
    strata_status status = run_program(argc > 0 ? argc - 1 : 0, argv + (argc > 0), &error);
    strata_status flushed = cli_flush(&flush_error);
    if (status == STRATA_OK && flushed != STRATA_OK) {
        status = flushed;
        error = flush_error;
    }
    if (status != STRATA_OK) cli_report(&error);
    return strata_status_exit_code(status);
}
