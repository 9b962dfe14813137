/* Cheap operators along one vector. Plain C with separate roundings of every product and sum (no FMA), so that whatever the
   compiler vectorises gives the same bits; no instruction set needs a form of its own. Local. */
#ifndef DW_KERNELS_VECTOR_H
#define DW_KERNELS_VECTOR_H

#include <stdint.h>

/* y[i] = (x[i] * s) * gain[i], s = 1 / sqrt(mean of squares + epsilon). The squares are added in 16 lanes (index mod 16), then
   in halves; mean = sum / n. y: [dw_padded(n)], zeros behind n. y may be x. */
void dw_rms_norm(float *y, const float *x, const float *gain, int64_t n, float epsilon);

/* y[i] = (d[i] * s) * gain[i] + bias[i], d[i] = x[i] - mean, s = 1 / sqrt(mean of d squared + epsilon). Sums as in dw_rms_norm.
   y: [dw_padded(n)], zeros behind n. y may be x. */
void dw_layer_norm(float *y, const float *x, const float *gain, const float *bias, int64_t n, float epsilon);

/* y[i] += x[i] */
void dw_vector_add(float *y, const float *x, int64_t n);

/* y[i] *= factor */
void dw_vector_scale(float *y, float factor, int64_t n);

/* Rotates the first dims numbers of one head in place: pair i, (a, b), becomes (a c - b s, a s + b c). Pairs are neighbours
   (2i, 2i+1), or with `halves` (i, i + dims/2). cosine, sine: [dims/2] (RoPE, arXiv 2104.09864). */
void dw_rotate(float *head, const float *cosine, const float *sine, int64_t dims, int halves);

/* Largest |x[i]|, or +infinity if any x[i] is infinite or NaN. */
float dw_largest(const float *x, int64_t n);

#endif
