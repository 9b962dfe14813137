#include "attention/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/scan.h"
#include "attention/visible.h"
#include "base/integers.h"
#include "base/memory.h"

typedef struct {
    dw_pos position;
    float weight; /* bits */
    float unused; /* 0: no byte of a message is undefined */
} member;

/* Of one KV head. */
typedef struct {
    int64_t count;
    member best[]; /* [keys] */
} section;

struct dw_support {
    const dw_kernels *kernels;
    dw_pool *pool;
    int64_t kv_heads, group, heads, head_dim, keys;
    int64_t local_blocks;
    int64_t section_bytes;
    float scale;
    float **scores; /* [threads] of [group][DW_BLOCK] */
    member **found; /* [threads] of [local_blocks * DW_BLOCK] */
    char *merged;   /* a section */

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
    return dw_alloc_bytes((void **)&s->merged, s->section_bytes, 1, "support scratch", err);
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
    s->local_blocks = config->context / DW_BLOCK / config->ranks + 1;
    s->section_bytes = (int64_t)sizeof(section) + keys * (int64_t)sizeof(member);
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

static int better(const member *a, const member *b)
{
    return a->weight > b->weight || (a->weight == b->weight && a->position < b->position);
}

static int best_first(const void *a, const void *b)
{
    if (better(a, b)) return -1;
    return better(b, a) ? 1 : 0;
}

/* Puts the best k of count first, in any order (quickselect). */
static void select_best(member *x, int64_t count, int64_t k)
{
    int64_t low = 0;
    int64_t high = count - 1;
    while (low < high) {
        const member pivot = x[low + (high - low) / 2];
        int64_t i = low;
        int64_t j = high;
        while (i <= j) {
            while (better(&x[i], &pivot)) i++;
            while (better(&pivot, &x[j])) j--;
            if (i > j) break;
            const member moved = x[i];
            x[i++] = x[j];
            x[j--] = moved;
        }
        if (k - 1 <= j) {
            high = j;
        } else if (k - 1 >= i) {
            low = i;
        } else {
            break;
        }
    }
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
    section *out = (section *)(void *)(s->message + kv_head * s->section_bytes);
    member *found = s->found[thread];
    const dw_pos last = s->query->position[s->query->rows - 1];
    const dw_visible visible = {dw_visible_positions(last, s->window).first, s->end - 1};
    const dw_block_range blocks = dw_visible_blocks(visible, s->shard);
    int64_t count = 0;
    for (int64_t b = blocks.first; b < blocks.end; b++) {
        const dw_pos start = dw_shard_block_start(s->shard, (dw_block_slot){b});
        const dw_key_range keys = dw_visible_keys(visible, start);
        float weight[DW_BLOCK];
        weigh_block(s, s->scores[thread], kv_head, (dw_block_slot){b}, weight);
        for (int j = keys.first; j <= keys.last; j++) found[count++] = (member){start + j, weight[j], 0};
    }
    memset(out, 0, (size_t)s->section_bytes);
    out->count = dw_smaller(count, s->keys);
    if (count > s->keys) select_best(found, count, s->keys);
    qsort(found, (size_t)out->count, sizeof *found, best_first);
    memcpy(out->best, found, (size_t)out->count * sizeof *found);
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
        section *a = (section *)(void *)((char *)mine + g * s->section_bytes);
        const section *b = (const section *)(const void *)((const char *)theirs + g * s->section_bytes);
        section *out = (section *)(void *)s->merged;
        int64_t i = 0;
        int64_t j = 0;
        memset(out, 0, (size_t)s->section_bytes);
        out->count = dw_smaller(a->count + b->count, s->keys);
        for (int64_t n = 0; n < out->count; n++) {
            const int from_a = j == b->count || (i < a->count && better(&a->best[i], &b->best[j]));
            out->best[n] = from_a ? a->best[i++] : b->best[j++];
        }
        memcpy(a, out, (size_t)s->section_bytes);
    }
}

static int compare_positions(const void *a, const void *b)
{
    const dw_pos x = *(const dw_pos *)a;
    const dw_pos y = *(const dw_pos *)b;
    return (x > y) - (x < y);
}

int64_t dw_support_positions(const dw_support *s, const void *message, int64_t kv_head, dw_pos *positions)
{
    const section *from = (const section *)(const void *)((const char *)message + kv_head * s->section_bytes);
    for (int64_t n = 0; n < from->count; n++) positions[n] = from->best[n].position;
    qsort(positions, (size_t)from->count, sizeof *positions, compare_positions);
    return from->count;
}
