/* The screen's scores in AVX-512 VNNI: numbers of 16 bits are 256 high + low with signed bytes, each multiplied by the codes four channels
   at a time; |sums| stay below 2^31. */
#include <immintrin.h>
#include <string.h>

#include "kernels/screen_kernels.h"

#define INLINE static inline __attribute__((always_inline))

enum { WIDTH = 4, ROWS = 2 }; /* WIDTH registers of 16 keys; 2 x ROWS x WIDTH accumulators (24 of them would spill) */

/* Signed bytes of the numbers. */
INLINE void split(int8_t *high, int8_t *low, const int16_t *number, int n)
{
    for (int64_t c = 0; c < n; c += 16) {
        const __m256i p = _mm256_loadu_si256((const __m256i *)(const void *)(number + c));
        const __m128i l = _mm256_cvtepi16_epi8(p);
        const __m256i rest = _mm256_sub_epi16(p, _mm256_cvtepi8_epi16(l));
        _mm_storeu_si128((__m128i *)(void *)(low + c), l);
        _mm_storeu_si128((__m128i *)(void *)(high + c), _mm256_cvtepi16_epi8(_mm256_srai_epi16(rest, 8)));
    }
}

INLINE __m512i broadcast4(const int8_t *bytes)
{
    int32_t four;
    memcpy(&four, bytes, sizeof four);
    return _mm512_set1_epi32(four);
}

INLINE void scores_rows(float *out, const dw_screen_query *query, const int16_t *number, const uint8_t *codes, int n,
                        const int rows)
{
    int8_t high[ROWS][DW_MAX_HEAD_DIM];
    int8_t low[ROWS][DW_MAX_HEAD_DIM];
    __m512i acc[ROWS][2][WIDTH];
#pragma GCC unroll 2
    for (int i = 0; i < rows; i++) {
        split(high[i], low[i], number + (int64_t)i * n, n);
#pragma GCC unroll 4
        for (int j = 0; j < WIDTH; j++) acc[i][0][j] = acc[i][1][j] = _mm512_setzero_si512();
    }
    for (int64_t c = 0; c < n; c += 4) {
        __m512i code[WIDTH];
#pragma GCC unroll 4
        for (int64_t j = 0; j < WIDTH; j++) code[j] = _mm512_loadu_si512(codes + c * DW_BLOCK + 64 * j);
#pragma GCC unroll 2
        for (int i = 0; i < rows; i++) {
            const __m512i h = broadcast4(high[i] + c);
            const __m512i l = broadcast4(low[i] + c);
#pragma GCC unroll 4
            for (int j = 0; j < WIDTH; j++) {
                acc[i][0][j] = _mm512_dpbusd_epi32(acc[i][0][j], code[j], h);
                acc[i][1][j] = _mm512_dpbusd_epi32(acc[i][1][j], code[j], l);
            }
        }
    }
#pragma GCC unroll 2
    for (int64_t i = 0; i < rows; i++) {
        const __m512i shift = _mm512_set1_epi32((int32_t)(128 * (uint32_t)query[i].sum));
#pragma GCC unroll 4
        for (int64_t j = 0; j < WIDTH; j++) {
            const __m512i both = _mm512_add_epi32(_mm512_slli_epi32(acc[i][0][j], 8), acc[i][1][j]);
            const __m512 sum = _mm512_cvtepi32_ps(_mm512_sub_epi32(both, shift));
            _mm512_storeu_ps(out + i * DW_BLOCK + 16 * j,
                             _mm512_fmadd_ps(_mm512_set1_ps(query[i].unit), sum, _mm512_set1_ps(query[i].offset)));
        }
    }
}

void dw_screen_scores_avx512vnni(float *out, const dw_screen_query *query, const int16_t *number, int rows,
                                 const uint8_t *codes, int n)
{
    for (; rows >= ROWS; rows -= ROWS, out += (int64_t)ROWS * DW_BLOCK, query += ROWS, number += (int64_t)ROWS * n) {
        scores_rows(out, query, number, codes, n, ROWS);
    }
    if (rows == 1) scores_rows(out, query, number, codes, n, 1);
}
