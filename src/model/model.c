#include "model/model.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/memory.h"
#include "model/weights.h"

#define REFUSE(m, err, ...) DW_REFUSE((m)->checkpoint->path, err, __VA_ARGS__)

/* ---- tensors of the model ---- */

/* The vocabulary that the metadata state must be that of the embedding. */
static dw_status read_embedding(dw_weights *w, dw_error *err)
{
    dw_model *m = w->model;
    const dw_config *c = &m->config;
    const dw_tensor_name name = dw_weights_name(w, DW_PART_EMBEDDING, 0, "weight");
    DW_TRY(dw_weights_matrix(w, DW_PART_EMBEDDING, 0, -1, c->hidden, &m->embedding, err));
    m->vocabulary = m->embedding.outputs;
    m->embedding_scale = c->family->scales_embedding ? sqrtf((float)c->hidden) : 1;
    if (c->vocabulary >= 0 && c->vocabulary != m->vocabulary) {
        return REFUSE(m, err, "vocab_size is %lld, but %s has %lld rows", (long long)c->vocabulary, name.text,
                      (long long)m->vocabulary);
    }
    if (m->vocabulary <= INT32_MAX) return DW_OK;
    return REFUSE(m, err, "%s has %lld rows; up to %d are supported", name.text, (long long)m->vocabulary, INT32_MAX);
}

static dw_status read_positions(dw_weights *w, dw_error *err)
{
    dw_model *m = w->model;
    const dw_config *c = &m->config;
    if (c->family->gguf_pairs != DW_ROPE_ABSENT) return DW_OK;
    DW_TRY(dw_weights_matrix(w, DW_PART_POSITIONS, 0, -1, c->hidden, &m->positions, err));
    if (m->positions.outputs >= c->context) return DW_OK;
    return REFUSE(m, err, "tensor %s has rows for %lld positions, but the context is %lld",
                  dw_weights_name(w, DW_PART_POSITIONS, 0, "weight").text, (long long)m->positions.outputs,
                  (long long)c->context);
}

/* Whether the numbers of two matrices of the same shape are the same. *equal. */
static dw_status compare(const dw_matrix *a, const dw_matrix *b, int *equal, dw_error *err)
{
    const int64_t stride = dw_padded(a->inputs);
    float *rows;
    DW_TRY(DW_ALLOC(&rows, 2 * stride, "rows of weights", err));
    *equal = 1;
    for (int64_t o = 0; o < a->outputs && *equal; o++) {
        dw_kernels_scalar.dequantize[a->type](rows, (const uint8_t *)a->data + o * dw_row_bytes(a->type, a->inputs), a->inputs);
        dw_kernels_scalar.dequantize[b->type](rows + stride, (const uint8_t *)b->data + o * dw_row_bytes(b->type, b->inputs),
                                              b->inputs);
        *equal = memcmp(rows, rows + stride, (size_t)stride * sizeof *rows) == 0;
    }
    dw_free(rows);
    return DW_OK;
}

/* A checkpoint with a tied head may still hold one, as long as it is the embedding. */
static dw_status read_head(dw_weights *w, dw_error *err)
{
    dw_model *m = w->model;
    const int is_stored = dw_weights_has(w, DW_PART_HEAD, 0, "weight");
    const dw_tensor_name name = dw_weights_name(w, DW_PART_HEAD, 0, "weight");
    int equal = 1;
    m->head = m->embedding;
    if (!is_stored && m->config.is_tied == 0) {
        return REFUSE(m, err, "tensor %s is missing, and tie_word_embeddings is false", name.text);
    }
    if (!is_stored) return DW_OK;
    DW_TRY(dw_weights_matrix(w, DW_PART_HEAD, 0, m->vocabulary, m->config.hidden, &m->head, err));
    if (m->config.is_tied != 1 || !w->values) return DW_OK;
    DW_TRY(compare(&m->head, &m->embedding, &equal, err));
    m->head = m->embedding;
    if (equal) return DW_OK;
    return REFUSE(m, err, "tensor %s differs from %s, but tie_word_embeddings is true", name.text,
                  dw_weights_name(w, DW_PART_EMBEDDING, 0, "weight").text);
}

static dw_status read_layer(dw_weights *w, int64_t index, dw_layer *to, dw_error *err)
{
    const dw_config *c = &w->model->config;
    const dw_family *f = c->family;
    const int has_bias = f->feed_forward_has_bias;
    DW_TRY(dw_weights_norm(w, DW_PART_ATTENTION_NORM, index, c->hidden, f->norm_has_bias, &to->attention_norm, err));
    DW_TRY(dw_weights_qkv(w, index, to, err));
    if (f->has_qk_norm) {
        DW_TRY(dw_weights_norm(w, DW_PART_Q_NORM, index, c->head_dim, 0, &to->q_norm, err));
        DW_TRY(dw_weights_norm(w, DW_PART_K_NORM, index, c->head_dim, 0, &to->k_norm, err));
    }
    DW_TRY(dw_weights_linear(w, DW_PART_ATTENTION_OUTPUT, index, c->hidden, c->heads * c->head_dim, f->output_has_bias,
                             &to->output, err));
    DW_TRY(dw_weights_norm(w, DW_PART_FEED_FORWARD_NORM, index, c->hidden, f->norm_has_bias, &to->feed_forward_norm, err));
    if (f->is_gated) DW_TRY(dw_weights_linear(w, DW_PART_GATE, index, c->feed_forward, c->hidden, has_bias, &to->gate, err));
    DW_TRY(dw_weights_linear(w, DW_PART_UP, index, c->feed_forward, c->hidden, has_bias, &to->up, err));
    DW_TRY(dw_weights_linear(w, DW_PART_DOWN, index, c->hidden, c->feed_forward, has_bias, &to->down, err));
    if (!f->has_post_norms) return DW_OK;
    DW_TRY(dw_weights_norm(w, DW_PART_ATTENTION_POST_NORM, index, c->hidden, f->norm_has_bias, &to->attention_post_norm, err));
    return dw_weights_norm(w, DW_PART_FEED_FORWARD_POST_NORM, index, c->hidden, f->norm_has_bias, &to->feed_forward_post_norm,
                           err);
}

static dw_status read_tensors(dw_weights *w, dw_error *err)
{
    dw_model *m = w->model;
    DW_TRY(read_embedding(w, err));
    DW_TRY(read_positions(w, err));
    DW_TRY(dw_weights_norm(w, DW_PART_OUTPUT_NORM, 0, m->config.hidden, m->config.family->norm_has_bias, &m->output_norm, err));
    DW_TRY(read_head(w, err));
    for (int64_t i = 0; i < m->config.layers; i++) DW_TRY(read_layer(w, i, &m->layer[i], err));
    return DW_OK;
}

/* Of all layers. */
static dw_status read_value_exponents(dw_weights *w, dw_error *err)
{
    dw_model *m = w->model;
    float *row;
    dw_status status = DW_OK;
    DW_TRY(DW_ALLOC(&row, dw_padded(m->config.hidden), "row of weights", err));
    for (int64_t i = 0; i < m->config.layers && status == DW_OK; i++) {
        status = DW_ALLOC(&m->layer[i].value_exponent, m->config.kv_heads, "value exponents", err);
        if (status == DW_OK) status = dw_value_exponents(w, i, row, err);
    }
    dw_free(row);
    return status;
}

/* Everything that can be known without the numbers is checked before the first of them is read. */
static dw_status read_weights(dw_model *m, int values, dw_error *err)
{
    dw_weights w;
    dw_status status = dw_weights_open(&w, m, err);
    if (status == DW_OK) status = read_tensors(&w, err);
    if (status == DW_OK) status = dw_weights_check_all_used(&w, err);
    if (status == DW_OK && values) {
        w.values = 1;
        status = read_tensors(&w, err);
        if (status == DW_OK) status = read_value_exponents(&w, err);
    }
    dw_weights_close(&w);
    return status;
}

/* ---- the model ---- */

static dw_status open_model(dw_model *m, const char *path, dw_file_way way, const dw_config_overrides *overrides, int values,
                            dw_error *err)
{
    DW_TRY(dw_checkpoint_open(&m->checkpoint, path, way, err));
    DW_TRY(dw_config_read(&m->config, m->checkpoint, overrides, err));
    DW_TRY(DW_ALLOC(&m->layer, m->config.layers, "layers", err));
    return read_weights(m, values, err);
}

dw_status dw_model_load(dw_model **out, const char *path, dw_file_way way, const dw_config_overrides *overrides, dw_error *err)
{
    dw_model *m;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&m, 1, "model", err));
    status = open_model(m, path, way, overrides, 1, err);
    if (status != DW_OK) {
        dw_model_free(m);
        return status;
    }
    *out = m;
    return DW_OK;
}

dw_status dw_model_check(const char *path, dw_error *err)
{
    const dw_config_overrides none = {0};
    dw_model *m;
    dw_status status;
    DW_TRY(DW_ALLOC(&m, 1, "model", err));
    status = open_model(m, path, DW_FILE_MAP, &none, 0, err);
    dw_model_free(m);
    return status;
}

void dw_model_free(dw_model *model)
{
    if (model == NULL) return;
    for (int64_t i = 0; model->layer != NULL && i < model->config.layers; i++) dw_free(model->layer[i].value_exponent);
    for (int64_t i = 0; i < model->owned_count; i++) dw_free(model->owned[i]);
    dw_free(model->owned);
    dw_free(model->layer);
    dw_config_free(&model->config);
    dw_checkpoint_close(model->checkpoint);
    dw_free(model);
}

int64_t dw_model_weight_bytes(const dw_model *model)
{
    return model->stored_bytes + model->owned_bytes;
}
