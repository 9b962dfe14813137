/* linear() and dequantize() of any type with AVX-512: the sixteen lanes of the definition are one register. */
#ifndef DW_KERNELS_LINEAR_AVX512_H
#define DW_KERNELS_LINEAR_AVX512_H

#include <immintrin.h>

#include "kernels/halves_avx512.h"
#include "kernels/kernels.h"
#include "kernels/linear_kernels.h"
#include "kernels/widen_avx512.h"

enum {
    OUTPUTS = 8,        /* most outputs of linear() in flight */
    STEP_REGISTERS = 8, /* most registers of weights widened together */
    PREFETCH = 1024,    /* bytes of weights fetched ahead, by linear() behind all outputs in flight */
    NEAR = 8192         /* up to so many bytes of outputs in flight, the next ones go to the L1 cache, else to L2 */
};

/* Registers that widen() fills at a time. */
INLINE int64_t step_registers(dw_type type)
{
    if (type == DW_Q2_K || type == DW_Q3_K || type == DW_Q6_K) return 8;
    return type == DW_Q4_K || type == DW_Q5_K ? 4 : 2;
}

/* Numbers i..i+15 of a row of a type without blocks, +0 where mask has no bit. */
INLINE __m512 widen_some(dw_type type, const void *row, int64_t i, __mmask16 mask)
{
    if (type == DW_F32) return _mm512_maskz_loadu_ps(mask, (const float *)row + i);
    const __m256i narrow = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)row + i);
    if (type == DW_F16) return _mm512_cvtph_ps(narrow);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}

INLINE __mmask16 lanes_below(int64_t count)
{
    return (__mmask16)(count >= 16 ? 0xffff : (1 << count) - 1);
}

/* Adds the products of piece b to the lanes of outs x rows dot products; w: the first row of weights. */
INLINE void add_piece(__m512 sum[OUTPUTS][DW_LINEAR_ROWS], dw_type type, int outs, int rows, const char *w, int64_t w_bytes,
                      const float *x, int64_t x_stride, int64_t b)
{
    const int64_t registers = step_registers(type);
    const int64_t steps = dw_piece_numbers(type) / (DW_LANES * registers);
    const char *piece = w + b * dw_piece_bytes(type);
    float scale[OUTPUTS * MAX_SCALES];
    if (dw_has_scales(type)) {
        widen_scales(scale, type, outs, piece, w_bytes);
        __asm__("" : "+m"(scale)); /* keeps them in memory */
    }
#pragma GCC unroll 4
    for (int64_t step = 0; step < steps; step++) {
        const float *v = x + b * dw_piece_numbers(type) + step * registers * DW_LANES;
#pragma GCC unroll 8
        for (int64_t o = 0; o < outs; o++) {
            __m512 weight[STEP_REGISTERS];
            widen(weight, type, piece + o * w_bytes, step, scale + o * scale_floats(type));
#pragma GCC unroll 4
            for (int64_t r = 0; r < rows; r++) {
#pragma GCC unroll 8
                for (int64_t i = 0; i < registers; i++) {
                    sum[o][r] = _mm512_fmadd_ps(weight[i], _mm512_loadu_ps(v + r * x_stride + 16 * i), sum[o][r]);
                }
            }
        }
    }
}

/* Fetches the share of piece b of the weights behind these outs rows: they follow in memory and come next. Too many of them
   would drive x out of the L1 cache before they are read. */
INLINE void prefetch(dw_type type, int outs, const char *w, int64_t w_bytes, int64_t b)
{
    const int64_t share = outs * dw_piece_bytes(type);
    const char *next = w + outs * w_bytes + PREFETCH + b * share;
    if (outs * w_bytes <= NEAR) {
#pragma GCC unroll 32
        for (int64_t i = 0; i < share; i += 64) _mm_prefetch(next + i, _MM_HINT_T0);
    } else {
#pragma GCC unroll 32
        for (int64_t i = 0; i < share; i += 64) _mm_prefetch(next + i, _MM_HINT_T1);
    }
}

/* The end of rows that are not whole pieces: numbers from i on. */
INLINE void add_tail(__m512 sum[OUTPUTS][DW_LINEAR_ROWS], dw_type type, int outs, int rows, const char *w, int64_t w_bytes,
                     const float *x, int64_t x_stride, int64_t i, int64_t inputs)
{
    for (; i < inputs; i += 16) {
#pragma GCC unroll 8
        for (int64_t o = 0; o < outs; o++) {
            const __m512 weight = widen_some(type, w + o * w_bytes, i, lanes_below(inputs - i));
#pragma GCC unroll 4
            for (int64_t r = 0; r < rows; r++) {
                sum[o][r] = _mm512_fmadd_ps(weight, _mm512_loadu_ps(x + r * x_stride + i), sum[o][r]);
            }
        }
    }
}

/* y[r * y_stride + o] of outs (1, 4 or 8) outputs from w on; the loops over o and r unroll into registers. */
INLINE void linear_some(dw_type type, int outs, int rows, float *y, int64_t y_stride, const char *w, int64_t w_bytes,
                        const float *x, int64_t x_stride, int64_t inputs)
{
    const int64_t numbers = dw_piece_numbers(type);
    __m512 sum[OUTPUTS][DW_LINEAR_ROWS];
#pragma GCC unroll 8
    for (int64_t o = 0; o < outs; o++) {
#pragma GCC unroll 4
        for (int64_t r = 0; r < rows; r++) sum[o][r] = _mm512_setzero_ps();
    }
    for (int64_t b = 0; b < inputs / numbers; b++) {
        prefetch(type, outs, w, w_bytes, b);
        add_piece(sum, type, outs, rows, w, w_bytes, x, x_stride, b);
    }
    if (!dw_has_scales(type)) {
        add_tail(sum, type, outs, rows, w, w_bytes, x, x_stride, inputs / numbers * numbers, inputs);
    }
#pragma GCC unroll 4
    for (int64_t r = 0; r < rows; r++) {
        if (outs == 1) {
            _mm_store_ss(y + r * y_stride, add_in_halves(sum[0][r], sum[0][r], sum[0][r], sum[0][r]));
            continue;
        }
#pragma GCC unroll 2
        for (int64_t o = 0; o < outs; o += 4) {
            _mm_storeu_ps(y + r * y_stride + o, add_in_halves(sum[o][r], sum[o + 1][r], sum[o + 2][r], sum[o + 3][r]));
        }
    }
}

/* outs outputs at a time, then one at a time. */
INLINE void linear_rows(dw_type type, int outs, int rows, float *y, int64_t y_stride, const char *w, int64_t outputs,
                        const float *x, int64_t x_stride, int64_t inputs)
{
    const int64_t w_bytes = dw_row_bytes(type, inputs);
    int64_t o = 0;
    for (; o + outs <= outputs; o += outs) {
        linear_some(type, outs, rows, y + o, y_stride, w + o * w_bytes, w_bytes, x, x_stride, inputs);
    }
    for (; o < outputs; o++) linear_some(type, 1, rows, y + o, y_stride, w + o * w_bytes, w_bytes, x, x_stride, inputs);
}

INLINE void linear(dw_type type, float *y, int64_t y_stride, const void *w, int64_t outputs, const float *x, int64_t x_stride,
                   int rows, int64_t inputs)
{
    switch (rows) {
    case 1: linear_rows(type, 8, 1, y, y_stride, w, outputs, x, x_stride, inputs); break;
    case 2: linear_rows(type, 4, 2, y, y_stride, w, outputs, x, x_stride, inputs); break;
    case 3: linear_rows(type, 4, 3, y, y_stride, w, outputs, x, x_stride, inputs); break;
    default: linear_rows(type, 4, 4, y, y_stride, w, outputs, x, x_stride, inputs); break;
    }
}

INLINE void dequantize(float *out, dw_type type, const char *row, int64_t inputs)
{
    const int64_t numbers = dw_piece_numbers(type);
    const int64_t registers = step_registers(type);
    const int64_t steps = numbers / (DW_LANES * registers);
    for (int64_t b = 0; b < inputs / numbers; b++) {
        const char *piece = row + b * dw_piece_bytes(type);
        float scale[MAX_SCALES];
        _mm_prefetch(piece + PREFETCH, _MM_HINT_T0);
        if (dw_has_scales(type)) widen_scales(scale, type, 1, piece, 0);
#pragma GCC unroll 4
        for (int64_t step = 0; step < steps; step++) {
            __m512 w[STEP_REGISTERS];
            widen(w, type, piece, step, scale);
            for (int64_t i = 0; i < registers; i++) _mm512_storeu_ps(out + b * numbers + 16 * (step * registers + i), w[i]);
        }
    }
    for (int64_t i = inputs / numbers * numbers; i < inputs && !dw_has_scales(type); i += 16) {
        _mm512_storeu_ps(out + i, widen_some(type, row, i, lanes_below(inputs - i)));
    }
}

#define DEFINE_SLOTS(TYPE, type, isa)                                                                                          \
    void dw_linear_##type##_##isa(float *y, int64_t y_stride, const void *w, int64_t outputs, const float *x,                  \
                                  int64_t x_stride, int rows, int64_t inputs)                                                  \
    {                                                                                                                          \
        linear(DW_##TYPE, y, y_stride, w, outputs, x, x_stride, rows, inputs);                                                 \
    }                                                                                                                          \
    void dw_dequantize_##type##_##isa(float *out, const void *row, int64_t inputs)                                             \
    {                                                                                                                          \
        dequantize(out, DW_##TYPE, row, inputs);                                                                               \
    }

#endif
