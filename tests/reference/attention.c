/* Attention against the extended-precision results of ../shared/reference/attention. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

#include "base/memory.h"
#include "tests/shared/attention_case.h"
#include "tests/shared/reference.h"

static const dw_policy condensate = {DW_CONDENSATE, 1, 64, 32, 0, 0};

/* |error| <= 4e-6 max|V|: scores of these cases err by up to 64 to 128 roundings of 2^-24 at a size of some tens of bits. */
#define TOLERANCE 4e-6

static json_t *cases;

static void load_cases(void)
{
    cases = reference_json("attention/cases.json");
    cr_assert_eq(json_array_size(cases), 18, "the reference has 18 cases");
}

TestSuite(attention_reference, .init = load_cases);

static void compare_file(const attention_case *c, const char *kind, const float *out)
{
    char name[128];
    double *expected;
    double worst = 0.0;
    snprintf(name, sizeof name, "attention/%s.%s.f64", c->name, kind);
    expected = reference_doubles(name, c->heads * c->d);
    for (int64_t i = 0; i < c->heads * c->d; i++) worst = fmax(worst, fabs((double)out[i] - expected[i]));
    cr_expect_leq(worst, TOLERANCE * (double)c->value_amplitude, "%s: error %.3g max|V|", name,
                  worst / (double)c->value_amplitude);
    dw_free(expected);
}

Test(attention_reference, dense_output_is_within_4e_6_of_float64)
{
    for (size_t i = 0; i < json_array_size(cases); i++) {
        attention_case c;
        float *out;
        attention_case_load(&c, json_array_get(cases, i));
        cr_assert(DW_ALLOC(&out, c.heads * c.d, "out", NULL) == DW_OK);
        attention_case_dense(&c, dw_kernels_best(), 3, 1, 0, DW_F32, out, NULL);
        compare_file(&c, "out", out);
        dw_free(out);
        attention_case_free(&c);
    }
}

Test(attention_reference, condensate_output_is_within_4e_6_of_float64_over_the_set)
{
    for (size_t i = 0; i < json_array_size(cases); i++) {
        attention_case c;
        float *out;
        dw_interval *omitted;
        attention_case_load(&c, json_array_get(cases, i));
        cr_assert(DW_ALLOC(&out, c.heads * c.d, "out", NULL) == DW_OK);
        cr_assert(DW_ALLOC(&omitted, c.heads, "omitted", NULL) == DW_OK);
        attention_case_sparse(&c, dw_kernels_best(), 3, 1, 0, DW_F32, &condensate, out, omitted, NULL);
        compare_file(&c, "set", out);
        dw_free(out);
        dw_free(omitted);
        attention_case_free(&c);
    }
}

Test(attention_reference, omitted_mass_lies_in_the_certified_interval_and_the_interval_is_narrow)
{
    for (size_t i = 0; i < json_array_size(cases); i++) {
        attention_case c;
        float *out;
        dw_interval *omitted;
        attention_case_load(&c, json_array_get(cases, i));
        cr_assert(DW_ALLOC(&out, c.heads * c.d, "out", NULL) == DW_OK);
        cr_assert(DW_ALLOC(&omitted, c.heads, "omitted", NULL) == DW_OK);
        attention_case_sparse(&c, dw_kernels_best(), 2, 1, 0, DW_F32, &condensate, out, omitted, NULL);
        for (int64_t h = 0; h < c.heads; h++) {
            const double e = json_number_value(json_array_get(json_object_get(c.expected, "omitted"), (size_t)h));
            cr_expect(omitted[h].low <= e && e <= omitted[h].high, "%s, head %lld: %.17g is outside [%.17g, %.17g]", c.name,
                      (long long)h, e, omitted[h].low, omitted[h].high);
            /* Sums err by 1e-5 at most; a score of 2^11 bits by 2^11 * 136 * 2^-24 = 0.017 bits, doubled by the tilt. */
            cr_expect_leq(omitted[h].high - omitted[h].low, 2e-5 + 0.08 * e, "%s, head %lld: interval is too wide", c.name,
                          (long long)h);
        }
        dw_free(out);
        dw_free(omitted);
        attention_case_free(&c);
    }
}

Test(attention_reference, best_97_positions_in_order_on_1_and_5_ranks)
{
    const dw_policy best = {DW_CONDENSATE, 0, 0, 97, 0, 0};
    for (size_t i = 0; i < json_array_size(cases); i++) {
        for (int ranks = 1; ranks <= 5; ranks += 4) {
            attention_case c;
            float *out;
            dw_interval *omitted;
            dw_pos *top;
            attention_case_load(&c, json_array_get(cases, i));
            cr_assert(DW_ALLOC(&out, c.heads * c.d, "out", NULL) == DW_OK);
            cr_assert(DW_ALLOC(&omitted, c.heads, "omitted", NULL) == DW_OK);
            cr_assert(DW_ALLOC(&top, c.heads * 97, "top", NULL) == DW_OK);
            attention_case_sparse(&c, dw_kernels_best(), ranks, 2, 0, DW_F32, &best, out, omitted, top);
            for (int64_t h = 0; h < c.heads; h++) {
                const json_t *expected = json_array_get(json_object_get(c.expected, "top"), (size_t)h);
                const int64_t keys = c.n < 97 ? c.n : 97;
                cr_assert_eq((int64_t)json_array_size(expected), keys);
                for (int64_t n = 0; n < keys; n++) {
                    cr_assert_eq(top[h * keys + n], json_integer_value(json_array_get(expected, (size_t)n)),
                                 "%s, head %lld, best key %lld on %d ranks", c.name, (long long)h, (long long)n, ranks);
                }
            }
            dw_free(out);
            dw_free(omitted);
            dw_free(top);
            attention_case_free(&c);
        }
    }
}
