#!/usr/bin/env python3
"""Writes src/quant/tables.h: the codebooks of the IQ and FP4 tensor types, as data.

Run once per change of the format, with the PyPI package `gguf` installed (0.19); the output is checked in:
    tools/quant-tables.py > src/quant/tables.h
"""
import sys

from gguf import quants

GRIDS = [
    # name, type, comment
    ("iq2_xxs", quants.IQ2_XXS, "8 magnitudes per entry"),
    ("iq2_xs", quants.IQ2_XS, "8 magnitudes per entry"),
    ("iq2_s", quants.IQ2_S, "8 magnitudes per entry"),
    ("iq3_xxs", quants.IQ3_XXS, "4 magnitudes per entry"),
    ("iq3_s", quants.IQ3_S, "4 magnitudes per entry"),
    ("iq1", quants.IQ1_S, "8 values of -1, 0 and 1 per entry (IQ1_S and IQ1_M), two's complement"),
]

HEAD = """\
/* The codebooks of the IQ and FP4 tensor types, as data. Written by tools/quant-tables.py: do not edit.
 *
 * Usable from C and CUDA: define ST_QUANT_TABLE first to place them elsewhere, e.g. `static __device__ const`.
 * A grid entry is one word; its values are the bytes of that word, lowest first. */
#ifndef ST_QUANT_TABLES_H
#define ST_QUANT_TABLES_H

#include <stdint.h>

#ifndef ST_QUANT_TABLE
#define ST_QUANT_TABLE static const
#endif
"""


def rows(items, per_line):
    return "".join("    " + " ".join(items[i:i + per_line]) + "\n" for i in range(0, len(items), per_line))


def grid(name, quant, comment):
    quant.init_grid()
    values = quant.grid.reshape(quant.grid_shape).astype(int)
    width = values.shape[1]
    words = [sum((int(v) & 0xFF) << (8 * i) for i, v in enumerate(row)) for row in values]
    body = rows([f"0x{w:0{2 * width}x}," for w in words], 5 if width == 8 else 9)
    return (f"\n/* {comment}. */\nST_QUANT_TABLE uint{8 * width}_t st_{name}_grid[{len(words)}] = {{\n{body}}};\n")


def values(name, items, c_type, per_line, comment):
    body = rows([f"{v}," for v in items], per_line)
    return f"\n/* {comment}. */\nST_QUANT_TABLE {c_type} st_{name}[{len(items)}] = {{\n{body}}};\n"


def main():
    out = HEAD
    for row in GRIDS:
        out += grid(*row)
    out += values("iq_signs", [f"0x{v:02x}" for v in quants.IQ2_XXS.ksigns], "uint8_t", 16,
                  "Seven sign bits to eight: the last makes the number of minus signs even")
    out += values("iq4_values", quants.IQ4_NL.kvalues, "int8_t", 16, "IQ4_NL and IQ4_XS: the 16 levels")
    out += values("fp4_values", quants.MXFP4.kvalues, "int8_t", 16, "MXFP4 and NVFP4: E2M1, doubled")
    sys.stdout.write(out + "\n#endif\n")


main()
