/* What a row attends to. */
#ifndef DW_ATTENTION_POLICY_H
#define DW_ATTENTION_POLICY_H

#include <stdint.h>

typedef enum { DW_DENSE, DW_CONDENSATE } dw_attention_mode;

/* The condensate set of a row: the first `anchor` positions, the last `window` (the row itself included) and the best `keys` by
   (score descending, position ascending) of all visible positions; overlaps count once. All >= 0, at least one of them
   positive. */
typedef struct {
    dw_attention_mode mode;
    int64_t anchor;
    int64_t window;
    int64_t keys;
} dw_policy;

#endif
