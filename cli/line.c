/* Line editing with libedit. The history is $XDG_STATE_HOME/strata/history, one line per message. Each line is appended
 * when it is typed, so that two chats at the same time lose nothing. Failing to write the history is not an error. */
#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "cli.h"

enum { HISTORY_LINES = 1000, HISTORY_LINES_MAX = 2 * HISTORY_LINES };

struct cli_line {
    EditLine *edit;
    History *history;
    char *history_path; /* NULL: no history file */
    char *text;         /* the last line */
    char prompt[64];
    bool color;
};

static volatile sig_atomic_t resized, continued;

static void on_resize(int signal_number)
{
    (void)signal_number;
    resized = 1;
}

static void on_continue(int signal_number)
{
    (void)signal_number;
    continued = 1;
}

/* ---- the history file -------------------------------------------------------------------------------------------- */

/* Creates the parent folders of a path. */
static bool make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        bool made = mkdir(path, 0700) == 0 || errno == EEXIST;
        *slash = '/';
        if (!made) return false;
    }
    return true;
}

static char *find_history(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *path = NULL;
    int made = -1;
    if (state && state[0] == '/') made = asprintf(&path, "%s/strata/history", state);
    else if (home && home[0] == '/') made = asprintf(&path, "%s/.local/state/strata/history", home);
    if (made < 0) return NULL;
    if (make_folders(path)) return path;
    free(path);
    return NULL;
}

static void append_history(const cli_line *line, const char *text)
{
    char *row = NULL;
    int length = line->history_path ? asprintf(&row, "%s\n", text) : -1;
    if (length < 0) return;
    int file = open(line->history_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0) {
        (void)!write(file, row, (size_t)length); /* one call, so that lines of two chats do not mix */
        close(file);
    }
    free(row);
}

/* Truncates a long history file to its last lines. */
static void shorten_history(const cli_line *line, const char *last_lines)
{
    char *fresh = NULL;
    if (asprintf(&fresh, "%s.XXXXXX", line->history_path) < 0) return;
    int file = mkstemp(fresh);
    size_t length = strlen(last_lines);
    if (file >= 0) {
        bool whole = write(file, last_lines, length) == (ssize_t)length && fsync(file) == 0;
        whole = close(file) == 0 && whole;
        if (!whole || rename(fresh, line->history_path) != 0) unlink(fresh);
    }
    free(fresh);
}

static void load_history(cli_line *line)
{
    char *text = NULL;
    size_t length = 0, lines = 0;
    strata_error ignored;
    HistEvent event;
    if (!line->history_path || cli_read(line->history_path, &text, &length, &ignored) != STRATA_OK) return;
    for (size_t i = 0; i < length; i++) lines += text[i] == '\n';
    char *row = text, *end = text + length, *newline;
    for (size_t skip = lines > HISTORY_LINES ? lines - HISTORY_LINES : 0; skip > 0; skip--)
        row = (char *)memchr(row, '\n', (size_t)(end - row)) + 1;
    char *kept = lines > HISTORY_LINES_MAX && text[length - 1] == '\n' ? strndup(row, (size_t)(end - row)) : NULL;
    while (row < end && (newline = memchr(row, '\n', (size_t)(end - row)))) {
        *newline = '\0';
        if (*row) history(line->history, &event, H_ENTER, row);
        row = newline + 1;
    }
    if (kept) shorten_history(line, kept);
    free(kept);
    free(text);
}

/* ---- the editor -------------------------------------------------------------------------------------------------- */

static char *give_prompt(EditLine *edit)
{
    cli_line *line = NULL;
    el_get(edit, EL_CLIENTDATA, &line);
    return line->prompt;
}

/* Restores the terminal after it was resized or the program was stopped. */
static void mend_terminal(EditLine *edit)
{
    if (continued) {
        el_set(edit, EL_PREP_TERM, 0);
        el_set(edit, EL_PREP_TERM, 1);
    }
    if (resized) el_resize(edit);
    resized = continued = 0;
    el_set(edit, EL_REFRESH);
}

/* Reads the next character. libedit's own function would end the line or signal the process group. */
static int read_character(EditLine *edit, wchar_t *out)
{
    mbstate_t state = {0};
    for (;;) {
        char byte;
        ssize_t got = read(STDIN_FILENO, &byte, 1);
        if (got < 0 && errno == EINTR) {
            mend_terminal(edit);
            continue;
        }
        if (got <= 0) return (int)got;
        size_t length = mbrtowc(out, &byte, 1, &state);
        if (length == 0 || length == 1) return 1;
        if (length == (size_t)-1) state = (mbstate_t){0}; /* ignore bytes that are not UTF-8 */
    }
}

static void watch_signal(int signal_number, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler}; /* without SA_RESTART: read must return */
    sigaction(signal_number, &action, NULL);
}

strata_status cli_line_open(FILE *stream, bool color, cli_line **out, strata_error *error)
{
    void *memory = NULL;
    HistEvent event;
    strata_status status = cli_allocate(1, sizeof(cli_line), "the line editor", &memory, error);
    if (status != STRATA_OK) return status;
    cli_line *line = memory;
    line->color = color;
    line->history = history_init();
    line->edit = el_init("strata", stdin, stream, stderr);
    if (!line->history || !line->edit) {
        cli_line_close(line);
        return cli_fail(error, STRATA_RUNTIME, "set TERM to the terminal's type",
                        "the line editor could not be started");
    }
    history(line->history, &event, H_SETSIZE, HISTORY_LINES);
    history(line->history, &event, H_SETUNIQUE, 1);
    el_set(line->edit, EL_CLIENTDATA, line);
    if (color) el_set(line->edit, EL_PROMPT_ESC, give_prompt, '\1');
    else el_set(line->edit, EL_PROMPT, give_prompt);
    el_set(line->edit, EL_EDITOR, "emacs");
    el_set(line->edit, EL_HIST, history, line->history);
    el_set(line->edit, EL_SIGNAL, 0);
    el_set(line->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_wset(line->edit, EL_GETCFN, read_character);
    el_source(line->edit, NULL); /* ~/.editrc */
    line->history_path = find_history();
    load_history(line);
    watch_signal(SIGWINCH, on_resize);
    watch_signal(SIGCONT, on_continue);
    *out = line;
    return STRATA_OK;
}

void cli_line_close(cli_line *line)
{
    if (!line) return;
    if (line->edit) el_end(line->edit);
    if (line->history) history_end(line->history);
    free(line->history_path);
    free(line->text);
    free(line);
}

const char *cli_line_read(cli_line *line, const char *prompt)
{
    int length = 0;
    HistEvent event;
    /* \1 encloses escape sequences, which take no column */
    snprintf(line->prompt, sizeof line->prompt, line->color ? "\1\033[1;36m\1%s\1\033[0m\1" : "%s", prompt);
    if (resized) el_resize(line->edit); /* during the answer */
    resized = continued = 0;
    const char *typed = el_gets(line->edit, &length);
    if (!typed || length <= 0) return NULL;
    free(line->text);
    line->text = strndup(typed, strcspn(typed, "\n"));
    if (!line->text) return NULL;
    if (*line->text) {
        history(line->history, &event, H_ENTER, line->text);
        append_history(line, line->text);
    }
    return line->text;
}
