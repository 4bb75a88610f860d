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
    bool paste;         /* the terminal can mark pasted text */
    bool cleared;       /* by Ctrl-C */
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

/* A message of several lines is one line of the file. */
enum { STORED_NEWLINE = '\v' };

static void replace(char *text, size_t length, char from, char to)
{
    for (size_t i = 0; i < length; i++)
        if (text[i] == from) text[i] = to;
}

static void append_history(const cli_line *line, const char *text)
{
    char *row = NULL;
    int length = line->history_path ? asprintf(&row, "%s\n", text) : -1;
    if (length < 0) return;
    replace(row, (size_t)length - 1, '\n', STORED_NEWLINE);
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
        replace(row, (size_t)(newline - row), STORED_NEWLINE, '\n');
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

/* Reads the next character. libedit's own function would end the line or signal the process group. Ctrl-C is an error,
 * which ends the line. */
static int read_character(EditLine *edit, wchar_t *out)
{
    mbstate_t state = {0};
    cli_line *line = NULL;
    el_get(edit, EL_CLIENTDATA, &line);
    for (;;) {
        char byte;
        ssize_t got = read(STDIN_FILENO, &byte, 1);
        if (cli_interrupt_take()) {
            line->cleared = true;
            return -1;
        }
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

/* ---- pasted text ------------------------------------------------------------------------------------------------- */

static const char paste_end[] = "\033[201~";
enum { PASTE_BYTES_MAX = 16 << 20, PASTE_END = sizeof paste_end - 1 };

/* Reads up to the terminal's mark (free); NULL: no memory, Ctrl-C, or the end of the input. */
static char *read_paste(void)
{
    size_t used = 0, capacity = 1 << 12;
    char *text = malloc(capacity + 1);
    while (text) {
        if (used == capacity) {
            char *grown = capacity < PASTE_BYTES_MAX ? realloc(text, capacity * 2 + 1) : NULL;
            if (!grown) break;
            text = grown;
            capacity *= 2;
        }
        ssize_t got = read(STDIN_FILENO, text + used, 1); /* what follows the mark is typed */
        if (got < 0 && errno == EINTR && !cli_interrupt_take()) continue;
        if (got <= 0) break;
        used++;
        if (used < PASTE_END || memcmp(text + used - PASTE_END, paste_end, PASTE_END) != 0) continue;
        text[used - PASTE_END] = '\0';
        return text;
    }
    free(text);
    return NULL;
}

/* Terminals paste newlines as carriage returns. Other control characters go, and so do newlines at the end. */
static void clean_paste(char *text)
{
    char *end = text;
    for (const char *c = text; *c; c++) {
        unsigned char byte = (unsigned char)*c;
        if (byte == '\r' && c[1] == '\n') continue;
        if (byte == '\r') *end++ = '\n';
        else if (byte == '\n' || byte == '\t' || (byte >= 0x20 && byte != 0x7F)) *end++ = *c;
    }
    while (end > text && end[-1] == '\n') end--;
    *end = '\0';
}

/* An editor function: inserts a pasted block as it is. */
static unsigned char insert_paste(EditLine *edit, wint_t key)
{
    char *text = read_paste();
    bool inserted = false;
    (void)key;
    if (text) {
        clean_paste(text);
        inserted = !*text || el_insertstr(edit, text) == 0;
    }
    free(text);
    return inserted ? CC_REFRESH : CC_ERROR;
}

/* ---- opening and reading ----------------------------------------------------------------------------------------- */

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
    /* el_set would copy the texts and never free them */
    el_wset(line->edit, EL_ADDFN, L"strata-paste", L"insert pasted text", insert_paste);
    el_set(line->edit, EL_BIND, "\033[200~", "strata-paste", NULL);
    const char *term = getenv("TERM");
    line->paste = term && strcmp(term, "dumb") != 0;
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

/* The line so far is not empty. */
static bool is_begun(const cli_line *line)
{
    const LineInfo *info = el_line(line->edit);
    return info->lastchar > info->buffer;
}

/* Keeps a copy of the line; false: no memory. */
static bool keep_line(cli_line *line, const char *typed, int length)
{
    size_t kept = (size_t)length;
    while (kept > 0 && typed[kept - 1] == '\n') kept--;
    free(line->text);
    line->text = strndup(typed, kept);
    return line->text != NULL;
}

const char *cli_line_read(cli_line *line, const char *prompt, cli_line_event *event)
{
    int length = 0;
    HistEvent entered;
    /* \1 encloses escape sequences, which take no column */
    snprintf(line->prompt, sizeof line->prompt, line->color ? "\1\033[1;36m\1%s\1\033[0m\1" : "%s", prompt);
    if (resized) el_resize(line->edit); /* during the answer */
    resized = continued = 0;
    line->cleared = false;
    cli_interrupt_line(true, line->paste);
    const char *typed = el_gets(line->edit, &length);
    cli_interrupt_line(false, line->paste);
    *event = line->cleared ? CLI_LINE_CLEARED : CLI_LINE_END;
    if (line->cleared) {
        fputs("^C\n", stderr);
        return is_begun(line) ? "" : NULL;
    }
    if (!typed || length <= 0 || !keep_line(line, typed, length)) return NULL;
    *event = CLI_LINE_TEXT;
    if (*line->text) {
        history(line->history, &entered, H_ENTER, line->text);
        append_history(line, line->text);
    }
    return line->text;
}
