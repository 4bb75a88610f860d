/* UTF-8: decoding, encoding, and repair of invalid bytes. */
#ifndef ST_BASE_UTF8_H
#define ST_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

enum { ST_UTF8_REPLACEMENT = 0xFFFD };

/* Decodes the code point at `text` (length ≥ 1). Returns the bytes it takes and sets *code; where the bytes are not
 * valid UTF-8 it returns the length of the maximal invalid part (≥ 1) and sets *code to UINT32_MAX. */
size_t st_utf8_decode(const char *text, size_t length, uint32_t *code);

/* Writes `code` (a valid scalar value, else U+FFFD is written) to out[4] and returns its length. */
size_t st_utf8_encode(uint32_t code, char *out);

/* The length of the longest valid prefix. */
size_t st_utf8_valid_prefix(const char *text, size_t length);

/* The bytes at the end that begin an incomplete code point (0 to 3). */
size_t st_utf8_unfinished_tail(const char *text, size_t length);

/* Appends the text with each maximal invalid part replaced by U+FFFD. */
bool st_utf8_repair(st_buf *out, const char *text, size_t length);

#endif
