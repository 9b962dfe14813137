#include "attention/mass.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "attention/partial.h"
#include "attention/scan.h"
#include "base/memory.h"
#include "kernels/exp2.h"

/* Tasks: (kv head) x (slice of the shard's blocks). */
enum { TASKS_PER_THREAD = 4, MIN_SLICE_BLOCKS = 4, BINS_PER_BIT = 8 };

#define WEIGHT_ONE 0x1p30f /* of a key at the lower end of its bin */

/* Of one thread. */
typedef struct {
    float rest[DW_BLOCK];    /* score - lower end of the bin, in bits */
    float weights[DW_BLOCK]; /* of one block */
    float *o;                /* [head_dim] */
} scratch;

struct dw_mass {
    const dw_kernels *kernels;
    dw_pool *pool;
    int64_t heads;
    int64_t group;
    int64_t kv_heads;
    int64_t head_dim;
    int64_t local_blocks;
    int64_t max_slices;
    int64_t bytes;
    float scale;
    scratch *thread;
    float *scores;        /* [heads][local_blocks][DW_BLOCK] raw scores of the last row */
    dw_histogram *slices; /* [heads][max_slices] */
    int64_t *partials;    /* [heads][max_slices][words] */

    /* The row at work. */
    const dw_shard *shard;
    int64_t layer;
    dw_visible visible;
    dw_block_range blocks;
    int64_t slice_count;
    const float *q;
    const int64_t *bins;
    const int32_t *value_exponent;
    atomic_llong bad_head;
};

static dw_status create_parts(dw_mass *m, dw_error *err)
{
    const int threads = dw_pool_threads(m->pool);
    const int64_t words = dw_partial_words(m->head_dim + 1);
    DW_TRY(DW_ALLOC(&m->thread, threads, "attention scratch", err));
    for (int i = 0; i < threads; i++) DW_TRY(DW_ALLOC(&m->thread[i].o, m->head_dim, "attention scratch", err));
    DW_TRY(dw_alloc_bytes((void **)&m->scores, m->heads * m->local_blocks, DW_BLOCK * (int64_t)sizeof *m->scores,
                          "attention scores", err));
    DW_TRY(DW_ALLOC(&m->slices, m->heads * m->max_slices, "histograms", err));
    DW_TRY(DW_ALLOC(&m->partials, m->heads * m->max_slices * words, "partial sums", err));
    m->bytes = m->heads * (m->local_blocks * DW_BLOCK * (int64_t)sizeof *m->scores +
                           m->max_slices * ((int64_t)sizeof *m->slices + words * (int64_t)sizeof *m->partials));
    return DW_OK;
}

dw_status dw_mass_create(dw_mass **out, const dw_kernels *kernels, dw_pool *pool, const dw_shard_config *config, int64_t heads,
                         dw_error *err)
{
    dw_mass *m;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&m, 1, "attention scratch", err));
    m->kernels = kernels;
    m->pool = pool;
    m->heads = heads;
    m->kv_heads = config->kv_heads;
    m->group = heads / config->kv_heads;
    m->head_dim = config->head_dim;
    m->scale = dw_score_scale(config->head_dim);
    m->local_blocks = dw_shard_most_blocks(config);
    m->max_slices = dw_pool_threads(pool) == 1 ? 1 : (int64_t)TASKS_PER_THREAD * dw_pool_threads(pool);
    status = create_parts(m, err);
    if (status != DW_OK) {
        dw_mass_destroy(m);
        return status;
    }
    *out = m;
    return DW_OK;
}

void dw_mass_destroy(dw_mass *m)
{
    if (m == NULL) return;
    for (int i = 0; m->thread != NULL && i < dw_pool_threads(m->pool); i++) dw_free(m->thread[i].o);
    dw_free(m->thread);
    dw_free(m->scores);
    dw_free(m->slices);
    dw_free(m->partials);
    dw_free(m);
}

int64_t dw_mass_bytes(const dw_mass *m)
{
    return m->bytes;
}

/* ---- histograms ---- */

static void clear(dw_histogram *h)
{
    memset(h, 0, sizeof *h);
    h->top = DW_NO_BIN;
}

/* Makes `top` the highest bin. */
static void raise_top(dw_histogram *h, int64_t top)
{
    const int64_t rise = h->top == DW_NO_BIN || top - h->top > DW_HISTOGRAM_BINS ? DW_HISTOGRAM_BINS : top - h->top;
    const int64_t kept = DW_HISTOGRAM_BINS - rise;
    for (int64_t i = kept; i < DW_HISTOGRAM_BINS; i++) h->below += h->count[i];
    memmove(h->count + rise, h->count, (size_t)kept * sizeof *h->count);
    memmove(h->weight + rise, h->weight, (size_t)kept * sizeof *h->weight);
    memset(h->count, 0, (size_t)rise * sizeof *h->count);
    memset(h->weight, 0, (size_t)rise * sizeof *h->weight);
    h->top = top;
}

static void merge(dw_histogram *mine, const dw_histogram *theirs)
{
    if (theirs->key_norm > mine->key_norm) mine->key_norm = theirs->key_norm;
    if (theirs->top == DW_NO_BIN) return;
    if (mine->top == DW_NO_BIN || theirs->top > mine->top) raise_top(mine, theirs->top);
    const int64_t shift = mine->top - theirs->top;
    for (int64_t i = 0; i < DW_HISTOGRAM_BINS; i++) {
        if (shift + i >= DW_HISTOGRAM_BINS) {
            mine->below += theirs->count[i];
        } else {
            mine->count[shift + i] += theirs->count[i];
            mine->weight[shift + i] += theirs->weight[i];
        }
    }
    mine->below += theirs->below;
}

dw_status dw_histogram_merge(void *context, void *mine, int64_t *mine_bytes, int64_t capacity, const void *theirs,
                             int64_t theirs_bytes, dw_error *err)
{
    (void)context;
    (void)capacity;
    if (*mine_bytes != theirs_bytes) return dw_fail(err, DW_RUNTIME, "histograms of another rank have the wrong length");
    for (int64_t h = 0; h < theirs_bytes / (int64_t)sizeof(dw_histogram); h++) {
        merge((dw_histogram *)mine + h, (const dw_histogram *)theirs + h);
    }
    return DW_OK;
}

/* The bin of a raw score: its eighths of a bit, rounded down. */
static float eighths(float score, float scale)
{
    return score * scale * (float)BINS_PER_BIT;
}

/* Counts the keys of one block; 0 when a score is out of range. */
static int count_block(const dw_mass *m, scratch *s, dw_histogram *h, const float *scores, dw_key_range keys)
{
    float top = -INFINITY;
    for (int j = keys.first; j <= keys.last; j++) {
        const float x = eighths(scores[j], m->scale);
        if (!(fabsf(x) < (float)DW_MAX_SCORE_BITS * BINS_PER_BIT)) return 0;
        s->rest[j] = (x - floorf(x)) / (float)BINS_PER_BIT;
        top = x > top ? x : top;
    }
    if (h->top == DW_NO_BIN || (int64_t)floorf(top) > h->top) raise_top(h, (int64_t)floorf(top));
    m->kernels->exp2(s->weights + keys.first, s->rest + keys.first, keys.last - keys.first + 1);
    for (int j = keys.first; j <= keys.last; j++) {
        const int64_t i = h->top - (int64_t)floorf(eighths(scores[j], m->scale));
        if (i >= DW_HISTOGRAM_BINS) {
            h->below++;
        } else {
            h->count[i]++;
            h->weight[i] += (int64_t)rintf(s->weights[j] * WEIGHT_ONE);
        }
    }
    return 1;
}

static int64_t slice_start(const dw_mass *m, int64_t slice)
{
    return m->blocks.first + (m->blocks.end - m->blocks.first) * slice / m->slice_count;
}

static float *scores_at(const dw_mass *m, int64_t head, int64_t block)
{
    return m->scores + (head * m->local_blocks + block) * DW_BLOCK;
}

static void count_task(void *context, int64_t task, int thread)
{
    dw_mass *m = context;
    const int64_t kv_head = task / m->slice_count;
    const int64_t slice = task % m->slice_count;
    const dw_type type = dw_shard_shape(m->shard)->key_type;
    double key_norm = 0;
    for (int64_t i = 0; i < m->group; i++) clear(&m->slices[(kv_head * m->group + i) * m->max_slices + slice]);
    for (int64_t b = slice_start(m, slice); b < slice_start(m, slice + 1); b++) {
        const dw_block_slot slot = {b};
        const dw_key_range keys = dw_visible_keys(m->visible, dw_shard_block_start(m->shard, slot));
        const void *block = dw_shard_keys(m->shard, m->layer, kv_head, slot);
        const double norm = (double)dw_shard_key_norm(m->shard, m->layer, kv_head, slot, keys.first, keys.last);
        key_norm = norm > key_norm ? norm : key_norm;
        for (int64_t i = 0; i < m->group; i++) {
            const int64_t head = kv_head * m->group + i;
            float *scores = scores_at(m, head, b);
            m->kernels->scores[type](scores, m->q + head * m->head_dim, m->head_dim, 1, block, (int)m->head_dim);
            if (!count_block(m, &m->thread[thread], &m->slices[head * m->max_slices + slice], scores, keys)) {
                atomic_store(&m->bad_head, head);
                return;
            }
        }
    }
    for (int64_t i = 0; i < m->group; i++) m->slices[(kv_head * m->group + i) * m->max_slices + slice].key_norm = key_norm;
}

dw_status dw_mass_count(dw_mass *m, const dw_shard *shard, int64_t layer, dw_visible visible, const float *q,
                        dw_histogram *histograms, dw_error *err)
{
    m->shard = shard;
    m->layer = layer;
    m->visible = visible;
    m->blocks = dw_visible_blocks(visible, shard);
    m->q = q;
    m->slice_count = dw_smaller(m->max_slices, (m->blocks.end - m->blocks.first) / MIN_SLICE_BLOCKS);
    if (m->slice_count < 1) m->slice_count = 1;
    atomic_store(&m->bad_head, -1);
    dw_pool_run(m->pool, m->kv_heads * m->slice_count, count_task, m);
    if (atomic_load(&m->bad_head) >= 0) {
        return dw_fail(err, DW_RUNTIME, "layer %lld, head %lld: attention score is not a number or out of range",
                       (long long)layer, (long long)atomic_load(&m->bad_head));
    }
    for (int64_t h = 0; h < m->heads; h++) {
        histograms[h] = m->slices[h * m->max_slices];
        for (int64_t s = 1; s < m->slice_count; s++) merge(&histograms[h], &m->slices[h * m->max_slices + s]);
    }
    return DW_OK;
}

/* ---- the cut ---- */

/* 2^(-i/8); the same on every machine. */
static double bin_weight(int64_t i)
{
    static const double roots[BINS_PER_BIT] = {1.0,
                                               0x1.d5818dcfba487p-1,
                                               0x1.ae89f995ad3adp-1,
                                               0x1.8ace5422aa0dbp-1,
                                               0x1.6a09e667f3bcdp-1,
                                               0x1.4bfdad5362a27p-1,
                                               0x1.306fe0a31b715p-1,
                                               0x1.172b83c7d517bp-1};
    return ldexp(roots[i % BINS_PER_BIT], -(int)(i / BINS_PER_BIT));
}

/* Masses are in units of 2^(top/8 - 30). */
static double mass_of(const dw_histogram *h, int64_t i)
{
    return (double)h->weight[i] * bin_weight(i);
}

/* What the keys under the bins can weigh at most. */
static double mass_below(const dw_histogram *h)
{
    return (double)h->below * ldexp(bin_weight(DW_HISTOGRAM_BINS - 1), 30);
}

/* kept of all that is in bins, the keys below weighing nothing or as much as they can. */
static dw_interval omitted_by(double kept, double all, double below, double score_bits)
{
    const dw_interval least = dw_omitted_interval(kept / all, score_bits);
    const dw_interval most = dw_omitted_interval(kept / (all + below), score_bits);
    return (dw_interval){least.low, most.high};
}

dw_cut dw_mass_cut(const dw_histogram *all, double epsilon, const float *q, int64_t d)
{
    const double below = mass_below(all);
    double norm = 0;
    double score_bits;
    double total = 0;
    double kept = 0;
    dw_cut cut = {.bin = DW_NO_BIN};
    int64_t in_bins = 0;
    for (int64_t i = 0; i < DW_HISTOGRAM_BINS; i++) {
        in_bins += all->count[i];
        total += mass_of(all, i);
    }
    for (int64_t c = 0; c < d; c++) norm += (double)q[c] * (double)q[c];
    score_bits = dw_score_error_bits(sqrt(norm), all->key_norm, (double)dw_score_scale(d), d);
    for (int64_t i = 0; i < DW_HISTOGRAM_BINS && cut.keys < in_bins; i++) {
        kept += mass_of(all, i);
        cut.keys += all->count[i];
        if (1 - kept / (total + below) > epsilon) continue; /* no interval can end lower than its middle */
        cut.bin = all->top - i;
        cut.omitted = omitted_by(kept, total, below, score_bits);
        if (cut.keys == in_bins && all->below == 0) cut.omitted = (dw_interval){0, 0};
        if (cut.omitted.high <= epsilon) return cut;
    }
    return (dw_cut){.bin = DW_NO_BIN, .keys = in_bins + all->below};
}

/* ---- attention above the cut ---- */

/* Keys of the block at or above the cut, among those that the row sees. */
static uint64_t selected(const dw_mass *m, const float *scores, dw_key_range keys, int64_t bin)
{
    const uint64_t visible = dw_key_mask(keys);
    uint64_t mask = 0;
    if (bin == DW_NO_BIN) return visible;
    for (int j = 0; j < DW_BLOCK; j++) mask |= (uint64_t)(eighths(scores[j], m->scale) >= (float)bin) << j;
    return mask & visible;
}

static void attend_task(void *context, int64_t task, int thread)
{
    dw_mass *m = context;
    scratch *s = &m->thread[thread];
    const int64_t kv_head = task / m->slice_count;
    const int64_t slice = task % m->slice_count;
    const int d = (int)m->head_dim;
    const int64_t words = dw_partial_words(d + 1);
    const dw_type type = dw_shard_shape(m->shard)->value_type;
    for (int64_t head = kv_head * m->group; head < (kv_head + 1) * m->group; head++) {
        int64_t *partial = m->partials + (head * m->max_slices + slice) * words;
        dw_partial_clear(partial, d + 1);
        for (int64_t b = slice_start(m, slice); b < slice_start(m, slice + 1); b++) {
            const dw_block_slot slot = {b};
            const dw_key_range keys = dw_visible_keys(m->visible, dw_shard_block_start(m->shard, slot));
            const float *scores = scores_at(m, head, b);
            const uint64_t mask = selected(m, scores, keys, m->bins[head]);
            float maxima[DW_LANES];
            int32_t exponent;
            float sum;
            if (mask == 0) continue;
            m->kernels->weights(s->weights, scores, m->scale, mask, &exponent, &sum, maxima);
            m->kernels->values[type](s->o, s->weights, 1, dw_shard_values(m->shard, m->layer, kv_head, slot), d,
                                     __builtin_ctzll(mask), DW_BLOCK - 1 - __builtin_clzll(mask));
            dw_partial_add(m->kernels, partial, d + 1, exponent, s->o, sum, m->value_exponent[kv_head]);
        }
    }
}

void dw_mass_attend(dw_mass *m, const int64_t *bins, const int32_t *value_exponent, int64_t *partials)
{
    const int64_t channels = m->head_dim + 1;
    const int64_t words = dw_partial_words(channels);
    m->bins = bins;
    m->value_exponent = value_exponent;
    dw_pool_run(m->pool, m->kv_heads * m->slice_count, attend_task, m);
    for (int64_t h = 0; h < m->heads; h++) {
        memcpy(partials + h * words, m->partials + h * m->max_slices * words, (size_t)words * sizeof *partials);
        for (int64_t s = 1; s < m->slice_count; s++) {
            dw_partial_merge(partials + h * words, m->partials + (h * m->max_slices + s) * words, channels);
        }
    }
}
