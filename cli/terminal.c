/* The terminal: colours, and the format of numbers and text. */
#include <langinfo.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

cli_style cli_style_of(const cli_arguments *arguments, FILE *stream)
{
    const cli_value *when = &arguments->values[OPTION_COLOR];
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    bool terminal = isatty(fileno(stream)) && !(term && strcmp(term, "dumb") == 0);
    bool color = terminal && !(no_color && *no_color);
    if (when->set && when->number != CLI_WHEN_AUTO) color = when->number == CLI_WHEN_ALWAYS;
    return (cli_style){.stream = stream, .terminal = terminal, .color = color,
                       .bars = terminal && strcmp(nl_langinfo(CODESET), "UTF-8") == 0};
}

double cli_now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

uint64_t cli_peak_bytes(void)
{
    struct rusage usage = {0};
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_maxrss * 1024;
}

void cli_print_text(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)text[i], next = i + 1 < length ? (unsigned char)text[i + 1] : 0;
        bool control = byte < 0x20 || byte == 0x7F || (byte == 0xC2 && next >= 0x80 && next < 0xA0);
        putchar(control ? '?' : text[i]);
        if (control && byte == 0xC2) i++;
    }
}

void cli_print_bold(const cli_style *style, const char *text)
{
    if (style->color) fputs("\033[1m", stdout);
    cli_print_text(text, strlen(text));
    if (style->color) fputs("\033[0m", stdout);
}

void cli_print_bar(const cli_style *style, double share, size_t width)
{
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    if (!style->bars || !(share >= 0.0 && share <= 1.0)) return;
    size_t parts = (size_t)(share * (double)width * 8.0 + 0.5);
    if (parts == 0 && share > 0.0) parts = 1;
    if (style->color) fputs("\033[36m", style->stream);
    for (size_t i = 0; i < parts / 8; i++) fputs("█", style->stream);
    fputs(eighths[parts % 8], style->stream);
    if (style->color) fputs("\033[0m", style->stream);
}

const char *cli_group_digits(uint64_t number, char *out, size_t size)
{
    char digits[24];
    int count = snprintf(digits, sizeof digits, "%llu", (unsigned long long)number);
    size_t used = 0;
    for (int i = 0; i < count && used + 2 < size; i++) {
        if (i > 0 && (count - i) % 3 == 0) out[used++] = ',';
        out[used++] = digits[i];
    }
    out[used] = '\0';
    return out;
}

const char *cli_short_number(uint64_t number, const char *unit, char *out, size_t size)
{
    static const char prefixes[] = " kMGTPE";
    double value = (double)number;
    size_t prefix = 0;
    while (value >= 999.95 && prefix + 2 < sizeof prefixes) {
        value /= 1000.0;
        prefix++;
    }
    if (prefix == 0) snprintf(out, size, "%llu%s%s", (unsigned long long)number, *unit ? " " : "", unit);
    else snprintf(out, size, "%.*f %c%s", value < 9.995 ? 2 : 1, value, prefixes[prefix], unit);
    return out;
}

void cli_print_wrapped(const char *text, size_t column, size_t indent)
{
    enum { WIDTH = 80 };
    bool first = true;
    while (*text) {
        size_t word = strcspn(text, " ");
        if (!first && column + 1 + word > WIDTH) {
            printf("\n%*s", (int)indent, "");
            column = indent;
        } else if (!first) {
            putchar(' ');
            column++;
        }
        fwrite(text, 1, word, stdout);
        column += word;
        text += word;
        while (*text == ' ') text++;
        first = false;
    }
    putchar('\n');
}
