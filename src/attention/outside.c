#include "attention/outside.h"

#include <math.h>

#include "attention/partial.h"
#include "kernels/kernels.h"

enum { UNIT_BITS = 24, WORDS = DW_OUTSIDE_WORDS / 2 };

void dw_outside_clear(int64_t *outside)
{
    dw_partial_clear(outside, 1);
    dw_partial_clear(outside + WORDS, 1);
}

void dw_outside_merge(int64_t *mine, const int64_t *theirs)
{
    dw_partial_merge(mine, theirs, 1);
    dw_partial_merge(mine + WORDS, theirs + WORDS, 1);
}

int64_t dw_outside_units(const float *weights, uint64_t mask)
{
    int32_t sum = 0; /* at most 64 * 2^24 */
    if (mask == UINT64_MAX) {
        for (int j = 0; j < DW_BLOCK; j++) sum += (int32_t)(weights[j] * 0x1p24f); /* vectorised */
        return sum;
    }
    for (int j = 0; j < DW_BLOCK; j++) sum += (mask >> j & 1) != 0 ? (int32_t)(weights[j] * 0x1p24f) : 0;
    return sum;
}

/* For 0 <= f <= 1: 2^f <= 1 + 0.6932 f + 0.3069 f^2 (f^k <= f^2 in the series), 2^-f >= 1 - 0.6932 f + 0.18 f^2 (the series up to
   f^3 is below 2^-f, and 0.2402 - 0.0556 f > 0.18). */
static double at_most(double units, double f)
{
    return units * (1.0 + 0.6932 * f + 0.3069 * f * f);
}

static double at_least(double units, double f)
{
    return units * (1.0 - 0.6932 * f + 0.18 * f * f);
}

/* Whole bits, and the rest of them in *f. */
static int64_t split_bits(float bits, double *f)
{
    const double error = bits < 0x1p30f ? (double)bits : 0x1p30;
    const int64_t whole = (int64_t)error;
    *f = error - (double)whole;
    return whole;
}

void dw_outside_add(int64_t *outside, int32_t exponent, int64_t units, float bits)
{
    double f;
    const int64_t whole = split_bits(bits, &f);
    const int64_t least = (int64_t)at_least((double)units, f);
    const int64_t most = (int64_t)at_most((double)(units + DW_BLOCK), f) + 1;
    dw_partial_add_integer(outside, exponent - whole - UNIT_BITS, least);
    dw_partial_add_integer(outside + WORDS, exponent + whole - UNIT_BITS, most);
}

void dw_outside_remove(int64_t *outside, const dw_counted *counted, float weight)
{
    const int64_t units = (int64_t)(weight * 0x1p24f);
    double f;
    const int64_t whole = split_bits(counted->bits, &f);
    /* Of the low end at least what this key gave to it, of the high end at most. */
    dw_partial_add_integer(outside, counted->exponent - whole - UNIT_BITS, -(int64_t)at_least((double)(units + 1), f) - 1);
    dw_partial_add_integer(outside + WORDS, counted->exponent + whole - UNIT_BITS, -(int64_t)at_most((double)units, f));
}

/* outside / (outside + kept) */
static double share(const int64_t *partial, double kept, int64_t kept_exponent)
{
    int64_t exponent;
    double mass;
    double ratio;
    if (partial[0] == DW_PARTIAL_EMPTY) return 0.0;
    mass = dw_partial_mass(partial, 1, &exponent);
    if (mass <= 0.0) return 0.0;
    if (exponent - kept_exponent > 900) return 1.0;
    ratio = exponent - kept_exponent < -1000 ? 0.0 : ldexp(mass, (int)(exponent - kept_exponent)) / kept;
    return ratio / (1.0 + ratio);
}

dw_interval dw_outside_share(const int64_t *outside, double kept, int64_t kept_exponent, double kept_bits, int64_t blocks)
{
    /* The kept sum: roundings of 2^x and of block sums (40 u), and of the integers, half a unit of 2^-28 a block against a sum of at
       least 2^-1; as bits, a little more. */
    const double bits = fmin(200.0, kept_bits + DW_WEIGHT_BITS + 2.0 * (double)blocks * 0x1p-27);
    const double dropped = (double)blocks * 0x1p-50; /* limbs below those that are kept */
    return (dw_interval){dw_mass_tilt(share(outside, kept, kept_exponent), -bits),
                         fmin(1.0, dw_mass_tilt(share(outside + WORDS, kept, kept_exponent), bits) + dropped)};
}
