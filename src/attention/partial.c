#include "attention/partial.h"

#include <math.h>
#include <string.h>

enum { LIMB_BITS = 28 };

static int64_t floor_div(int64_t a, int64_t b)
{
    const int64_t quotient = a / b;
    return quotient * b > a ? quotient - 1 : quotient;
}

/* 2^e for -126 <= e <= 127. */
static float power_of_two(int e)
{
    const uint32_t bits = (uint32_t)(e + 127) << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

void dw_partial_clear(int64_t *partial, int64_t channels)
{
    memset(partial, 0, (size_t)dw_partial_words(channels) * sizeof *partial);
    partial[0] = DW_PARTIAL_EMPTY;
}

/* Makes `top` the highest limb index J: limbs that fall below J-1 are dropped. */
static void raise_top(int64_t *partial, int64_t channels, int64_t top)
{
    int64_t *limb = partial + 1;
    const int64_t rise = partial[0] == DW_PARTIAL_EMPTY || top - partial[0] > 3 ? 3 : top - partial[0];
    if (rise < 3) memmove(limb, limb + rise * channels, (size_t)((3 - rise) * channels) * sizeof *limb);
    memset(limb + (3 - rise) * channels, 0, (size_t)(rise * channels) * sizeof *limb);
    partial[0] = top;
}

void dw_partial_add(const dw_kernels *kernels, int64_t *partial, int64_t channels, int32_t exponent, const float *values,
                    float weight, int v)
{
    const int64_t p = (int64_t)exponent - LIMB_BITS;
    const int64_t index = floor_div(p, LIMB_BITS);
    const int shift = (int)(p - index * LIMB_BITS);
    if (partial[0] == DW_PARTIAL_EMPTY || index > partial[0]) raise_top(partial, channels, index);
    const int64_t slot = index - (partial[0] - 1); /* of limb `index` among J-1, J, J+1 */
    int64_t *low = partial + 1 + slot * channels;
    int64_t *high = low + channels;
    if (slot < -1) return;
    if (slot < 0) low = NULL;
    if (channels > 1) kernels->add_limbs(low, high, values, channels - 1, power_of_two(LIMB_BITS - v), shift);
    kernels->add_limbs(low == NULL ? NULL : low + channels - 1, high + channels - 1, &weight, 1, power_of_two(LIMB_BITS),
                       shift);
}

void dw_partial_add_integer(int64_t *partial, int64_t p, int64_t y)
{
    const int64_t index = floor_div(p, LIMB_BITS);
    const int64_t z = y * ((int64_t)1 << (p - index * LIMB_BITS));
    int64_t *limb = partial + 1;
    if (partial[0] == DW_PARTIAL_EMPTY || index > partial[0]) raise_top(partial, 1, index);
    const int64_t slot = index - (partial[0] - 1); /* of limb `index` among J-1, J, J+1 */
    if (slot < -1) return;
    if (slot >= 0) limb[slot] += z & (((int64_t)1 << LIMB_BITS) - 1);
    limb[slot + 1] += z >> LIMB_BITS; /* arithmetic: floor */
}

void dw_partial_merge(int64_t *mine, const int64_t *theirs, int64_t channels)
{
    int64_t *limb = mine + 1;
    int64_t skip;
    if (theirs[0] == DW_PARTIAL_EMPTY) return;
    if (mine[0] == DW_PARTIAL_EMPTY || theirs[0] > mine[0]) raise_top(mine, channels, theirs[0]);
    skip = mine[0] - theirs[0]; /* their limbs that have fallen below J-1 */
    for (int64_t i = skip * channels; i < 3 * channels; i++) limb[i - skip * channels] += theirs[1 + i];
}

static __int128 total(const int64_t *partial, int64_t channels, int64_t c)
{
    const int64_t *limb = partial + 1 + c;
    return limb[2 * channels] * ((__int128)1 << 2 * LIMB_BITS) + limb[channels] * ((__int128)1 << LIMB_BITS) + limb[0];
}

void dw_partial_finish(const int64_t *partial, int64_t channels, int v, float *out)
{
    const double weight = (double)total(partial, channels, channels - 1);
    const double scale = ldexp(1.0, v);
    for (int64_t c = 0; c < channels - 1; c++) out[c] = (float)(scale * ((double)total(partial, channels, c) / weight));
}

double dw_partial_mass(const int64_t *partial, int64_t channels, int64_t *exponent)
{
    *exponent = LIMB_BITS * (partial[0] - 1); /* limb i counts units of 2^(28 i) */
    return (double)total(partial, channels, channels - 1);
}

float dw_partial_bits(const int64_t *partial, int64_t channels)
{
    int64_t exponent;
    const double mass = dw_partial_mass(partial, channels, &exponent);
    return (float)(log2(mass) + (double)exponent);
}
