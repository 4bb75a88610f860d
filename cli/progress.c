/* Progress bars on standard error, with amount and speed. */
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"

enum { BAR_WIDTH = 24, COLUMNS_NEEDED = 72 };
static const double redraw_seconds = 0.1;
static cli_progress *current; /* the bar on the screen; NULL: none */

static size_t terminal_columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* 12.3 MB of 98.4 MB, 1.23 GB/s; or 512 of 959 tokens, 12.3 t/s. */
static void print_amounts(const cli_progress *p, double seconds)
{
    char done[32], total[32], rate[32];
    double speed = seconds > 0.0 ? (double)p->done / seconds : 0.0;
    if (p->unit[0] == 'B') {
        fprintf(stderr, " %s of %s, %s/s", cli_short_number(p->done, "B", done, sizeof done),
                cli_short_number(p->total, "B", total, sizeof total),
                cli_short_number((uint64_t)speed, "B", rate, sizeof rate));
        return;
    }
    fprintf(stderr, " %s of %s %s, %.1f t/s", cli_group_digits(p->done, done, sizeof done),
            cli_group_digits(p->total, total, sizeof total), p->unit, speed);
}

static void draw(cli_progress *p, double now)
{
    double share = p->total ? (double)p->done / (double)p->total : 0.0;
    if (!(share >= 0.0 && share <= 1.0)) share = 1.0;
    fprintf(stderr, "\r\033[K%s %3.0f %% ", p->label, share * 100.0);
    /* A wrapped line could not be erased. */
    if (terminal_columns() > COLUMNS_NEEDED) {
        cli_print_bar(&p->style, share, BAR_WIDTH);
        print_amounts(p, now - p->start_seconds);
    }
    fflush(stderr);
    p->drawn_seconds = now;
    p->shown = true;
    current = p;
}

void cli_progress_begin(cli_progress *progress, const cli_arguments *arguments, const char *label, const char *unit,
                        uint64_t total)
{
    *progress = (cli_progress){.style = cli_style_of(arguments, stderr), .label = label, .unit = unit, .total = total,
                               .start_seconds = cli_now_seconds()};
    if (cli_is_quiet()) progress->style.terminal = false;
    if (progress->style.terminal) draw(progress, progress->start_seconds);
}

bool cli_progress_step(void *context, uint64_t done, uint64_t total)
{
    cli_progress *progress = context;
    progress->done = done;
    progress->total = total;
    double now = cli_now_seconds();
    if (progress->style.terminal && now - progress->drawn_seconds >= redraw_seconds) draw(progress, now);
    return !cli_interrupted();
}

void cli_progress_end(cli_progress *progress)
{
    if (!progress->shown) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    progress->shown = false;
    current = NULL;
}

void cli_progress_hide(void)
{
    if (current) cli_progress_end(current);
}
