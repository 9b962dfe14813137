/* Keys and values that the coordinator holds itself, to draft tokens without asking anybody: for every layer and KV head the last positions
   and a support of chosen older ones. Attention over them only drafts: what it leaves out costs accepted tokens, never correctness. Local. */
#ifndef DW_ATTENTION_DRAFT_CACHE_H
#define DW_ATTENTION_DRAFT_CACHE_H

#include "attention/visible.h"
#include "base/pool.h"
#include "cache/shard.h"

enum { DW_DRAFT_RECENT = 256 }; /* last positions that are held */

typedef struct dw_draft_cache dw_draft_cache;

/* keys: positions of a support, rounded up to whole blocks. kernels and pool are borrowed. */
dw_status dw_draft_cache_create(dw_draft_cache **out, const dw_kernels *kernels, dw_pool *pool, const dw_shard_config *config,
                                int64_t heads, int64_t keys, dw_error *err);
void dw_draft_cache_destroy(dw_draft_cache *cache);
int64_t dw_draft_cache_bytes(const dw_draft_cache *cache);

/* Holds the K and V rows (in cache type, all KV heads) of a position, in place of the one DW_DRAFT_RECENT before it. */
void dw_draft_cache_put(dw_draft_cache *cache, int64_t layer, dw_pos position, const void *key_row, const void *value_row);

/* A row that a support lacks, and where it goes. */
typedef struct {
    int64_t layer, kv_head, slot;
    dw_pos position;
} dw_missing_row;

/* Makes `count` positions (ascending, at most keys) the support of a layer and KV head; rows that are held stay. missing: room for count; those
   that dw_draft_cache_fill must give. Returns their number. */
int64_t dw_draft_cache_support(dw_draft_cache *cache, int64_t layer, int64_t kv_head, const dw_pos *positions, int64_t count,
                               dw_missing_row *missing);
/* key, value: [head_dim] of the cache type, of one head. */
void dw_draft_cache_fill(dw_draft_cache *cache, const dw_missing_row *row, const void *key, const void *value);

/* Attention of the row at `visible.last` over what is held and visible, and the frozen tail of the layer. q: [heads][head_dim]; value_exponent:
   [kv_heads]; out: [heads][head_dim]. The row's own position must be held. */
void dw_draft_cache_attend(dw_draft_cache *cache, int64_t layer, dw_visible visible, const float *q,
                           const int32_t *value_exponent, float *out);

/* Freezes what is not held into one more key and value for each head of a layer (a first-order tail): the value is what dense attention of a row
   has besides the held keys, its weight is what they lack for that row, and changes for other rows as if all of it lay at the key.
   q: [heads][head_dim] of the row at visible.last; dense: [heads][head_dim] its dense output; log_z: [heads] bits of its sum of weights; key:
   [heads][head_dim] mean of the keys that are not held, by the row's weights (NULL: 0). */
void dw_draft_cache_freeze(dw_draft_cache *cache, int64_t layer, dw_visible visible, const float *q,
                           const int32_t *value_exponent, const float *dense, const float *log_z, const float *key);

#endif
