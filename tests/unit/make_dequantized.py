#!/usr/bin/env python3
"""Writes gguf_dequantized.h: stored bytes and the floats that the Python package gguf 0.19.0 makes of them."""
import pathlib

import numpy as np
from gguf import GGMLQuantizationType as Type, dequantize

# f16 bit patterns: ordinary, negative, smallest and largest subnormal, negative subnormal, largest, both zeros.
SCALES = [0x2E66, 0xAE66, 0x0001, 0x03FF, 0x83FF, 0x7BFF, 0x0000, 0x8000]
random = np.random.default_rng(20240711)


def half(bits):
    return np.array([bits], "<u2").view(np.uint8)


def random_bytes(count):
    return random.integers(0, 256, count, dtype=np.uint8)


def q8_0():
    blocks = [np.concatenate([half(s), random_bytes(32)]) for s in SCALES]
    for block in blocks:
        block[2:5] = [0x80, 0x00, 0x7F]
    return np.concatenate(blocks)


def blocks_with_minimum(rest):
    return np.concatenate([np.concatenate([half(s), half(m), random_bytes(rest)])
                           for s, m in zip(SCALES, SCALES[3:] + SCALES[:3])])


def blocks_of_32(rest):
    return np.concatenate([np.concatenate([half(s), random_bytes(rest)]) for s in SCALES])


def f16():
    edges = np.array(SCALES + [0x0400, 0x8400, 0x3C00, 0xBC00, 0xFBFF, 0x3555, 0x0200, 0x8001], "<u2")
    finite = random.integers(0, 0x7C00, 16).astype("<u2") | (random.integers(0, 2, 16) << 15).astype("<u2")
    return np.concatenate([edges, finite]).view(np.uint8)


def bf16():
    edges = np.array([0x0000, 0x8000, 0x0001, 0x807F, 0x0080, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F, 0x4049], "<u2")
    finite = random.integers(0, 0x7F80, 22).astype("<u2") | (random.integers(0, 2, 22) << 15).astype("<u2")
    return np.concatenate([edges, finite]).view(np.uint8)


# Bytes of a block of 256 and where its halves stand.
LARGE = {"q2_k": (84, [80, 82]), "q3_k": (110, [108]), "q4_k": (144, [0, 2]), "q5_k": (176, [0, 2]), "q6_k": (210, [208]),
         "iq4_xs": (136, [0])}
SMALL = {"q4_0": (18, [0]), "q4_1": (20, [0, 2]), "q5_0": (22, [0]), "q5_1": (24, [0, 2]), "q8_0": (34, [0]),
         "iq4_nl": (18, [0])}


def block_of_256(name):
    size, halves = LARGE[name]
    block = random_bytes(size)
    for at, bits in zip(halves, [0xAE66, 0x2B55]):
        block[at:at + 2] = half(bits)
    return block


def floats(data, name):
    return dequantize(data, Type[name.upper()]).astype("<f4").reshape(-1).view(np.uint32)


def many_blocks(name):
    """Sum of bits * (2 i + 1) modulo 2^64 over the floats of 400 blocks of bytes from a linear congruential generator."""
    size, halves = (LARGE | SMALL)[name]
    state, data = 1, bytearray()
    for _ in range(400 * size):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        data.append(state >> 56)
    for at in halves:  # no infinities
        for block in range(400):
            data[block * size + at + 1] &= 0xBF
    bits = floats(np.frombuffer(bytes(data), np.uint8), name)
    return sum(int(v) * (2 * i + 1) for i, v in enumerate(bits)) % 2**64


def rows(values, form, each):
    return ",\n".join("    " + ", ".join(form % v for v in values[i:i + each]) for i in range(0, len(values), each))


out = ["/* Made by make_dequantized.py: stored bytes, and the bits of the floats that the Python package gguf makes of them. */",
       "#ifndef DW_TESTS_GGUF_DEQUANTIZED_H", "#define DW_TESTS_GGUF_DEQUANTIZED_H", "", "#include <stdint.h>", "",
       '#include "kernels/types.h"']
for name, data in (("q8_0", q8_0()), ("q4_1", blocks_with_minimum(16)), ("f16", f16()), ("bf16", bf16()),
                   ("q4_0", blocks_of_32(16)), ("q5_0", blocks_of_32(20)), ("q5_1", blocks_with_minimum(20)),
                   ("iq4_nl", blocks_of_32(16)), *((large, block_of_256(large)) for large in LARGE)):
    out += ["", "static const uint8_t %s_bytes[] = {" % name, rows(data, "0x%02x", 20), "};",
            "static const uint32_t %s_floats[] = {" % name, rows(floats(data, name), "0x%08x", 10), "};"]
out += ["", "/* Bytes of a block, places of its halves (the last one again where there is one), checksum of many blocks. */",
        "static const struct {", "    dw_type type;", "    int bytes, d, m;", "    uint64_t sum;", "} many_blocks[] = {"]
out += ["    {DW_%s, %d, %d, %d, 0x%016x}," % (name.upper(), size, halves[0], halves[-1], many_blocks(name))
        for name, (size, halves) in (SMALL | LARGE).items()] + ["};"]
pathlib.Path(__file__).with_name("gguf_dequantized.h").write_text("\n".join(out + ["", "#endif", ""]))
