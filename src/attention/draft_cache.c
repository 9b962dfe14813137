#include "attention/draft_cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/partial.h"
#include "attention/scan.h"
#include "base/integers.h"
#include "base/memory.h"

/* Of one thread. */
typedef struct {
    float *scores;     /* [group][DW_BLOCK] */
    float *o;          /* [group][head_dim] */
    float *sum;        /* [group] sums of weights of one block */
    int32_t *exponent; /* [group] */
    int64_t *partial;  /* [group][words] */
} scratch;

/* Slots of a layer and KV head: those of the support, then a ring of recent positions. K of 64 slots lies [head_dim][64], V [64][head_dim],
   as in a shard. */
struct dw_draft_cache {
    const dw_kernels *kernels;
    dw_pool *pool;
    dw_shard_config config;
    int64_t heads, group, head_dim;
    int64_t keys;                   /* slots of the support */
    int64_t slots;                  /* of all */
    int64_t key_bytes, value_bytes; /* of one row of one head */
    int64_t bytes;
    float scale;
    char *k;                /* [layers][kv_heads][slots / 64][head_dim][64] */
    char *v;                /* [layers][kv_heads][slots][head_dim] */
    dw_pos *at;             /* [layers][kv_heads][slots] position in a slot; -1: none */
    unsigned char *is_held; /* [keys] which positions of a new support are held */
    float *tail_bits;       /* [layers][heads] of the frozen tail's weight at q = 0; -infinity: none */
    float *tail_key;        /* [layers][heads][head_dim] */
    float *tail_value;      /* likewise */
    float *held;            /* [heads][head_dim] */
    float *held_bits;       /* [heads] of the sum of weights */
    scratch *thread;

    /* The row at work. */
    int64_t layer;
    dw_visible visible;
    const float *q;
    const int32_t *value_exponent;
    float *out;
    float *log_z; /* NULL: with the tail; else without, and this gets the bits of the sum of weights */
};

static dw_status create_parts(dw_draft_cache *c, dw_error *err)
{
    const int64_t lists = c->config.layers * c->config.kv_heads;
    const int64_t tails = c->config.layers * c->heads;
    const int64_t words = dw_partial_words(c->head_dim + 1);
    DW_TRY(dw_alloc_bytes((void **)&c->k, lists * c->slots, c->key_bytes, "draft cache", err));
    DW_TRY(dw_alloc_bytes((void **)&c->v, lists * c->slots, c->value_bytes, "draft cache", err));
    DW_TRY(DW_ALLOC(&c->at, lists * c->slots, "draft cache", err));
    DW_TRY(DW_ALLOC(&c->is_held, c->keys, "draft cache", err));
    DW_TRY(DW_ALLOC(&c->tail_bits, tails, "draft cache", err));
    DW_TRY(DW_ALLOC(&c->tail_key, tails * c->head_dim, "draft cache", err));
    DW_TRY(DW_ALLOC(&c->tail_value, tails * c->head_dim, "draft cache", err));
    DW_TRY(DW_ALLOC(&c->held, c->heads * c->head_dim, "draft cache", err));
    DW_TRY(DW_ALLOC(&c->held_bits, c->heads, "draft cache", err));
    DW_TRY(DW_ALLOC(&c->thread, dw_pool_threads(c->pool), "draft cache", err));
    for (int i = 0; i < dw_pool_threads(c->pool); i++) {
        DW_TRY(DW_ALLOC(&c->thread[i].scores, c->group * DW_BLOCK, "draft cache", err));
        DW_TRY(DW_ALLOC(&c->thread[i].o, c->group * c->head_dim, "draft cache", err));
        DW_TRY(DW_ALLOC(&c->thread[i].sum, c->group, "draft cache", err));
        DW_TRY(DW_ALLOC(&c->thread[i].exponent, c->group, "draft cache", err));
        DW_TRY(DW_ALLOC(&c->thread[i].partial, c->group * words, "draft cache", err));
    }
    for (int64_t i = 0; i < lists * c->slots; i++) c->at[i] = -1;
    for (int64_t i = 0; i < tails; i++) c->tail_bits[i] = -INFINITY;
    c->bytes = lists * c->slots * (c->key_bytes + c->value_bytes + (int64_t)sizeof *c->at) +
               tails * (2 * c->head_dim + 1) * (int64_t)sizeof(float);
    return DW_OK;
}

dw_status dw_draft_cache_create(dw_draft_cache **out, const dw_kernels *kernels, dw_pool *pool, const dw_shard_config *config,
                                int64_t heads, int64_t keys, dw_error *err)
{
    dw_draft_cache *c;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&c, 1, "draft cache", err));
    c->kernels = kernels;
    c->pool = pool;
    c->config = *config;
    c->heads = heads;
    c->group = heads / config->kv_heads;
    c->head_dim = config->head_dim;
    c->keys = dw_round_up(keys, DW_BLOCK);
    c->slots = c->keys + DW_DRAFT_RECENT;
    c->key_bytes = dw_row_bytes(config->key_type, config->head_dim);
    c->value_bytes = dw_row_bytes(config->value_type, config->head_dim);
    c->scale = dw_score_scale(config->head_dim);
    status = create_parts(c, err);
    if (status != DW_OK) {
        dw_draft_cache_destroy(c);
        return status;
    }
    *out = c;
    return DW_OK;
}

void dw_draft_cache_destroy(dw_draft_cache *c)
{
    if (c == NULL) return;
    for (int i = 0; c->thread != NULL && i < dw_pool_threads(c->pool); i++) {
        dw_free(c->thread[i].scores);
        dw_free(c->thread[i].o);
        dw_free(c->thread[i].sum);
        dw_free(c->thread[i].exponent);
        dw_free(c->thread[i].partial);
    }
    dw_free(c->thread);
    dw_free(c->k);
    dw_free(c->v);
    dw_free(c->at);
    dw_free(c->is_held);
    dw_free(c->tail_bits);
    dw_free(c->tail_key);
    dw_free(c->tail_value);
    dw_free(c->held);
    dw_free(c->held_bits);
    dw_free(c);
}

int64_t dw_draft_cache_bytes(const dw_draft_cache *c)
{
    return c->bytes;
}

/* First slot of a layer and KV head. */
static int64_t list_of(const dw_draft_cache *c, int64_t layer, int64_t kv_head)
{
    return (layer * c->config.kv_heads + kv_head) * c->slots;
}

static void store(dw_draft_cache *c, int64_t list, int64_t slot, dw_pos position, const char *key, const char *value)
{
    const int64_t number = c->key_bytes / c->head_dim; /* the cache types store one number an element */
    char *keys = c->k + (list + slot / DW_BLOCK * DW_BLOCK) * c->key_bytes + slot % DW_BLOCK * number;
    for (int64_t i = 0; i < c->head_dim; i++) memcpy(keys + i * DW_BLOCK * number, key + i * number, (size_t)number);
    memcpy(c->v + (list + slot) * c->value_bytes, value, (size_t)c->value_bytes);
    c->at[list + slot] = position;
}

void dw_draft_cache_put(dw_draft_cache *c, int64_t layer, dw_pos position, const void *key_row, const void *value_row)
{
    for (int64_t g = 0; g < c->config.kv_heads; g++) {
        store(c, list_of(c, layer, g), c->keys + position % DW_DRAFT_RECENT, position, (const char *)key_row + g * c->key_bytes,
              (const char *)value_row + g * c->value_bytes);
    }
}

int64_t dw_draft_cache_support(dw_draft_cache *c, int64_t layer, int64_t kv_head, const dw_pos *positions, int64_t count,
                               dw_missing_row *missing)
{
    dw_pos *at = c->at + list_of(c, layer, kv_head);
    int64_t lacking = 0;
    int64_t slot = 0;
    memset(c->is_held, 0, (size_t)count);
    for (int64_t s = 0; s < c->keys; s++) {
        const int64_t i = dw_pos_lower_bound(positions, count, at[s]);
        const int is_wanted = i < count && positions[i] == at[s];
        if (is_wanted) c->is_held[i] = 1;
        if (!is_wanted) at[s] = -1;
    }
    for (int64_t i = 0; i < count; i++) {
        if (!c->is_held[i]) missing[lacking++] = (dw_missing_row){layer, kv_head, 0, positions[i]};
    }
    for (int64_t i = 0; i < lacking; i++, slot++) {
        while (at[slot] >= 0) slot++;
        missing[i].slot = slot;
    }
    return lacking;
}

void dw_draft_cache_fill(dw_draft_cache *c, const dw_missing_row *row, const void *key, const void *value)
{
    store(c, list_of(c, row->layer, row->kv_head), row->slot, row->position, key, value);
}

/* ---- attention ---- */

/* Of the slots first .. first + 63 of a list. A position that is recent as well as in the support counts once. */
static uint64_t visible_slots(const dw_draft_cache *c, const dw_pos *list, int64_t first)
{
    const dw_pos *recent = list + c->keys;
    const int is_support = first < c->keys;
    uint64_t mask = 0;
    for (int64_t j = 0; j < DW_BLOCK; j++) {
        const dw_pos p = list[first + j];
        if (p < c->visible.first || p > c->visible.last || (is_support && recent[p % DW_DRAFT_RECENT] == p)) continue;
        mask |= (uint64_t)1 << j;
    }
    return mask;
}

/* The tail of the layer at work as a block of one key. o: [head_dim] scratch. */
static void add_tail(const dw_draft_cache *c, int64_t head, float *o, int64_t *partial, int32_t value_exponent)
{
    const int64_t d = c->head_dim;
    const int64_t at = c->layer * c->heads + head;
    float bits = 0;
    float weight;
    if (c->tail_bits[at] == -INFINITY) return;
    for (int64_t i = 0; i < d; i++) bits += c->q[head * d + i] * c->tail_key[at * d + i];
    bits = c->tail_bits[at] + bits * c->scale;
    weight = exp2f(bits - ceilf(bits));
    for (int64_t i = 0; i < d; i++) o[i] = weight * c->tail_value[at * d + i];
    dw_partial_add(c->kernels, partial, d + 1, (int32_t)ceilf(bits), o, weight, value_exponent);
}

static void attend_task(void *context, int64_t kv_head, int thread)
{
    const dw_draft_cache *c = context;
    const scratch *s = &c->thread[thread];
    const int64_t d = c->head_dim;
    const int64_t words = dw_partial_words(d + 1);
    const int64_t list = list_of(c, c->layer, kv_head);
    for (int64_t i = 0; i < c->group; i++) dw_partial_clear(s->partial + i * words, d + 1);
    for (int64_t first = 0; first < c->slots; first += DW_BLOCK) {
        const uint64_t mask = visible_slots(c, c->at + list, first);
        if (mask == 0) continue;
        c->kernels->scores[c->config.key_type](s->scores, c->q + kv_head * c->group * d, d, (int)c->group,
                                               c->k + (list + first) * c->key_bytes, (int)d);
        for (int64_t i = 0; i < c->group; i++) {
            float *weights = s->scores + i * DW_BLOCK;
            float maxima[DW_LANES];
            c->kernels->weights(weights, weights, c->scale, mask, &s->exponent[i], &s->sum[i], maxima);
        }
        c->kernels->values[c->config.value_type](s->o, s->scores, (int)c->group, c->v + (list + first) * c->value_bytes, (int)d,
                                                 0, DW_BLOCK - 1);
        for (int64_t i = 0; i < c->group; i++) {
            dw_partial_add(c->kernels, s->partial + i * words, d + 1, s->exponent[i], s->o + i * d, s->sum[i],
                           c->value_exponent[kv_head]);
        }
    }
    for (int64_t i = 0; i < c->group; i++) {
        const int64_t head = kv_head * c->group + i;
        int64_t *partial = s->partial + i * words;
        if (c->log_z == NULL) add_tail(c, head, s->o, partial, c->value_exponent[kv_head]);
        dw_partial_finish(partial, d + 1, c->value_exponent[kv_head], c->out + head * d);
        if (c->log_z != NULL) c->log_z[head] = dw_partial_bits(partial, d + 1);
    }
}

/* log_z: NULL, or [heads]. */
static void attend(dw_draft_cache *c, int64_t layer, dw_visible visible, const float *q, const int32_t *value_exponent,
                   float *out, float *log_z)
{
    c->layer = layer;
    c->visible = visible;
    c->q = q;
    c->value_exponent = value_exponent;
    c->out = out;
    c->log_z = log_z;
    dw_pool_run(c->pool, c->config.kv_heads, attend_task, c);
}

void dw_draft_cache_attend(dw_draft_cache *c, int64_t layer, dw_visible visible, const float *q, const int32_t *value_exponent,
                           float *out)
{
    attend(c, layer, visible, q, value_exponent, out, NULL);
}

/* ---- the frozen tail ---- */

/* For one head: held is its output over the held keys, which have the share 1 - share of all weight. */
static void freeze_head(dw_draft_cache *c, int64_t at, const float *q, const float *dense, const float *held, float share,
                        float log_z, const float *key, float bound)
{
    float *tail_key = c->tail_key + at * c->head_dim;
    float *tail_value = c->tail_value + at * c->head_dim;
    float score = 0;
    for (int64_t i = 0; i < c->head_dim; i++) {
        const float value = (dense[i] - (1 - share) * held[i]) / share;
        tail_value[i] = fminf(fmaxf(value, -bound), bound);
        tail_key[i] = key == NULL ? 0 : key[i];
        score += q[i] * tail_key[i];
    }
    c->tail_bits[at] = log_z + log2f(share) - score * c->scale;
}

void dw_draft_cache_freeze(dw_draft_cache *c, int64_t layer, dw_visible visible, const float *q, const int32_t *value_exponent,
                           const float *dense, const float *log_z, const float *key)
{
    const float least = 0x1p-10f; /* of the weight: below it the difference of two rounded outputs says little */
    attend(c, layer, visible, q, value_exponent, c->held, c->held_bits);
    for (int64_t h = 0; h < c->heads; h++) {
        const int64_t at = h * c->head_dim;
        const float share = 1 - exp2f(c->held_bits[h] - log_z[h]);
        c->tail_bits[layer * c->heads + h] = -INFINITY;
        if (!(share > least)) continue;
        freeze_head(c, layer * c->heads + h, q + at, dense + at, c->held + at, share, log_z[h], key == NULL ? NULL : key + at,
                    ldexpf(1.0f, value_exponent[h / c->group]));
    }
}
