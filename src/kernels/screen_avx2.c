/* The screen in AVX2: as screen_avx512.c with half the width, 32 keys at a time. */
#include <immintrin.h>
#include <string.h>

#include "kernels/halves_avx2.h"
#include "kernels/screen_kernels.h"

#define INLINE static inline __attribute__((always_inline))

enum { WIDTH = 8 }; /* registers of 4 keys x 2 halves */

/* Eight bfloat16 widened. */
INLINE __m256 load_bf16(const uint16_t *x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)x)), 16));
}

INLINE float largest_of(__m256 x)
{
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

INLINE int32_t sum_of(__m256i x)
{
    const __m128i b = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    const __m128i c = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(c, _mm_shuffle_epi32(c, 0xB1)));
}

dw_screen_query dw_screen_query_avx2(int16_t *number, const float *q, const uint16_t *scale, const uint16_t *lowest, int n)
{
    const __m256 size = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF)); /* |x| = x & size */
    __m256 largest = _mm256_setzero_ps();
    __m256 squares[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256 offset[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256i sum = _mm256_setzero_si256();
    dw_screen_query query;
    for (int64_t c = 0; c < n; c += 8) {
        const __m256 x = _mm256_loadu_ps(q + c);
        const __m256 s = load_bf16(scale + c);
        __m256 *acc = &offset[c / 8 % 2];
        largest = _mm256_max_ps(largest, _mm256_and_ps(_mm256_mul_ps(x, s), size));
        *acc = _mm256_fmadd_ps(x, _mm256_fmadd_ps(_mm256_set1_ps(128.0f), s, load_bf16(lowest + c)), *acc);
    }
    query.largest = largest_of(largest);
    query.unit = query.largest < DW_SCREEN_LEAST ? 0.0f : query.largest / DW_SCREEN_STEPS;
    const __m256 steps = _mm256_set1_ps(query.largest < DW_SCREEN_LEAST ? 0.0f : DW_SCREEN_STEPS / query.largest);
    for (int64_t c = 0; c < n; c += 8) {
        const __m256 t = _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(q + c), load_bf16(scale + c)), steps);
        const __m256i rounded = _mm256_cvtps_epi32(t);
        const __m128i packed = _mm_packs_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
        __m256 *acc = &squares[c / 8 % 2];
        _mm_storeu_si128((__m128i *)(void *)(number + c), packed);
        sum = _mm256_add_epi32(sum, rounded);
        *acc = _mm256_fmadd_ps(t, t, *acc);
    }
    query.squares = sum_halves(squares[0], squares[1]);
    query.offset = sum_halves(offset[0], offset[1]);
    query.sum = sum_of(sum);
    return query;
}

/* 32 keys from key0 on. */
INLINE void scores_half(float *out, const dw_screen_query *query, const int16_t *number, const uint8_t *codes, int n,
                        int64_t key0)
{
    __m256i acc[WIDTH];
    const __m256i shift = _mm256_set1_epi32((int32_t)(128 * (uint32_t)query->sum));
#pragma GCC unroll 8
    for (int i = 0; i < WIDTH; i++) acc[i] = _mm256_setzero_si256();
    for (int64_t c = 0; c < n; c += 4) {
        int64_t four;
        memcpy(&four, number + c, sizeof four);
        const __m256i p = _mm256_set1_epi64x(four);
#pragma GCC unroll 8
        for (int64_t i = 0; i < WIDTH; i++) {
            const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(codes + c * DW_BLOCK + 4 * key0 + 16 * i));
            acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(_mm256_cvtepu8_epi16(bytes), p));
        }
    }
#pragma GCC unroll 4
    for (int64_t i = 0; i < WIDTH; i += 2) {
        /* hadd adds pairs within 128 bits: keys 0 1 | 4 5 | 2 3 | 6 7 */
        const __m256i pairs = _mm256_permute4x64_epi64(_mm256_hadd_epi32(acc[i], acc[i + 1]), 0xD8);
        const __m256 sum = _mm256_cvtepi32_ps(_mm256_sub_epi32(pairs, shift));
        _mm256_storeu_ps(out + key0 + 4 * i, _mm256_fmadd_ps(_mm256_set1_ps(query->unit), sum, _mm256_set1_ps(query->offset)));
    }
}

void dw_screen_scores_avx2(float *out, const dw_screen_query *query, const int16_t *number, int rows, const uint8_t *codes,
                           int n)
{
    for (int64_t i = 0; i < rows; i++) {
        scores_half(out + i * DW_BLOCK, &query[i], number + i * n, codes, n, 0);
        scores_half(out + i * DW_BLOCK, &query[i], number + i * n, codes, n, DW_BLOCK / 2);
    }
}

void dw_key_scores_avx2(float *out, const float *q, const float *rows, int64_t stride, int n, int d)
{
    dw_key_scores_chains(out, q, rows, stride, n, d);
}
