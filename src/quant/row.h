/* Rows of any length in the types of the KV cache: float32, float16, bfloat16, q8_0. In float16 a value out of range
 * is stored as the largest finite value. A q8_0 row consists of blocks of 32 elements, each a float16 scale and its
 * bytes; the last block may be short. */
#ifndef ST_QUANT_ROW_H
#define ST_QUANT_ROW_H

#include "quant/quant.h"

/* Bytes of a row of `count` elements. */
size_t st_row_bytes(st_type type, size_t count);

void st_row_store(st_type type, const float *from, size_t count, void *row);

/* Loads elements first … first + count − 1 of a row as floats. */
void st_row_load(st_type type, const void *row, size_t first, size_t count, float *to);

#endif
