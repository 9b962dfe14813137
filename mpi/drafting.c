#include "mpi/drafting.h"

#include <math.h>
#include <string.h>

#include "attention/draft_cache.h"
#include "attention/mean_key.h"
#include "attention/partial.h"
#include "base/integers.h"
#include "base/memory.h"
#include "mpi/collective.h"

enum { KEPT_ROWS = DW_MAX_DRAFT + 1 };

/* What rank 0 asks for; [layers][rows][heads] offsets follow. */
typedef struct {
    int64_t rows;
    dw_pos position[DW_SUPPORT_ROWS];
    dw_pos end; /* of the positions to choose from */
} request;

struct dw_drafting {
    dw_transport *transport;
    const dw_shard *shard;
    dw_shard_config config;
    const int64_t *windows;
    int64_t heads;
    int64_t keys;                   /* of a support */
    int64_t key_bytes, value_bytes; /* of one row of one head */
    int64_t bytes;
    const int32_t **value_exponent; /* [layers], of the models */
    dw_pos kept_first;              /* position of the first row whose queries are kept */
    float *kept_q;                  /* [layers][KEPT_ROWS][heads * head_dim]: the row at position p in place p mod KEPT_ROWS */
    dw_support *support;
    int64_t message_bytes; /* of all layers */
    char *message;
    char *theirs;
    char *ask; /* request and offsets */
    int64_t ask_bytes;
    dw_missing_row *missing; /* [layers * kv_heads * keys] */
    char *rows;              /* K and V rows on their way */

    dw_draft_cache *cache; /* rank 0, with: */
    float *kept_out;       /* [layers][KEPT_ROWS][heads * head_dim] dense outputs, places as in kept_q */
    float *kept_log_z;     /* [layers][KEPT_ROWS][heads] bits of the sums of weights */
    dw_pos *kept_at;       /* [KEPT_ROWS] which position kept_out is of; -1: none, another rank has it */
    dw_pos *positions;     /* [layers][kv_heads][keys] of the support, ascending */
    int64_t *counts;       /* [layers][kv_heads] */
    dw_mean_key *mean_key;
    float *tail_key; /* [heads][head_dim] */
};

int64_t dw_support_keys(int64_t context)
{
    return dw_larger(512, dw_smaller(4096, context / 16 / DW_BLOCK * DW_BLOCK));
}

static dw_status create_parts(dw_drafting *d, dw_pool *pool, const dw_kernels *kernels, dw_error *err)
{
    const dw_shard_config *c = &d->config;
    const int64_t lists = c->layers * c->kv_heads;
    DW_TRY(DW_ALLOC(&d->kept_q, c->layers * KEPT_ROWS * d->heads * c->head_dim, "drafting", err));
    DW_TRY(dw_support_create(&d->support, kernels, pool, c, d->heads, d->keys, err));
    DW_TRY(DW_ALLOC(&d->value_exponent, c->layers, "drafting", err));
    d->message_bytes = c->layers * dw_support_bytes(d->support);
    d->ask_bytes = (int64_t)sizeof(request) + c->layers * DW_SUPPORT_ROWS * d->heads * (int64_t)sizeof(float);
    DW_TRY(dw_alloc_bytes((void **)&d->message, d->message_bytes, 1, "drafting", err));
    DW_TRY(dw_alloc_bytes((void **)&d->theirs, d->message_bytes, 1, "drafting", err));
    DW_TRY(dw_alloc_bytes((void **)&d->ask, d->ask_bytes, 1, "drafting", err));
    DW_TRY(DW_ALLOC(&d->missing, lists * d->keys, "drafting", err));
    DW_TRY(dw_alloc_bytes((void **)&d->rows, lists * d->keys, d->key_bytes + d->value_bytes, "drafting", err));
    d->bytes = d->message_bytes * 2 + lists * d->keys * (d->key_bytes + d->value_bytes + (int64_t)sizeof *d->missing) +
               c->layers * KEPT_ROWS * d->heads * c->head_dim * (int64_t)sizeof(float);
    if (d->transport->rank != 0) return DW_OK;
    DW_TRY(dw_draft_cache_create(&d->cache, kernels, pool, c, d->heads, d->keys, err));
    d->bytes += dw_draft_cache_bytes(d->cache);
    DW_TRY(DW_ALLOC(&d->kept_out, c->layers * KEPT_ROWS * d->heads * c->head_dim, "drafting", err));
    DW_TRY(DW_ALLOC(&d->kept_log_z, c->layers * KEPT_ROWS * d->heads, "drafting", err));
    DW_TRY(DW_ALLOC(&d->kept_at, KEPT_ROWS, "drafting", err));
    for (int i = 0; i < KEPT_ROWS; i++) d->kept_at[i] = -1;
    d->bytes += c->layers * KEPT_ROWS * d->heads * (c->head_dim + 1) * (int64_t)sizeof(float);
    DW_TRY(DW_ALLOC(&d->counts, lists, "drafting", err));
    DW_TRY(dw_mean_key_create(&d->mean_key, kernels, pool, c, d->heads, err));
    DW_TRY(DW_ALLOC(&d->tail_key, d->heads * c->head_dim, "drafting", err));
    return DW_ALLOC(&d->positions, lists * d->keys, "drafting", err);
}

dw_status dw_drafting_create(dw_drafting **out, dw_transport *transport, dw_pool *pool, const dw_kernels *kernels,
                             const dw_shard *shard, int64_t heads, const int64_t *windows, dw_error *err)
{
    dw_drafting *d;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&d, 1, "drafting", err));
    d->transport = transport;
    d->shard = shard;
    d->config = *dw_shard_shape(shard);
    d->windows = windows;
    d->heads = heads;
    d->keys = dw_support_keys(d->config.context);
    d->key_bytes = dw_row_bytes(d->config.key_type, d->config.head_dim);
    d->value_bytes = dw_row_bytes(d->config.value_type, d->config.head_dim);
    status = create_parts(d, pool, kernels, err);
    if (status != DW_OK) {
        dw_drafting_destroy(d);
        return status;
    }
    *out = d;
    return DW_OK;
}

void dw_drafting_destroy(dw_drafting *d)
{
    if (d == NULL) return;
    dw_support_destroy(d->support);
    dw_draft_cache_destroy(d->cache);
    dw_free(d->value_exponent);
    dw_free(d->kept_q);
    dw_free(d->message);
    dw_free(d->theirs);
    dw_free(d->ask);
    dw_free(d->missing);
    dw_free(d->rows);
    dw_free(d->kept_out);
    dw_free(d->kept_log_z);
    dw_free(d->kept_at);
    dw_free(d->positions);
    dw_free(d->counts);
    dw_mean_key_destroy(d->mean_key);
    dw_free(d->tail_key);
    dw_free(d);
}

int64_t dw_drafting_bytes(const dw_drafting *d)
{
    return d->bytes;
}

/* Place of a row in the arrays of kept rows. */
static int64_t place_of(int64_t layer, dw_pos position)
{
    return layer * KEPT_ROWS + position % KEPT_ROWS;
}

/* Queries of a row in a layer. */
static float *kept_query(const dw_drafting *d, int64_t layer, dw_pos position)
{
    return d->kept_q + place_of(layer, position) * d->heads * d->config.head_dim;
}

void dw_drafting_keep(dw_drafting *d, int64_t layer, dw_pos first, int64_t count, const char *rows, int64_t stride,
                      int64_t q_bytes, int has_q)
{
    const int64_t key_row_bytes = dw_shard_key_row_bytes(&d->config);
    const int64_t last_rows = dw_smaller(count, KEPT_ROWS);
    d->kept_first = first + count - last_rows;
    for (int64_t t = count - last_rows; t < count; t++) {
        if (has_q) memcpy(kept_query(d, layer, first + t), rows + t * stride, (size_t)q_bytes);
        if (d->cache != NULL) d->kept_at[(first + t) % KEPT_ROWS] = -1; /* until the output comes, in the last layer too */
    }
    for (int64_t t = dw_larger(0, count - DW_DRAFT_RECENT); d->cache != NULL && t < count; t++) {
        const char *key = rows + t * stride + q_bytes;
        dw_draft_cache_put(d->cache, layer, first + t, key, key + key_row_bytes);
    }
}

void dw_drafting_keep_output(dw_drafting *d, int64_t layer, dw_pos position, const float *out, const int64_t *partials,
                             const int32_t *value_exponent)
{
    const int64_t channels = d->config.head_dim + 1;
    const int64_t place = place_of(layer, position);
    memcpy(d->kept_out + place * d->heads * d->config.head_dim, out,
           (size_t)(d->heads * d->config.head_dim) * sizeof *d->kept_out);
    for (int64_t h = 0; h < d->heads; h++) {
        d->kept_log_z[place * d->heads + h] = dw_partial_bits(partials + h * dw_partial_words(channels), channels);
    }
    d->value_exponent[layer] = value_exponent;
    d->kept_at[position % KEPT_ROWS] = position;
}

dw_status dw_drafting_attend(dw_drafting *d, int64_t layer, dw_pos position, const float *q, const void *key, const void *value,
                             const int32_t *value_exponent, float *out, dw_error *err)
{
    dw_draft_cache_put(d->cache, layer, position, key, value);
    dw_draft_cache_attend(d->cache, layer, dw_visible_positions(position, d->windows[layer]), q, value_exponent, out);
    for (int64_t i = 0; i < d->heads * d->config.head_dim; i++) {
        if (!isfinite(out[i])) return dw_fail(err, DW_RUNTIME, "layer %lld: a drafted row is not a number", (long long)layer);
    }
    return DW_OK;
}

/* ---- the support ---- */

/* Some of the kept rows first .. positions - 1, the last one among them, and what their weights are divided by. */
static void make_request(dw_drafting *d, dw_pos first, dw_pos positions)
{
    const int64_t rows = dw_smaller(positions - first, DW_SUPPORT_ROWS);
    float *offsets = (float *)(void *)(d->ask + sizeof(request));
    request *r = (request *)(void *)d->ask;
    *r = (request){.rows = rows, .end = dw_larger(0, positions - DW_DRAFT_RECENT + DW_BLOCK)};
    for (int64_t i = 0; i < rows; i++) r->position[i] = positions - 1 - (rows - 1 - i) * (positions - first) / rows;
    for (int64_t l = 0; l < d->config.layers; l++) {
        for (int64_t i = 0; i < rows; i++) {
            memcpy(offsets + (l * rows + i) * d->heads, d->kept_log_z + place_of(l, r->position[i]) * d->heads,
                   (size_t)d->heads * sizeof *offsets);
        }
    }
}

static void select_all(dw_drafting *d)
{
    const request *r = (const request *)(const void *)d->ask;
    const float *offsets = (const float *)(const void *)(d->ask + sizeof(request));
    for (int64_t l = 0; l < d->config.layers; l++) {
        dw_support_query query = {.rows = r->rows, .offsets = offsets + l * r->rows * d->heads};
        for (int64_t i = 0; i < r->rows; i++) {
            query.position[i] = r->position[i];
            query.q[i] = kept_query(d, l, r->position[i]);
        }
        dw_support_select(d->support, d->shard, l, d->windows[l], r->end, &query,
                          d->message + l * dw_support_bytes(d->support));
    }
}

static dw_status merge_supports(void *context, void *mine, int64_t *mine_bytes, int64_t capacity, const void *theirs,
                                int64_t theirs_bytes, dw_error *err)
{
    const dw_drafting *d = context;
    const int64_t bytes = dw_support_bytes(d->support);
    (void)capacity;
    if (*mine_bytes != theirs_bytes) return dw_fail(err, DW_RUNTIME, "a support of another rank has the wrong length");
    for (int64_t l = 0; l < d->config.layers; l++) {
        dw_support_merge(d->support, (char *)mine + l * bytes, (const char *)theirs + l * bytes);
    }
    return DW_OK;
}

/* Rank 0: makes the merged support the draft cache's; what rows it lacks goes into d->missing. */
static int64_t list_missing(dw_drafting *d)
{
    int64_t count = 0;
    for (int64_t l = 0; l < d->config.layers; l++) {
        for (int64_t g = 0; g < d->config.kv_heads; g++) {
            const int64_t list = l * d->config.kv_heads + g;
            dw_pos *positions = d->positions + list * d->keys;
            d->counts[list] = dw_support_positions(d->support, d->message + l * dw_support_bytes(d->support), g, positions);
            count += dw_draft_cache_support(d->cache, l, g, positions, d->counts[list], d->missing + count);
        }
    }
    return count;
}

static int owner_of(const dw_drafting *d, const dw_missing_row *row)
{
    return (int)(row->position / DW_BLOCK % d->config.ranks);
}

/* The missing rows of one rank, in order, into d->rows; returns their bytes. */
static int64_t pack_rows(dw_drafting *d, int64_t count)
{
    char *at = d->rows;
    for (int64_t i = 0; i < count; i++) {
        const dw_missing_row *row = &d->missing[i];
        if (owner_of(d, row) != d->config.rank) continue;
        dw_shard_get(d->shard, row->layer, row->kv_head, row->position, at, at + d->key_bytes);
        at += d->key_bytes + d->value_bytes;
    }
    return at - d->rows;
}

/* Rank 0: the rows of a rank, in d->rows. */
static void fill_rows(dw_drafting *d, int64_t count, int rank)
{
    const char *at = d->rows;
    for (int64_t i = 0; i < count; i++) {
        const dw_missing_row *row = &d->missing[i];
        if (owner_of(d, row) != rank) continue;
        dw_draft_cache_fill(d->cache, row, at, at + d->key_bytes);
        at += d->key_bytes + d->value_bytes;
    }
}

static int64_t count_rows(const dw_drafting *d, int64_t count, int rank)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < count; i++) rows += owner_of(d, &d->missing[i]) == rank;
    return rows;
}

/* Every rank sends what it has of the missing rows. */
static dw_status move_rows(dw_drafting *d, int64_t count, dw_error *err)
{
    const int64_t mine = pack_rows(d, count);
    if (d->transport->rank != 0) return mine == 0 ? DW_OK : dw_send(d->transport, 0, d->rows, mine, err);
    fill_rows(d, count, 0);
    for (int r = 1; r < d->transport->size; r++) {
        const int64_t bytes = count_rows(d, count, r) * (d->key_bytes + d->value_bytes);
        int64_t received;
        if (bytes == 0) continue;
        DW_TRY(dw_receive(d->transport, r, d->rows, bytes, &received, err));
        if (received != bytes) return dw_fail(err, DW_RUNTIME, "rows of rank %d have the wrong length", r);
        fill_rows(d, count, r);
    }
    return DW_OK;
}

/* Rank 0: what the support leaves out for the last row. Where it lies is taken from the own shard alone: every rank has a like part of all
   blocks. */
static void freeze_tails(dw_drafting *d, dw_pos position)
{
    for (int64_t l = 0; l < d->config.layers; l++) {
        const int64_t place = place_of(l, position);
        const dw_visible visible = dw_visible_positions(position, d->windows[l]);
        const dw_visible older = {visible.first, position - DW_DRAFT_RECENT};
        const int64_t list = l * d->config.kv_heads;
        const dw_held_positions held = {d->positions + list * d->keys, d->counts + list, d->keys};
        const float *q = kept_query(d, l, position);
        const float *log_z = d->kept_log_z + place * d->heads;
        const int has_older = older.first <= older.last;
        if (has_older) dw_mean_key_find(d->mean_key, d->shard, l, older, q, log_z, &held, d->tail_key);
        dw_draft_cache_freeze(d->cache, l, visible, q, d->value_exponent[l],
                              d->kept_out + place * d->heads * d->config.head_dim, log_z, has_older ? d->tail_key : NULL);
    }
}

dw_status dw_drafting_refresh(dw_drafting *d, dw_pos first, dw_pos positions, dw_error *err)
{
    int64_t bytes = d->message_bytes;
    int64_t count = 0;
    if (d->transport->rank == 0) make_request(d, dw_larger(first, d->kept_first), positions);
    DW_TRY(dw_broadcast(d->transport, d->ask, d->ask_bytes, err));
    select_all(d);
    DW_TRY(dw_reduce(d->transport, d->message, &bytes, bytes, d->theirs, merge_supports, d, err));
    if (d->transport->rank == 0) count = list_missing(d);
    DW_TRY(dw_broadcast(d->transport, &count, (int64_t)sizeof count, err));
    if (count > 0) {
        DW_TRY(dw_broadcast(d->transport, d->missing, count * (int64_t)sizeof *d->missing, err));
        DW_TRY(move_rows(d, count, err));
    }
    if (d->transport->rank == 0) freeze_tails(d, positions - 1);
    return DW_OK;
}

int dw_drafting_can_refresh(const dw_drafting *d, dw_pos first, dw_pos positions)
{
    const dw_pos from = dw_larger(first, d->kept_first);
    for (dw_pos p = from; p < positions; p++) {
        if (d->kept_at[p % KEPT_ROWS] != p) return 0;
    }
    return from < positions; /* else the rows that are kept have been truncated */
}
