#include "attention/scan.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "attention/partial.h"
#include "base/integers.h"
#include "base/memory.h"
#include "kernels/exp2.h"

/* Work is cut into tasks: (tile of rows) x (kv head) x (slice of the shard's blocks). The query heads of a group and the rows
   of a tile share each read of K and V. Slices exist so that one row keeps all threads busy; their partial sums are merged at
   the end. */
enum {
    TILE_VECTORS = 24, /* (row, head) pairs of a tile, about */
    TASKS_PER_THREAD = 4,
    MIN_SLICE_BLOCKS = 4,
    SPARE_ROWS = 64 /* rows * slices that the scratch always has room for */
};

typedef struct {
    float *q;          /* [vectors][head_dim] */
    float *w;          /* [vectors][DW_BLOCK] scores, then weights */
    float *o;          /* [vectors][head_dim] */
    float *sum;        /* [vectors] sums of weights of one block */
    int32_t *exponent; /* [vectors] */
} scratch;

struct dw_scan {
    const dw_kernels *kernels;
    dw_pool *pool;
    int64_t heads;
    int64_t group; /* query heads per kv head */
    int64_t head_dim;
    int64_t tile_rows;
    int64_t max_slice_rows; /* rows * (slices - 1) that `sliced` holds */
    float scale;
    scratch *thread;
    int64_t *sliced; /* partial sums of slices 1.. : [slices - 1][rows][heads][words] */

    /* The scan that runs. */
    const dw_shard *shard;
    int64_t layer;
    const dw_queries *queries;
    const int32_t *value_exponent;
    int64_t *partials;
    int64_t kv_heads;
    int64_t tiles;
    int64_t slices;
    atomic_llong bad_head; /* -1, or a head with a score out of range */
};

float dw_score_scale(int64_t head_dim)
{
    return (float)(DW_LOG2_E / sqrt((double)head_dim));
}

dw_status dw_scan_create(dw_scan **out, const dw_kernels *kernels, dw_pool *pool, const dw_shard_config *shape, int64_t heads,
                         int64_t max_rows, dw_error *err)
{
    const int64_t words = dw_partial_words(shape->head_dim + 1);
    const int threads = dw_pool_threads(pool);
    dw_scan *scan;
    dw_status status;
    int64_t vectors;
    *out = NULL;
    DW_TRY(DW_ALLOC(&scan, 1, "attention scratch", err));
    scan->kernels = kernels;
    scan->pool = pool;
    scan->heads = heads;
    scan->kv_heads = shape->kv_heads;
    scan->group = heads / shape->kv_heads;
    scan->head_dim = shape->head_dim;
    scan->scale = dw_score_scale(shape->head_dim);
    scan->tile_rows = scan->group < TILE_VECTORS ? TILE_VECTORS / scan->group : 1;
    scan->max_slice_rows = max_rows > SPARE_ROWS ? max_rows : SPARE_ROWS;
    vectors = scan->tile_rows * scan->group;
    DW_TRY_GOTO(status, DW_ALLOC(&scan->thread, threads, "attention scratch", err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&scan->sliced, scan->max_slice_rows * heads * words, "attention scratch", err), failed);
    for (int i = 0; i < threads; i++) {
        scratch *s = &scan->thread[i];
        DW_TRY_GOTO(status, DW_ALLOC(&s->q, vectors * shape->head_dim, "attention scratch", err), failed);
        DW_TRY_GOTO(status, DW_ALLOC(&s->w, vectors * DW_BLOCK, "attention scratch", err), failed);
        DW_TRY_GOTO(status, DW_ALLOC(&s->o, vectors * shape->head_dim, "attention scratch", err), failed);
        DW_TRY_GOTO(status, DW_ALLOC(&s->sum, vectors, "attention scratch", err), failed);
        DW_TRY_GOTO(status, DW_ALLOC(&s->exponent, vectors, "attention scratch", err), failed);
    }
    *out = scan;
    return DW_OK;
failed:
    dw_scan_destroy(scan);
    return status;
}

void dw_scan_destroy(dw_scan *scan)
{
    if (scan == NULL) return;
    for (int i = 0; scan->thread != NULL && i < dw_pool_threads(scan->pool); i++) {
        dw_free(scan->thread[i].q);
        dw_free(scan->thread[i].w);
        dw_free(scan->thread[i].o);
        dw_free(scan->thread[i].sum);
        dw_free(scan->thread[i].exponent);
    }
    dw_free(scan->thread);
    dw_free(scan->sliced);
    dw_free(scan);
}

/* Where the partial sum of a row and head of one slice lies. */
static int64_t *partial_at(const dw_scan *scan, int64_t slice, int64_t row, int64_t head)
{
    const int64_t words = dw_partial_words(scan->head_dim + 1);
    if (slice == 0) return scan->partials + (row * scan->heads + head) * words;
    return scan->sliced + (((slice - 1) * scan->queries->rows + row) * scan->heads + head) * words;
}

static dw_visible visible(const dw_scan *scan, int64_t row)
{
    return dw_visible_positions(scan->queries->first + row, scan->queries->window);
}

/* Raw scores of the keys of a block, in s->w, to weights that count what each of the rows t0 .. t0 + rows - 1 sees. Returns 0
   when a score is out of range. */
static int weigh_block(dw_scan *scan, const scratch *s, int64_t kv_head, dw_pos start, int64_t t0, int64_t rows)
{
    for (int64_t t = 0; t < rows; t++) {
        const uint64_t mask = dw_key_mask(dw_visible_keys(visible(scan, t0 + t), start));
        for (int64_t g = 0; g < scan->group; g++) {
            const int64_t i = t * scan->group + g;
            float *w = s->w + i * DW_BLOCK;
            float maxima[DW_LANES];
            const float top = scan->kernels->weights(w, w, scan->scale, mask, &s->exponent[i], &s->sum[i], maxima);
            if (fabsf(top * scan->scale) < (float)DW_MAX_SCORE_BITS) continue;
            atomic_store(&scan->bad_head, kv_head * scan->group + g);
            return 0;
        }
    }
    return 1;
}

/* One block for the rows t0 .. t0 + rows - 1, all of which see some of it. s->q starts at row t0. */
static void scan_block(dw_scan *scan, const scratch *s, const float *q, int64_t kv_head, int64_t slice, dw_block_slot block,
                       int64_t t0, int64_t rows)
{
    const dw_shard_config *shape = dw_shard_shape(scan->shard);
    const int d = (int)scan->head_dim;
    const int vectors = (int)(rows * scan->group);
    const dw_pos start = dw_shard_block_start(scan->shard, block);
    const int first = dw_visible_keys(visible(scan, t0), start).first;          /* the first row sees furthest back, */
    const int last = dw_visible_keys(visible(scan, t0 + rows - 1), start).last; /* the last one furthest on */

    scan->kernels->scores[shape->key_type](s->w, q, d, vectors, dw_shard_keys(scan->shard, scan->layer, kv_head, block), d);
    if (!weigh_block(scan, s, kv_head, start, t0, rows)) return;
    scan->kernels->values[shape->value_type](s->o, s->w, vectors, dw_shard_values(scan->shard, scan->layer, kv_head, block), d,
                                             first, last);
    for (int i = 0; i < vectors; i++) {
        int64_t *partial = partial_at(scan, slice, t0 + i / scan->group, kv_head * scan->group + i % scan->group);
        dw_partial_add(scan->kernels, partial, d + 1, s->exponent[i], s->o + (int64_t)i * d, s->sum[i],
                       scan->value_exponent[kv_head]);
    }
}

static int64_t rows_of_tile(const dw_scan *scan, int64_t tile)
{
    return dw_smaller(scan->queries->rows - tile * scan->tile_rows, scan->tile_rows);
}

/* Blocks that some row of a tile sees. */
static dw_block_range blocks_of_tile(const dw_scan *scan, int64_t tile)
{
    const int64_t t0 = tile * scan->tile_rows;
    const dw_pos first = visible(scan, t0).first;
    const dw_pos last = visible(scan, t0 + rows_of_tile(scan, tile) - 1).last;
    return dw_visible_blocks((dw_visible){first, last}, scan->shard);
}

static void scan_task(void *context, int64_t task, int thread)
{
    dw_scan *scan = context;
    const scratch *s = &scan->thread[thread];
    const int64_t tile = task / (scan->kv_heads * scan->slices);
    const int64_t kv_head = task / scan->slices % scan->kv_heads;
    const int64_t slice = task % scan->slices;
    const int64_t t0 = tile * scan->tile_rows;
    const int64_t rows = rows_of_tile(scan, tile);
    const dw_block_range range = blocks_of_tile(scan, tile);
    const int64_t blocks = range.end - range.first;

    for (int64_t t = 0; t < rows; t++) {
        const float *q = scan->queries->q + (t0 + t) * scan->queries->stride + kv_head * scan->group * scan->head_dim;
        memcpy(s->q + t * scan->group * scan->head_dim, q, (size_t)(scan->group * scan->head_dim) * sizeof *q);
        for (int64_t i = 0; i < scan->group; i++) {
            dw_partial_clear(partial_at(scan, slice, t0 + t, kv_head * scan->group + i), scan->head_dim + 1);
        }
    }
    for (int64_t b = blocks * slice / scan->slices; b < blocks * (slice + 1) / scan->slices; b++) {
        const dw_block_slot block = {range.first + b};
        const dw_pos start = dw_shard_block_start(scan->shard, block);
        const int64_t from = dw_larger(start - (scan->queries->first + t0), 0); /* rows in front of the block see none of it, */
        int64_t to = rows;
        while (visible(scan, t0 + to - 1).first >= start + DW_BLOCK) to--; /* nor do rows whose window begins behind it */
        scan_block(scan, s, s->q + from * scan->group * scan->head_dim, kv_head, slice, block, t0 + from, to - from);
    }
}

static void merge_task(void *context, int64_t row, int thread)
{
    dw_scan *scan = context;
    (void)thread;
    for (int64_t head = 0; head < scan->heads; head++) {
        for (int64_t slice = 1; slice < scan->slices; slice++) {
            dw_partial_merge(partial_at(scan, 0, row, head), partial_at(scan, slice, row, head), scan->head_dim + 1);
        }
    }
}

dw_status dw_scan_dense(dw_scan *scan, const dw_shard *shard, int64_t layer, const dw_queries *queries,
                        const int32_t *value_exponent, int64_t *partials, dw_error *err)
{
    const int64_t wanted = (int64_t)TASKS_PER_THREAD * dw_pool_threads(scan->pool);
    dw_block_range range;
    int64_t tasks;
    scan->shard = shard;
    scan->layer = layer;
    scan->queries = queries;
    scan->value_exponent = value_exponent;
    scan->partials = partials;
    scan->tiles = (queries->rows + scan->tile_rows - 1) / scan->tile_rows;
    tasks = scan->tiles * scan->kv_heads;
    range = blocks_of_tile(scan, scan->tiles - 1); /* without a window the longest */
    scan->slices = dw_pool_threads(scan->pool) == 1 ? 1 : (wanted + tasks - 1) / tasks;
    scan->slices = dw_smaller(scan->slices, (range.end - range.first) / MIN_SLICE_BLOCKS);
    if ((scan->slices - 1) * queries->rows > scan->max_slice_rows) scan->slices = scan->max_slice_rows / queries->rows + 1;
    if (scan->slices < 1) scan->slices = 1;
    atomic_store(&scan->bad_head, -1);

    dw_pool_run(scan->pool, tasks * scan->slices, scan_task, scan);
    if (scan->slices > 1) dw_pool_run(scan->pool, queries->rows, merge_task, scan);
    if (atomic_load(&scan->bad_head) >= 0) {
        return dw_fail(err, DW_RUNTIME, "layer %lld, head %lld: attention score is not a number or out of range",
                       (long long)layer, (long long)atomic_load(&scan->bad_head));
    }
    return DW_OK;
}
