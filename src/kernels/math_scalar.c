#include "kernels/exp2_scalar.h"
#include "kernels/math_kernels.h"

void dw_exp2_scalar(float *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) out[i] = dw_exp2_one(x[i]);
}

void dw_silu_mul_scalar(float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++) gate[i] = dw_silu_mul_one(gate[i], up[i]);
}
