#include <stdio.h>
#include <time.h>

#include "chat/printf.h"

/* strftime for UTC, with English names in every locale. */

static const char *const day_names[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
static const char *const month_names[] = {"January", "February", "March",     "April",   "May",      "June",
                                          "July",    "August",   "September", "October", "November", "December"};

static bool add_number(jinja_builder *builder, long long value, int width, char pad)
{
    char text[32];
    if (pad == '-') snprintf(text, sizeof text, "%lld", value);
    else if (pad == '_') snprintf(text, sizeof text, "%*lld", width, value);
    else snprintf(text, sizeof text, "%0*lld", width, value);
    return st_jinja_add_literal(builder, text);
}

static int days_of(int year)
{
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0 ? 366 : 365;
}

/* ISO 8601: week 1 holds the first Thursday of the year. */
static int iso_week(const struct tm *t, int *year)
{
    int monday = t->tm_yday - (t->tm_wday + 6) % 7, week = (monday + 10) / 7;
    *year = t->tm_year + 1900;
    if (week < 1) {
        *year -= 1;
        return (monday + days_of(*year) + 10) / 7;
    }
    if (week < 53 || monday + 3 < days_of(*year)) return week;
    *year += 1;
    return 1;
}

typedef struct number_row {
    char letter;
    int width;
    char pad; /* the default padding */
} number_row;

static const number_row number_rows[] = {
    {'Y', 4, '0'}, {'m', 2, '0'}, {'d', 2, '0'}, {'H', 2, '0'}, {'M', 2, '0'}, {'S', 2, '0'}, {'y', 2, '0'},
    {'j', 3, '0'}, {'I', 2, '0'}, {'e', 2, '_'}, {'k', 2, '_'}, {'l', 2, '_'}, {'u', 1, '0'}, {'w', 1, '0'},
    {'f', 6, '0'}, {'C', 2, '0'}, {'s', 1, '0'}, {'U', 2, '0'}, {'W', 2, '0'}, {'V', 2, '0'}, {'G', 4, '0'},
};

static long long number_of(const struct tm *t, char letter, int64_t seconds)
{
    int hour12 = t->tm_hour % 12 ? t->tm_hour % 12 : 12, iso_year;
    switch (letter) {
    case 'Y': return t->tm_year + 1900LL;
    case 'm': return t->tm_mon + 1;
    case 'd':
    case 'e': return t->tm_mday;
    case 'H':
    case 'k': return t->tm_hour;
    case 'M': return t->tm_min;
    case 'S': return t->tm_sec;
    case 'y': return (t->tm_year % 100 + 100) % 100;
    case 'j': return t->tm_yday + 1;
    case 'I':
    case 'l': return hour12;
    case 'u': return t->tm_wday ? t->tm_wday : 7;
    case 'w': return t->tm_wday;
    case 'C': return (t->tm_year + 1900LL) / 100;
    case 's': return seconds;
    case 'U': return (t->tm_yday + 7 - t->tm_wday) / 7;
    case 'W': return (t->tm_yday + 7 - (t->tm_wday + 6) % 7) / 7;
    case 'V': return iso_week(t, &iso_year);
    case 'G': iso_week(t, &iso_year); return iso_year;
    default: return 0; /* f: microseconds */
    }
}

static const struct shorthand_row {
    char letter;
    const char *pattern;
} shorthand_rows[] = {
    {'F', "%Y-%m-%d"}, {'T', "%H:%M:%S"}, {'D', "%m/%d/%y"}, {'R', "%H:%M"}, {'c', "%a %b %e %H:%M:%S %Y"},
    {'x', "%m/%d/%y"}, {'X', "%H:%M:%S"}, {'r', "%I:%M:%S %p"},
};

static bool add_pattern(jinja_builder *builder, const jinja_string *pattern, const struct tm *t, int64_t seconds);

static bool add_field(jinja_builder *builder, char letter, char pad, const struct tm *t, int64_t seconds)
{
    for (size_t i = 0; i < sizeof number_rows / sizeof *number_rows; i++) {
        if (number_rows[i].letter != letter) continue;
        return add_number(builder, number_of(t, letter, seconds), number_rows[i].width, pad ? pad : number_rows[i].pad);
    }
    for (size_t i = 0; i < sizeof shorthand_rows / sizeof *shorthand_rows; i++) {
        if (shorthand_rows[i].letter != letter) continue;
        jinja_string inner = {
            .bytes = shorthand_rows[i].pattern, .length = strlen(shorthand_rows[i].pattern), .ascii = true};
        return add_pattern(builder, &inner, t, seconds);
    }
    switch (letter) {
    case 'A': return st_jinja_add_literal(builder, day_names[t->tm_wday]);
    case 'a': return st_jinja_add_bytes(builder, day_names[t->tm_wday], 3, false);
    case 'B': return st_jinja_add_literal(builder, month_names[t->tm_mon]);
    case 'b':
    case 'h': return st_jinja_add_bytes(builder, month_names[t->tm_mon], 3, false);
    case 'p': return st_jinja_add_literal(builder, t->tm_hour < 12 ? "AM" : "PM");
    case 'Z':
    case 'z': return true; /* a time without a zone has neither in Python */
    case '%': return st_jinja_add_literal(builder, "%");
    case 'n': return st_jinja_add_literal(builder, "\n");
    case 't': return st_jinja_add_literal(builder, "\t");
    default: return st_jinja_fail(builder->machine, "strftime: unknown letter after '%%'");
    }
}

static bool add_pattern(jinja_builder *builder, const jinja_string *pattern, const struct tm *t, int64_t seconds)
{
    for (size_t i = 0; i < pattern->length; i++) {
        if (pattern->bytes[i] != '%' || i + 1 == pattern->length) {
            if (!st_jinja_add_slice(builder, pattern, i, i + 1)) return false;
            continue;
        }
        char pad = pattern->bytes[i + 1];
        bool padded = (pad == '-' || pad == '_' || pad == '0') && i + 2 < pattern->length;
        i += padded ? 2 : 1;
        if (!add_field(builder, pattern->bytes[i], padded ? pad : '\0', t, seconds)) return false;
    }
    return true;
}

bool st_jinja_format_time(jinja_machine *machine, const jinja_string *pattern, int64_t seconds, jinja_value *out)
{
    jinja_builder builder = {.machine = machine};
    struct tm parts;
    time_t moment = (time_t)seconds;
    if (!gmtime_r(&moment, &parts)) return st_jinja_fail(machine, "strftime: the time is beyond the calendar");
    return add_pattern(&builder, pattern, &parts, seconds) && st_jinja_builder_finish(&builder, out);
}
