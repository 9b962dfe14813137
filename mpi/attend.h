/* attend(rows): the one distributed primitive. Prefill, decode and verification are the same operation with 1..R rows. Every
   rank brings the q, k, v of the rows it computes; K and V land in the shards that own them; every rank scans its shard for all
   rows; a reduction brings each row's sums (dense) or proposals (sparse) to the rank that computes the row. docs/protocol.md
   draws it. */
#ifndef DW_MPI_ATTEND_H
#define DW_MPI_ATTEND_H

#include "attention/omitted.h"
#include "attention/policy.h"
#include "base/pool.h"
#include "cache/shard.h"
#include "mpi/transport.h"

/* Consecutive rows and the ranks that compute them: rank r the rows start[r] .. start[r+1] - 1. */
typedef struct {
    dw_pos first; /* position of row 0 */
    int64_t count;
    int64_t *start; /* [ranks + 1], start[0] = 0, start[ranks] = count */
    int is_shared;  /* every rank brings q, k, v of all rows and gets all outputs; start still says who puts them together */
} dw_rows;

/* How the rows of a pass attend: to all visible keys, or by the policy; or not at all, when only their K and V are needed. */
typedef enum { DW_ATTEND_DENSE, DW_ATTEND_SPARSE, DW_ATTEND_STORE, DW_ATTEND_DRAFT } dw_attend_kind;

/* Seconds of this rank, summed over calls. */
typedef struct {
    double score;  /* scanning the own shard */
    double reduce; /* sending, receiving, merging */
    double wait;   /* the part of reduce spent waiting for other ranks */
    double attend; /* merged sums or proposals to outputs */
} dw_attend_times;

typedef struct dw_attention dw_attention;
struct dw_drafting; /* mpi/drafting.h */

/* Local. Shard and buffers for passes of at most max_rows rows. plans: [plan_count] of sparse rows, none when there are none; the
   first is used until dw_attention_use_plan says otherwise. plans, transport, pool, kernels are borrowed. */
dw_status dw_attention_create(dw_attention **out, dw_transport *transport, dw_pool *pool, const dw_kernels *kernels,
                              const dw_shard_config *config, int64_t heads, int64_t max_rows, const dw_policy_plan *plans,
                              int64_t plan_count, dw_error *err);
void dw_attention_destroy(dw_attention *attention);

/* What attend needs to know of a layer. */
typedef struct {
    int64_t index;
    int64_t window;                /* positions that a row sees, itself included; 0: all up to its own */
    const int32_t *value_exponent; /* [kv_heads] */
} dw_attend_layer;

/* Collective over the ranks of the transport, same layer, rows and kind on all. q: [own rows][heads][head_dim], k and v:
   [own rows][kv_heads][head_dim], out: [own rows] of [heads][head_dim], out_stride floats apart.
   Shared rows: q, k, v and out are of all rows.
   DW_ATTEND_SPARSE: rows attend one after the other and must all belong to rank 0; omitted (rank 0) collects what they left
   out (of what the row sees: what lies outside the layer's window is no part of it).
   DW_ATTEND_STORE: q is not read, out not written.
   DW_ATTEND_DRAFT: not collective, rank 0 alone: one row attends to what the draft cache holds; nothing is stored in a shard.
   DW_RUNTIME when q, k, v or a score is not a number or out of range; names layer and head. */
dw_status dw_attend(dw_attention *attention, const dw_attend_layer *layer, const dw_rows *rows, dw_attend_kind kind,
                    const float *q, const float *k, const float *v, float *out, int64_t out_stride, dw_omitted *omitted,
                    dw_error *err);

/* Local, the same on all ranks: sparse rows attend by plan number `plan` from now on. */
void dw_attention_use_plan(dw_attention *attention, int64_t plan);

/* Local. From now on dense rows are kept for drafting (NULL: no longer); borrowed. */
void dw_attention_use_drafting(dw_attention *attention, struct dw_drafting *drafting);

/* Local. */
dw_shard *dw_attention_shard(dw_attention *attention);
int64_t dw_attention_screen_bytes(const dw_attention *attention);
int64_t dw_attention_buffer_bytes(const dw_attention *attention);
void dw_attention_times(const dw_attention *attention, dw_attend_times *times);

#endif
