/* Numbers as text for people. */
#ifndef ST_BASE_NUMBER_H
#define ST_BASE_NUMBER_H

#include <stdint.h>

enum { ST_NUMBER_TEXT = 32 };

/* 1,234,567 */
const char *st_number_text(uint64_t number, char text[ST_NUMBER_TEXT]);
/* 12.00 GiB, 1.50 MiB */
const char *st_size_text(uint64_t bytes, char text[ST_NUMBER_TEXT]);

#endif
