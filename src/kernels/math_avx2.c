#include "kernels/exp2_avx2.h"
#include "kernels/exp2_scalar.h"
#include "kernels/math_kernels.h"

void dw_exp2_avx2(float *out, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, dw_exp2_8(_mm256_loadu_ps(x + i)));
    for (; i < n; i++) out[i] = dw_exp2_one(x[i]);
}

void dw_silu_mul_avx2(float *gate, const float *up, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 g = _mm256_loadu_ps(gate + i);
        __m256 t = _mm256_mul_ps(g, _mm256_set1_ps((float)-DW_LOG2_E));
        t = _mm256_max_ps(_mm256_min_ps(t, _mm256_set1_ps(125.0f)), _mm256_set1_ps(-125.0f));
        const __m256 silu = _mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), dw_exp2_8(t)));
        _mm256_storeu_ps(gate + i, _mm256_mul_ps(silu, _mm256_loadu_ps(up + i)));
    }
    for (; i < n; i++) gate[i] = dw_silu_mul_one(gate[i], up[i]);
}
