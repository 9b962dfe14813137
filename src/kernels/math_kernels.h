/* Elementwise kernels, one set an ISA; contracts in kernels.h. */
#ifndef DW_KERNELS_MATH_KERNELS_H
#define DW_KERNELS_MATH_KERNELS_H

#include <stdint.h>

void dw_exp2_scalar(float *out, const float *x, int64_t n);
void dw_exp2_avx2(float *out, const float *x, int64_t n);
void dw_exp2_avx512(float *out, const float *x, int64_t n);

#define DW_ACTIVATIONS_OF(isa)                                                                                                 \
    void dw_silu_##isa(float *x, const float *up, int64_t n);                                                                  \
    void dw_gelu_##isa(float *x, const float *up, int64_t n);                                                                  \
    void dw_gelu_tanh_##isa(float *x, const float *up, int64_t n)

DW_ACTIVATIONS_OF(scalar);
DW_ACTIVATIONS_OF(avx2);
DW_ACTIVATIONS_OF(avx512);

#endif
