/* The end of every dot product with AVX2, where the sixteen lanes are two registers. */
#ifndef DW_KERNELS_HALVES_AVX2_H
#define DW_KERNELS_HALVES_AVX2_H

#include <immintrin.h>

/* Lanes 0-7 and 8-15. */
typedef struct {
    __m256 low;
    __m256 high;
} lanes;

/* Four dot products from their lanes, added in halves. */
static inline __m128 add_in_halves(lanes a, lanes b, lanes c, lanes d)
{
    const __m256 a8 = _mm256_add_ps(a.low, a.high);
    const __m256 b8 = _mm256_add_ps(b.low, b.high);
    const __m256 c8 = _mm256_add_ps(c.low, c.high);
    const __m256 d8 = _mm256_add_ps(d.low, d.high);
    const __m256 ab = _mm256_add_ps(_mm256_permute2f128_ps(a8, b8, 0x20), _mm256_permute2f128_ps(a8, b8, 0x31));
    const __m256 cd = _mm256_add_ps(_mm256_permute2f128_ps(c8, d8, 0x20), _mm256_permute2f128_ps(c8, d8, 0x31));
    const __m256 two = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    const __m256 one = _mm256_add_ps(two, _mm256_permute_ps(two, 0xb1)); /* a a c c, b b d d */
    return _mm_blend_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1), 0xa);
}

/* Sixteen lanes (two registers) added in halves. */
static inline float sum_halves(__m256 low, __m256 high)
{
    const __m256 a = _mm256_add_ps(low, high);
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

#endif
