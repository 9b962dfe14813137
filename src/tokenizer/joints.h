/* Where a text of symbols can be cut before it is merged: between two symbols that no merge can ever bring into one token. What
   lies on either side does not feel the other, so that short pieces (words, mostly) are merged instead of the whole text. */
#ifndef DW_TOKENIZER_JOINTS_H
#define DW_TOKENIZER_JOINTS_H

#include "tokenizer/merge.h"
#include "tokenizer/token_table.h"

/* A set of hashed pairs. Two pairs may share a bit: then a cut is missed, and nothing else happens. */
enum { DW_JOINT_BITS = 20 };
typedef struct {
    uint64_t *bits; /* [2^DW_JOINT_BITS / 64] */
} dw_joints;

/* Symbols are the tokens of single characters in table, which is of the strings of all tokens. */
dw_status dw_joints_create(dw_joints *joints, const dw_merges *merges, const dw_token_table *table, dw_error *err);
void dw_joints_free(dw_joints *joints);

static inline uint64_t dw_joint_of(int32_t left, int32_t right)
{
    return ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9E3779B97F4A7C15) >> (64 - DW_JOINT_BITS);
}

/* Whether symbol left and the symbol right behind it may become parts of one token. */
static inline int dw_joints_have(const dw_joints *joints, int32_t left, int32_t right)
{
    const uint64_t joint = dw_joint_of(left, right);
    return (int)(joints->bits[joint / 64] >> joint % 64 & 1);
}

#endif
