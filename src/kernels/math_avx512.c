#include "kernels/activation.h"
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

/* The activations of kernels/activation_scalar.h, sixteen numbers at a time. */

static inline __m512 divided_16(__m512 x, __m512 t)
{
    t = _mm512_max_ps(_mm512_min_ps(t, _mm512_set1_ps(DW_ACTIVATION_MOST)), _mm512_set1_ps(-DW_ACTIVATION_MOST));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), dw_exp2_16(t)));
}

static inline __m512 silu_16(__m512 x)
{
    return divided_16(x, _mm512_mul_ps(x, _mm512_set1_ps(DW_SILU_FACTOR)));
}

static inline __m512 gelu_tanh_16(__m512 x)
{
    const __m512 by_x = _mm512_fmadd_ps(_mm512_set1_ps(DW_GELU_TANH_CUBIC), _mm512_mul_ps(x, x),
                                        _mm512_set1_ps(DW_GELU_TANH_LINEAR));
    return divided_16(x, _mm512_mul_ps(x, by_x));
}

static inline __m512 gelu_16(__m512 x)
{
    const __m512 a = _mm512_abs_ps(x);
    const __m512 inside = _mm512_min_ps(a, _mm512_set1_ps(DW_GELU_LAST));
    __m512 t = _mm512_set1_ps(DW_GELU_C9);
    t = _mm512_fmadd_ps(t, inside, _mm512_set1_ps(DW_GELU_C8));
    t = _mm512_fmadd_ps(t, inside, _mm512_set1_ps(DW_GELU_C7));
    t = _mm512_fmadd_ps(t, inside, _mm512_set1_ps(DW_GELU_C6));
    t = _mm512_fmadd_ps(t, inside, _mm512_set1_ps(DW_GELU_C5));
    t = _mm512_fmadd_ps(t, inside, _mm512_set1_ps(DW_GELU_C4));
    t = _mm512_fmadd_ps(t, inside, _mm512_set1_ps(DW_GELU_C3));
    t = _mm512_fmadd_ps(t, inside, _mm512_set1_ps(DW_GELU_C2));
    t = _mm512_fmadd_ps(t, inside, _mm512_set1_ps(DW_GELU_C1));
    t = _mm512_fmadd_ps(t, inside, _mm512_set1_ps(DW_GELU_C0));
    t = _mm512_fmadd_ps(_mm512_set1_ps(DW_GELU_SLOPE), _mm512_sub_ps(a, inside), t);
    const __m512 tail = dw_exp2_16(t);
    const __mmask16 positive = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
    return _mm512_mask_blend_ps(positive, _mm512_mul_ps(x, tail), _mm512_fnmadd_ps(x, tail, x));
}

#define DEFINE_ACTIVATION(name)                                                                                                \
    void dw_##name##_avx512(float *x, const float *up, int64_t n)                                                              \
    {                                                                                                                          \
        for (int64_t i = 0; i < n; i += 16) {                                                                                  \
            const __mmask16 m = tail_mask(n - i);                                                                              \
            const __m512 y = name##_16(_mm512_maskz_loadu_ps(m, x + i));                                                       \
            _mm512_mask_storeu_ps(x + i, m, up != NULL ? _mm512_mul_ps(y, _mm512_maskz_loadu_ps(m, up + i)) : y);              \
        }                                                                                                                      \
    }

DEFINE_ACTIVATION(silu)
DEFINE_ACTIVATION(gelu)
DEFINE_ACTIVATION(gelu_tanh)
