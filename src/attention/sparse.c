#include "attention/sparse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/partial.h"
#include "attention/scan.h"
#include "base/memory.h"

typedef struct {
    dw_candidate *set;    /* the set of one head, by position */
    dw_candidate *sorted; /* its best keys by position */
    char *values;         /* [DW_BLOCK][value_bytes] V rows of the selected keys of one block */
    int64_t *partial;     /* [dw_partial_words(head_dim + 1)] */
    float *o;             /* [head_dim] */
} scratch;

struct dw_sparse {
    const dw_kernels *kernels;
    dw_pool *pool;
    const dw_proposal_shape *shape;
    int64_t head_dim;
    dw_type value_type;
    float scale;
    scratch *thread;
    dw_proposal *section; /* [kv_heads] */

    /* The row at work. */
    dw_visible visible;
    const float *q;
    const int32_t *value_exponent;
    const int64_t *tail;
    int is_measured;
    float *out;
    dw_interval *omitted;
};

dw_status dw_sparse_create(dw_sparse **out, const dw_kernels *kernels, dw_pool *pool, const dw_shard_config *config,
                           const dw_proposal_shape *shape, dw_error *err)
{
    dw_sparse *sparse;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&sparse, 1, "attention scratch", err));
    sparse->kernels = kernels;
    sparse->pool = pool;
    sparse->shape = shape;
    sparse->head_dim = config->head_dim;
    sparse->value_type = config->value_type;
    sparse->scale = dw_score_scale(config->head_dim);
    DW_TRY_GOTO(status, DW_ALLOC(&sparse->section, shape->kv_heads, "attention scratch", err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&sparse->thread, dw_pool_threads(pool), "attention scratch", err), failed);
    for (int i = 0; i < dw_pool_threads(pool); i++) {
        scratch *s = &sparse->thread[i];
        DW_TRY_GOTO(status, DW_ALLOC(&s->set, shape->positions_capacity, "attention scratch", err), failed);
        DW_TRY_GOTO(status, DW_ALLOC(&s->sorted, shape->keys, "attention scratch", err), failed);
        DW_TRY_GOTO(status, dw_alloc_bytes((void **)&s->values, DW_BLOCK, shape->value_bytes, "attention scratch", err),
                    failed);
        DW_TRY_GOTO(status, DW_ALLOC(&s->partial, dw_partial_words(config->head_dim + 1), "attention scratch", err), failed);
        DW_TRY_GOTO(status, DW_ALLOC(&s->o, config->head_dim, "attention scratch", err), failed);
    }
    *out = sparse;
    return DW_OK;
failed:
    dw_sparse_destroy(sparse);
    return status;
}

void dw_sparse_destroy(dw_sparse *sparse)
{
    if (sparse == NULL) return;
    for (int i = 0; sparse->thread != NULL && i < dw_pool_threads(sparse->pool); i++) {
        dw_free(sparse->thread[i].set);
        dw_free(sparse->thread[i].sorted);
        dw_free(sparse->thread[i].values);
        dw_free(sparse->thread[i].partial);
        dw_free(sparse->thread[i].o);
    }
    dw_free(sparse->thread);
    dw_free(sparse->section);
    dw_free(sparse);
}

static int compare_positions(const void *a, const void *b)
{
    const dw_pos x = ((const dw_candidate *)a)->position;
    const dw_pos y = ((const dw_candidate *)b)->position;
    return (x > y) - (x < y);
}

/* The set of query head i of a section, ascending by position, each position once; returns its size. sorted: scratch. */
static int64_t build_set(const dw_proposal *section, int64_t i, dw_candidate *sorted, dw_candidate *set)
{
    const int64_t top_count = section->top_count[i];
    const int64_t forced_count = *section->forced_count;
    const float *forced_scores = section->forced_scores + i * forced_count;
    const dw_candidate *top = section->top;
    int64_t count = 0;
    int64_t t = 0;
    for (int64_t other = 0; other < i; other++) top += section->top_count[other];
    memcpy(sorted, top, (size_t)top_count * sizeof *sorted);
    qsort(sorted, (size_t)top_count, sizeof *sorted, compare_positions);
    for (int64_t f = 0; f < forced_count; f++) {
        while (t < top_count && sorted[t].position < section->forced[f]) set[count++] = sorted[t++];
        if (t < top_count && sorted[t].position == section->forced[f]) t++;
        set[count++] = (dw_candidate){.position = section->forced[f], .score = forced_scores[f]};
    }
    while (t < top_count) set[count++] = sorted[t++];
    return count;
}

/* Adds the selected keys of one block. Skipping the others is the same as adding them with weight +0. */
static void add_block(const dw_sparse *sparse, const scratch *s, const dw_proposal *section, const dw_candidate *set,
                      int64_t count, int32_t value_exponent)
{
    const int64_t value_bytes = sparse->shape->value_bytes;
    float scores[DW_BLOCK] = {0};
    float weights[DW_BLOCK];
    float packed[DW_BLOCK];
    float maxima[DW_LANES];
    uint64_t mask = 0;
    int32_t exponent;
    float sum;
    for (int64_t n = 0; n < count; n++) {
        const int64_t row = dw_proposal_find(section, set[n].position);
        scores[set[n].position % DW_BLOCK] = set[n].score;
        mask |= (uint64_t)1 << set[n].position % DW_BLOCK;
        memcpy(s->values + n * value_bytes, section->values + row * sparse->shape->value_stride, (size_t)value_bytes);
    }
    sparse->kernels->weights(weights, scores, sparse->scale, mask, &exponent, &sum, maxima);
    for (int64_t n = 0; n < count; n++) packed[n] = weights[set[n].position % DW_BLOCK];
    sparse->kernels->values[sparse->value_type](s->o, packed, 1, s->values, (int)sparse->head_dim, 0, (int)count - 1);
    dw_partial_add(sparse->kernels, s->partial, sparse->head_dim + 1, exponent, s->o, sum, value_exponent);
}

static int is_forced(const dw_proposal *section, dw_pos position)
{
    const int64_t at = dw_pos_lower_bound(section->forced, *section->forced_count, position);
    return at < *section->forced_count && section->forced[at] == position;
}

/* The mass of all keys that are not forced, less the best keys. kept: partial sums of the set. */
static dw_interval omitted_mass(const dw_sparse *sparse, const dw_proposal *section, int64_t i, const float *q,
                                const int64_t *kept, int64_t set_size)
{
    const int64_t d = sparse->head_dim;
    const dw_candidate *top = section->top;
    int64_t outside[DW_OUTSIDE_WORDS];
    int64_t kept_exponent;
    const double kept_mass = dw_partial_mass(kept, d + 1, &kept_exponent);
    double norm = 0.0;
    if (set_size == dw_visible_count(sparse->visible)) return (dw_interval){0.0, 0.0};
    if (!sparse->is_measured) return (dw_interval){0.0, 1.0};
    for (int64_t other = 0; other < i; other++) top += section->top_count[other];
    memcpy(outside, section->mass + i * DW_OUTSIDE_WORDS, sizeof outside);
    for (int64_t n = 0; n < section->top_count[i]; n++) {
        const dw_counted *counted = &top[n].counted;
        float weight = fmaf(counted->score, sparse->scale, -(float)counted->exponent);
        if (is_forced(section, top[n].position)) continue;
        sparse->kernels->exp2(&weight, &weight, 1);
        dw_outside_remove(outside, counted, weight);
    }
    for (int64_t c = 0; c < d; c++) norm += (double)q[c] * (double)q[c];
    return dw_outside_share(outside, kept_mass, kept_exponent,
                            dw_score_error_bits(sqrt(norm), *section->key_norm, (double)sparse->scale, d),
                            dw_visible_block_count(sparse->visible));
}

static void head_task(void *context, int64_t head, int thread)
{
    dw_sparse *sparse = context;
    const scratch *s = &sparse->thread[thread];
    const int64_t group = sparse->shape->group;
    const int64_t d = sparse->head_dim;
    const dw_proposal *section = &sparse->section[head / group];
    const int32_t value_exponent = sparse->value_exponent[head / group];
    const int64_t count = build_set(section, head % group, s->sorted, s->set);
    int64_t first = 0;
    dw_partial_clear(s->partial, d + 1);
    while (first < count) {
        int64_t end = first + 1;
        while (end < count && s->set[end].position / DW_BLOCK == s->set[first].position / DW_BLOCK) end++;
        add_block(sparse, s, section, s->set + first, end - first, value_exponent);
        first = end;
    }
    sparse->omitted[head] = omitted_mass(sparse, section, head % group, sparse->q + head * d, s->partial, count);
    if (sparse->tail != NULL) dw_partial_merge(s->partial, sparse->tail + head * dw_partial_words(d + 1), d + 1);
    dw_partial_finish(s->partial, d + 1, value_exponent, sparse->out + head * d);
}

void dw_sparse_attend(dw_sparse *sparse, dw_visible visible, const float *q, const int32_t *value_exponent, void *message,
                      const int64_t *tail, int is_measured, float *out, dw_interval *omitted)
{
    char *at = message;
    for (int64_t g = 0; g < sparse->shape->kv_heads; g++) {
        sparse->section[g] = dw_proposal_view(sparse->shape, at);
        at += *sparse->section[g].bytes;
    }
    sparse->visible = visible;
    sparse->q = q;
    sparse->value_exponent = value_exponent;
    sparse->tail = tail;
    sparse->is_measured = is_measured;
    sparse->out = out;
    sparse->omitted = omitted;
    dw_pool_run(sparse->pool, sparse->shape->kv_heads * sparse->shape->group, head_task, sparse);
}
