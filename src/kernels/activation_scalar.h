/* The definitions of the activations, one number. */
#ifndef DW_KERNELS_ACTIVATION_SCALAR_H
#define DW_KERNELS_ACTIVATION_SCALAR_H

#include "kernels/activation.h"
#include "kernels/exp2_scalar.h"

/* x / (1 + 2^t); t is clamped so that neither end leaves the range of 2^x. */
static inline float dw_divided_one(float x, float t)
{
    t = t < DW_ACTIVATION_MOST ? t : DW_ACTIVATION_MOST;
    t = t > -DW_ACTIVATION_MOST ? t : -DW_ACTIVATION_MOST;
    return x / (1.0f + dw_exp2_one(t));
}

static inline float dw_silu_one(float x)
{
    return dw_divided_one(x, x * DW_SILU_FACTOR);
}

static inline float dw_gelu_tanh_one(float x)
{
    return dw_divided_one(x, x * fmaf(DW_GELU_TANH_CUBIC, x * x, DW_GELU_TANH_LINEAR));
}

static inline float dw_gelu_one(float x)
{
    const float a = fabsf(x);
    const float inside = a < DW_GELU_LAST ? a : DW_GELU_LAST;
    float t = DW_GELU_C9;
    t = fmaf(t, inside, DW_GELU_C8);
    t = fmaf(t, inside, DW_GELU_C7);
    t = fmaf(t, inside, DW_GELU_C6);
    t = fmaf(t, inside, DW_GELU_C5);
    t = fmaf(t, inside, DW_GELU_C4);
    t = fmaf(t, inside, DW_GELU_C3);
    t = fmaf(t, inside, DW_GELU_C2);
    t = fmaf(t, inside, DW_GELU_C1);
    t = fmaf(t, inside, DW_GELU_C0);
    t = fmaf(DW_GELU_SLOPE, a - inside, t);
    const float tail = dw_exp2_one(t);
    return x > 0.0f ? fmaf(-x, tail, x) : x * tail;
}

#endif
