#include "kernels/vector.h"

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

/* The numbers of x, or their squares, added in lanes. */
static inline float sum_in_lanes(const float *x, int64_t n, int squares)
{
    float lane[DW_LANES] = {0};
    int64_t i = 0;
    for (; i + DW_LANES <= n; i += DW_LANES) {
        for (int l = 0; l < DW_LANES; l++) lane[l] += squares ? x[i + l] * x[i + l] : x[i + l];
    }
    for (int l = 0; i + l < n; l++) lane[l] += squares ? x[i + l] * x[i + l] : x[i + l];
    for (int half = DW_LANES / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    }
    return lane[0];
}

static void clear_padding(float *y, int64_t n)
{
    memset(y + n, 0, (size_t)(dw_padded(n) - n) * sizeof *y);
}

void dw_rms_norm(float *y, const float *x, const float *gain, int64_t n, float epsilon)
{
    const float scale = 1.0f / sqrtf(sum_in_lanes(x, n, 1) / (float)n + epsilon);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale * gain[i];
    clear_padding(y, n);
}

void dw_layer_norm(float *y, const float *x, const float *gain, const float *bias, int64_t n, float epsilon)
{
    const float mean = sum_in_lanes(x, n, 0) / (float)n;
    for (int64_t i = 0; i < n; i++) y[i] = x[i] - mean;
    const float scale = 1.0f / sqrtf(sum_in_lanes(y, n, 1) / (float)n + epsilon);
    for (int64_t i = 0; i < n; i++) y[i] = y[i] * scale * gain[i] + bias[i];
    clear_padding(y, n);
}

void dw_vector_add(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

void dw_vector_scale(float *y, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] *= factor;
}

void dw_rotate(float *head, const float *cosine, const float *sine, int64_t dims, int halves)
{
    const int64_t step = halves ? 1 : 2;           /* from one pair's first number to the next pair's */
    const int64_t partner = halves ? dims / 2 : 1; /* from a pair's first number to its second */
    for (int64_t i = 0; i < dims / 2; i++) {
        const float a = head[step * i];
        const float b = head[step * i + partner];
        head[step * i] = a * cosine[i] - b * sine[i];
        head[step * i + partner] = a * sine[i] + b * cosine[i];
    }
}

float dw_largest(const float *x, int64_t n)
{
    uint32_t largest = 0; /* of the bits without sign, which order like the numbers, NaN above infinity */
    float value;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7FFFFFFF;
        largest = bits > largest ? bits : largest;
    }
    if (largest > 0x7F800000) largest = 0x7F800000;
    memcpy(&value, &largest, sizeof value);
    return value;
}
