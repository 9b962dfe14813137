/* Attention and elementwise kernels: every instruction set that this CPU runs gives the definition's bits. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "kernels/f16.h"
#include "kernels/kernels.h"

enum { MAX_D = 160, MAX_ROWS = 13, GUARD = 8, ISAS = 3 };

static uint64_t state;

static void start(void)
{
    state = 20260206;
    dw_set_float_state();
}

TestSuite(kernels_attention, .init = start);

static uint64_t next_bits(void)
{
    uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Uniform in [-amplitude, amplitude). */
static float next_float(float amplitude)
{
    return (float)((int32_t)(next_bits() >> 40) - (1 << 23)) * (amplitude / 8388608.0f);
}

/* The tables to compare with the definition; says which are missing here. */
static int others(const dw_kernels **list)
{
    const dw_kernels *const avx512 = dw_kernels_named("avx512");
    int count = 0;
    list[count] = dw_kernels_named("avx2");
    count += list[count] != NULL;
    if (avx512 != NULL) list[count++] = avx512;
    if (avx512 == &dw_kernels_avx512vnni) list[count++] = &dw_kernels_avx512; /* runs where the other does */
    if (count < ISAS)
        printf("note: this CPU can run only %d of %d instruction sets, the others are not compared here\n", count, ISAS);
    return count;
}

static void random_block(void *block, int64_t count, dw_type type, float amplitude)
{
    for (int64_t i = 0; i < count; i++) {
        const float x = next_bits() % 16 == 0 ? 0.0f : next_float(amplitude);
        if (type == DW_F32) ((float *)block)[i] = x;
        if (type == DW_F16) ((uint16_t *)block)[i] = dw_f16_of_f32(x);
        if (type == DW_BF16) ((uint16_t *)block)[i] = dw_bf16_of_f32(x);
    }
}

static const dw_type cache_types[] = {DW_F32, DW_F16, DW_BF16};
static const int head_dims[] = {1, 2, 11, 16, 24, 32, 64, 80, 128, 160};

static void expect_same(const float *a, const float *b, int64_t count, const char *what, const dw_kernels *k, int d, int rows)
{
    cr_assert(memcmp(a, b, (size_t)count * sizeof *a) == 0, "%s of %s differs from the definition, head_dim %d, %d rows", what,
              k->name, d, rows);
}

Test(kernels_attention, scores_have_the_definitions_bits)
{
    static float block[DW_BLOCK * MAX_D], q[MAX_ROWS * MAX_D], want[MAX_ROWS * DW_BLOCK + GUARD],
        got[MAX_ROWS * DW_BLOCK + GUARD];
    const dw_kernels *list[ISAS];
    const int count = others(list);
    for (int t = 0; t < 3; t++) {
        for (int i = 0; i < 10; i++) {
            const int d = head_dims[i];
            random_block(block, DW_BLOCK * d, cache_types[t], 8.0f);
            for (int j = 0; j < MAX_ROWS * MAX_D; j++) q[j] = next_float(4.0f);
            for (int rows = 1; rows <= MAX_ROWS; rows += rows < 7 ? 1 : 6) {
                memset(want, 0xA5, sizeof want);
                memset(got, 0xA5, sizeof got);
                dw_kernels_scalar.scores[cache_types[t]](want, q, MAX_D, rows, block, d);
                cr_assert(isfinite(want[rows * DW_BLOCK - 1]));
                for (int k = 0; k < count; k++) {
                    list[k]->scores[cache_types[t]](got, q, MAX_D, rows, block, d);
                    expect_same(want, got, MAX_ROWS * DW_BLOCK + GUARD, "scores", list[k], d, rows);
                }
            }
        }
    }
}

Test(kernels_attention, values_have_the_definitions_bits_for_every_range_of_keys)
{
    static float block[DW_BLOCK * MAX_D], w[MAX_ROWS * DW_BLOCK], want[MAX_ROWS * MAX_D + GUARD], got[MAX_ROWS * MAX_D + GUARD];
    static const int ranges[][2] = {{0, 63}, {0, 0}, {63, 63}, {5, 40}};
    const dw_kernels *list[ISAS];
    const int count = others(list);
    for (int t = 0; t < 3; t++) {
        for (int i = 0; i < 10; i++) {
            const int d = head_dims[i];
            random_block(block, DW_BLOCK * d, cache_types[t], 8.0f);
            for (int j = 0; j < MAX_ROWS * DW_BLOCK; j++) w[j] = next_bits() % 4 == 0 ? 0.0f : fabsf(next_float(1.0f));
            for (int r = 0; r < 4; r++) {
                for (int rows = 1; rows <= MAX_ROWS; rows += rows < 7 ? 1 : 6) {
                    memset(want, 0xA5, sizeof want);
                    memset(got, 0xA5, sizeof got);
                    dw_kernels_scalar.values[cache_types[t]](want, w, rows, block, d, ranges[r][0], ranges[r][1]);
                    cr_assert(isfinite(want[rows * d - 1]));
                    for (int k = 0; k < count; k++) {
                        list[k]->values[cache_types[t]](got, w, rows, block, d, ranges[r][0], ranges[r][1]);
                        expect_same(want, got, MAX_ROWS * MAX_D + GUARD, "values", list[k], d, rows);
                    }
                }
            }
        }
    }
}

Test(kernels_attention, weights_have_the_definitions_bits_for_every_mask_and_spread)
{
    static const float spreads[] = {0.0f, 1.0f, 30.0f, 1000.0f, 1e6f};
    const dw_kernels *list[ISAS];
    const int count = others(list);
    for (int trial = 0; trial < 400; trial++) {
        float s[DW_BLOCK], want[DW_BLOCK], got[DW_BLOCK], want_maxima[DW_LANES], got_maxima[DW_LANES];
        float want_sum, got_sum;
        int32_t want_exponent, got_exponent;
        uint64_t mask = trial % 3 == 0 ? UINT64_MAX : next_bits();
        if (trial % 3 == 1) mask &= next_bits();
        if (trial % 7 == 0) mask = (uint64_t)1 << trial % 64;
        if (mask == 0) mask = 1;
        for (int j = 0; j < DW_BLOCK; j++) s[j] = next_float(spreads[trial % 5]) + (trial % 2 ? 100.0f : 0.0f);
        const float want_top = dw_kernels_scalar.weights(want, s, 0.18033688f, mask, &want_exponent, &want_sum, want_maxima);
        for (int j = 0; j < DW_BLOCK; j++) {
            if ((mask >> j & 1) == 0) cr_assert(want[j] == 0.0f && !signbit(want[j]), "an uncounted key has weight exactly +0");
        }
        for (int l = 0; l < DW_LANES; l++) {
            float largest = -INFINITY;
            for (int j = l; j < DW_BLOCK; j += DW_LANES) largest = (mask >> j & 1) != 0 ? fmaxf(largest, s[j]) : largest;
            cr_assert(want_maxima[l] == largest, "the largest counted score of lane %d", l);
        }
        cr_assert(want_sum >= 0.49f && want_sum <= 70.0f, "the largest weight is in (1/2, 1], the sum is %g", (double)want_sum);
        for (int k = 0; k < count; k++) {
            const float got_top = list[k]->weights(got, s, 0.18033688f, mask, &got_exponent, &got_sum, got_maxima);
            expect_same(want, got, DW_BLOCK, "weights", list[k], 0, trial);
            expect_same(&want_sum, &got_sum, 1, "sum of weights", list[k], 0, trial);
            expect_same(want_maxima, got_maxima, DW_LANES, "maxima", list[k], 0, trial);
            cr_assert_eq(want_exponent, got_exponent);
            cr_assert(want_top == got_top);
        }
    }
}

Test(kernels_attention, exp2_has_the_definitions_bits_and_2e_7_relative_error)
{
    enum { COUNT = 20001 };
    static float x[COUNT], want[COUNT], got[COUNT];
    const dw_kernels *list[ISAS];
    const int count = others(list);
    for (int i = 0; i < COUNT; i++) x[i] = -130.0f + 256.0f * (float)i / COUNT;
    x[0] = -INFINITY, x[1] = -125.0f, x[2] = -0.0f, x[3] = nextafterf(-125.0f, -126.0f), x[4] = -3e38f;
    dw_kernels_scalar.exp2(want, x, COUNT);
    for (int i = 0; i < COUNT; i++) {
        if (x[i] < -125.0f) {
            cr_assert_eq(want[i], 0.0f, "2^%g is +0 by definition", (double)x[i]);
        } else {
            /* 2^-23.6 as computed (exp2.h), checked against libm in double */
            cr_assert(fabs((double)want[i] / exp2((double)x[i]) - 1.0) < 1.0e-7, "2^%g is %g", (double)x[i], (double)want[i]);
        }
    }
    for (int k = 0; k < count; k++) {
        list[k]->exp2(got, x, COUNT);
        expect_same(want, got, COUNT, "exp2", list[k], 0, 0);
    }
}

Test(kernels_attention, silu_has_the_definitions_bits_and_a_small_error)
{
    enum { COUNT = 4003 };
    static float gate[COUNT], up[COUNT], want[COUNT], got[COUNT];
    const dw_kernels *list[ISAS];
    const int count = others(list);
    for (int i = 0; i < COUNT; i++) {
        gate[i] = i < 10 ? (float)(i - 5) * 1e5f : next_float(i % 2 ? 120.0f : 4.0f);
        up[i] = next_float(3.0f);
    }
    memcpy(want, gate, sizeof gate);
    dw_kernels_scalar.activate[DW_SILU](want, up, COUNT);
    for (int i = 0; i < COUNT; i++) {
        const double x = (double)gate[i];
        const double exact = x / (1.0 + exp(-x)) * (double)up[i];
        /* -x log2(e) is rounded once: up to |x| 2^-24 bits of the exponential, besides a few roundings; it is clamped at 125
           bits */
        const double bound = (fabs(x) * 1.2e-7 + 6e-7) * fabs(exact) + 0x1p-124 * fabs(x * (double)up[i]);
        cr_assert(fabs((double)want[i] - exact) <= bound, "silu(%g) * %g = %g", x, (double)up[i], (double)want[i]);
    }
    for (int k = 0; k < count; k++) {
        memcpy(got, gate, sizeof gate);
        list[k]->activate[DW_SILU](got, up, COUNT);
        expect_same(want, got, COUNT, "silu_mul", list[k], 0, 0);
    }
}

Test(kernels_attention, limbs_are_the_same_integers)
{
    enum { COUNT = 67 };
    const dw_kernels *list[ISAS];
    const int count = others(list);
    for (int trial = 0; trial < 300; trial++) {
        float o[COUNT];
        int64_t low[2][COUNT + 1], high[2][COUNT + 1];
        const int shift = trial % 28;
        const int with_low = trial % 5 != 0;
        const float scale = ldexpf(1.0f, 28 - trial % 7);
        for (int c = 0; c < COUNT; c++) o[c] = ldexpf(next_float(64.0f), trial % 7 - trial % 3 * 8);
        for (int c = 0; c <= COUNT; c++) low[0][c] = (int64_t)next_bits() >> 8, high[0][c] = (int64_t)next_bits() >> 8;
        for (int k = 0; k < count; k++) {
            int64_t want_low[COUNT + 1], want_high[COUNT + 1];
            memcpy(want_low, low[0], sizeof want_low), memcpy(want_high, high[0], sizeof want_high);
            memcpy(low[1], low[0], sizeof low[0]), memcpy(high[1], high[0], sizeof high[0]);
            dw_kernels_scalar.add_limbs(with_low ? want_low : NULL, want_high, o, COUNT, scale, shift);
            list[k]->add_limbs(with_low ? low[1] : NULL, high[1], o, COUNT, scale, shift);
            cr_assert(memcmp(want_low, low[1], sizeof want_low) == 0 && memcmp(want_high, high[1], sizeof want_high) == 0,
                      "add_limbs of %s, shift %d", list[k]->name, shift);
        }
        /* z = y << shift is what the two limbs hold together */
        int64_t l = 0, h = 0;
        dw_kernels_scalar.add_limbs(&l, &h, o, 1, scale, shift);
        cr_assert((__int128)h * (1 << 28) + l == (__int128)rintf(o[0] * scale) * ((__int128)1 << shift));
        cr_assert(l >= 0 && l < 1 << 28);
    }
}

/* Codes at both ends, scales of 0, queries of 0 and tiny ones. */
Test(kernels_attention, the_screen_has_the_definitions_bits)
{
    static uint8_t codes[DW_BLOCK * MAX_D];
    static float q[MAX_D];
    static int16_t want_number[MAX_ROWS * MAX_D + GUARD], got_number[MAX_ROWS * MAX_D + GUARD];
    static float want[MAX_ROWS * DW_BLOCK + GUARD], got[MAX_ROWS * DW_BLOCK + GUARD];
    static const float amplitudes[] = {4.0f, 0.0f, 1e-34f, 1e9f};
    static const int channels[] = {16, 32, 64, 80, 128, 160};
    const dw_kernels *list[ISAS];
    const int count = others(list);
    for (int trial = 0; trial < 6 * 4 * 10; trial++) {
        const int n = channels[trial % 6];
        const int rows = 1 + trial % 8;
        uint16_t scale[MAX_D], lowest[MAX_D];
        dw_screen_query want_query[MAX_ROWS], got_query[MAX_ROWS];
        for (int j = 0; j < DW_BLOCK * n; j++) codes[j] = (uint8_t)(trial % 3 == 0 ? (next_bits() & 1) * 255 : next_bits());
        for (int c = 0; c < n; c++) {
            scale[c] = dw_bf16_of_f32(next_bits() % 5 == 0 ? 0.0f : fabsf(next_float(0.1f)));
            lowest[c] = dw_bf16_of_f32(next_float(trial % 2 ? 3.0f : 300.0f));
        }
        memset(want, 0xA5, sizeof want);
        memset(got, 0xA5, sizeof got);
        memset(want_number, 0xA5, sizeof want_number);
        for (int k = -1; k < count; k++) {
            const dw_kernels *kernels = k < 0 ? &dw_kernels_scalar : list[k];
            int16_t *number = k < 0 ? want_number : got_number;
            dw_screen_query *query = k < 0 ? want_query : got_query;
            uint64_t kept = state;
            if (k >= 0) memset(got_number, 0xA5, sizeof got_number);
            for (int64_t i = 0; i < rows; i++) {
                for (int c = 0; c < n; c++) q[c] = next_float(amplitudes[trial / 6 % 4]);
                query[i] = kernels->screen_query(number + i * n, q, scale, lowest, n);
            }
            if (k + 1 < count) state = kept; /* the same queries for all */
            kernels->screen_scores(k < 0 ? want : got, query, number, rows, codes, n);
            if (k < 0) continue;
            cr_assert(memcmp(want_query, got_query, (size_t)rows * sizeof *got_query) == 0, "screen_query of %s, %d channels",
                      kernels->name, n);
            cr_assert(memcmp(want_number, got_number, sizeof got_number) == 0, "numbers of %s, %d channels", kernels->name, n);
            expect_same(want, got, MAX_ROWS * DW_BLOCK + GUARD, "screen_scores", kernels, n, rows);
        }
    }
}

Test(kernels_attention, key_scores_have_the_definitions_bits)
{
    static float q[MAX_D], keys[MAX_ROWS * MAX_D];
    const dw_kernels *list[ISAS];
    const int count = others(list);
    for (int c = 0; c < MAX_D; c++) q[c] = next_float(2.0f);
    for (int j = 0; j < MAX_ROWS * MAX_D; j++) keys[j] = next_float(4.0f);
    for (int rows = 1; rows <= MAX_ROWS; rows++) {
        float want[MAX_ROWS + GUARD], got[MAX_ROWS + GUARD];
        memset(want, 0xA5, sizeof want);
        memset(got, 0xA5, sizeof got);
        dw_kernels_scalar.key_scores(want, q, keys, MAX_D, rows, 77);
        for (int k = 0; k < count; k++) {
            list[k]->key_scores(got, q, keys, MAX_D, rows, 77);
            expect_same(want, got, MAX_ROWS + GUARD, "key_scores", list[k], 77, rows);
        }
    }
}

/* The largest sum that there can be does not overflow. */
Test(kernels_attention, the_screens_sums_reach_their_ends)
{
    static uint8_t codes[DW_BLOCK * DW_MAX_HEAD_DIM];
    static const int ends[] = {-32000, 32000};
    int16_t number[DW_MAX_HEAD_DIM];
    float want[DW_BLOCK], got[DW_BLOCK];
    const dw_kernels *list[ISAS];
    const int count = others(list);
    for (int i = 0; i < 4; i++) {
        const int end = ends[i % 2];
        const dw_screen_query query = {.unit = 1.0f, .sum = DW_MAX_HEAD_DIM * end};
        for (int c = 0; c < DW_MAX_HEAD_DIM; c++) number[c] = (int16_t)end;
        memset(codes, i < 2 ? 0 : 255, sizeof codes);
        dw_kernels_scalar.screen_scores(want, &query, number, 1, codes, DW_MAX_HEAD_DIM);
        cr_assert_eq(want[5], (i < 2 ? -128.0f : 127.0f) * (float)end * (float)DW_MAX_HEAD_DIM);
        for (int k = 0; k < count; k++) {
            list[k]->screen_scores(got, &query, number, 1, codes, DW_MAX_HEAD_DIM);
            expect_same(want, got, DW_BLOCK, "screen_scores", list[k], DW_MAX_HEAD_DIM, 1);
        }
    }
}
