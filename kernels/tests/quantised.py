#!/usr/bin/env python3
"""Writes kernels/tests/quantised.txt: blocks of every format, and what the published `gguf` package makes of them.

    pip install gguf==0.19.0 && kernels/tests/quantised.py
"""

import struct
from pathlib import Path

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

FORMATS = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4".split()
# Where a block's factors of 16 bits stand.
FACTORS = {"Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "Q6_K": [208], "MXFP4": []}
BLOCKS = 4

draws = numpy.random.default_rng(43)
lines = []
for name in FORMATS:
    kind = GGMLQuantizationType[name]
    _, size = GGML_QUANT_SIZES[kind]
    blocks = draws.integers(0, 256, (BLOCKS, size), dtype=numpy.uint8)
    for at in FACTORS.get(name, [0]):
        for block in blocks:
            block[at:at + 2] = numpy.frombuffer(struct.pack("<e", float(draws.normal() * 0.01)), dtype=numpy.uint8)
    if name == "MXFP4":
        blocks[:, 0] = [0, 1, 2, 120]
    values = dequantize(blocks, kind).astype(numpy.float32).reshape(-1)
    lines.append(f"{name} {blocks.tobytes().hex()} {values.astype('<f4').tobytes().hex()}\n")
Path(__file__).with_name("quantised.txt").write_text("".join(lines))
