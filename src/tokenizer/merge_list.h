/* The merges of a tokenizer as ids: those that its file lists, or those that follow from the scores of its tokens. */
#ifndef DW_TOKENIZER_MERGE_LIST_H
#define DW_TOKENIZER_MERGE_LIST_H

#include "tokenizer/merge.h"
#include "tokenizer/parts.h"
#include "tokenizer/token_table.h"

/* table: of parts->tokens. DW_INPUT when a listed merge names a token that the table does not have. */
dw_status dw_merge_list(dw_merges *merges, const dw_tokenizer_parts *parts, const dw_token_table *table, dw_error *err);

#endif
