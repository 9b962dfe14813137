#include "tokenizer/joints.h"

#include "base/memory.h"

static int continues(char byte)
{
    return ((unsigned char)byte & 0xC0) == 0x80;
}

static dw_string first_character(dw_string text)
{
    int64_t length = 1;
    while (length < text.length && continues(text.data[length])) length++;
    return (dw_string){text.data, length};
}

static dw_string last_character(dw_string text)
{
    int64_t start = text.length - 1;
    while (start > 0 && continues(text.data[start])) start--;
    return (dw_string){text.data + start, text.length - start};
}

/* A merge joins the last symbol of its left token to the first one of its right token. Tokens of characters that have none
   themselves are never made. */
dw_status dw_joints_create(dw_joints *joints, const dw_merges *merges, const dw_token_table *table, dw_error *err)
{
    DW_TRY(DW_ALLOC(&joints->bits, (1 << DW_JOINT_BITS) / 64, "merges", err));
    for (int64_t i = 0; i < merges->count; i++) {
        const dw_merge *merge = &merges->list[i];
        const int32_t left = dw_token_table_find(table, last_character(table->tokens[merge->left]));
        const int32_t right = dw_token_table_find(table, first_character(table->tokens[merge->right]));
        const uint64_t joint = dw_joint_of(left, right);
        joints->bits[joint / 64] |= UINT64_C(1) << joint % 64;
    }
    return DW_OK;
}

void dw_joints_free(dw_joints *joints)
{
    dw_free(joints->bits);
    *joints = (dw_joints){0};
}
