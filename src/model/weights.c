#include "model/weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/integers.h"
#include "base/memory.h"
#include "kernels/f16.h"

#define REFUSE(w, err, ...) DW_REFUSE((w)->model->checkpoint->path, err, __VA_ARGS__)

/* ---- names ---- */

static int is_gguf(const dw_weights *w)
{
    return w->model->checkpoint->gguf != NULL;
}

dw_tensor_name dw_weights_name(const dw_weights *w, dw_part part, int64_t layer, const char *suffix)
{
    const dw_family *family = w->model->config.family;
    const char *part_name = is_gguf(w) ? dw_part_gguf_name(part) : family->hf_names[part];
    const char *prefix = is_gguf(w) || part == DW_PART_HEAD ? "" : w->prefix;
    dw_tensor_name name;
    if (part < DW_PART_LAYER) {
        snprintf(name.text, sizeof name.text, "%s%s.%s", prefix, part_name, suffix);
    } else {
        snprintf(name.text, sizeof name.text, "%s%s.%lld.%s.%s", prefix, is_gguf(w) ? "blk" : family->hf_layers,
                 (long long)layer, part_name, suffix);
    }
    return name;
}

int dw_weights_has(const dw_weights *w, dw_part part, int64_t layer, const char *suffix)
{
    return dw_tensors_find(w->tensors, dw_weights_name(w, part, layer, suffix).text) != NULL;
}

dw_status dw_weights_open(dw_weights *w, dw_model *model, dw_error *err)
{
    *w = (dw_weights){.model = model, .tensors = model->checkpoint->tensors, .prefix = model->config.family->hf_prefix};
    if (!dw_weights_has(w, DW_PART_EMBEDDING, 0, "weight")) {
        w->prefix = "";
        if (!dw_weights_has(w, DW_PART_EMBEDDING, 0, "weight")) w->prefix = model->config.family->hf_prefix;
    }
    return DW_ALLOC(&w->used, w->tensors->count, "tensors", err);
}

void dw_weights_close(dw_weights *w)
{
    dw_free(w->used);
}

/* ---- memory of the model ---- */

/* *out = bytes of memory that belong to the model. */
static dw_status own(dw_model *m, int64_t rows, int64_t row_bytes, void **out, dw_error *err)
{
    DW_TRY(DW_GROW(&m->owned, &m->owned_capacity, m->owned_count + 1, "weights", err));
    DW_TRY(dw_alloc_bytes(&m->owned[m->owned_count], rows, row_bytes, "weights", err));
    *out = m->owned[m->owned_count++];
    m->owned_bytes += rows * row_bytes;
    return DW_OK;
}

static int is_aligned(const void *data, dw_type type)
{
    const dw_type_info *info = &dw_types[type];
    return info->elements > 1 || (uintptr_t)data % (uintptr_t)info->bytes == 0;
}

/* ---- matrices ---- */

/* The tensor as it lies in the file; its data may not be aligned. */
static dw_status stored_matrix(dw_weights *w, const char *name, int64_t outputs, int64_t inputs, dw_matrix *matrix,
                               dw_error *err)
{
    const dw_tensor *tensor = dw_tensors_find(w->tensors, name);
    DW_TRY(dw_tensors_matrix(w->tensors, name, outputs, inputs, matrix, NULL, err));
    if (!w->used[tensor - w->tensors->list]) w->model->stored_bytes += tensor->bytes;
    w->used[tensor - w->tensors->list] = 1;
    return DW_OK;
}

/* to [columns][rows] = from [rows][columns], elements of 2 or 4 bytes at any address; in squares that fit into the L1 cache. */
static void transpose(uint8_t *to, const uint8_t *from, int64_t rows, int64_t columns, int bytes)
{
    enum { SIDE = 32 };
    for (int64_t top = 0; top < rows; top += SIDE) {
        for (int64_t left = 0; left < columns; left += SIDE) {
            const int64_t bottom = dw_smaller(top + SIDE, rows);
            const int64_t right = dw_smaller(left + SIDE, columns);
            for (int64_t c = left; c < right; c++) {
                for (int64_t r = top; r < bottom; r++)
                    memcpy(to + (c * rows + r) * bytes, from + (r * columns + c) * bytes, bytes);
            }
        }
    }
}

/* Matrix [outputs][inputs] of a tensor that is stored [inputs][outputs]. */
static dw_status transposed_matrix(dw_weights *w, const char *name, int64_t outputs, int64_t inputs, dw_matrix *matrix,
                                   dw_error *err)
{
    dw_matrix stored;
    void *data = NULL;
    DW_TRY(stored_matrix(w, name, inputs, outputs, &stored, err));
    if (dw_types[stored.type].elements != 1) {
        return REFUSE(w, err, "tensor %s has type %s; matrices that are stored transposed must be F32, F16 or BF16", name,
                      dw_types[stored.type].name);
    }
    if (w->values) {
        DW_TRY(own(w->model, stored.inputs, dw_row_bytes(stored.type, stored.outputs), &data, err));
        transpose(data, stored.data, stored.outputs, stored.inputs, dw_types[stored.type].bytes);
    }
    *matrix = (dw_matrix){stored.type, stored.inputs, stored.outputs, data};
    return DW_OK;
}

dw_status dw_weights_matrix(dw_weights *w, dw_part part, int64_t layer, int64_t outputs, int64_t inputs, dw_matrix *matrix,
                            dw_error *err)
{
    const dw_tensor_name name = dw_weights_name(w, part, layer, "weight");
    const int is_transposed = w->model->config.family->is_transposed && !is_gguf(w) && part >= DW_PART_LAYER;
    int64_t row_bytes;
    void *data;
    if (is_transposed) return transposed_matrix(w, name.text, outputs, inputs, matrix, err);
    DW_TRY(stored_matrix(w, name.text, outputs, inputs, matrix, err));
    if (!w->values || is_aligned(matrix->data, matrix->type)) return DW_OK;
    row_bytes = dw_row_bytes(matrix->type, matrix->inputs);
    DW_TRY(own(w->model, matrix->outputs, row_bytes, &data, err));
    memcpy(data, matrix->data, (size_t)(matrix->outputs * row_bytes));
    matrix->data = data;
    return DW_OK;
}

/* ---- vectors ---- */

/* Number i of data at any address. */
static float number_at(const uint8_t *data, dw_type type, int64_t i)
{
    float number;
    uint16_t half;
    if (type == DW_F32) {
        memcpy(&number, data + 4 * i, sizeof number);
        return number;
    }
    memcpy(&half, data + 2 * i, sizeof half);
    return type == DW_F16 ? dw_f32_of_f16(half) : dw_f32_of_bf16(half);
}

/* The gains of a norm or the biases of a linear layer as F32. offset is added to each. */
static dw_status read_vector(dw_weights *w, const char *name, int64_t count, float offset, const float **out, dw_error *err)
{
    dw_matrix stored;
    void *data;
    *out = NULL;
    DW_TRY(stored_matrix(w, name, 1, count, &stored, err));
    if (dw_types[stored.type].elements != 1) {
        return REFUSE(w, err, "tensor %s has type %s; norms and biases must be F32, F16 or BF16", name,
                      dw_types[stored.type].name);
    }
    if (!w->values) return DW_OK;
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(number_at(stored.data, stored.type, i))) return REFUSE(w, err, "tensor %s holds non-finite values", name);
    }
    if (stored.type == DW_F32 && offset == 0 && is_aligned(stored.data, DW_F32)) {
        *out = stored.data;
        return DW_OK;
    }
    DW_TRY(own(w->model, count, (int64_t)sizeof(float), &data, err));
    for (int64_t i = 0; i < count; i++) ((float *)data)[i] = number_at(stored.data, stored.type, i) + offset;
    *out = data;
    return DW_OK;
}

dw_status dw_weights_linear(dw_weights *w, dw_part part, int64_t layer, int64_t outputs, int64_t inputs, int has_bias,
                            dw_linear_layer *linear, dw_error *err)
{
    DW_TRY(dw_weights_matrix(w, part, layer, outputs, inputs, &linear->w, err));
    if (!has_bias) return DW_OK;
    return read_vector(w, dw_weights_name(w, part, layer, "bias").text, outputs, 0, &linear->bias, err);
}

dw_status dw_weights_norm(dw_weights *w, dw_part part, int64_t layer, int64_t count, int has_bias, dw_norm *norm, dw_error *err)
{
    const float offset = w->model->config.family->norm_offset && !is_gguf(w) ? 1 : 0;
    DW_TRY(read_vector(w, dw_weights_name(w, part, layer, "weight").text, count, offset, &norm->gain, err));
    if (!has_bias) return DW_OK;
    return read_vector(w, dw_weights_name(w, part, layer, "bias").text, count, 0, &norm->bias, err);
}

/* ---- Q, K, V ---- */

/* Rows of each head's q, k, v in this order -> all rows of q, then of k, then of v. */
static dw_status regroup(dw_weights *w, const void **rows, int64_t row_bytes, dw_error *err)
{
    const dw_config *c = &w->model->config;
    const int64_t head_bytes = c->head_dim * row_bytes;
    const uint8_t *from = *rows;
    void *to;
    if (!w->values) return DW_OK;
    DW_TRY(own(w->model, 3 * c->heads, head_bytes, &to, err));
    for (int64_t kind = 0; kind < 3; kind++) {
        for (int64_t h = 0; h < c->heads; h++) {
            memcpy((uint8_t *)to + (kind * c->heads + h) * head_bytes, from + (h * 3 + kind) * head_bytes, (size_t)head_bytes);
        }
    }
    *rows = to;
    return DW_OK;
}

/* Rows first .. first + count - 1 of qkv. */
static dw_linear_layer part_of(const dw_linear_layer *qkv, int64_t first, int64_t count)
{
    dw_linear_layer part = *qkv;
    part.w.outputs = count;
    if (qkv->w.data != NULL) part.w.data = (const uint8_t *)qkv->w.data + first * dw_row_bytes(qkv->w.type, qkv->w.inputs);
    if (qkv->bias != NULL) part.bias = qkv->bias + first;
    return part;
}

static dw_status read_joint_qkv(dw_weights *w, int64_t layer, dw_layer *to, dw_error *err)
{
    const dw_config *c = &w->model->config;
    const int64_t q = c->heads * c->head_dim;
    const int64_t kv = c->kv_heads * c->head_dim;
    dw_linear_layer all = {0};
    if (!is_gguf(w) && c->kv_heads != c->heads) {
        return REFUSE(w, err,
                      "%lld heads over %lld KV heads in one matrix of Q, K and V are not supported; they must be as many",
                      (long long)c->heads, (long long)c->kv_heads);
    }
    DW_TRY(dw_weights_linear(w, DW_PART_QKV, layer, q + 2 * kv, c->hidden, c->family->qkv_has_bias, &all, err));
    if (!is_gguf(w) && c->family->qkv == DW_QKV_BY_HEAD) {
        const void *bias = all.bias;
        DW_TRY(regroup(w, &all.w.data, dw_row_bytes(all.w.type, all.w.inputs), err));
        if (c->family->qkv_has_bias) DW_TRY(regroup(w, &bias, (int64_t)sizeof(float), err));
        all.bias = bias;
    }
    to->q = part_of(&all, 0, q);
    to->k = part_of(&all, q, kv);
    to->v = part_of(&all, q + kv, kv);
    return DW_OK;
}

dw_part dw_weights_value_part(const dw_weights *w)
{
    const dw_family *family = w->model->config.family;
    const int is_joint = is_gguf(w) ? family->gguf_qkv_is_one : family->qkv != DW_QKV_SEPARATE;
    return is_joint ? DW_PART_QKV : DW_PART_V;
}

dw_status dw_weights_qkv(dw_weights *w, int64_t layer, dw_layer *to, dw_error *err)
{
    const dw_config *c = &w->model->config;
    const int has_bias = c->family->qkv_has_bias;
    if (dw_weights_value_part(w) == DW_PART_QKV) return read_joint_qkv(w, layer, to, err);
    DW_TRY(dw_weights_linear(w, DW_PART_Q, layer, c->heads * c->head_dim, c->hidden, has_bias, &to->q, err));
    DW_TRY(dw_weights_linear(w, DW_PART_K, layer, c->kv_heads * c->head_dim, c->hidden, has_bias, &to->k, err));
    return dw_weights_linear(w, DW_PART_V, layer, c->kv_heads * c->head_dim, c->hidden, has_bias, &to->v, err);
}

/* ---- what is left ---- */

static int is_ignored(const dw_weights *w, dw_string name)
{
    const char *const *endings = w->model->config.family->hf_ignored;
    for (int i = 0; !is_gguf(w) && endings != NULL && endings[i] != NULL; i++) {
        const int64_t length = (int64_t)strlen(endings[i]);
        if (name.length >= length && memcmp(name.data + name.length - length, endings[i], (size_t)length) == 0) return 1;
    }
    return 0;
}

dw_status dw_weights_check_all_used(const dw_weights *w, dw_error *err)
{
    const dw_config *c = &w->model->config;
    for (int64_t i = 0; i < w->tensors->count; i++) {
        const dw_string name = w->tensors->list[i].name;
        if (w->used[i] || is_ignored(w, name)) continue;
        if (c->rope.factors != NULL && dw_string_is(name, dw_weights_name(w, DW_PART_ROPE_FACTORS, 0, "weight").text)) continue;
        return REFUSE(w, err, "tensor %s is not supported in family %s; results could be wrong without it",
                      dw_printable(name).text, c->family->name);
    }
    return DW_OK;
}
