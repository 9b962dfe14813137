#include "attention/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/ranked.h"
#include "attention/scan.h"
#include "attention/visible.h"
#include "base/integers.h"
#include "base/memory.h"

struct dw_support {
    const dw_kernels *kernels;
    dw_pool *pool;
    int64_t kv_heads, group, heads, head_dim, keys;
    int64_t local_blocks;
    int64_t section_bytes;
    float scale;
    float **scores;    /* [threads] of [group][DW_BLOCK] */
    dw_ranked **found; /* [threads] of [local_blocks * DW_BLOCK] */
    dw_ranked *merged; /* [keys] */

    /* The call at work. */
    const dw_shard *shard;
    int64_t layer;
    int64_t window;
    dw_pos end;
    const dw_support_query *query;
    char *message;
};

static dw_status create_parts(dw_support *s, dw_error *err)
{
    const int threads = dw_pool_threads(s->pool);
    DW_TRY(DW_ALLOC(&s->scores, threads, "support scratch", err));
    DW_TRY(DW_ALLOC(&s->found, threads, "support scratch", err));
    for (int i = 0; i < threads; i++) {
        DW_TRY(DW_ALLOC(&s->scores[i], s->group * DW_BLOCK, "support scratch", err));
        DW_TRY(DW_ALLOC(&s->found[i], s->local_blocks * DW_BLOCK, "support scratch", err));
    }
    return DW_ALLOC(&s->merged, s->keys, "support scratch", err);
}

dw_status dw_support_create(dw_support **out, const dw_kernels *kernels, dw_pool *pool, const dw_shard_config *config,
                            int64_t heads, int64_t keys, dw_error *err)
{
    dw_support *s;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&s, 1, "support scratch", err));
    s->kernels = kernels;
    s->pool = pool;
    s->kv_heads = config->kv_heads;
    s->heads = heads;
    s->group = heads / config->kv_heads;
    s->head_dim = config->head_dim;
    s->keys = keys;
    s->local_blocks = dw_shard_most_blocks(config);
    s->section_bytes = dw_ranked_bytes(keys);
    s->scale = dw_score_scale(config->head_dim);
    status = create_parts(s, err);
    if (status != DW_OK) {
        dw_support_destroy(s);
        return status;
    }
    *out = s;
    return DW_OK;
}

void dw_support_destroy(dw_support *s)
{
    if (s == NULL) return;
    for (int i = 0; s->scores != NULL && i < dw_pool_threads(s->pool); i++) dw_free(s->scores[i]);
    for (int i = 0; s->found != NULL && i < dw_pool_threads(s->pool); i++) dw_free(s->found[i]);
    dw_free(s->scores);
    dw_free(s->found);
    dw_free(s->merged);
    dw_free(s);
}

int64_t dw_support_bytes(const dw_support *s)
{
    return s->kv_heads * s->section_bytes;
}

/* Largest weights of a block's keys over all rows and heads of the group, in bits. */
static void weigh_block(const dw_support *s, float *scores, int64_t kv_head, dw_block_slot slot, float *weight)
{
    const dw_type type = dw_shard_shape(s->shard)->key_type;
    const void *keys = dw_shard_keys(s->shard, s->layer, kv_head, slot);
    for (int j = 0; j < DW_BLOCK; j++) weight[j] = -INFINITY;
    for (int64_t r = 0; r < s->query->rows; r++) {
        s->kernels->scores[type](scores, s->query->q[r] + kv_head * s->group * s->head_dim, s->head_dim, (int)s->group, keys,
                                 (int)s->head_dim);
        for (int64_t i = 0; i < s->group; i++) {
            const float offset = s->query->offsets[r * s->heads + kv_head * s->group + i];
            for (int j = 0; j < DW_BLOCK; j++) {
                const float bits = scores[i * DW_BLOCK + j] * s->scale - offset;
                weight[j] = bits > weight[j] ? bits : weight[j];
            }
        }
    }
}

static void select_task(void *context, int64_t kv_head, int thread)
{
    const dw_support *s = context;
    dw_ranked_list *out = (dw_ranked_list *)(void *)(s->message + kv_head * s->section_bytes);
    dw_ranked *found = s->found[thread];
    const dw_pos last = s->query->position[s->query->rows - 1];
    const dw_visible visible = {dw_visible_positions(last, s->window).first, s->end - 1};
    const dw_block_range blocks = dw_visible_blocks(visible, s->shard);
    int64_t count = 0;
    for (int64_t b = blocks.first; b < blocks.end; b++) {
        const dw_pos start = dw_shard_block_start(s->shard, (dw_block_slot){b});
        const dw_key_range keys = dw_visible_keys(visible, start);
        float weight[DW_BLOCK];
        weigh_block(s, s->scores[thread], kv_head, (dw_block_slot){b}, weight);
        for (int j = keys.first; j <= keys.last; j++) found[count++] = (dw_ranked){start + j, weight[j], 0};
    }
    dw_ranked_select(out, s->keys, s->keys, found, count);
}

void dw_support_select(dw_support *s, const dw_shard *shard, int64_t layer, int64_t window, dw_pos end,
                       const dw_support_query *query, void *message)
{
    s->shard = shard;
    s->layer = layer;
    s->window = window;
    s->end = end;
    s->query = query;
    s->message = message;
    if (end <= dw_visible_positions(query->position[query->rows - 1], window).first) {
        memset(message, 0, (size_t)dw_support_bytes(s)); /* everything that is seen is recent */
        return;
    }
    dw_pool_run(s->pool, s->kv_heads, select_task, s);
}

void dw_support_merge(const dw_support *s, void *mine, const void *theirs)
{
    for (int64_t g = 0; g < s->kv_heads; g++) {
        dw_ranked_merge((dw_ranked_list *)(void *)((char *)mine + g * s->section_bytes),
                        (const dw_ranked_list *)(const void *)((const char *)theirs + g * s->section_bytes), s->keys,
                        s->merged);
    }
}

int64_t dw_support_positions(const dw_support *s, const void *message, int64_t kv_head, dw_pos *positions)
{
    const dw_ranked_list *from = (const dw_ranked_list *)(const void *)((const char *)message + kv_head * s->section_bytes);
    for (int64_t n = 0; n < from->count; n++) positions[n] = from->best[n].position;
    qsort(positions, (size_t)from->count, sizeof *positions, dw_pos_compare);
    return from->count;
}
