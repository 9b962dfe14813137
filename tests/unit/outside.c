/* The mass outside a set as integers: ends that contain it, and keys that are taken away again. */
#include "attention/outside.h"

#include <criterion/criterion.h>
#include <math.h>

#include "kernels/kernels.h"

static uint64_t state = 11;

static double next_double(void)
{
    uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

enum { BLOCKS = 40 };

/* Blocks of 64 random scores, which are off by up to `bits`; every tenth key is kept. */
static void check(double bits, double spread)
{
    int64_t outside[DW_OUTSIDE_WORDS];
    double kept = 0; /* 2^score */
    double left = 0;
    dw_interval share;
    dw_outside_clear(outside);
    for (int b = 0; b < BLOCKS; b++) {
        float counted[DW_BLOCK], weights[DW_BLOCK];
        int32_t exponent = -1000000;
        const double level = spread * (next_double() - 0.5);
        for (int j = 0; j < DW_BLOCK; j++) {
            const double score = level + 12 * next_double();
            counted[j] = (float)(score + bits * 0.99 * (2 * next_double() - 1));
            if (j % 10 == 0) kept += exp2(score);
            if (j % 10 != 0) left += exp2(score);
            if ((int32_t)ceilf(counted[j]) > exponent) exponent = (int32_t)ceilf(counted[j]);
        }
        for (int j = 0; j < DW_BLOCK; j++) weights[j] = exp2f(counted[j] - (float)exponent);
        dw_outside_add(outside, exponent, dw_outside_units(weights, UINT64_MAX), (float)bits + 1e-4f);
        for (int j = 0; j < DW_BLOCK; j += 10) {
            dw_outside_remove(outside, &(dw_counted){counted[j], exponent, (float)bits + 1e-4f}, weights[j]);
        }
    }
    share = dw_outside_share(outside, kept, 0, 1e-6, BLOCKS);
    cr_assert(share.low <= left / (kept + left) && left / (kept + left) <= share.high,
              "%g bits, spread %g: %g is not in [%g, %g]", bits, spread, left / (kept + left), share.low, share.high);
    if (bits <= 0.2) cr_assert_lt(share.high - share.low, 0.1);
}

Test(outside, the_share_is_within_the_ends_whatever_the_scores_are_off)
{
    static const double bits[] = {0, 1e-3, 0.1, 0.2, 0.9, 1.5, 7};
    static const double spreads[] = {0, 10, 300, 3000};
    for (int i = 0; i < 7; i++) {
        for (int s = 0; s < 4; s++) check(bits[i], spreads[s] > 200 ? 200 : spreads[s]);
    }
}

Test(outside, merging_in_any_order_gives_the_same_integers)
{
    int64_t sum[2][DW_OUTSIDE_WORDS], part[6][DW_OUTSIDE_WORDS];
    dw_outside_clear(sum[0]);
    dw_outside_clear(sum[1]);
    for (int p = 0; p < 6; p++) {
        dw_outside_clear(part[p]);
        for (int i = 0; i < 5; i++) {
            dw_outside_add(part[p], (int32_t)(100 * next_double()) - 50, (int64_t)(next_double() * (1 << 28)),
                           (float)next_double());
        }
    }
    for (int p = 0; p < 6; p++) {
        dw_outside_merge(sum[0], part[p]);
        dw_outside_merge(sum[1], part[5 - p]);
    }
    for (int w = 0; w < DW_OUTSIDE_WORDS; w++) cr_assert_eq(sum[0][w], sum[1][w], "word %d", w);
}

Test(outside, nothing_outside_is_no_share)
{
    int64_t outside[DW_OUTSIDE_WORDS];
    dw_interval share;
    dw_outside_clear(outside);
    share = dw_outside_share(outside, 1, 0, 0.1, 1);
    cr_assert(share.low == 0 && share.high < 1e-12);
}
