/* Short lists of positions by weight, as they are found on a rank and merged over ranks: best first, by (weight descending, position
   ascending). Local. */
#ifndef DW_ATTENTION_RANKED_H
#define DW_ATTENTION_RANKED_H

#include "cache/shard.h"

typedef struct {
    dw_pos position;
    float weight;
    float unused; /* 0: no byte of a message is undefined */
} dw_ranked;

typedef struct {
    int64_t count;
    dw_ranked best[]; /* room for a fixed number, zeros behind count */
} dw_ranked_list;

static inline int64_t dw_ranked_bytes(int64_t room)
{
    return (int64_t)sizeof(dw_ranked_list) + room * (int64_t)sizeof(dw_ranked);
}

/* The best `most` (at most room) of count into the list; found is reordered. */
void dw_ranked_select(dw_ranked_list *list, int64_t room, int64_t most, dw_ranked *found, int64_t count);

/* The best `most` of both into mine. scratch: [most]. Associative and commutative. */
void dw_ranked_merge(dw_ranked_list *mine, const dw_ranked_list *theirs, int64_t most, dw_ranked *scratch);

#endif
