/* Budgets of keys: curves of what heads leave out, and how keys are dealt by them. */
#include "attention/budget.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

Test(budget, the_steps_grow_and_reach_beyond_any_context)
{
    cr_assert(dw_budget_of(0) == 0 && dw_budget_of(4) == 32 && dw_budget_of(5) == 48 && dw_budget_of(6) == 64 &&
              dw_budget_of(7) == 96);
    for (int i = 1; i < DW_BUDGET_STEPS; i++) cr_assert_gt(dw_budget_of(i), dw_budget_of(i - 1));
    cr_assert_gt(dw_budget_of(DW_BUDGET_STEPS - 1), 1 << 22);
}

/* 8 keys of weight 1, 24 of half as much a bin of 8 eighths below, and one far below everything. */
static dw_histogram histogram(void)
{
    dw_histogram h = {.top = 5};
    h.count[0] = 8;
    h.weight[0] = (int64_t)8 << 30;
    h.count[8] = 24;
    h.weight[8] = (int64_t)24 << 30;
    h.below = 1;
    return h;
}

Test(budget, a_curve_holds_what_the_best_keys_leave_out)
{
    const dw_histogram h = histogram();
    dw_budget_curve curve = {0};
    dw_budget_curve_add(&curve, &h);
    cr_assert_eq(curve.rows, 1);
    cr_assert_float_eq(curve.omitted[0], 1, 1e-12);
    cr_assert_float_eq(curve.omitted[1], 12.0 / 20, 1e-12);
    cr_assert_float_eq(curve.omitted[2], 8.0 / 20, 1e-12, "a third of the second bin is taken");
    cr_assert_float_eq(curve.omitted[4], 0, 1e-12);
    cr_assert(curve.keys == 33 && curve.keys_near == 32 && curve.positive == 0);
}

/* A head that needs nothing more, one whose keys weigh the same, one that is sharp. */
static void make_curves(dw_budget_curve *curves)
{
    memset(curves, 0, 3 * sizeof *curves);
    for (int i = 0; i < DW_BUDGET_STEPS; i++) {
        const double keys = (double)dw_budget_of(i);
        curves[1].omitted[i] = 2 * fmax(0, 1 - keys / 1024);
        curves[2].omitted[i] = 2 * exp(-keys / 40);
    }
    curves[0].rows = curves[1].rows = curves[2].rows = 2;
}

Test(budget, keys_go_where_they_take_most_mass_away_until_epsilon)
{
    dw_budget_curve curves[3];
    int64_t keys[3];
    double left;
    make_curves(curves);
    left = dw_budget_deal(curves, 3, 0.34, keys);
    cr_assert(left <= 0.34 && left > 0.3, "%g", left);
    cr_assert(keys[0] == 0 && keys[1] < keys[2] && keys[2] >= 128, "%lld %lld %lld", (long long)keys[0], (long long)keys[1],
              (long long)keys[2]);
    left = dw_budget_deal(curves, 3, 0.01, keys);
    cr_assert(left <= 0.01 && keys[0] == 0 && keys[1] >= 900 && keys[2] < keys[1]);
}

Test(budget, one_budget_for_all_is_the_smallest_that_leaves_out_as_little)
{
    dw_budget_curve curves[3];
    int64_t keys[3];
    make_curves(curves);
    for (int i = 1; i < 20; i++) {
        const double left = dw_budget_deal(curves, 3, i * 0.02, keys);
        const int64_t uniform = dw_budget_uniform(curves, 3, left);
        cr_assert_leq((double)(keys[0] + keys[1] + keys[2]) / 3, (double)uniform, "dealt budgets cost no more");
    }
    cr_assert_eq(dw_budget_uniform(curves, 3, 2), 0);
}
