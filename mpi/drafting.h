/* What lossless decoding needs of the ranks besides dense attention: the coordinator holds a draft cache (attention/draft_cache.h), every
   rank the queries of the last dense rows; a refresh chooses the support anew from all shards. */
#ifndef DW_MPI_DRAFTING_H
#define DW_MPI_DRAFTING_H

#include "attention/support.h"
#include "cache/shard.h"
#include "mpi/transport.h"

enum { DW_MAX_DRAFT = 16 }; /* tokens drafted before they are verified */

/* Positions of a support, for each layer and KV head: a sixteenth of the context, 512 to 4096. (docs/lossless.md has measurements.) */
int64_t dw_support_keys(int64_t context);

typedef struct dw_drafting dw_drafting;

/* Local. windows: [layers] positions that a row sees (0: all), borrowed like transport, pool, kernels and shard. */
dw_status dw_drafting_create(dw_drafting **out, dw_transport *transport, dw_pool *pool, const dw_kernels *kernels,
                             const dw_shard *shard, int64_t heads, const int64_t *windows, dw_error *err);
void dw_drafting_destroy(dw_drafting *drafting);
int64_t dw_drafting_bytes(const dw_drafting *drafting);

/* Local, every rank, when dense rows have been stored: `count` rows from position `first` on, row t with q (NULL: not computed), key and value
   at rows + t * stride, + q_bytes, + q_bytes + the bytes of a key row. */
void dw_drafting_keep(dw_drafting *drafting, int64_t layer, dw_pos first, int64_t count, const char *rows, int64_t stride,
                      int64_t q_bytes, int has_q);

/* Rank 0, local, when a dense row of its own is finished: its output [heads][head_dim] and partial sums [heads][words]. value_exponent: [kv_heads] of
   the layer, borrowed. */
void dw_drafting_keep_output(dw_drafting *drafting, int64_t layer, dw_pos position, const float *out, const int64_t *partials,
                             const int32_t *value_exponent);

/* Rank 0, local: attention of a drafted row over what the draft cache holds. q: [heads][head_dim]; key, value: rows in cache type; out:
   [heads][head_dim]. DW_RUNTIME when an output is not a number. */
dw_status dw_drafting_attend(dw_drafting *drafting, int64_t layer, dw_pos position, const float *q, const void *key,
                             const void *value, const int32_t *value_exponent, float *out, dw_error *err);

/* Collective: chooses the support from the positions below `positions` by up to DW_SUPPORT_ROWS of the last dense rows: those from `first` on,
   which lie below `positions`, moves the rows that the coordinator lacks, and freezes the tail that the last of these rows has besides. first,
   positions: rank 0's count. Only when dw_drafting_can_refresh(). */
dw_status dw_drafting_refresh(dw_drafting *drafting, dw_pos first, dw_pos positions, dw_error *err);

/* Rank 0, local: whether it has the outputs of these rows. (A long prefill leaves the last ones to the last rank.) */
int dw_drafting_can_refresh(const dw_drafting *drafting, dw_pos first, dw_pos positions);

#endif
