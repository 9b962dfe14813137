#include <immintrin.h>

#include "kernels/roof.h"

enum { REGISTERS = 12 };

float dw_roof_read_avx512(const float *x, int64_t n)
{
    __m512 sum[8];
    for (int r = 0; r < 8; r++) sum[r] = _mm512_setzero_ps();
    for (int64_t i = 0; i < n; i += 128) {
        for (int64_t r = 0; r < 8; r++) sum[r] = _mm512_add_ps(sum[r], _mm512_load_ps(x + i + 16 * r));
    }
    for (int r = 1; r < 8; r++) sum[0] = _mm512_add_ps(sum[0], sum[r]);
    return _mm512_reduce_add_ps(sum[0]);
}

float dw_roof_fma_avx512(int64_t rounds)
{
    const __m512 half = _mm512_set1_ps(0.5f);
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 a[REGISTERS];
    for (int r = 0; r < REGISTERS; r++) a[r] = _mm512_set1_ps((float)r);
    for (int64_t i = 0; i < rounds; i++) {
        for (int r = 0; r < REGISTERS; r++) a[r] = _mm512_fmadd_ps(a[r], half, one);
    }
    for (int r = 1; r < REGISTERS; r++) a[0] = _mm512_add_ps(a[0], a[r]);
    return _mm512_cvtss_f32(a[0]);
}
