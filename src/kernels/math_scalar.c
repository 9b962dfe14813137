#include <stddef.h>

#include "kernels/activation_scalar.h"
#include "kernels/math_kernels.h"

void dw_exp2_scalar(float *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) out[i] = dw_exp2_one(x[i]);
}

#define DEFINE_ACTIVATION(name)                                                                                                \
    void dw_##name##_scalar(float *x, const float *up, int64_t n)                                                              \
    {                                                                                                                          \
        for (int64_t i = 0; i < n; i++) {                                                                                      \
            const float y = dw_##name##_one(x[i]);                                                                             \
            x[i] = up != NULL ? y * up[i] : y;                                                                                 \
        }                                                                                                                      \
    }

DEFINE_ACTIVATION(silu)
DEFINE_ACTIVATION(gelu)
DEFINE_ACTIVATION(gelu_tanh)
