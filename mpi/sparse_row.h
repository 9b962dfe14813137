/* Sparse attention of one row over all ranks, by the policies of a plan: what travels is drawn in docs/protocol.md. The row's keys and
   values are in the shards already (mpi/attend.h). */
#ifndef DW_MPI_SPARSE_ROW_H
#define DW_MPI_SPARSE_ROW_H

#include "attention/omitted.h"
#include "attention/policy.h"
#include "cache/screen.h"
#include "mpi/attend.h"

typedef struct dw_sparse_row dw_sparse_row;

/* What a rank has anyway; borrowed. */
typedef struct {
    dw_transport *transport;
    dw_pool *pool;
    const dw_kernels *kernels;
    const dw_shard *shard;
    dw_screen *screen; /* NULL: no plan uses it */
} dw_sparse_row_parts;

/* Local. Buffers for the largest budgets of the plan, which is borrowed. */
dw_status dw_sparse_row_create(dw_sparse_row **out, const dw_sparse_row_parts *parts, int64_t heads, const dw_policy_plan *plan,
                               dw_error *err);
void dw_sparse_row_destroy(dw_sparse_row *row);
int64_t dw_sparse_row_bytes(const dw_sparse_row *row);

/* Local. To be called on every rank when `count` rows from position `first` on have been stored in a layer. */
void dw_sparse_row_forget(dw_sparse_row *row, int64_t layer, dw_pos first, int64_t count);

/* Collective, for a layer whose policy is not dense. q: [heads][head_dim] of the row at `position`, on all ranks. Rank 0: out
   [heads][head_dim], and omitted collects what the row left out. Adds to times. DW_RUNTIME when a score is not a number or out of
   range (names layer and head). */
dw_status dw_sparse_row_attend(dw_sparse_row *row, const dw_attend_layer *layer, dw_pos position, const float *q, float *out,
                               dw_omitted *omitted, dw_attend_times *times, dw_error *err);

#endif
