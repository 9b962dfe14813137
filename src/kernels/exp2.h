/* 2^x for softmax weights and activations: the constants that all instruction sets share.
   2^x = 2^r * p(x - r), r = x rounded to the nearest integer (ties to even), |x - r| <= 1/2, p(f) = 1 + f (C1 + f (C2 + ...))
   as one chain of FMAs from C6 down. p is a minimax fit (relative error 2^-28.9 before rounding, 2^-23.6 as computed in float).
   */
#ifndef DW_KERNELS_EXP2_H
#define DW_KERNELS_EXP2_H

#define DW_EXP2_C1 0x1.62e430p-1f
#define DW_EXP2_C2 0x1.ebfbdcp-3f
#define DW_EXP2_C3 0x1.c6aee8p-5f
#define DW_EXP2_C4 0x1.3b2d4cp-7f
#define DW_EXP2_C5 0x1.5f3e52p-10f
#define DW_EXP2_C6 0x1.41fbbcp-13f

#define DW_EXP2_MIN (-125.0f) /* below: exactly +0, so that no result is denormal */

#define DW_LOG2_E 1.44269504088896340736

#endif
