#include "decode/comparison.h"

#include <math.h>

void dw_comparison_start(dw_comparison *c)
{
    *c = (dw_comparison){.first_difference = -1, .margin_min = INFINITY};
}

typedef struct {
    int64_t best;
    double margin;  /* to the second best; 0 where there is none */
    double log_sum; /* log of the sum of exp */
} summary;

static summary summarise(const float *logits, int64_t vocabulary)
{
    summary s = {0};
    double second = -INFINITY;
    double sum = 0;
    for (int64_t i = 1; i < vocabulary; i++) {
        if (logits[i] > logits[s.best]) {
            second = (double)logits[s.best];
            s.best = i;
        } else if ((double)logits[i] > second) {
            second = (double)logits[i];
        }
    }
    for (int64_t i = 0; i < vocabulary; i++) sum += exp((double)logits[i] - (double)logits[s.best]);
    s.log_sum = (double)logits[s.best] + log(sum);
    if (isfinite(second)) s.margin = (double)logits[s.best] - second;
    return s;
}

/* Sum of p (log p - log q), which is the mean difference of the logits less that of the log sums. */
static double divergence(const float *reference, const float *other, int64_t vocabulary, const summary *r, const summary *o)
{
    double sum = 0;
    for (int64_t i = 0; i < vocabulary; i++) {
        const double log_p = (double)reference[i] - r->log_sum;
        sum += exp(log_p) * (log_p - ((double)other[i] - o->log_sum));
    }
    return fmax(sum, 0);
}

dw_compared_row dw_comparison_add(dw_comparison *c, const float *reference, const float *other, int64_t vocabulary,
                                  int32_t next)
{
    const summary r = summarise(reference, vocabulary);
    const summary o = summarise(other, vocabulary);
    const double kl = divergence(reference, other, vocabulary, &r, &o);
    const int same = r.best == o.best;
    if (!same && c->first_difference < 0) c->first_difference = c->rows;
    if (!same) c->margin_lost = fmax(c->margin_lost, r.margin);
    c->matches += same;
    c->kl_sum += kl;
    c->kl_max = fmax(c->kl_max, kl);
    c->reference_nll_sum += r.log_sum - (double)reference[next];
    c->other_nll_sum += o.log_sum - (double)other[next];
    c->margin_sum += r.margin;
    c->margin_min = fmin(c->margin_min, r.margin);
    c->rows++;
    return (dw_compared_row){kl, r.margin, same};
}

double dw_nll(const float *logits, int64_t vocabulary, int32_t next)
{
    return summarise(logits, vocabulary).log_sum - (double)logits[next];
}

double dw_perplexity(double nll_sum, int64_t rows)
{
    return exp(nll_sum / (double)rows);
}
