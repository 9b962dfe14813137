/* The definition of 2^x, one number. */
#ifndef DW_KERNELS_EXP2_SCALAR_H
#define DW_KERNELS_EXP2_SCALAR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/exp2.h"

static inline float dw_exp2_one(float x)
{
    const float r = rintf(x);
    const float f = x - r; /* exact */
    float p = DW_EXP2_C6;
    uint32_t bits;
    if (!(x >= DW_EXP2_MIN)) return 0.0f;
    p = fmaf(p, f, DW_EXP2_C5);
    p = fmaf(p, f, DW_EXP2_C4);
    p = fmaf(p, f, DW_EXP2_C3);
    p = fmaf(p, f, DW_EXP2_C2);
    p = fmaf(p, f, DW_EXP2_C1);
    p = fmaf(p, f, 1.0f);
    memcpy(&bits, &p, sizeof bits);
    bits += (uint32_t)(int32_t)r << 23;
    memcpy(&p, &bits, sizeof bits);
    return p;
}

#endif
