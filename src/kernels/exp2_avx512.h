/* 2^x of kernels/exp2.h, sixteen numbers at a time. */
#ifndef DW_KERNELS_EXP2_AVX512_H
#define DW_KERNELS_EXP2_AVX512_H

#include <immintrin.h>

#include "kernels/exp2.h"

static inline __m512 dw_exp2_16(__m512 x)
{
    const __mmask16 in_range = _mm512_cmp_ps_mask(x, _mm512_set1_ps(DW_EXP2_MIN), _CMP_GE_OQ);
    const __m512 r = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 f = _mm512_sub_ps(x, r);
    __m512 p = _mm512_set1_ps(DW_EXP2_C6);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(DW_EXP2_C5));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(DW_EXP2_C4));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(DW_EXP2_C3));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(DW_EXP2_C2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(DW_EXP2_C1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_castsi512_ps(
        _mm512_maskz_add_epi32(in_range, _mm512_castps_si512(p), _mm512_slli_epi32(_mm512_cvtps_epi32(r), 23)));
}

#endif
