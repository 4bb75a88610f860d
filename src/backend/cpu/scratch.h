/* The tile sizes of the CPU's kernels, which determine the layout of its scratch. */
#ifndef ST_BACKEND_CPU_SCRATCH_H
#define ST_BACKEND_CPU_SCRATCH_H

enum {
    ST_SCRATCH_ALIGN = 64,
    ST_ACT_BLOCK = 32,      /* elements of a block of int8 activations, which share a scale in a batch */
    ST_ACT_HALF = 16,       /* … and in few rows */
    ST_ACT_TILE = 8,        /* tokens whose activations are interleaved in a batch */
    ST_REFINED = 16,        /* a block with more than 1/16 of its row's squared error is refined, so at most 16 are */
    ST_STRIP_ROWS = 32,     /* rows of weights that are interleaved in a strip */
    ST_STRIP_WIDTH = 512,   /* elements of a row that are unpacked at a time: they stay in the L1 cache */
    ST_STRIP_TOKENS = 64,   /* for more tokens a strip holds whole rows, and their sums stay in registers */
    ST_PANEL_TILE = 16,     /* bfloat16 batches: tokens, or rows of weights, of a tile */
    ST_PANEL_TILE_BYTES = ST_PANEL_TILE * ST_ACT_BLOCK * 2,
    ST_PANEL_ROWS = 32,     /* bfloat16 batches: fewer rows than this, or tokens per expert, run in int8 */
    ST_PANEL_WIDTH = 256,   /* bfloat16 batches: elements of a row that are widened at a time */
    ST_PANEL_COLUMNS = 256, /* bfloat16 batches: rows of weights that are multiplied with all tokens at a time */
    ST_PANEL_FEW = 64,      /* … of an expert */
    ST_PANEL_TOKENS = 512,  /* bfloat16 batches: tokens whose sums are kept at a time */
    ST_FLOAT_COLUMNS = 32,  /* float GEMM of a batch: columns of a tile */
    ST_FLOAT_STRETCH = 256, /* float GEMM of a batch: elements summed per tile */
    ST_FLOAT_ROWS = 128,    /* float GEMM of a batch: tokens of a tile */
    ST_KEY_TILE = 64,       /* attention of a batch: KV positions of a tile */
    ST_FEW_KEYS = 256,      /* attention of a few rows: KV positions of a tile */
    ST_KEY_RUN = 4,         /* attention of a few rows: positions whose heads are all read before the next positions */
    ST_QUERY_BLOCK = 256,   /* attention of a batch: queries of a block, unless one row has more */
    ST_SPLIT_TILE = 16,     /* rows and columns of a tile of split floats (two bfloat16 each) */
    ST_SPLIT_CHUNK = 32,    /* elements of split floats summed at a time */
    ST_FEW_ROWS = 4,        /* fewer rows than this run as single rows, not as a batch; in attention, of a conversation */
    ST_FEW_PAIRS = 3,       /* fewer tokens per expert than this run as single rows, not as a batch */
    ST_FEW_COLUMNS = 256,   /* columns of an expert computed at a time for a few rows */
    ST_SOME_COLUMNS = 64,   /* … for more rows that are not a batch for the experts */
    ST_STRETCHES = 32,      /* a row's KV positions are split into at most this many stretches */
    ST_FEW_STRETCHES = 256, /* attention of a few rows: stretches, of all rows, that are computed at a time */
    ST_CONV_CHANNELS = 256, /* channels of a convolution computed at a time */
    ST_DELTA_CHUNK = 64,    /* tokens of the delta rule computed at a time */
};

#endif
