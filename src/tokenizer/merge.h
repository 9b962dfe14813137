/* The last step of BPE: neighbouring symbols of a piece are joined, lowest rank first, leftmost on ties. */
#ifndef DW_TOKENIZER_MERGE_H
#define DW_TOKENIZER_MERGE_H

#include <stdint.h>

#include "base/error.h"

typedef struct {
    int32_t left;
    int32_t right;
    int32_t result;
    int32_t rank; /* >= 0; several merges may share one */
} dw_merge;

/* Merges and a table from (left, right) to them. Read-only after dw_merges_create. */
typedef struct {
    dw_merge *list; /* [count] */
    int64_t count;
    int32_t *slots; /* [slot_count] index into list or -1; open addressing */
    int shift;      /* slot_count = 2^(64 - shift) */
} dw_merges;

/* Takes over list (dw_free'd with the table, also on failure). Of equal pairs the first counts. */
dw_status dw_merges_create(dw_merges *merges, dw_merge *list, int64_t count, dw_error *err);
void dw_merges_free(dw_merges *merges);

/* Memory of one caller, all zero at first; grows to the longest piece. */
typedef struct {
    struct dw_merge_symbol *symbols;
    int64_t symbol_capacity;
    uint64_t *run;
    int64_t run_capacity, run_count, run_at;
    uint64_t *heap;
    int64_t heap_capacity, heap_count;
} dw_merge_scratch;

void dw_merge_scratch_free(dw_merge_scratch *scratch);

/* Joins the symbols ids[*count] of one piece in place; *count falls to what is left. n log n in *count. */
dw_status dw_merge_piece(const dw_merges *merges, dw_merge_scratch *scratch, int32_t *ids, int64_t *count, dw_error *err);

#endif
