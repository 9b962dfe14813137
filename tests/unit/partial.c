/* Partial sums: any split and order of the blocks gives the same integers (promise P1), with a small error. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/partial.h"
#include "base/pool.h"

enum { BLOCKS = 400, CHANNELS = 9, WORDS = 1 + 3 * CHANNELS, MAX_PARTS = 400 };

typedef struct {
    int32_t exponent;
    float values[CHANNELS - 1];
    float weight;
} block;

static uint64_t state;

static uint64_t next_bits(void)
{
    uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static double uniform(void)
{
    return (double)(next_bits() >> 11) * 0x1p-53;
}

/* Exponents spread over `bits`, sums as 64 keys give them. */
static void make_blocks(block *blocks, int count, double bits)
{
    for (int b = 0; b < count; b++) {
        blocks[b].exponent = (int32_t)floor((uniform() - 0.5) * bits);
        blocks[b].weight = (float)(0.5 + 63.5 * uniform());
        for (int c = 0; c < CHANNELS - 1; c++)
            blocks[b].values[c] = (float)((2.0 * uniform() - 1.0) * (double)blocks[b].weight * 4.0);
    }
}

static void add(int64_t *partial, const block *b)
{
    dw_partial_add(&dw_kernels_scalar, partial, CHANNELS, b->exponent, b->values, b->weight, 2);
}

static void sum_in_order(int64_t *partial, const block *blocks, int count)
{
    dw_partial_clear(partial, CHANNELS);
    for (int b = 0; b < count; b++) add(partial, &blocks[b]);
}

/* Deals the blocks at random to `parts` partial sums and merges those in random pairs. */
static void sum_partitioned(int64_t *out, const block *blocks, int count, int parts)
{
    static int64_t part[MAX_PARTS][WORDS];
    static int order[BLOCKS];
    for (int p = 0; p < parts; p++) dw_partial_clear(part[p], CHANNELS);
    for (int b = 0; b < count; b++) order[b] = b;
    for (int b = count - 1; b > 0; b--) {
        const int other = (int)(next_bits() % (uint64_t)(b + 1));
        const int held = order[b];
        order[b] = order[other];
        order[other] = held;
    }
    for (int b = 0; b < count; b++) add(part[next_bits() % (uint64_t)parts], &blocks[order[b]]);
    for (int left = parts; left > 1; left--) {
        const int from = (int)(next_bits() % (uint64_t)left);
        int64_t taken[WORDS];
        memcpy(taken, part[from], sizeof taken);
        memcpy(part[from], part[left - 1], sizeof taken);
        dw_partial_merge(part[next_bits() % (uint64_t)(left - 1)], taken, CHANNELS);
    }
    memcpy(out, part[0], sizeof part[0]);
}

static void check_partitions(double bits, int count, int parts)
{
    static block blocks[BLOCKS];
    int64_t want[WORDS], got[WORDS];
    make_blocks(blocks, count, bits);
    sum_in_order(want, blocks, count);
    for (int trial = 0; trial < 45; trial++) {
        sum_partitioned(got, blocks, count, parts);
        cr_assert(memcmp(want, got, sizeof want) == 0, "partition %d of %d blocks into %d parts, scores spread over %g bits",
                  trial, count, parts, bits);
    }
}

static void start(void)
{
    state = 45;
    dw_set_float_state();
}

TestSuite(partial, .init = start);

Test(partial, forty_five_random_partitions_of_near_scores_give_equal_integers)
{
    check_partitions(20.0, BLOCKS, 7);
}

Test(partial, forty_five_random_partitions_over_1400_bits_give_equal_integers)
{
    check_partitions(1400.0, BLOCKS, 7);
    check_partitions(90.0, BLOCKS, 13);
}

Test(partial, four_hundred_mostly_empty_ranks_give_equal_integers)
{
    check_partitions(1400.0, 20, 400);
    check_partitions(40.0, 3, 400);
}

Test(partial, ties_give_equal_integers)
{
    check_partitions(0.0, BLOCKS, 16);
}

Test(partial, merging_with_an_empty_one_changes_nothing)
{
    static block blocks[BLOCKS];
    int64_t want[WORDS], empty[WORDS];
    make_blocks(blocks, 10, 30.0);
    sum_in_order(want, blocks, 10);
    dw_partial_clear(empty, CHANNELS);
    dw_partial_merge(empty, want, CHANNELS);
    cr_assert(memcmp(want, empty, sizeof want) == 0, "empty + x = x");
    int64_t nothing[WORDS];
    dw_partial_clear(nothing, CHANNELS);
    dw_partial_merge(empty, nothing, CHANNELS);
    cr_assert(memcmp(want, empty, sizeof want) == 0, "x + empty = x");
}

/* The stated limit: |error| <= 9e-8 Vmax for the integers alone (docs/numerics.md). */
Test(partial, error_of_the_integers_is_below_9e_8_of_the_bound)
{
    static block blocks[BLOCKS];
    static const double spreads[] = {0.0, 10.0, 60.0, 1400.0};
    for (int trial = 0; trial < 40; trial++) {
        int64_t sum[WORDS];
        float out[CHANNELS - 1];
        long double exact[CHANNELS] = {0};
        int32_t top = INT32_MIN;
        make_blocks(blocks, BLOCKS, spreads[trial % 4]);
        for (int b = 0; b < BLOCKS; b++) top = blocks[b].exponent > top ? blocks[b].exponent : top;
        for (int b = 0; b < BLOCKS; b++) {
            const long double unit = ldexpl(1.0L, blocks[b].exponent - top);
            for (int c = 0; c < CHANNELS - 1; c++) exact[c] += unit * (long double)blocks[b].values[c];
            exact[CHANNELS - 1] += unit * (long double)blocks[b].weight;
        }
        sum_in_order(sum, blocks, BLOCKS);
        dw_partial_finish(sum, CHANNELS, 2, out);
        for (int c = 0; c < CHANNELS - 1; c++) {
            const double error = (double)((long double)out[c] - exact[c] / exact[CHANNELS - 1]);
            cr_assert(fabs(error) <= 9e-8 * 4.0, "error %g at Vmax 4", error);
        }
    }
}

Test(partial, mass_is_the_sum_of_weights)
{
    static block blocks[BLOCKS];
    int64_t sum[WORDS];
    int64_t exponent;
    double exact = 0.0;
    make_blocks(blocks, BLOCKS, 12.0);
    for (int b = 0; b < BLOCKS; b++) exact += ldexp((double)blocks[b].weight, blocks[b].exponent);
    sum_in_order(sum, blocks, BLOCKS);
    const double units = dw_partial_mass(sum, CHANNELS, &exponent);
    const double mass = ldexp(units, (int)exponent);
    cr_assert(fabs(mass / exact - 1.0) < 1e-7, "%.17g against %.17g", mass, exact);
}
