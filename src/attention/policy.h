/* What a row attends to. */
#ifndef DW_ATTENTION_POLICY_H
#define DW_ATTENTION_POLICY_H

#include <stdint.h>

/* DW_MASS: the smallest set of each head that certainly leaves out at most `epsilon` of the softmax mass (attention/mass.h). */
typedef enum { DW_DENSE, DW_CONDENSATE, DW_MASS } dw_attention_mode;

/* The condensate set of a row: the first `anchor` positions, the last `window` (the row itself included) and the best `keys` by
   (score descending, position ascending), overlaps counted once, of the positions that the row sees: where a layer's sliding
   window has left position 0 behind, there is no anchor. All >= 0, at least one of them positive. A set that would hold
   nothing (only anchors, none in sight) holds the row itself. */
typedef struct {
    dw_attention_mode mode;
    int64_t anchor;
    int64_t window;
    int64_t keys;
    double epsilon; /* of DW_MASS: 0 to 1 */
    int has_tail;   /* of DW_CONDENSATE: what is left out is represented by block means (attention/tail.h) */
} dw_policy;

#endif
