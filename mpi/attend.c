#include "mpi/attend.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "attention/discovery.h"
#include "attention/mass.h"
#include "attention/partial.h"
#include "attention/scan.h"
#include "attention/sparse.h"
#include "attention/tail.h"
#include "base/clock.h"
#include "base/integers.h"
#include "base/memory.h"
#include "kernels/vector.h"
#include "mpi/collective.h"

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
    void *theirs;      /* [max_rows] partial sums, or one proposal, of another rank */
    int64_t *offsets;  /* [ranks + 1] */
    dw_attend_times times;

    int is_sparse_ready; /* the parts below exist */
    dw_proposal_shape proposal_shape;
    dw_discovery *discovery;
    dw_sparse *sparse;
    void *proposal;       /* [proposal_shape.capacity] */
    dw_interval *omitted; /* [heads] */
    dw_tail *tail;        /* NULL: what is left out is dropped; with [heads]: */
    dw_tail_cut *cuts;
    dw_mass *mass; /* of mode mass, in place of all above; with [heads]: */
    dw_histogram *histograms;
    int64_t *bins;
    double epsilon;

    /* The call at work, for pool tasks. */
    dw_attend_layer layer;
    const dw_rows *rows;
    const float *q; /* NULL: only K and V are stored */
    const float *k;
    const float *v;
    atomic_llong bad_row; /* -1, or an own row that holds what may not be */
    float *out;
    int64_t out_stride;
};

static dw_status create_sparse_parts(dw_attention *a, const dw_shard_config *config, const dw_policy *policy, dw_error *err)
{
    if (policy->mode == DW_DENSE) return DW_OK;
    a->is_sparse_ready = 1;
    if (policy->mode == DW_MASS) {
        a->epsilon = policy->epsilon;
        DW_TRY(DW_ALLOC(&a->histograms, a->heads, "histograms", err));
        DW_TRY(DW_ALLOC(&a->bins, a->heads, "histograms", err));
        return dw_mass_create(&a->mass, a->kernels, a->pool, config, a->heads, err);
    }
    DW_TRY(dw_proposal_shape_create(&a->proposal_shape, config, a->heads, policy, err));
    DW_TRY(dw_discovery_create(&a->discovery, a->kernels, a->pool, config, policy, &a->proposal_shape, err));
    DW_TRY(dw_sparse_create(&a->sparse, a->kernels, a->pool, config, &a->proposal_shape, err));
    DW_TRY(dw_alloc_bytes(&a->proposal, a->proposal_shape.capacity, 1, "proposal buffer", err));
    DW_TRY(DW_ALLOC(&a->omitted, a->heads, "proposal buffer", err));
    if (!policy->has_tail) return DW_OK;
    DW_TRY(DW_ALLOC(&a->cuts, a->heads, "proposal buffer", err));
    return dw_tail_create(&a->tail, a->kernels, a->pool, config, a->heads, policy, err);
}

static dw_status create_parts(dw_attention *a, const dw_shard_config *config, int64_t max_rows, const dw_policy *policy,
                              dw_error *err)
{
    int64_t theirs;
    DW_TRY(dw_shard_create(&a->shard, config, err));
    DW_TRY(dw_scan_create(&a->scan, a->kernels, a->pool, config, a->heads, max_rows, err));
    DW_TRY(create_sparse_parts(a, config, policy, err));
    theirs = dw_larger(max_rows * a->partial_bytes, a->proposal_shape.capacity);
    if (a->mass != NULL) theirs = dw_larger(theirs, a->heads * (int64_t)sizeof *a->histograms);
    DW_TRY(dw_alloc_bytes((void **)&a->gathered, max_rows, a->row_bytes, "row buffer", err));
    DW_TRY(dw_alloc_bytes((void **)&a->partials, max_rows, a->partial_bytes, "partial sums", err));
    DW_TRY(dw_alloc_bytes(&a->theirs, theirs, 1, "partial sums", err));
    DW_TRY(DW_ALLOC(&a->offsets, config->ranks + 1, "row buffer", err));
    a->buffer_bytes = max_rows * (a->row_bytes + a->partial_bytes) + theirs + 2 * a->proposal_shape.capacity;
    if (a->tail != NULL) a->buffer_bytes += dw_tail_bytes(a->tail);
    if (a->mass != NULL) a->buffer_bytes += dw_mass_bytes(a->mass) + a->heads * (int64_t)sizeof *a->histograms;
    return DW_OK;
}

dw_status dw_attention_create(dw_attention **out, dw_transport *transport, dw_pool *pool, const dw_kernels *kernels,
                              const dw_shard_config *config, int64_t heads, int64_t max_rows, const dw_policy *policy,
                              dw_error *err)
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
    status = create_parts(a, config, max_rows, policy, err);
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
    dw_discovery_destroy(a->discovery);
    dw_sparse_destroy(a->sparse);
    dw_proposal_shape_free(&a->proposal_shape);
    dw_scan_destroy(a->scan);
    dw_shard_destroy(a->shard);
    dw_free(a->gathered);
    dw_free(a->partials);
    dw_free(a->theirs);
    dw_free(a->offsets);
    dw_free(a->proposal);
    dw_free(a->omitted);
    dw_tail_destroy(a->tail);
    dw_free(a->cuts);
    dw_mass_destroy(a->mass);
    dw_free(a->histograms);
    dw_free(a->bins);
    dw_free(a);
}

dw_shard *dw_attention_shard(dw_attention *a)
{
    return a->shard;
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
    char *at = a->gathered + (a->rows->start[a->transport->rank] + own) * a->row_bytes;
    (void)thread;
    if (check_inputs(a, q, k, v, NULL) != DW_OK) atomic_store(&a->bad_row, own);
    if (q != NULL) memcpy(at, q, (size_t)q_floats * sizeof *q);
    at += q_floats * (int64_t)sizeof *q;
    dw_cache_round(at, k, kv_floats, config->key_type);
    dw_cache_round(at + dw_shard_key_row_bytes(config), v, kv_floats, config->value_type);
}

static dw_status pack_rows(dw_attention *a, dw_error *err)
{
    const int rank = a->transport->rank;
    int64_t bad;
    atomic_store(&a->bad_row, -1);
    dw_pool_run(a->pool, a->rows->start[rank + 1] - a->rows->start[rank], pack_task, a);
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
    DW_TRY(dw_all_gather(a->transport, a->gathered, a->offsets, err));
    dw_pool_run(a->pool, a->kv_heads, put_task, a);
    if (a->tail != NULL) dw_tail_forget(a->tail, a->layer.index, a->rows->first, a->rows->count);
    return DW_OK;
}

static const float *gathered_q(const dw_attention *a, int64_t row)
{
    return (const float *)(const void *)(a->gathered + row * a->row_bytes);
}

/* A dw_merge of whole rows of partial sums. context: the dw_attention. */
static dw_status merge_partials(void *context, void *mine, int64_t *mine_bytes, int64_t capacity, const void *theirs,
                                int64_t theirs_bytes, dw_error *err)
{
    const dw_attention *a = context;
    const int64_t words = dw_partial_words(a->head_dim + 1);
    (void)capacity;
    if (*mine_bytes != theirs_bytes) return dw_fail(err, DW_RUNTIME, "partial sums of another rank have the wrong length");
    for (int64_t at = 0; at < theirs_bytes / (int64_t)sizeof(int64_t); at += words) {
        dw_partial_merge((int64_t *)mine + at, (const int64_t *)theirs + at, a->head_dim + 1);
    }
    return DW_OK;
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
    DW_TRY(dw_reduce_scatter(a->transport, a->partials, a->offsets, a->theirs, merge_partials, a, err));
    now = dw_now();
    a->times.reduce += now - start;
    start = now;
    dw_pool_run(a->pool, rows->start[rank + 1] - rows->start[rank], finish_task, a);
    a->times.attend += dw_now() - start;
    return DW_OK;
}

/* The second round of a row with a tail: where the sets end goes out, sums of what lies behind come back into a->partials. */
static dw_status sum_tail(dw_attention *a, dw_visible visible, const float *q, dw_error *err)
{
    int64_t bytes = a->partial_bytes;
    double start = dw_now();
    double now;
    if (a->transport->rank == 0) dw_tail_cuts(&a->proposal_shape, a->proposal, a->cuts);
    DW_TRY(dw_broadcast(a->transport, a->cuts, a->heads * (int64_t)sizeof *a->cuts, err));
    now = dw_now();
    a->times.reduce += now - start;
    start = now;
    dw_tail_sum(a->tail, a->shard, a->layer.index, visible, q, a->cuts, a->layer.value_exponent, a->partials);
    now = dw_now();
    a->times.score += now - start;
    start = now;
    DW_TRY(dw_reduce(a->transport, a->partials, &bytes, bytes, a->theirs, merge_partials, a, err));
    a->times.reduce += dw_now() - start;
    return DW_OK;
}

/* One sparse row: propose, merge, attend over the merged set. */
static dw_status attend_sparse(dw_attention *a, dw_pos position, const float *q, float *out, dw_omitted *omitted, dw_error *err)
{
    const dw_visible visible = dw_visible_positions(position, a->layer.window);
    double start = dw_now();
    double now;
    int64_t bytes;
    DW_TRY(dw_discover(a->discovery, a->shard, a->layer.index, visible, q, a->proposal, &bytes, err));
    now = dw_now();
    a->times.score += now - start;
    start = now;
    DW_TRY(dw_reduce(a->transport, a->proposal, &bytes, a->proposal_shape.capacity, a->theirs, dw_proposal_merge,
                     &a->proposal_shape, err));
    now = dw_now();
    a->times.reduce += now - start;
    if (a->tail != NULL) DW_TRY(sum_tail(a, visible, q, err));
    if (a->transport->rank != 0) return DW_OK;
    start = dw_now();
    dw_sparse_attend(a->sparse, visible, q, a->layer.value_exponent, a->proposal, a->tail == NULL ? NULL : a->partials, out,
                     a->omitted);
    for (int64_t h = 0; h < a->heads; h++) dw_omitted_add(omitted, a->omitted[h], position, a->layer.index, h);
    a->times.attend += dw_now() - start;
    return DW_OK;
}

/* The coordinator's choice for every head. */
static void choose_cuts(dw_attention *a, dw_pos position, const float *q, dw_omitted *omitted)
{
    const int64_t visible = dw_visible_count(dw_visible_positions(position, a->layer.window));
    for (int64_t h = 0; h < a->heads; h++) {
        const dw_cut cut = dw_mass_cut(&a->histograms[h], a->epsilon, q + h * a->head_dim, a->head_dim);
        a->bins[h] = cut.bin;
        dw_omitted_add(omitted, cut.omitted, position, a->layer.index, h);
        dw_omitted_count(omitted, cut.keys, visible);
    }
}

/* One row of mode mass: count, reduce, cut, broadcast, attend above the cut, reduce. */
static dw_status attend_mass(dw_attention *a, dw_pos position, const float *q, float *out, dw_omitted *omitted, dw_error *err)
{
    const dw_visible visible = dw_visible_positions(position, a->layer.window);
    const int64_t words = dw_partial_words(a->head_dim + 1);
    int64_t bytes = a->heads * (int64_t)sizeof *a->histograms;
    double start = dw_now();
    double now;
    DW_TRY(dw_mass_count(a->mass, a->shard, a->layer.index, visible, q, a->histograms, err));
    now = dw_now();
    a->times.score += now - start;
    start = now;
    DW_TRY(dw_reduce(a->transport, a->histograms, &bytes, bytes, a->theirs, dw_histogram_merge, NULL, err));
    if (a->transport->rank == 0) choose_cuts(a, position, q, omitted);
    DW_TRY(dw_broadcast(a->transport, a->bins, a->heads * (int64_t)sizeof *a->bins, err));
    now = dw_now();
    a->times.reduce += now - start;
    start = now;
    dw_mass_attend(a->mass, a->bins, a->layer.value_exponent, a->partials);
    now = dw_now();
    a->times.attend += now - start;
    start = now;
    bytes = a->partial_bytes;
    DW_TRY(dw_reduce(a->transport, a->partials, &bytes, bytes, a->theirs, merge_partials, a, err));
    for (int64_t h = 0; a->transport->rank == 0 && h < a->heads; h++) {
        dw_partial_finish(a->partials + h * words, a->head_dim + 1, a->layer.value_exponent[h * a->kv_heads / a->heads],
                          out + h * a->head_dim);
    }
    a->times.reduce += dw_now() - start;
    return DW_OK;
}

static dw_status attend_rows(dw_attention *a, const dw_rows *rows, dw_attend_kind kind, dw_omitted *omitted, dw_error *err)
{
    if (kind == DW_ATTEND_STORE) return DW_OK;
    if (kind == DW_ATTEND_DENSE) return attend_dense(a, rows, err);
    if (!a->is_sparse_ready) return dw_fail(err, DW_RUNTIME, "sparse rows in a session whose policy is dense");
    for (int64_t t = 0; t < rows->count; t++) {
        float *row_out = a->transport->rank == 0 ? a->out + t * a->out_stride : NULL;
        if (a->mass != NULL) {
            DW_TRY(attend_mass(a, rows->first + t, gathered_q(a, t), row_out, omitted, err));
        } else {
            DW_TRY(attend_sparse(a, rows->first + t, gathered_q(a, t), row_out, omitted, err));
        }
    }
    return DW_OK;
}

dw_status dw_attend(dw_attention *a, const dw_attend_layer *layer, const dw_rows *rows, dw_attend_kind kind, const float *q,
                    const float *k, const float *v, float *out, int64_t out_stride, dw_omitted *omitted, dw_error *err)
{
    const double start = dw_now();
    const double waited = a->transport->traffic.wait_seconds;
    a->layer = *layer;
    a->rows = rows;
    a->q = kind == DW_ATTEND_STORE ? NULL : q;
    a->k = k;
    a->v = v;
    a->out = out;
    a->out_stride = out_stride;
    DW_TRY(pack_rows(a, err));
    DW_TRY(exchange_rows(a, err));
    a->times.reduce += dw_now() - start;
    DW_TRY(attend_rows(a, rows, kind, omitted, err));
    a->times.wait += a->transport->traffic.wait_seconds - waited;
    return DW_OK;
}
