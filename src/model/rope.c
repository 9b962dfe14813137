#include "model/rope.h"

#include <math.h> /* floor, ceil, fmin, fmax: exact */
#include <stddef.h>

#include "base/precise.h"

#define TWO_PI 6.28318530717958647693

const char *dw_rope_name(dw_rope_kind kind)
{
    static const char *const names[DW_ROPE_KINDS] = {"none", "linear", "dynamic", "llama3", "yarn"};
    return names[kind];
}

double dw_rope_yarn_magnitude(double factor, double weight)
{
    return factor <= 1 ? 1 : 0.1 * weight * dw_log(factor) + 1;
}

/* The base grows so that at `context` positions the lowest frequency is what linear scaling would make of it (NTK). */
static double dynamic_base(const dw_rope *rope, int64_t dims, int64_t context)
{
    const double reach = fmax((double)context, rope->original_context) / rope->original_context;
    if (dims <= 2) return rope->base; /* a single pair, whose frequency is 1 whatever the base */
    return rope->base * dw_pow(rope->factor * reach - (rope->factor - 1), (double)dims / (double)(dims - 2));
}

/* Low frequencies are divided by the factor, high ones stay, those between are a mixture. */
static double llama3_frequency(const dw_rope *rope, double frequency)
{
    const double rotations = rope->original_context * frequency / TWO_PI; /* in the original context */
    if (rotations > rope->high_freq_factor) return frequency;
    if (rotations < rope->low_freq_factor) return frequency / rope->factor;
    const double share = (rotations - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
    return (1 - share) * frequency / rope->factor + share * frequency;
}

/* The dimension that turns `rotations` times in the original context, as a real number. */
static double yarn_dimension(const dw_rope *rope, int64_t dims, double rotations)
{
    return (double)dims * dw_log(rope->original_context / (rotations * TWO_PI)) / (2 * dw_log(rope->base));
}

/* As llama3, with a ramp over dimensions instead of wavelengths. */
static void yarn_frequencies(const dw_rope *rope, int64_t dims, double *frequency)
{
    double low = yarn_dimension(rope, dims, rope->beta_fast);
    double high = yarn_dimension(rope, dims, rope->beta_slow);
    if (rope->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)(dims - 1));
    if (low == high) high += 0.001;
    for (int64_t i = 0; i < dims / 2; i++) {
        const double share = fmin(fmax(((double)i - low) / (high - low), 0), 1); /* of the divided frequency */
        frequency[i] = frequency[i] / rope->factor * share + frequency[i] * (1 - share);
    }
}

void dw_rope_frequencies(const dw_rope *rope, int64_t dims, int64_t context, double *frequency)
{
    const double base = rope->kind == DW_ROPE_DYNAMIC ? dynamic_base(rope, dims, context) : rope->base;
    for (int64_t i = 0; i < dims / 2; i++) {
        frequency[i] = dw_pow(base, -2.0 * (double)i / (double)dims);
        if (rope->kind == DW_ROPE_LINEAR) frequency[i] /= rope->factor;
        if (rope->kind == DW_ROPE_LLAMA3) frequency[i] = llama3_frequency(rope, frequency[i]);
    }
    if (rope->kind == DW_ROPE_YARN) yarn_frequencies(rope, dims, frequency);
    for (int64_t i = 0; rope->factors != NULL && i < dims / 2; i++) frequency[i] /= (double)rope->factors[i];
}

void dw_rope_angles(float *cosine, float *sine, int64_t position, const double *frequency, int64_t pairs,
                    double attention_factor)
{
    for (int64_t i = 0; i < pairs; i++) {
        double s;
        double c;
        dw_sin_cos((double)position * frequency[i], &s, &c);
        cosine[i] = (float)(c * attention_factor);
        sine[i] = (float)(s * attention_factor);
    }
}
