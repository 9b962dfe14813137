/* The definition of linear layers in portable C: made to be read, not to be fast. */
#include <math.h>

#include "kernels/kernels.h"
#include "kernels/linear_kernels.h"

enum { PIECE = 256 }; /* numbers widened at a time: whole blocks of every type */

/* out = numbers first..first+count-1 of a row; both are multiples of the type's block. */
static void widen(float *out, dw_type type, const void *row, int64_t first, int64_t count)
{
    const int64_t numbers = dw_types[type].elements;
    for (int64_t i = 0; i < count; i += numbers) {
        dw_widen_block_scalar(out + i, type, (const char *)row + (first + i) / numbers * dw_types[type].bytes);
    }
}

static void dequantize(float *out, dw_type type, const void *row, int64_t inputs)
{
    widen(out, type, row, 0, inputs);
    for (int64_t i = inputs; i < dw_padded(inputs); i++) out[i] = 0.0f;
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
    float lane[DW_LANES] = {0};
    for (int64_t first = 0; first < inputs; first += PIECE) {
        const int64_t count = inputs - first < PIECE ? inputs - first : PIECE;
        float w[PIECE];
        widen(w, type, row, first, count);
        for (int64_t i = count; i < dw_padded(count); i++) w[i] = 0.0f;
        for (int64_t i = 0; i < dw_padded(count); i++) lane[i % DW_LANES] = fmaf(w[i], x[first + i], lane[i % DW_LANES]);
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

#define DEFINE_SLOTS(TYPE, type, isa)                                                                                          \
    void dw_linear_##type##_##isa(float *y, int64_t y_stride, const void *w, int64_t outputs, const float *x,                  \
                                  int64_t x_stride, int rows, int64_t inputs)                                                  \
    {                                                                                                                          \
        linear(DW_##TYPE, y, y_stride, w, outputs, x, x_stride, rows, inputs);                                                 \
    }                                                                                                                          \
    void dw_dequantize_##type##_##isa(float *out, const void *row, int64_t inputs)                                             \
    {                                                                                                                          \
        dequantize(out, DW_##TYPE, row, inputs);                                                                               \
    }

DW_EACH_TYPE(DEFINE_SLOTS, scalar)

void dw_linear_tile_scalar(float *y, int64_t y_stride, const float *w, int64_t w_stride, int64_t outputs, const float *x,
                           int64_t x_stride, int64_t rows, int64_t inputs)
{
    for (int64_t o = 0; o < outputs; o++) {
        for (int64_t r = 0; r < rows; r++) {
            y[r * y_stride + o] = dot(DW_F32, w + o * w_stride, x + r * x_stride, dw_padded(inputs));
        }
    }
}
