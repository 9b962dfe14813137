#include <immintrin.h>

#include "kernels/roof.h"

enum { REGISTERS = 12 };

float dw_roof_read_avx2(const float *x, int64_t n)
{
    __m256 sum[8];
    float lanes[8];
    for (int r = 0; r < 8; r++) sum[r] = _mm256_setzero_ps();
    for (int64_t i = 0; i < n; i += 64) {
        for (int64_t r = 0; r < 8; r++) sum[r] = _mm256_add_ps(sum[r], _mm256_load_ps(x + i + 8 * r));
    }
    for (int r = 1; r < 8; r++) sum[0] = _mm256_add_ps(sum[0], sum[r]);
    _mm256_storeu_ps(lanes, sum[0]);
    for (int l = 1; l < 8; l++) lanes[0] += lanes[l];
    return lanes[0];
}

float dw_roof_fma_avx2(int64_t rounds)
{
    const __m256 half = _mm256_set1_ps(0.5f);
    const __m256 one = _mm256_set1_ps(1.0f);
    __m256 a[REGISTERS];
    for (int r = 0; r < REGISTERS; r++) a[r] = _mm256_set1_ps((float)r);
    for (int64_t i = 0; i < rounds; i++) {
        for (int r = 0; r < REGISTERS; r++) a[r] = _mm256_fmadd_ps(a[r], half, one);
    }
    for (int r = 1; r < REGISTERS; r++) a[0] = _mm256_add_ps(a[0], a[r]);
    return _mm256_cvtss_f32(a[0]);
}
