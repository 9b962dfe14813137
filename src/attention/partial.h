/* Order-free partial sums of one attention head: the weighted sum of V rows and the sum of weights over some set of 64-key
   blocks, as integers. Adding blocks and merging partial sums are associative and commutative, so that any split of the blocks
   over ranks and threads gives the same integers, and the same output (promise P1; derivation and error bound in
   docs/numerics.md).

   A block b has exponent E_b, weights w_j = 2^(s_j - E_b), sums o[c] = sum w_j V[j][c] and l = sum w_j in float. With p = E_b -
   28, i = floor(p / 28), shift = p - 28 i, each sum x is quantised to y = rint(2^(28-v) x) and z = y << shift is split over the
   limbs A[i] += z mod 2^28, A[i+1] += floor(z / 2^28). v bounds V: |V| <= 2^v (0 for the sum of weights). With J the highest i
   seen, limbs J-1, J, J+1 are kept: what lies lower is dropped as a whole limb, never shifted. */
#ifndef DW_ATTENTION_PARTIAL_H
#define DW_ATTENTION_PARTIAL_H

#include <stdint.h>

#include "kernels/kernels.h"

/* A partial sum of `channels` sums is dw_partial_words(channels) words: J (DW_PARTIAL_EMPTY: no block yet), then [3][channels]
   limbs J-1, J, J+1. It is also the message that travels. Attention uses d + 1 channels: the last is the sum of weights. */
#define DW_PARTIAL_EMPTY INT64_MIN

static inline int64_t dw_partial_words(int64_t channels)
{
    return 1 + 3 * channels;
}

void dw_partial_clear(int64_t *partial, int64_t channels);

/* Adds one block. values: [channels - 1] with |value| <= 64 * 2^(v + 1/8), weight: their sum of weights. exponent: E_b. */
void dw_partial_add(const dw_kernels *kernels, int64_t *partial, int64_t channels, int32_t exponent, const float *values,
                    float weight, int v);

/* Adds the whole number y, |y| < 2^35, times 2^p to a partial of one sum. */
void dw_partial_add_integer(int64_t *partial, int64_t p, int64_t y);

/* mine += theirs. Both have `channels` sums. */
void dw_partial_merge(int64_t *mine, const int64_t *theirs, int64_t channels);

/* out[c] = 2^v S[c] / S[channels - 1] with S = A[J+1] 2^56 + A[J] 2^28 + A[J-1] taken to double and the quotient to float, each
   rounded once. The partial must hold at least one block. */
void dw_partial_finish(const int64_t *partial, int64_t channels, int v, float *out);

/* Sum of weights as mass * 2^(*exponent), for ratios of masses. */
double dw_partial_mass(const int64_t *partial, int64_t channels, int64_t *exponent);

/* Its logarithm to the base 2. By libm: for what is only a hint, since its last bits depend on the machine. */
float dw_partial_bits(const int64_t *partial, int64_t channels);

#endif
