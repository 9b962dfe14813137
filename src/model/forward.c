#include "model/forward.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/integers.h"
#include "base/memory.h"
#include "kernels/vector.h"
#include "model/split.h"

/* Rotary angles of the rows at work; layers with a window may have others than the rest. */
typedef struct {
    double *frequency; /* [rope_dims / 2] */
    float *cosine;     /* [max_own][rope_dims / 2] */
    float *sine;       /* likewise */
    double attention_factor;
} rotation;

struct dw_forward {
    const dw_model *model;
    const dw_kernels *kernels;
    dw_pool *pool;
    dw_attention *attention;
    dw_linear_scratch *linear;
    dw_split *split; /* NULL: linear layers are never shared */
    int rank, ranks; /* of those that share them */
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
    float *branch;   /* [max_own][hidden_stride] what attention returns, until it is added; models with parallel branches */
    float *gate;     /* [max_own][feed_forward_stride]; models with a gate */
    float *up;       /* [max_own][feed_forward_stride] */
    rotation global;
    rotation local; /* used if has_local */
    int has_local;
    double linear_seconds;
    float *logits; /* [shared rows][vocabulary], ranks but 0: an own share of the output layer */
    int is_shared; /* the linear layers of the pass at work */

    /* For pool tasks. */
    const dw_layer *layer;
    const rotation *angles;
    const dw_norm *norm;
    const float *norm_input;
    float *residual_branch;
    const float *residual_bias;
    dw_attend_kind kind;
};

static dw_status allocate(dw_forward *f, float **buffer, int64_t rows, int64_t stride, dw_error *err)
{
    f->buffer_bytes += rows * stride * (int64_t)sizeof **buffer;
    return DW_ALLOC(buffer, rows * stride, "activations", err);
}

static dw_status create_rotation(dw_forward *f, rotation *to, const dw_rope *rope, int64_t context, dw_error *err)
{
    const int64_t pairs = f->model->config.rope_dims / 2;
    to->attention_factor = rope->attention_factor;
    DW_TRY(DW_ALLOC(&to->frequency, pairs, "rotary angles", err));
    DW_TRY(allocate(f, &to->cosine, f->max_own, pairs, err));
    DW_TRY(allocate(f, &to->sine, f->max_own, pairs, err));
    dw_rope_frequencies(rope, 2 * pairs, context, to->frequency);
    return DW_OK;
}

static void destroy_rotation(const rotation *r)
{
    dw_free(r->frequency);
    dw_free(r->cosine);
    dw_free(r->sine);
}

static dw_status create_parts(dw_forward *f, int64_t context, dw_error *err)
{
    const dw_config *c = &f->model->config;
    const int64_t rows = f->max_own;
    const int64_t inputs = dw_larger(dw_larger(c->hidden, c->feed_forward), c->heads * c->head_dim);
    DW_TRY(dw_linear_scratch_create(&f->linear, dw_pool_threads(f->pool), inputs, err));
    DW_TRY(allocate(f, &f->x, rows, f->hidden_stride, err));
    DW_TRY(allocate(f, &f->normed, rows, f->hidden_stride, err));
    DW_TRY(allocate(f, &f->q, rows, c->heads * c->head_dim, err));
    DW_TRY(allocate(f, &f->k, rows, c->kv_heads * c->head_dim, err));
    DW_TRY(allocate(f, &f->v, rows, c->kv_heads * c->head_dim, err));
    DW_TRY(allocate(f, &f->attended, rows, f->attended_stride, err));
    DW_TRY(allocate(f, &f->up, rows, f->feed_forward_stride, err));
    if (c->family->is_gated) DW_TRY(allocate(f, &f->gate, rows, f->feed_forward_stride, err));
    if (c->is_parallel) DW_TRY(allocate(f, &f->branch, rows, f->hidden_stride, err));
    if (c->rope_pairs == DW_ROPE_ABSENT) return DW_OK;
    DW_TRY(create_rotation(f, &f->global, &c->rope, context, err));
    f->has_local = c->family->has_local_layers;
    return f->has_local ? create_rotation(f, &f->local, &c->local_rope, context, err) : DW_OK;
}

dw_status dw_forward_create(dw_forward **out, const dw_model *model, const dw_kernels *kernels, dw_pool *pool,
                            dw_attention *attention, int64_t context, int64_t max_own, dw_error *err)
{
    const dw_config *c = &model->config;
    dw_forward *f;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&f, 1, "forward pass", err));
    f->model = model;
    f->kernels = kernels;
    f->pool = pool;
    f->attention = attention;
    f->max_own = max_own;
    f->hidden_stride = dw_padded(c->hidden);
    f->attended_stride = dw_padded(c->heads * c->head_dim);
    f->feed_forward_stride = dw_padded(c->feed_forward);
    status = create_parts(f, context, err);
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
    dw_split_destroy(f->split);
    dw_free(f->logits);
    dw_free(f->x);
    dw_free(f->normed);
    dw_free(f->q);
    dw_free(f->k);
    dw_free(f->v);
    dw_free(f->attended);
    dw_free(f->branch);
    dw_free(f->gate);
    dw_free(f->up);
    destroy_rotation(&f->global);
    destroy_rotation(&f->local);
    dw_free(f);
}

dw_status dw_forward_use_split(dw_forward *f, dw_transport *transport, int64_t rows, dw_error *err)
{
    const dw_config *c = &f->model->config;
    const int64_t qkv = (c->heads + 2 * c->kv_heads) * c->head_dim;
    const int64_t widest = dw_larger(dw_larger(qkv, c->feed_forward), dw_larger(c->hidden, f->model->vocabulary));
    f->rank = transport->rank;
    f->ranks = transport->size;
    if (f->rank != 0) DW_TRY(allocate(f, &f->logits, rows, f->model->vocabulary, err));
    f->buffer_bytes += rows * widest * (int64_t)sizeof(float);
    return dw_split_create(&f->split, transport, rows * widest, err);
}

/* ---- linear layers ---- */

/* Outputs that this rank computes. */
static dw_share own_share(const dw_forward *f, int64_t outputs)
{
    return f->is_shared ? dw_split_share_of(outputs, f->rank, f->ranks) : (dw_share){0, outputs};
}

/* y = W x, of the own share of outputs. */
static void linear(dw_forward *f, float *y, int64_t y_stride, const dw_matrix *w, const float *x, int64_t x_stride,
                   int64_t rows)
{
    const dw_share share = own_share(f, w->outputs);
    dw_matrix part = *w;
    if (rows == 0) return; /* a rank that computes no row of this pass */
    part.outputs = share.count;
    part.data = (const char *)w->data + share.first * dw_row_bytes(w->type, w->inputs);
    dw_linear(f->kernels, f->pool, f->linear, y + share.first, y_stride, &part, x, x_stride, rows);
}

/* The others' shares. Collective in a pass of shared rows, else nothing. */
static dw_status complete(dw_forward *f, const dw_split_target *targets, int count, int64_t rows, dw_error *err)
{
    return f->is_shared ? dw_split_exchange(f->split, targets, count, rows, err) : DW_OK;
}

/* ---- norms and residuals ---- */

static void norm_row(const dw_config *c, const dw_norm *norm, float *y, const float *x)
{
    if (c->family->norm == DW_NORM_LAYER) {
        dw_layer_norm(y, x, norm->gain, norm->bias, c->hidden, (float)c->norm_epsilon);
    } else {
        dw_rms_norm(y, x, norm->gain, c->hidden, (float)c->norm_epsilon);
    }
}

static void norm_task(void *context, int64_t row, int thread)
{
    const dw_forward *f = context;
    (void)thread;
    norm_row(&f->model->config, f->norm, f->normed + row * f->hidden_stride, f->norm_input + row * f->hidden_stride);
}

/* normed = norm(x) */
static void norm(dw_forward *f, const dw_norm *norm, const float *x, int64_t rows)
{
    f->norm = norm;
    f->norm_input = x;
    dw_pool_run(f->pool, rows, norm_task, f);
}

static void residual_task(void *context, int64_t row, int thread)
{
    const dw_forward *f = context;
    (void)thread;
    dw_vector_add(f->x + row * f->hidden_stride, f->residual_branch + row * f->hidden_stride, f->model->config.hidden);
}

static void branch_bias_task(void *context, int64_t row, int thread)
{
    const dw_forward *f = context;
    (void)thread;
    dw_vector_add(f->residual_branch + row * f->hidden_stride, f->residual_bias, f->model->config.hidden);
}

/* branch = norm(W in + bias), the last layer of a half; norm: may be absent. */
static dw_status finish_branch(dw_forward *f, float *branch, const dw_linear_layer *last, const float *in, int64_t in_stride,
                               const dw_norm *post_norm, int64_t rows, dw_error *err)
{
    const dw_split_target target = {branch, f->hidden_stride, f->model->config.hidden};
    linear(f, branch, f->hidden_stride, &last->w, in, in_stride, rows);
    DW_TRY(complete(f, &target, 1, rows, err));
    f->residual_branch = branch;
    f->residual_bias = last->bias;
    if (last->bias != NULL) dw_pool_run(f->pool, rows, branch_bias_task, f);
    if (post_norm->gain != NULL) norm(f, post_norm, branch, rows); /* in place: branch is normed */
    return DW_OK;
}

/* x += branch */
static void add_residual(dw_forward *f, float *branch, int64_t rows)
{
    f->residual_branch = branch;
    dw_pool_run(f->pool, rows, residual_task, f);
}

/* ---- attention ---- */

/* Norms of single heads, then rotation. */
static void turn_heads(const dw_forward *f, float *heads, int64_t count, const dw_norm *norm, int64_t row)
{
    const dw_config *c = &f->model->config;
    const int64_t pairs = c->rope_dims / 2;
    float normed[DW_MAX_HEAD_DIM];
    for (int64_t h = 0; h < count; h++) {
        float *head = heads + h * c->head_dim;
        if (norm->gain != NULL) {
            dw_rms_norm(normed, head, norm->gain, c->head_dim, (float)c->norm_epsilon);
            memcpy(head, normed, (size_t)c->head_dim * sizeof *head);
        }
        if (c->rope_pairs == DW_ROPE_ABSENT) continue;
        dw_rotate(head, f->angles->cosine + row * pairs, f->angles->sine + row * pairs, c->rope_dims,
                  c->rope_pairs == DW_ROPE_HALVES);
    }
}

/* Biases, norms and rotary angles of one row of q, k, v. */
static void qkv_task(void *context, int64_t row, int thread)
{
    const dw_forward *f = context;
    const dw_config *c = &f->model->config;
    const dw_layer *l = f->layer;
    const int64_t q_size = c->heads * c->head_dim;
    const int64_t kv_size = c->kv_heads * c->head_dim;
    float *q = f->q + row * q_size;
    float *k = f->k + row * kv_size;
    (void)thread;
    if (l->k.bias != NULL) dw_vector_add(k, l->k.bias, kv_size);
    if (l->v.bias != NULL) dw_vector_add(f->v + row * kv_size, l->v.bias, kv_size);
    turn_heads(f, k, c->kv_heads, &l->k_norm, row);
    if (f->kind == DW_ATTEND_STORE) return;
    if (l->q.bias != NULL) dw_vector_add(q, l->q.bias, q_size);
    turn_heads(f, q, c->heads, &l->q_norm, row);
    if (c->query_scale != 1) dw_vector_scale(q, (float)c->query_scale, q_size);
}

/* q, k, v of the rows (K and V alone when nothing attends), rotated. */
static dw_status project_heads(dw_forward *f, int64_t own, dw_error *err)
{
    const dw_config *c = &f->model->config;
    const int64_t q_size = c->heads * c->head_dim;
    const int64_t kv_size = c->kv_heads * c->head_dim;
    const int skipped = f->kind == DW_ATTEND_STORE;
    const dw_split_target targets[] = {{f->q, q_size, q_size}, {f->k, kv_size, kv_size}, {f->v, kv_size, kv_size}};
    if (!skipped) linear(f, f->q, q_size, &f->layer->q.w, f->normed, f->hidden_stride, own);
    linear(f, f->k, kv_size, &f->layer->k.w, f->normed, f->hidden_stride, own);
    linear(f, f->v, kv_size, &f->layer->v.w, f->normed, f->hidden_stride, own);
    DW_TRY(complete(f, targets + skipped, 3 - skipped, own, err));
    dw_pool_run(f->pool, own, qkv_task, f);
    return DW_OK;
}

/* branch = W_o attention(norm(x)), or only K and V of the rows into the cache */
static dw_status attention_half(dw_forward *f, int64_t layer, const dw_rows *rows, int64_t own, dw_attend_kind kind,
                                float *branch, dw_omitted *omitted, dw_error *err)
{
    const dw_layer *l = &f->model->layer[layer];
    const dw_attend_layer attend = {layer, f->model->config.window[layer], l->value_exponent};
    double start = dw_now();
    f->layer = l;
    f->kind = kind;
    f->angles = f->has_local && attend.window > 0 ? &f->local : &f->global;
    norm(f, &l->attention_norm, f->x, own);
    DW_TRY(project_heads(f, own, err));
    f->linear_seconds += dw_now() - start;
    DW_TRY(dw_attend(f->attention, &attend, rows, kind, f->q, f->k, f->v, f->attended, f->attended_stride, omitted, err));
    if (kind == DW_ATTEND_STORE) return DW_OK;
    start = dw_now();
    DW_TRY(finish_branch(f, branch, &l->output, f->attended, f->attended_stride, &l->attention_post_norm, own, err));
    f->linear_seconds += dw_now() - start;
    return DW_OK;
}

/* ---- feed forward ---- */

/* gate = act(gate + bias) * (up + bias), or up = act(up + bias) in models without gate; of the own share of channels */
static void activation_task(void *context, int64_t row, int thread)
{
    const dw_forward *f = context;
    const dw_config *c = &f->model->config;
    const dw_layer *l = f->layer;
    const dw_share share = own_share(f, c->feed_forward);
    const int64_t at = row * f->feed_forward_stride + share.first;
    float *up = f->up + at;
    float *gate = f->gate == NULL ? NULL : f->gate + at;
    (void)thread;
    if (l->up.bias != NULL) dw_vector_add(up, l->up.bias + share.first, share.count);
    if (gate == NULL) {
        f->kernels->activate[c->activation](up, NULL, share.count);
        return;
    }
    if (l->gate.bias != NULL) dw_vector_add(gate, l->gate.bias + share.first, share.count);
    f->kernels->activate[c->activation](gate, up, share.count);
}

/* normed = W_down (act(W_gate norm(x)) * W_up norm(x)) */
static dw_status feed_forward_half(dw_forward *f, int64_t layer, int64_t own, dw_error *err)
{
    const dw_layer *l = &f->model->layer[layer];
    float *inner = f->gate != NULL ? f->gate : f->up;
    const dw_split_target target = {inner, f->feed_forward_stride, f->model->config.feed_forward};
    f->layer = l;
    norm(f, &l->feed_forward_norm, f->x, own);
    if (f->gate != NULL) linear(f, f->gate, f->feed_forward_stride, &l->gate.w, f->normed, f->hidden_stride, own);
    linear(f, f->up, f->feed_forward_stride, &l->up.w, f->normed, f->hidden_stride, own);
    dw_pool_run(f->pool, own, activation_task, f);
    DW_TRY(complete(f, &target, 1, own, err));
    return finish_branch(f, f->normed, &l->down, inner, f->feed_forward_stride, &l->feed_forward_post_norm, own, err);
}

/* x + attention(norm(x)), then the same with the feed forward; in models with parallel branches both start from the same x, and
   the attention is added first. output: somebody reads what the layer adds to x, else it only stores its K and V. */
static dw_status run_layer(dw_forward *f, int64_t layer, const dw_rows *rows, int64_t own, dw_attend_kind kind, int output,
                           dw_omitted *omitted, dw_error *err)
{
    const int parallel = f->branch != NULL;
    float *branch = parallel ? f->branch : f->normed;
    double start;
    DW_TRY(attention_half(f, layer, rows, own, output ? kind : DW_ATTEND_STORE, branch, omitted, err));
    if (!output) return DW_OK;
    start = dw_now();
    if (!parallel) add_residual(f, branch, own);
    DW_TRY(feed_forward_half(f, layer, own, err));
    if (parallel) add_residual(f, branch, own);
    add_residual(f, f->normed, own);
    f->linear_seconds += dw_now() - start;
    return DW_OK;
}

/* ---- the pass ---- */

static void row_of(const dw_forward *f, const dw_matrix *table, int64_t row, float *out)
{
    const char *data = table->data;
    f->kernels->dequantize[table->type](out, data + row * dw_row_bytes(table->type, table->inputs), table->inputs);
}

static void find_angles(const dw_forward *f, const rotation *r, int64_t row, dw_pos position)
{
    const int64_t pairs = f->model->config.rope_dims / 2;
    dw_rope_angles(r->cosine + row * pairs, r->sine + row * pairs, position, r->frequency, pairs, r->attention_factor);
}

static void embed(dw_forward *f, const dw_rows *rows, int64_t first, int64_t own, const int32_t *ids)
{
    const dw_model *m = f->model;
    for (int64_t t = 0; t < own; t++) {
        const dw_pos position = rows->first + first + t;
        float *x = f->x + t * f->hidden_stride;
        row_of(f, &m->embedding, ids[first + t], x);
        if (m->embedding_scale != 1) dw_vector_scale(x, m->embedding_scale, m->config.hidden);
        if (m->positions.data != NULL) {
            row_of(f, &m->positions, position, f->normed);
            dw_vector_add(x, f->normed, m->config.hidden);
        } else {
            find_angles(f, &f->global, t, position);
            if (f->has_local) find_angles(f, &f->local, t, position);
        }
    }
}

dw_status dw_forward_rows(dw_forward *f, const dw_rows *rows, int rank, const int32_t *ids, dw_attend_kind kind, int wanted,
                          dw_omitted *omitted, dw_error *err)
{
    const int64_t own = rows->is_shared ? rows->count : rows->start[rank + 1] - rows->start[rank];
    const double start = dw_now();
    f->is_shared = rows->is_shared;
    embed(f, rows, rows->is_shared ? 0 : rows->start[rank], own, ids);
    f->linear_seconds += dw_now() - start;
    for (int64_t layer = 0; layer < f->model->config.layers; layer++) {
        DW_TRY(run_layer(f, layer, rows, own, kind, layer < f->model->config.layers - 1 || wanted, omitted, err));
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

/* normed = the last norm of some rows, then the output layer (the own share of it). */
static void output_layer(dw_forward *f, const float *hidden, int64_t rows, float *logits)
{
    const dw_model *m = f->model;
    for (int64_t t = 0; t < rows; t++) {
        norm_row(&m->config, &m->output_norm, f->normed + t * f->hidden_stride, hidden + t * f->hidden_stride);
    }
    linear(f, logits, m->vocabulary, &m->head, f->normed, f->hidden_stride, rows);
}

static dw_status check_logits(const dw_forward *f, const float *logits, int64_t count, dw_error *err)
{
    if (dw_largest(logits, count * f->model->vocabulary) < INFINITY) return DW_OK;
    return dw_fail(err, DW_RUNTIME, "a logit is not a finite number; the model file may be damaged");
}

dw_status dw_forward_logits(dw_forward *f, const float *hidden, int64_t count, float *logits, dw_error *err)
{
    const double start = dw_now();
    f->is_shared = 0;
    for (int64_t done = 0; done < count;) {
        const int64_t rows = dw_smaller(count - done, f->max_own);
        output_layer(f, hidden + done * f->hidden_stride, rows, logits + done * f->model->vocabulary);
        done += rows;
    }
    f->linear_seconds += dw_now() - start;
    return check_logits(f, logits, count, err);
}

dw_status dw_forward_shared_logits(dw_forward *f, int64_t rows, int64_t count, float *logits, dw_error *err)
{
    const double start = dw_now();
    const dw_split_target target = {f->rank == 0 ? logits : f->logits, f->model->vocabulary, f->model->vocabulary};
    output_layer(f, f->x + (rows - count) * f->hidden_stride, count, target.y);
    DW_TRY(dw_split_collect(f->split, &target, count, err));
    f->linear_seconds += dw_now() - start;
    return f->rank == 0 ? check_logits(f, logits, count, err) : DW_OK;
}

/* The linear layers of layer 0, of one row of whatever the buffers hold. */
static void run_linear_layers(dw_forward *f)
{
    const dw_layer *l = &f->model->layer[0];
    const dw_config *c = &f->model->config;
    const int64_t kv_size = c->kv_heads * c->head_dim;
    linear(f, f->q, c->heads * c->head_dim, &l->q.w, f->normed, f->hidden_stride, 1);
    linear(f, f->k, kv_size, &l->k.w, f->normed, f->hidden_stride, 1);
    linear(f, f->v, kv_size, &l->v.w, f->normed, f->hidden_stride, 1);
    linear(f, f->normed, f->hidden_stride, &l->output.w, f->attended, f->attended_stride, 1);
    if (f->gate != NULL) linear(f, f->gate, f->feed_forward_stride, &l->gate.w, f->normed, f->hidden_stride, 1);
    linear(f, f->up, f->feed_forward_stride, &l->up.w, f->normed, f->hidden_stride, 1);
    linear(f, f->normed, f->hidden_stride, &l->down.w, f->up, f->feed_forward_stride, 1);
}

double dw_forward_measure(dw_forward *f)
{
    double best = INFINITY;
    f->is_shared = 0;
    for (int i = 0; i < 4; i++) {
        const double start = dw_now();
        run_linear_layers(f);
        best = fmin(best, dw_now() - start);
    }
    return best;
}

double dw_forward_linear_seconds(const dw_forward *f)
{
    return f->linear_seconds;
}

int64_t dw_forward_buffer_bytes(const dw_forward *f)
{
    return f->buffer_bytes;
}
