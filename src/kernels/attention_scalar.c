/* The attention kernels as defined. */
#include <math.h>
#include <string.h>

#include "kernels/attention_kernels.h"
#include "kernels/exp2_scalar.h"
#include "kernels/kernels.h"

static inline void scores(float *out, const float *q, int64_t q_stride, int n, const void *k, int d, dw_type type)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < DW_BLOCK; j++) {
            float dot = 0.0f;
            for (int c = 0; c < d; c++)
                dot = fmaf(q[i * q_stride + c], dw_cache_number(k, (int64_t)c * DW_BLOCK + j, type), dot);
            out[i * DW_BLOCK + j] = dot;
        }
    }
}

float dw_weights_scalar(float *w, const float *s, float scale, uint64_t mask, int32_t *exponent, float *sum, float *maxima)
{
    float lane[DW_LANES] = {0};
    float best = -INFINITY;
    float e;
    for (int l = 0; l < DW_LANES; l++) maxima[l] = -INFINITY;
    for (int j = 0; j < DW_BLOCK; j++) {
        if ((mask >> j & 1) != 0 && s[j] > maxima[j % DW_LANES]) maxima[j % DW_LANES] = s[j];
    }
    for (int l = 0; l < DW_LANES; l++) best = maxima[l] > best ? maxima[l] : best;
    e = ceilf(best * scale);
    *exponent = fabsf(e) <= (float)DW_MAX_SCORE_BITS ? (int32_t)e : 0; /* out of range is the caller's to report */
    for (int j = 0; j < DW_BLOCK; j++) {
        w[j] = (mask >> j & 1) != 0 ? dw_exp2_one(fmaf(s[j], scale, -e)) : 0.0f;
        lane[j % DW_LANES] += w[j];
    }
    for (int half = DW_LANES / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    }
    *sum = lane[0];
    return best;
}

static inline void values(float *out, const float *w, int n, const void *v, int d, int first, int last, dw_type type)
{
    for (int i = 0; i < n; i++) {
        for (int c = 0; c < d; c++) {
            float o = 0.0f;
            for (int j = first; j <= last; j++) o = fmaf(w[i * DW_BLOCK + j], dw_cache_number(v, (int64_t)j * d + c, type), o);
            out[(int64_t)i * d + c] = o;
        }
    }
}

DW_DEFINE_ATTENTION_SLOTS(scalar)

void dw_add_limbs_scalar(int64_t *low, int64_t *high, const float *o, int64_t n, float scale, int shift)
{
    for (int64_t c = 0; c < n; c++) {
        const int64_t z = (int64_t)rintf(o[c] * scale) * ((int64_t)1 << shift);
        if (low != NULL) low[c] += z & (((int64_t)1 << 28) - 1);
        high[c] += z >> 28; /* arithmetic: floor */
    }
}
