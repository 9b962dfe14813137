/* The scales of quantised blocks as floats, with AVX2 and F16C, for the AVX2 and the AVX-512 kernels. They are left in memory,
   because a broadcasting load costs the vector units less than a shuffle. */
#ifndef DW_KERNELS_SCALES_X86_H
#define DW_KERNELS_SCALES_X86_H

#include <immintrin.h>
#include <string.h>

#include "kernels/linear_kernels.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    MAX_SCALES = 32, /* floats of scales of one block, at most */
    MINIMA = 16      /* blocks of 256: scales of their parts from 0 on, minima from here on, negative: what is to be added */
};

/* Floats of scales of one block: d, or d and m, or those of the parts of a block of 256. */
INLINE int64_t scale_floats(dw_type type)
{
    if (dw_piece_numbers(type) == 256) return MAX_SCALES;
    return type == DW_Q4_1 || type == DW_Q5_1 ? 2 : 1;
}

INLINE uint64_t load_bytes(const void *from, int64_t bytes)
{
    uint64_t value = 0;
    memcpy(&value, from, (size_t)bytes);
    return value;
}

/* Four halves as floats. */
INLINE __m128 widen_halves(uint64_t halves)
{
    return _mm_cvtph_ps(_mm_cvtsi64_si128((long long)halves));
}

INLINE __m256 widen_half(uint16_t half)
{
    return _mm256_broadcastss_ps(widen_halves(half));
}

INLINE __m256 widen_half_negated(uint16_t half)
{
    return widen_half(half ^ 0x8000);
}

/* Eight bytes as floats. */
INLINE __m256 widen_bytes(uint64_t bytes)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)bytes)));
}

INLINE void scales_q2_k(float *scale, const dw_q2_k *block)
{
    const uint64_t four_bits = 0x0f0f0f0f0f0f0f0fu;
    for (int64_t i = 0; i < 2; i++) {
        const uint64_t bytes = load_bytes(block->scales + 8 * i, 8);
        _mm256_storeu_ps(scale + 8 * i, _mm256_mul_ps(widen_half(block->d), widen_bytes(bytes & four_bits)));
        _mm256_storeu_ps(scale + MINIMA + 8 * i,
                         _mm256_mul_ps(widen_half_negated(block->m), widen_bytes(bytes >> 4 & four_bits)));
    }
}

INLINE void scales_q3_k(float *scale, const dw_q3_k *block)
{
    const uint64_t low = load_bytes(block->scales, 8);
    const uint64_t high = load_bytes(block->scales + 8, 4);
    for (int64_t i = 0; i < 2; i++) {
        const uint64_t two_bits = (high >> 4 * i & 0x03030303u) | (high >> (4 * i + 2) & 0x03030303u) << 32;
        const uint64_t six_bits = (low >> 4 * i & 0x0f0f0f0f0f0f0f0fu) | two_bits << 4;
        const __m256 less_32 = _mm256_sub_ps(widen_bytes(six_bits), _mm256_set1_ps(32));
        _mm256_storeu_ps(scale + 8 * i, _mm256_mul_ps(widen_half(block->d), less_32));
    }
}

/* Q4_K and Q5_K, which begin alike. */
INLINE void scales_q4_k(float *scale, const dw_q4_k *block)
{
    const uint64_t a = load_bytes(block->scales, 4);
    const uint64_t b = load_bytes(block->scales + 4, 4);
    const uint64_t c = load_bytes(block->scales + 8, 4);
    const uint64_t scales = (a & 0x3f3f3f3fu) | ((c & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u)) << 32;
    const uint64_t minima = (b & 0x3f3f3f3fu) | ((c >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u)) << 32;
    _mm256_storeu_ps(scale, _mm256_mul_ps(widen_half(block->d), widen_bytes(scales)));
    _mm256_storeu_ps(scale + MINIMA, _mm256_mul_ps(widen_half_negated(block->m), widen_bytes(minima)));
}

INLINE void scales_q6_k(float *scale, const dw_q6_k *block)
{
    for (int64_t i = 0; i < 2; i++) {
        const __m256 eight = widen_bytes(load_bytes(block->scales + 8 * i, 8));
        _mm256_storeu_ps(scale + 8 * i, _mm256_mul_ps(widen_half(block->d), eight));
    }
}

INLINE void scales_iq4_xs(float *scale, const dw_iq4_xs *block)
{
    const __m256i by_four = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i by_two = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    const __m256i low = _mm256_srlv_epi32(_mm256_set1_epi32((int)load_bytes(block->scales_low, 4)), by_four);
    const __m256i high = _mm256_srlv_epi32(_mm256_set1_epi32(block->scales_high), by_two);
    const __m256i six_bits = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(15)),
                                             _mm256_slli_epi32(_mm256_and_si256(high, _mm256_set1_epi32(3)), 4));
    const __m256 less_32 = _mm256_cvtepi32_ps(_mm256_sub_epi32(six_bits, _mm256_set1_epi32(32)));
    _mm256_storeu_ps(scale, _mm256_mul_ps(widen_half(block->d), less_32));
}

/* Blocks of 32 with d alone, or with d and m behind it: the halves of four or two blocks are widened together. */
INLINE void small_scales(float *scale, int64_t floats, int outs, const char *block, int64_t w_bytes)
{
    const int64_t bytes = 2 * floats;
    const int64_t together = outs < 4 ? 1 : 4 / floats;
#pragma GCC unroll 8
    for (int64_t o = 0; o < outs; o += together) {
        uint64_t halves = 0;
#pragma GCC unroll 4
        for (int64_t i = 0; i < together; i++) halves |= load_bytes(block + (o + i) * w_bytes, bytes) << 8 * bytes * i;
        if (together * floats == 4) _mm_storeu_ps(scale + o * floats, widen_halves(halves));
        if (together * floats == 2) _mm_storel_pi((__m64 *)(scale + o * floats), widen_halves(halves));
        if (together * floats == 1) _mm_store_ss(scale + o, widen_halves(halves));
    }
}

/* scale = the scales of blocks w_bytes apart, scale_floats(type) for each of `outs` blocks. */
INLINE void widen_scales(float *scale, dw_type type, int outs, const char *block, int64_t w_bytes)
{
    const int64_t floats = scale_floats(type);
    if (floats < MAX_SCALES) {
        small_scales(scale, floats, outs, block, w_bytes);
        return;
    }
#pragma GCC unroll 8
    for (int64_t o = 0; o < outs; o++) {
        const void *b = block + o * w_bytes;
        if (type == DW_Q2_K) scales_q2_k(scale + o * floats, b);
        if (type == DW_Q3_K) scales_q3_k(scale + o * floats, b);
        if (type == DW_Q4_K || type == DW_Q5_K) scales_q4_k(scale + o * floats, b);
        if (type == DW_Q6_K) scales_q6_k(scale + o * floats, b);
        if (type == DW_IQ4_XS) scales_iq4_xs(scale + o * floats, b);
    }
}

#endif
