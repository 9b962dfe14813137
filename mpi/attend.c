#include "mpi/attend.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "attention/partial.h"
#include "attention/scan.h"
#include "base/clock.h"
#include "base/integers.h"
#include "base/memory.h"
#include "kernels/vector.h"
#include "mpi/collective.h"
#include "mpi/drafting.h"
#include "mpi/partials.h"
#include "mpi/sparse_row.h"

/* q and k stay far from overflow in any dot product of DW_MAX_HEAD_DIM channels; anything larger is a broken model. */
#define LARGEST_INPUT 0x1p40f

struct dw_attention {
    dw_transport *transport;
    dw_pool *pool;
    const dw_kernels *kernels;
    dw_shard *shard;
    dw_scan *scan;
    int64_t heads;
    int64_t kv_heads;
    int64_t head_dim;
    int64_t partial_bytes; /* of one row: [heads] partial sums */
    int64_t row_bytes;     /* of one row on the wire: q f32, K row, V row in cache type, rounded up to 8 */
    int64_t buffer_bytes;
    char *gathered;    /* [max_rows][row_bytes] */
    int64_t *partials; /* [max_rows][heads][words] */
    void *theirs;      /* [max_rows] partial sums of another rank */
    int64_t *offsets;  /* [ranks + 1] */
    dw_attend_times times;

    const dw_policy_plan *plans;
    int64_t plan_count;
    int64_t plan;           /* of sparse rows, now */
    dw_sparse_row **sparse; /* [plan_count] */
    dw_drafting *drafting;  /* NULL: none */
    dw_screen *screen;      /* NULL: no plan uses it */

    /* The call at work, for pool tasks. */
    dw_attend_layer layer;
    dw_attend_kind kind;
    const dw_rows *rows;
    const float *q; /* NULL: only K and V are stored */
    const float *k;
    const float *v;
    atomic_llong bad_row; /* -1, or an own row that holds what may not be */
    float *out;
    int64_t out_stride;
};

static dw_status create_plans(dw_attention *a, dw_error *err)
{
    const dw_shard_config *config = dw_shard_shape(a->shard);
    int has_screen = 0;
    for (int64_t i = 0; i < a->plan_count; i++) has_screen |= a->plans[i].screen_from <= config->context;
    if (has_screen) DW_TRY(dw_screen_create(&a->screen, a->kernels, config, err));
    const dw_sparse_row_parts parts = {a->transport, a->pool, a->kernels, a->shard, a->screen};
    DW_TRY(DW_ALLOC(&a->sparse, a->plan_count, "attention", err));
    for (int64_t i = 0; i < a->plan_count; i++) {
        DW_TRY(dw_sparse_row_create(&a->sparse[i], &parts, a->heads, &a->plans[i], err));
        a->buffer_bytes += dw_sparse_row_bytes(a->sparse[i]);
    }
    return DW_OK;
}

static dw_status create_parts(dw_attention *a, const dw_shard_config *config, int64_t max_rows, dw_error *err)
{
    DW_TRY(dw_shard_create(&a->shard, config, err));
    DW_TRY(dw_scan_create(&a->scan, a->kernels, a->pool, config, a->heads, max_rows, err));
    DW_TRY(dw_alloc_bytes((void **)&a->gathered, max_rows, a->row_bytes, "row buffer", err));
    DW_TRY(dw_alloc_bytes((void **)&a->partials, max_rows, a->partial_bytes, "partial sums", err));
    DW_TRY(dw_alloc_bytes(&a->theirs, max_rows, a->partial_bytes, "partial sums", err));
    DW_TRY(DW_ALLOC(&a->offsets, config->ranks + 1, "row buffer", err));
    a->buffer_bytes = max_rows * (a->row_bytes + 2 * a->partial_bytes);
    return create_plans(a, err);
}

dw_status dw_attention_create(dw_attention **out, dw_transport *transport, dw_pool *pool, const dw_kernels *kernels,
                              const dw_shard_config *config, int64_t heads, int64_t max_rows, const dw_policy_plan *plans,
                              int64_t plan_count, dw_error *err)
{
    dw_attention *a;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&a, 1, "attention", err));
    a->transport = transport;
    a->pool = pool;
    a->kernels = kernels;
    a->heads = heads;
    a->kv_heads = config->kv_heads;
    a->head_dim = config->head_dim;
    a->partial_bytes = heads * dw_partial_words(config->head_dim + 1) * (int64_t)sizeof(int64_t);
    a->row_bytes = dw_round_up(heads * config->head_dim * (int64_t)sizeof(float) + dw_shard_key_row_bytes(config) +
                                   dw_shard_value_row_bytes(config),
                               8);
    a->plans = plans;
    a->plan_count = plan_count;
    status = create_parts(a, config, max_rows, err);
    if (status != DW_OK) {
        dw_attention_destroy(a);
        return status;
    }
    *out = a;
    return DW_OK;
}

void dw_attention_destroy(dw_attention *a)
{
    if (a == NULL) return;
    for (int64_t i = 0; a->sparse != NULL && i < a->plan_count; i++) dw_sparse_row_destroy(a->sparse[i]);
    dw_free(a->sparse);
    dw_screen_destroy(a->screen);
    dw_scan_destroy(a->scan);
    dw_shard_destroy(a->shard);
    dw_free(a->gathered);
    dw_free(a->partials);
    dw_free(a->theirs);
    dw_free(a->offsets);
    dw_free(a);
}

dw_shard *dw_attention_shard(dw_attention *a)
{
    return a->shard;
}

int64_t dw_attention_screen_bytes(const dw_attention *a)
{
    return a->screen == NULL ? 0 : dw_screen_bytes(dw_shard_shape(a->shard));
}

int64_t dw_attention_buffer_bytes(const dw_attention *a)
{
    return a->buffer_bytes;
}

void dw_attention_times(const dw_attention *a, dw_attend_times *times)
{
    *times = a->times;
}

/* Whether a row of one KV head is finite in the cache type. */
static int is_storable(const float *x, int64_t n, dw_type type)
{
    return type != DW_F16 || dw_largest(x, n) < 65520.0f; /* from there on f16 rounds to infinity */
}

static dw_status check_key(const dw_attention *a, const float *k, int64_t kv_head, dw_error *err)
{
    if (!(dw_largest(k, a->head_dim) <= LARGEST_INPUT)) {
        return dw_fail(err, DW_RUNTIME, "layer %lld, KV head %lld: key is not a number or out of range",
                       (long long)a->layer.index, (long long)kv_head);
    }
    if (is_storable(k, a->head_dim, dw_shard_shape(a->shard)->key_type)) return DW_OK;
    return dw_fail(err, DW_RUNTIME, "layer %lld, KV head %lld: key is too large for f16 (see --kv-type)",
                   (long long)a->layer.index, (long long)kv_head);
}

static dw_status check_value(const dw_attention *a, const float *v, int64_t kv_head, dw_error *err)
{
    const int32_t exponent = a->layer.value_exponent[kv_head];
    if (!(dw_largest(v, a->head_dim) <= ldexpf(1.0f, exponent))) {
        return dw_fail(err, DW_RUNTIME, "layer %lld, KV head %lld: value is not a number or above its bound 2^%d",
                       (long long)a->layer.index, (long long)kv_head, exponent);
    }
    if (is_storable(v, a->head_dim, dw_shard_shape(a->shard)->value_type)) return DW_OK;
    return dw_fail(err, DW_RUNTIME, "layer %lld, KV head %lld: value is too large for f16 (see --kv-type)",
                   (long long)a->layer.index, (long long)kv_head);
}

/* One row; q may be NULL. */
static dw_status check_inputs(const dw_attention *a, const float *q, const float *k, const float *v, dw_error *err)
{
    const int64_t d = a->head_dim;
    for (int64_t h = 0; q != NULL && h < a->heads; h++) {
        if (dw_largest(q + h * d, d) <= LARGEST_INPUT) continue;
        return dw_fail(err, DW_RUNTIME, "layer %lld, head %lld: query is not a number or out of range",
                       (long long)a->layer.index, (long long)h);
    }
    for (int64_t g = 0; g < a->kv_heads; g++) {
        DW_TRY(check_key(a, k + g * d, g, err));
        DW_TRY(check_value(a, v + g * d, g, err));
    }
    return DW_OK;
}

/* Rows that this rank brings: first .. first + count - 1. */
typedef struct {
    int64_t first, count;
} brought;

static brought brought_rows(const dw_attention *a)
{
    const int64_t *start = a->rows->start + a->transport->rank;
    if (a->rows->is_shared) return (brought){0, a->rows->count};
    return (brought){start[0], start[1] - start[0]};
}

/* Puts an own row where the all-gather wants it, K and V rounded to the cache type. */
static void pack_task(void *context, int64_t own, int thread)
{
    dw_attention *a = context;
    const dw_shard_config *config = dw_shard_shape(a->shard);
    const int64_t q_floats = a->heads * a->head_dim;
    const int64_t kv_floats = a->kv_heads * a->head_dim;
    const float *q = a->q == NULL ? NULL : a->q + own * q_floats;
    const float *k = a->k + own * kv_floats;
    const float *v = a->v + own * kv_floats;
    char *at = a->gathered + (brought_rows(a).first + own) * a->row_bytes;
    (void)thread;
    if (check_inputs(a, q, k, v, NULL) != DW_OK) atomic_store(&a->bad_row, own);
    if (q != NULL) memcpy(at, q, (size_t)q_floats * sizeof *q);
    at += q_floats * (int64_t)sizeof *q;
    dw_cache_round(at, k, kv_floats, config->key_type);
    dw_cache_round(at + dw_shard_key_row_bytes(config), v, kv_floats, config->value_type);
}

static dw_status pack_rows(dw_attention *a, dw_error *err)
{
    int64_t bad;
    atomic_store(&a->bad_row, -1);
    dw_pool_run(a->pool, brought_rows(a).count, pack_task, a);
    bad = atomic_load(&a->bad_row);
    if (bad < 0) return DW_OK;
    return check_inputs(a, a->q == NULL ? NULL : a->q + bad * a->heads * a->head_dim, a->k + bad * a->kv_heads * a->head_dim,
                        a->v + bad * a->kv_heads * a->head_dim, err);
}

/* One KV head of all rows: threads never write to one block. */
static void put_task(void *context, int64_t kv_head, int thread)
{
    const dw_attention *a = context;
    const dw_shard_config *config = dw_shard_shape(a->shard);
    const int64_t q_bytes = a->heads * a->head_dim * (int64_t)sizeof(float);
    (void)thread;
    for (int64_t t = 0; t < a->rows->count; t++) {
        const char *key_row = a->gathered + t * a->row_bytes + q_bytes;
        dw_shard_put(a->shard, a->layer.index, kv_head, a->rows->first + t, key_row, key_row + dw_shard_key_row_bytes(config));
    }
}

/* All ranks get all rows; each keeps the K and V rows that it owns. */
static dw_status exchange_rows(dw_attention *a, dw_error *err)
{
    for (int r = 0; r <= a->transport->size; r++) a->offsets[r] = a->rows->start[r] * a->row_bytes;
    if (!a->rows->is_shared) DW_TRY(dw_all_gather(a->transport, a->gathered, a->offsets, err));
    dw_pool_run(a->pool, a->kv_heads, put_task, a);
    for (int64_t i = 0; i < a->plan_count; i++) {
        dw_sparse_row_forget(a->sparse[i], a->layer.index, a->rows->first, a->rows->count);
    }
    if (a->drafting != NULL) {
        dw_drafting_keep(a->drafting, a->layer.index, a->rows->first, a->rows->count, a->gathered, a->row_bytes,
                         a->heads * a->head_dim * (int64_t)sizeof(float), a->kind != DW_ATTEND_STORE);
    }
    if (a->screen != NULL) dw_screen_forget(a->screen, a->layer.index, a->rows->first, a->rows->count);
    return DW_OK;
}

static const float *gathered_q(const dw_attention *a, int64_t row)
{
    return (const float *)(const void *)(a->gathered + row * a->row_bytes);
}

static void finish_task(void *context, int64_t own, int thread)
{
    dw_attention *a = context;
    const int64_t words = dw_partial_words(a->head_dim + 1);
    const int64_t row = a->rows->start[a->transport->rank] + own;
    (void)thread;
    for (int64_t h = 0; h < a->heads; h++) {
        dw_partial_finish(a->partials + (row * a->heads + h) * words, a->head_dim + 1,
                          a->layer.value_exponent[h * a->kv_heads / a->heads], a->out + own * a->out_stride + h * a->head_dim);
    }
}

/* Rank 0: the last of its rows, for drafting. */
static void keep_outputs(dw_attention *a, const dw_rows *rows)
{
    const int64_t words = dw_partial_words(a->head_dim + 1);
    const int64_t own = a->transport->rank == 0 ? rows->start[1] : 0;
    for (int64_t t = dw_larger(0, own - DW_MAX_DRAFT - 1); a->drafting != NULL && t < own; t++) {
        dw_drafting_keep_output(a->drafting, a->layer.index, rows->first + t, a->out + t * a->out_stride,
                                a->partials + t * a->heads * words, a->layer.value_exponent);
    }
}

static dw_status attend_dense(dw_attention *a, const dw_rows *rows, dw_error *err)
{
    const int rank = a->transport->rank;
    const dw_queries queries = {rows->count, rows->first, gathered_q(a, 0), a->row_bytes / (int64_t)sizeof(float),
                                a->layer.window};
    double start = dw_now();
    double now;
    DW_TRY(dw_scan_dense(a->scan, a->shard, a->layer.index, &queries, a->layer.value_exponent, a->partials, err));
    now = dw_now();
    a->times.score += now - start;
    start = now;
    for (int r = 0; r <= a->transport->size; r++) a->offsets[r] = rows->start[r] * a->partial_bytes;
    DW_TRY(dw_reduce_scatter(a->transport, a->partials, a->offsets, a->theirs, dw_merge_partials, &a->head_dim, err));
    now = dw_now();
    a->times.reduce += now - start;
    start = now;
    dw_pool_run(a->pool, rows->start[rank + 1] - rows->start[rank], finish_task, a);
    keep_outputs(a, rows);
    a->times.attend += dw_now() - start;
    return DW_OK;
}

/* All layers of a sparse row but those whose policy is dense. */
static dw_status attend_sparse(dw_attention *a, const dw_rows *rows, dw_omitted *omitted, dw_error *err)
{
    for (int64_t t = 0; t < rows->count; t++) {
        float *out = a->transport->rank == 0 ? a->out + t * a->out_stride : NULL;
        DW_TRY(dw_sparse_row_attend(a->sparse[a->plan], &a->layer, rows->first + t, gathered_q(a, t), out, omitted, &a->times,
                                    err));
    }
    return DW_OK;
}

/* A dense layer of sparse rows leaves out nothing. */
static void add_nothing(const dw_attention *a, const dw_rows *rows, dw_omitted *omitted)
{
    for (int64_t t = 0; a->transport->rank == 0 && t < rows->count; t++) {
        for (int64_t h = 0; h < a->heads; h++) {
            dw_omitted_add(omitted, (dw_interval){0, 0}, rows->first + t, a->layer.index, h);
        }
    }
}

static dw_status attend_rows(dw_attention *a, const dw_rows *rows, dw_attend_kind kind, dw_omitted *omitted, dw_error *err)
{
    if (kind == DW_ATTEND_STORE) return DW_OK;
    if (kind == DW_ATTEND_DENSE) return attend_dense(a, rows, err);
    if (a->plan >= a->plan_count) return dw_fail(err, DW_RUNTIME, "sparse rows in a session whose policy is dense");
    if (dw_plan_layer(&a->plans[a->plan], a->layer.index)->mode != DW_DENSE) return attend_sparse(a, rows, omitted, err);
    DW_TRY(attend_dense(a, rows, err));
    add_nothing(a, rows, omitted);
    return DW_OK;
}

/* Outputs of shared rows are put together on rank 0. */
static dw_status share_outputs(dw_attention *a, dw_error *err)
{
    const double start = dw_now();
    const int64_t floats = (a->rows->count - 1) * a->out_stride + a->heads * a->head_dim;
    DW_TRY(dw_broadcast(a->transport, a->out, floats * (int64_t)sizeof *a->out, err));
    a->times.reduce += dw_now() - start;
    return DW_OK;
}

/* The row is packed as if it were to travel. */
static dw_status attend_draft(dw_attention *a, dw_error *err)
{
    const char *key = a->gathered + a->heads * a->head_dim * (int64_t)sizeof(float);
    return dw_drafting_attend(a->drafting, a->layer.index, a->rows->first, a->q, key,
                              key + dw_shard_key_row_bytes(dw_shard_shape(a->shard)), a->layer.value_exponent, a->out, err);
}

void dw_attention_use_drafting(dw_attention *a, dw_drafting *drafting)
{
    a->drafting = drafting;
}

void dw_attention_use_plan(dw_attention *a, int64_t plan)
{
    a->plan = plan;
}

dw_status dw_attend(dw_attention *a, const dw_attend_layer *layer, const dw_rows *rows, dw_attend_kind kind, const float *q,
                    const float *k, const float *v, float *out, int64_t out_stride, dw_omitted *omitted, dw_error *err)
{
    const double start = dw_now();
    const double waited = a->transport->traffic.wait_seconds;
    a->layer = *layer;
    a->kind = kind;
    a->rows = rows;
    a->q = kind == DW_ATTEND_STORE ? NULL : q;
    a->k = k;
    a->v = v;
    a->out = out;
    a->out_stride = out_stride;
    DW_TRY(pack_rows(a, err));
    if (kind == DW_ATTEND_DRAFT) return attend_draft(a, err);
    DW_TRY(exchange_rows(a, err));
    a->times.reduce += dw_now() - start;
    DW_TRY(attend_rows(a, rows, kind, omitted, err));
    if (rows->is_shared && kind != DW_ATTEND_STORE) DW_TRY(share_outputs(a, err));
    a->times.wait += a->transport->traffic.wait_seconds - waited;
    return DW_OK;
}
