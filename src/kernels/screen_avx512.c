/* The screen in AVX-512: codes are widened to 16 bits and multiplied by the query's numbers two channels at a time, so that nothing
   saturates. A lane sums half the channels of a key and may wrap around; the whole sum fits, so wrapping ends right. */
#include <immintrin.h>
#include <string.h>

#include "kernels/halves_avx512.h"
#include "kernels/screen_kernels.h"

#define INLINE static inline __attribute__((always_inline))

enum { WIDTH = 8 }; /* registers of 8 keys x 2 halves */

/* Sixteen bfloat16 widened. */
INLINE __m512 load_bf16(const uint16_t *x)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)x)), 16));
}

dw_screen_query dw_screen_query_avx512(int16_t *number, const float *q, const uint16_t *scale, const uint16_t *lowest, int n)
{
    __m512 largest = _mm512_setzero_ps();
    __m512 squares = _mm512_setzero_ps();
    __m512 offset = _mm512_setzero_ps();
    __m512i sum = _mm512_setzero_si512();
    dw_screen_query query;
    for (int64_t c = 0; c < n; c += 16) {
        const __m512 x = _mm512_loadu_ps(q + c);
        const __m512 s = load_bf16(scale + c);
        largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_mul_ps(x, s)));
        offset = _mm512_fmadd_ps(x, _mm512_fmadd_ps(_mm512_set1_ps(128.0f), s, load_bf16(lowest + c)), offset);
    }
    query.largest = _mm512_reduce_max_ps(largest);
    query.unit = query.largest < DW_SCREEN_LEAST ? 0.0f : query.largest / DW_SCREEN_STEPS;
    const __m512 steps = _mm512_set1_ps(query.largest < DW_SCREEN_LEAST ? 0.0f : DW_SCREEN_STEPS / query.largest);
    for (int64_t c = 0; c < n; c += 16) {
        const __m512 t = _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(q + c), load_bf16(scale + c)), steps);
        const __m512i rounded = _mm512_cvtps_epi32(t);
        _mm256_storeu_si256((__m256i *)(void *)(number + c), _mm512_cvtepi32_epi16(rounded));
        sum = _mm512_add_epi32(sum, rounded);
        squares = _mm512_fmadd_ps(t, t, squares);
    }
    query.squares = sum_halves(squares);
    query.offset = sum_halves(offset);
    query.sum = _mm512_reduce_add_epi32(sum);
    return query;
}

/* Both halves of 16 keys, whose sums lie in lanes 2 j and 2 j + 1 of a (keys 0..7) and b (8..15). */
INLINE __m512i add_pairs(__m512i a, __m512i b)
{
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_add_epi32(_mm512_permutex2var_epi32(a, even, b), _mm512_permutex2var_epi32(a, odd, b));
}

INLINE void scores_row(float *out, const dw_screen_query *query, const int16_t *number, const uint8_t *codes, int n)
{
    __m512i acc[WIDTH];
    const __m512i shift = _mm512_set1_epi32((int32_t)(128 * (uint32_t)query->sum));
#pragma GCC unroll 8
    for (int i = 0; i < WIDTH; i++) acc[i] = _mm512_setzero_si512();
    for (int64_t c = 0; c < n; c += 4) {
        int64_t four;
        memcpy(&four, number + c, sizeof four);
        const __m512i p = _mm512_set1_epi64(four);
#pragma GCC unroll 8
        for (int64_t i = 0; i < WIDTH; i++) {
            const __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)(codes + c * DW_BLOCK + 32 * i));
            acc[i] = _mm512_add_epi32(acc[i], _mm512_madd_epi16(_mm512_cvtepu8_epi16(bytes), p));
        }
    }
#pragma GCC unroll 4
    for (int64_t i = 0; i < WIDTH; i += 2) {
        const __m512i sum = _mm512_sub_epi32(add_pairs(acc[i], acc[i + 1]), shift);
        _mm512_storeu_ps(out + 8 * i,
                         _mm512_fmadd_ps(_mm512_set1_ps(query->unit), _mm512_cvtepi32_ps(sum), _mm512_set1_ps(query->offset)));
    }
}

void dw_screen_scores_avx512(float *out, const dw_screen_query *query, const int16_t *number, int rows, const uint8_t *codes,
                             int n)
{
    for (int64_t i = 0; i < rows; i++) scores_row(out + i * DW_BLOCK, &query[i], number + i * n, codes, n);
}

void dw_key_scores_avx512(float *out, const float *q, const float *rows, int64_t stride, int n, int d)
{
    dw_key_scores_chains(out, q, rows, stride, n, d);
}
