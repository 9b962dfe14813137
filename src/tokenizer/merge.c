#include "tokenizer/merge.h"

#include <string.h>

#include "base/memory.h"

/* A piece is a linked list of symbols; a joined pair lives on as its left symbol. */
struct dw_merge_symbol {
    int32_t id;
    int32_t prev;  /* -1: none */
    int32_t next;  /* -1: none */
    int32_t merge; /* that joins it to the next one; -1: none, or itself joined to the one before */
};

/* Pairs that can be joined wait in a heap, keyed by rank, then position: (rank << 32 | position of the left symbol). One
   whose symbols have changed since stays in it and is passed over when its turn comes. A node of the heap has four children,
   which share a cache line: in long pieces every step down is a cache miss. */
enum { CHILDREN = 4, HEAP_OFFSET = CHILDREN - 1 /* of the root, so that children are aligned */ };

static uint64_t slot_of(const dw_merges *merges, int32_t left, int32_t right)
{
    return ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9E3779B97F4A7C15) >> merges->shift;
}

/* The slot that holds the merge of (left, right), or the empty one where it belongs. */
static int32_t *find_slot(const dw_merges *merges, int32_t left, int32_t right)
{
    const uint64_t mask = (UINT64_C(1) << (64 - merges->shift)) - 1;
    uint64_t i = slot_of(merges, left, right);
    while (merges->slots[i] >= 0) {
        const dw_merge *merge = &merges->list[merges->slots[i]];
        if (merge->left == left && merge->right == right) break;
        i = (i + 1) & mask;
    }
    return &merges->slots[i];
}

dw_status dw_merges_create(dw_merges *merges, dw_merge *list, int64_t count, dw_error *err)
{
    int64_t slot_count = 2;
    *merges = (dw_merges){.list = list, .count = count, .shift = 63};
    if (count > INT32_MAX / 4) {
        dw_merges_free(merges);
        return dw_fail(err, DW_INPUT, "%lld merges are more than a tokenizer can have", (long long)count);
    }
    while (slot_count < 2 * count) {
        slot_count *= 2;
        merges->shift--;
    }
    if (DW_ALLOC(&merges->slots, slot_count, "table of merges", err) != DW_OK) {
        dw_merges_free(merges);
        return DW_RESOURCE;
    }
    memset(merges->slots, -1, (size_t)slot_count * sizeof *merges->slots);
    for (int32_t i = 0; i < (int32_t)count; i++) {
        int32_t *slot = find_slot(merges, list[i].left, list[i].right);
        if (*slot < 0) *slot = i;
    }
    return DW_OK;
}

void dw_merges_free(dw_merges *merges)
{
    dw_free(merges->list);
    dw_free(merges->slots);
    *merges = (dw_merges){0};
}

void dw_merge_scratch_free(dw_merge_scratch *scratch)
{
    dw_free(scratch->symbols);
    dw_free(scratch->heap);
    *scratch = (dw_merge_scratch){0};
}

static void heap_push(uint64_t *heap, int64_t *count, uint64_t key)
{
    uint64_t *node = heap + HEAP_OFFSET;
    int64_t i = (*count)++;
    while (i > 0 && node[(i - 1) / CHILDREN] > key) {
        node[i] = node[(i - 1) / CHILDREN];
        i = (i - 1) / CHILDREN;
    }
    node[i] = key;
}

static uint64_t heap_pop(uint64_t *heap, int64_t *count)
{
    uint64_t *node = heap + HEAP_OFFSET;
    const uint64_t top = node[0];
    const uint64_t key = node[--*count];
    int64_t i = 0;
    for (;;) {
        const int64_t first = CHILDREN * i + 1;
        int64_t least = first;
        if (first >= *count) break;
        for (int64_t child = first + 1; child < first + CHILDREN && child < *count; child++) {
            if (node[child] < node[least]) least = child;
        }
        if (node[least] >= key) break;
        node[i] = node[least];
        i = least;
    }
    node[i] = key;
    return top;
}

/* Puts the pair that begins at symbol left into the heap if it can be joined. */
static void offer(const dw_merges *merges, dw_merge_scratch *scratch, int64_t *heap_count, int32_t left)
{
    struct dw_merge_symbol *s = scratch->symbols;
    if (left < 0) return;
    s[left].merge = s[left].next < 0 ? -1 : *find_slot(merges, s[left].id, s[s[left].next].id);
    if (s[left].merge < 0) return;
    heap_push(scratch->heap, heap_count, (uint64_t)merges->list[s[left].merge].rank << 32 | (uint32_t)left);
}

/* Joins the pair that begins at symbol left if it still has the rank that key was made for. */
static void join(const dw_merges *merges, dw_merge_scratch *scratch, int64_t *heap_count, uint64_t key)
{
    struct dw_merge_symbol *s = scratch->symbols;
    const int32_t left = (int32_t)(key & UINT32_MAX);
    const int32_t right = s[left].next;
    const dw_merge *merge = s[left].merge < 0 ? NULL : &merges->list[s[left].merge];
    if (merge == NULL || (uint64_t)merge->rank != key >> 32) return;
    s[left].id = merge->result;
    s[left].next = s[right].next;
    if (s[left].next >= 0) s[s[left].next].prev = left;
    s[right].merge = -1;
    offer(merges, scratch, heap_count, s[left].prev);
    offer(merges, scratch, heap_count, left);
}

dw_status dw_merge_piece(const dw_merges *merges, dw_merge_scratch *scratch, int32_t *ids, int64_t *count, dw_error *err)
{
    const int64_t n = *count;
    int64_t heap_count = 0;
    int64_t kept = 0;
    if (n < 2) return DW_OK;
    if (n > INT32_MAX) {
        return dw_fail(err, DW_INPUT, "%lld characters of text without a place to split; at most %d can be handled",
                       (long long)n, INT32_MAX);
    }
    DW_TRY(DW_GROW(&scratch->symbols, &scratch->symbol_capacity, n, "tokenizer", err));
    /* Each join takes one pair out and offers at most two: never more than n - 1 at first and n - 1 joins later. */
    DW_TRY(DW_GROW(&scratch->heap, &scratch->heap_capacity, 2 * n + HEAP_OFFSET, "tokenizer", err));
    for (int32_t i = 0; i < (int32_t)n; i++) {
        scratch->symbols[i] = (struct dw_merge_symbol){.id = ids[i], .prev = i - 1, .next = i + 1 < n ? i + 1 : -1};
    }
    for (int32_t i = 0; i < (int32_t)n; i++) offer(merges, scratch, &heap_count, i);
    while (heap_count > 0) join(merges, scratch, &heap_count, heap_pop(scratch->heap, &heap_count));
    for (int32_t i = 0; i >= 0; i = scratch->symbols[i].next) ids[kept++] = scratch->symbols[i].id;
    *count = kept;
    return DW_OK;
}
