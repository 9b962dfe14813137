/* Condensate discovery on one rank: finds the best of the keys of the shard that one row sees and proposes them, with the positions
   that are in every set, and the mass of all keys. With a screen, whole blocks are scored approximately first, and only keys that
   can be among the best by the certified bound are scored exactly: the best keys and their scores are the same, the mass is wider. Blocks
   that the row does not see are not read. Local. */
#ifndef DW_ATTENTION_DISCOVERY_H
#define DW_ATTENTION_DISCOVERY_H

#include "attention/proposal.h"
#include "attention/visible.h"
#include "base/pool.h"
#include "cache/screen.h"

typedef struct dw_discovery dw_discovery;

/* policy: the largest budgets of all layers. shape, kernels and pool are borrowed. */
dw_status dw_discovery_create(dw_discovery **out, const dw_kernels *kernels, dw_pool *pool, const dw_shard_config *config,
                              const dw_policy *policy, const dw_proposal_shape *shape, dw_error *err);
void dw_discovery_destroy(dw_discovery *discovery);

/* screen: NULL: none. policy: of the layer (shape: dw_proposal_shape_use). q: [heads][head_dim] of the row that sees `visible`. message: shape->capacity bytes; *bytes: used. DW_RUNTIME when a score is
   not a number or out of range. */
dw_status dw_discover(dw_discovery *discovery, const dw_shard *shard, dw_screen *screen, int64_t layer, const dw_policy *policy,
                      dw_visible visible, const float *q, void *message, int64_t *bytes, dw_error *err);

/* A selection that was made elsewhere or earlier: for each head positions, ascending. */
typedef struct {
    int64_t stride;    /* positions from one head to the next */
    int64_t *count;    /* [heads] */
    dw_pos *positions; /* [heads][stride] */
} dw_selection;

/* As dw_discover, but the best keys are those of the selection that lie on this shard and that the row sees; only their blocks and those
   of forced positions are read, and the mass stays empty. */
dw_status dw_discover_given(dw_discovery *discovery, const dw_shard *shard, int64_t layer, const dw_policy *policy,
                            dw_visible visible, const float *q, const dw_selection *selection, void *message, int64_t *bytes,
                            dw_error *err);

#endif
