#include "attention/tail.h"

#include <math.h>
#include <string.h>

#include "attention/partial.h"
#include "attention/scan.h"
#include "attention/visible.h"
#include "base/memory.h"

/* Tasks: (kv head) x (slice of the shard's blocks). */
enum { TASKS_PER_THREAD = 4, MIN_SLICE_BLOCKS = 4 };

/* Of one thread. */
typedef struct {
    float *scores; /* [group][DW_BLOCK] */
    float *mean;   /* [head_dim] of a block that the row sees a part of */
    float *o;      /* [head_dim] */
} scratch;

struct dw_tail {
    const dw_kernels *kernels;
    dw_pool *pool;
    int64_t heads, kv_heads, group, head_dim;
    int64_t local_blocks;
    int64_t max_slices;
    int ranks, rank;
    int64_t bytes;
    float scale;
    scratch *thread;
    float *means;          /* [layers][kv_heads][local_blocks][head_dim] of whole blocks */
    unsigned char *is_set; /* [layers][kv_heads][local_blocks] */
    int64_t *partials;     /* [heads][max_slices][words] */

    /* The row at work. */
    const dw_shard *shard;
    int64_t layer;
    dw_visible visible;
    dw_block_range blocks;
    int64_t slices;
    int64_t anchor;
    int64_t recent; /* the last so many positions are in the set */
    const float *q;
    const dw_tail_cut *cuts;
    const int32_t *value_exponent;
};

static dw_status create_parts(dw_tail *t, int64_t layers, dw_error *err)
{
    const int64_t words = dw_partial_words(t->head_dim + 1);
    const int64_t blocks = layers * t->kv_heads * t->local_blocks;
    DW_TRY(DW_ALLOC(&t->thread, dw_pool_threads(t->pool), "attention scratch", err));
    for (int i = 0; i < dw_pool_threads(t->pool); i++) {
        DW_TRY(DW_ALLOC(&t->thread[i].scores, t->group * DW_BLOCK, "attention scratch", err));
        DW_TRY(DW_ALLOC(&t->thread[i].mean, t->head_dim, "attention scratch", err));
        DW_TRY(DW_ALLOC(&t->thread[i].o, t->head_dim, "attention scratch", err));
    }
    DW_TRY(dw_alloc_bytes((void **)&t->means, blocks, t->head_dim * (int64_t)sizeof *t->means, "block means", err));
    DW_TRY(DW_ALLOC(&t->is_set, blocks, "block means", err));
    DW_TRY(DW_ALLOC(&t->partials, t->heads * t->max_slices * words, "partial sums", err));
    t->bytes = blocks * (t->head_dim * (int64_t)sizeof *t->means + 1) +
               t->heads * t->max_slices * words * (int64_t)sizeof(int64_t);
    return DW_OK;
}

dw_status dw_tail_create(dw_tail **out, const dw_kernels *kernels, dw_pool *pool, const dw_shard_config *config, int64_t heads,
                         dw_error *err)
{
    dw_tail *t;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&t, 1, "attention scratch", err));
    t->kernels = kernels;
    t->pool = pool;
    t->heads = heads;
    t->kv_heads = config->kv_heads;
    t->group = heads / config->kv_heads;
    t->head_dim = config->head_dim;
    t->ranks = config->ranks;
    t->rank = config->rank;
    t->scale = dw_score_scale(config->head_dim);
    t->local_blocks = dw_shard_most_blocks(config);
    t->max_slices = dw_pool_threads(pool) == 1 ? 1 : (int64_t)TASKS_PER_THREAD * dw_pool_threads(pool);
    status = create_parts(t, config->layers, err);
    if (status != DW_OK) {
        dw_tail_destroy(t);
        return status;
    }
    *out = t;
    return DW_OK;
}

void dw_tail_destroy(dw_tail *t)
{
    if (t == NULL) return;
    for (int i = 0; t->thread != NULL && i < dw_pool_threads(t->pool); i++) {
        dw_free(t->thread[i].scores);
        dw_free(t->thread[i].mean);
        dw_free(t->thread[i].o);
    }
    dw_free(t->thread);
    dw_free(t->means);
    dw_free(t->is_set);
    dw_free(t->partials);
    dw_free(t);
}

int64_t dw_tail_bytes(const dw_tail *t)
{
    return t->bytes;
}

/* ---- means ---- */

static int64_t block_index(const dw_tail *t, int64_t layer, int64_t kv_head, int64_t block)
{
    return (layer * t->kv_heads + kv_head) * t->local_blocks + block;
}

void dw_tail_forget(dw_tail *t, int64_t layer, dw_pos first, int64_t count)
{
    for (dw_pos block = first / DW_BLOCK; block <= (first + count - 1) / DW_BLOCK; block++) {
        if (block % t->ranks != t->rank) continue;
        for (int64_t g = 0; g < t->kv_heads; g++) t->is_set[block_index(t, layer, g, block / t->ranks)] = 0;
    }
}

/* Weights 1 for the keys that count: their sum in key order. */
static void find_mean(const dw_tail *t, int64_t kv_head, dw_block_slot slot, dw_key_range keys, float *mean)
{
    const dw_type type = dw_shard_shape(t->shard)->value_type;
    const float share = 1.0f / (float)(keys.last - keys.first + 1);
    float ones[DW_BLOCK] = {0};
    for (int j = keys.first; j <= keys.last; j++) ones[j] = 1.0f;
    t->kernels->values[type](mean, ones, 1, dw_shard_values(t->shard, t->layer, kv_head, slot), (int)t->head_dim, keys.first,
                             keys.last);
    for (int64_t c = 0; c < t->head_dim; c++) mean[c] *= share;
}

/* Of the keys of a block that the row sees; kept for whole blocks. Only one task asks for a block. */
static const float *mean_of(const dw_tail *t, const scratch *s, int64_t kv_head, dw_block_slot slot, dw_key_range keys)
{
    const int64_t index = block_index(t, t->layer, kv_head, slot.index);
    float *kept = t->means + index * t->head_dim;
    if (keys.first > 0 || keys.last < DW_BLOCK - 1) {
        find_mean(t, kv_head, slot, keys, s->mean);
        return s->mean;
    }
    if (!t->is_set[index]) find_mean(t, kv_head, slot, keys, kept);
    t->is_set[index] = 1;
    return kept;
}

/* ---- sums ---- */

void dw_tail_cuts(const dw_proposal_shape *shape, void *message, dw_tail_cut *cuts)
{
    char *at = message;
    for (int64_t g = 0; g < shape->kv_heads; g++) {
        const dw_proposal section = dw_proposal_view(shape, at);
        const dw_candidate *top = section.top;
        for (int64_t i = 0; i < shape->group; i++) {
            const int64_t count = section.top_count[i];
            const int64_t limit = shape->limit[g * shape->group + i];
            dw_tail_cut *cut = &cuts[g * shape->group + i];
            *cut = (dw_tail_cut){.score = limit == 0 ? INFINITY : -INFINITY};
            if (count > 0 && count == limit) *cut = (dw_tail_cut){top[count - 1].position, top[count - 1].score, 0};
            top += count;
        }
        at += *section.bytes;
    }
}

/* The visible keys of a block that are in no set. */
static uint64_t left_out(const dw_tail *t, const dw_tail_cut *cut, const float *scores, dw_pos start, dw_key_range keys)
{
    uint64_t mask = 0;
    for (int j = keys.first; j <= keys.last; j++) {
        const dw_pos position = start + j;
        const int is_forced = position < t->anchor || position > t->visible.last - t->recent;
        const int is_better = scores[j] > cut->score || (scores[j] == cut->score && position <= cut->position);
        mask |= (uint64_t)(!is_forced && !is_better) << j;
    }
    return mask;
}

static int64_t slice_start(const dw_tail *t, int64_t slice)
{
    return t->blocks.first + (t->blocks.end - t->blocks.first) * slice / t->slices;
}

static void add_block(const dw_tail *t, const scratch *s, int64_t kv_head, int64_t slice, dw_block_slot slot)
{
    const int d = (int)t->head_dim;
    const int64_t words = dw_partial_words(d + 1);
    const dw_type type = dw_shard_shape(t->shard)->key_type;
    const dw_pos start = dw_shard_block_start(t->shard, slot);
    const dw_key_range keys = dw_visible_keys(t->visible, start);
    t->kernels->scores[type](s->scores, t->q + kv_head * t->group * d, d, (int)t->group,
                             dw_shard_keys(t->shard, t->layer, kv_head, slot), d);
    for (int64_t i = 0; i < t->group; i++) {
        const int64_t head = kv_head * t->group + i;
        float *scores = s->scores + i * DW_BLOCK;
        const uint64_t mask = left_out(t, &t->cuts[head], scores, start, keys);
        const float *mean;
        float maxima[DW_LANES];
        int32_t exponent;
        float sum;
        if (mask == 0) continue;
        t->kernels->weights(scores, scores, t->scale, mask, &exponent, &sum, maxima);
        mean = mean_of(t, s, kv_head, slot, keys);
        for (int c = 0; c < d; c++) s->o[c] = sum * mean[c];
        dw_partial_add(t->kernels, t->partials + (head * t->max_slices + slice) * words, d + 1, exponent, s->o, sum,
                       t->value_exponent[kv_head]);
    }
}

static void sum_task(void *context, int64_t task, int thread)
{
    const dw_tail *t = context;
    const int64_t kv_head = task / t->slices;
    const int64_t slice = task % t->slices;
    const int64_t words = dw_partial_words(t->head_dim + 1);
    for (int64_t i = 0; i < t->group; i++) {
        dw_partial_clear(t->partials + ((kv_head * t->group + i) * t->max_slices + slice) * words, t->head_dim + 1);
    }
    for (int64_t b = slice_start(t, slice); b < slice_start(t, slice + 1); b++) {
        add_block(t, &t->thread[thread], kv_head, slice, (dw_block_slot){b});
    }
}

void dw_tail_sum(dw_tail *t, const dw_shard *shard, int64_t layer, const dw_policy *policy, dw_visible visible, const float *q,
                 const dw_tail_cut *cuts, const int32_t *value_exponent, int64_t *partials)
{
    const int64_t channels = t->head_dim + 1;
    const int64_t words = dw_partial_words(channels);
    t->shard = shard;
    t->layer = layer;
    t->visible = visible;
    t->blocks = dw_visible_blocks(visible, shard);
    t->anchor = policy->anchor;
    t->recent = dw_policy_is_empty(policy, visible.first) ? 1 : policy->window; /* as in discovery */
    t->q = q;
    t->cuts = cuts;
    t->value_exponent = value_exponent;
    t->slices = dw_smaller(t->max_slices, (t->blocks.end - t->blocks.first) / MIN_SLICE_BLOCKS);
    if (t->slices < 1) t->slices = 1;
    dw_pool_run(t->pool, t->kv_heads * t->slices, sum_task, t);
    for (int64_t h = 0; h < t->heads; h++) {
        memcpy(partials + h * words, t->partials + h * t->max_slices * words, (size_t)words * sizeof *partials);
        for (int64_t s = 1; s < t->slices; s++) {
            dw_partial_merge(partials + h * words, t->partials + (h * t->max_slices + s) * words, channels);
        }
    }
}
