/* One rank's share of the KV cache. Positions are dealt to ranks block-cyclically in blocks of 64 (absolute positions): block b
   lies on rank b mod N as its local block b / N. Keys of a block lie channel-major, [head_dim][64], so that scores run SIMD
   across keys; values lie [64][head_dim], so that weighted sums run SIMD across channels. Local. */
#ifndef DW_CACHE_SHARD_H
#define DW_CACHE_SHARD_H

#include <stdint.h>

#include "base/error.h"
#include "kernels/kernels.h"

typedef int64_t dw_pos; /* position in the sequence, global */

/* Ascending, for qsort and bsearch. */
static inline int dw_pos_compare(const void *a, const void *b)
{
    const dw_pos x = *(const dw_pos *)a;
    const dw_pos y = *(const dw_pos *)b;
    return (x > y) - (x < y);
}

/* Index of the first of count ascending positions that is not below `position`; count when all are. */
static inline int64_t dw_pos_lower_bound(const dw_pos *positions, int64_t count, dw_pos position)
{
    int64_t low = 0;
    int64_t high = count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (positions[middle] < position) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

typedef struct {
    int64_t index;
} dw_block_slot; /* block of this shard, local */

typedef struct {
    int64_t layers;
    int64_t kv_heads;
    int64_t head_dim;
    dw_type key_type;   /* DW_F32, DW_F16, DW_BF16 */
    dw_type value_type; /* likewise */
    int64_t context;    /* positions of the whole sequence */
    int rank;
    int ranks;
} dw_shard_config;

typedef struct dw_shard dw_shard;

/* Blocks of a shard of this configuration, at most. */
static inline int64_t dw_shard_most_blocks(const dw_shard_config *config)
{
    return config->context / DW_BLOCK / config->ranks + 1;
}

dw_status dw_shard_create(dw_shard **out, const dw_shard_config *config, dw_error *err);
void dw_shard_destroy(dw_shard *shard);
const dw_shard_config *dw_shard_shape(const dw_shard *shard);

/* Bytes that a shard of this configuration takes, also before it exists (INT64_MAX when that overflows). */
int64_t dw_shard_bytes(const dw_shard_config *config);

/* Numbers rounded to the cache type (nearest, ties to even): [n] of type at out. */
void dw_cache_round(void *out, const float *x, int64_t n, dw_type type);
/* And back, exactly. */
void dw_cache_widen(float *out, const void *x, int64_t n, dw_type type);

/* Bytes of the K or V row of one position in one layer: [kv_heads][head_dim] of the cache type. */
int64_t dw_shard_key_row_bytes(const dw_shard_config *config);
int64_t dw_shard_value_row_bytes(const dw_shard_config *config);

/* Stores one KV head of the K and V rows (in cache type, as above, all heads) of one position if it lies on this rank, else
   does nothing. An old row at the position is overwritten. position < context. Threads may store different heads at once. */
void dw_shard_put(dw_shard *shard, int64_t layer, int64_t kv_head, dw_pos position, const void *key_row, const void *value_row);

/* The K and V row, [head_dim] each, of one KV head of a position that lies on this rank. */
void dw_shard_get(const dw_shard *shard, int64_t layer, int64_t kv_head, dw_pos position, void *key, void *value);

/* Of the K and V rows at the positions of this shard below `positions`, and where they stand: the sum over all ranks does not depend on
   their number. */
uint64_t dw_shard_checksum(const dw_shard *shard, dw_pos positions);

/* Blocks of this shard that hold positions below `positions`. */
int64_t dw_shard_blocks(const dw_shard *shard, dw_pos positions);

/* First position of a local block. */
dw_pos dw_shard_block_start(const dw_shard *shard, dw_block_slot block);

/* K block [head_dim][64], V block [64][head_dim]. Rows never stored are zero. */
const void *dw_shard_keys(const dw_shard *shard, int64_t layer, int64_t kv_head, dw_block_slot block);
const void *dw_shard_values(const dw_shard *shard, int64_t layer, int64_t kv_head, dw_block_slot block);

/* Upper bound of |K[j]|_2 over the keys first..last (0..63) of a block. */
float dw_shard_key_norm(const dw_shard *shard, int64_t layer, int64_t kv_head, dw_block_slot block, int first, int last);

#endif
