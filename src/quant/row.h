/* Rows of any length in the types that keys and values are kept in: float32, bfloat16, q8_0. A q8_0 row is blocks of 32
 * over the whole row, each a half-precision scale and its bytes; the last block may be short. */
#ifndef ST_QUANT_ROW_H
#define ST_QUANT_ROW_H

#include "quant/quant.h"

/* Whether `type` can hold such rows. */
bool st_row_supported(st_type type);

/* Bytes of a row of `count` elements. */
size_t st_row_bytes(st_type type, size_t count);

void st_row_store(st_type type, const float *from, size_t count, void *row);

/* Elements first … first + count − 1 of a row. */
void st_row_load(st_type type, const void *row, size_t first, size_t count, float *to);

#endif
