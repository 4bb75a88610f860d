/* Batches in bfloat16 (st_isa_panels). The rows of weights of a product are unpacked into strips, a part of their
 * elements at a time, widened, and multiplied with all tokens; the tokens' sums stay in scratch between the parts. Owns
 * that scratch and the packed activations; knows no instruction set. */
#include <string.h>

#include "backend/cpu/fast.h"

enum {
    TILE_FLOATS = ST_PANEL_TILE * ST_PANEL_TILE,
    PAIR = 2 * ST_PANEL_TILE,            /* tokens whose sums lie together */
    STRIP_SUMS = PAIR * ST_STRIP_ROWS,   /* their sums with a strip */
    STRIP_BYTES = ST_PANEL_WIDTH * ST_STRIP_ROWS * 2, /* a widened strip */
};

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t panel_step(size_t width)
{
    return width / ST_ACT_BLOCK * ST_PANEL_TILE_BYTES;
}

size_t st_panel_bytes(size_t width, size_t rows)
{
    return (rows + ST_PANEL_TILE - 1) / ST_PANEL_TILE * panel_step(width);
}

void st_panel_pack(const st_isa_panels *panels, const float *x, size_t width, unsigned char *panel, size_t row)
{
    panels->pack(x, width, panel + row / ST_PANEL_TILE * panel_step(width), row % ST_PANEL_TILE);
}

void st_panel_copy(unsigned char *panel, size_t width, size_t from, size_t to)
{
    enum { ROW_BYTES = ST_ACT_BLOCK * 2 };
    size_t step = panel_step(width);
    const unsigned char *source = panel + from / ST_PANEL_TILE * step + from % ST_PANEL_TILE * ROW_BYTES;
    unsigned char *target = panel + to / ST_PANEL_TILE * step + to % ST_PANEL_TILE * ROW_BYTES;
    for (size_t at = 0; at < step; at += ST_PANEL_TILE_BYTES) memcpy(target + at, source + at, ROW_BYTES);
}

static size_t strips_of(size_t columns)
{
    return (columns + ST_STRIP_ROWS - 1) / ST_STRIP_ROWS;
}

size_t st_panel_scratch_bytes(size_t columns, size_t tokens)
{
    size_t pairs = (smaller(tokens, ST_PANEL_TOKENS) + PAIR - 1) / PAIR;
    return strips_of(columns) * (STRIP_BYTES + pairs * STRIP_SUMS * sizeof(float)) + st_strip_part_bytes();
}

/* Copies the sums of a token with one half of a strip after the other to its row of the output. */
static void store_token(const float *sums, size_t strips, size_t token, size_t columns, float *out)
{
    const float *row = sums + token / PAIR * strips * STRIP_SUMS + token % PAIR / ST_PANEL_TILE * 2 * TILE_FLOATS +
                       token % ST_PANEL_TILE * ST_PANEL_TILE;
    for (size_t i = 0; i < columns; i += ST_PANEL_TILE) {
        const float *tile = row + i / ST_STRIP_ROWS * STRIP_SUMS + i % ST_STRIP_ROWS / ST_PANEL_TILE * TILE_FLOATS;
        if (columns - i >= ST_PANEL_TILE) memcpy(out + i, tile, ST_PANEL_TILE * sizeof *out);
        else memcpy(out + i, tile, (columns - i) * sizeof *out);
    }
}

/* Widens elements at … at + count − 1 of the rows. */
static void widen_rows(const st_cpu_call *call, const st_row_range *rows, size_t at, size_t count, float *scratch,
                       unsigned char *weights)
{
    const st_isa_type *type = &call->isa->types[rows->matrix->type];
    st_row_range strip_rows = *rows;
    for (size_t first = 0; first < rows->lanes; first += ST_STRIP_ROWS, weights += STRIP_BYTES) {
        strip_rows.rows = rows->rows + first * rows->matrix->row_bytes;
        strip_rows.lanes = smaller(rows->lanes - first, ST_STRIP_ROWS);
        strip_rows.next = first + ST_STRIP_ROWS < rows->lanes ? NULL : rows->next; /* the next strip is not read after it */
        st_strip strip = st_strip_fill(type, &strip_rows, at, count, scratch);
        call->panels->widen(type, &strip, weights);
    }
}

static void multiply_tokens(const st_cpu_call *call, const st_row_range *rows, const unsigned char *panel,
                            size_t tokens, float *scratch, float *out, size_t stride)
{
    size_t width = rows->matrix->ne[0], strips = strips_of(rows->lanes), pairs = (tokens + PAIR - 1) / PAIR;
    float *sums = scratch + strips * STRIP_BYTES / sizeof *scratch, *strip = sums + pairs * strips * STRIP_SUMS;
    st_panel_product product = {.weights = (unsigned char *)scratch, .acts_step = panel_step(width),
                                .weights_step = STRIP_BYTES, .tokens = tokens, .strips = strips, .sums = sums};
    for (size_t at = 0; at < width; at += ST_PANEL_WIDTH) {
        size_t count = smaller(width - at, ST_PANEL_WIDTH);
        widen_rows(call, rows, at, count, strip, (unsigned char *)scratch);
        product.acts = panel + at / ST_ACT_BLOCK * ST_PANEL_TILE_BYTES;
        product.blocks = count / ST_ACT_BLOCK;
        product.add = at > 0;
        call->panels->multiply(&product);
    }
    for (size_t t = 0; t < tokens; t++) store_token(sums, strips, t, rows->lanes, out + t * stride);
}

void st_panel_multiply(const st_cpu_call *call, const st_row_range *rows, const unsigned char *panel, size_t tokens,
                       float *scratch, float *out, size_t stride)
{
    for (size_t token = 0; token < tokens; token += ST_PANEL_TOKENS)
        multiply_tokens(call, rows, panel + token / ST_PANEL_TILE * panel_step(rows->matrix->ne[0]),
                        smaller(tokens - token, ST_PANEL_TOKENS), scratch, out + token * stride, stride);
}
