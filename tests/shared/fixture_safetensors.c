/* Hugging Face directories written as GGUF files, the way llama.cpp's converter does it. The directory is read by the product
   itself (whose reading is checked against transformers); names, layout and metadata of the GGUF file are written here. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "model/model.h"
#include "tests/shared/fixtures.h"

typedef struct {
    gguf_writer *writer;
    const dw_model *model;
    const char *architecture;
    int64_t layer;
    char text[96]; /* of the last name */
} export;

/* ---- tensors ---- */

static const char *name_of(export *e, dw_part part, const char *suffix)
{
    if (part < DW_PART_LAYER) {
        snprintf(e->text, sizeof e->text, "%s.%s", dw_part_gguf_name(part), suffix);
    } else {
        snprintf(e->text, sizeof e->text, "blk.%lld.%s.%s", (long long)e->layer, dw_part_gguf_name(part), suffix);
    }
    return e->text;
}

/* heads > 0: row j * d/2 + i of each head becomes row 2i + j (j = 0, 1): rotation pairs (i, i + d/2) become neighbours. */
static void put_matrix(export *e, dw_part part, const dw_matrix *w, int64_t heads)
{
    const int64_t row = dw_row_bytes(w->type, w->inputs);
    const int64_t size[2] = {w->inputs, w->outputs};
    const int64_t d = heads > 0 ? w->outputs / heads : 0;
    uint8_t *rows;
    dw_error err;
    cr_assert(DW_ALLOC(&rows, w->outputs * row, "matrix", &err) == DW_OK, "%s", err.message);
    for (int64_t old = 0; old < w->outputs; old++) {
        const int64_t in_head = heads > 0 ? old % d : 0;
        const int64_t fresh = heads > 0 ? old - in_head + 2 * (in_head % (d / 2)) + in_head / (d / 2) : old;
        memcpy(rows + fresh * row, (const uint8_t *)w->data + old * row, (size_t)row);
    }
    gguf_put_tensor(e->writer, name_of(e, part, "weight"), (uint32_t)dw_types[w->type].gguf_id, 2, size, rows,
                    w->outputs * row);
    dw_free(rows);
}

static void put_vector(export *e, dw_part part, const char *suffix, const float *x, int64_t count)
{
    if (x == NULL) return;
    gguf_put_tensor(e->writer, name_of(e, part, suffix), (uint32_t)dw_types[DW_F32].gguf_id, 1, &count, x,
                    count * (int64_t)sizeof *x);
}

static void put_linear(export *e, dw_part part, const dw_linear_layer *l, int64_t heads)
{
    if (l->w.data == NULL) return;
    put_matrix(e, part, &l->w, heads);
    put_vector(e, part, "bias", l->bias, l->w.outputs);
}

static void put_norm(export *e, dw_part part, const dw_norm *norm, int64_t count)
{
    put_vector(e, part, "weight", norm->gain, count);
    put_vector(e, part, "bias", norm->bias, count);
}

/* Rows of Q, K and V one behind the other, as they lie in the product's memory already. */
static void put_joint_qkv(export *e, const dw_layer *l)
{
    dw_linear_layer all = l->q;
    all.w.outputs = l->q.w.outputs + l->k.w.outputs + l->v.w.outputs;
    cr_assert((const uint8_t *)l->k.w.data ==
              (const uint8_t *)l->q.w.data + l->q.w.outputs * dw_row_bytes(l->q.w.type, l->q.w.inputs));
    put_linear(e, DW_PART_QKV, &all, 0);
}

static void put_layer(export *e)
{
    const dw_config *c = &e->model->config;
    const dw_layer *l = &e->model->layer[e->layer];
    const int permutes = c->family->gguf_pairs == DW_ROPE_NEIGHBOURS;
    put_norm(e, DW_PART_ATTENTION_NORM, &l->attention_norm, c->hidden);
    if (c->family->gguf_qkv_is_one) {
        put_joint_qkv(e, l);
    } else {
        put_linear(e, DW_PART_Q, &l->q, permutes ? c->heads : 0);
        put_linear(e, DW_PART_K, &l->k, permutes ? c->kv_heads : 0);
        put_linear(e, DW_PART_V, &l->v, 0);
    }
    put_norm(e, DW_PART_Q_NORM, &l->q_norm, c->head_dim);
    put_norm(e, DW_PART_K_NORM, &l->k_norm, c->head_dim);
    put_linear(e, DW_PART_ATTENTION_OUTPUT, &l->output, 0);
    put_norm(e, DW_PART_ATTENTION_POST_NORM, &l->attention_post_norm, c->hidden);
    put_norm(e, DW_PART_FEED_FORWARD_NORM, &l->feed_forward_norm, c->hidden);
    put_linear(e, DW_PART_GATE, &l->gate, 0);
    put_linear(e, DW_PART_UP, &l->up, 0);
    put_linear(e, DW_PART_DOWN, &l->down, 0);
    put_norm(e, DW_PART_FEED_FORWARD_POST_NORM, &l->feed_forward_post_norm, c->hidden);
}

/* ---- metadata ---- */

static const char *key(export *e, const char *suffix)
{
    snprintf(e->text, sizeof e->text, "%s.%s", e->architecture, suffix);
    return e->text;
}

static void put_count(export *e, const char *suffix, int64_t value)
{
    gguf_put_u32(e->writer, key(e, suffix), (uint32_t)value);
}

/* Llama 3's scaling becomes a factor of each frequency; yarn's attention factor one that llama.cpp multiplies by its own. */
static void put_rope(export *e)
{
    const dw_config *c = &e->model->config;
    const dw_rope *rope = &c->rope;
    const dw_rope plain = {.base = rope->base, .attention_factor = 1};
    const int64_t pairs = c->rope_dims / 2;
    double scaled[256], unscaled[256];
    float factors[256];
    if (c->rope_pairs == DW_ROPE_ABSENT) return;
    put_count(e, "rope.dimension_count", c->rope_dims);
    gguf_put_f32(e->writer, key(e, "rope.freq_base"), (float)rope->base);
    if (c->family->has_local_layers) gguf_put_f32(e->writer, key(e, "rope.freq_base_swa"), (float)c->local_rope.base);
    if (rope->kind == DW_ROPE_LLAMA3) {
        dw_rope_frequencies(rope, c->rope_dims, c->context, scaled);
        dw_rope_frequencies(&plain, c->rope_dims, c->context, unscaled);
        for (int64_t i = 0; i < pairs; i++) factors[i] = (float)(unscaled[i] / scaled[i]);
        put_vector(e, DW_PART_ROPE_FACTORS, "weight", factors, pairs);
    } else if (rope->kind != DW_ROPE_NONE) {
        cr_assert(rope->kind == DW_ROPE_LINEAR || (rope->kind == DW_ROPE_YARN && rope->truncate),
                  "GGUF can not say this scaling");
        gguf_put_string(e->writer, key(e, "rope.scaling.type"), dw_rope_name(rope->kind));
        gguf_put_f32(e->writer, key(e, "rope.scaling.factor"), (float)rope->factor);
    }
    if (rope->kind != DW_ROPE_YARN) return;
    put_count(e, "rope.scaling.original_context_length", (int64_t)rope->original_context);
    gguf_put_f32(e->writer, key(e, "rope.scaling.yarn_beta_fast"), (float)rope->beta_fast);
    gguf_put_f32(e->writer, key(e, "rope.scaling.yarn_beta_slow"), (float)rope->beta_slow);
    gguf_put_f32(e->writer, key(e, "rope.scaling.attn_factor"),
                 (float)(rope->attention_factor / dw_rope_yarn_magnitude(rope->factor, 1)));
}

/* One window for all layers, or Gemma 3's pattern. */
static void put_window(export *e)
{
    const dw_config *c = &e->model->config;
    int64_t pattern = c->layers;
    for (int64_t i = c->layers - 1; i >= 0; i--) pattern = c->window[i] == 0 ? i + 1 : pattern;
    if (c->window[0] == 0) return;
    put_count(e, "attention.sliding_window", c->window[0]);
    if (c->family->has_local_layers) put_count(e, "attention.sliding_window_pattern", pattern);
    for (int64_t i = 0; i < c->layers; i++) {
        const int is_full = c->family->has_local_layers && (i + 1) % pattern == 0;
        cr_assert_eq(c->window[i], is_full ? 0 : c->window[0], "GGUF can not say these windows");
    }
}

static void put_hyperparameters(export *e)
{
    const dw_config *c = &e->model->config;
    const int rms = c->family->norm == DW_NORM_RMS;
    cr_assert_eq(c->query_scale, 1, "GGUF can not say a scale of the queries");
    gguf_put_string(e->writer, "general.architecture", e->architecture);
    put_count(e, "block_count", c->layers);
    put_count(e, "context_length", c->context);
    put_count(e, "embedding_length", c->hidden);
    put_count(e, "feed_forward_length", c->feed_forward);
    put_count(e, "attention.head_count", c->heads);
    put_count(e, "attention.head_count_kv", c->kv_heads);
    put_count(e, "attention.key_length", c->head_dim);
    put_count(e, "attention.value_length", c->head_dim);
    put_count(e, "vocab_size", e->model->vocabulary);
    gguf_put_f32(e->writer, key(e, rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon"),
                 (float)c->norm_epsilon);
    if (strcmp(e->architecture, "gptneox") == 0) gguf_put_bool(e->writer, key(e, "use_parallel_residual"), c->is_parallel);
    if (c->activation != c->family->activation) gguf_put_string(e->writer, key(e, "hidden_act"), "gelu_new");
    put_rope(e);
    put_window(e);
}

void fixture_from_safetensors(const char *path, const char *directory)
{
    const dw_config_overrides none = {0};
    export e = {.writer = gguf_new(3)};
    dw_model *model;
    dw_error err;
    cr_assert(dw_model_load(&model, directory, DW_FILE_MAP, &none, &err) == DW_OK, "%s", err.message);
    e.model = model;
    e.architecture = model->config.family->architecture != NULL ? model->config.family->architecture : "llama"; /* Mistral */
    put_hyperparameters(&e);
    put_matrix(&e, DW_PART_EMBEDDING, &model->embedding, 0);
    if (model->positions.data != NULL) put_matrix(&e, DW_PART_POSITIONS, &model->positions, 0);
    for (e.layer = 0; e.layer < model->config.layers; e.layer++) put_layer(&e);
    put_norm(&e, DW_PART_OUTPUT_NORM, &model->output_norm, model->config.hidden);
    if (model->head.data != model->embedding.data) put_matrix(&e, DW_PART_HEAD, &model->head, 0);
    gguf_write(e.writer, path);
    gguf_free(e.writer);
    dw_model_free(model);
}
