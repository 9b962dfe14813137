/* Dense attention of some rows over one rank's shard: partial sums for every row and head. Local. */
#ifndef DW_ATTENTION_SCAN_H
#define DW_ATTENTION_SCAN_H

#include "attention/visible.h"
#include "base/pool.h"
#include "cache/shard.h"

/* Query rows of one layer. Row t sits at position first + t and sees dw_visible_positions(first + t, window). */
typedef struct {
    int64_t rows;
    dw_pos first;
    const float *q; /* row t: [heads][head_dim] f32 at q + t * stride, natural units (not scaled) */
    int64_t stride; /* floats */
    int64_t window; /* positions that a row sees, itself included; 0: all up to its own */
} dw_queries;

/* log2(e) / sqrt(head_dim): raw scores times this are bits. */
float dw_score_scale(int64_t head_dim);

/* Scratch for scans of up to max_rows rows with `heads` query heads over shards of one shape. pool and kernels are borrowed. */
typedef struct dw_scan dw_scan;
dw_status dw_scan_create(dw_scan **out, const dw_kernels *kernels, dw_pool *pool, const dw_shard_config *shape, int64_t heads,
                         int64_t max_rows, dw_error *err);
void dw_scan_destroy(dw_scan *scan);

/* partials: [rows][heads][dw_partial_words(head_dim + 1)], the last channel being the sum of weights. value_exponent:
   [kv_heads]. Blocks that no row sees are not read. DW_RUNTIME when a score is not a number or out of range (names layer and
   head). */
dw_status dw_scan_dense(dw_scan *scan, const dw_shard *shard, int64_t layer, const dw_queries *queries,
                        const int32_t *value_exponent, int64_t *partials, dw_error *err);

#endif
