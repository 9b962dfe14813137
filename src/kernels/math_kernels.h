/* Elementwise kernels, one set an ISA; contracts in kernels.h. */
#ifndef DW_KERNELS_MATH_KERNELS_H
#define DW_KERNELS_MATH_KERNELS_H

#include <stdint.h>

void dw_exp2_scalar(float *out, const float *x, int64_t n);
void dw_exp2_avx2(float *out, const float *x, int64_t n);
void dw_exp2_avx512(float *out, const float *x, int64_t n);

void dw_silu_mul_scalar(float *gate, const float *up, int64_t n);
void dw_silu_mul_avx2(float *gate, const float *up, int64_t n);
void dw_silu_mul_avx512(float *gate, const float *up, int64_t n);

#endif
