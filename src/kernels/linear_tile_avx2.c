/* Linear layers on widened weights with AVX2 and FMA. */
#include <immintrin.h>

#include "kernels/halves_avx2.h"
#include "kernels/kernels.h"
#include "kernels/linear_kernels.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    TILE_OUTPUTS = 4, /* accumulators of a tile: TILE_OUTPUTS * TILE_ROWS of the 16 registers, for eight of the lanes */
    TILE_ROWS = 3,
    GROUP_OUTPUTS = 8, /* tiles that share pieces of GROUP_INPUTS inputs: in the L1 cache 12 KiB of w, 9 of x, 3 of lanes */
    GROUP_ROWS = 6,
    GROUP_INPUTS = 384
};

/* Eight lanes of every dot product of a group. */
typedef __m256 group_lanes[GROUP_ROWS][GROUP_OUTPUTS];

/* Adds the products of `numbers` inputs to eight lanes of outs (1 or TILE_OUTPUTS) x rows (1..TILE_ROWS) dot products.
   lane: [rows][GROUP_OUTPUTS]; w and x point at the first of these lanes. */
INLINE void add_lanes(__m256 *lane, int outs, int rows, const float *w, int64_t w_stride, const float *x, int64_t x_stride,
                      int64_t numbers)
{
    __m256 sum[TILE_ROWS][TILE_OUTPUTS];
#pragma GCC unroll 3
    for (int64_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int64_t o = 0; o < outs; o++) sum[r][o] = lane[r * GROUP_OUTPUTS + o];
    }
    for (int64_t i = 0; i < numbers; i += DW_LANES) {
        __m256 v[TILE_ROWS];
#pragma GCC unroll 3
        for (int64_t r = 0; r < rows; r++) v[r] = _mm256_loadu_ps(x + r * x_stride + i);
#pragma GCC unroll 4
        for (int64_t o = 0; o < outs; o++) {
            const __m256 weight = _mm256_loadu_ps(w + o * w_stride + i);
#pragma GCC unroll 3
            for (int64_t r = 0; r < rows; r++) sum[r][o] = _mm256_fmadd_ps(weight, v[r], sum[r][o]);
        }
    }
#pragma GCC unroll 3
    for (int64_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int64_t o = 0; o < outs; o++) lane[r * GROUP_OUTPUTS + o] = sum[r][o];
    }
}

/* Lanes 0-7, then 8-15: the second pass finds the numbers in the L1 cache. */
INLINE void add_tile(group_lanes *low_high, int64_t r, int64_t o, int outs, int rows, const float *w, int64_t w_stride,
                     const float *x, int64_t x_stride, int64_t numbers)
{
    for (int64_t h = 0; h < 2; h++) {
        add_lanes(&low_high[h][r][o], outs, rows, w + o * w_stride + 8 * h, w_stride, x + r * x_stride + 8 * h, x_stride,
                  numbers);
    }
}

INLINE void add_tile_rows(group_lanes *low_high, int64_t rows, int64_t o, int outs, const float *w, int64_t w_stride,
                          const float *x, int64_t x_stride, int64_t numbers)
{
    int64_t r = 0;
    for (; r + TILE_ROWS <= rows; r += TILE_ROWS) {
        add_tile(low_high, r, o, outs, TILE_ROWS, w, w_stride, x, x_stride, numbers);
    }
    if (rows - r == 2) add_tile(low_high, r, o, outs, 2, w, w_stride, x, x_stride, numbers);
    if (rows - r == 1) add_tile(low_high, r, o, outs, 1, w, w_stride, x, x_stride, numbers);
}

/* At most GROUP_OUTPUTS x GROUP_ROWS dot products, piece after piece of the inputs. */
static void tile_group(float *y, int64_t y_stride, const float *w, int64_t w_stride, int64_t outputs, const float *x,
                       int64_t x_stride, int64_t rows, int64_t padded)
{
    group_lanes low_high[2] = {0};
    for (int64_t i = 0; i < padded; i += GROUP_INPUTS) {
        const int64_t numbers = padded - i < GROUP_INPUTS ? padded - i : GROUP_INPUTS;
        int64_t o = 0;
        for (; o + TILE_OUTPUTS <= outputs; o += TILE_OUTPUTS) {
            add_tile_rows(low_high, rows, o, TILE_OUTPUTS, w + i, w_stride, x + i, x_stride, numbers);
        }
        for (; o < outputs; o++) add_tile_rows(low_high, rows, o, 1, w + i, w_stride, x + i, x_stride, numbers);
    }
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t o = 0; o < outputs; o += 4) {
            lanes sum[4];
            float dot[4];
            for (int64_t i = 0; i < 4; i++) sum[i] = (lanes){low_high[0][r][o + i], low_high[1][r][o + i]};
            _mm_storeu_ps(dot, add_in_halves(sum[0], sum[1], sum[2], sum[3]));
            for (int64_t i = 0; i < 4 && o + i < outputs; i++) y[r * y_stride + o + i] = dot[i];
        }
    }
}

void dw_linear_tile_avx2(float *y, int64_t y_stride, const float *w, int64_t w_stride, int64_t outputs, const float *x,
                         int64_t x_stride, int64_t rows, int64_t inputs)
{
    for (int64_t r = 0; r < rows; r += GROUP_ROWS) {
        const int64_t group_rows = rows - r < GROUP_ROWS ? rows - r : GROUP_ROWS;
        for (int64_t o = 0; o < outputs; o += GROUP_OUTPUTS) {
            const int64_t group_outputs = outputs - o < GROUP_OUTPUTS ? outputs - o : GROUP_OUTPUTS;
            tile_group(y + r * y_stride + o, y_stride, w + o * w_stride, w_stride, group_outputs, x + r * x_stride, x_stride,
                       group_rows, dw_padded(inputs));
        }
    }
}
