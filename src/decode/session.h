/* A decoding session: one sequence, its KV cache sharded over the ranks of a cluster, a model on every rank.
   Rank 0 (the coordinator) drives it through the functions marked Coordinator; every other rank sits in dw_session_serve. */
#ifndef DW_DECODE_SESSION_H
#define DW_DECODE_SESSION_H

#include "attention/omitted.h"
#include "attention/policy.h"
#include "base/pool.h"
#include "model/model.h"
#include "mpi/transport.h"

/* Who computes the linear layers of decoded (and verified) rows: the coordinator, or all ranks, each a share of the outputs; never changes a bit of
   the result. Auto: all ranks where they gain more time than the messages cost, measured when the session is created. */
typedef enum { DW_LINEAR_REPLICATED, DW_LINEAR_SPLIT, DW_LINEAR_AUTO } dw_linear_way;

typedef struct {
    int64_t context;             /* most positions the cache can hold */
    dw_type key_type;            /* DW_F32, DW_F16, DW_BF16 */
    dw_type value_type;          /* DW_F32, DW_F16, DW_BF16 */
    dw_policy policy;            /* for sparse rows, in every layer; not used with plans */
    int has_screen;              /* of that policy: always, or never */
    const dw_policy_plan *plans; /* [plan_count] for sparse rows, the first until dw_session_use_plan; borrowed */
    int64_t plan_count;
    int can_draft; /* dw_session_draft and dw_session_refresh will be called */
    dw_linear_way linear;
    int ranks_on_host; /* ranks that share this host's memory; 0: one */
    int64_t chunk;     /* rows of one prefill pass; never changes a bit of the result. 0: default */
} dw_session_config;

/* Seconds of rank 0 spent in each part, summed over passes. */
typedef struct {
    double linear; /* linear layers, norms, activations, embedding, head */
    double score;  /* scanning its own shard: scores, weights, values, candidates */
    double reduce; /* sending, receiving, merging */
    double attend; /* turning merged partial sums or proposals into outputs */
    double wait;   /* blocked on other ranks (a part of reduce) */
} dw_times;

/* What one rank runs on, and the bytes that it uses. */
typedef struct {
    int32_t rank;
    int32_t threads;
    char host[60];
    char kernels[12]; /* dw_kernels.name */
    int64_t weights, kv, screen, buffers, peak_rss;
} dw_rank_memory;

typedef struct dw_session dw_session;

/* Collective: every rank with the same config and model. Allocates the shard and all buffers; agrees on failure, so that either
   every rank has a session or every rank has the same error. model, pool and transport are borrowed. */
dw_status dw_session_create(dw_session **out, const dw_model *model, dw_transport *transport, dw_pool *pool,
                            const dw_kernels *kernels, const dw_session_config *config, dw_error *err);
/* Local. */
void dw_session_destroy(dw_session *session);

/* Every rank but 0: works for the coordinator until it calls dw_session_finish (then DW_OK) or something fails. */
dw_status dw_session_serve(dw_session *session, dw_error *err);

/* Coordinator. Appends count ids to the sequence. The rows before the last `sparse` ones attend densely, the last `sparse`
   rows (0..count) by the plan in use. logits: [wanted][vocabulary] for the last `wanted` rows (0..count), or NULL with 0.
   DW_USAGE when the context is full or an id is outside the vocabulary; DW_RUNTIME for non-finite values (names layer, head,
   rank). */
dw_status dw_session_append(dw_session *session, const int32_t *ids, int64_t count, int64_t sparse, float *logits,
                            int64_t wanted, dw_error *err);

/* Coordinator, local: logits [vocabulary] of a row that stands `ahead` positions (0 .. DW_MAX_DRAFT - 1) behind the sequence, over what the
   coordinator holds; rows 0 .. ahead - 1 were drafted before. Nothing is appended. A context that is full is DW_USAGE. */
dw_status dw_session_draft(dw_session *session, int32_t id, int64_t ahead, float *logits, dw_error *err);

/* Coordinator. Chooses what the coordinator holds for drafting anew, by the queries of the rows from position `first` on, which were appended
   densely by the last dw_session_append (or of the last of those, if there are more than a few). *done: 0 when other ranks computed these rows, as
   in a prefill: then nothing is chosen. */
dw_status dw_session_refresh(dw_session *session, int64_t first, int *done, dw_error *err);

/* Coordinator. A sum over the K and V rows of the sequence, the same on any number of ranks. */
dw_status dw_session_checksum(dw_session *session, uint64_t *sum, dw_error *err);

/* Coordinator. Fills the cache up to `positions` with pseudo-random keys and values (a benchmark of depth needs no prefill). */
dw_status dw_session_fill(dw_session *session, int64_t positions, dw_error *err);

/* Coordinator. Forgets all positions from `positions` on. */
dw_status dw_session_truncate(dw_session *session, int64_t positions, dw_error *err);

/* Coordinator. Lets the other ranks leave dw_session_serve; collects every rank's memory and traffic first:
   memory [ranks], *traffic summed over ranks. Either may be NULL. */
dw_status dw_session_finish(dw_session *session, dw_rank_memory *memory, dw_traffic *traffic, dw_error *err);

/* Coordinator, local. */
int dw_session_is_split(const dw_session *session); /* all ranks compute the linear layers of decoded rows */
int64_t dw_session_positions(const dw_session *session);
void dw_session_times(const dw_session *session, dw_times *times);       /* since creation */
void dw_session_omitted(const dw_session *session, dw_omitted *omitted); /* since creation */
/* Starts the omitted mass anew, from now on also for each layer and head: by_head [layers][heads], zeros, of the caller. */
void dw_session_collect_heads(dw_session *session, dw_omitted *by_head);
/* Besides, rows of mode mass add to curves [layers][heads], zeros, of the caller. */
void dw_session_collect_curves(dw_session *session, struct dw_budget_curve *curves);
/* Sparse rows attend by config.plans[plan] from now on. */
void dw_session_use_plan(dw_session *session, int64_t plan);

/* Coordinator: traffic of all ranks so far (one small gather). */
dw_status dw_session_traffic(dw_session *session, dw_traffic *traffic, dw_error *err);

#endif
