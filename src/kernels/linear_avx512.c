/* Linear layers with AVX-512: the sixteen lanes of the definition are one register. */
#include <immintrin.h>

#include "kernels/kernels.h"
#include "kernels/linear_kernels.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    BLOCK = 32,       /* weights widened together: two registers */
    OUTPUTS = 8,      /* most outputs of linear() in flight */
    PREFETCH = 1024,  /* bytes of weights fetched ahead, by linear() behind all outputs in flight */
    TILE_OUTPUTS = 4, /* accumulators of a tile: TILE_OUTPUTS * TILE_ROWS of the 32 registers */
    TILE_ROWS = 6
};

/* scale = d and m of a block of Q4_1, d of one of Q8_0. In memory, because a broadcasting load is cheaper than a shuffle.
   The eight bytes read lie inside the block. */
INLINE void widen_scale(float scale[2], const char *block)
{
    _mm_storel_pi((__m64 *)scale, _mm_cvtph_ps(_mm_loadu_si64(block)));
}

/* w[0], w[1] = the 32 numbers of a block; scale as above (not used by the types without scales). */
INLINE void widen(__m512 w[2], dw_type type, const char *block, const float scale[2])
{
    const __m512 sixteen = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    if (type == DW_Q4_1) {
        /* A table of the sixteen weights; a lookup takes the low four bits of an index. */
        const __m512 table = _mm512_fmadd_ps(_mm512_set1_ps(scale[0]), sixteen, _mm512_set1_ps(scale[1]));
        const __m512i q = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)((const dw_q4_1 *)block)->q));
        w[0] = _mm512_permutexvar_ps(q, table);
        w[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(q, 4), table);
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (type == DW_F32) {
            w[i] = _mm512_loadu_ps((const float *)block + 16 * i);
        } else if (type == DW_Q8_0) {
            const __m128i q = _mm_loadu_si128((const __m128i *)(((const dw_q8_0 *)block)->q + 16 * i));
            w[i] = _mm512_mul_ps(_mm512_set1_ps(scale[0]), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)));
        } else {
            const __m256i narrow = _mm256_loadu_si256((const __m256i *)block + i);
            w[i] = type == DW_F16 ? _mm512_cvtph_ps(narrow)
                                  : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
        }
    }
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

/* Four dot products from their lanes, added in halves. */
INLINE __m128 add_in_halves(__m512 a, __m512 b, __m512 c, __m512 d)
{
    /* lanes 0-7 of two in one register, then lanes 0-3 of four, then 0-1 of each in its quarter */
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    const __m512 four = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    const __m512 two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x0e));
    const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0x01));
    const __m512i quarters = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(quarters, one));
}

/* Adds the products of block b to the lanes of outs x rows dot products; w: the first row of weights. */
INLINE void add_block(__m512 sum[OUTPUTS][DW_LINEAR_ROWS], dw_type type, int outs, int rows, const char *w, int64_t w_bytes,
                      const float *x, int64_t x_stride, int64_t b)
{
    __m512 v[DW_LINEAR_ROWS][2];
    float scale[OUTPUTS][2];
    const char *block = w + b * dw_piece_bytes(type);
    if (dw_has_scales(type)) {
#pragma GCC unroll 8
        for (int o = 0; o < outs; o++) widen_scale(scale[o], block + o * w_bytes);
        __asm__("" : "+m"(scale)); /* keeps them in memory */
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        v[r][0] = _mm512_loadu_ps(x + r * x_stride + b * BLOCK);
        v[r][1] = _mm512_loadu_ps(x + r * x_stride + b * BLOCK + 16);
    }
#pragma GCC unroll 8
    for (int o = 0; o < outs; o++) {
        __m512 weight[2];
        widen(weight, type, block + o * w_bytes, scale[o]);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            sum[o][r] = _mm512_fmadd_ps(weight[0], v[r][0], sum[o][r]);
            sum[o][r] = _mm512_fmadd_ps(weight[1], v[r][1], sum[o][r]);
        }
    }
}

/* Fetches the share of block b of the weights behind these outs rows: they follow in memory and come next. */
INLINE void prefetch(dw_type type, int outs, const char *w, int64_t w_bytes, int64_t b)
{
    const int64_t share = outs * dw_piece_bytes(type);
#pragma GCC unroll 16
    for (int64_t i = 0; i < share; i += 64) _mm_prefetch(w + outs * w_bytes + PREFETCH + b * share + i, _MM_HINT_T0);
}

/* The end of rows that are not whole blocks: numbers from i on. */
INLINE void add_tail(__m512 sum[OUTPUTS][DW_LINEAR_ROWS], dw_type type, int outs, int rows, const char *w, int64_t w_bytes,
                     const float *x, int64_t x_stride, int64_t i, int64_t inputs)
{
    for (; i < inputs; i += 16) {
#pragma GCC unroll 8
        for (int o = 0; o < outs; o++) {
            const __m512 weight = widen_some(type, w + o * w_bytes, i, lanes_below(inputs - i));
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                sum[o][r] = _mm512_fmadd_ps(weight, _mm512_loadu_ps(x + r * x_stride + i), sum[o][r]);
            }
        }
    }
}

/* y[r * y_stride + o] of outs (1, 4 or 8) outputs from w on; the loops over o and r unroll into registers. */
INLINE void linear_some(dw_type type, int outs, int rows, float *y, int64_t y_stride, const char *w, int64_t w_bytes,
                        const float *x, int64_t x_stride, int64_t inputs)
{
    __m512 sum[OUTPUTS][DW_LINEAR_ROWS];
#pragma GCC unroll 8
    for (int o = 0; o < outs; o++) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) sum[o][r] = _mm512_setzero_ps();
    }
    for (int64_t b = 0; b < inputs / BLOCK; b++) {
        prefetch(type, outs, w, w_bytes, b);
        add_block(sum, type, outs, rows, w, w_bytes, x, x_stride, b);
    }
    if (!dw_has_scales(type)) {
        add_tail(sum, type, outs, rows, w, w_bytes, x, x_stride, inputs / BLOCK * BLOCK, inputs);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        if (outs == 1) {
            _mm_store_ss(y + r * y_stride, add_in_halves(sum[0][r], sum[0][r], sum[0][r], sum[0][r]));
            continue;
        }
#pragma GCC unroll 2
        for (int o = 0; o < outs; o += 4) {
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
    for (int64_t b = 0; b < inputs / BLOCK; b++) {
        const char *block = row + b * dw_piece_bytes(type);
        float scale[2] = {0};
        __m512 w[2];
        _mm_prefetch(block + PREFETCH, _MM_HINT_T0);
        if (dw_has_scales(type)) widen_scale(scale, block);
        widen(w, type, block, scale);
        _mm512_storeu_ps(out + b * BLOCK, w[0]);
        _mm512_storeu_ps(out + b * BLOCK + 16, w[1]);
    }
    for (int64_t i = inputs / BLOCK * BLOCK; i < inputs && !dw_has_scales(type); i += 16) {
        _mm512_storeu_ps(out + i, widen_some(type, row, i, lanes_below(inputs - i)));
    }
}

#define DEFINE_SLOTS(TYPE, type)                                                                                               \
    void dw_linear_##type##_avx512(float *y, int64_t y_stride, const void *w, int64_t outputs, const float *x,                 \
                                   int64_t x_stride, int rows, int64_t inputs)                                                 \
    {                                                                                                                          \
        linear(TYPE, y, y_stride, w, outputs, x, x_stride, rows, inputs);                                                      \
    }                                                                                                                          \
    void dw_dequantize_##type##_avx512(float *out, const void *row, int64_t inputs)                                            \
    {                                                                                                                          \
        dequantize(out, TYPE, row, inputs);                                                                                    \
    }

DEFINE_SLOTS(DW_F32, f32)
DEFINE_SLOTS(DW_F16, f16)
DEFINE_SLOTS(DW_BF16, bf16)
DEFINE_SLOTS(DW_Q8_0, q8_0)
DEFINE_SLOTS(DW_Q4_1, q4_1)

/* outs (1 or TILE_OUTPUTS) x rows (1..TILE_ROWS) dot products. */
INLINE void tile(int outs, int rows, float *y, int64_t y_stride, const float *w, int64_t w_stride, const float *x,
                 int64_t x_stride, int64_t padded)
{
    __m512 sum[TILE_ROWS][TILE_OUTPUTS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int o = 0; o < outs; o++) sum[r][o] = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < padded; i += 16) {
        __m512 weight[TILE_OUTPUTS];
#pragma GCC unroll 4
        for (int o = 0; o < outs; o++) weight[o] = _mm512_loadu_ps(w + o * w_stride + i);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            const __m512 v = _mm512_loadu_ps(x + r * x_stride + i);
#pragma GCC unroll 4
            for (int o = 0; o < outs; o++) sum[r][o] = _mm512_fmadd_ps(weight[o], v, sum[r][o]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        if (outs == TILE_OUTPUTS) {
            _mm_storeu_ps(y + r * y_stride, add_in_halves(sum[r][0], sum[r][1], sum[r][2], sum[r][3]));
        } else {
            _mm_store_ss(y + r * y_stride, add_in_halves(sum[r][0], sum[r][0], sum[r][0], sum[r][0]));
        }
    }
}

INLINE void tile_rows(int rows, float *y, int64_t y_stride, const float *w, int64_t w_stride, int64_t outputs, const float *x,
                      int64_t x_stride, int64_t padded)
{
    int64_t o = 0;
    for (; o + TILE_OUTPUTS <= outputs; o += TILE_OUTPUTS) {
        tile(TILE_OUTPUTS, rows, y + o, y_stride, w + o * w_stride, w_stride, x, x_stride, padded);
    }
    for (; o < outputs; o++) tile(1, rows, y + o, y_stride, w + o * w_stride, w_stride, x, x_stride, padded);
}

void dw_linear_tile_avx512(float *y, int64_t y_stride, const float *w, int64_t w_stride, int64_t outputs, const float *x,
                           int64_t x_stride, int64_t rows, int64_t inputs)
{
    const int64_t padded = dw_padded(inputs);
    for (; rows >= TILE_ROWS; rows -= TILE_ROWS) {
        tile_rows(TILE_ROWS, y, y_stride, w, w_stride, outputs, x, x_stride, padded);
        y += TILE_ROWS * y_stride;
        x += TILE_ROWS * x_stride;
    }
    switch (rows) {
    case 1: tile_rows(1, y, y_stride, w, w_stride, outputs, x, x_stride, padded); break;
    case 2: tile_rows(2, y, y_stride, w, w_stride, outputs, x, x_stride, padded); break;
    case 3: tile_rows(3, y, y_stride, w, w_stride, outputs, x, x_stride, padded); break;
    case 4: tile_rows(4, y, y_stride, w, w_stride, outputs, x, x_stride, padded); break;
    case 5: tile_rows(5, y, y_stride, w, w_stride, outputs, x, x_stride, padded); break;
    default: break;
    }
}
