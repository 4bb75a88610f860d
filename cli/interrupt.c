/* Signals: Ctrl-C stops an answer or exits; an exit by signal restores the terminal and removes an unfinished file; a
 * model file that is truncated while it is mapped ends the program with an error message. */
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include "cli.h"

/* Read by the handlers. The terminal settings are written once, before any handler is installed. */
static volatile sig_atomic_t held, noted;
static strata_session *volatile session_to_stop; /* while interrupts are held */
static const char *volatile file_to_remove;
static struct termios terminal_settings;
static bool terminal_known;

static void clean_up(void)
{
    if (terminal_known) tcsetattr(STDIN_FILENO, TCSANOW, &terminal_settings);
    if (file_to_remove) unlink(file_to_remove);
}

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    if (held && !noted) {
        noted = 1;
        if (session_to_stop) strata_session_interrupt(session_to_stop, true);
        return;
    }
    clean_up();
    if (terminal_known) (void)!write(STDERR_FILENO, "\n", 1);
    _exit(strata_status_exit_code(STRATA_INTERRUPTED));
}

/* Dies of the signal, as the parent process expects. */
static void on_termination(int signal_number)
{
    clean_up();
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* A page of a mapped file is gone, so the weights on it cannot be read. */
static void on_lost_page(int signal_number, siginfo_t *info, void *context)
{
    static const char message[] = "strata: error: a part of the model file is gone: the file was truncated or replaced "
                                  "while in use, or the disk failed\n";
    (void)context;
    if (info->si_code != BUS_ADRERR) {
        on_termination(signal_number);
        return;
    }
    clean_up();
    (void)!write(STDERR_FILENO, message, sizeof message - 1);
    _exit(strata_status_exit_code(STRATA_FILE));
}

/* A signal that the parent process ignores (nohup, a shell's background job) stays ignored. */
static void handle(int signal_number, void (*handler)(int))
{
    struct sigaction action;
    if (sigaction(signal_number, NULL, &action) != 0 || action.sa_handler == SIG_IGN) return;
    action = (struct sigaction){.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(signal_number, &action, NULL);
}

void cli_interrupt_install(void)
{
    struct sigaction lost = {.sa_sigaction = on_lost_page, .sa_flags = SA_SIGINFO};
    terminal_known = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &terminal_settings) == 0;
    handle(SIGINT, on_interrupt);
    handle(SIGTERM, on_termination);
    handle(SIGHUP, on_termination);
    handle(SIGPIPE, on_termination); /* `| head` ends the program silently */
    sigaction(SIGBUS, &lost, NULL);
}

void cli_interrupt_hold(strata_session *session)
{
    strata_session_interrupt(session, false);
    session_to_stop = session;
    noted = 0;
    held = 1;
}

bool cli_interrupt_release(void)
{
    held = 0;
    session_to_stop = NULL;
    return noted != 0;
}

bool cli_interrupted(void)
{
    return held && noted;
}

void cli_interrupt_remove(const char *path)
{
    file_to_remove = path;
}
