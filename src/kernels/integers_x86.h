/* The integers of quantised weights as bytes, 32 at a time in their order, with AVX2: for the AVX2 kernels, and those of
   AVX-512 where it has nothing better. j is a constant wherever these are called. */
#ifndef DW_KERNELS_INTEGERS_X86_H
#define DW_KERNELS_INTEGERS_X86_H

#include <immintrin.h>

#include "kernels/scales_x86.h"

/* Bytes 16 i .. 16 i + 15. */
INLINE __m128i load_16(const void *bytes, int64_t i)
{
    return _mm_loadu_si128((const __m128i *)bytes + i);
}

/* Bytes 32 i .. 32 i + 31. */
INLINE __m256i load_32(const void *bytes, int64_t i)
{
    return _mm256_loadu_si256((const __m256i *)bytes + i);
}

/* x shifted left (right where the count is negative) inside words: bits that come from the neighbour are to be masked. */
INLINE __m256i shift_words(__m256i x, int64_t count)
{
    if (count == 0) return x;
    return count > 0 ? _mm256_slli_epi16(x, (int)count) : _mm256_srli_epi16(x, (int)-count);
}

/* x where mask has ones, or y where y_mask has ones. */
INLINE __m256i merge(__m256i x, char mask, __m256i y, char y_mask)
{
    const __m256i masked = _mm256_and_si256(x, _mm256_set1_epi8(mask));
#ifdef __AVX512VL__
    return _mm256_ternarylogic_epi32(masked, y, _mm256_set1_epi8(y_mask), 0xf8);
#else
    return _mm256_or_si256(masked, _mm256_and_si256(y, _mm256_set1_epi8(y_mask)));
#endif
}

/* The 32 weights of bytes 16 i .. 16 i + 15: in the low bits of every byte one, above it something else. */
INLINE __m256i unpack_nibbles(const uint8_t *q, int64_t i)
{
    const __m128i both = load_16(q, i);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(both), _mm_srli_epi16(both, 4), 1);
}

INLINE __m256i integers_iq4(const uint8_t *q, int64_t i)
{
    const __m256i values = _mm256_broadcastsi128_si256(_mm_setr_epi8(DW_IQ4_VALUES));
    return _mm256_shuffle_epi8(values, _mm256_and_si256(unpack_nibbles(q, i), _mm256_set1_epi8(15)));
}

/* 16 in every byte whose bit of `high` is set. */
INLINE __m256i high_bits(const uint8_t high[4])
{
    const __m256i byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit_of = _mm256_set1_epi64x((long long)0x8040201008040201u);
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)load_bytes(high, 4)), byte_of);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit_of), bit_of), _mm256_set1_epi8(16));
}

/* Ones above the low four bits take sixteen away. */
INLINE __m256i integers_q5_0(const dw_q5_0 *block)
{
    return _mm256_add_epi8(_mm256_or_si256(unpack_nibbles(block->q, 0), _mm256_set1_epi8(-16)), high_bits(block->high));
}

INLINE __m256i integers_q5_1(const dw_q5_1 *block)
{
    return _mm256_or_si256(_mm256_and_si256(unpack_nibbles(block->q, 0), _mm256_set1_epi8(15)), high_bits(block->high));
}

/* Weights 128 n + 32 j .. + 31. */
INLINE __m256i integers_q2_k(const dw_q2_k *block, int64_t n, int64_t j)
{
    return _mm256_and_si256(shift_words(load_32(block->q, n), -2 * j), _mm256_set1_epi8(3));
}

/* Weights 64 n + 32 j .. + 31. */
INLINE __m256i integers_q4_k(const dw_q4_k *block, int64_t n, int64_t j)
{
    return _mm256_and_si256(shift_words(load_32(block->q, n), -4 * j), _mm256_set1_epi8(15));
}

/* Weights 128 n + 32 j .. + 31. */
INLINE __m256i integers_q3_k(const dw_q3_k *block, int64_t n, int64_t j)
{
    const __m256i high = shift_words(load_32(block->high, 0), 2 - 4 * n - j);
    const __m256i q = merge(shift_words(load_32(block->q, n), -2 * j), 3, high, 4);
    return _mm256_sub_epi8(q, _mm256_set1_epi8(4));
}

/* Weights 64 n + 32 j .. + 31. */
INLINE __m256i integers_q5_k(const dw_q5_k *block, int64_t n, int64_t j)
{
    const __m256i high = shift_words(load_32(block->high, 0), 4 - 2 * n - j);
    return merge(shift_words(load_32(block->q, n), -4 * j), 15, high, 16);
}

/* Weights 128 n + 32 j .. + 31. */
INLINE __m256i integers_q6_k(const dw_q6_k *block, int64_t n, int64_t j)
{
    const __m256i high = shift_words(load_32(block->high, n), 4 - 2 * j);
    const __m256i q = merge(shift_words(load_32(block->q, 2 * n + j % 2), -4 * (j / 2)), 15, high, 48);
    return _mm256_sub_epi8(q, _mm256_set1_epi8(32));
}

#endif
