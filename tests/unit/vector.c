/* Norm, rotation, sums and the search for non-finite numbers along one vector. */
#include "kernels/vector.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "kernels/kernels.h"
#include "tests/shared/fixtures.h"

enum { MOST = 1024 };

static void fill(float *x, int64_t n, uint64_t stream, double amplitude)
{
    for (int64_t i = 0; i < n; i++) x[i] = fixture_random(stream, i, amplitude);
}

static int same_bits(const float *a, const float *b, int64_t n)
{
    return memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

/* ---- RMS norm ---- */

/* The sum of squares as the header says: number i in lane i mod 16, then lanes in halves. */
static float sum_of_squares(const float *x, int64_t n)
{
    float lanes[16] = {0};
    for (int64_t i = 0; i < n; i++) {
        const float square = x[i] * x[i];
        lanes[i % 16] = lanes[i % 16] + square;
    }
    for (int l = 0; l < 8; l++) lanes[l] += lanes[8 + l];
    for (int l = 0; l < 4; l++) lanes[l] += lanes[4 + l];
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

static const int64_t lengths[] = {1, 2, 15, 16, 17, 31, 33, 100, 576, 896, 1024};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

Test(vector, rms_norm_has_the_bits_of_its_definition_with_zeros_behind)
{
    const float epsilon = 1e-6f;
    float x[MOST], gain[MOST], y[MOST + 2 * DW_LANES];
    for (int k = 0; k < LENGTHS; k++) {
        const int64_t n = lengths[k];
        const int64_t end = dw_padded(n);
        float scale;
        fill(x, n, 1 + (uint64_t)k, 3);
        fill(gain, n, 100 + (uint64_t)k, 2);
        for (int64_t i = 0; i < end + DW_LANES; i++) y[i] = 7;
        dw_rms_norm(y, x, gain, n, epsilon);
        scale = 1 / sqrtf(sum_of_squares(x, n) / (float)n + epsilon);
        for (int64_t i = 0; i < n; i++) {
            const float normal = x[i] * scale;
            const float expected = normal * gain[i];
            cr_assert(same_bits(&y[i], &expected, 1), "%lld of %lld: %.9g, not %.9g", (long long)i, (long long)n, y[i],
                      expected);
        }
        for (int64_t i = n; i < end; i++) cr_assert(y[i] == 0 && !signbit(y[i]));
        cr_assert(y[end] == 7, "written behind the padding");
    }
}

/* Roundings: up to n/16 + 4 of the sum, which the root halves, and eight of the rest. */
Test(vector, rms_norm_is_within_its_roundings_of_long_double)
{
    float x[MOST], gain[MOST], y[MOST];
    for (int k = 0; k < LENGTHS; k++) {
        const int64_t n = lengths[k];
        const long double bound = ((long double)n / 32 + 10) * 0x1p-24L;
        long double sum = 0;
        fill(x, n, 1 + (uint64_t)k, 300);
        fill(gain, n, 100 + (uint64_t)k, 2);
        for (int64_t i = 0; i < n; i++) sum += (long double)x[i] * x[i];
        dw_rms_norm(y, x, gain, n, 1e-5f);
        for (int64_t i = 0; i < n; i++) {
            const long double expected = x[i] / sqrtl(sum / n + 1e-5f) * gain[i];
            cr_assert(fabsl(y[i] - expected) <= bound * fabsl(expected), "%lld of %lld: %.9g, not %.9Lg", (long long)i,
                      (long long)n, y[i], expected);
        }
    }
}

Test(vector, rms_norm_may_work_in_place)
{
    float x[MOST], gain[MOST], y[MOST];
    fill(x, 75, 1, 1);
    fill(gain, 75, 2, 1);
    dw_rms_norm(y, x, gain, 75, 1e-5f);
    dw_rms_norm(x, x, gain, 75, 1e-5f);
    cr_assert(same_bits(x, y, dw_padded(75)));
}

Test(vector, rms_norm_of_zeros_is_zero)
{
    float x[DW_LANES] = {0}, gain[DW_LANES] = {1, 2, 3}, y[DW_LANES];
    dw_rms_norm(y, x, gain, 3, 1e-6f);
    for (int i = 0; i < DW_LANES; i++) cr_assert_eq(y[i], 0);
}

/* ---- layer norm ---- */

/* Within the roundings of two sums of n numbers in 16 lanes and of a few operations on each. */
Test(vector, layer_norm_takes_off_the_mean_and_is_close_to_long_double)
{
    static const int64_t sizes[] = {1, 2, 15, 16, 17, 55, 100};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const int64_t n = sizes[s];
        float x[MOST], gain[MOST], bias[MOST], y[MOST];
        long double mean = 0, variance = 0;
        fill(x, n, 1, 4);
        fill(gain, n, 2, 2);
        fill(bias, n, 3, 1);
        for (int64_t i = 0; i < n; i++) x[i] += 100; /* the mean is much larger than what varies */
        for (int64_t i = 0; i < n; i++) mean += (long double)x[i] / n;
        for (int64_t i = 0; i < n; i++) variance += (x[i] - mean) * (x[i] - mean) / n;
        dw_layer_norm(y, x, gain, bias, n, 1e-5f);
        for (int64_t i = 0; i < n; i++) {
            const long double want = (x[i] - mean) / sqrtl(variance + 1e-5f) * gain[i] + bias[i];
            /* the mean is off by some 2^-24 * 100, which the small deviations of tiny n make weigh more */
            cr_assert(fabsl(y[i] - want) <= (n < 3 ? 4e-3L : 4e-5L) * (1 + fabsl(want)), "%lld of %lld: %.9g, not %.9Lg",
                      (long long)i, (long long)n, (double)y[i], want);
        }
        for (int64_t i = n; i < dw_padded(n); i++) cr_assert_eq(y[i], 0);
    }
}

Test(vector, scale_rounds_each_product_once)
{
    float x[MOST], y[MOST];
    fill(x, 100, 1, 9);
    memcpy(y, x, sizeof x);
    dw_vector_scale(y, 25.298221f, 99);
    for (int i = 0; i < 99; i++) cr_assert_eq(y[i], (float)((double)x[i] * (double)25.298221f));
    cr_assert(same_bits(y + 99, x + 99, 1));
}

/* ---- sum ---- */

Test(vector, add_rounds_each_sum_once_and_writes_no_more)
{
    float x[MOST], y[MOST], sum[MOST];
    fill(x, 100, 1, 1);
    fill(y, 101, 2, 1000);
    for (int i = 0; i < 100; i++) sum[i] = (float)((double)y[i] + (double)x[i]);
    sum[100] = y[100];
    dw_vector_add(y, x, 100);
    cr_assert(same_bits(y, sum, 101));
}

/* ---- rotation ---- */

/* head: [size] with the first dims rotated. pair i is head[first(i)], head[second(i)]. */
static void check_rotation(int64_t dims, int64_t size, int halves)
{
    float head[MOST], turned[MOST], cosine[MOST], sine[MOST];
    fill(head, size, 1, 4);
    memcpy(turned, head, sizeof head);
    fill(cosine, dims / 2, 2, 1);
    fill(sine, dims / 2, 3, 1);
    dw_rotate(turned, cosine, sine, dims, halves);
    for (int64_t i = 0; i < dims / 2; i++) {
        const int64_t first = halves ? i : 2 * i;
        const int64_t second = halves ? dims / 2 + i : 2 * i + 1;
        const float products[2][2] = {{head[first] * cosine[i], head[second] * sine[i]},
                                      {head[first] * sine[i], head[second] * cosine[i]}};
        const float a = products[0][0] - products[0][1];
        const float b = products[1][0] + products[1][1];
        cr_assert(same_bits(&turned[first], &a, 1) && same_bits(&turned[second], &b, 1),
                  "pair %lld of %lld: (%.9g, %.9g), not (%.9g, %.9g)", (long long)i, (long long)dims / 2, turned[first],
                  turned[second], a, b);
    }
    cr_assert(same_bits(turned + dims, head + dims, size - dims), "numbers that do not rotate have changed");
}

static const int64_t rotated[] = {2, 4, 6, 16, 22, 24, 64, 128};
enum { ROTATED = sizeof rotated / sizeof rotated[0] };

Test(vector, rope_turns_neighbours_and_nothing_behind_dims)
{
    for (int i = 0; i < ROTATED; i++) check_rotation(rotated[i], rotated[i] + 10, 0);
}

Test(vector, rope_turns_pairs_of_halves_and_nothing_behind_dims)
{
    for (int i = 0; i < ROTATED; i++) check_rotation(rotated[i], rotated[i] + 10, 1);
}

/* (3, 4) by a right angle and by one whose cosine is 0.6. */
Test(vector, rope_turns_counterclockwise)
{
    const float cosine[2] = {0, 0.6f};
    const float sine[2] = {1, 0.8f};
    float neighbours[4] = {3, 4, 5, 0};
    float halves[4] = {3, 5, 4, 0};
    dw_rotate(neighbours, cosine, sine, 4, 0);
    dw_rotate(halves, cosine, sine, 4, 1);
    cr_assert(neighbours[0] == -4 && neighbours[1] == 3 && neighbours[2] == 5 * 0.6f && neighbours[3] == 5 * 0.8f);
    cr_assert(halves[0] == -4 && halves[2] == 3 && halves[1] == 5 * 0.6f && halves[3] == 5 * 0.8f);
}

/* ---- the largest number ---- */

static float with_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

Test(vector, largest_is_the_largest_magnitude)
{
    const float numbers[] = {-0.0f, 1e-40f, 3, -5, 4.5f, 0};
    cr_assert_eq(dw_largest(numbers, 0), 0);
    cr_assert(dw_largest(numbers, 1) == 0 && !signbit(dw_largest(numbers, 1)));
    cr_assert_eq(dw_largest(numbers, 2), 1e-40f);
    cr_assert_eq(dw_largest(numbers, 3), 3);
    cr_assert_eq(dw_largest(numbers, 6), 5);
    cr_assert_eq(dw_largest(&(float){-3.402823466e+38f}, 1), 3.402823466e+38f);
}

/* Wherever it stands, whatever sign and payload it has, and whatever stands behind it. */
Test(vector, largest_is_infinite_for_a_nan_or_an_infinity_anywhere)
{
    static const uint32_t bits[] = {0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF};
    float x[67];
    for (int64_t n = 1; n <= 67; n++) {
        fill(x, n, (uint64_t)n, 1e30);
        cr_assert(dw_largest(x, n) <= 1e30f);
        for (int64_t at = 0; at < n; at++) {
            const float saved = x[at];
            for (size_t k = 0; k < sizeof bits / sizeof bits[0]; k++) {
                float largest;
                x[at] = with_bits(bits[k]);
                largest = dw_largest(x, n);
                cr_assert(isinf(largest) && largest > 0, "%08x at %lld of %lld: %g", bits[k], (long long)at, (long long)n,
                          largest);
            }
            x[at] = saved;
        }
    }
}
