/* AVX-512 forms. Scores run SIMD across the 64 keys of a block (four registers), values across channels; both keep the order of
   additions of the definition, so that a row's bits do not depend on how many rows share the pass over K or V. */
#include <immintrin.h>
#include <math.h>
#include <stddef.h>

#include "kernels/attention_kernels.h"
#include "kernels/exp2_avx512.h"
#include "kernels/halves_avx512.h"
#include "kernels/kernels.h"

#define INLINE static inline __attribute__((always_inline))

enum { ROWS = 6, WIDTH = 4 }; /* ROWS x WIDTH accumulators and WIDTH registers of K or V */

/* Sixteen numbers from number i on. */
INLINE __m512 load16(const void *array, int64_t i, dw_type type)
{
    if (type == DW_F32) return _mm512_loadu_ps((const float *)array + i);
    const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)((const uint16_t *)array + i));
    if (type == DW_F16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

INLINE void scores_rows(float *out, const float *q, int64_t q_stride, const void *k, int d, dw_type type, const int rows)
{
    __m512 acc[ROWS][WIDTH];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < WIDTH; j++) acc[i][j] = _mm512_setzero_ps();
    }
    for (int c = 0; c < d; c++) {
        __m512 key[WIDTH];
#pragma GCC unroll 4
        for (int64_t j = 0; j < WIDTH; j++) key[j] = load16(k, (int64_t)c * DW_BLOCK + 16 * j, type);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            const __m512 x = _mm512_set1_ps(q[i * q_stride + c]);
#pragma GCC unroll 4
            for (int j = 0; j < WIDTH; j++) acc[i][j] = _mm512_fmadd_ps(x, key[j], acc[i][j]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int64_t j = 0; j < WIDTH; j++) _mm512_storeu_ps(out + (int64_t)i * DW_BLOCK + 16 * j, acc[i][j]);
    }
}

INLINE void scores(float *out, const float *q, int64_t q_stride, int n, const void *k, int d, dw_type type)
{
    for (; n >= ROWS; n -= ROWS, q += ROWS * q_stride, out += (int64_t)ROWS * DW_BLOCK)
        scores_rows(out, q, q_stride, k, d, type, ROWS);
    switch (n) {
    case 5: scores_rows(out, q, q_stride, k, d, type, 5); break;
    case 4: scores_rows(out, q, q_stride, k, d, type, 4); break;
    case 3: scores_rows(out, q, q_stride, k, d, type, 3); break;
    case 2: scores_rows(out, q, q_stride, k, d, type, 2); break;
    case 1: scores_rows(out, q, q_stride, k, d, type, 1); break;
    default: break;
    }
}

float dw_weights_avx512(float *w, const float *s, float scale, uint64_t mask, int32_t *exponent, float *sum, float *maxima)
{
    const __m512 lowest = _mm512_set1_ps(-INFINITY);
    __m512 x[WIDTH];
    __m512 best = lowest;
    for (int64_t j = 0; j < WIDTH; j++) {
        x[j] = _mm512_mask_loadu_ps(lowest, (__mmask16)(mask >> 16 * j), s + 16 * j);
        best = _mm512_max_ps(best, x[j]);
    }
    _mm512_storeu_ps(maxima, best);
    const float top = _mm512_reduce_max_ps(best);
    const float e = ceilf(top * scale);
    const __m512 minus_e = _mm512_set1_ps(-e);
    __m512 total = _mm512_setzero_ps();
    *exponent = fabsf(e) <= (float)DW_MAX_SCORE_BITS ? (int32_t)e : 0;
    for (int64_t j = 0; j < WIDTH; j++) {
        const __m512 bits = _mm512_fmadd_ps(x[j], _mm512_set1_ps(scale), minus_e);
        const __m512 weight = _mm512_maskz_mov_ps((__mmask16)(mask >> 16 * j), dw_exp2_16(bits));
        _mm512_storeu_ps(w + 16 * j, weight);
        total = _mm512_add_ps(total, weight);
    }
    *sum = sum_halves(total);
    return top;
}

INLINE void values_rows(float *out, const float *w, const void *v, int d, int c, int first, int last, dw_type type,
                        const int rows, const int width)
{
    __m512 acc[ROWS][WIDTH];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int m = 0; m < width; m++) acc[i][m] = _mm512_setzero_ps();
    }
    for (int j = first; j <= last; j++) {
        __m512 value[WIDTH];
#pragma GCC unroll 4
        for (int64_t m = 0; m < width; m++) value[m] = load16(v, (int64_t)j * d + c + 16 * m, type);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            const __m512 x = _mm512_set1_ps(w[i * DW_BLOCK + j]);
#pragma GCC unroll 4
            for (int m = 0; m < width; m++) acc[i][m] = _mm512_fmadd_ps(x, value[m], acc[i][m]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int64_t m = 0; m < width; m++) _mm512_storeu_ps(out + (int64_t)i * d + c + 16 * m, acc[i][m]);
    }
}

/* All channels of up to ROWS rows: 64 at a time, then 16, then one. */
INLINE void values_panel(float *out, const float *w, const void *v, int d, int first, int last, dw_type type, const int rows)
{
    int c = 0;
    for (; c + 16 * WIDTH <= d; c += 16 * WIDTH) values_rows(out, w, v, d, c, first, last, type, rows, WIDTH);
    for (; c + 16 <= d; c += 16) values_rows(out, w, v, d, c, first, last, type, rows, 1);
    for (; c < d; c++) {
        for (int i = 0; i < rows; i++) {
            float o = 0.0f;
            for (int j = first; j <= last; j++) o = fmaf(w[i * DW_BLOCK + j], dw_cache_number(v, (int64_t)j * d + c, type), o);
            out[(int64_t)i * d + c] = o;
        }
    }
}

INLINE void values(float *out, const float *w, int n, const void *v, int d, int first, int last, dw_type type)
{
    for (; n >= ROWS; n -= ROWS, w += (int64_t)ROWS * DW_BLOCK, out += (int64_t)ROWS * d)
        values_panel(out, w, v, d, first, last, type, ROWS);
    switch (n) {
    case 5: values_panel(out, w, v, d, first, last, type, 5); break;
    case 4: values_panel(out, w, v, d, first, last, type, 4); break;
    case 3: values_panel(out, w, v, d, first, last, type, 3); break;
    case 2: values_panel(out, w, v, d, first, last, type, 2); break;
    case 1: values_panel(out, w, v, d, first, last, type, 1); break;
    default: break;
    }
}

DW_DEFINE_ATTENTION_SLOTS(avx512)

void dw_add_limbs_avx512(int64_t *low, int64_t *high, const float *o, int64_t n, float scale, int shift)
{
    const __m512i low_bits = _mm512_set1_epi64(((int64_t)1 << 28) - 1);
    const __m128i count = _mm_cvtsi32_si128(shift);
    for (int64_t c = 0; c < n; c += 8) {
        const __mmask8 m = (__mmask8)(n - c >= 8 ? 0xFF : (1u << (n - c)) - 1u);
        const __m256 x = _mm256_mul_ps(_mm256_maskz_loadu_ps(m, o + c), _mm256_set1_ps(scale));
        const __m512i z = _mm512_sll_epi64(_mm512_cvtps_epi64(x), count); /* rounds to nearest even, like rintf */
        if (low != NULL) {
            const __m512i sum = _mm512_add_epi64(_mm512_maskz_loadu_epi64(m, low + c), _mm512_and_si512(z, low_bits));
            _mm512_mask_storeu_epi64(low + c, m, sum);
        }
        const __m512i sum = _mm512_add_epi64(_mm512_maskz_loadu_epi64(m, high + c), _mm512_srai_epi64(z, 28));
        _mm512_mask_storeu_epi64(high + c, m, sum);
    }
}
