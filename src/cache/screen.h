/* The int8 screen: approximate scores of whole blocks of keys, with a certified bound of their error, for about half the bytes of f16
   keys; and the rows of those keys, each in one piece, for the few that are then scored exactly.

   Per block and channel, key = lowest + scale * code + residual with codes 0..255, lowest and scale in bfloat16 (lowest rounded down,
   scale up, so that the codes reach over all keys). With a = lowest + 128 scale and p = q * scale the float score of a key
   (kernels.h, scores) and its screened score (screen_scores) differ by at most
     min(|q| e, |p| f) + 0.51 unit 128 d + 1.02 (d + 16) 2^-24 |q| (|key| + |a| + e),
   e and f the largest |residual| and |residual / scale| among the keys of the block (docs/numerics.md). A block is screened when it is
   asked for the first time, and again after one of its rows was stored anew. Local. */
#ifndef DW_CACHE_SCREEN_H
#define DW_CACHE_SCREEN_H

#include "cache/shard.h"

typedef struct dw_screen dw_screen;

/* kernels are borrowed. */
dw_status dw_screen_create(dw_screen **out, const dw_kernels *kernels, const dw_shard_config *config, dw_error *err);
void dw_screen_destroy(dw_screen *screen);
/* Bytes of a screen of this configuration. */
int64_t dw_screen_bytes(const dw_shard_config *config);

/* To be called when the rows of `count` positions from `first` on have been stored in a layer. */
void dw_screen_forget(dw_screen *screen, int64_t layer, dw_pos first, int64_t count);

/* What is known of one block; the arrays belong to the screen. */
typedef struct {
    const uint8_t *codes;   /* [channels / 4][64][4] */
    const uint16_t *scale;  /* [channels] bfloat16 */
    const uint16_t *lowest; /* [channels] bfloat16 */
    const char *rows;       /* [64][head_dim] of the key type: the keys themselves */
    float residual;         /* e */
    float relative;         /* f */
    float offset_norm;      /* |a|_2, upper bound */
    float key_norm;         /* largest |key|_2, upper bound */
} dw_screen_block;

/* Channels of the arrays: head_dim padded with zeros to whole lanes. */
int64_t dw_screen_channels(const dw_shard_config *config);

/* The screen of a block all of whose 64 rows are stored. Threads may ask for different KV heads or blocks at once. */
dw_screen_block dw_screen_of(dw_screen *screen, const dw_shard *shard, int64_t layer, int64_t kv_head, dw_block_slot block);

/* A key row [head_dim] of the key type, of a block that was asked for already. */
const char *dw_screen_row(const dw_screen *screen, int64_t layer, int64_t kv_head, dw_pos position);

/* Bytes that are read to score a block approximately. */
int64_t dw_screen_block_bytes(const dw_shard_config *config);

/* The error bound above, in raw score units. query_norm: |q|_2, upper bound. */
float dw_screen_error(const dw_screen_block *block, const dw_screen_query *query, float query_norm, int64_t head_dim);

#endif
