#include "kernels/exp2_avx512.h"
#include "kernels/math_kernels.h"

/* Lanes of the last, shorter group of sixteen. */
static inline __mmask16 tail_mask(int64_t left)
{
    return (__mmask16)(left >= 16 ? 0xFFFF : (1u << left) - 1u);
}

void dw_exp2_avx512(float *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 m = tail_mask(n - i);
        _mm512_mask_storeu_ps(out + i, m, dw_exp2_16(_mm512_maskz_loadu_ps(m, x + i)));
    }
}

void dw_silu_mul_avx512(float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 m = tail_mask(n - i);
        const __m512 g = _mm512_maskz_loadu_ps(m, gate + i);
        __m512 t = _mm512_mul_ps(g, _mm512_set1_ps((float)-DW_LOG2_E));
        t = _mm512_max_ps(_mm512_min_ps(t, _mm512_set1_ps(125.0f)), _mm512_set1_ps(-125.0f));
        const __m512 silu = _mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0f), dw_exp2_16(t)));
        _mm512_mask_storeu_ps(gate + i, m, _mm512_mul_ps(silu, _mm512_maskz_loadu_ps(m, up + i)));
    }
}
