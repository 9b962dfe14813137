/* How large values can become, from the weights alone: the v of attention's integer sums (docs/numerics.md).

   The norm gives n_i g_i + b_i with |n|_2 <= sqrt(hidden), whether it is RMS norm (b = 0) or layer norm, so by Cauchy-Schwarz
   |V[c]| <= sqrt(hidden) |W_v[c] * g|_2 + |W_v[c] . b + bias[c]|.

   Roundings. n is d * s with s from the float sum of the squares of the very numbers d, so |n|_2 exceeds sqrt(hidden) by what the
   sum loses, less than hidden/32 + 8 units u = 2^-24, however inexact a mean has been taken off. The dot product loses at most
   hidden/16 + 8 units of sum |W_v[c][i]| |n_i g_i + b_i|, and gain, shift and bias a few units each. With hidden <= 2^18 all of
   that is less than 2^-9 of sqrt(hidden) |W_v[c] * g|_2 + sum |W_v[c][i] b_i| + |bias[c]|; 2^-8 of it is added. Rounding to the
   cache type can not pass 2^v, which the type represents. */
#include <math.h>

#include "base/memory.h"
#include "model/weights.h"

enum { MIN_VALUE_EXPONENT = -60, MAX_VALUE_EXPONENT = 120 };

/* The smallest v >= MIN_VALUE_EXPONENT with 2^v > bound. */
static int32_t exponent_of(double bound)
{
    int v;
    (void)frexp(bound, &v); /* bound = m 2^v with 1/2 <= m < 1 */
    return bound == 0 || v < MIN_VALUE_EXPONENT ? MIN_VALUE_EXPONENT : v;
}

/* Of |V[c]|; row: the weights W_v[c]. Not finite when a weight is not. */
static double bound_of_channel(const float *row, const dw_norm *norm, double bias, int64_t hidden)
{
    double squares = 0;
    double shift = bias;
    double shift_size = fabs(bias);
    double reach;
    for (int64_t i = 0; i < hidden; i++) {
        const double w = (double)row[i];
        const double scaled = w * (double)norm->gain[i];
        squares += scaled * scaled;
        if (norm->bias == NULL) continue;
        shift += w * (double)norm->bias[i];
        shift_size += fabs(w * (double)norm->bias[i]);
    }
    reach = sqrt((double)hidden * squares);
    return reach + fabs(shift) + (reach + shift_size) / 256;
}

dw_status dw_value_exponents(const dw_weights *weights, int64_t index, float *row, dw_error *err)
{
    const dw_config *c = &weights->model->config;
    dw_layer *layer = &weights->model->layer[index];
    const dw_matrix *v = &layer->v.w;
    const int64_t stride = dw_row_bytes(v->type, v->inputs);
    const dw_tensor_name name = dw_weights_name(weights, dw_weights_value_part(weights), index, "weight");
    const char *path = weights->model->checkpoint->path;
    for (int64_t head = 0; head < c->kv_heads; head++) {
        double largest = 0;
        for (int64_t channel = head * c->head_dim; channel < (head + 1) * c->head_dim; channel++) {
            const double bias = layer->v.bias != NULL ? (double)layer->v.bias[channel] : 0;
            double bound;
            dw_kernels_scalar.dequantize[v->type](row, (const uint8_t *)v->data + channel * stride, c->hidden);
            bound = bound_of_channel(row, &layer->attention_norm, bias, c->hidden);
            if (!isfinite(bound)) return DW_REFUSE(path, err, "tensor %s holds non-finite values", name.text);
            if (bound > largest) largest = bound;
        }
        layer->value_exponent[head] = exponent_of(largest);
        if (layer->value_exponent[head] > MAX_VALUE_EXPONENT) {
            return DW_REFUSE(path, err, "tensor %s is too large: values could reach 2^%d", name.text,
                             layer->value_exponent[head]);
        }
    }
    return DW_OK;
}
