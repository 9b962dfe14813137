#include "attention/mean_key.h"

#include <math.h>
#include <string.h>

#include "attention/scan.h"
#include "base/memory.h"

enum { SAMPLED_BLOCKS = 128 }; /* of a long shard only so many, about: a sample of the keys is enough for a hint */

/* Of one thread. */
typedef struct {
    float *weights; /* [group][DW_BLOCK] */
    float *sums;    /* [group][head_dim] of one block */
} scratch;

struct dw_mean_key {
    const dw_kernels *kernels;
    dw_pool *pool;
    int64_t kv_heads, group, head_dim;
    float scale;
    float *mass; /* [heads] */
    scratch *thread;

    /* The call at work. */
    const dw_shard *shard;
    int64_t layer;
    dw_visible visible;
    const float *q;
    const float *log_z;
    const dw_held_positions *held;
    float *out;
};

static dw_status create_parts(dw_mean_key *m, dw_error *err)
{
    DW_TRY(DW_ALLOC(&m->mass, m->kv_heads * m->group, "mean keys", err));
    DW_TRY(DW_ALLOC(&m->thread, dw_pool_threads(m->pool), "mean keys", err));
    for (int i = 0; i < dw_pool_threads(m->pool); i++) {
        DW_TRY(DW_ALLOC(&m->thread[i].weights, m->group * DW_BLOCK, "mean keys", err));
        DW_TRY(DW_ALLOC(&m->thread[i].sums, m->group * m->head_dim, "mean keys", err));
    }
    return DW_OK;
}

dw_status dw_mean_key_create(dw_mean_key **out, const dw_kernels *kernels, dw_pool *pool, const dw_shard_config *config,
                             int64_t heads, dw_error *err)
{
    dw_mean_key *m;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&m, 1, "mean keys", err));
    m->kernels = kernels;
    m->pool = pool;
    m->kv_heads = config->kv_heads;
    m->group = heads / config->kv_heads;
    m->head_dim = config->head_dim;
    m->scale = dw_score_scale(config->head_dim);
    status = create_parts(m, err);
    if (status != DW_OK) {
        dw_mean_key_destroy(m);
        return status;
    }
    *out = m;
    return DW_OK;
}

void dw_mean_key_destroy(dw_mean_key *m)
{
    if (m == NULL) return;
    for (int i = 0; m->thread != NULL && i < dw_pool_threads(m->pool); i++) {
        dw_free(m->thread[i].weights);
        dw_free(m->thread[i].sums);
    }
    dw_free(m->thread);
    dw_free(m->mass);
    dw_free(m);
}

/* Takes the held positions of the block at `start` out of its mask; *next: of the list, moves behind the block. */
static uint64_t without_held(uint64_t mask, dw_pos start, const dw_pos *positions, int64_t count, int64_t *next)
{
    while (*next < count && positions[*next] < start) ++*next;
    for (; *next < count && positions[*next] < start + DW_BLOCK; ++*next) {
        mask &= ~((uint64_t)1 << (positions[*next] - start));
    }
    return mask;
}

/* Adds the keys of a block, [head_dim][64], by the weights of a group: the sum over keys is a linear layer with the block as its matrix. */
static void add_block(const dw_mean_key *m, const scratch *s, int64_t kv_head, dw_block_slot slot, uint64_t mask)
{
    const int64_t d = m->head_dim;
    const dw_type type = dw_shard_shape(m->shard)->key_type;
    const void *keys = dw_shard_keys(m->shard, m->layer, kv_head, slot);
    m->kernels->scores[type](s->weights, m->q + kv_head * m->group * d, d, (int)m->group, keys, (int)d);
    for (int64_t i = 0; i < m->group; i++) {
        const int64_t head = kv_head * m->group + i;
        float *weights = s->weights + i * DW_BLOCK;
        float maxima[DW_LANES];
        int32_t exponent;
        float sum, unit;
        m->kernels->weights(weights, weights, m->scale, mask, &exponent, &sum, maxima);
        m->kernels->linear[type](s->sums, d, keys, d, weights, DW_BLOCK, 1, DW_BLOCK);
        unit = exp2f((float)exponent - m->log_z[head]);
        m->mass[head] += sum * unit;
        for (int64_t c = 0; c < d; c++) m->out[head * d + c] += s->sums[c] * unit;
    }
}

static void find_task(void *context, int64_t kv_head, int thread)
{
    dw_mean_key *m = context;
    const dw_block_range blocks = dw_visible_blocks(m->visible, m->shard);
    const dw_pos *held = m->held->positions + kv_head * m->held->room;
    float *out = m->out + kv_head * m->group * m->head_dim;
    int64_t next = 0;
    memset(out, 0, (size_t)(m->group * m->head_dim) * sizeof *out);
    for (int64_t i = 0; i < m->group; i++) m->mass[kv_head * m->group + i] = 0;
    for (int64_t b = blocks.first; b < blocks.end; b += 1 + (blocks.end - blocks.first) / SAMPLED_BLOCKS) {
        const dw_pos start = dw_shard_block_start(m->shard, (dw_block_slot){b});
        const uint64_t seen = dw_key_mask(dw_visible_keys(m->visible, start));
        const uint64_t mask = without_held(seen, start, held, m->held->count[kv_head], &next);
        if (mask != 0) add_block(m, &m->thread[thread], kv_head, (dw_block_slot){b}, mask);
    }
    for (int64_t i = 0; i < m->group; i++) {
        const float mass = m->mass[kv_head * m->group + i];
        for (int64_t c = 0; mass > 0 && c < m->head_dim; c++) out[i * m->head_dim + c] /= mass;
    }
}

void dw_mean_key_find(dw_mean_key *m, const dw_shard *shard, int64_t layer, dw_visible visible, const float *q,
                      const float *log_z, const dw_held_positions *held, float *out)
{
    m->shard = shard;
    m->layer = layer;
    m->visible = visible;
    m->q = q;
    m->log_z = log_z;
    m->held = held;
    m->out = out;
    dw_pool_run(m->pool, m->kv_heads, find_task, m);
}
