/* Exact attention over a condensate set, on the coordinator: the definition of dense attention over the same absolute blocks,
   with the weights of unselected keys +0. A set that holds every visible key gives dense attention's bits. Local. */
#ifndef DW_ATTENTION_SPARSE_H
#define DW_ATTENTION_SPARSE_H

#include "attention/omitted.h"
#include "attention/proposal.h"
#include "attention/visible.h"
#include "base/pool.h"

typedef struct dw_sparse dw_sparse;

/* shape, kernels and pool are borrowed. */
dw_status dw_sparse_create(dw_sparse **out, const dw_kernels *kernels, dw_pool *pool, const dw_shard_config *config,
                           const dw_proposal_shape *shape, dw_error *err);
void dw_sparse_destroy(dw_sparse *sparse);

/* message: the proposals of all ranks merged, for the row that sees `visible`, with queries q [heads][head_dim].
   tail: NULL, or [heads][words] partial sums that are added to those of the set (attention/tail.h).
   is_measured: the message has the mass of all keys; else omitted is [0, 1] unless the set holds all that the row sees.
   out: [heads][head_dim]; omitted: [heads], the share of what the row sees that is outside the set. value_exponent:
   [kv_heads]. */
void dw_sparse_attend(dw_sparse *sparse, dw_visible visible, const float *q, const int32_t *value_exponent, void *message,
                      const int64_t *tail, int is_measured, float *out, dw_interval *omitted);

#endif
