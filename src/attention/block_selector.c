#include "attention/block_selector.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "attention/ranked.h"
#include "base/integers.h"
#include "base/memory.h"

enum { PARTS = DW_BLOCK / DW_SELECTED_BLOCK };

struct dw_block_selector {
    const dw_kernels *kernels;
    dw_pool *pool;
    const dw_proposal_shape *shape;
    int64_t kv_heads, group, head_dim;
    int64_t most; /* blocks of the largest budget */
    int64_t local_blocks;
    int64_t section_bytes;
    int ranks, rank;
    float *means;          /* [layers][kv_heads][local_blocks][PARTS][head_dim] */
    unsigned char *is_set; /* [layers][kv_heads][local_blocks] a bit for each part */
    float *query;          /* [kv_heads][head_dim] sum of the group's queries */
    dw_ranked *found;      /* [kv_heads][local_blocks * PARTS] */
    dw_ranked *merged;     /* [most] */

    /* The row at work. */
    const dw_shard *shard;
    int64_t layer;
    dw_visible visible;
    char *message;
    atomic_llong bad_head;
};

static dw_status create_parts(dw_block_selector *s, int64_t layers, dw_error *err)
{
    const int64_t blocks = layers * s->kv_heads * s->local_blocks;
    DW_TRY(dw_alloc_bytes((void **)&s->means, blocks, PARTS * s->head_dim * (int64_t)sizeof *s->means, "block means", err));
    DW_TRY(DW_ALLOC(&s->is_set, blocks, "block means", err));
    DW_TRY(DW_ALLOC(&s->query, s->kv_heads * s->head_dim, "block selection", err));
    DW_TRY(DW_ALLOC(&s->found, s->kv_heads * s->local_blocks * PARTS, "block selection", err));
    return DW_ALLOC(&s->merged, s->most, "block selection", err);
}

dw_status dw_block_selector_create(dw_block_selector **out, const dw_kernels *kernels, dw_pool *pool,
                                   const dw_shard_config *config, const dw_proposal_shape *shape, dw_error *err)
{
    dw_block_selector *s;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&s, 1, "block selection", err));
    s->kernels = kernels;
    s->pool = pool;
    s->shape = shape;
    s->kv_heads = config->kv_heads;
    s->group = shape->group;
    s->head_dim = config->head_dim;
    s->most = shape->keys / DW_SELECTED_BLOCK;
    s->local_blocks = dw_shard_most_blocks(config);
    s->section_bytes = dw_ranked_bytes(s->most);
    s->ranks = config->ranks;
    s->rank = config->rank;
    status = create_parts(s, config->layers, err);
    if (status != DW_OK) {
        dw_block_selector_destroy(s);
        return status;
    }
    *out = s;
    return DW_OK;
}

void dw_block_selector_destroy(dw_block_selector *s)
{
    if (s == NULL) return;
    dw_free(s->means);
    dw_free(s->is_set);
    dw_free(s->query);
    dw_free(s->found);
    dw_free(s->merged);
    dw_free(s);
}

static int64_t block_index(const dw_block_selector *s, int64_t layer, int64_t kv_head, int64_t block)
{
    return (layer * s->kv_heads + kv_head) * s->local_blocks + block;
}

void dw_block_selector_forget(dw_block_selector *s, int64_t layer, dw_pos first, int64_t count)
{
    for (dw_pos block = first / DW_BLOCK; block <= (first + count - 1) / DW_BLOCK; block++) {
        if (block % s->ranks != s->rank) continue;
        for (int64_t g = 0; g < s->kv_heads; g++) s->is_set[block_index(s, layer, g, block / s->ranks)] = 0;
    }
}

int64_t dw_block_selector_capacity(const dw_block_selector *s)
{
    return s->kv_heads * s->section_bytes;
}

/* Sum in key order, times 1/16. */
static void find_mean(const dw_block_selector *s, int64_t kv_head, dw_block_slot slot, int64_t part, float *mean)
{
    const dw_shard_config *config = dw_shard_shape(s->shard);
    const char *keys = dw_shard_keys(s->shard, s->layer, kv_head, slot);
    const int64_t bytes = dw_types[config->key_type].bytes;
    float numbers[DW_SELECTED_BLOCK];
    for (int64_t c = 0; c < s->head_dim; c++) {
        float sum = 0.0f;
        dw_cache_widen(numbers, keys + (c * DW_BLOCK + part * DW_SELECTED_BLOCK) * bytes, DW_SELECTED_BLOCK, config->key_type);
        for (int j = 0; j < DW_SELECTED_BLOCK; j++) sum += numbers[j];
        mean[c] = sum * (1.0f / DW_SELECTED_BLOCK);
    }
}

/* Of 16 keys that are all stored. Only one task asks for a KV head. */
static const float *mean_of(const dw_block_selector *s, int64_t kv_head, dw_block_slot slot, int64_t part)
{
    const int64_t index = block_index(s, s->layer, kv_head, slot.index);
    float *mean = s->means + (index * PARTS + part) * s->head_dim;
    if ((s->is_set[index] >> part & 1) == 0) find_mean(s, kv_head, slot, part, mean);
    s->is_set[index] |= (unsigned char)(1 << part);
    return mean;
}

/* As many blocks as the largest budget of the group's heads holds. */
static int64_t blocks_of(const dw_block_selector *s, int64_t kv_head)
{
    int64_t keys = 0;
    for (int64_t i = 0; i < s->group; i++) keys = dw_larger(keys, s->shape->limit[kv_head * s->group + i]);
    return keys / DW_SELECTED_BLOCK;
}

static void select_task(void *context, int64_t kv_head, int thread)
{
    dw_block_selector *s = context;
    dw_ranked_list *out = (dw_ranked_list *)(void *)(s->message + kv_head * s->section_bytes);
    dw_ranked *found = s->found + kv_head * s->local_blocks * PARTS;
    const float *q = s->query + kv_head * s->head_dim;
    const dw_block_range blocks = dw_visible_blocks(s->visible, s->shard);
    int64_t count = 0;
    (void)thread;
    for (int64_t b = blocks.first; b < blocks.end; b++) {
        const dw_pos start = dw_shard_block_start(s->shard, (dw_block_slot){b});
        for (int64_t part = 0; part < PARTS; part++) {
            const dw_pos first = start + part * DW_SELECTED_BLOCK;
            float score;
            if (first < s->visible.first || first + DW_SELECTED_BLOCK - 1 > s->visible.last) continue;
            s->kernels->key_scores(&score, q, mean_of(s, kv_head, (dw_block_slot){b}, part), s->head_dim, 1, (int)s->head_dim);
            if (!isfinite(score)) atomic_store(&s->bad_head, kv_head);
            found[count++] = (dw_ranked){first, score, 0};
        }
    }
    dw_ranked_select(out, s->most, blocks_of(s, kv_head), found, count);
}

/* q: [heads][d] to sums of groups. */
static void sum_queries(const dw_block_selector *s, const float *q)
{
    for (int64_t g = 0; g < s->kv_heads; g++) {
        for (int64_t c = 0; c < s->head_dim; c++) {
            float sum = 0.0f;
            for (int64_t i = 0; i < s->group; i++) sum += q[(g * s->group + i) * s->head_dim + c];
            s->query[g * s->head_dim + c] = sum;
        }
    }
}

dw_status dw_block_select(dw_block_selector *s, const dw_shard *shard, int64_t layer, dw_visible visible, const float *q,
                          void *message, dw_error *err)
{
    s->shard = shard;
    s->layer = layer;
    s->visible = visible;
    s->message = message;
    atomic_store(&s->bad_head, -1);
    sum_queries(s, q);
    dw_pool_run(s->pool, s->kv_heads, select_task, s);
    if (atomic_load(&s->bad_head) < 0) return DW_OK;
    return dw_fail(err, DW_RUNTIME, "layer %lld, KV head %lld: the score of a block is not a number or out of range",
                   (long long)layer, (long long)atomic_load(&s->bad_head));
}

dw_status dw_block_selection_merge(void *context, void *mine, int64_t *mine_bytes, int64_t capacity, const void *theirs,
                                   int64_t theirs_bytes, dw_error *err)
{
    const dw_block_selector *s = context;
    (void)capacity;
    if (*mine_bytes != theirs_bytes) return dw_fail(err, DW_RUNTIME, "a selection of another rank has the wrong length");
    for (int64_t g = 0; g < s->kv_heads; g++) {
        dw_ranked_merge((dw_ranked_list *)(void *)((char *)mine + g * s->section_bytes),
                        (const dw_ranked_list *)(const void *)((const char *)theirs + g * s->section_bytes), blocks_of(s, g),
                        s->merged);
    }
    return DW_OK;
}

int64_t dw_block_selection_positions(const dw_block_selector *s, const void *message, int64_t head, dw_pos *positions)
{
    const dw_ranked_list *from = (const dw_ranked_list *)(const void *)((const char *)message +
                                                                        head / s->group * s->section_bytes);
    const int64_t blocks = dw_smaller(from->count, s->shape->limit[head] / DW_SELECTED_BLOCK);
    int64_t count = 0;
    for (int64_t n = 0; n < blocks; n++) {
        for (int64_t j = 0; j < DW_SELECTED_BLOCK; j++) positions[count++] = from->best[n].position + j;
    }
    qsort(positions, (size_t)count, sizeof *positions, dw_pos_compare);
    return count;
}
