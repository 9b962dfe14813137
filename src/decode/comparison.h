/* How the logits of one way to compute differ from those of another, row by row. Local. */
#ifndef DW_DECODE_COMPARISON_H
#define DW_DECODE_COMPARISON_H

#include <stdint.h>

/* Over the rows so far; start with dw_comparison_start. KL is that of the reference's distribution to the other's, in nats.
   NLL: negative log-likelihood of the token that comes next. Margin: distance of the reference's best two logits. */
typedef struct {
    int64_t rows;
    int64_t matches;          /* rows whose best tokens are the same (lowest id on ties) */
    int64_t first_difference; /* the first row where they are not; -1: none */
    double kl_sum, kl_max;
    double reference_nll_sum, other_nll_sum;
    double margin_sum, margin_min;
    double margin_lost; /* the largest margin of a row where the best tokens differ; 0: none */
} dw_comparison;

/* Of one row. */
typedef struct {
    double kl;
    double margin; /* of the reference */
    int is_same;   /* the best tokens are */
} dw_compared_row;

void dw_comparison_start(dw_comparison *c);

/* reference, other: [vocabulary] finite logits of the same row; next: the id that comes next, 0 .. vocabulary - 1. */
dw_compared_row dw_comparison_add(dw_comparison *c, const float *reference, const float *other, int64_t vocabulary,
                                  int32_t next);

/* Negative log-likelihood of the token that comes next, in nats. */
double dw_nll(const float *logits, int64_t vocabulary, int32_t next);

/* exp of the mean NLL. */
double dw_perplexity(double nll_sum, int64_t rows);

#endif
