#include "attention/discovery.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "attention/scan.h"
#include "base/memory.h"

/* Tasks: (kv head) x (slice of the shard's blocks). Every query head keeps a heap of its best keys in each slice, worst at the root, so
   that most blocks are dismissed by one comparison with their largest score. */
enum { TASKS_PER_THREAD = 4, MIN_SLICE_BLOCKS = 4 };

struct dw_discovery {
    const dw_kernels *kernels;
    dw_pool *pool;
    const dw_proposal_shape *shape;
    dw_policy policy;
    int64_t head_dim;
    int64_t max_slices;
    int64_t best_capacity; /* candidates of one head over all slices */
    float scale;
    float *scores;        /* [threads][2][G][DW_BLOCK] raw scores and weights of one block */
    dw_candidate *best;   /* [heads][best_capacity] heaps of the slices, back to back; in the end the best keys in order */
    int64_t *best_count;  /* [heads][max_slices] */
    int64_t *mass;        /* [heads][max_slices][DW_MASS_WORDS] */
    float *key_norm;      /* [kv_heads][max_slices] */
    dw_pos *forced;       /* anchor and window positions on this rank, ascending */
    float *forced_scores; /* [heads][forced_count] */

    /* The row at work. */
    const dw_shard *shard;
    int64_t layer;
    dw_pos position;
    const float *q;
    int64_t slices;
    int64_t blocks;
    int64_t forced_count;
    atomic_llong bad_head;
};

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

dw_status dw_discovery_create(dw_discovery **out, const dw_kernels *kernels, dw_pool *pool, const dw_shard_config *config,
                              const dw_policy *policy, const dw_proposal_shape *shape, dw_error *err)
{
    const int64_t heads = shape->kv_heads * shape->group;
    const int64_t local_keys = ((config->context / DW_BLOCK) / config->ranks + 2) * DW_BLOCK; /* at most, on any rank */
    const int64_t forced = smaller(smaller(policy->anchor, config->context) + smaller(policy->window, config->context), config->context);
    dw_discovery *d;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&d, 1, "discovery scratch", err));
    d->kernels = kernels;
    d->pool = pool;
    d->shape = shape;
    d->policy = *policy;
    d->head_dim = config->head_dim;
    d->scale = dw_score_scale(config->head_dim);
    d->max_slices = (int64_t)TASKS_PER_THREAD * dw_pool_threads(pool);
    d->best_capacity = smaller(d->max_slices * shape->keys, local_keys) + 1;
    DW_TRY_GOTO(status, DW_ALLOC(&d->scores, 2 * dw_pool_threads(pool) * shape->group * DW_BLOCK, "discovery scratch", err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&d->best, heads * d->best_capacity, "discovery scratch", err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&d->best_count, heads * d->max_slices, "discovery scratch", err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&d->mass, heads * d->max_slices * DW_MASS_WORDS, "discovery scratch", err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&d->key_norm, shape->kv_heads * d->max_slices, "discovery scratch", err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&d->forced, forced, "discovery scratch", err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&d->forced_scores, heads * forced, "discovery scratch", err), failed);
    *out = d;
    return DW_OK;
failed:
    dw_discovery_destroy(d);
    return status;
}

void dw_discovery_destroy(dw_discovery *d)
{
    if (d == NULL) return;
    dw_free(d->scores);
    dw_free(d->best);
    dw_free(d->best_count);
    dw_free(d->mass);
    dw_free(d->key_norm);
    dw_free(d->forced);
    dw_free(d->forced_scores);
    dw_free(d);
}

/* Moves heap[i] down until no child is worse than its parent. */
static void sift_down(dw_candidate *heap, int64_t count, int64_t i)
{
    for (;;) {
        int64_t worst = i;
        for (int64_t child = 2 * i + 1; child <= 2 * i + 2 && child < count; child++) {
            if (dw_candidate_better(&heap[worst], &heap[child])) worst = child;
        }
        if (worst == i) return;
        const dw_candidate moved = heap[i];
        heap[i] = heap[worst];
        heap[worst] = moved;
        i = worst;
    }
}

static void sift_up(dw_candidate *heap, int64_t i)
{
    while (i > 0 && dw_candidate_better(&heap[(i - 1) / 2], &heap[i])) {
        const dw_candidate moved = heap[i];
        heap[i] = heap[(i - 1) / 2];
        heap[(i - 1) / 2] = moved;
        i = (i - 1) / 2;
    }
}

static void offer(dw_candidate *heap, int64_t *count, int64_t limit, dw_candidate key)
{
    if (*count < limit) {
        heap[*count] = key;
        sift_up(heap, (*count)++);
    } else if (key.score > heap[0].score) { /* positions ascend: an equal score comes too late */
        heap[0] = key;
        sift_down(heap, limit, 0);
    }
}

/* Offers the visible keys of one block to a heap of at most `limit`. top: the largest of their scores. */
static void offer_block(dw_candidate *heap, int64_t *count, int64_t limit, const float *scores, float top, dw_pos start, int64_t visible)
{
    if (limit == 0) return;
    if (*count == limit && top <= heap[0].score) return;
    for (int64_t from = 0; from < visible; from += DW_LANES) {
        const int64_t end = smaller(from + DW_LANES, visible);
        const float bar = *count == limit ? heap[0].score : -INFINITY;
        int any = *count < limit;
        for (int64_t j = from; j < end; j++) any |= scores[j] > bar; /* vectorised: most groups end here */
        if (!any) continue;
        for (int64_t j = from; j < end; j++) offer(heap, count, limit, (dw_candidate){.position = start + j, .score = scores[j]});
    }
}

static int is_forced(const dw_discovery *d, dw_pos position)
{
    return position < d->policy.anchor || position > d->position - d->policy.window;
}

static int64_t list_forced(dw_discovery *d)
{
    int64_t count = 0;
    for (int64_t b = 0; b < d->blocks; b++) {
        const dw_pos start = dw_shard_block_start(d->shard, (dw_block_slot){b});
        const dw_pos end = smaller(start + DW_BLOCK, d->position + 1);
        if (start >= d->policy.anchor && end <= d->position - d->policy.window + 1) continue;
        for (dw_pos p = start; p < end; p++) {
            if (is_forced(d, p)) d->forced[count++] = p;
        }
    }
    return count;
}

/* Keeps the scores of the forced positions of one block, [G][DW_BLOCK] at scores. */
static void keep_forced_scores(const dw_discovery *d, int64_t kv_head, const float *scores, dw_pos start, int64_t visible)
{
    const int64_t group = d->shape->group;
    int64_t low = 0;
    int64_t high = d->forced_count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (d->forced[middle] < start) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    for (int64_t n = low; n < d->forced_count && d->forced[n] < start + visible; n++) {
        for (int64_t i = 0; i < group; i++) {
            d->forced_scores[(kv_head * group + i) * d->forced_count + n] = scores[i * DW_BLOCK + (d->forced[n] - start)];
        }
    }
}

/* First candidate of a slice's heap in a head's array, and the most it may hold. */
static int64_t heap_offset(const dw_discovery *d, int64_t slice)
{
    int64_t offset = 0;
    for (int64_t s = 0; s < slice; s++) {
        const int64_t blocks = d->blocks * (s + 1) / d->slices - d->blocks * s / d->slices;
        offset += smaller(d->shape->keys, blocks * DW_BLOCK);
    }
    return offset;
}

static void discover_task(void *context, int64_t task, int thread)
{
    dw_discovery *d = context;
    const dw_shard_config *config = dw_shard_shape(d->shard);
    const int64_t group = d->shape->group;
    const int64_t kv_head = task / d->slices;
    const int64_t slice = task % d->slices;
    const int64_t offset = heap_offset(d, slice);
    const int64_t limit = heap_offset(d, slice + 1) - offset;
    float *scores = d->scores + thread * 2 * group * DW_BLOCK;
    float *weights = scores + group * DW_BLOCK;
    float *key_norm = &d->key_norm[kv_head * d->max_slices + slice];

    *key_norm = 0.0f;
    for (int64_t i = 0; i < group; i++) {
        const int64_t at = (kv_head * group + i) * d->max_slices + slice;
        d->best_count[at] = 0;
        dw_partial_clear(d->mass + at * DW_MASS_WORDS, 1);
    }
    for (int64_t b = d->blocks * slice / d->slices; b < d->blocks * (slice + 1) / d->slices; b++) {
        const dw_block_slot block = {b};
        const dw_pos start = dw_shard_block_start(d->shard, block);
        const int64_t visible = smaller(DW_BLOCK, d->position + 1 - start);
        const uint64_t mask = visible == DW_BLOCK ? UINT64_MAX : ((uint64_t)1 << visible) - 1;
        const float norm = dw_shard_key_norm(d->shard, d->layer, kv_head, block, visible);
        if (norm > *key_norm) *key_norm = norm;
        d->kernels->scores[config->key_type](scores, d->q + kv_head * group * d->head_dim, d->head_dim, (int)group,
                                             dw_shard_keys(d->shard, d->layer, kv_head, block), (int)d->head_dim);
        for (int64_t i = 0; i < group; i++) {
            const int64_t head = kv_head * group + i;
            const int64_t at = head * d->max_slices + slice;
            int32_t exponent;
            float sum;
            const float top = d->kernels->weights(weights, scores + i * DW_BLOCK, d->scale, mask, &exponent, &sum);
            if (!(fabsf(top * d->scale) < (float)DW_MAX_SCORE_BITS)) {
                atomic_store(&d->bad_head, head);
                return;
            }
            dw_partial_add(d->kernels, d->mass + at * DW_MASS_WORDS, 1, exponent, NULL, sum, 0);
            offer_block(d->best + head * d->best_capacity + offset, &d->best_count[at], limit, scores + i * DW_BLOCK, top, start,
                        visible);
        }
        keep_forced_scores(d, kv_head, scores, start, visible);
    }
}

static int compare_candidates(const void *a, const void *b)
{
    if (dw_candidate_better(a, b)) return -1;
    return dw_candidate_better(b, a) ? 1 : 0;
}

/* Joins the slices of one head: their candidates become one list in order, at most k, their masses one sum, both in slice 0's place. */
static void join_task(void *context, int64_t head, int thread)
{
    dw_discovery *d = context;
    dw_candidate *best = d->best + head * d->best_capacity;
    int64_t *count = d->best_count + head * d->max_slices;
    int64_t *mass = d->mass + head * d->max_slices * DW_MASS_WORDS;
    int64_t total = count[0];
    (void)thread;
    for (int64_t s = 1; s < d->slices; s++) {
        memmove(best + total, best + heap_offset(d, s), (size_t)count[s] * sizeof *best);
        total += count[s];
        dw_partial_merge(mass, mass + s * DW_MASS_WORDS, 1);
    }
    qsort(best, (size_t)total, sizeof *best, compare_candidates);
    count[0] = smaller(total, d->shape->keys);
}

static const char *value_row(const dw_discovery *d, int64_t kv_head, dw_pos position)
{
    const dw_block_slot block = {position / DW_BLOCK / dw_shard_shape(d->shard)->ranks};
    const char *values = dw_shard_values(d->shard, d->layer, kv_head, block);
    return values + position % DW_BLOCK * d->shape->value_bytes;
}

/* Copies the V rows of the positions that a section names into it. They lie all over the shard: asked for together first. */
static void fill_values(const dw_discovery *d, int64_t kv_head, const dw_proposal *section, const dw_pos *positions, int64_t count)
{
    for (int64_t n = 0; n < count; n++) {
        const char *row = value_row(d, kv_head, positions[n]);
        for (int64_t line = 0; line < d->shape->value_bytes; line += 64) __builtin_prefetch(row + line);
    }
    for (int64_t n = 0; n < count; n++) {
        char *row = section->values + n * d->shape->value_stride;
        section->value_positions[n] = positions[n];
        memcpy(row, value_row(d, kv_head, positions[n]), (size_t)d->shape->value_bytes);
        memset(row + d->shape->value_bytes, 0, (size_t)(d->shape->value_stride - d->shape->value_bytes));
    }
}

/* Writes the section of one kv head; returns its length. counts: [G] scratch. */
static int64_t write_section(const dw_discovery *d, int64_t kv_head, void *at)
{
    const int64_t group = d->shape->group;
    int64_t *counts = (int64_t *)at + 4 + group * DW_MASS_WORDS; /* their place in the section */
    int64_t values;
    dw_proposal section;
    dw_candidate *top;
    for (int64_t i = 0; i < group; i++) counts[i] = d->best_count[(kv_head * group + i) * d->max_slices];
    section = dw_proposal_begin(d->shape, at, d->forced_count, counts, 0);
    *section.key_norm = 0.0;
    for (int64_t s = 0; s < d->slices; s++) {
        const double norm = (double)d->key_norm[kv_head * d->max_slices + s];
        if (norm > *section.key_norm) *section.key_norm = norm;
    }
    memcpy(section.forced, d->forced, (size_t)d->forced_count * sizeof *d->forced);
    memset(section.forced_scores, 0, (size_t)((char *)section.top - (char *)section.forced_scores));
    top = section.top;
    for (int64_t i = 0; i < group; i++) {
        const int64_t head = kv_head * group + i;
        memcpy(section.mass + i * DW_MASS_WORDS, d->mass + head * d->max_slices * DW_MASS_WORDS, DW_MASS_WORDS * sizeof(int64_t));
        memcpy(section.forced_scores + i * d->forced_count, d->forced_scores + head * d->forced_count,
               (size_t)d->forced_count * sizeof(float));
        memcpy(top, d->best + head * d->best_capacity, (size_t)counts[i] * sizeof *top);
        top += counts[i];
    }
    values = dw_proposal_positions(d->shape, &section, d->shape->positions);
    section = dw_proposal_begin(d->shape, at, d->forced_count, counts, values);
    fill_values(d, kv_head, &section, d->shape->positions, values);
    return *section.bytes;
}

dw_status dw_discover(dw_discovery *d, const dw_shard *shard, int64_t layer, dw_pos position, const float *q, void *message,
                      int64_t *bytes, dw_error *err)
{
    const int64_t heads = d->shape->kv_heads * d->shape->group;
    char *at = message;
    d->shard = shard;
    d->layer = layer;
    d->position = position;
    d->q = q;
    d->blocks = dw_shard_blocks(shard, position + 1);
    d->slices = (d->max_slices + d->shape->kv_heads - 1) / d->shape->kv_heads;
    if (dw_pool_threads(d->pool) == 1 || d->blocks < 2 * MIN_SLICE_BLOCKS) d->slices = 1;
    if (d->slices > d->blocks / MIN_SLICE_BLOCKS && d->slices > 1) d->slices = d->blocks / MIN_SLICE_BLOCKS;
    d->forced_count = list_forced(d);
    atomic_store(&d->bad_head, -1);

    dw_pool_run(d->pool, d->shape->kv_heads * d->slices, discover_task, d);
    if (atomic_load(&d->bad_head) >= 0) {
        return dw_fail(err, DW_RUNTIME, "layer %lld, head %lld: attention score is not a number or out of range", (long long)layer,
                       (long long)atomic_load(&d->bad_head));
    }
    dw_pool_run(d->pool, heads, join_task, d);
    for (int64_t g = 0; g < d->shape->kv_heads; g++) at += write_section(d, g, at);
    *bytes = at - (char *)message;
    return DW_OK;
}
