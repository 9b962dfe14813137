/* The activations: every instruction set gives the definition's bits, and the definition is close to the real functions. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/kernels.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/session_run.h"

enum { COUNT = 8009, GUARD = 7 };

static const char *const names[DW_ACTIVATIONS] = {"silu", "gelu", "gelu_tanh"};

static long double exact(int activation, long double x)
{
    if (activation == DW_SILU) return x / (1 + expl(-x));
    if (activation == DW_GELU) return x / 2 * erfcl(-x / sqrtl(2));
    return x / 2 * (1 + tanhl(sqrtl(2 / 3.14159265358979323846L) * (x + 0.044715L * x * x * x)));
}

/* Numbers of all sizes that occur, zeros, the ends of polynomials, and some far outside. */
static void fill(float *x)
{
    static const float edges[] = {0.0f, -0.0f, 5.5f,  -5.5f,  5.4999995f, -5.5000005f, 1e-30f, -1e-30f,
                                  1e4f, -1e4f, 1e10f, -1e10f, 86.6f,      -86.6f,      0.5f,   -0.5f};
    const int edge_count = (int)(sizeof edges / sizeof edges[0]);
    for (int i = 0; i < COUNT; i++) {
        const double amplitude = ldexp(1, i % 12 - 6);
        x[i] = i < edge_count ? edges[i] : fixture_random(1, i, amplitude);
    }
}

Test(activation, is_close_to_the_real_function)
{
    static float x[COUNT], y[COUNT];
    for (int a = 0; a < DW_ACTIVATIONS; a++) {
        double worst = 0;
        fill(x);
        memcpy(y, x, sizeof x);
        dw_kernels_scalar.activate[a](y, NULL, COUNT);
        for (int i = 0; i < COUNT; i++) {
            const long double error = fabsl((long double)y[i] - exact(a, (long double)x[i]));
            const double relative = (double)(error / fmaxl(1, fabsl((long double)x[i])));
            worst = fmax(worst, relative);
            cr_assert(relative < 2e-7, "%s(%.9g) = %.9g, not %.9Lg", names[a], (double)x[i], (double)y[i],
                      exact(a, (long double)x[i]));
        }
        cr_assert_gt(worst, 0);
    }
}

/* gelu and gelu_tanh are 5e-4 apart where it matters: neither may stand for the other. */
Test(activation, the_two_gelus_differ)
{
    float exact_gelu[1] = {2.0f}, approximate[1] = {2.0f};
    dw_kernels_scalar.activate[DW_GELU](exact_gelu, NULL, 1);
    dw_kernels_scalar.activate[DW_GELU_TANH](approximate, NULL, 1);
    cr_assert(fabsf(exact_gelu[0] - 1.9544997f) < 1e-6f && fabsf(approximate[0] - 1.9545977f) < 1e-6f);
}

Test(activation, every_instruction_set_gives_the_definitions_bits)
{
    static const char *const isas[] = {"avx2", "avx512"};
    static float x[COUNT], up[COUNT], expected[COUNT + GUARD], got[COUNT + GUARD];
    fill(x);
    for (int i = 0; i < COUNT; i++) up[i] = fixture_random(2, i, 3);
    for (int k = 0; k < 2; k++) {
        if (!session_has_isa(isas[k])) continue;
        for (int a = 0; a < DW_ACTIVATIONS; a++) {
            for (int gated = 0; gated < 2; gated++) {
                for (int64_t n = COUNT; n > 0; n = n > 40 ? n / 3 : n - 1) {
                    memset(expected, 0x55, sizeof expected);
                    memset(got, 0x55, sizeof got);
                    memcpy(expected, x, (size_t)n * sizeof *x);
                    memcpy(got, x, (size_t)n * sizeof *x);
                    dw_kernels_scalar.activate[a](expected, gated ? up : NULL, n);
                    dw_kernels_named(isas[k])->activate[a](got, gated ? up : NULL, n);
                    cr_assert(memcmp(expected, got, sizeof got) == 0, "%s of %s, %lld numbers", names[a], isas[k],
                              (long long)n);
                }
            }
        }
    }
}
