/* The softmax mass that sparse attention leaves out, as certified intervals. */
#ifndef DW_ATTENTION_OMITTED_H
#define DW_ATTENTION_OMITTED_H

#include <stdint.h>

typedef struct {
    double low, high;
} dw_interval;

/* Over sparse rows x layers x heads so far; start from all zero. */
struct dw_budget_curve;

typedef struct dw_omitted {
    int64_t count; /* rows * layers * heads; 0: no sparse row yet */
    double sum_low, sum_high;
    double max_low, max_high; /* an interval that contains the largest omitted mass */
    int64_t max_position;     /* where max_high was first reached */
    int64_t max_layer;
    int64_t max_head;
    int64_t key_bytes, key_elements; /* read to find the best keys, and elements of the keys that the rows saw; all ranks */
    int64_t survivors;               /* keys that were scored again exactly, over all heads */
    double recall_sum; /* share of the exact best keys that a selection holds: over recall_count rows, layers and heads */
    int64_t recall_count;
    int64_t selected, visible;      /* keys attended to, and keys that the rows saw */
    struct dw_omitted *by_head;     /* NULL, or [layers][heads] of the caller: the same of each alone */
    struct dw_budget_curve *curves; /* NULL, or [layers][heads] of the caller: of mode mass (attention/budget.h) */
    int64_t heads;
} dw_omitted;

/* Counts the keys of one row and head; beside dw_omitted_add. */
void dw_omitted_count(dw_omitted *omitted, int64_t selected, int64_t visible);

/* Counts what one row and KV head read to find the best of the keys that it sees. */
void dw_omitted_read(dw_omitted *omitted, int64_t bytes, int64_t elements, int64_t survivors);

/* Counts how much of the exact best keys of one row and head a selection holds, 0 to 1. */
void dw_omitted_recall(dw_omitted *omitted, double recall, int64_t layer, int64_t head);

void dw_omitted_add(dw_omitted *omitted, dw_interval mass, int64_t position, int64_t layer, int64_t head);

/* Mean over everything added; [0, 0] when that is nothing. */
dw_interval dw_omitted_mean(const dw_omitted *omitted);

/* The omitted mass e = 1 - (sum of weights in the set) / (sum of all weights) lies in this interval for exact arithmetic on the
   stored q and K. kept / all: the same ratio from the integer sums; score_bits: bound of the error of any one score in
   bits. The sums count keys one by one (attention/mass.h), so nothing is quantised by blocks. */
dw_interval dw_omitted_interval(double kept_over_all, double score_bits);

/* What becomes of a share of the mass when it weighs 2^bits times as much and the rest stays; |bits| <= 400. */
double dw_mass_tilt(double share, double bits);

/* Error bound, in bits, of a score computed as a float FMA chain over d channels and scaled by `scale`: |q|_2 and the largest
   |K|_2. */
double dw_score_error_bits(double query_norm, double key_norm, double scale, int64_t d);

#endif
