/* The tile sizes of the CPU's kernels, by which its scratch is laid out. */
#ifndef ST_BACKEND_CPU_SCRATCH_H
#define ST_BACKEND_CPU_SCRATCH_H

enum {
    ST_SCRATCH_ALIGN = 64,
    ST_ACT_BLOCK = 32,      /* int8 activations share a scale by 32 */
    ST_ACT_TILE = 8,        /* tokens whose activations lie side by side in a batch */
    ST_REFINED = 32,        /* a block with more than 1/32 of its row's squared error is refined: at most 32 are */
    ST_STRIP_ROWS = 32,     /* rows of weights that lie side by side in a strip */
    ST_FLOAT_COLUMNS = 32,  /* of a matrix of floats at a time, in a batch … */
    ST_FLOAT_STRETCH = 256, /* … this many elements of each … */
    ST_FLOAT_ROWS = 128,    /* … against this many tokens */
    ST_KEY_TILE = 64,       /* positions that attention takes at a time */
    ST_FEW_KEYS = 256,      /* … and a few rows of it … */
    ST_KEY_RUN = 4,         /* … so many of each head, one after the other */
    ST_QUERY_BLOCK = 256,   /* queries of a block of rows, unless one row has more */
    ST_SPLIT_TILE = 16,     /* rows and columns of a product of floats that are split into two bfloat16 … */
    ST_SPLIT_CHUNK = 32,    /* … and elements that it sums at a time */
    ST_FEW_ROWS = 4,        /* below this a batch is treated as single rows */
    ST_FEW_COLUMNS = 256,   /* columns of an expert at a time for a few rows */
    ST_STRETCHES = 32,      /* into which a row's positions are split, at most */
    ST_CONV_CHANNELS = 256, /* of a convolution at a time */
    ST_DELTA_CHUNK = 64,    /* tokens of the delta rule at a time */
};

#endif
