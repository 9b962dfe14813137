/* The kernels of the screen as defined. */
#include <math.h>

#include "kernels/f16.h"
#include "kernels/screen_kernels.h"

static float sum_halves(float *lane)
{
    for (int half = DW_LANES / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    }
    return lane[0];
}

dw_screen_query dw_screen_query_scalar(int16_t *number, const float *q, const uint16_t *scale, const uint16_t *lowest, int n)
{
    float squares[DW_LANES] = {0};
    float offset[DW_LANES] = {0};
    dw_screen_query query = {.largest = 0.0f};
    float steps;
    for (int c = 0; c < n; c++) {
        const float s = dw_f32_of_bf16(scale[c]);
        const float p = fabsf(q[c] * s);
        if (p > query.largest) query.largest = p;
        offset[c % DW_LANES] = fmaf(q[c], fmaf(128.0f, s, dw_f32_of_bf16(lowest[c])), offset[c % DW_LANES]);
    }
    query.unit = query.largest < DW_SCREEN_LEAST ? 0.0f : query.largest / DW_SCREEN_STEPS;
    steps = query.largest < DW_SCREEN_LEAST ? 0.0f : DW_SCREEN_STEPS / query.largest;
    for (int c = 0; c < n; c++) {
        const float t = q[c] * dw_f32_of_bf16(scale[c]) * steps;
        number[c] = (int16_t)rintf(t);
        query.sum += number[c];
        squares[c % DW_LANES] = fmaf(t, t, squares[c % DW_LANES]);
    }
    query.squares = sum_halves(squares);
    query.offset = sum_halves(offset);
    return query;
}

void dw_screen_scores_scalar(float *out, const dw_screen_query *query, const int16_t *number, int rows, const uint8_t *codes,
                             int n)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int j = 0; j < DW_BLOCK; j++) {
            int32_t sum = 0; /* |sum| <= 512 * 128 * 32000 < 2^31 */
            for (int c = 0; c < n; c++) sum += number[i * n + c] * (codes[(c / 4 * DW_BLOCK + j) * 4 + c % 4] - 128);
            out[i * DW_BLOCK + j] = fmaf(query[i].unit, (float)sum, query[i].offset);
        }
    }
}

void dw_key_scores_scalar(float *out, const float *q, const float *rows, int64_t stride, int n, int d)
{
    dw_key_scores_chains(out, q, rows, stride, n, d);
}
