#include "kernels/vector.h"

#include <math.h>
#include <string.h>

#include "base/precise.h"
#include "kernels/kernels.h"

void dw_rms_norm(float *y, const float *x, const float *gain, int64_t n, float epsilon)
{
    float lane[DW_LANES] = {0};
    int64_t i = 0;
    for (; i + DW_LANES <= n; i += DW_LANES) {
        for (int l = 0; l < DW_LANES; l++) lane[l] += x[i + l] * x[i + l];
    }
    for (int l = 0; i + l < n; l++) lane[l] += x[i + l] * x[i + l];
    for (int half = DW_LANES / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    }
    const float scale = 1.0f / sqrtf(lane[0] / (float)n + epsilon);
    for (i = 0; i < n; i++) y[i] = x[i] * scale * gain[i];
    memset(y + n, 0, (size_t)(dw_padded(n) - n) * sizeof *y);
}

void dw_vector_add(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

void dw_rope_angles(float *cosine, float *sine, int64_t position, int64_t dims, double base)
{
    for (int64_t i = 0; i < dims / 2; i++) {
        double s;
        double c;
        dw_sin_cos((double)position * dw_pow(base, -2.0 * (double)i / (double)dims), &s, &c);
        cosine[i] = (float)c;
        sine[i] = (float)s;
    }
}

void dw_rope(float *head, const float *cosine, const float *sine, int64_t dims, int halves)
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
