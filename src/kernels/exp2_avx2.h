/* 2^x of kernels/exp2.h, eight numbers at a time. */
#ifndef DW_KERNELS_EXP2_AVX2_H
#define DW_KERNELS_EXP2_AVX2_H

#include <immintrin.h>

#include "kernels/exp2.h"

static inline __m256 dw_exp2_8(__m256 x)
{
    const __m256 in_range = _mm256_cmp_ps(x, _mm256_set1_ps(DW_EXP2_MIN), _CMP_GE_OQ);
    const __m256 r = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256 f = _mm256_sub_ps(x, r);
    __m256 p = _mm256_set1_ps(DW_EXP2_C6);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(DW_EXP2_C5));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(DW_EXP2_C4));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(DW_EXP2_C3));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(DW_EXP2_C2));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(DW_EXP2_C1));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    const __m256i shifted = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvtps_epi32(r), 23));
    return _mm256_and_ps(_mm256_castsi256_ps(shifted), in_range);
}

#endif
