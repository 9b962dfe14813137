/* Statistics of two rows of logits against their definitions. */
#include <criterion/criterion.h>
#include <math.h>

#include "decode/comparison.h"
#include "tests/shared/fixtures.h"

enum { VOCABULARY = 301 };

static void softmax(long double *p, const float *logits)
{
    long double sum = 0;
    for (int i = 0; i < VOCABULARY; i++) sum += expl(logits[i]);
    for (int i = 0; i < VOCABULARY; i++) p[i] = expl(logits[i]) / sum;
}

Test(comparison, kl_likelihood_and_margins_are_those_of_their_definitions)
{
    float reference[VOCABULARY], other[VOCABULARY];
    long double p[VOCABULARY], q[VOCABULARY];
    long double kl_sum = 0, kl_max = 0, reference_nll = 0, other_nll = 0;
    dw_comparison c;
    dw_comparison_start(&c);
    for (int row = 0; row < 20; row++) {
        long double kl = 0;
        for (int i = 0; i < VOCABULARY; i++) {
            reference[i] = fixture_random(1, row * VOCABULARY + i, 8);
            other[i] = reference[i] + fixture_random(2, row * VOCABULARY + i, 1);
        }
        softmax(p, reference);
        softmax(q, other);
        for (int i = 0; i < VOCABULARY; i++) kl += p[i] * logl(p[i] / q[i]);
        kl_sum += kl;
        kl_max = fmaxl(kl_max, kl);
        reference_nll -= logl(p[row]);
        other_nll -= logl(q[row]);
        dw_comparison_add(&c, reference, other, VOCABULARY, row);
    }
    cr_assert_eq(c.rows, 20);
    cr_assert(fabsl(c.kl_sum - kl_sum) < 1e-12L * 20 && fabsl(c.kl_max - kl_max) < 1e-12L);
    cr_assert(fabsl(c.reference_nll_sum - reference_nll) < 1e-10L && fabsl(c.other_nll_sum - other_nll) < 1e-10L);
    cr_assert(fabsl(dw_perplexity(c.other_nll_sum, 20) / expl(other_nll / 20) - 1) < 1e-12L);
}

Test(comparison, the_first_row_with_another_best_token_is_told_and_its_margin)
{
    const float rows[4][3] = {{1, 2, 0}, {3, 1, 2.5f}, {0, 0, 5}, {4, 4, 4}};
    const float others[4][3] = {{0, 9, 0}, {3, 1, 3.5f}, {6, 0, 5}, {4, 4, 4}};
    dw_comparison c;
    dw_comparison_start(&c);
    cr_assert_eq(c.first_difference, -1);
    for (int i = 0; i < 4; i++) dw_comparison_add(&c, rows[i], others[i], 3, 0);
    cr_assert(c.rows == 4 && c.matches == 2 && c.first_difference == 1);
    cr_assert(c.margin_lost == 5 && c.margin_min == 0 && fabs(c.margin_sum - (1 + 0.5 + 5 + 0)) < 1e-12);
}

/* Logits far apart neither overflow nor give a negative KL. */
Test(comparison, extreme_logits_stay_finite)
{
    const float reference[3] = {1e4f, -1e4f, 0}, other[3] = {-1e4f, 1e4f, 0};
    dw_comparison c;
    dw_comparison_start(&c);
    dw_comparison_add(&c, reference, other, 3, 1);
    dw_comparison_add(&c, reference, reference, 3, 0);
    cr_assert(fabs(c.kl_sum - 2e4) < 1e-6 && c.kl_max == c.kl_sum);
    cr_assert(fabs(c.reference_nll_sum - 2e4) < 1e-6 && c.other_nll_sum == 0);
}
