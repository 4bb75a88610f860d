/* Messages: errors and notes on standard error, checked output on standard output. */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static bool quiet; /* --quiet */

void cli_be_quiet(void)
{
    quiet = true;
}

bool cli_is_quiet(void)
{
    return quiet;
}

strata_status cli_fail(strata_error *error, strata_status status, const char *hint, const char *format, ...)
{
    error->status = status;
    va_list args;
    va_start(args, format);
    if (vsnprintf(error->message, sizeof error->message, format, args) < 0) error->message[0] = '\0';
    va_end(args);
    snprintf(error->hint, sizeof error->hint, "%s", hint ? hint : "");
    return status;
}

/* Every field of the table is one of strata.h. */
#define FIELD(option, type, prefix, field) _Static_assert(sizeof(((type *)0)->field) > 0, #field);
#include "options.def"

static const struct { const char *field; cli_option_id option; } fields[] = {
#define FIELD(option, type, prefix, field) {#prefix "." #field, OPTION_##option},
#include "options.def"
};

/* The option of the field that the text begins with; *length is the field's. NULL: none. */
static const cli_option *option_at(const char *text, size_t *length)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        *length = strlen(fields[i].field);
        if (strncmp(text, fields[i].field, *length) != 0) continue;
        const char *end = text + *length;
        bool longer = isalnum((unsigned char)*end) || *end == '_' || (*end == '.' && isalnum((unsigned char)end[1]));
        if (!longer) return &cli_options[fields[i].option];
    }
    return NULL;
}

void cli_name_options(char *text)
{
    for (char *at = text; *at; at++) {
        size_t field;
        bool inside = at > text && (isalnum((unsigned char)at[-1]) || strchr("_-./", at[-1]));
        const cli_option *option = inside ? NULL : option_at(at, &field);
        char name[32];
        if (!option) continue;
        if (option->short_name) snprintf(name, sizeof name, "-%c", option->short_name);
        else snprintf(name, sizeof name, "--%s", option->name);
        size_t length = strlen(name);
        if (length > field) continue; /* no room: the text does not grow */
        for (size_t i = 0; i < length; i++) at[i] = name[i];
        memmove(at + length, at + field, strlen(at + field) + 1);
    }
}

/* One call per line, so that lines do not interleave. Control characters are replaced: texts come from the user. */
static void print_line(const char *kind, const char *text)
{
    char line[sizeof((strata_error *)0)->message];
    snprintf(line, sizeof line, "%s", text);
    cli_name_options(line);
    for (char *c = line; *c; c++) {
        unsigned char byte = (unsigned char)*c, next = (unsigned char)c[1];
        bool control = byte < 0x20 || byte == 0x7F || (byte == 0xC2 && next >= 0x80 && next < 0xA0);
        if (control) *c = '?';
    }
    cli_progress_hide();
    fprintf(stderr, "strata: %s%s\n", kind, line);
}

void cli_log(void *context, strata_log_level level, const char *text)
{
    static const char *const kinds[] = {"error: ", "warning: ", "note: "};
    (void)context;
    if (!quiet || level == STRATA_LOG_ERROR) print_line(kinds[level], text);
}

void cli_report(const strata_error *error)
{
    print_line("error: ", error->message[0] ? error->message : strata_status_text(error->status));
    if (error->hint[0]) print_line("hint: ", error->hint);
}

static void print_formatted(const char *format, va_list args)
{
    char text[sizeof((strata_error *)0)->message];
    if (vsnprintf(text, sizeof text, format, args) >= 0) print_line("", text);
}

void cli_say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_formatted(format, args);
    va_end(args);
}

void cli_note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!quiet) print_formatted(format, args);
    va_end(args);
}

strata_status cli_allocate(size_t count, size_t size, const char *what, void **out, strata_error *error)
{
    void *memory = calloc(count ? count : 1, size);
    if (!memory) return cli_fail(error, STRATA_MEMORY, NULL, "no memory for %s", what);
    *out = memory;
    return STRATA_OK;
}

strata_status cli_flush(strata_error *error)
{
    errno = 0;
    bool failed = fflush(stdout) != 0;
    int cause = errno;
    if (!failed && !ferror(stdout)) return STRATA_OK;
    return cli_fail(error, STRATA_RUNTIME, cause == ENOSPC ? "make room on the disk" : NULL,
                    "standard output: cannot write: %s", cause ? strerror(cause) : "an earlier write failed");
}

strata_status cli_print_json(const json_t *value, size_t flags, strata_error *error)
{
    if (json_dumpf(value, stdout, flags | JSON_ENCODE_ANY) != 0 && !ferror(stdout))
        return cli_fail(error, STRATA_MEMORY, NULL, "no memory to write JSON");
    putchar('\n');
    return cli_flush(error);
}

strata_status cli_print_ids(const strata_token *ids, size_t count, bool json, strata_error *error)
{
    if (json) putchar('[');
    for (size_t i = 0; i < count; i++) printf("%s%d", i == 0 ? "" : json ? ", " : " ", (int)ids[i]);
    puts(json ? "]" : "");
    return cli_flush(error);
}
