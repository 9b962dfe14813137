#include "attention/discovery.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "attention/scan.h"
#include "base/integers.h"
#include "base/memory.h"

/* Tasks: (kv head) x (slice of the shard's blocks). A task scores its slice, and finds for each query head a bar that at least
   k of its keys reach: the k-th largest of the maxima of blocks, or of groups of 16 keys, less what the scores may be off. Only the few
   keys that can reach the bar (k and some) are kept. A heap that sees every key costs as much as the scores themselves
   (docs/decisions/discovery-bar.md). Then a task for each head joins what the slices kept, raises the bar to the k-th best of the lower
   ends, scores exactly what can still reach it and was only screened, and sorts. */
enum {
    TASKS_PER_THREAD = 4,
    MIN_SLICE_BLOCKS = 4,
    GROUPS = 4,  /* of a block: keys with the same index mod GROUPS */
    AT_ONCE = 8, /* keys of one call of key_scores */
};

/* What is known of the scores of one query head in one block. */
typedef struct {
    float maxima[GROUPS]; /* largest scores of the groups */
    float error;          /* by which a score may be off; 0: they are exact */
    int32_t exponent;     /* as the mass counts it */
    float bits;           /* likewise */
} block_scores;

/* A key that may be among the best, and by how much its score may be off. */
typedef struct {
    dw_candidate key;
    float error;
} found;

/* What a thread writes while it scans a slice. */
typedef struct {
    float *scores;            /* [local blocks][G][DW_BLOCK] raw scores of the slice */
    block_scores *block;      /* [G][local blocks] */
    float *weights;           /* [DW_BLOCK] */
    float *order;             /* [local blocks * DW_BLOCK] for finding the bar */
    int64_t *mass;            /* [G][DW_OUTSIDE_WORDS] of the slice */
    dw_pos *positions;        /* [shape->positions_capacity] */
    int64_t *next;            /* [G] */
    int16_t *numbers;         /* [G][padded head_dim] of the queries against a block of the screen */
    dw_screen_query *queries; /* [G] */
    float *rows;              /* [AT_ONCE][padded head_dim] keys to be scored exactly */
} scratch;

struct dw_discovery {
    const dw_kernels *kernels;
    dw_pool *pool;
    const dw_proposal_shape *shape;
    int64_t head_dim;
    int64_t max_slices;
    int64_t local_blocks;  /* of this rank, at most */
    int64_t channels;      /* padded head_dim */
    int64_t best_capacity; /* candidates of one head over all slices */
    float scale;
    scratch *thread;
    found *best;            /* [heads][best_capacity] what the slices keep, back to back; in the end the best keys in order */
    int64_t *best_count;    /* [heads][max_slices] */
    int64_t *mass;          /* [heads][max_slices][DW_OUTSIDE_WORDS] */
    float *key_norm;        /* [kv_heads][max_slices] */
    int64_t *key_bytes;     /* [kv_heads][max_slices] read by a slice */
    int64_t *survivors;     /* [heads] keys scored again */
    int64_t *rows_read;     /* [heads] rows of keys read for that, those not counted that another head of the group has read */
    atomic_ullong *touched; /* [kv_heads][local_blocks] keys of the blocks whose rows were read for this row */
    float *padded;          /* [heads][padded head_dim] the row's queries, zeros behind */
    float *query_norm;      /* [heads] upper bounds of |q|_2 */
    dw_pos *forced;         /* anchor and window positions on this rank, ascending */
    float *forced_scores;   /* [heads][forced_count] */

    /* The row at work. */
    const dw_policy *policy;
    const dw_shard *shard;
    dw_screen *screen; /* NULL: none */
    int64_t layer;
    dw_visible visible;
    const float *q;
    const dw_selection *given; /* of dw_discover_given */
    char *message;
    int64_t slices;
    dw_block_range blocks; /* that hold visible keys */
    int64_t recent;        /* the last so many positions are in the set */
    int64_t forced_count;
    atomic_llong bad_head;
};

static dw_status create_scratch(const dw_discovery *d, scratch *s, dw_error *err)
{
    const int64_t group = d->shape->group;
    DW_TRY(DW_ALLOC(&s->scores, d->local_blocks * group * DW_BLOCK, "discovery scratch", err));
    DW_TRY(DW_ALLOC(&s->block, d->local_blocks * group, "discovery scratch", err));
    DW_TRY(DW_ALLOC(&s->next, group, "discovery scratch", err));
    DW_TRY(DW_ALLOC(&s->numbers, group * d->channels, "discovery scratch", err));
    DW_TRY(DW_ALLOC(&s->queries, group, "discovery scratch", err));
    DW_TRY(DW_ALLOC(&s->rows, AT_ONCE * d->channels, "discovery scratch", err));
    DW_TRY(DW_ALLOC(&s->weights, DW_BLOCK, "discovery scratch", err));
    DW_TRY(DW_ALLOC(&s->order, d->local_blocks * DW_BLOCK, "discovery scratch", err));
    DW_TRY(DW_ALLOC(&s->positions, d->shape->positions_capacity, "discovery scratch", err));
    return DW_ALLOC(&s->mass, group * DW_OUTSIDE_WORDS, "discovery scratch", err);
}

static void destroy_scratch(const scratch *s)
{
    dw_free(s->scores);
    dw_free(s->block);
    dw_free(s->next);
    dw_free(s->numbers);
    dw_free(s->queries);
    dw_free(s->rows);
    dw_free(s->weights);
    dw_free(s->order);
    dw_free(s->mass);
    dw_free(s->positions);
}

dw_status dw_discovery_create(dw_discovery **out, const dw_kernels *kernels, dw_pool *pool, const dw_shard_config *config,
                              const dw_policy *policy, const dw_proposal_shape *shape, dw_error *err)
{
    const int64_t heads = shape->kv_heads * shape->group;
    const int64_t forced = dw_smaller(dw_smaller(policy->anchor, config->context) + dw_smaller(policy->window, config->context),
                                      config->context);
    dw_discovery *d;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&d, 1, "discovery scratch", err));
    d->kernels = kernels;
    d->pool = pool;
    d->shape = shape;
    d->head_dim = config->head_dim;
    d->scale = dw_score_scale(config->head_dim);
    d->local_blocks = dw_shard_most_blocks(config);
    d->max_slices = (int64_t)TASKS_PER_THREAD * dw_pool_threads(pool);
    d->channels = dw_padded(config->head_dim);
    /* A screen can not tell many keys apart where they are all alike: room for all, of which as a rule little is ever touched. */
    d->best_capacity = shape->keys == 0 ? 0 : d->local_blocks * DW_BLOCK;
    DW_TRY_GOTO(status, DW_ALLOC(&d->thread, dw_pool_threads(pool), "discovery scratch", err), failed);
    for (int i = 0; i < dw_pool_threads(pool); i++) DW_TRY_GOTO(status, create_scratch(d, &d->thread[i], err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&d->best, heads * d->best_capacity, "discovery scratch", err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&d->best_count, heads * d->max_slices, "discovery scratch", err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&d->mass, heads * d->max_slices * DW_OUTSIDE_WORDS, "discovery scratch", err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&d->key_bytes, shape->kv_heads * d->max_slices, "discovery scratch", err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&d->survivors, heads, "discovery scratch", err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&d->rows_read, heads, "discovery scratch", err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&d->touched, shape->kv_heads * d->local_blocks, "discovery scratch", err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&d->padded, heads * d->channels, "discovery scratch", err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&d->query_norm, heads, "discovery scratch", err), failed);
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
    for (int i = 0; d->thread != NULL && i < dw_pool_threads(d->pool); i++) destroy_scratch(&d->thread[i]);
    dw_free(d->thread);
    dw_free(d->best);
    dw_free(d->best_count);
    dw_free(d->mass);
    dw_free(d->key_norm);
    dw_free(d->key_bytes);
    dw_free(d->survivors);
    dw_free(d->rows_read);
    dw_free(d->touched);
    dw_free(d->padded);
    dw_free(d->query_norm);
    dw_free(d->forced);
    dw_free(d->forced_scores);
    dw_free(d);
}

/* The k-th largest of count numbers, 1 <= k <= count (quickselect; reorders them). */
static float kth_largest(float *x, int64_t count, int64_t k)
{
    int64_t low = 0;
    int64_t high = count - 1;
    while (low < high) {
        const float pivot = x[low + (high - low) / 2];
        int64_t i = low;
        int64_t j = high;
        while (i <= j) {
            while (x[i] > pivot) i++;
            while (x[j] < pivot) j--;
            if (i > j) break;
            const float moved = x[i];
            x[i++] = x[j];
            x[j--] = moved;
        }
        if (k - 1 <= j) {
            high = j;
        } else if (k - 1 >= i) {
            low = i;
        } else {
            break; /* between: equal to the pivot */
        }
    }
    return x[k - 1];
}

/* Keeps the visible keys of one block that may reach the bar; of those that are exactly at it the first k: positions ascend, so later
   ones lose the tie. equal: how many of those are kept already. Returns how many were added at `out`. */
static int64_t collect_block(found *out, const float *scores, const block_scores *block, dw_pos start, dw_key_range keys,
                             float bar, int64_t k, int64_t *equal)
{
    const float error = block->error;
    int64_t count = 0;
    for (int64_t from = keys.first; from <= keys.last; from += DW_LANES) {
        const int64_t end = dw_smaller(from + DW_LANES, keys.last + 1);
        int any = 0;
        for (int64_t j = from; j < end; j++) any |= scores[j] + error >= bar; /* vectorised: most groups end here */
        if (!any) continue;
        for (int64_t j = from; j < end; j++) {
            if (scores[j] + error < bar || (error == 0.0f && scores[j] == bar && (*equal)++ >= k)) continue;
            out[count++] = (found){{start + j, scores[j], {scores[j], block->exponent, block->bits}}, error};
        }
    }
    return count;
}

static int is_forced(const dw_discovery *d, dw_pos position)
{
    return position < d->policy->anchor || position > d->visible.last - d->recent;
}

static int64_t list_forced(dw_discovery *d)
{
    int64_t count = 0;
    for (int64_t b = d->blocks.first; b < d->blocks.end; b++) {
        const dw_pos start = dw_shard_block_start(d->shard, (dw_block_slot){b});
        const dw_key_range keys = dw_visible_keys(d->visible, start);
        if (start >= d->policy->anchor && start + keys.last <= d->visible.last - d->recent) continue;
        for (dw_pos p = start + keys.first; p <= start + keys.last; p++) {
            if (is_forced(d, p)) d->forced[count++] = p;
        }
    }
    return count;
}

/* Keeps the scores of the forced positions of one block, [G][DW_BLOCK] at scores. */
static void keep_forced_scores(const dw_discovery *d, int64_t kv_head, const float *scores, dw_pos start)
{
    const int64_t group = d->shape->group;
    const int64_t first = dw_pos_lower_bound(d->forced, d->forced_count, start);
    for (int64_t n = first; n < d->forced_count && d->forced[n] < start + DW_BLOCK; n++) {
        for (int64_t i = 0; i < group; i++) {
            d->forced_scores[(kv_head * group + i) * d->forced_count + n] = scores[i * DW_BLOCK + (d->forced[n] - start)];
        }
    }
}

/* First block of a slice. */
static int64_t slice_start(const dw_discovery *d, int64_t slice)
{
    return d->blocks.first + (d->blocks.end - d->blocks.first) * slice / d->slices;
}

/* Where a slice keeps its candidates in a head's array: behind room for all keys of the slices before it. */
static int64_t best_offset(const dw_discovery *d, int64_t slice)
{
    return (slice_start(d, slice) - slice_start(d, 0)) * DW_BLOCK;
}

static uint64_t forced_mask(const dw_discovery *d, dw_pos start)
{
    uint64_t mask = 0;
    if (start >= d->policy->anchor && start + DW_BLOCK <= d->visible.last - d->recent + 1) return 0;
    for (int j = 0; j < DW_BLOCK; j++) mask |= (uint64_t)is_forced(d, start + j) << j;
    return mask;
}

/* Whole blocks without forced positions, whose scores must be exact. */
static int is_screened(const dw_discovery *d, dw_key_range keys, uint64_t forced)
{
    return d->screen != NULL && keys.first == 0 && keys.last == DW_BLOCK - 1 && forced == 0;
}

/* Scores of a block by the screen, [G][DW_BLOCK], and what they may be off. Returns the bytes read. */
static int64_t screen_scores(dw_discovery *d, const scratch *s, int64_t kv_head, dw_block_slot slot, int64_t n, float *scores)
{
    const int64_t group = d->shape->group;
    const dw_screen_block block = dw_screen_of(d->screen, d->shard, d->layer, kv_head, slot);
    for (int64_t i = 0; i < group; i++) {
        const int64_t head = kv_head * group + i;
        block_scores *known = &s->block[i * d->local_blocks + n];
        s->queries[i] = d->kernels->screen_query(s->numbers + i * d->channels, d->padded + head * d->channels, block.scale,
                                                 block.lowest, (int)d->channels);
        known->error = dw_screen_error(&block, &s->queries[i], d->query_norm[head], d->head_dim);
        known->bits = known->error * d->scale * (1.0f + 0x1p-20f) + (float)DW_WEIGHT_BITS;
    }
    d->kernels->screen_scores(scores, s->queries, s->numbers, (int)group, block.codes, (int)d->channels);
    return dw_screen_block_bytes(dw_shard_shape(d->shard));
}

/* Exact scores of a block. Returns the bytes read. */
static int64_t exact_scores(const dw_discovery *d, const scratch *s, int64_t kv_head, dw_block_slot slot, int64_t n,
                            double key_norm, float *scores)
{
    const int64_t group = d->shape->group;
    const dw_type type = dw_shard_shape(d->shard)->key_type;
    d->kernels->scores[type](scores, d->q + kv_head * group * d->head_dim, d->head_dim, (int)group,
                             dw_shard_keys(d->shard, d->layer, kv_head, slot), (int)d->head_dim);
    for (int64_t i = 0; i < group; i++) {
        block_scores *known = &s->block[i * d->local_blocks + n];
        const double query_norm = (double)d->query_norm[kv_head * group + i];
        known->error = 0.0f;
        known->bits = (float)(dw_score_error_bits(query_norm, key_norm, (double)d->scale, d->head_dim) * (1.0 + 0x1p-20) +
                              DW_WEIGHT_BITS);
    }
    return dw_row_bytes(type, d->head_dim) * DW_BLOCK;
}

/* Group maxima of scores that are there, and the mass of keys that are not forced. 0: a score is out of range. */
static int count_mass(const dw_discovery *d, const scratch *s, int64_t i, int64_t n, const float *scores, uint64_t visible,
                      uint64_t forced)
{
    block_scores *known = &s->block[i * d->local_blocks + n];
    float lane_maxima[DW_LANES];
    float sum;
    const float top = d->kernels->weights(s->weights, scores, d->scale, visible, &known->exponent, &sum, lane_maxima);
    if (!(fabsf(top * d->scale) < (float)DW_MAX_SCORE_BITS)) return 0;
    for (int g = 0; g < GROUPS; g++) {
        known->maxima[g] = lane_maxima[g];
        for (int l = g + GROUPS; l < DW_LANES; l += GROUPS) {
            known->maxima[g] = lane_maxima[l] > known->maxima[g] ? lane_maxima[l] : known->maxima[g];
        }
    }
    if ((visible & ~forced) == 0) return 1;
    dw_outside_add(s->mass + i * DW_OUTSIDE_WORDS, known->exponent, dw_outside_units(s->weights, ~forced), known->bits);
    return 1;
}

/* Scores one block, number n of the slice, for the query heads of a group. Returns the bytes read. *largest: grows to the largest
   |K|_2 among the visible keys. */
static int64_t score_block(dw_discovery *d, const scratch *s, int64_t kv_head, int64_t block, int64_t n, float *largest)
{
    const int64_t group = d->shape->group;
    const dw_block_slot slot = {block};
    const dw_pos start = dw_shard_block_start(d->shard, slot);
    const dw_key_range keys = dw_visible_keys(d->visible, start);
    const uint64_t forced = forced_mask(d, start);
    const float key_norm = dw_shard_key_norm(d->shard, d->layer, kv_head, slot, keys.first, keys.last);
    float *scores = s->scores + n * group * DW_BLOCK;
    const int64_t bytes = is_screened(d, keys, forced) ? screen_scores(d, s, kv_head, slot, n, scores)
                                                       : exact_scores(d, s, kv_head, slot, n, (double)key_norm, scores);
    for (int64_t i = 0; i < group; i++) {
        if (!count_mass(d, s, i, n, scores + i * DW_BLOCK, dw_key_mask(keys), forced)) {
            atomic_store(&d->bad_head, kv_head * group + i);
        }
    }
    keep_forced_scores(d, kv_head, scores, start);
    *largest = key_norm > *largest ? key_norm : *largest;
    return bytes;
}

/* A score that at least k keys of the slice reach, for one query head; -infinity when the slice is too small to tell. The k-th
   largest of some more than k maxima is the best bar for its price. */
static float find_bar(const scratch *s, const block_scores *known, int64_t blocks, int64_t k)
{
    const int64_t merged = blocks >= 2 * k ? GROUPS : 1; /* maxima of whole blocks will do */
    const int64_t count = blocks * GROUPS / merged;
    if (count <= k) return -INFINITY;
    for (int64_t n = 0; n < count; n++) {
        const block_scores *block = &known[n * merged / GROUPS];
        const float *maxima = block->maxima + n * merged % GROUPS;
        s->order[n] = maxima[0];
        for (int64_t g = 1; g < merged; g++) s->order[n] = maxima[g] > s->order[n] ? maxima[g] : s->order[n];
        s->order[n] -= block->error;
    }
    return kth_largest(s->order, count, k);
}

/* Keeps what may reach the bar among the `blocks` blocks of a slice, for query head i of a group. Returns how many keys those
   are. */
static int64_t collect_slice(const dw_discovery *d, const scratch *s, int64_t i, int64_t k, int64_t first, int64_t blocks,
                             found *out)
{
    const block_scores *known = s->block + i * d->local_blocks;
    const float bar = k == 0 ? INFINITY : find_bar(s, known, blocks, k);
    int64_t equal = 0;
    int64_t count = 0;
    for (int64_t n = 0; n < blocks && k > 0; n++) {
        const block_scores *block = &known[n];
        const float low = bar - block->error * (1.0f + 0x1p-20f) -
                          fabsf(bar) * 0x1p-22f; /* not above what collect_block takes */
        const float *scores = s->scores + (n * d->shape->group + i) * DW_BLOCK;
        const dw_pos start = dw_shard_block_start(d->shard, (dw_block_slot){first + n});
        if (block->maxima[0] < low && block->maxima[1] < low && block->maxima[2] < low && block->maxima[3] < low) continue;
        count += collect_block(out + count, scores, block, start, dw_visible_keys(d->visible, start), bar, k, &equal);
    }
    return count;
}

static void discover_task(void *context, int64_t task, int thread)
{
    dw_discovery *d = context;
    const scratch *s = &d->thread[thread];
    const int64_t group = d->shape->group;
    const int64_t kv_head = task / d->slices;
    const int64_t slice = task % d->slices;
    const int64_t first = slice_start(d, slice);
    const int64_t blocks = slice_start(d, slice + 1) - first;
    float key_norm = 0.0f;
    int64_t bytes = 0;
    for (int64_t i = 0; i < group; i++) dw_outside_clear(s->mass + i * DW_OUTSIDE_WORDS);
    for (int64_t n = 0; n < blocks; n++) bytes += score_block(d, s, kv_head, first + n, n, &key_norm);
    d->key_norm[kv_head * d->max_slices + slice] = key_norm;
    d->key_bytes[kv_head * d->max_slices + slice] = bytes;
    for (int64_t i = 0; i < group; i++) {
        const int64_t head = kv_head * group + i;
        const int64_t at = head * d->max_slices + slice;
        memcpy(d->mass + at * DW_OUTSIDE_WORDS, s->mass + i * DW_OUTSIDE_WORDS, DW_OUTSIDE_WORDS * sizeof *s->mass);
        d->best_count[at] = collect_slice(d, s, i, d->shape->limit[head], first, blocks,
                                          d->best + head * d->best_capacity + best_offset(d, slice));
    }
}

/* ---- the best of a head ---- */

static int compare_found(const void *a, const void *b)
{
    const dw_candidate *x = &((const found *)a)->key;
    const dw_candidate *y = &((const found *)b)->key;
    if (dw_candidate_better(x, y)) return -1;
    return dw_candidate_better(y, x) ? 1 : 0;
}

/* Drops what can not be among the best k; returns how many are left. */
static int64_t raise_bar(const scratch *s, found *best, int64_t total, int64_t k)
{
    int64_t count = 0;
    float bar;
    if (total <= k) return total;
    for (int64_t n = 0; n < total; n++) s->order[n] = best[n].key.score - best[n].error;
    bar = kth_largest(s->order, total, k);
    for (int64_t n = 0; n < total; n++) {
        if (best[n].key.score + best[n].error >= bar) best[count++] = best[n];
    }
    return count;
}

/* Whether no other head of the group has read the row of this key. */
static int is_first_reader(const dw_discovery *d, int64_t kv_head, dw_pos position)
{
    const int64_t block = position / DW_BLOCK / dw_shard_shape(d->shard)->ranks;
    const uint64_t bit = (uint64_t)1 << position % DW_BLOCK;
    return (atomic_fetch_or(&d->touched[kv_head * d->local_blocks + block], bit) & bit) == 0;
}

/* Exact scores for those that have been screened only; returns how many those were. */
static int64_t score_survivors(dw_discovery *d, const scratch *s, int64_t head, found *best, int64_t total)
{
    const dw_shard_config *config = dw_shard_shape(d->shard);
    found *some[AT_ONCE];
    float scores[AT_ONCE];
    int64_t survivors = 0;
    int count = 0;
    d->rows_read[head] = 0;
    for (int64_t n = 0; n <= total; n++) {
        if (n < total && best[n].error > 0.0f) {
            const char *row = dw_screen_row(d->screen, d->layer, head / d->shape->group, best[n].key.position);
            d->kernels->dequantize[config->key_type](s->rows + count * d->channels, row, d->head_dim);
            some[count++] = &best[n];
            d->rows_read[head] += is_first_reader(d, head / d->shape->group, best[n].key.position);
        }
        if (count < AT_ONCE && n < total) continue;
        d->kernels->key_scores(scores, d->q + head * d->head_dim, s->rows, d->channels, count, (int)d->head_dim);
        for (int j = 0; j < count; j++) {
            some[j]->key.score = scores[j];
            some[j]->error = 0.0f;
        }
        survivors += count;
        count = 0;
    }
    return survivors;
}

/* Joins the slices of one head: their candidates become one list in order, at most k, their masses one sum, both in slice 0's
   place. */
static void join_task(void *context, int64_t head, int thread)
{
    dw_discovery *d = context;
    const scratch *own = &d->thread[thread];
    found *best = d->best + head * d->best_capacity;
    int64_t *count = d->best_count + head * d->max_slices;
    int64_t *mass = d->mass + head * d->max_slices * DW_OUTSIDE_WORDS;
    int64_t total = count[0];
    for (int64_t s = 1; s < d->slices; s++) {
        memmove(best + total, best + best_offset(d, s), (size_t)count[s] * sizeof *best);
        total += count[s];
        dw_outside_merge(mass, mass + s * DW_OUTSIDE_WORDS);
    }
    total = raise_bar(own, best, total, d->shape->limit[head]);
    d->survivors[head] = score_survivors(d, own, head, best, total);
    qsort(best, (size_t)total, sizeof *best, compare_found);
    count[0] = dw_smaller(total, d->shape->limit[head]);
}

static const char *value_row(const dw_discovery *d, int64_t kv_head, dw_pos position)
{
    const dw_block_slot block = {position / DW_BLOCK / dw_shard_shape(d->shard)->ranks};
    const char *values = dw_shard_values(d->shard, d->layer, kv_head, block);
    return values + position % DW_BLOCK * d->shape->value_bytes;
}

/* Copies the V rows of the positions that a section names into it. They lie all over the shard: asked for together first. */
static void fill_values(const dw_discovery *d, int64_t kv_head, const dw_proposal *section, const dw_pos *positions,
                        int64_t count)
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

/* Writes the section of one kv head where the longest sections before it would end. */
static void section_task(void *context, int64_t kv_head, int thread)
{
    const dw_discovery *d = context;
    dw_pos *positions = d->thread[thread].positions;
    const int64_t group = d->shape->group;
    char *at = d->message + kv_head * (d->shape->capacity / d->shape->kv_heads);
    int64_t *counts = dw_proposal_counts(d->shape, at);
    int64_t values;
    dw_proposal section;
    dw_candidate *top;
    for (int64_t i = 0; i < group; i++) counts[i] = d->best_count[(kv_head * group + i) * d->max_slices];
    section = dw_proposal_begin(d->shape, at, d->forced_count, counts, 0);
    *section.key_norm = 0.0;
    *section.key_bytes = 0;
    *section.survivors = 0;
    for (int64_t s = 0; s < d->slices; s++) {
        *section.key_bytes += d->key_bytes[kv_head * d->max_slices + s];
        const double norm = (double)d->key_norm[kv_head * d->max_slices + s];
        if (norm > *section.key_norm) *section.key_norm = norm;
    }
    memcpy(section.forced, d->forced, (size_t)d->forced_count * sizeof *d->forced);
    memset(section.forced_scores, 0, (size_t)((char *)section.top - (char *)section.forced_scores));
    top = section.top;
    for (int64_t i = 0; i < group; i++) {
        const int64_t head = kv_head * group + i;
        *section.survivors += d->survivors[head];
        *section.key_bytes += d->rows_read[head] * dw_row_bytes(dw_shard_shape(d->shard)->key_type, d->head_dim);
        memcpy(section.mass + i * DW_OUTSIDE_WORDS, d->mass + head * d->max_slices * DW_OUTSIDE_WORDS,
               DW_OUTSIDE_WORDS * sizeof(int64_t));
        memcpy(section.forced_scores + i * d->forced_count, d->forced_scores + head * d->forced_count,
               (size_t)d->forced_count * sizeof(float));
        for (int64_t n = 0; n < counts[i]; n++) *top++ = d->best[head * d->best_capacity + n].key;
    }
    values = dw_proposal_positions(d->shape, &section, positions);
    section = dw_proposal_begin(d->shape, at, d->forced_count, counts, values);
    fill_values(d, kv_head, &section, positions, values);
}

/* Moves the sections together; returns the length of the message. */
static int64_t join_sections(const dw_discovery *d)
{
    char *end = d->message;
    for (int64_t g = 0; g < d->shape->kv_heads; g++) {
        char *section = d->message + g * (d->shape->capacity / d->shape->kv_heads);
        const int64_t bytes = *dw_proposal_view(d->shape, section).bytes;
        if (end != section) memmove(end, section, (size_t)bytes);
        end += bytes;
    }
    return end - d->message;
}

/* Enough for the threads, none too short. */
static int64_t count_slices(const dw_discovery *d)
{
    const int64_t wanted = (d->max_slices + d->shape->kv_heads - 1) / d->shape->kv_heads;
    const int64_t most = (d->blocks.end - d->blocks.first) / MIN_SLICE_BLOCKS;
    return dw_pool_threads(d->pool) == 1 || most < 2 ? 1 : dw_smaller(wanted, most);
}

/* The queries as the screen wants them. */
static void prepare_queries(dw_discovery *d, const float *q)
{
    for (int64_t h = 0; h < d->shape->kv_heads * d->shape->group; h++) {
        double sum = 0.0;
        for (int64_t c = 0; c < d->head_dim; c++) sum += (double)q[h * d->head_dim + c] * (double)q[h * d->head_dim + c];
        memcpy(d->padded + h * d->channels, q + h * d->head_dim, (size_t)d->head_dim * sizeof *q);
        d->query_norm[h] = (float)(sqrt(sum) * (1.0 + 0x1p-20));
    }
}

static void start_row(dw_discovery *d, const dw_shard *shard, dw_screen *screen, int64_t layer, const dw_policy *policy,
                      dw_visible visible, const float *q, void *message)
{
    d->message = message;
    d->shard = shard;
    d->screen = screen;
    d->layer = layer;
    d->visible = visible;
    d->policy = policy;
    d->recent = dw_policy_is_empty(policy, visible.first) ? 1 : policy->window;
    d->q = q;
    d->blocks = dw_visible_blocks(visible, shard);
    d->forced_count = list_forced(d);
    prepare_queries(d, q);
    atomic_store(&d->bad_head, -1);
}

static dw_status check_scores(const dw_discovery *d, dw_error *err)
{
    const long long bad = atomic_load(&d->bad_head);
    if (bad < 0) return DW_OK;
    return dw_fail(err, DW_RUNTIME, "layer %lld, head %lld: attention score is not a number or out of range",
                   (long long)d->layer, bad);
}

dw_status dw_discover(dw_discovery *d, const dw_shard *shard, dw_screen *screen, int64_t layer, const dw_policy *policy,
                      dw_visible visible, const float *q, void *message, int64_t *bytes, dw_error *err)
{
    start_row(d, shard, screen, layer, policy, visible, q, message);
    d->slices = count_slices(d);
    if (screen != NULL) memset(d->touched, 0, (size_t)(d->shape->kv_heads * d->local_blocks) * sizeof *d->touched);
    dw_pool_run(d->pool, d->shape->kv_heads * d->slices, discover_task, d);
    DW_TRY(check_scores(d, err));
    dw_pool_run(d->pool, d->shape->kv_heads * d->shape->group, join_task, d);
    dw_pool_run(d->pool, d->shape->kv_heads, section_task, d);
    *bytes = join_sections(d);
    return DW_OK;
}

/* ---- selections that are given ---- */

/* The given positions of one head in one block, of which the scores are there. next: how far the head's list is used up. */
static void take_given(const dw_discovery *d, const scratch *s, int64_t head, int64_t i, dw_pos start, dw_key_range keys,
                       const float *scores, int64_t *next)
{
    const dw_selection *given = d->given;
    const dw_pos *positions = given->positions + head * given->stride;
    const block_scores *known = &s->block[i * d->local_blocks];
    found *best = d->best + head * d->best_capacity;
    int64_t *count = d->best_count + head * d->max_slices;
    for (; *next < given->count[head] && positions[*next] <= start + keys.last; ++*next) {
        const dw_pos p = positions[*next];
        if (p < start + keys.first) continue; /* on another rank, or out of sight */
        best[(*count)++] = (found){{p, scores[p - start], {scores[p - start], known->exponent, known->bits}}, 0.0f};
    }
}

/* Whether a block holds a given position of one of the group's heads. */
static int is_given(const dw_discovery *d, int64_t kv_head, dw_pos start, dw_key_range keys, int64_t *next)
{
    const dw_selection *given = d->given;
    int any = 0;
    for (int64_t i = 0; i < d->shape->group; i++) {
        const int64_t head = kv_head * d->shape->group + i;
        const dw_pos *positions = given->positions + head * given->stride;
        while (next[i] < given->count[head] && positions[next[i]] < start + keys.first) next[i]++;
        any |= next[i] < given->count[head] && positions[next[i]] <= start + keys.last;
    }
    return any;
}

static void given_task(void *context, int64_t kv_head, int thread)
{
    dw_discovery *d = context;
    const scratch *s = &d->thread[thread];
    const int64_t group = d->shape->group;
    int64_t *next = s->next;
    float key_norm = 0.0f;
    int64_t bytes = 0;
    for (int64_t i = 0; i < group; i++) {
        dw_outside_clear(s->mass + i * DW_OUTSIDE_WORDS); /* counted, and not used */
        next[i] = 0;
        d->best_count[(kv_head * group + i) * d->max_slices] = 0;
        d->survivors[kv_head * group + i] = 0;
        d->rows_read[kv_head * group + i] = 0;
    }
    for (int64_t b = d->blocks.first; b < d->blocks.end; b++) {
        const dw_pos start = dw_shard_block_start(d->shard, (dw_block_slot){b});
        const dw_key_range keys = dw_visible_keys(d->visible, start);
        if (!is_given(d, kv_head, start, keys, next) && forced_mask(d, start) == 0) continue;
        bytes += score_block(d, s, kv_head, b, 0, &key_norm);
        for (int64_t i = 0; i < group; i++) {
            take_given(d, s, kv_head * group + i, i, start, keys, s->scores + i * DW_BLOCK, &next[i]);
        }
    }
    for (int64_t i = 0; i < group; i++) {
        const int64_t head = kv_head * group + i;
        found *best = d->best + head * d->best_capacity;
        qsort(best, (size_t)d->best_count[head * d->max_slices], sizeof *best, compare_found);
        dw_outside_clear(d->mass + head * d->max_slices * DW_OUTSIDE_WORDS);
    }
    d->key_norm[kv_head * d->max_slices] = key_norm;
    d->key_bytes[kv_head * d->max_slices] = bytes;
}

dw_status dw_discover_given(dw_discovery *d, const dw_shard *shard, int64_t layer, const dw_policy *policy, dw_visible visible,
                            const float *q, const dw_selection *selection, void *message, int64_t *bytes, dw_error *err)
{
    start_row(d, shard, NULL, layer, policy, visible, q, message);
    d->given = selection;
    d->slices = 1;
    dw_pool_run(d->pool, d->shape->kv_heads, given_task, d);
    DW_TRY(check_scores(d, err));
    dw_pool_run(d->pool, d->shape->kv_heads, section_task, d);
    *bytes = join_sections(d);
    return DW_OK;
}
