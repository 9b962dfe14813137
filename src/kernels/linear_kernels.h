/* Private to kernels/: the slots `linear`, `dequantize` and `linear_tile` of each instruction set (contract in kernels.h),
   and the storage blocks that they read. */
#ifndef DW_KERNELS_LINEAR_KERNELS_H
#define DW_KERNELS_LINEAR_KERNELS_H

#include <stdint.h>

#include "kernels/blocks.h"
#include "kernels/types.h"

/* What the vector kernels take at a time: a block of a quantised type, 32 numbers of the others. dw_types says the same of
   blocks, but here the compiler sees it. */
static inline int dw_piece_numbers(dw_type type)
{
    switch (type) {
    case DW_Q2_K:
    case DW_Q3_K:
    case DW_Q4_K:
    case DW_Q5_K:
    case DW_Q6_K:
    case DW_IQ4_XS: return 256;
    default: return 32;
    }
}

static inline int64_t dw_piece_bytes(dw_type type)
{
    switch (type) {
    case DW_F32: return 32 * sizeof(float);
    case DW_Q4_0:
    case DW_IQ4_NL: return sizeof(dw_q4_0);
    case DW_Q4_1: return sizeof(dw_q4_1);
    case DW_Q5_0: return sizeof(dw_q5_0);
    case DW_Q5_1: return sizeof(dw_q5_1);
    case DW_Q8_0: return sizeof(dw_q8_0);
    case DW_Q2_K: return sizeof(dw_q2_k);
    case DW_Q3_K: return sizeof(dw_q3_k);
    case DW_Q4_K: return sizeof(dw_q4_k);
    case DW_Q5_K: return sizeof(dw_q5_k);
    case DW_Q6_K: return sizeof(dw_q6_k);
    case DW_IQ4_XS: return sizeof(dw_iq4_xs);
    default: return 32 * sizeof(uint16_t);
    }
}

static inline int dw_has_scales(dw_type type)
{
    return type != DW_F32 && type != DW_F16 && type != DW_BF16;
}

/* out = the numbers of one block (one number of the types without blocks): the definition of widening. */
void dw_widen_block_scalar(float *out, dw_type type, const void *block);

/* DO(F32, f32, isa) and so on for every type. */
#define DW_EACH_TYPE(DO, isa)                                                                                                  \
    DO(F32, f32, isa)                                                                                                          \
    DO(F16, f16, isa)                                                                                                          \
    DO(BF16, bf16, isa)                                                                                                        \
    DO(Q4_0, q4_0, isa)                                                                                                        \
    DO(Q4_1, q4_1, isa)                                                                                                        \
    DO(Q5_0, q5_0, isa)                                                                                                        \
    DO(Q5_1, q5_1, isa)                                                                                                        \
    DO(Q8_0, q8_0, isa)                                                                                                        \
    DO(Q2_K, q2_k, isa)                                                                                                        \
    DO(Q3_K, q3_k, isa)                                                                                                        \
    DO(Q4_K, q4_k, isa)                                                                                                        \
    DO(Q5_K, q5_k, isa)                                                                                                        \
    DO(Q6_K, q6_k, isa)                                                                                                        \
    DO(IQ4_NL, iq4_nl, isa)                                                                                                    \
    DO(IQ4_XS, iq4_xs, isa)

#define DW_DECLARE_LINEAR(TYPE, type, isa)                                                                                     \
    void dw_linear_##type##_##isa(float *y, int64_t y_stride, const void *w, int64_t outputs, const float *x,                  \
                                  int64_t x_stride, int rows, int64_t inputs);                                                 \
    void dw_dequantize_##type##_##isa(float *out, const void *row, int64_t inputs);

#define DW_DECLARE_LINEAR_SLOTS(isa)                                                                                           \
    DW_EACH_TYPE(DW_DECLARE_LINEAR, isa)                                                                                       \
    void dw_linear_tile_##isa(float *y, int64_t y_stride, const float *w, int64_t w_stride, int64_t outputs, const float *x,   \
                              int64_t x_stride, int64_t rows, int64_t inputs)

DW_DECLARE_LINEAR_SLOTS(scalar);
DW_DECLARE_LINEAR_SLOTS(avx2);
DW_DECLARE_LINEAR_SLOTS(avx512);

#endif
