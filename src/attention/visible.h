/* Which positions a row sees: those up to its own, in a layer with a sliding window only the last of them. Whoever reads keys
   asks here: what a row does not see is never scored, weighted or proposed. Local. */
#ifndef DW_ATTENTION_VISIBLE_H
#define DW_ATTENTION_VISIBLE_H

#include "base/integers.h"
#include "cache/shard.h"

/* The positions that a row sees, both ends included. last is the row's own. */
typedef struct {
    dw_pos first, last;
} dw_visible;

/* window: positions that a row sees, itself included; 0: all up to its own. */
static inline dw_visible dw_visible_positions(dw_pos position, int64_t window)
{
    return (dw_visible){window > 0 && window <= position ? position - window + 1 : 0, position};
}

static inline int64_t dw_visible_count(dw_visible v)
{
    return v.last - v.first + 1;
}

/* Absolute blocks that hold visible positions. */
static inline int64_t dw_visible_block_count(dw_visible v)
{
    return v.last / DW_BLOCK - v.first / DW_BLOCK + 1;
}

/* Blocks of a shard that hold visible positions: first .. end - 1, none when first == end. */
typedef struct {
    int64_t first, end;
} dw_block_range;

static inline dw_block_range dw_visible_blocks(dw_visible v, const dw_shard *shard)
{
    return (dw_block_range){dw_shard_blocks(shard, v.first / DW_BLOCK * DW_BLOCK), dw_shard_blocks(shard, v.last + 1)};
}

/* Keys of the block at position `start` that the row sees: offsets 0..63, both ends included. It must see one at least. */
typedef struct {
    int first, last;
} dw_key_range;

static inline dw_key_range dw_visible_keys(dw_visible v, dw_pos start)
{
    return (dw_key_range){(int)dw_larger(v.first - start, 0), (int)dw_smaller(v.last - start, DW_BLOCK - 1)};
}

/* The same as bits. */
static inline uint64_t dw_key_mask(dw_key_range keys)
{
    return UINT64_MAX << keys.first & UINT64_MAX >> (DW_BLOCK - 1 - keys.last);
}

#endif
