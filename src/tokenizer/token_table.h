/* Ids of token strings. */
#ifndef DW_TOKENIZER_TOKEN_TABLE_H
#define DW_TOKENIZER_TOKEN_TABLE_H

#include "base/error.h"
#include "base/string.h"

/* Open addressing, linear probing. tokens belongs to somebody else. Read-only after dw_token_table_create. */
typedef struct {
    const dw_string *tokens;
    int32_t *slots; /* [2^(64 - shift)] id or -1 */
    int shift;
} dw_token_table;

/* Of equal strings the last counts, as where a vocabulary is read into a map. Empty ones, and those with a mark in left_out
   ([count], NULL: none), are not in the table. count is below 2^30. */
dw_status dw_token_table_create(dw_token_table *table, const dw_string *tokens, int64_t count, const unsigned char *left_out,
                                dw_error *err);
void dw_token_table_free(dw_token_table *table);

/* -1: not there. */
int32_t dw_token_table_find(const dw_token_table *table, dw_string text);

/* The same with the hash of text known. The hash of a string is a polynomial over its bytes:
   hash(xy) = hash(x) * DW_TOKEN_HASH_BASE^length(y) + hash(y); so that of all parts of a string come at the cost of one. */
#define DW_TOKEN_HASH_BASE UINT64_C(0xD6E8FEB86659FD93)
int32_t dw_token_table_find_hashed(const dw_token_table *table, dw_string text, uint64_t hash);

static inline uint64_t dw_token_hash_byte(uint64_t hash, char byte)
{
    return hash * DW_TOKEN_HASH_BASE + (unsigned char)byte + 1;
}

#endif
