#include "model/forward.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "kernels/vector.h"

struct dw_forward {
    const dw_model *model;
    const dw_kernels *kernels;
    dw_pool *pool;
    dw_attention *attention;
    dw_linear_scratch *linear;
    int64_t max_own;
    int64_t hidden_stride;       /* floats from row to row: padded to whole lanes, zero behind */
    int64_t attended_stride;     /* of [heads * head_dim] */
    int64_t feed_forward_stride; /* of [feed_forward] */
    int64_t buffer_bytes;
    float *x;        /* [max_own][hidden_stride] residual stream */
    float *normed;   /* [max_own][hidden_stride] */
    float *q;        /* [max_own][heads * head_dim] */
    float *k;        /* [max_own][kv_heads * head_dim] */
    float *v;        /* [max_own][kv_heads * head_dim] */
    float *attended; /* [max_own][attended_stride] what attend returns */
    float *gate;     /* [max_own][feed_forward_stride] */
    float *up;       /* [max_own][feed_forward_stride] */
    float *cosine;   /* [max_own][rope_dims / 2] */
    float *sine;     /* likewise */
    double linear_seconds;

    /* For pool tasks. */
    const dw_layer *layer;
    const float *gain;
    dw_attend_kind kind;
};

static dw_status allocate(dw_forward *f, float **buffer, int64_t rows, int64_t stride, dw_error *err)
{
    f->buffer_bytes += rows * stride * (int64_t)sizeof **buffer;
    return DW_ALLOC(buffer, rows * stride, "activations", err);
}

static dw_status create_parts(dw_forward *f, dw_error *err)
{
    const dw_model *m = f->model;
    const int64_t rows = f->max_own;
    int64_t inputs = m->hidden > m->feed_forward ? m->hidden : m->feed_forward;
    if (m->heads * m->head_dim > inputs) inputs = m->heads * m->head_dim;
    DW_TRY(dw_linear_scratch_create(&f->linear, dw_pool_threads(f->pool), inputs, err));
    DW_TRY(allocate(f, &f->x, rows, f->hidden_stride, err));
    DW_TRY(allocate(f, &f->normed, rows, f->hidden_stride, err));
    DW_TRY(allocate(f, &f->q, rows, m->heads * m->head_dim, err));
    DW_TRY(allocate(f, &f->k, rows, m->kv_heads * m->head_dim, err));
    DW_TRY(allocate(f, &f->v, rows, m->kv_heads * m->head_dim, err));
    DW_TRY(allocate(f, &f->attended, rows, f->attended_stride, err));
    DW_TRY(allocate(f, &f->gate, rows, f->feed_forward_stride, err));
    DW_TRY(allocate(f, &f->up, rows, f->feed_forward_stride, err));
    DW_TRY(allocate(f, &f->cosine, rows, m->rope_dims / 2, err));
    return allocate(f, &f->sine, rows, m->rope_dims / 2, err);
}

dw_status dw_forward_create(dw_forward **out, const dw_model *model, const dw_kernels *kernels, dw_pool *pool,
                            dw_attention *attention, int64_t max_own, dw_error *err)
{
    dw_forward *f;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&f, 1, "forward pass", err));
    f->model = model;
    f->kernels = kernels;
    f->pool = pool;
    f->attention = attention;
    f->max_own = max_own;
    f->hidden_stride = dw_padded(model->hidden);
    f->attended_stride = dw_padded(model->heads * model->head_dim);
    f->feed_forward_stride = dw_padded(model->feed_forward);
    status = create_parts(f, err);
    if (status != DW_OK) {
        dw_forward_destroy(f);
        return status;
    }
    *out = f;
    return DW_OK;
}

void dw_forward_destroy(dw_forward *f)
{
    if (f == NULL) return;
    dw_linear_scratch_destroy(f->linear);
    dw_free(f->x);
    dw_free(f->normed);
    dw_free(f->q);
    dw_free(f->k);
    dw_free(f->v);
    dw_free(f->attended);
    dw_free(f->gate);
    dw_free(f->up);
    dw_free(f->cosine);
    dw_free(f->sine);
    dw_free(f);
}

static void linear(dw_forward *f, float *y, int64_t y_stride, const dw_matrix *w, const float *x, int64_t x_stride,
                   int64_t rows)
{
    if (rows == 0) return; /* a rank that computes no row of this pass */
    dw_linear(f->kernels, f->pool, f->linear, y, y_stride, w, x, x_stride, rows);
}

static void norm_task(void *context, int64_t row, int thread)
{
    const dw_forward *f = context;
    (void)thread;
    dw_rms_norm(f->normed + row * f->hidden_stride, f->x + row * f->hidden_stride, f->gain, f->model->hidden,
                (float)f->model->norm_epsilon);
}

static void norm(dw_forward *f, const float *gain, int64_t rows)
{
    f->gain = gain;
    dw_pool_run(f->pool, rows, norm_task, f);
}

/* Biases and rotary angles of one row of q, k, v. */
static void rope_task(void *context, int64_t row, int thread)
{
    const dw_forward *f = context;
    const dw_model *m = f->model;
    const dw_layer *l = f->layer;
    const int halves = m->family->rope_pairs == DW_ROPE_HALVES;
    const float *cosine = f->cosine + row * (m->rope_dims / 2);
    const float *sine = f->sine + row * (m->rope_dims / 2);
    float *q = f->q + row * m->heads * m->head_dim;
    float *k = f->k + row * m->kv_heads * m->head_dim;
    float *v = f->v + row * m->kv_heads * m->head_dim;
    (void)thread;
    if (l->q_bias != NULL) {
        dw_vector_add(q, l->q_bias, m->heads * m->head_dim);
        dw_vector_add(k, l->k_bias, m->kv_heads * m->head_dim);
        dw_vector_add(v, l->v_bias, m->kv_heads * m->head_dim);
    }
    for (int64_t h = 0; f->kind != DW_ATTEND_STORE && h < m->heads; h++)
        dw_rope(q + h * m->head_dim, cosine, sine, m->rope_dims, halves);
    for (int64_t h = 0; h < m->kv_heads; h++) dw_rope(k + h * m->head_dim, cosine, sine, m->rope_dims, halves);
}

static void residual_task(void *context, int64_t row, int thread)
{
    const dw_forward *f = context;
    (void)thread;
    dw_vector_add(f->x + row * f->hidden_stride, f->normed + row * f->hidden_stride, f->model->hidden);
}

static void gate_task(void *context, int64_t row, int thread)
{
    const dw_forward *f = context;
    (void)thread;
    f->kernels->silu_mul(f->gate + row * f->feed_forward_stride, f->up + row * f->feed_forward_stride, f->model->feed_forward);
}

/* x += W_o attention(norm(x)), or only K and V of the rows into the cache */
static dw_status attention_half(dw_forward *f, int64_t layer, const dw_rows *rows, int64_t own, dw_attend_kind kind,
                                dw_omitted *omitted, dw_error *err)
{
    const dw_model *m = f->model;
    const dw_layer *l = &m->layer[layer];
    double start = dw_now();
    f->layer = l;
    f->kind = kind;
    norm(f, l->attention_norm, own);
    if (kind != DW_ATTEND_STORE) linear(f, f->q, m->heads * m->head_dim, &l->q, f->normed, f->hidden_stride, own);
    linear(f, f->k, m->kv_heads * m->head_dim, &l->k, f->normed, f->hidden_stride, own);
    linear(f, f->v, m->kv_heads * m->head_dim, &l->v, f->normed, f->hidden_stride, own);
    dw_pool_run(f->pool, own, rope_task, f);
    f->linear_seconds += dw_now() - start;
    DW_TRY(dw_attend(f->attention, layer, rows, kind, f->q, f->k, f->v, l->value_exponent, f->attended, f->attended_stride,
                     omitted, err));
    if (kind == DW_ATTEND_STORE) return DW_OK;
    start = dw_now();
    linear(f, f->normed, f->hidden_stride, &l->output, f->attended, f->attended_stride, own);
    dw_pool_run(f->pool, own, residual_task, f);
    f->linear_seconds += dw_now() - start;
    return DW_OK;
}

/* x += W_down (silu(W_gate norm(x)) * W_up norm(x)) */
static void feed_forward_half(dw_forward *f, int64_t layer, int64_t own)
{
    const dw_layer *l = &f->model->layer[layer];
    const double start = dw_now();
    norm(f, l->feed_forward_norm, own);
    linear(f, f->gate, f->feed_forward_stride, &l->gate, f->normed, f->hidden_stride, own);
    linear(f, f->up, f->feed_forward_stride, &l->up, f->normed, f->hidden_stride, own);
    dw_pool_run(f->pool, own, gate_task, f);
    linear(f, f->normed, f->hidden_stride, &l->down, f->gate, f->feed_forward_stride, own);
    dw_pool_run(f->pool, own, residual_task, f);
    f->linear_seconds += dw_now() - start;
}

static void embed(dw_forward *f, const dw_rows *rows, int64_t first, int64_t own, const int32_t *ids)
{
    const dw_model *m = f->model;
    const dw_matrix *e = &m->embedding;
    for (int64_t t = 0; t < own; t++) {
        const char *row = (const char *)e->data + ids[first + t] * dw_row_bytes(e->type, e->inputs);
        f->kernels->dequantize[e->type](f->x + t * f->hidden_stride, row, m->hidden);
        dw_rope_angles(f->cosine + t * (m->rope_dims / 2), f->sine + t * (m->rope_dims / 2), rows->first + first + t,
                       m->rope_dims, m->rope_base);
    }
}

dw_status dw_forward_rows(dw_forward *f, const dw_rows *rows, int rank, const int32_t *ids, dw_attend_kind kind, int wanted,
                          dw_omitted *omitted, dw_error *err)
{
    const int64_t own = rows->start[rank + 1] - rows->start[rank];
    const double start = dw_now();
    embed(f, rows, rows->start[rank], own, ids);
    f->linear_seconds += dw_now() - start;
    for (int64_t layer = 0; layer < f->model->layers; layer++) {
        const int is_output = layer < f->model->layers - 1 || wanted; /* somebody reads what this layer adds to x */
        DW_TRY(attention_half(f, layer, rows, own, is_output ? kind : DW_ATTEND_STORE, omitted, err));
        if (is_output) feed_forward_half(f, layer, own);
    }
    return DW_OK;
}

const float *dw_forward_hidden(const dw_forward *f)
{
    return f->x;
}

int64_t dw_forward_hidden_stride(const dw_forward *f)
{
    return f->hidden_stride;
}

dw_status dw_forward_logits(dw_forward *f, const float *hidden, int64_t count, float *logits, dw_error *err)
{
    const dw_model *m = f->model;
    const double start = dw_now();
    for (int64_t done = 0; done < count;) {
        const int64_t rows = count - done < f->max_own ? count - done : f->max_own;
        for (int64_t t = 0; t < rows; t++) {
            dw_rms_norm(f->normed + t * f->hidden_stride, hidden + (done + t) * f->hidden_stride, m->output_norm, m->hidden,
                        (float)m->norm_epsilon);
        }
        linear(f, logits + done * m->vocabulary, m->vocabulary, &m->head, f->normed, f->hidden_stride, rows);
        done += rows;
    }
    f->linear_seconds += dw_now() - start;
    if (!(dw_largest(logits, count * m->vocabulary) < INFINITY)) {
        return dw_fail(err, DW_RUNTIME, "a logit is not a finite number; the model file may be damaged");
    }
    return DW_OK;
}

double dw_forward_linear_seconds(const dw_forward *f)
{
    return f->linear_seconds;
}

int64_t dw_forward_buffer_bytes(const dw_forward *f)
{
    return f->buffer_bytes;
}
