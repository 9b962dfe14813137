/* The table of kernels. Portable C ("scalar") is the definition of every operator, roundings included; an instruction set
   only overwrites slots, and every slot gives the definition's bits (docs/numerics.md; tests/unit/kernels_*).
   All kernels are local, allocate nothing, and expect finite input and the float state of dw_set_float_state. */
#ifndef DW_KERNELS_KERNELS_H
#define DW_KERNELS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/types.h"

enum {
    DW_BLOCK = 64,      /* keys of a KV block */
    DW_LANES = 16,      /* partial sums of every sum along a vector */
    DW_LINEAR_ROWS = 4, /* most rows of one call of linear[] */
    DW_MAX_HEAD_DIM = 512,
    DW_MAX_SCORE_BITS = 1 << 22 /* above it a float score has no bits left behind the point */
};

/* Floats from one row of activations to the next: inputs rounded up to whole lanes. The surplus must be zero. */
static inline int64_t dw_padded(int64_t inputs)
{
    return (inputs + DW_LANES - 1) / DW_LANES * DW_LANES;
}

/* A query against one block of the int8 screen (cache/screen.h), in whole numbers of `unit`. */
typedef struct {
    float largest; /* largest |p[c]|, p[c] = q[c] * scale[c] */
    float unit;    /* largest / 32000; 0 when largest < 1e-30: then all numbers are 0 */
    float squares; /* sum of (p[c] / unit)^2 */
    float offset;  /* q . (lowest + 128 scale) */
    int32_t sum;   /* of the numbers */
} dw_screen_query;

typedef struct dw_kernels {
    const char *name; /* "scalar", "avx2", "avx512" */

    /* y[r * y_stride + o] = w[o] . x[r] for r < rows (1..DW_LINEAR_ROWS), o < outputs.
       w: `outputs` rows of one storage type, dw_row_bytes apart. x: rows of dw_padded(inputs) floats, x_stride apart, zero
       from `inputs` on.
       Definition: weight i is widened to float exactly as dequantize does; lane l (0..15) starts at +0 and takes
       fma(w[i], x[i], lane) for i = l, l+16, ... up to dw_padded(inputs) (absent weights are +0); the dot product is the
       lanes added in halves: lane[l] += lane[l+8], then 4, 2, 1. */
    void (*linear[DW_TYPE_COUNT])(float *y, int64_t y_stride, const void *w, int64_t outputs, const float *x, int64_t x_stride,
                                  int rows, int64_t inputs);

    /* out[0 .. dw_padded(inputs)) = the numbers of one row widened to float, zeros behind. inputs is a multiple of the type's
       block. F16/BF16 exact; the quantised types as kernels/widen_scalar.c, which is bit for bit the Python package gguf. */
    void (*dequantize[DW_TYPE_COUNT])(float *out, const void *row, int64_t inputs);

    /* The same dot products as linear[DW_F32], for a tile of any size: w is [outputs] rows w_stride apart, x is [rows] rows
       x_stride apart, both zero-padded to dw_padded(inputs). y[r * y_stride + o]. */
    void (*linear_tile)(float *y, int64_t y_stride, const float *w, int64_t w_stride, int64_t outputs, const float *x,
                        int64_t x_stride, int64_t rows, int64_t inputs);

    /* out[i] = 2^x[i], x[i] <= 126: r = nearest integer, polynomial of degree 6 in x - r by Horner's FMA chain
       (kernels/exp2.h), exponent added as an integer; +0 below -125. In place allowed. */
    void (*exp2)(float *out, const float *x, int64_t n);

    /* x[i] = act(x[i]) * up[i]; with up NULL x[i] = act(x[i]). Definitions: kernels/activation_scalar.h. */
    void (*activate[DW_ACTIVATIONS])(float *x, const float *up, int64_t n);

    /* Raw scores of n vectors against one block: out[i * DW_BLOCK + j] = q[i] . K[j], one FMA chain from +0 in channel
       order. q: [n] rows of d floats, q_stride apart. k: one block [d][DW_BLOCK] of the type of the slot. */
    void (*scores[DW_TYPE_COUNT])(float *out, const float *q, int64_t q_stride, int n, const void *k, int d);

    /* Softmax weights of one row of one block. s: [DW_BLOCK] raw scores, scale = log2(e) / sqrt(d); mask bit j: key j counts.
       *exponent = ceil(largest counted s * scale); w[j] = 2^fma(s[j], scale, -*exponent) for counted keys, exactly +0 for
       the others (in place allowed); *sum = the weights added in DW_LANES lanes (index mod 16), then halves. mask must not be
       0. maxima: [DW_LANES] largest counted s[j] with j mod 16 = l, -infinity where there is none. Returns the largest of all
       (the caller checks that |it * scale| < DW_MAX_SCORE_BITS before it uses the rest). */
    float (*weights)(float *w, const float *s, float scale, uint64_t mask, int32_t *exponent, float *sum, float *maxima);

    /* out[i * d + c] = sum over the keys j of the block, in order, of w[i * DW_BLOCK + j] * V[j][c]: one FMA chain from +0.
       v: one block [DW_BLOCK][d] of the type of the slot. Keys outside first..last (0..63) have weight +0 in every row. */
    void (*values[DW_TYPE_COUNT])(float *out, const float *w, int n, const void *v, int d, int first, int last);

    /* number[c] = rint(p[c] * (32000 / largest)) for c < n, n a multiple of DW_LANES; scale and lowest are bfloat16. The sums of
       squares and of the offset run in 16 lanes of FMAs, then halves. Returns the rest. */
    dw_screen_query (*screen_query)(int16_t *number, const float *q, const uint16_t *scale, const uint16_t *lowest, int n);

    /* out[i * DW_BLOCK + j] = fma(unit, float(sum over c of number[c] * (codes - 128)), offset) for the 64 keys of a block and each of
       `rows` queries. number: [rows][n]; codes: [n / 4][64][4], n a multiple of DW_LANES, at most DW_MAX_HEAD_DIM. The sum is exact. */
    void (*screen_scores)(float *out, const dw_screen_query *query, const int16_t *number, int rows, const uint8_t *codes,
                          int n);

    /* out[i] = q . row i, one FMA chain from +0 in channel order (the bits of scores[]); rows: [n] of d floats, `stride` apart. */
    void (*key_scores)(float *out, const float *q, const float *rows, int64_t stride, int n, int d);

    /* Adds rint(o[c] * scale) << shift, split at 28 bits, to low[c] (its low 28 bits, >= 0) and high[c] (the rest, floor).
       scale is a power of two, |o[c] * scale| < 2^35, 0 <= shift < 28; low may be NULL (dropped). See attention/partial.h. */
    void (*add_limbs)(int64_t *low, int64_t *high, const float *o, int64_t n, float scale, int shift);
} dw_kernels;

/* The best table that this CPU can run, or the one that the environment variable DEWPOINT_ISA names ("scalar", "avx2",
   "avx512"); NULL when that name is unknown or this CPU can not run it. Never changes during a run. */
const dw_kernels *dw_kernels_best(void);

/* By name; NULL when unknown or not runnable here. */
const dw_kernels *dw_kernels_named(const char *name);

extern const dw_kernels dw_kernels_scalar;
extern const dw_kernels dw_kernels_avx2;       /* AVX2, FMA, F16C; may only be called where the CPU has them */
extern const dw_kernels dw_kernels_avx512;     /* AVX-512 F, BW, DQ, VL besides */
extern const dw_kernels dw_kernels_avx512vnni; /* AVX-512 VNNI besides; its name is "avx512" as well */

#endif
