/* What a condensate leaves out, represented by means ("--tail mean"): of each block the weights of the keys that are not selected
   are known to the rank that holds it; their sum times the block's mean V row is added to what the set gives. That reads K once more and
   a 64th of V. A second round of a sparse row: the coordinator tells where each head's set ends, ranks add up their tails as integers.
   Local. */
#ifndef DW_ATTENTION_TAIL_H
#define DW_ATTENTION_TAIL_H

#include "attention/proposal.h"
#include "attention/visible.h"
#include "base/pool.h"

/* The last of a head's best keys: keys that are better or equal (dw_candidate_better) are selected. */
typedef struct {
    dw_pos position;
    float score; /* -infinity: all keys are selected; +infinity: none */
    float unused;
} dw_tail_cut;

typedef struct dw_tail dw_tail;

/* pool and kernels are borrowed. */
dw_status dw_tail_create(dw_tail **out, const dw_kernels *kernels, dw_pool *pool, const dw_shard_config *config, int64_t heads,
                         dw_error *err);
void dw_tail_destroy(dw_tail *tail);
int64_t dw_tail_bytes(const dw_tail *tail);

/* To be called when the rows of `count` positions from `first` on have been stored in a layer: means over them are void. */
void dw_tail_forget(dw_tail *tail, int64_t layer, dw_pos first, int64_t count);

/* Coordinator: the cuts of all heads of a merged message. cuts: [heads]. */
void dw_tail_cuts(const dw_proposal_shape *shape, void *message, dw_tail_cut *cuts);

/* partials: [heads][dw_partial_words(head_dim + 1)]: for every block of the shard with keys that the row sees and that are not
   selected, exponent E_b and weights over those keys alone, their sum m, and m times each channel of the mean of V over the keys of
   the block that the row sees (a sum in key order, times the float 1 / count). q: [heads][head_dim] of the row. */
void dw_tail_sum(dw_tail *tail, const dw_shard *shard, int64_t layer, const dw_policy *policy, dw_visible visible,
                 const float *q, const dw_tail_cut *cuts, const int32_t *value_exponent, int64_t *partials);

#endif
