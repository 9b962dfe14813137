#include "tokenizer/token_table.h"

#include "base/memory.h"

static uint64_t hash_of(dw_string text)
{
    uint64_t hash = 0;
    for (int64_t i = 0; i < text.length; i++) hash = dw_token_hash_byte(hash, text.data[i]);
    return hash;
}

/* The slot that holds text, or the empty one where it belongs. */
static int32_t *find_slot(const dw_token_table *table, dw_string text, uint64_t hash)
{
    const uint64_t mask = (UINT64_C(1) << (64 - table->shift)) - 1;
    for (uint64_t i = hash * UINT64_C(0x9E3779B97F4A7C15) >> table->shift;; i = (i + 1) & mask) {
        int32_t *slot = &table->slots[i];
        const dw_string *token = *slot < 0 ? NULL : &table->tokens[*slot];
        if (token == NULL) return slot;
        if (token->length == text.length && memcmp(token->data, text.data, (size_t)text.length) == 0) return slot;
    }
}

dw_status dw_token_table_create(dw_token_table *table, const dw_string *tokens, int64_t count, const unsigned char *left_out,
                                dw_error *err)
{
    int64_t slot_count = 2;
    *table = (dw_token_table){.tokens = tokens, .shift = 63};
    while (slot_count < 2 * count) {
        slot_count *= 2;
        table->shift--;
    }
    DW_TRY(DW_ALLOC(&table->slots, slot_count, "vocabulary", err));
    memset(table->slots, -1, (size_t)slot_count * sizeof *table->slots);
    for (int32_t id = 0; id < (int32_t)count; id++) {
        if (tokens[id].length == 0 || (left_out != NULL && left_out[id])) continue;
        *find_slot(table, tokens[id], hash_of(tokens[id])) = id;
    }
    return DW_OK;
}

void dw_token_table_free(dw_token_table *table)
{
    dw_free(table->slots);
    *table = (dw_token_table){0};
}

int32_t dw_token_table_find_hashed(const dw_token_table *table, dw_string text, uint64_t hash)
{
    return *find_slot(table, text, hash);
}

int32_t dw_token_table_find(const dw_token_table *table, dw_string text)
{
    return *find_slot(table, text, hash_of(text));
}
