#define _GNU_SOURCE /* qsort_r */
#include "tokenizer/merge_list.h"

#include <stdlib.h>

#include "base/memory.h"

/* ---- listed merges ---- */

/* buffer: room for both tokens. */
static dw_status read_merge(const dw_token_table *table, const dw_string pair[2], int32_t rank, char *buffer, dw_merge *merge,
                            dw_error *err)
{
    const dw_string joined = {buffer, pair[0].length + pair[1].length};
    dw_string missing = joined;
    if (pair[0].length > 0) memcpy(buffer, pair[0].data, (size_t)pair[0].length);
    if (pair[1].length > 0) memcpy(buffer + pair[0].length, pair[1].data, (size_t)pair[1].length);
    *merge = (dw_merge){dw_token_table_find(table, pair[0]), dw_token_table_find(table, pair[1]),
                        dw_token_table_find(table, joined), rank};
    if (merge->left >= 0 && merge->right >= 0 && merge->result >= 0) return DW_OK;
    if (merge->right < 0) missing = pair[1];
    if (merge->left < 0) missing = pair[0];
    return dw_fail(err, DW_INPUT, "merge %d: \"%s\" is not a token", rank, dw_printable(missing).text);
}

static dw_status read_list(dw_merge *list, const dw_tokenizer_parts *parts, const dw_token_table *table, dw_error *err)
{
    char *buffer;
    int64_t longest = 0;
    dw_status status = DW_OK;
    for (int64_t i = 0; i < parts->merge_count; i++) {
        const int64_t length = parts->merges[2 * i].length + parts->merges[2 * i + 1].length;
        if (length > longest) longest = length;
    }
    DW_TRY(DW_ALLOC(&buffer, longest, "merges", err));
    for (int64_t i = 0; i < parts->merge_count && status == DW_OK; i++) {
        status = read_merge(table, parts->merges + 2 * i, (int32_t)i, buffer, &list[i], err);
    }
    dw_free(buffer);
    return status;
}

/* ---- merges from scores ---- */

static int by_score(const void *a, const void *b, void *scores)
{
    const float x = ((const float *)scores)[*(const int32_t *)a];
    const float y = ((const float *)scores)[*(const int32_t *)b];
    if (x != y) return x > y ? -1 : 1;
    return *(const int32_t *)a < *(const int32_t *)b ? -1 : 1;
}

/* Adds the ways to make a token of two others; all have its rank. powers: [longest token + 1] of the hash's base. */
static dw_status add_splits(dw_merge **list, int64_t *count, int64_t *capacity, const dw_token_table *table, int32_t id,
                            int32_t rank, const uint64_t *powers, dw_error *err)
{
    const dw_string token = table->tokens[id];
    uint64_t whole = 0;
    uint64_t head = 0;
    for (int64_t i = 0; i < token.length; i++) whole = dw_token_hash_byte(whole, token.data[i]);
    for (int64_t i = 1; i < token.length; i++) {
        int32_t left, right;
        head = dw_token_hash_byte(head, token.data[i - 1]);
        if ((token.data[i] & 0xC0) == 0x80) continue; /* within a character */
        left = dw_token_table_find_hashed(table, (dw_string){token.data, i}, head);
        if (left < 0) continue;
        right = dw_token_table_find_hashed(table, (dw_string){token.data + i, token.length - i},
                                           whole - head * powers[token.length - i]);
        if (right < 0) continue;
        DW_TRY(DW_GROW(list, capacity, *count + 1, "merges", err));
        (*list)[(*count)++] = (dw_merge){left, right, id, rank};
    }
    return DW_OK;
}

/* Tokens with equal scores share a rank, so that the leftmost pair goes first, as SentencePiece does it. */
static dw_status derive_list(dw_merge **list, int64_t *count, const dw_tokenizer_parts *parts, const dw_token_table *table,
                             dw_error *err)
{
    const int64_t n = parts->token_count;
    int32_t *order;
    uint64_t *powers = NULL;
    int64_t longest = 0;
    int64_t capacity = 0;
    int32_t rank = 0;
    dw_status status;
    for (int64_t i = 0; i < n; i++) longest = parts->tokens[i].length > longest ? parts->tokens[i].length : longest;
    DW_TRY(DW_ALLOC(&order, n, "merges", err));
    DW_TRY_GOTO(status, DW_ALLOC(&powers, longest + 1, "merges", err), end);
    powers[0] = 1;
    for (int64_t i = 1; i <= longest; i++) powers[i] = powers[i - 1] * DW_TOKEN_HASH_BASE;
    for (int32_t i = 0; i < (int32_t)n; i++) order[i] = i;
    qsort_r(order, (size_t)n, sizeof *order, by_score, (void *)parts->scores);
    for (int64_t i = 0; i < n; i++) {
        const int32_t id = order[i];
        if (i > 0 && parts->scores[id] != parts->scores[order[i - 1]]) rank++;
        if (dw_token_table_find(table, parts->tokens[id]) != id) continue; /* not a token that merges make */
        DW_TRY_GOTO(status, add_splits(list, count, &capacity, table, id, rank, powers, err), end);
    }
    status = DW_OK;
end:
    dw_free(powers);
    dw_free(order);
    return status;
}

dw_status dw_merge_list(dw_merges *merges, const dw_tokenizer_parts *parts, const dw_token_table *table, dw_error *err)
{
    dw_merge *list = NULL;
    int64_t count = parts->merge_count;
    dw_status status;
    if (parts->scores != NULL) {
        count = 0;
        status = derive_list(&list, &count, parts, table, err);
    } else {
        status = DW_ALLOC(&list, count, "merges", err);
        if (status == DW_OK) status = read_list(list, parts, table, err);
    }
    if (status != DW_OK) {
        dw_free(list);
        return status;
    }
    return dw_merges_create(merges, list, count, err); /* takes the list */
}
