/* Stored weights as floats, with AVX2 and F16C: the definition of kernels/widen_scalar.c, bit for bit. The products d * scale *
   q of types with a minimum are exact, so that one FMA rounds like the definition's sum. */
#ifndef DW_KERNELS_WIDEN_AVX2_H
#define DW_KERNELS_WIDEN_AVX2_H

#include <immintrin.h>

#include "kernels/integers_x86.h"
#include "kernels/scales_x86.h"

enum { PART = 32 }; /* weights widened together: four registers */

/* Which of the scales belongs to numbers 8 i .. of a part, and where the minimum of that scale stands. */
INLINE int64_t scale_of(dw_type type, int64_t part, int64_t i)
{
    if (type == DW_Q2_K || type == DW_Q3_K || type == DW_Q6_K) return 2 * part + i / 2;
    return part;
}

INLINE int64_t minimum_of(dw_type type, int64_t scale)
{
    return type == DW_Q4_1 || type == DW_Q5_1 ? 1 : MINIMA + scale;
}

INLINE int has_minimum(dw_type type)
{
    return type == DW_Q4_1 || type == DW_Q5_1 || type == DW_Q2_K || type == DW_Q4_K || type == DW_Q5_K;
}

/* The integers of a part as bytes; `part` is a constant where it is called. */
INLINE __m256i integers(dw_type type, const void *block, int64_t part)
{
    switch (type) {
    case DW_Q5_0: return integers_q5_0(block);
    case DW_Q5_1: return integers_q5_1(block);
    case DW_Q2_K: return integers_q2_k(block, part / 4, part % 4);
    case DW_Q3_K: return integers_q3_k(block, part / 4, part % 4);
    case DW_Q4_K: return integers_q4_k(block, part / 2, part % 2);
    case DW_Q5_K: return integers_q5_k(block, part / 2, part % 2);
    case DW_Q6_K: return integers_q6_k(block, part / 4, part % 4);
    case DW_IQ4_NL: return integers_iq4(((const dw_iq4_nl *)block)->q, 0);
    default: return integers_iq4(((const dw_iq4_xs *)block)->q, part);
    }
}

/* Four bits less an offset. */
INLINE void floats_of_nibbles(__m256 number[4], const uint8_t q[16], int offset)
{
    for (int64_t i = 0; i < 2; i++) {
        const __m256i both = _mm256_cvtepu8_epi32(_mm_loadu_si64(q + 8 * i));
        const __m256i low = _mm256_and_si256(both, _mm256_set1_epi32(15));
        const __m256i high = _mm256_srli_epi32(both, 4);
        number[i] = _mm256_cvtepi32_ps(_mm256_sub_epi32(low, _mm256_set1_epi32(offset)));
        number[i + 2] = _mm256_cvtepi32_ps(_mm256_sub_epi32(high, _mm256_set1_epi32(offset)));
    }
}

INLINE __m256 floats_of_signed(__m128i eight)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
}

/* The integers of a part as floats. */
INLINE void floats_of_integers(__m256 number[4], dw_type type, const void *block, int64_t part)
{
    if (type == DW_Q4_0) {
        floats_of_nibbles(number, ((const dw_q4_0 *)block)->q, 8);
    } else if (type == DW_Q4_1) {
        floats_of_nibbles(number, ((const dw_q4_1 *)block)->q, 0);
    } else if (type == DW_Q8_0) {
        for (int64_t i = 0; i < 4; i++) number[i] = floats_of_signed(_mm_loadu_si64(((const dw_q8_0 *)block)->q + 8 * i));
    } else {
        const __m256i q = integers(type, block, part);
        for (int64_t i = 0; i < 2; i++) {
            const __m128i half = i == 0 ? _mm256_castsi256_si128(q) : _mm256_extracti128_si256(q, 1);
            number[2 * i] = floats_of_signed(half);
            number[2 * i + 1] = floats_of_signed(_mm_srli_si128(half, 8));
        }
    }
}

/* Numbers i .. i + 7 of a type without blocks. */
INLINE __m256 load_numbers(dw_type type, const void *numbers, int64_t i)
{
    if (type == DW_F32) return _mm256_loadu_ps((const float *)numbers + i);
    const __m128i narrow = _mm_loadu_si128((const __m128i *)((const uint16_t *)numbers + i));
    if (type == DW_F16) return _mm256_cvtph_ps(narrow);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}

/* w[i] = numbers 8 i .. 8 i + 7 of a part of a block; scale: from widen_scales (not used by the types without). */
INLINE void widen(__m256 w[4], dw_type type, const void *block, int64_t part, const float *scale)
{
    if (!dw_has_scales(type)) {
        for (int64_t i = 0; i < 4; i++) w[i] = load_numbers(type, block, 8 * i);
        return;
    }
    __m256 number[4];
    floats_of_integers(number, type, block, part);
    for (int64_t i = 0; i < 4; i++) {
        const int64_t s = scale_of(type, part, i);
        const __m256 d = _mm256_broadcast_ss(scale + s);
        w[i] = has_minimum(type) ? _mm256_fmadd_ps(d, number[i], _mm256_broadcast_ss(scale + minimum_of(type, s)))
                                 : _mm256_mul_ps(d, number[i]);
    }
}

#endif
