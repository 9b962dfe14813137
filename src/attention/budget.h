/* Budgets of keys by measurement: how much mass each head leaves out with so many best keys, and how to deal keys to heads so that they
   leave out least together. Local. */
#ifndef DW_ATTENTION_BUDGET_H
#define DW_ATTENTION_BUDGET_H

#include "attention/mass.h"

enum { DW_BUDGET_STEPS = 40 };

/* Budgets on the curve: step 0 is 0 keys, then 8, 16, 24, 32, 48, 64, 96, ... Longer than any context at the end. */
int64_t dw_budget_of(int step);

/* Mean omitted mass of one head at each budget: sums over rows. Starts from zeros. */
typedef struct dw_budget_curve {
    int64_t rows;
    double omitted[DW_BUDGET_STEPS];
    int64_t keys;      /* of all rows */
    int64_t keys_near; /* within 24 bits (2^-24, a float's ULP) of the best key, in steps of 1/8 bit */
    int64_t positive;  /* rows with at least DW_BUDGET_POSITIVE keys whose score is not negative */
} dw_budget_curve;
enum { DW_BUDGET_POSITIVE = 97 };

/* Adds a row: what is left of its mass behind the best keys, in steps of 1/8 bit of score, within a step in equal parts. The histogram must
   hold a key. */
void dw_budget_curve_add(dw_budget_curve *curve, const dw_histogram *histogram);

/* Deals keys to `count` heads until they leave out at most `epsilon` on average, each key where it takes most mass away; curves have
   rows. keys: [count]. Returns the mean omitted mass that is left. */
double dw_budget_deal(const dw_budget_curve *curves, int64_t count, double epsilon, int64_t *keys);

/* The smallest budget that, the same for all heads, leaves out no more than `omitted` on average. */
int64_t dw_budget_uniform(const dw_budget_curve *curves, int64_t count, double omitted);

#endif
