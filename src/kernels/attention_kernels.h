/* Attention kernels, one set an ISA; contracts in kernels.h. */
#ifndef DW_KERNELS_ATTENTION_KERNELS_H
#define DW_KERNELS_ATTENTION_KERNELS_H

#include <stdint.h>

#include "kernels/f16.h"
#include "kernels/types.h"

#define DW_DECLARE_ATTENTION_KERNELS(isa)                                                                                      \
    void dw_scores_f32_##isa(float *out, const float *q, int64_t q_stride, int n, const void *k, int d);                       \
    void dw_scores_f16_##isa(float *out, const float *q, int64_t q_stride, int n, const void *k, int d);                       \
    void dw_scores_bf16_##isa(float *out, const float *q, int64_t q_stride, int n, const void *k, int d);                      \
    float dw_weights_##isa(float *w, const float *s, float scale, uint64_t mask, int32_t *exponent, float *sum,                \
                           float *maxima);                                                                                     \
    void dw_values_f32_##isa(float *out, const float *w, int n, const void *v, int d, int first, int last);                    \
    void dw_values_f16_##isa(float *out, const float *w, int n, const void *v, int d, int first, int last);                    \
    void dw_values_bf16_##isa(float *out, const float *w, int n, const void *v, int d, int first, int last);                   \
    void dw_add_limbs_##isa(int64_t *low, int64_t *high, const float *o, int64_t n, float scale, int shift);

DW_DECLARE_ATTENTION_KERNELS(scalar)
DW_DECLARE_ATTENTION_KERNELS(avx2)
DW_DECLARE_ATTENTION_KERNELS(avx512)

/* Number i of an array of a cache type, widened exactly. */
static inline float dw_cache_number(const void *array, int64_t i, dw_type type)
{
    if (type == DW_F32) return ((const float *)array)[i];
    if (type == DW_F16) return dw_f32_of_f16(((const uint16_t *)array)[i]);
    return dw_f32_of_bf16(((const uint16_t *)array)[i]);
}

/* The slots of one instruction set, from its functions scores and values that take the type as last argument. */
#define DW_DEFINE_ATTENTION_SLOTS(isa)                                                                                         \
    DW_DEFINE_ATTENTION_SLOTS_OF(isa, f32, DW_F32)                                                                             \
    DW_DEFINE_ATTENTION_SLOTS_OF(isa, f16, DW_F16)                                                                             \
    DW_DEFINE_ATTENTION_SLOTS_OF(isa, bf16, DW_BF16)

#define DW_DEFINE_ATTENTION_SLOTS_OF(isa, name, type)                                                                          \
    void dw_scores_##name##_##isa(float *out, const float *q, int64_t q_stride, int n, const void *k, int d)                   \
    {                                                                                                                          \
        scores(out, q, q_stride, n, k, d, type);                                                                               \
    }                                                                                                                          \
    void dw_values_##name##_##isa(float *out, const float *w, int n, const void *v, int d, int first, int last)                \
    {                                                                                                                          \
        values(out, w, n, v, d, first, last, type);                                                                            \
    }

#endif
