/* Stored weights as floats, with AVX-512: the definition of kernels/widen_scalar.c, bit for bit. The products d * scale * q of
   types with a minimum are exact, so that one FMA rounds like the definition's subtraction. */
#ifndef DW_KERNELS_WIDEN_AVX512_H
#define DW_KERNELS_WIDEN_AVX512_H

#include <immintrin.h>

#include "kernels/integers_x86.h"
#include "kernels/scales_x86.h"

/* A broadcasting load. Of integers, because some processors do that of floats with a shuffle. */
INLINE __m512 broadcast(const float *number)
{
    return _mm512_castsi512_ps(_mm512_set1_epi32(*(const int *)number));
}

INLINE __m512 floats_of_signed(__m128i q)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q));
}

/* 32 weights scale * q, in two parts with a scale each. */
INLINE void scale_integers(__m512 w[2], __m256i q, const float *scale0, const float *scale1)
{
    w[0] = _mm512_mul_ps(broadcast(scale0), floats_of_signed(_mm256_castsi256_si128(q)));
    w[1] = _mm512_mul_ps(broadcast(scale1), floats_of_signed(_mm256_extracti128_si256(q, 1)));
}

/* Lookups of four bits: those above do not count. w[0] takes the low four of each byte, w[1] the high ones. */
INLINE void look_up(__m512 *w0, __m512 *w1, __m128i q, __m512 table0, __m512 table1)
{
    const __m512i both = _mm512_cvtepu8_epi32(q);
    *w0 = _mm512_permutexvar_ps(both, table0);
    *w1 = _mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), table1);
}

/* The sixteen weights of one part: scale * q + minimum. */
INLINE __m512 table_with_minimum(const float *scale)
{
    const __m512 q = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_fmadd_ps(broadcast(scale), q, broadcast(scale + MINIMA));
}

INLINE void widen_q4_0(__m512 w[2], const dw_q4_0 *block, const float *scale)
{
    const __m512 q = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    const __m512 table = _mm512_mul_ps(broadcast(scale), q);
    look_up(&w[0], &w[1], load_16(block->q, 0), table, table);
}

INLINE void widen_q4_1(__m512 w[2], const dw_q4_1 *block, const float *scale)
{
    const __m512 q = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 table = _mm512_fmadd_ps(broadcast(scale), q, broadcast(scale + 1));
    look_up(&w[0], &w[1], load_16(block->q, 0), table, table);
}

/* Sixteen of the integers q with 16 added where the bit of `high` is set. */
INLINE __m512 floats_of_five_bits(__m128i q, __mmask32 high)
{
    return floats_of_signed(_mm_mask_add_epi8(q, (__mmask16)high, q, _mm_set1_epi8(16)));
}

INLINE void widen_q5_0(__m512 w[2], const dw_q5_0 *block, const float *scale)
{
    const __m128i q = load_16(block->q, 0);
    const __m128i less_16 = _mm_set1_epi8(-16); /* in the bits above the low four it takes sixteen away */
    __mmask32 high;
    memcpy(&high, block->high, sizeof high);
    w[0] = _mm512_mul_ps(broadcast(scale), floats_of_five_bits(_mm_or_si128(q, less_16), high));
    w[1] = _mm512_mul_ps(broadcast(scale), floats_of_five_bits(_mm_or_si128(_mm_srli_epi16(q, 4), less_16), high >> 16));
}

INLINE void widen_q5_1(__m512 w[2], const dw_q5_1 *block, const float *scale)
{
    const __m128i q = load_16(block->q, 0);
    const __m128i four_bits = _mm_set1_epi8(15);
    const __m512 m = broadcast(scale + 1);
    __mmask32 high;
    memcpy(&high, block->high, sizeof high);
    w[0] = _mm512_fmadd_ps(broadcast(scale), floats_of_five_bits(_mm_and_si128(q, four_bits), high), m);
    w[1] = _mm512_fmadd_ps(broadcast(scale), floats_of_five_bits(_mm_and_si128(_mm_srli_epi16(q, 4), four_bits), high >> 16),
                           m);
}

INLINE void widen_q8_0(__m512 w[2], const dw_q8_0 *block, const float *scale)
{
    for (int64_t i = 0; i < 2; i++) {
        w[i] = _mm512_mul_ps(broadcast(scale), floats_of_signed(load_16(block->q, i)));
    }
}

INLINE void widen_iq4(__m512 w[2], __m128i q, const float *scale)
{
    static const float values[16] = {DW_IQ4_VALUES};
    const __m512 table = _mm512_mul_ps(broadcast(scale), _mm512_loadu_ps(values));
    look_up(&w[0], &w[1], q, table, table);
}

/* Weights 128 n .. 128 n + 127. Two bits look up in a table that repeats. */
INLINE void widen_q2_k(__m512 w[8], const dw_q2_k *block, int64_t n, const float *scale)
{
    const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
    for (int64_t i = 0; i < 2; i++) {
        const __m512i q = _mm512_cvtepu8_epi32(load_16(block->q, 2 * n + i));
        for (int64_t j = 0; j < 4; j++) {
            const float *part = scale + 8 * n + 2 * j + i;
            const __m512 table = _mm512_fmadd_ps(broadcast(part), numbers, broadcast(part + MINIMA));
            w[2 * j + i] = _mm512_permutexvar_ps(_mm512_srli_epi32(q, 2 * (unsigned)j), table);
        }
    }
}

/* Weights 128 n .. 128 n + 127; n is a constant where it is called. */
INLINE void widen_q3_k(__m512 w[8], const dw_q3_k *block, int64_t n, const float *scale)
{
    for (int64_t j = 0; j < 4; j++) {
        const float *parts = scale + 8 * n + 2 * j;
        scale_integers(w + 2 * j, integers_q3_k(block, n, j), parts, parts + 1);
    }
}

/* Weights 64 n .. 64 n + 63. */
INLINE void widen_q4_k(__m512 w[4], const dw_q4_k *block, int64_t n, const float *scale)
{
    const __m512 table0 = table_with_minimum(scale + 2 * n);
    const __m512 table1 = table_with_minimum(scale + 2 * n + 1);
    for (int64_t i = 0; i < 2; i++) look_up(&w[i], &w[i + 2], load_16(block->q, 2 * n + i), table0, table1);
}

/* Weights 64 n .. 64 n + 63; n is a constant where it is called. */
INLINE void widen_q5_k(__m512 w[4], const dw_q5_k *block, int64_t n, const float *scale)
{
    for (int64_t j = 0; j < 2; j++) {
        const __m256i q = integers_q5_k(block, n, j);
        const __m512 factor = broadcast(scale + 2 * n + j);
        const __m512 minimum = broadcast(scale + MINIMA + 2 * n + j);
        w[2 * j] = _mm512_fmadd_ps(factor, floats_of_signed(_mm256_castsi256_si128(q)), minimum);
        w[2 * j + 1] = _mm512_fmadd_ps(factor, floats_of_signed(_mm256_extracti128_si256(q, 1)), minimum);
    }
}

/* Weights 128 n .. 128 n + 127. */
INLINE void widen_q6_k(__m512 w[8], const dw_q6_k *block, int64_t n, const float *scale)
{
    for (int64_t j = 0; j < 4; j++) {
        const float *parts = scale + 8 * n + 2 * j;
        scale_integers(w + 2 * j, integers_q6_k(block, n, j), parts, parts + 1);
    }
}

/* The step'th dw_step_numbers(type) / 16 registers of a block; scale: from widen_scales. */
INLINE void widen(__m512 *w, dw_type type, const void *block, int64_t step, const float *scale)
{
    switch (type) {
    case DW_Q4_0: widen_q4_0(w, block, scale); break;
    case DW_Q4_1: widen_q4_1(w, block, scale); break;
    case DW_Q5_0: widen_q5_0(w, block, scale); break;
    case DW_Q5_1: widen_q5_1(w, block, scale); break;
    case DW_Q8_0: widen_q8_0(w, block, scale); break;
    case DW_Q2_K: widen_q2_k(w, block, step, scale); break;
    case DW_Q3_K: widen_q3_k(w, block, step, scale); break;
    case DW_Q4_K: widen_q4_k(w, block, step, scale); break;
    case DW_Q5_K: widen_q5_k(w, block, step, scale); break;
    case DW_Q6_K: widen_q6_k(w, block, step, scale); break;
    case DW_IQ4_NL: widen_iq4(w, load_16(((const dw_iq4_nl *)block)->q, 0), scale); break;
    case DW_IQ4_XS: widen_iq4(w, load_16(((const dw_iq4_xs *)block)->q, step), scale + step); break;
    case DW_F32:
        for (int64_t i = 0; i < 2; i++) w[i] = _mm512_loadu_ps((const float *)block + 16 * i);
        break;
    default:
        for (int64_t i = 0; i < 2; i++) {
            const __m256i narrow = _mm256_loadu_si256((const __m256i *)block + i);
            w[i] = type == DW_F16 ? _mm512_cvtph_ps(narrow)
                                  : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
        }
    }
}

#endif
