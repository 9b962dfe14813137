/* The softmax mass of keys outside a set, as integers with certified ends: every block of keys adds a whole number of 2^-24 of its
   largest possible weight, rounded down for the low end and up for the high end, and moved by what its scores may be off; keys that turn
   out to be in the set are taken away again. So the sum does not depend on which rank or thread added what. Local. */
#ifndef DW_ATTENTION_OUTSIDE_H
#define DW_ATTENTION_OUTSIDE_H

#include "attention/omitted.h"

enum { DW_OUTSIDE_WORDS = 8 }; /* two partial sums of one channel: low end, high end */

/* What a key was counted with: its score, the exponent of its block, and by how many bits the scores of the block may be off. */
typedef struct {
    float score;
    int32_t exponent;
    float bits;
} dw_counted;

void dw_outside_clear(int64_t *outside);
void dw_outside_merge(int64_t *mine, const int64_t *theirs);

/* Sum of the weights of the keys of a block whose bit is set, in units of 2^-24, each rounded down. weights: [64], 0..1. */
int64_t dw_outside_units(const float *weights, uint64_t mask);

/* Adds keys of one block: weights 2^(score - exponent) of at most 64 keys that sum to `units`, scores off by at most `bits`. */
void dw_outside_add(int64_t *outside, int32_t exponent, int64_t units, float bits);

/* Takes away one key that is a part of it. weight: what was summed, 2^(counted.score * scale - counted.exponent). */
void dw_outside_remove(int64_t *outside, const dw_counted *counted, float weight);

/* The share of the mass outside in all of it. kept * 2^kept_exponent: sum of weights in the set, over `blocks` blocks; kept_bits: by
   how much its scores may be off. */
dw_interval dw_outside_share(const int64_t *outside, double kept, int64_t kept_exponent, double kept_bits, int64_t blocks);

/* What the float roundings of 2^x add to the bits by which a score is off. */
#define DW_WEIGHT_BITS 0x1p-17

#endif
