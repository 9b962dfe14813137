/* Attention kernels, one set an ISA; contracts in kernels.h. */
#ifndef DW_KERNELS_ATTENTION_KERNELS_H
#define DW_KERNELS_ATTENTION_KERNELS_H

#include <stdint.h>

#define DW_DECLARE_ATTENTION_KERNELS(isa)                                                                              \
    void dw_scores_f32_##isa(float *out, const float *q, int64_t q_stride, int n, const void *k, int d);              \
    void dw_scores_f16_##isa(float *out, const float *q, int64_t q_stride, int n, const void *k, int d);              \
    void dw_scores_bf16_##isa(float *out, const float *q, int64_t q_stride, int n, const void *k, int d);             \
    float dw_weights_##isa(float *w, const float *s, float scale, uint64_t mask, int32_t *exponent, float *sum,       \
                           float *maxima);                                                                            \
    void dw_values_f32_##isa(float *out, const float *w, int n, const void *v, int d, int first, int last);           \
    void dw_values_f16_##isa(float *out, const float *w, int n, const void *v, int d, int first, int last);           \
    void dw_values_bf16_##isa(float *out, const float *w, int n, const void *v, int d, int first, int last);          \
    void dw_add_limbs_##isa(int64_t *low, int64_t *high, const float *o, int64_t n, float scale, int shift);

DW_DECLARE_ATTENTION_KERNELS(scalar)
DW_DECLARE_ATTENTION_KERNELS(avx2)
DW_DECLARE_ATTENTION_KERNELS(avx512)

#endif
