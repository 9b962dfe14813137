#include "attention/omitted.h"

#include <math.h>
#include <stddef.h>

#include "base/precise.h"

#define ULP_HALF 0x1p-24 /* relative rounding error of one float operation */

void dw_omitted_count(dw_omitted *omitted, int64_t selected, int64_t visible)
{
    omitted->selected += selected;
    omitted->visible += visible;
}

void dw_omitted_read(dw_omitted *omitted, int64_t bytes, int64_t elements, int64_t survivors)
{
    omitted->key_bytes += bytes;
    omitted->key_elements += elements;
    omitted->survivors += survivors;
}

void dw_omitted_recall(dw_omitted *omitted, double recall, int64_t layer, int64_t head)
{
    omitted->recall_sum += recall;
    omitted->recall_count++;
    if (omitted->by_head == NULL) return;
    omitted->by_head[layer * omitted->heads + head].recall_sum += recall;
    omitted->by_head[layer * omitted->heads + head].recall_count++;
}

static void add(dw_omitted *omitted, dw_interval mass, int64_t position, int64_t layer, int64_t head)
{
    if (omitted->count == 0 || mass.high > omitted->max_high) {
        omitted->max_high = mass.high;
        omitted->max_position = position;
        omitted->max_layer = layer;
        omitted->max_head = head;
    }
    if (mass.low > omitted->max_low) omitted->max_low = mass.low;
    omitted->sum_low += mass.low;
    omitted->sum_high += mass.high;
    omitted->count++;
}

void dw_omitted_add(dw_omitted *omitted, dw_interval mass, int64_t position, int64_t layer, int64_t head)
{
    add(omitted, mass, position, layer, head);
    if (omitted->by_head != NULL) add(&omitted->by_head[layer * omitted->heads + head], mass, position, layer, head);
}

dw_interval dw_omitted_mean(const dw_omitted *omitted)
{
    if (omitted->count == 0) return (dw_interval){0.0, 0.0};
    return (dw_interval){omitted->sum_low / (double)omitted->count, omitted->sum_high / (double)omitted->count};
}

double dw_score_error_bits(double query_norm, double key_norm, double scale, int64_t d)
{
    /* A chain of d FMAs errs by at most d u / (1 - d u) sum |q_c k_c| <= 1.01 d u |q| |k|. The float `scale` and the FMA that
       subtracts the exponent err by u each relative to the score; 8 u covers them. */
    return scale * query_norm * key_norm * 1.01 * (double)(d + 8) * ULP_HALF;
}

double dw_mass_tilt(double share, double bits)
{
    const double factor = dw_exp(bits * 0.69314718055994530942);
    return share * factor / (share * factor + (1.0 - share));
}

dw_interval dw_omitted_interval(double kept_over_all, double score_bits)
{
    /* Relative errors of either sum, in units of u: 2^x 2, its argument (below 2^5 bits from the block's exponent; weights
       further down are less than 2^-32 of the block) 24, block sum 7. */
    const double sums = 2.0 * 40.0 * ULP_HALF;
    const double e = 1.0 - kept_over_all;
    const double bits = score_bits > 200.0 ? 200.0 : score_bits;
    const double low = fmax(0.0, e - sums);
    const double high = fmin(1.0, e + sums);
    return (dw_interval){dw_mass_tilt(low, -2.0 * bits), dw_mass_tilt(high, 2.0 * bits)};
}
