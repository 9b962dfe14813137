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


def q4_1():
    return np.concatenate([np.concatenate([half(s), half(m), random_bytes(16)])
                           for s, m in zip(SCALES, SCALES[3:] + SCALES[:3])])


def f16():
    edges = np.array(SCALES + [0x0400, 0x8400, 0x3C00, 0xBC00, 0xFBFF, 0x3555, 0x0200, 0x8001], "<u2")
    finite = random.integers(0, 0x7C00, 16).astype("<u2") | (random.integers(0, 2, 16) << 15).astype("<u2")
    return np.concatenate([edges, finite]).view(np.uint8)


def bf16():
    edges = np.array([0x0000, 0x8000, 0x0001, 0x807F, 0x0080, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F, 0x4049], "<u2")
    finite = random.integers(0, 0x7F80, 22).astype("<u2") | (random.integers(0, 2, 22) << 15).astype("<u2")
    return np.concatenate([edges, finite]).view(np.uint8)


def rows(values, form, each):
    return ",\n".join("    " + ", ".join(form % v for v in values[i:i + each]) for i in range(0, len(values), each))


out = ["/* Made by make_dequantized.py: stored bytes, and the bits of the floats that the Python package gguf makes of them. */",
       "#ifndef DW_TESTS_GGUF_DEQUANTIZED_H", "#define DW_TESTS_GGUF_DEQUANTIZED_H", "", "#include <stdint.h>"]
for name, data in ("q8_0", q8_0()), ("q4_1", q4_1()), ("f16", f16()), ("bf16", bf16()):
    bits = dequantize(data, Type[name.upper()]).astype("<f4").reshape(-1).view(np.uint32)
    out += ["", "static const uint8_t %s_bytes[] = {" % name, rows(data, "0x%02x", 20), "};",
            "static const uint32_t %s_floats[] = {" % name, rows(bits, "0x%08x", 10), "};"]
pathlib.Path(__file__).with_name("gguf_dequantized.h").write_text("\n".join(out + ["", "#endif", ""]))
