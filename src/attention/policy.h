/* What a row attends to. */
#ifndef DW_ATTENTION_POLICY_H
#define DW_ATTENTION_POLICY_H

#include <stddef.h>
#include <stdint.h>

/* DW_MASS: the smallest set of each head that certainly leaves out at most `epsilon` of the softmax mass (attention/mass.h). */
/* DW_LOSSLESS: a way to generate, never of a layer: every layer attends densely, several drafted rows at a time (decode/lossless.h). */
typedef enum { DW_DENSE, DW_CONDENSATE, DW_MASS, DW_LOSSLESS } dw_attention_mode;

/* The condensate set of a row: the first `anchor` positions, the last `window` (the row itself included) and the best `keys` by
   (score descending, position ascending), overlaps counted once, of the positions that the row sees: where a layer's sliding
   window has left position 0 behind, there is no anchor. All >= 0, at least one of them positive. A set that would hold
   nothing (only anchors, none in sight) holds the row itself. */
typedef struct {
    dw_attention_mode mode;
    int64_t anchor;
    int64_t window;
    int64_t keys;
    double epsilon;     /* of DW_MASS: 0 to 1 */
    int has_tail;       /* of DW_CONDENSATE: what is left out is represented by block means (attention/tail.h) */
    int64_t *head_keys; /* [heads] budget of each query head, or NULL: keys for all; keys is the largest of them */
} dw_policy;

/* What the best keys are chosen by: the score of each, or in blocks of 16 by the score of their mean (attention/block_selector.h). */
typedef enum { DW_SELECT_TOKENS, DW_SELECT_BLOCKS } dw_selector;

/* The policies of all layers. */
typedef struct {
    dw_policy *layers;   /* [layer_count] */
    int64_t layer_count; /* the layers of the model; or 1: the same policy for all of them */
    int64_t pillar;      /* layer l uses the selection of layer l / pillar * pillar; 1: each its own */
    int64_t reuse;       /* a selection serves positions with the same position / reuse; 1: each row its own */
    dw_selector selector;
    int is_audited; /* selections that are reused or made by blocks are compared with the exact one of every row, which reads all keys */
    int64_t
        screen_from; /* in contexts of so many positions the int8 screen finds the best keys: the same sets from fewer bytes, a wider
                            omitted mass (not in layers with a tail); 0: always, INT64_MAX: never */
} dw_policy_plan;

static inline const dw_policy *dw_plan_layer(const dw_policy_plan *plan, int64_t layer)
{
    return &plan->layers[plan->layer_count == 1 ? 0 : layer];
}

/* Whether every layer attends to all keys. */
static inline int dw_plan_is_dense(const dw_policy_plan *plan)
{
    for (int64_t l = 0; l < plan->layer_count; l++) {
        if (plan->layers[l].mode != DW_DENSE) return 0;
    }
    return 1;
}

/* Budget of a query head. */
static inline int64_t dw_policy_keys(const dw_policy *policy, int64_t head)
{
    return policy->head_keys == NULL ? policy->keys : policy->head_keys[head];
}

/* Whether a row whose first visible position is `first` has neither anchor nor window nor keys: the set then holds the row itself. */
static inline int dw_policy_is_empty(const dw_policy *policy, int64_t first)
{
    return policy->window == 0 && policy->keys == 0 && first >= policy->anchor;
}

#endif
