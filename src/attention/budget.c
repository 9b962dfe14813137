#include "attention/budget.h"

#include <math.h>

#include "base/precise.h"

int64_t dw_budget_of(int step)
{
    if (step <= 4) return (int64_t)8 * step;
    return ((step - 4) % 2 != 0 ? (int64_t)48 : (int64_t)32) << (step - 4) / 2;
}

/* Mass of bin number i below the top, in units of the top bin's. */
static double bin_mass(const dw_histogram *histogram, int i)
{
    return (double)histogram->weight[i] * dw_exp(-i / 8.0 * 0.69314718055994530942);
}

static void count_scores(dw_budget_curve *curve, const dw_histogram *histogram)
{
    int64_t positive = 0;
    curve->keys += histogram->below;
    for (int i = 0; i < DW_HISTOGRAM_BINS; i++) {
        curve->keys += histogram->count[i];
        if (i < 24 * 8) curve->keys_near += histogram->count[i];
        if (histogram->top - i >= 0) positive += histogram->count[i];
    }
    curve->positive += positive >= DW_BUDGET_POSITIVE;
}

void dw_budget_curve_add(dw_budget_curve *curve, const dw_histogram *histogram)
{
    double all = 0.0;
    double outside;
    int64_t keys = 0; /* in the bins before bin i */
    int step = 0;
    for (int i = 0; i < DW_HISTOGRAM_BINS; i++) all += bin_mass(histogram, i);
    outside = all;
    for (int i = 0; i < DW_HISTOGRAM_BINS && step < DW_BUDGET_STEPS; i++) {
        const int64_t count = histogram->count[i];
        const double mass = bin_mass(histogram, i);
        for (; step < DW_BUDGET_STEPS && dw_budget_of(step) <= keys + count; step++) {
            const double share = count == 0 ? 0.0 : (double)(dw_budget_of(step) - keys) / (double)count;
            curve->omitted[step] += fmax(0.0, (outside - share * mass) / all);
        }
        keys += count;
        outside -= mass;
    }
    count_scores(curve, histogram);
    curve->rows++; /* larger budgets leave out nothing */
}

static double omitted_at(const dw_budget_curve *curve, int step)
{
    return curve->omitted[step] / (double)curve->rows;
}

/* Mass that one more key takes away, on average over the keys of the next step; 0 at the end. */
static double gain(const dw_budget_curve *curve, int step)
{
    if (step + 1 >= DW_BUDGET_STEPS) return 0.0;
    return (omitted_at(curve, step) - omitted_at(curve, step + 1)) / (double)(dw_budget_of(step + 1) - dw_budget_of(step));
}

static int64_t best_head(const dw_budget_curve *curves, int64_t count, const int64_t *step)
{
    int64_t best = -1;
    double most = 0.0;
    for (int64_t h = 0; h < count; h++) {
        const double g = gain(&curves[h], (int)step[h]);
        if (g > most) {
            most = g;
            best = h;
        }
    }
    return best;
}

/* The mean over rows of curves that fall ever more slowly does so as well, so taking the best step each time is best. */
double dw_budget_deal(const dw_budget_curve *curves, int64_t count, double epsilon, int64_t *keys)
{
    double sum = 0.0;
    for (int64_t h = 0; h < count; h++) {
        keys[h] = 0; /* the step for now */
        sum += omitted_at(&curves[h], 0);
    }
    while (sum > epsilon * (double)count) {
        const int64_t h = best_head(curves, count, keys);
        if (h < 0) break;
        sum -= omitted_at(&curves[h], (int)keys[h]) - omitted_at(&curves[h], (int)keys[h] + 1);
        keys[h]++;
    }
    for (int64_t h = 0; h < count; h++) keys[h] = dw_budget_of((int)keys[h]);
    return sum / (double)count;
}

int64_t dw_budget_uniform(const dw_budget_curve *curves, int64_t count, double omitted)
{
    for (int step = 0; step < DW_BUDGET_STEPS; step++) {
        double sum = 0.0;
        for (int64_t h = 0; h < count; h++) sum += omitted_at(&curves[h], step);
        if (sum <= omitted * (double)count) return dw_budget_of(step);
    }
    return dw_budget_of(DW_BUDGET_STEPS - 1);
}
