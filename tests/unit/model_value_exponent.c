/* 2^value_exponent bounds every value that the V projection can give, and no smaller exponent is certain to. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "model/model.h"
#include "tests/shared/edited_directory.h"
#include "tests/shared/fixtures.h"

enum { MAX_WIDTH = 128 };

static dw_model *load(const char *path)
{
    dw_error err;
    dw_model *m;
    cr_assert(dw_model_load(&m, path, DW_FILE_MAP, &(dw_config_overrides){.rope_base = 0}, &err) == DW_OK, "%s", err.message);
    return m;
}

/* out = (x - mean) / sqrt(mean((x - mean)^2) + epsilon) * gain + bias in float; mean: 0 in models with RMS norm. */
static void normalise(float *out, const dw_model *m, const dw_norm *norm, const float *x)
{
    const int64_t n = m->config.hidden;
    float sum = 0;
    float mean = 0;
    for (int64_t i = 0; m->config.family->norm == DW_NORM_LAYER && i < n; i++) mean += x[i];
    mean /= (float)n;
    for (int64_t i = 0; i < n; i++) sum += (x[i] - mean) * (x[i] - mean);
    for (int64_t i = 0; i < n; i++) {
        out[i] = (x[i] - mean) / sqrtf(sum / (float)n + (float)m->config.norm_epsilon) * norm->gain[i];
        if (norm->bias != NULL) out[i] += norm->bias[i];
    }
}

/* row = row c of the V projection. */
static void value_row(float *row, const dw_model *m, const dw_layer *l, int64_t c)
{
    const uint8_t *weights = l->v.w.data;
    dw_kernels_scalar.dequantize[l->v.w.type](row, weights + c * dw_row_bytes(l->v.w.type, m->config.hidden), m->config.hidden);
}

/* The largest |V[c]| of one KV head for the hidden state x. */
static double largest_value(const dw_model *m, const dw_layer *l, int64_t head, const float *x)
{
    float normal[MAX_WIDTH];
    float row[MAX_WIDTH];
    float largest = 0;
    normalise(normal, m, &l->attention_norm, x);
    for (int64_t c = head * m->config.head_dim; c < (head + 1) * m->config.head_dim; c++) {
        float v = 0;
        value_row(row, m, l, c);
        for (int64_t i = 0; i < m->config.hidden; i++) v = fmaf(row[i], normal[i], v);
        if (l->v.bias != NULL) v += l->v.bias[c];
        largest = fmaxf(largest, fabsf(v));
    }
    return (double)largest;
}

/* x = large multiple of the row of channel c times the gain, with the sign of what norm and layer add: the input that makes
   |V[c]| as large as it can be (with layer norm nearly: the mean is taken off). */
static void worst_input(float *x, const dw_model *m, const dw_layer *l, int64_t c)
{
    float row[MAX_WIDTH];
    float shift = l->v.bias != NULL ? l->v.bias[c] : 0;
    value_row(row, m, l, c);
    for (int64_t i = 0; l->attention_norm.bias != NULL && i < m->config.hidden; i++)
        shift += row[i] * l->attention_norm.bias[i];
    for (int64_t i = 0; i < m->config.hidden; i++) x[i] = (shift < 0 ? -1000 : 1000) * row[i] * l->attention_norm.gain[i];
}

/* Checks 2^value_exponent against random inputs and the worst one of every channel; returns the largest value over it. */
static double check_head(const dw_model *m, const dw_layer *l, int64_t head, int64_t stream)
{
    const double limit = ldexp(1, l->value_exponent[head]);
    double largest = 0;
    float x[MAX_WIDTH];
    for (int64_t trial = 0; trial < 100; trial++) {
        const double amplitude = ldexp(1, (int)(trial % 40) - 10);
        for (int64_t i = 0; i < m->config.hidden; i++) x[i] = fixture_random((uint64_t)(stream * 100 + trial), i, amplitude);
        if (trial % 3 == 0) memset(x, 0, sizeof x); /* one channel alone */
        if (trial % 3 == 0) x[trial % m->config.hidden] = 1e4f;
        largest = fmax(largest, largest_value(m, l, head, x));
    }
    cr_expect(largest > 0 && largest <= limit, "random inputs reach %g, the bound is %g", largest, limit);
    for (int64_t c = 0; c < m->config.head_dim; c++) {
        worst_input(x, m, l, head * m->config.head_dim + c);
        largest = fmax(largest, largest_value(m, l, head, x));
    }
    cr_expect(largest <= limit, "the worst input reaches %g, the bound is %g", largest, limit);
    return largest / limit;
}

/* Biases of V eight times as large: twice what the weights give. */
static void enlarge_biases(gguf_writer *writer, int64_t count)
{
    static const char *const names[] = {"blk.0.attn_v.bias", "blk.1.attn_v.bias"};
    int64_t size;
    uint8_t *data = gguf_build(writer, &size);
    for (int i = 0; i < 2; i++) {
        uint8_t *at = data + gguf_where(writer, GGUF_AT_DATA, names[i]);
        for (int64_t c = 0; c < count; c++, at += sizeof(float)) {
            float bias;
            memcpy(&bias, at, sizeof bias);
            bias *= 8;
            memcpy(at, &bias, sizeof bias);
        }
    }
}

/* All KV heads of all layers. Returns the smallest largest value over bound. */
static double check_model(const char *path)
{
    dw_model *m = load(path);
    double tightness = 1;
    for (int64_t layer = 0; layer < m->config.layers; layer++) {
        for (int64_t head = 0; head < m->config.kv_heads; head++) {
            tightness = fmin(tightness, check_head(m, &m->layer[layer], head, layer * 4 + head));
        }
    }
    dw_model_free(m);
    return tightness;
}

/* Some random models of a family. */
static double check_models(const char *family)
{
    const char *path = fixture_path("model.gguf");
    double tightness = 1;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        const fixture_type type = (fixture_type)(seed % 4);
        gguf_writer *writer = fixture_writer(
            &(fixture_spec){.family = family, .type = type, .hidden = seed % 2 == 0 ? 96 : 64, .kv_heads = 4, .seed = seed});
        if (strcmp(family, "qwen2") == 0) enlarge_biases(writer, 4 * 16);
        gguf_write(writer, path);
        gguf_free(writer);
        tightness = fmin(tightness, check_model(path));
    }
    return tightness;
}

/* The biases of the norm in front of attention `times` as large. */
static void enlarge_shift(const edited_directory *d, const char *layers, const char *norm, float times)
{
    for (int layer = 0; layer < 3; layer++) {
        char name[96];
        int64_t bytes;
        uint8_t *data;
        snprintf(name, sizeof name, "%s.%d.%s.bias", layers, layer, norm);
        data = edited_tensor(d, name, &bytes);
        for (int64_t i = 0; i < bytes; i += 4) {
            float bias;
            memcpy(&bias, data + i, sizeof bias);
            bias *= times;
            memcpy(data + i, &bias, sizeof bias);
        }
    }
}

/* The bound is a power of two and has a slack of 1/256: the worst input reaches nearly half of it. */
Test(model_value_exponent, bounds_values_of_random_and_of_the_worst_inputs)
{
    const double tightness = check_models("llama");
    cr_expect(tightness * (1 + 1.0 / 128) > 0.5, "the worst input reaches %g of a bound only", tightness);
}

Test(model_value_exponent, bounds_values_with_biases_of_random_and_of_the_worst_inputs)
{
    const double tightness = check_models("qwen2");
    cr_expect(tightness * (1 + 1.0 / 128) > 0.5, "the worst input reaches %g of a bound only", tightness);
}

/* Without what the norm adds, with it, and where it is nearly all of V. What the mean takes off loosens the bound a little. */
Test(model_value_exponent, bounds_values_behind_layer_norm)
{
    static const struct {
        const char *model, *layers, *norm;
    } cases[] = {
        {"gpt2", "transformer.h", "ln_1"},
        {"gpt2-bare", "h", "ln_1"},
        {"neox-parallel", "gpt_neox.layers", "input_layernorm"},
        {"neox-sequential", "gpt_neox.layers", "input_layernorm"},
    };
    static const float times[] = {0, 1, -40, 3000};
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 4; k++) {
            edited_directory d = edited_directory_read(cases[i].model);
            char name[64];
            double tightness;
            snprintf(name, sizeof name, "%s-%d", cases[i].model, k);
            enlarge_shift(&d, cases[i].layers, cases[i].norm, times[k]);
            tightness = check_model(edited_directory_write(&d, name));
            cr_expect(tightness > 0.45, "%s: the worst input reaches %g of a bound only", name, tightness);
            edited_directory_free(&d);
        }
    }
}

/* A model of one layer, whose V weights, norm gains and (if not NULL) V biases the test sets. */
static dw_model *load_with(const float *weights, const float *gains, const float *biases)
{
    const char *path = fixture_path("model.gguf");
    const char *family = biases != NULL ? "qwen2" : "llama";
    gguf_writer *writer = fixture_writer(
        &(fixture_spec){.family = family, .layers = 1, .hidden = 64, .kv_heads = 2, .head_dim = 2});
    int64_t size;
    uint8_t *data = gguf_build(writer, &size);
    memcpy(data + gguf_where(writer, GGUF_AT_DATA, "blk.0.attn_v.weight"), weights, sizeof *weights * 4 * 64);
    memcpy(data + gguf_where(writer, GGUF_AT_DATA, "blk.0.attn_norm.weight"), gains, sizeof *gains * 64);
    if (biases != NULL) memcpy(data + gguf_where(writer, GGUF_AT_DATA, "blk.0.attn_v.bias"), biases, sizeof *biases * 4);
    gguf_write(writer, path);
    gguf_free(writer);
    return load(path);
}

Test(model_value_exponent, counts_gain_width_and_the_largest_channel_of_each_head)
{
    float weights[4 * 64] = {0};
    float gains[64];
    dw_model *m;
    for (int i = 0; i < 64; i++) gains[i] = 1;
    gains[63] = -16;
    weights[1 * 64 + 5] = -0.25f; /* head 0: sqrt(64) * 0.25 = 2, with the slack a little more */
    weights[2 * 64 + 63] = 0.11f; /* head 1: sqrt(64) * 0.11 * 16 = 14.08 */
    weights[3 * 64 + 5] = 0.5f;   /*         sqrt(64) * 0.5 = 4 */
    m = load_with(weights, gains, NULL);
    cr_expect(m->layer[0].value_exponent[0] == 2, "%d", m->layer[0].value_exponent[0]);
    cr_expect(m->layer[0].value_exponent[1] == 4, "%d", m->layer[0].value_exponent[1]);
    dw_model_free(m);
    weights[1 * 64 + 5] = -0.248f;
    m = load_with(weights, gains, NULL);
    cr_expect(m->layer[0].value_exponent[0] == 1, "%d", m->layer[0].value_exponent[0]);
    dw_model_free(m);
}

/* With slack, sqrt(64) * 0.25 + bias exceeds 4 from a bias of 1.985 on. A bias counts with the weights of its own channel: 14.1
   alone stays below 16. */
Test(model_value_exponent, counts_the_largest_bias_of_each_head)
{
    float weights[4 * 64] = {0};
    float gains[64];
    float biases[4] = {0, 0, 0, -1.99f};
    dw_model *m;
    for (int i = 0; i < 64; i++) gains[i] = 1;
    weights[0 * 64 + 5] = -0.25f;
    weights[3 * 64 + 7] = 0.25f;
    m = load_with(weights, gains, biases);
    cr_expect(m->layer[0].value_exponent[0] == 2 && m->layer[0].value_exponent[1] == 3, "%d, %d", m->layer[0].value_exponent[0],
              m->layer[0].value_exponent[1]);
    dw_model_free(m);
    biases[0] = 1.97f;
    biases[2] = 14.1f;
    m = load_with(weights, gains, biases);
    cr_expect(m->layer[0].value_exponent[0] == 2 && m->layer[0].value_exponent[1] == 4, "%d, %d", m->layer[0].value_exponent[0],
              m->layer[0].value_exponent[1]);
    dw_model_free(m);
}

Test(model_value_exponent, is_never_below_minus_60)
{
    float weights[4 * 64] = {0};
    float gains[64];
    dw_model *m;
    for (int i = 0; i < 64; i++) gains[i] = 1;
    weights[2 * 64] = 1e-30f;
    m = load_with(weights, gains, NULL);
    cr_expect(m->layer[0].value_exponent[0] == -60 && m->layer[0].value_exponent[1] == -60);
    dw_model_free(m);
}
