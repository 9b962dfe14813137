/* Linear layers on widened weights with AVX-512. */
#include <immintrin.h>

#include "kernels/halves_avx512.h"
#include "kernels/kernels.h"
#include "kernels/linear_kernels.h"

#define INLINE static inline __attribute__((always_inline))

enum { TILE_OUTPUTS = 4, TILE_ROWS = 6 }; /* accumulators of a tile: TILE_OUTPUTS * TILE_ROWS of the 32 registers */

/* outs (1 or TILE_OUTPUTS) x rows (1..TILE_ROWS) dot products. */
INLINE void tile(int outs, int rows, float *y, int64_t y_stride, const float *w, int64_t w_stride, const float *x,
                 int64_t x_stride, int64_t padded)
{
    __m512 sum[TILE_ROWS][TILE_OUTPUTS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int o = 0; o < outs; o++) sum[r][o] = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < padded; i += 16) {
        __m512 weight[TILE_OUTPUTS];
#pragma GCC unroll 4
        for (int o = 0; o < outs; o++) weight[o] = _mm512_loadu_ps(w + o * w_stride + i);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            const __m512 v = _mm512_loadu_ps(x + r * x_stride + i);
#pragma GCC unroll 4
            for (int o = 0; o < outs; o++) sum[r][o] = _mm512_fmadd_ps(weight[o], v, sum[r][o]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        if (outs == TILE_OUTPUTS) {
            _mm_storeu_ps(y + r * y_stride, add_in_halves(sum[r][0], sum[r][1], sum[r][2], sum[r][3]));
        } else {
            _mm_store_ss(y + r * y_stride, add_in_halves(sum[r][0], sum[r][0], sum[r][0], sum[r][0]));
        }
    }
}

INLINE void tile_rows(int rows, float *y, int64_t y_stride, const float *w, int64_t w_stride, int64_t outputs, const float *x,
                      int64_t x_stride, int64_t padded)
{
    int64_t o = 0;
    for (; o + TILE_OUTPUTS <= outputs; o += TILE_OUTPUTS) {
        tile(TILE_OUTPUTS, rows, y + o, y_stride, w + o * w_stride, w_stride, x, x_stride, padded);
    }
    for (; o < outputs; o++) tile(1, rows, y + o, y_stride, w + o * w_stride, w_stride, x, x_stride, padded);
}

void dw_linear_tile_avx512(float *y, int64_t y_stride, const float *w, int64_t w_stride, int64_t outputs, const float *x,
                           int64_t x_stride, int64_t rows, int64_t inputs)
{
    const int64_t padded = dw_padded(inputs);
    for (; rows >= TILE_ROWS; rows -= TILE_ROWS) {
        tile_rows(TILE_ROWS, y, y_stride, w, w_stride, outputs, x, x_stride, padded);
        y += TILE_ROWS * y_stride;
        x += TILE_ROWS * x_stride;
    }
    switch (rows) {
    case 1: tile_rows(1, y, y_stride, w, w_stride, outputs, x, x_stride, padded); break;
    case 2: tile_rows(2, y, y_stride, w, w_stride, outputs, x, x_stride, padded); break;
    case 3: tile_rows(3, y, y_stride, w, w_stride, outputs, x, x_stride, padded); break;
    case 4: tile_rows(4, y, y_stride, w, w_stride, outputs, x, x_stride, padded); break;
    case 5: tile_rows(5, y, y_stride, w, w_stride, outputs, x, x_stride, padded); break;
    default: break;
    }
}
