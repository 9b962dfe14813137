/* Where the attention of a row lies that some held positions leave out: the mean of the other keys by their weights, for each query head. Only
   for hints (the frozen tail of drafting): plain float sums. Local. */
#ifndef DW_ATTENTION_MEAN_KEY_H
#define DW_ATTENTION_MEAN_KEY_H

#include "attention/visible.h"
#include "base/pool.h"
#include "cache/shard.h"

typedef struct dw_mean_key dw_mean_key;

/* kernels and pool are borrowed. */
dw_status dw_mean_key_create(dw_mean_key **out, const dw_kernels *kernels, dw_pool *pool, const dw_shard_config *config,
                             int64_t heads, dw_error *err);
void dw_mean_key_destroy(dw_mean_key *mean);

/* Positions that count for nothing: [kv_heads] lists of count[kv_head] positions, ascending, `room` apart. */
typedef struct {
    const dw_pos *positions;
    const int64_t *count;
    int64_t room;
} dw_held_positions;

/* Of the visible keys of a shard. q: [heads][head_dim] of the row; log_z: [heads] bits of its sum of weights over all shards; mean:
   [heads][head_dim], zeros where no such key has a weight. */
void dw_mean_key_find(dw_mean_key *mean, const dw_shard *shard, int64_t layer, dw_visible visible, const float *q,
                      const float *log_z, const dw_held_positions *held, float *out);

#endif
