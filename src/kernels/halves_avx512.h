/* The end of every dot product with AVX-512, where the sixteen lanes are one register. */
#ifndef DW_KERNELS_HALVES_AVX512_H
#define DW_KERNELS_HALVES_AVX512_H

#include <immintrin.h>

/* Four dot products from their lanes, added in halves. */
static inline __m128 add_in_halves(__m512 a, __m512 b, __m512 c, __m512 d)
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

/* The sixteen lanes added in halves. */
static inline float sum_halves(__m512 x)
{
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

#endif
