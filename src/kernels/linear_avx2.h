/* linear() and dequantize() of any type with AVX2, FMA and F16C: the sixteen lanes of the definition are two registers. */
#ifndef DW_KERNELS_LINEAR_AVX2_H
#define DW_KERNELS_LINEAR_AVX2_H

#include <immintrin.h>
#include <string.h>

#include "kernels/halves_avx2.h"
#include "kernels/kernels.h"
#include "kernels/linear_kernels.h"
#include "kernels/widen_avx2.h"

enum {
    OUTPUTS = 4,     /* most outputs of linear() in flight */
    PREFETCH = 1024, /* bytes of weights fetched ahead, by linear() behind all outputs in flight */
    NEAR = 8192      /* up to so many bytes of outputs in flight, the next ones go to the L1 cache, else to L2 */
};

/* The last numbers (less than a piece) of a row of a type without scales, +0 behind them. */
static void widen_tail(float w[PART], dw_type type, const char *block, int64_t numbers)
{
    char whole[4 * PART] = {0};
    memcpy(whole, block, (size_t)(numbers * dw_piece_bytes(type) / PART));
    for (int64_t i = 0; i < PART; i += 8) _mm256_storeu_ps(w + i, load_numbers(type, whole, i));
}

INLINE void add_products(lanes *sum, __m256 low, __m256 high, const float *x)
{
    sum->low = _mm256_fmadd_ps(low, _mm256_loadu_ps(x), sum->low);
    sum->high = _mm256_fmadd_ps(high, _mm256_loadu_ps(x + 8), sum->high);
}

/* Adds the products of piece b to the lanes of outs x rows dot products; w: the first row of weights. */
INLINE void add_piece(lanes sum[OUTPUTS][DW_LINEAR_ROWS], dw_type type, int outs, int rows, const char *w, int64_t w_bytes,
                      const float *x, int64_t x_stride, int64_t b)
{
    const char *piece = w + b * dw_piece_bytes(type);
    float scale[OUTPUTS * MAX_SCALES];
    if (dw_has_scales(type)) {
        widen_scales(scale, type, outs, piece, w_bytes);
        __asm__("" : "+m"(scale)); /* keeps them in memory */
    }
#pragma GCC unroll 8
    for (int64_t part = 0; part < dw_piece_numbers(type) / PART; part++) {
        const float *v = x + b * dw_piece_numbers(type) + part * PART;
#pragma GCC unroll 4
        for (int64_t o = 0; o < outs; o++) {
            __m256 weight[4];
            widen(weight, type, piece + o * w_bytes, part, scale + o * scale_floats(type));
#pragma GCC unroll 4
            for (int64_t r = 0; r < rows; r++) {
                add_products(&sum[o][r], weight[0], weight[1], v + r * x_stride);
                add_products(&sum[o][r], weight[2], weight[3], v + r * x_stride + 16);
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
INLINE void add_tail(lanes sum[OUTPUTS][DW_LINEAR_ROWS], dw_type type, int outs, int rows, const char *w, int64_t w_bytes,
                     const float *x, int64_t x_stride, int64_t i, int64_t inputs)
{
#pragma GCC unroll 4
    for (int64_t o = 0; o < outs; o++) {
        float weight[PART];
        widen_tail(weight, type, w + o * w_bytes + i / PART * dw_piece_bytes(type), inputs - i);
        for (int64_t t = 0; t < inputs - i; t += DW_LANES) {
            const __m256 low = _mm256_loadu_ps(weight + t);
            const __m256 high = _mm256_loadu_ps(weight + t + 8);
#pragma GCC unroll 4
            for (int64_t r = 0; r < rows; r++) add_products(&sum[o][r], low, high, x + r * x_stride + i + t);
        }
    }
}

/* y[r * y_stride + o] of outs (1, 2 or 4) outputs from w on; the loops over o and r unroll into registers. */
INLINE void linear_some(dw_type type, int outs, int rows, float *y, int64_t y_stride, const char *w, int64_t w_bytes,
                        const float *x, int64_t x_stride, int64_t inputs)
{
    const int64_t numbers = dw_piece_numbers(type);
    lanes sum[OUTPUTS][DW_LINEAR_ROWS];
#pragma GCC unroll 4
    for (int64_t o = 0; o < OUTPUTS; o++) {
#pragma GCC unroll 4
        for (int64_t r = 0; r < rows; r++) sum[o][r] = (lanes){_mm256_setzero_ps(), _mm256_setzero_ps()};
    }
    for (int64_t b = 0; b < inputs / numbers; b++) {
        prefetch(type, outs, w, w_bytes, b);
        add_piece(sum, type, outs, rows, w, w_bytes, x, x_stride, b);
    }
    if (!dw_has_scales(type) && inputs % PART != 0) {
        add_tail(sum, type, outs, rows, w, w_bytes, x, x_stride, inputs / PART * PART, inputs);
    }
#pragma GCC unroll 4
    for (int64_t r = 0; r < rows; r++) {
        const __m128 dot = add_in_halves(sum[0][r], sum[1][r], sum[2][r], sum[3][r]);
        if (outs == 4) _mm_storeu_ps(y + r * y_stride, dot);
        if (outs == 2) _mm_storel_pi((__m64 *)(y + r * y_stride), dot);
        if (outs == 1) _mm_store_ss(y + r * y_stride, dot);
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
    case 1: linear_rows(type, 4, 1, y, y_stride, w, outputs, x, x_stride, inputs); break;
    case 2: linear_rows(type, 2, 2, y, y_stride, w, outputs, x, x_stride, inputs); break;
    case 3: linear_rows(type, 2, 3, y, y_stride, w, outputs, x, x_stride, inputs); break;
    default: linear_rows(type, 1, 4, y, y_stride, w, outputs, x, x_stride, inputs); break;
    }
}

INLINE void dequantize(float *out, dw_type type, const char *row, int64_t inputs)
{
    const int64_t numbers = dw_piece_numbers(type);
    const int64_t whole = inputs / numbers * numbers;
    for (int64_t b = 0; b < inputs / numbers; b++) {
        const char *piece = row + b * dw_piece_bytes(type);
        float scale[MAX_SCALES];
        _mm_prefetch(piece + PREFETCH, _MM_HINT_T0);
        if (dw_has_scales(type)) widen_scales(scale, type, 1, piece, 0);
#pragma GCC unroll 8
        for (int64_t part = 0; part < numbers / PART; part++) {
            __m256 w[4];
            widen(w, type, piece, part, scale);
            for (int64_t i = 0; i < 4; i++) _mm256_storeu_ps(out + b * numbers + part * PART + 8 * i, w[i]);
        }
    }
    if (!dw_has_scales(type) && whole < inputs) {
        float tail[PART];
        widen_tail(tail, type, row + whole / PART * dw_piece_bytes(type), inputs - whole);
        memcpy(out + whole, tail, (size_t)(dw_padded(inputs) - whole) * sizeof(float));
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
