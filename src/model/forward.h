/* The forward pass of a decoder: every rank runs it for the rows it computes, and meets the others in attend(rows). */
#ifndef DW_MODEL_FORWARD_H
#define DW_MODEL_FORWARD_H

#include "model/model.h"
#include "mpi/attend.h"

typedef struct dw_forward dw_forward;

/* Local. Buffers for max_own rows on this rank. context: positions that the run may use. All pointers are borrowed. */
dw_status dw_forward_create(dw_forward **out, const dw_model *model, const dw_kernels *kernels, dw_pool *pool,
                            dw_attention *attention, int64_t context, int64_t max_own, dw_error *err);
void dw_forward_destroy(dw_forward *forward);

/* Local. From now on linear layers of passes whose rows are shared (dw_rows.is_shared) are computed together with the other ranks; room for
   `rows` of them. */
dw_status dw_forward_use_split(dw_forward *forward, dw_transport *transport, int64_t rows, dw_error *err);

/* Collective. All layers for rows->count rows with ids [rows->count] (all rows' ids on every rank). kind: dense or sparse. With
   `wanted` the hidden states of the own rows are then in dw_forward_hidden; without, the last layer only stores its K and V. */
dw_status dw_forward_rows(dw_forward *forward, const dw_rows *rows, int rank, const int32_t *ids, dw_attend_kind kind,
                          int wanted, dw_omitted *omitted, dw_error *err);

/* [own rows][dw_forward_hidden_stride] f32 before the last norm. */
const float *dw_forward_hidden(const dw_forward *forward);
int64_t dw_forward_hidden_stride(const dw_forward *forward);

/* Local. logits: [count][vocabulary] from hidden states [count][stride]. DW_RUNTIME when a logit is not finite. */
dw_status dw_forward_logits(dw_forward *forward, const float *hidden, int64_t count, float *logits, dw_error *err);

/* Collective, after a pass of shared rows: the same on rank 0 for the last `count` of them, each rank computing a share; logits: rank 0. */
dw_status dw_forward_shared_logits(dw_forward *forward, int64_t rows, int64_t count, float *logits, dw_error *err);

/* Local: seconds that the linear layers of one row in one layer take on this rank, the best of a few runs. Before the first pass. */
double dw_forward_measure(dw_forward *forward);

/* Seconds spent here outside attention, and bytes of buffers. */
double dw_forward_linear_seconds(const dw_forward *forward);
int64_t dw_forward_buffer_bytes(const dw_forward *forward);

#endif
