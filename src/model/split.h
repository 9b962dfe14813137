/* Linear layers shared by the ranks: each computes a part of the outputs of all rows, and everybody gets the others' parts. An output is
   computed by one rank from all of its inputs, so no bit depends on how many ranks there are. */
#ifndef DW_MODEL_SPLIT_H
#define DW_MODEL_SPLIT_H

#include "mpi/transport.h"

typedef struct dw_split dw_split;

/* Local. Room for `floats` outputs of all targets of a call, over all rows. transport is borrowed. */
dw_status dw_split_create(dw_split **out, dw_transport *transport, int64_t floats, dw_error *err);
void dw_split_destroy(dw_split *split);

/* The outputs first .. first + count - 1 of a rank. */
typedef struct {
    int64_t first, count;
} dw_share;
dw_share dw_split_share_of(int64_t outputs, int rank, int ranks);

/* y: [rows][stride], of which each rank has its share of every row's outputs. */
typedef struct {
    float *y;
    int64_t stride;
    int64_t outputs;
} dw_split_target;

/* Collective: completes the targets on every rank; one all-gather for all of them. */
dw_status dw_split_exchange(dw_split *split, const dw_split_target *targets, int count, int64_t rows, dw_error *err);

/* Collective: completes one target on rank 0 alone. */
dw_status dw_split_collect(dw_split *split, const dw_split_target *target, int64_t rows, dw_error *err);

#endif
