/* The definition of linear layers in portable C: made to be read, not to be fast. */
#include <math.h>

#include "kernels/f16.h"
#include "kernels/kernels.h"
#include "kernels/linear_kernels.h"

enum { PIECE = 32 }; /* numbers widened at a time: a block of the quantised types */

static void widen_q8_0(float out[PIECE], const dw_q8_0 *block)
{
    const float d = dw_f32_of_f16(block->d);
    for (int i = 0; i < PIECE; i++) out[i] = d * (float)block->q[i];
}

static void widen_q4_1(float out[PIECE], const dw_q4_1 *block)
{
    const float d = dw_f32_of_f16(block->d);
    const float m = dw_f32_of_f16(block->m);
    for (int i = 0; i < PIECE / 2; i++) {
        out[i] = fmaf(d, (float)(block->q[i] & 15), m);
        out[i + PIECE / 2] = fmaf(d, (float)(block->q[i] >> 4), m);
    }
}

/* out = numbers first..first+PIECE-1 of a row, +0 from `inputs` on. first is a multiple of PIECE. */
static void widen(float out[PIECE], dw_type type, const void *row, int64_t first, int64_t inputs)
{
    const int64_t count = inputs - first < PIECE ? inputs - first : PIECE;
    if (type == DW_Q8_0) {
        widen_q8_0(out, (const dw_q8_0 *)row + first / PIECE);
        return;
    }
    if (type == DW_Q4_1) {
        widen_q4_1(out, (const dw_q4_1 *)row + first / PIECE);
        return;
    }
    for (int64_t i = 0; i < PIECE; i++) {
        if (i >= count) {
            out[i] = 0.0f;
        } else if (type == DW_F32) {
            out[i] = ((const float *)row)[first + i];
        } else if (type == DW_F16) {
            out[i] = dw_f32_of_f16(((const uint16_t *)row)[first + i]);
        } else {
            out[i] = dw_f32_of_bf16(((const uint16_t *)row)[first + i]);
        }
    }
}

static void dequantize(float *out, dw_type type, const void *row, int64_t inputs)
{
    const int64_t padded = dw_padded(inputs);
    for (int64_t first = 0; first < padded; first += PIECE) {
        float piece[PIECE];
        widen(piece, type, row, first, inputs);
        for (int64_t i = 0; i < PIECE && first + i < padded; i++) out[first + i] = piece[i];
    }
}

static float add_in_halves(float lane[DW_LANES])
{
    for (int half = DW_LANES / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    }
    return lane[0];
}

static float dot(dw_type type, const void *row, const float *x, int64_t inputs)
{
    const int64_t padded = dw_padded(inputs);
    float lane[DW_LANES] = {0};
    for (int64_t first = 0; first < padded; first += PIECE) {
        float w[PIECE];
        widen(w, type, row, first, inputs);
        for (int64_t i = 0; i < PIECE && first + i < padded; i++) {
            lane[i % DW_LANES] = fmaf(w[i], x[first + i], lane[i % DW_LANES]);
        }
    }
    return add_in_halves(lane);
}

static void linear(dw_type type, float *y, int64_t y_stride, const void *w, int64_t outputs, const float *x, int64_t x_stride,
                   int rows, int64_t inputs)
{
    for (int64_t o = 0; o < outputs; o++) {
        const void *row = (const char *)w + o * dw_row_bytes(type, inputs);
        for (int r = 0; r < rows; r++) y[r * y_stride + o] = dot(type, row, x + r * x_stride, inputs);
    }
}

#define DEFINE_SLOTS(TYPE, type)                                                                                               \
    void dw_linear_##type##_scalar(float *y, int64_t y_stride, const void *w, int64_t outputs, const float *x,                 \
                                   int64_t x_stride, int rows, int64_t inputs)                                                 \
    {                                                                                                                          \
        linear(TYPE, y, y_stride, w, outputs, x, x_stride, rows, inputs);                                                      \
    }                                                                                                                          \
    void dw_dequantize_##type##_scalar(float *out, const void *row, int64_t inputs)                                            \
    {                                                                                                                          \
        dequantize(out, TYPE, row, inputs);                                                                                    \
    }

DEFINE_SLOTS(DW_F32, f32)
DEFINE_SLOTS(DW_F16, f16)
DEFINE_SLOTS(DW_BF16, bf16)
DEFINE_SLOTS(DW_Q8_0, q8_0)
DEFINE_SLOTS(DW_Q4_1, q4_1)

void dw_linear_tile_scalar(float *y, int64_t y_stride, const float *w, int64_t w_stride, int64_t outputs, const float *x,
                           int64_t x_stride, int64_t rows, int64_t inputs)
{
    for (int64_t o = 0; o < outputs; o++) {
        for (int64_t r = 0; r < rows; r++) {
            y[r * y_stride + o] = dot(DW_F32, w + o * w_stride, x + r * x_stride, dw_padded(inputs));
        }
    }
}
