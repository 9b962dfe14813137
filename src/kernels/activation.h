/* The activations of the feed forward: the constants that all instruction sets share. All of them go through 2^x of
   kernels/exp2.h, clamped so that neither end leaves its range.

   silu(x) = x / (1 + 2^(-x log2 e)).

   gelu_tanh(x) = x / (1 + 2^(-2 log2(e) sqrt(2/pi) (x + 0.044715 x^3))), which is x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

   gelu(x) = x P(x), P the distribution function of the normal distribution. With a = |x| and Q(a) = P(-a) = 1 - P(a):
   log2 Q(a) is nearly a parabola. Its polynomial of degree 9 on 0..5.5 (constant term -1, the others a minimax fit of the error of
   a Q(a), 1.6e-8) is one chain of FMAs from C9 down; beyond 5.5, where a Q(a) is below 1.1e-7, it goes on as a straight line.
   gelu(x) = x - x Q(x) for x > 0 and x Q(-x) else. As computed in float its error is below 1e-7 max(1, |x|). */
#ifndef DW_KERNELS_ACTIVATION_H
#define DW_KERNELS_ACTIVATION_H

#include "kernels/exp2.h"

#define DW_ACTIVATION_MOST 125.0f /* bits of the exponent, either sign */

#define DW_SILU_FACTOR ((float)-DW_LOG2_E)

/* -2 log2(e) sqrt(2/pi), and 0.044715 times it. */
#define DW_GELU_TANH_LINEAR (-2.30220819813f)
#define DW_GELU_TANH_CUBIC (-0.10294323958f)

#define DW_GELU_LAST 5.5f
#define DW_GELU_C0 (-1.0f)
#define DW_GELU_C1 (-0x1.26af6ap+0f)
#define DW_GELU_C2 (-0x1.d6298ap-2f)
#define DW_GELU_C3 (-0x1.af76bep-5f)
#define DW_GELU_C4 0x1.dd1682p-8f
#define DW_GELU_C5 (-0x1.20ce90p-12f)
#define DW_GELU_C6 (-0x1.2cae8cp-13f)
#define DW_GELU_C7 0x1.29bdc8p-15f
#define DW_GELU_C8 (-0x1.eb689ep-19f)
#define DW_GELU_C9 0x1.40f7a4p-23f
#define DW_GELU_SLOPE (-8.2f)

#endif
