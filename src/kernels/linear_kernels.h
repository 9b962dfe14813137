/* Private to kernels/: the slots `linear`, `dequantize` and `linear_tile` of each instruction set (contract in kernels.h),
   and the storage blocks that they read. */
#ifndef DW_KERNELS_LINEAR_KERNELS_H
#define DW_KERNELS_LINEAR_KERNELS_H

#include <stdint.h>

#include "kernels/types.h"

/* 32 weights d * q. d is a half. */
typedef struct {
    uint16_t d;
    int8_t q[32];
} dw_q8_0;

/* 32 weights d * q + m, q in 0..15: weight i < 16 is the low nibble of q[i], weight i + 16 the high one. d, m are halves. */
typedef struct {
    uint16_t d;
    uint16_t m;
    uint8_t q[16];
} dw_q4_1;

_Static_assert(sizeof(dw_q8_0) == 34 && sizeof(dw_q4_1) == 20, "blocks as they lie in the file");

/* The types of the blocks above. */
static inline int dw_has_scales(dw_type type)
{
    return type == DW_Q8_0 || type == DW_Q4_1;
}

/* Bytes of 32 weights, which the vector kernels take at a time: dw_types says the same, but here the compiler sees it. */
static inline int64_t dw_piece_bytes(dw_type type)
{
    if (type == DW_Q4_1) return sizeof(dw_q4_1);
    if (type == DW_Q8_0) return sizeof(dw_q8_0);
    return type == DW_F32 ? 32 * 4 : 32 * 2;
}

#define DW_DECLARE_LINEAR(type, isa)                                                                                           \
    void dw_linear_##type##_##isa(float *y, int64_t y_stride, const void *w, int64_t outputs, const float *x,                  \
                                  int64_t x_stride, int rows, int64_t inputs);                                                 \
    void dw_dequantize_##type##_##isa(float *out, const void *row, int64_t inputs)

#define DW_DECLARE_LINEAR_SLOTS(isa)                                                                                           \
    DW_DECLARE_LINEAR(f32, isa);                                                                                               \
    DW_DECLARE_LINEAR(f16, isa);                                                                                               \
    DW_DECLARE_LINEAR(bf16, isa);                                                                                              \
    DW_DECLARE_LINEAR(q8_0, isa);                                                                                              \
    DW_DECLARE_LINEAR(q4_1, isa);                                                                                              \
    void dw_linear_tile_##isa(float *y, int64_t y_stride, const float *w, int64_t w_stride, int64_t outputs, const float *x,   \
                              int64_t x_stride, int64_t rows, int64_t inputs)

DW_DECLARE_LINEAR_SLOTS(scalar);
DW_DECLARE_LINEAR_SLOTS(avx2);
DW_DECLARE_LINEAR_SLOTS(avx512);

#endif
