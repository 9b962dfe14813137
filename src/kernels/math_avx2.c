#include "kernels/activation_scalar.h"
#include "kernels/exp2_avx2.h"
#include "kernels/math_kernels.h"

void dw_exp2_avx2(float *out, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, dw_exp2_8(_mm256_loadu_ps(x + i)));
    for (; i < n; i++) out[i] = dw_exp2_one(x[i]);
}

/* The activations of kernels/activation_scalar.h, eight numbers at a time. */

static inline __m256 divided_8(__m256 x, __m256 t)
{
    t = _mm256_max_ps(_mm256_min_ps(t, _mm256_set1_ps(DW_ACTIVATION_MOST)), _mm256_set1_ps(-DW_ACTIVATION_MOST));
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), dw_exp2_8(t)));
}

static inline __m256 silu_8(__m256 x)
{
    return divided_8(x, _mm256_mul_ps(x, _mm256_set1_ps(DW_SILU_FACTOR)));
}

static inline __m256 gelu_tanh_8(__m256 x)
{
    const __m256 by_x = _mm256_fmadd_ps(_mm256_set1_ps(DW_GELU_TANH_CUBIC), _mm256_mul_ps(x, x),
                                        _mm256_set1_ps(DW_GELU_TANH_LINEAR));
    return divided_8(x, _mm256_mul_ps(x, by_x));
}

static inline __m256 gelu_8(__m256 x)
{
    const __m256 a = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    const __m256 inside = _mm256_min_ps(a, _mm256_set1_ps(DW_GELU_LAST));
    __m256 t = _mm256_set1_ps(DW_GELU_C9);
    t = _mm256_fmadd_ps(t, inside, _mm256_set1_ps(DW_GELU_C8));
    t = _mm256_fmadd_ps(t, inside, _mm256_set1_ps(DW_GELU_C7));
    t = _mm256_fmadd_ps(t, inside, _mm256_set1_ps(DW_GELU_C6));
    t = _mm256_fmadd_ps(t, inside, _mm256_set1_ps(DW_GELU_C5));
    t = _mm256_fmadd_ps(t, inside, _mm256_set1_ps(DW_GELU_C4));
    t = _mm256_fmadd_ps(t, inside, _mm256_set1_ps(DW_GELU_C3));
    t = _mm256_fmadd_ps(t, inside, _mm256_set1_ps(DW_GELU_C2));
    t = _mm256_fmadd_ps(t, inside, _mm256_set1_ps(DW_GELU_C1));
    t = _mm256_fmadd_ps(t, inside, _mm256_set1_ps(DW_GELU_C0));
    t = _mm256_fmadd_ps(_mm256_set1_ps(DW_GELU_SLOPE), _mm256_sub_ps(a, inside), t);
    const __m256 tail = dw_exp2_8(t);
    const __m256 positive = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ);
    return _mm256_blendv_ps(_mm256_mul_ps(x, tail), _mm256_fnmadd_ps(x, tail, x), positive);
}

#define DEFINE_ACTIVATION(name)                                                                                                \
    void dw_##name##_avx2(float *x, const float *up, int64_t n)                                                                \
    {                                                                                                                          \
        int64_t i = 0;                                                                                                         \
        for (; i + 8 <= n; i += 8) {                                                                                           \
            const __m256 y = name##_8(_mm256_loadu_ps(x + i));                                                                 \
            _mm256_storeu_ps(x + i, up != NULL ? _mm256_mul_ps(y, _mm256_loadu_ps(up + i)) : y);                               \
        }                                                                                                                      \
        for (; i < n; i++) {                                                                                                   \
            const float y = dw_##name##_one(x[i]);                                                                             \
            x[i] = up != NULL ? y * up[i] : y;                                                                                 \
        }                                                                                                                      \
    }

DEFINE_ACTIVATION(silu)
DEFINE_ACTIVATION(gelu)
DEFINE_ACTIVATION(gelu_tanh)
