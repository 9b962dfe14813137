/* AVX2 forms: as attention_avx512.c with half the width. Scores run across 32 keys at a time, values across 32 channels. */
#include <immintrin.h>
#include <math.h>
#include <stddef.h>

#include "kernels/attention_kernels.h"
#include "kernels/exp2_avx2.h"
#include "kernels/halves_avx2.h"
#include "kernels/kernels.h"

#define INLINE static inline __attribute__((always_inline))

enum { ROWS = 2, WIDTH = 4 }; /* ROWS x WIDTH accumulators, WIDTH registers of K or V, one of q or w: 13 of 16 */

/* Eight numbers from number i on. */
INLINE __m256 load8(const void *array, int64_t i, dw_type type)
{
    if (type == DW_F32) return _mm256_loadu_ps((const float *)array + i);
    const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)array + i));
    if (type == DW_F16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

INLINE void scores_rows(float *out, const float *q, int64_t q_stride, const void *k, int d, int key0, dw_type type,
                        const int rows)
{
    __m256 acc[ROWS][WIDTH];
#pragma GCC unroll 2
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < WIDTH; j++) acc[i][j] = _mm256_setzero_ps();
    }
    for (int c = 0; c < d; c++) {
        __m256 key[WIDTH];
#pragma GCC unroll 4
        for (int64_t j = 0; j < WIDTH; j++) key[j] = load8(k, (int64_t)c * DW_BLOCK + key0 + 8 * j, type);
#pragma GCC unroll 2
        for (int i = 0; i < rows; i++) {
            const __m256 x = _mm256_set1_ps(q[i * q_stride + c]);
#pragma GCC unroll 4
            for (int j = 0; j < WIDTH; j++) acc[i][j] = _mm256_fmadd_ps(x, key[j], acc[i][j]);
        }
    }
#pragma GCC unroll 2
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int64_t j = 0; j < WIDTH; j++) _mm256_storeu_ps(out + (int64_t)i * DW_BLOCK + key0 + 8 * j, acc[i][j]);
    }
}

INLINE void scores(float *out, const float *q, int64_t q_stride, int n, const void *k, int d, dw_type type)
{
    for (; n >= ROWS; n -= ROWS, q += ROWS * q_stride, out += (int64_t)ROWS * DW_BLOCK) {
        for (int key0 = 0; key0 < DW_BLOCK; key0 += 8 * WIDTH) scores_rows(out, q, q_stride, k, d, key0, type, ROWS);
    }
    if (n == 1) {
        for (int key0 = 0; key0 < DW_BLOCK; key0 += 8 * WIDTH) scores_rows(out, q, q_stride, k, d, key0, type, 1);
    }
}

/* All ones in the lanes whose bit (0..7) is set. */
INLINE __m256 expand_mask(uint64_t bits)
{
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32((int)(bits & 0xFF)), lane);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lane));
}

INLINE float largest(__m256 x)
{
    const __m128 a = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 b = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

float dw_weights_avx2(float *w, const float *s, float scale, uint64_t mask, int32_t *exponent, float *sum, float *maxima)
{
    const __m256 lowest = _mm256_set1_ps(-INFINITY);
    __m256 best[2] = {lowest, lowest};
    __m256 total[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t j = 0; j < 8; j++) {
        best[j & 1] = _mm256_max_ps(best[j & 1],
                                    _mm256_blendv_ps(lowest, _mm256_loadu_ps(s + 8 * j), expand_mask(mask >> 8 * j)));
    }
    _mm256_storeu_ps(maxima, best[0]);
    _mm256_storeu_ps(maxima + 8, best[1]);
    const float top = largest(_mm256_max_ps(best[0], best[1]));
    const float e = ceilf(top * scale);
    const __m256 minus_e = _mm256_set1_ps(-e);
    *exponent = fabsf(e) <= (float)DW_MAX_SCORE_BITS ? (int32_t)e : 0;
    for (int64_t j = 0; j < 8; j++) {
        const __m256 bits = _mm256_fmadd_ps(_mm256_loadu_ps(s + 8 * j), _mm256_set1_ps(scale), minus_e);
        const __m256 weight = _mm256_and_ps(dw_exp2_8(bits), expand_mask(mask >> 8 * j));
        _mm256_storeu_ps(w + 8 * j, weight);
        total[j & 1] = _mm256_add_ps(total[j & 1], weight);
    }
    *sum = sum_halves(total[0], total[1]);
    return top;
}

INLINE void values_rows(float *out, const float *w, const void *v, int d, int c, int first, int last, dw_type type,
                        const int rows, const int width)
{
    __m256 acc[ROWS][WIDTH];
#pragma GCC unroll 2
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int m = 0; m < width; m++) acc[i][m] = _mm256_setzero_ps();
    }
    for (int j = first; j <= last; j++) {
        __m256 value[WIDTH];
#pragma GCC unroll 4
        for (int64_t m = 0; m < width; m++) value[m] = load8(v, (int64_t)j * d + c + 8 * m, type);
#pragma GCC unroll 2
        for (int i = 0; i < rows; i++) {
            const __m256 x = _mm256_set1_ps(w[i * DW_BLOCK + j]);
#pragma GCC unroll 4
            for (int m = 0; m < width; m++) acc[i][m] = _mm256_fmadd_ps(x, value[m], acc[i][m]);
        }
    }
#pragma GCC unroll 2
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int64_t m = 0; m < width; m++) _mm256_storeu_ps(out + (int64_t)i * d + c + 8 * m, acc[i][m]);
    }
}

/* All channels of up to ROWS rows: 32 at a time, then 8, then one. */
INLINE void values_panel(float *out, const float *w, const void *v, int d, int first, int last, dw_type type, const int rows)
{
    int c = 0;
    for (; c + 8 * WIDTH <= d; c += 8 * WIDTH) values_rows(out, w, v, d, c, first, last, type, rows, WIDTH);
    for (; c + 8 <= d; c += 8) values_rows(out, w, v, d, c, first, last, type, rows, 1);
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
    if (n == 1) values_panel(out, w, v, d, first, last, type, 1);
}

DW_DEFINE_ATTENTION_SLOTS(avx2)

/* Doubles that hold integers below 2^51 in size, as integers: adding 1.5 * 2^52 puts them into the low bits of the mantissa. */
INLINE __m256i to_int64(__m256d x)
{
    const __m256d magic = _mm256_set1_pd(0x1.8p52);
    return _mm256_sub_epi64(_mm256_castpd_si256(_mm256_add_pd(x, magic)), _mm256_castpd_si256(magic));
}

void dw_add_limbs_avx2(int64_t *low, int64_t *high, const float *o, int64_t n, float scale, int shift)
{
    const __m256i low_bits = _mm256_set1_epi64x(((int64_t)1 << 28) - 1);
    const __m128i count = _mm_cvtsi32_si128(shift);
    int64_t c = 0;
    for (; c + 4 <= n; c += 4) {
        const __m128 x = _mm_mul_ps(_mm_loadu_ps(o + c), _mm_set1_ps(scale));
        const __m128 y = _mm_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m256i z = _mm256_sll_epi64(to_int64(_mm256_cvtps_pd(y)), count);
        const __m256i sign = _mm256_slli_epi64(_mm256_cmpgt_epi64(_mm256_setzero_si256(), z), 36);
        const __m256i upper = _mm256_or_si256(_mm256_srli_epi64(z, 28), sign); /* z >> 28 with the sign kept */
        __m256i *h = (__m256i *)(void *)(high + c);
        if (low != NULL) {
            __m256i *l = (__m256i *)(void *)(low + c);
            _mm256_storeu_si256(l, _mm256_add_epi64(_mm256_loadu_si256(l), _mm256_and_si256(z, low_bits)));
        }
        _mm256_storeu_si256(h, _mm256_add_epi64(_mm256_loadu_si256(h), upper));
    }
    for (; c < n; c++) {
        const int64_t z = (int64_t)rintf(o[c] * scale) * ((int64_t)1 << shift);
        if (low != NULL) low[c] += z & (((int64_t)1 << 28) - 1);
        high[c] += z >> 28;
    }
}
