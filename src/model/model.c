#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/* Bounds of hyperparameters: what no model comes near, but sizes computed from them can not overflow. MAX_HIDDEN also keeps
   the rounding of a dot product within the slack of value_exponent. */
#define MAX_LAYERS ((int64_t)1 << 12)
#define MAX_HIDDEN ((int64_t)1 << 18)
#define MAX_FEED_FORWARD ((int64_t)1 << 24)
#define MAX_HEADS ((int64_t)1 << 16)
#define MAX_CONTEXT ((int64_t)1 << 34)
enum { MIN_VALUE_EXPONENT = -60, MAX_VALUE_EXPONENT = 120 };

/* Metadata keys behind "FAMILY.": read, or without influence on results. */
static const char *const known_keys[] = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "vocab_size",
    "tensor_data_layout",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
};

/* Switches that may only stand at the value that changes nothing. */
static const struct {
    const char *key;
    double neutral;
} neutral_keys[] = {
    {"expert_count", 0},        {"expert_used_count", 0},        {"attention.sliding_window", 0},
    {"rope.scaling.factor", 1}, {"rope.scaling.attn_factor", 1}, {"rope.scale_linear", 1},
};

static const char *const global_tensors[] = {"token_embd.weight", "output.weight", "output_norm.weight"};
static const char *const layer_tensors[] = {
    "attn_q.weight", "attn_k.weight",   "attn_v.weight",    "attn_output.weight", "ffn_gate.weight",
    "ffn_up.weight", "ffn_down.weight", "attn_norm.weight", "ffn_norm.weight",
};
static const char *const bias_tensors[] = {"attn_q.bias", "attn_k.bias", "attn_v.bias"};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* Reports DW_INPUT with the file's name in front. */
#define REFUSE(model, err, ...) (dw_fail((err), DW_INPUT, __VA_ARGS__), dw_fail_context((err), "%s", (model)->path), DW_INPUT)

static int is_one_of(const char *const *names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) return 1;
    }
    return 0;
}

/* ---- hyperparameters ---- */

typedef struct {
    char text[96];
} key_name;

/* "FAMILY.suffix" */
static key_name key_of(const dw_model *m, const char *suffix)
{
    key_name key;
    snprintf(key.text, sizeof key.text, "%s.%s", m->family->name, suffix);
    return key;
}

/* A count of 1..most. otherwise: its value when the key is absent, 0 when it must be there. */
static dw_status read_count(const dw_model *m, const char *suffix, int64_t otherwise, int64_t most, int64_t *value,
                            dw_error *err)
{
    const key_name key = key_of(m, suffix);
    int found;
    *value = otherwise;
    DW_TRY(dw_gguf_int(m->file, key.text, value, otherwise > 0 ? &found : NULL, err));
    if (*value < 1 || *value > most) {
        return REFUSE(m, err, "%s is %lld; 1 to %lld are supported", key.text, (long long)*value, (long long)most);
    }
    return DW_OK;
}

static dw_status read_attention_shape(dw_model *m, dw_error *err)
{
    int64_t value_length;
    DW_TRY(read_count(m, "attention.head_count", 0, MAX_HEADS, &m->heads, err));
    DW_TRY(read_count(m, "attention.head_count_kv", m->heads, MAX_HEADS, &m->kv_heads, err));
    DW_TRY(read_count(m, "attention.key_length", m->hidden / m->heads, DW_MAX_HEAD_DIM, &m->head_dim, err));
    DW_TRY(read_count(m, "attention.value_length", m->hidden / m->heads, DW_MAX_HEAD_DIM, &value_length, err));
    DW_TRY(read_count(m, "rope.dimension_count", m->head_dim, m->head_dim, &m->rope_dims, err));
    if (m->heads % m->kv_heads != 0) {
        return REFUSE(m, err, "%lld heads are not a multiple of %lld KV heads", (long long)m->heads, (long long)m->kv_heads);
    }
    if (value_length != m->head_dim) {
        return REFUSE(m, err, "keys of %lld and values of %lld numbers are not supported; they must be as long",
                      (long long)m->head_dim, (long long)value_length);
    }
    if (m->head_dim % 2 != 0 || m->rope_dims % 2 != 0) {
        return REFUSE(m, err, "head dimension %lld with %lld rotated is not supported; both must be even",
                      (long long)m->head_dim, (long long)m->rope_dims);
    }
    return DW_OK;
}

static dw_status read_hyperparameters(dw_model *m, double rope_base, dw_error *err)
{
    const key_name epsilon = key_of(m, "attention.layer_norm_rms_epsilon");
    const key_name base = key_of(m, "rope.freq_base");
    int found;
    DW_TRY(read_count(m, "block_count", 0, MAX_LAYERS, &m->layers, err));
    DW_TRY(read_count(m, "embedding_length", 0, MAX_HIDDEN, &m->hidden, err));
    DW_TRY(read_count(m, "feed_forward_length", 0, MAX_FEED_FORWARD, &m->feed_forward, err));
    DW_TRY(read_count(m, "context_length", 0, MAX_CONTEXT, &m->context, err));
    DW_TRY(read_attention_shape(m, err));
    DW_TRY(dw_gguf_float(m->file, epsilon.text, &m->norm_epsilon, NULL, err));
    if (!(m->norm_epsilon > 0 && m->norm_epsilon < 1)) {
        return REFUSE(m, err, "%s is %g; it must lie between 0 and 1", epsilon.text, m->norm_epsilon);
    }
    m->rope_base = 10000;
    DW_TRY(dw_gguf_float(m->file, base.text, &m->rope_base, &found, err));
    if (rope_base > 0) m->rope_base = rope_base;
    if (!(m->rope_base > 0 && isfinite(m->rope_base))) {
        return REFUSE(m, err, "%s is %g; it must be positive and finite", base.text, m->rope_base);
    }
    return DW_OK;
}

/* ---- what this program would leave out ---- */

static dw_status find_family(dw_model *m, dw_error *err)
{
    dw_string name;
    int64_t parts = 1;
    int64_t version = 2;
    int found;
    DW_TRY(dw_gguf_string(m->file, "general.architecture", &name, NULL, err));
    m->family = dw_family_named(name.data, name.length);
    if (m->family == NULL) {
        return REFUSE(m, err, "architecture '%s' is not supported yet; supported: %s", dw_gguf_printable(name).text,
                      dw_family_names());
    }
    DW_TRY(dw_gguf_int(m->file, "split.count", &parts, &found, err));
    if (parts > 1) return REFUSE(m, err, "one of %lld parts of a split model, which is not supported yet", (long long)parts);
    DW_TRY(dw_gguf_int(m->file, "general.quantization_version", &version, &found, err));
    if (version == 2) return DW_OK;
    return REFUSE(m, err, "general.quantization_version %lld is not supported; supported: 2", (long long)version);
}

/* Every key of the family is either understood, or stands at the value that changes nothing, or is refused. suffix: behind
   "FAMILY.". */
static dw_status check_key(const dw_model *m, const char *key, const char *suffix, dw_error *err)
{
    dw_string scaling;
    double value;
    int found;
    if (is_one_of(known_keys, COUNT(known_keys), suffix)) return DW_OK;
    if (strcmp(suffix, "rope.scaling.type") == 0) {
        DW_TRY(dw_gguf_string(m->file, key, &scaling, NULL, err));
        if (scaling.length == 4 && memcmp(scaling.data, "none", 4) == 0) return DW_OK;
        return REFUSE(m, err, "RoPE scaling '%s' (%s) is not supported yet", dw_gguf_printable(scaling).text, key);
    }
    for (size_t i = 0; i < COUNT(neutral_keys); i++) {
        if (strcmp(neutral_keys[i].key, suffix) != 0) continue;
        DW_TRY(dw_gguf_float(m->file, key, &value, &found, err));
        if (value == neutral_keys[i].neutral) return DW_OK;
        return REFUSE(m, err, "%s %g is not supported yet", key, value);
    }
    return REFUSE(m, err, "metadata key %s is unknown and could change results", key);
}

static int is_known_tensor(const dw_model *m, const char *name)
{
    char *end;
    long long layer;
    if (is_one_of(global_tensors, COUNT(global_tensors), name)) return 1;
    if (strncmp(name, "blk.", 4) != 0 || name[4] < '0' || name[4] > '9') return 0;
    layer = strtoll(name + 4, &end, 10);
    if (layer >= m->layers || *end != '.' || (name[4] == '0' && end != name + 5)) return 0;
    if (m->family->has_qkv_bias && is_one_of(bias_tensors, COUNT(bias_tensors), end + 1)) return 1;
    return is_one_of(layer_tensors, COUNT(layer_tensors), end + 1);
}

/* A tensor that nobody asks for (a bias, RoPE factors, an expert) must not be left out silently. */
static dw_status check_names(const dw_model *m, dw_error *err)
{
    const size_t length = strlen(m->family->name);
    for (int64_t i = 0; i < dw_gguf_keys(m->file); i++) {
        const dw_gguf_text key = dw_gguf_printable(dw_gguf_key(m->file, i));
        if (strncmp(key.text, m->family->name, length) != 0 || key.text[length] != '.') continue;
        DW_TRY(check_key(m, key.text, key.text + length + 1, err));
    }
    for (int64_t i = 0; i < dw_gguf_tensors(m->file); i++) {
        const dw_gguf_text name = dw_gguf_printable(dw_gguf_tensor_name(m->file, i));
        if (is_known_tensor(m, name.text)) continue;
        return REFUSE(m, err, "tensor %s is not supported in family %s; results could be wrong without it", name.text,
                      m->family->name);
    }
    return DW_OK;
}

/* ---- tensors ---- */

/* The gains of a norm or the biases of a linear layer: [count] F32. */
static dw_status read_vector(const dw_model *m, const char *name, int64_t count, const float **out, dw_error *err)
{
    dw_matrix vector;
    DW_TRY(dw_gguf_matrix(m->file, name, 1, count, &vector, NULL, err));
    if (vector.type != DW_F32) {
        return REFUSE(m, err, "tensor %s has type %s; norms and biases must be F32", name, dw_types[vector.type].name);
    }
    *out = vector.data; /* aligned: tensors start at multiples of 8 */
    return DW_OK;
}

/* The numbers of all norms and biases must be finite. */
static dw_status check_vectors(const dw_model *m, dw_error *err)
{
    for (int64_t t = 0; t < dw_gguf_tensors(m->file); t++) {
        const dw_gguf_text name = dw_gguf_printable(dw_gguf_tensor_name(m->file, t));
        dw_matrix vector;
        DW_TRY(dw_gguf_matrix(m->file, name.text, -1, -1, &vector, NULL, err));
        if (vector.outputs != 1 || vector.type != DW_F32) continue;
        for (int64_t i = 0; i < vector.inputs; i++) {
            if (!isfinite(((const float *)vector.data)[i]))
                return REFUSE(m, err, "tensor %s holds non-finite values", name.text);
        }
    }
    return DW_OK;
}

/* The smallest v >= MIN_VALUE_EXPONENT with 2^v > bound. */
static int32_t exponent_of(double bound)
{
    int v;
    (void)frexp(bound, &v); /* bound = m 2^v with 1/2 <= m < 1 */
    return bound == 0 || v < MIN_VALUE_EXPONENT ? MIN_VALUE_EXPONENT : v;
}

/* layer->value_exponent [kv_heads]. Channel c of V is W_v[c] . (n * gain) with |n|_2 <= sqrt(hidden) after RMS
   normalisation, so by Cauchy-Schwarz |V[c]| <= sqrt(hidden) |W_v[c] * gain|_2 + |bias[c]|. Float rounding of norm and dot
   product adds less than 2^-8 of that bound (MAX_HIDDEN), and rounding to the cache type can not pass 2^v, which the type
   represents. row: [dw_padded(hidden)] scratch. */
static dw_status read_value_exponents(const dw_model *m, dw_layer *layer, const char *name, float *row, dw_error *err)
{
    const int64_t stride = dw_row_bytes(layer->v.type, m->hidden);
    const uint8_t *weights = layer->v.data;
    DW_TRY(DW_ALLOC(&layer->value_exponent, m->kv_heads, "value exponents", err));
    for (int64_t head = 0; head < m->kv_heads; head++) {
        double largest = 0;
        double largest_bias = 0;
        for (int64_t c = 0; c < m->head_dim; c++, weights += stride) {
            double sum = 0;
            dw_kernels_scalar.dequantize[layer->v.type](row, weights, m->hidden);
            for (int64_t i = 0; i < m->hidden; i++) {
                const double w = (double)row[i] * (double)layer->attention_norm[i];
                sum += w * w;
            }
            if (!isfinite(sum)) return REFUSE(m, err, "tensor %s holds non-finite values", name);
            if (sum > largest) largest = sum;
            if (layer->v_bias != NULL) largest_bias = fmax(largest_bias, fabs((double)layer->v_bias[head * m->head_dim + c]));
        }
        layer->value_exponent[head] = exponent_of((sqrt((double)m->hidden * largest) + largest_bias) * (1 + 1.0 / 256));
        if (layer->value_exponent[head] > MAX_VALUE_EXPONENT) {
            return REFUSE(m, err, "tensor %s is too large: values could reach 2^%d", name, layer->value_exponent[head]);
        }
    }
    return DW_OK;
}

static dw_status read_layer(const dw_model *m, int64_t index, dw_layer *layer, dw_error *err)
{
    const struct {
        const char *suffix;
        dw_matrix *to;
        int64_t outputs, inputs;
    } matrices[] = {
        {"attn_q.weight", &layer->q, m->heads * m->head_dim, m->hidden},
        {"attn_k.weight", &layer->k, m->kv_heads * m->head_dim, m->hidden},
        {"attn_v.weight", &layer->v, m->kv_heads * m->head_dim, m->hidden},
        {"attn_output.weight", &layer->output, m->hidden, m->heads * m->head_dim},
        {"ffn_gate.weight", &layer->gate, m->feed_forward, m->hidden},
        {"ffn_up.weight", &layer->up, m->feed_forward, m->hidden},
        {"ffn_down.weight", &layer->down, m->hidden, m->feed_forward},
    };
    const struct {
        const char *suffix;
        const float **to;
        int64_t count;
        int present;
    } vectors[] = {
        {"attn_norm.weight", &layer->attention_norm, m->hidden, 1},
        {"ffn_norm.weight", &layer->feed_forward_norm, m->hidden, 1},
        {"attn_q.bias", &layer->q_bias, m->heads * m->head_dim, m->family->has_qkv_bias},
        {"attn_k.bias", &layer->k_bias, m->kv_heads * m->head_dim, m->family->has_qkv_bias},
        {"attn_v.bias", &layer->v_bias, m->kv_heads * m->head_dim, m->family->has_qkv_bias},
    };
    char name[64];
    for (size_t i = 0; i < COUNT(matrices); i++) {
        snprintf(name, sizeof name, "blk.%lld.%s", (long long)index, matrices[i].suffix);
        DW_TRY(dw_gguf_matrix(m->file, name, matrices[i].outputs, matrices[i].inputs, matrices[i].to, NULL, err));
    }
    for (size_t i = 0; i < COUNT(vectors); i++) {
        if (!vectors[i].present) continue;
        snprintf(name, sizeof name, "blk.%lld.%s", (long long)index, vectors[i].suffix);
        DW_TRY(read_vector(m, name, vectors[i].count, vectors[i].to, err));
    }
    return DW_OK;
}

static dw_status read_embedding(dw_model *m, dw_error *err)
{
    const key_name key = key_of(m, "vocab_size");
    int64_t size;
    int found;
    DW_TRY(dw_gguf_matrix(m->file, "token_embd.weight", -1, m->hidden, &m->embedding, NULL, err));
    m->vocabulary = m->embedding.outputs;
    size = m->vocabulary;
    DW_TRY(dw_gguf_int(m->file, key.text, &size, &found, err));
    if (size != m->vocabulary || size > INT32_MAX) {
        return REFUSE(m, err, "%s is %lld, but token_embd.weight has %lld rows", key.text, (long long)size,
                      (long long)m->vocabulary);
    }
    DW_TRY(dw_gguf_matrix(m->file, "output.weight", m->vocabulary, m->hidden, &m->head, &found, err));
    if (!found) m->head = m->embedding;
    return read_vector(m, "output_norm.weight", m->hidden, &m->output_norm, err);
}

static dw_status read_layers(dw_model *m, dw_error *err)
{
    DW_TRY(DW_ALLOC(&m->layer, m->layers, "layers", err));
    for (int64_t i = 0; i < m->layers; i++) DW_TRY(read_layer(m, i, &m->layer[i], err));
    return DW_OK;
}

/* Of all layers. Reads the whole V matrices. */
static dw_status read_exponents(dw_model *m, dw_error *err)
{
    float *row;
    dw_status status = DW_OK;
    DW_TRY(DW_ALLOC(&row, dw_padded(m->hidden), "row of weights", err));
    for (int64_t i = 0; i < m->layers && status == DW_OK; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%lld.attn_v.weight", (long long)i);
        status = read_value_exponents(m, &m->layer[i], name, row, err);
    }
    dw_free(row);
    return status;
}

/* ---- the model ---- */

/* A model but for its value exponents; reads no tensor. */
static dw_status open_model(dw_model *m, const char *path, double rope_base, dw_error *err)
{
    const int64_t length = (int64_t)strlen(path);
    DW_TRY(DW_ALLOC(&m->path, length + 1, "path", err));
    memcpy(m->path, path, (size_t)length);
    DW_TRY(dw_gguf_open(&m->file, path, err));
    DW_TRY(find_family(m, err));
    DW_TRY(read_hyperparameters(m, rope_base, err));
    DW_TRY(check_names(m, err));
    DW_TRY(read_embedding(m, err));
    return read_layers(m, err);
}

dw_status dw_model_load(dw_model **out, const char *path, double rope_base, dw_error *err)
{
    dw_model *m;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&m, 1, "model", err));
    status = open_model(m, path, rope_base, err);
    if (status == DW_OK) status = check_vectors(m, err);
    if (status == DW_OK) status = read_exponents(m, err);
    if (status != DW_OK) {
        dw_model_free(m);
        return status;
    }
    *out = m;
    return DW_OK;
}

dw_status dw_model_check(const char *path, dw_error *err)
{
    dw_model *m;
    dw_status status;
    DW_TRY(DW_ALLOC(&m, 1, "model", err));
    status = open_model(m, path, 0, err);
    dw_model_free(m);
    return status;
}

void dw_model_free(dw_model *model)
{
    if (model == NULL) return;
    for (int64_t i = 0; model->layer != NULL && i < model->layers; i++) dw_free(model->layer[i].value_exponent);
    dw_free(model->layer);
    dw_gguf_close(model->file);
    dw_free(model->path);
    dw_free(model);
}

static int64_t matrix_bytes(const dw_matrix *w)
{
    return w->outputs * dw_row_bytes(w->type, w->inputs);
}

int64_t dw_model_weight_bytes(const dw_model *model)
{
    const int64_t norm = model->hidden * (int64_t)sizeof(float);
    int64_t bytes = matrix_bytes(&model->embedding) + norm;
    if (model->head.data != model->embedding.data) bytes += matrix_bytes(&model->head);
    for (int64_t i = 0; i < model->layers; i++) {
        const dw_layer *l = &model->layer[i];
        bytes += matrix_bytes(&l->q) + matrix_bytes(&l->k) + matrix_bytes(&l->v) + matrix_bytes(&l->output);
        bytes += matrix_bytes(&l->gate) + matrix_bytes(&l->up) + matrix_bytes(&l->down) + 2 * norm;
        if (l->q_bias != NULL) bytes += (l->q.outputs + l->k.outputs + l->v.outputs) * (int64_t)sizeof(float);
    }
    return bytes;
}
