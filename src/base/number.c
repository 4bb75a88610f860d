#include "base/number.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

const char *st_number_text(uint64_t number, char text[ST_NUMBER_TEXT])
{
    char digits[ST_NUMBER_TEXT];
    int count = snprintf(digits, sizeof digits, "%" PRIu64, number), used = 0;
    for (int i = 0; i < count; i++) {
        if (i > 0 && (count - i) % 3 == 0) text[used++] = ',';
        text[used++] = digits[i];
    }
    text[used] = 0;
    return text;
}

const char *st_size_text(uint64_t bytes, char text[ST_NUMBER_TEXT])
{
    bool large = bytes >= (uint64_t)1 << 30;
    snprintf(text, ST_NUMBER_TEXT, "%.2f %s", (double)bytes / (large ? 1 << 30 : 1 << 20), large ? "GiB" : "MiB");
    return text;
}
