/* Which positions a rank would hold for drafting: for each KV head those whose keys weigh most in some row and query head of the group.
   Local. */
#ifndef DW_ATTENTION_SUPPORT_H
#define DW_ATTENTION_SUPPORT_H

#include "attention/proposal.h"
#include "base/pool.h"
#include "cache/shard.h"

enum { DW_SUPPORT_ROWS = 4 };

/* Rows that were verified: row i at position `position[i]`, its queries q[i] [heads][head_dim], and offsets [rows][heads]: bits that its
   weights are divided by (log2 of their sum, or a guess). */
typedef struct {
    int64_t rows;
    dw_pos position[DW_SUPPORT_ROWS];
    const float *q[DW_SUPPORT_ROWS];
    const float *offsets;
} dw_support_query;

typedef struct dw_support dw_support;

/* keys: positions of a support. kernels and pool are borrowed. */
dw_status dw_support_create(dw_support **out, const dw_kernels *kernels, dw_pool *pool, const dw_shard_config *config,
                            int64_t heads, int64_t keys, dw_error *err);
void dw_support_destroy(dw_support *support);

/* Bytes of a message about one layer: for each KV head a ranked list (attention/ranked.h; weight: bits of the largest). */
int64_t dw_support_bytes(const dw_support *support);

/* The best of the shard's positions below `end` in a layer where rows see the last `window` positions (0: all). */
void dw_support_select(dw_support *support, const dw_shard *shard, int64_t layer, int64_t window, dw_pos end,
                       const dw_support_query *query, void *message);

/* Merges theirs into mine, both messages about one layer. */
void dw_support_merge(const dw_support *support, void *mine, const void *theirs);

/* Positions of a merged message, ascending; room for keys. Returns their number. */
int64_t dw_support_positions(const dw_support *support, const void *message, int64_t kv_head, dw_pos *positions);

#endif
