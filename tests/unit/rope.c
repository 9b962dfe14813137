/* Rotary angles, and the frequencies of every kind of scaling against those of transformers. */
#include <criterion/criterion.h>
#include <math.h>

#include "model/rope.h"

/* As stated in the header: half a unit in the last place of a float, and what double loses of the angle. */
static double angle_bound(int64_t position)
{
    return 0x1p-25 + (double)position * 0x1p-51;
}

Test(rope, angles_are_within_the_stated_bound_of_long_double)
{
    static const int64_t positions[] = {0, 1, 63, 64, 4095, 8191, 32767, 131071, 1000003, (1 << 20) - 1, 16777259, 2147483647};
    static const double bases[] = {100, 10000, 100000, 1000000, 1e12};
    static const int64_t dims[] = {2, 6, 24, 64, 128, 512};
    double frequency[256];
    float cosine[256], sine[256];
    for (size_t p = 0; p < sizeof positions / sizeof positions[0]; p++) {
        const long double bound = (long double)angle_bound(positions[p]);
        for (size_t b = 0; b < sizeof bases / sizeof bases[0]; b++) {
            for (size_t k = 0; k < sizeof dims / sizeof dims[0]; k++) {
                const dw_rope rope = {.base = bases[b], .attention_factor = 1};
                dw_rope_frequencies(&rope, dims[k], 4096, frequency);
                dw_rope_angles(cosine, sine, positions[p], frequency, dims[k] / 2, 1);
                for (int64_t i = 0; i < dims[k] / 2; i++) {
                    const long double angle = positions[p] * powl((long double)bases[b], -2.0L * i / dims[k]);
                    const long double error = fmaxl(fabsl(cosine[i] - cosl(angle)), fabsl(sine[i] - sinl(angle)));
                    cr_assert(error <= bound, "position %lld, base %g, pair %lld of %lld: off by %.3Lg, the bound is %.3Lg",
                              (long long)positions[p], bases[b], (long long)i, (long long)dims[k] / 2, error, bound);
                }
            }
        }
    }
}

/* Frequencies as transformers 5.24 computes them: ROPE_INIT_FUNCTIONS on a LlamaConfig with heads of 16, in double (torch.float =
   torch.float32 = torch.float64 before transformers is imported). Both sides round some ten times, and the powers multiply their
   last roundings by ln(base) <= 14: within 1e-13. */
Test(rope, frequencies_of_every_scaling_equal_those_of_transformers)
{
    static const struct {
        dw_rope rope;
        int64_t context;
        double frequency[8];
    } cases[] = {
        {{.base = 10000, .kind = DW_ROPE_LINEAR, .factor = 4, .attention_factor = 1},
         512,
         {0.25, 0.079056941504209485, 0.025000000000000001, 0.0079056941504209478, 0.0025000000000000001,
          0.00079056941504209474, 0.00025000000000000001, 7.9056941504209485e-05}},
        {{.base = 10000, .kind = DW_ROPE_DYNAMIC, .factor = 2, .original_context = 128, .attention_factor = 1},
         300,
         {1, 0.26244498694699975, 0.068877371173610868, 0.018076520778601963, 0.0047440922597873619, 0.0012450632311952565,
          0.00032676060345922844, 8.5756682309650969e-05}},
        {{.base = 500000,
          .kind = DW_ROPE_LLAMA3,
          .factor = 8,
          .original_context = 64,
          .low_freq_factor = 1,
          .high_freq_factor = 4,
          .attention_factor = 1},
         512,
         {1, 0.0794030091792082, 0.0047007538663579916, 0.00091158309215213856, 0.00017677669529663688, 3.4281021959525912e-05,
          6.6478698711812362e-06, 1.2891731721515574e-06}},
        {{.base = 1000,
          .kind = DW_ROPE_YARN,
          .factor = 4,
          .original_context = 64,
          .attention_factor = 1,
          .beta_fast = 32,
          .beta_slow = 1,
          .truncate = 1},
         256,
         {1, 0.31627237757143678, 0.088913970501946132, 0.018747355233311395, 0.0079056941504209478, 0.0033338035804083102,
          0.0014058533129758727, 0.00059284342641541374}},
        {{.base = 10000,
          .kind = DW_ROPE_YARN,
          .factor = 40,
          .original_context = 4096,
          .attention_factor = 1,
          .beta_fast = 16,
          .beta_slow = 2},
         163840,
         {1, 0.31622776601683794, 0.10000000000000001, 0.031622776601683791, 0.0057901049624471072, 0.00012395236926610428,
          2.5000000000000001e-05, 7.9056941504209471e-06}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double frequency[8];
        dw_rope_frequencies(&cases[i].rope, 16, cases[i].context, frequency);
        for (int n = 0; n < 8; n++) {
            cr_assert(fabs(frequency[n] / cases[i].frequency[n] - 1) < 1e-13, "%s, pair %d: %.17g, not %.17g",
                      dw_rope_name(cases[i].rope.kind), n, frequency[n], cases[i].frequency[n]);
        }
    }
    cr_assert(fabs(dw_rope_yarn_magnitude(4, 1) - 1.138629436111989) < 1e-12);
    cr_assert(fabs(dw_rope_yarn_magnitude(40, 0.8) / dw_rope_yarn_magnitude(40, 1.2) - 0.897720452428813) < 1e-12);
}

/* Below its original context dynamic scaling changes nothing; beyond it the run's context counts, whatever the position. */
Test(rope, dynamic_scaling_begins_behind_the_original_context)
{
    const dw_rope plain = {.base = 10000, .attention_factor = 1};
    const dw_rope dynamic = {
        .base = 10000, .kind = DW_ROPE_DYNAMIC, .factor = 4, .original_context = 128, .attention_factor = 1};
    double expected[8], frequency[8];
    dw_rope_frequencies(&plain, 16, 128, expected);
    dw_rope_frequencies(&dynamic, 16, 128, frequency);
    for (int i = 0; i < 8; i++) cr_assert(fabs(frequency[i] - expected[i]) <= 1e-15 * expected[i]);
    dw_rope_frequencies(&dynamic, 16, 129, frequency);
    for (int i = 1; i < 8; i++) cr_assert_lt(frequency[i], expected[i]);
}

Test(rope, factors_divide_frequencies)
{
    static const float factors[2] = {1, 8};
    const dw_rope rope = {.base = 100, .attention_factor = 1, .factors = factors};
    double frequency[2];
    dw_rope_frequencies(&rope, 4, 128, frequency);
    cr_assert(frequency[0] == 1 && fabs(frequency[1] - 0.0125) < 1e-15);
}
