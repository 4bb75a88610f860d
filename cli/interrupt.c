/* Signals: Ctrl-C stops an answer, clears a line or exits; Ctrl-Z gives the terminal back while the program is stopped;
 * an exit by signal restores the terminal and removes an unfinished file; a model file that is truncated while it is
 * mapped ends the program with an error message. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "cli.h"

/* Read by the handlers. The terminal settings are written once, before any handler is installed. */
static volatile sig_atomic_t held, reading, pasting, noted;
static strata_session *volatile session_to_stop; /* while interrupts are held */
static const char *volatile file_to_remove;
static struct termios terminal_settings;
static bool terminal_known;

/* A background job that changes the terminal would be stopped. */
static bool owns_terminal(void)
{
    return terminal_known && tcgetpgrp(STDIN_FILENO) == getpgrp();
}

/* The terminal marks pasted text with escape sequences, or does not. */
static void mark_paste(bool on)
{
    static const char begin[] = "\033[?2004h", end[] = "\033[?2004l";
    (void)!write(STDERR_FILENO, on ? begin : end, sizeof begin - 1);
}

static void clean_up(void)
{
    if (owns_terminal()) tcsetattr(STDIN_FILENO, TCSANOW, &terminal_settings);
    if (pasting) mark_paste(false);
    if (file_to_remove) unlink(file_to_remove);
}

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    if (reading) {
        noted = 1;
        return;
    }
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

static void set_handler(int signal_number, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(signal_number, &action, NULL);
}

/* Gives the terminal back, stops, and takes it again when the shell continues the program. */
static void on_stop(int signal_number)
{
    int before = errno;
    struct termios now;
    sigset_t stop;
    bool known = owns_terminal() && tcgetattr(STDIN_FILENO, &now) == 0;
    if (known) tcsetattr(STDIN_FILENO, TCSANOW, &terminal_settings);
    if (pasting) mark_paste(false);
    sigemptyset(&stop);
    sigaddset(&stop, signal_number);
    set_handler(signal_number, SIG_DFL, 0);
    raise(signal_number);
    sigprocmask(SIG_UNBLOCK, &stop, NULL); /* stops here */
    set_handler(signal_number, on_stop, reading ? 0 : SA_RESTART);
    if (known && owns_terminal()) tcsetattr(STDIN_FILENO, TCSANOW, &now);
    if (pasting) mark_paste(true);
    errno = before;
}

/* A signal that the parent process ignores (nohup, a shell's background job) stays ignored. */
static void handle(int signal_number, void (*handler)(int), int flags)
{
    struct sigaction action;
    if (sigaction(signal_number, NULL, &action) != 0 || action.sa_handler == SIG_IGN) return;
    set_handler(signal_number, handler, flags);
}

void cli_interrupt_install(void)
{
    struct sigaction lost = {.sa_sigaction = on_lost_page, .sa_flags = SA_SIGINFO};
    terminal_known = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &terminal_settings) == 0;
    handle(SIGINT, on_interrupt, SA_RESTART);
    handle(SIGTERM, on_termination, SA_RESTART);
    handle(SIGHUP, on_termination, SA_RESTART);
    handle(SIGPIPE, on_termination, SA_RESTART); /* `| head` ends the program silently */
    if (terminal_known) handle(SIGTSTP, on_stop, SA_RESTART);
    sigaction(SIGBUS, &lost, NULL);
}

/* What is typed during an answer stays in the terminal's buffer for the next line. */
static void show_typing(bool shown)
{
    struct termios settings = terminal_settings;
    if (!owns_terminal()) return;
    if (!shown) settings.c_lflag &= ~(tcflag_t)ECHO;
    tcsetattr(STDIN_FILENO, TCSANOW, &settings);
}

void cli_interrupt_hold(strata_session *session)
{
    strata_session_interrupt(session, false);
    session_to_stop = session;
    noted = 0;
    held = 1;
    show_typing(false);
}

bool cli_interrupt_release(void)
{
    show_typing(true);
    held = 0;
    session_to_stop = NULL;
    return noted != 0;
}

bool cli_interrupted(void)
{
    return held && noted;
}

void cli_interrupt_line(bool on, bool paste)
{
    if (on) {
        noted = 0;
        reading = 1;
    }
    pasting = on && paste;
    if (paste) mark_paste(on);
    handle(SIGINT, on_interrupt, on ? 0 : SA_RESTART); /* a read must return */
    if (terminal_known) handle(SIGTSTP, on_stop, on ? 0 : SA_RESTART);
    if (!on) reading = 0;
}

bool cli_interrupt_take(void)
{
    bool taken = noted != 0;
    noted = 0;
    return taken;
}

void cli_interrupt_remove(const char *path)
{
    file_to_remove = path;
}
