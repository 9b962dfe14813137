/* Selection by blocks ("selector: block"): whole blocks of 16 positions are chosen, for all query heads of a KV head together, by the
   score of the mean of their keys with the sum of the group's queries. It reads one mean for 16 keys, and certifies nothing: what it
   misses is known only if all keys are scored (dewpoint compare does). Local. */
#ifndef DW_ATTENTION_BLOCK_SELECTOR_H
#define DW_ATTENTION_BLOCK_SELECTOR_H

#include "attention/proposal.h"
#include "attention/visible.h"
#include "base/pool.h"

enum { DW_SELECTED_BLOCK = 16 };

typedef struct dw_block_selector dw_block_selector;

/* keys: the largest budget of a head. shape: of the proposals; kernels and pool are borrowed. */
dw_status dw_block_selector_create(dw_block_selector **out, const dw_kernels *kernels, dw_pool *pool,
                                   const dw_shard_config *config, const dw_proposal_shape *shape, dw_error *err);
void dw_block_selector_destroy(dw_block_selector *selector);

/* To be called when the rows of `count` positions from `first` on have been stored in a layer. */
void dw_block_selector_forget(dw_block_selector *selector, int64_t layer, dw_pos first, int64_t count);

/* Bytes of a message: for each KV head a ranked list (attention/ranked.h; position: of the block's first key). */
int64_t dw_block_selector_capacity(const dw_block_selector *selector);

/* The best blocks of this shard whose 16 positions the row sees; as many as the largest limit of a group's heads holds. DW_RUNTIME when
   a score is not a number. */
dw_status dw_block_select(dw_block_selector *selector, const dw_shard *shard, int64_t layer, dw_visible visible, const float *q,
                          void *message, dw_error *err);

/* A dw_merge (mpi/collective.h) of messages; context: the dw_block_selector. */
dw_status dw_block_selection_merge(void *context, void *mine, int64_t *mine_bytes, int64_t capacity, const void *theirs,
                                   int64_t theirs_bytes, dw_error *err);

/* The positions of a merged message, ascending, at most as many whole blocks as a head's limit holds. positions: room for the limit.
   Returns their number. */
int64_t dw_block_selection_positions(const dw_block_selector *selector, const void *message, int64_t head, dw_pos *positions);

#endif
