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

/* Pairs that can be joined wait in a queue, keyed by rank, then position: (rank << 32 | position of the left symbol). One
   whose symbols have changed since stays in it and is passed over when its turn comes. The queue consists of two parts: the
   pairs of the piece as it comes, sorted once and read from front to end, and a heap of those that joining makes. In long
   pieces every step down a heap is a cache miss; so it holds as few as possible, and a node has four children, which share a
   cache line. */
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
    dw_free(scratch->run);
    dw_free(scratch->heap);
    *scratch = (dw_merge_scratch){0};
}

/* ---- queue ---- */

/* There is room. */
static void heap_push(dw_merge_scratch *scratch, uint64_t key)
{
    uint64_t *node = scratch->heap + HEAP_OFFSET;
    int64_t i = scratch->heap_count++;
    while (i > 0 && node[(i - 1) / CHILDREN] > key) {
        node[i] = node[(i - 1) / CHILDREN];
        i = (i - 1) / CHILDREN;
    }
    node[i] = key;
}

static uint64_t heap_pop(dw_merge_scratch *scratch)
{
    uint64_t *node = scratch->heap + HEAP_OFFSET;
    const uint64_t top = node[0];
    const int64_t count = --scratch->heap_count;
    const uint64_t key = node[count];
    int64_t i = 0;
    for (;;) {
        const int64_t first = CHILDREN * i + 1;
        int64_t least = first;
        if (first >= count) break;
        for (int64_t child = first + 1; child < first + CHILDREN && child < count; child++) {
            if (node[child] < node[least]) least = child;
        }
        if (node[least] >= key) break;
        node[i] = node[least];
        i = least;
    }
    node[i] = key;
    return top;
}

static dw_status reserve_heap(dw_merge_scratch *scratch, int64_t more, dw_error *err)
{
    const int64_t needed = scratch->heap_count + more + HEAP_OFFSET;
    if (needed <= scratch->heap_capacity) return DW_OK;
    return DW_GROW(&scratch->heap, &scratch->heap_capacity, needed, "tokenizer", err);
}

/* Sorts the run, which is in the order of positions, by rank: byte by byte, lowest first. spare: as long as the run. */
static void sort_run(dw_merge_scratch *scratch, uint64_t *spare)
{
    uint64_t *from = scratch->run;
    uint64_t *to = spare;
    for (int shift = 32; shift < 64; shift += 8) { /* four times, so that the result lies where the run began */
        int64_t place[257] = {0};
        for (int64_t i = 0; i < scratch->run_count; i++) place[(from[i] >> shift & 255) + 1]++;
        for (int digit = 0; digit < 256; digit++) place[digit + 1] += place[digit];
        for (int64_t i = 0; i < scratch->run_count; i++) to[place[from[i] >> shift & 255]++] = from[i];
        uint64_t *swapped = from;
        from = to;
        to = swapped;
    }
}

static int queue_is_empty(const dw_merge_scratch *scratch)
{
    return scratch->heap_count == 0 && scratch->run_at == scratch->run_count;
}

static uint64_t next_key(dw_merge_scratch *scratch)
{
    const int64_t at = scratch->run_at;
    if (at == scratch->run_count) return heap_pop(scratch);
    if (scratch->heap_count > 0 && scratch->heap[HEAP_OFFSET] < scratch->run[at]) return heap_pop(scratch);
    scratch->run_at++;
    return scratch->run[at];
}

/* ---- pieces ---- */

/* Finds the merge of symbol left with the next one; *key is where it stands in the order. 0: there is none. */
static int look_up(const dw_merges *merges, struct dw_merge_symbol *s, int32_t left, uint64_t *key)
{
    s[left].merge = s[left].next < 0 ? -1 : *find_slot(merges, s[left].id, s[s[left].next].id);
    if (s[left].merge < 0) return 0;
    *key = (uint64_t)merges->list[s[left].merge].rank << 32 | (uint32_t)left;
    return 1;
}

/* Joins the pair that begins at symbol left if it still has the rank that key was made for. */
static dw_status join(const dw_merges *merges, dw_merge_scratch *scratch, uint64_t key, dw_error *err)
{
    struct dw_merge_symbol *s = scratch->symbols;
    const int32_t left = (int32_t)(key & UINT32_MAX);
    const int32_t right = s[left].next;
    const dw_merge *merge = s[left].merge < 0 ? NULL : &merges->list[s[left].merge];
    if (merge == NULL || (uint64_t)merge->rank != key >> 32) return DW_OK;
    s[left].id = merge->result;
    s[left].next = s[right].next;
    if (s[left].next >= 0) s[s[left].next].prev = left;
    s[right].merge = -1;
    DW_TRY(reserve_heap(scratch, 2, err));
    if (s[left].prev >= 0 && look_up(merges, s, s[left].prev, &key)) heap_push(scratch, key);
    if (look_up(merges, s, left, &key)) heap_push(scratch, key);
    return DW_OK;
}

/* Symbols and the queue of a piece that nothing has been done to. */
static dw_status start(const dw_merges *merges, dw_merge_scratch *scratch, const int32_t *ids, int64_t n, dw_error *err)
{
    enum { WORTH_SORTING = 1000 }; /* symbols: a shorter piece stays in the cache */
    uint64_t key;
    DW_TRY(DW_GROW(&scratch->symbols, &scratch->symbol_capacity, n, "tokenizer", err));
    for (int32_t i = 0; i < (int32_t)n; i++) {
        scratch->symbols[i] = (struct dw_merge_symbol){.id = ids[i], .prev = i - 1, .next = i + 1 < n ? i + 1 : -1};
    }
    scratch->run_count = scratch->run_at = scratch->heap_count = 0;
    DW_TRY(reserve_heap(scratch, n, err));
    if (n >= WORTH_SORTING) DW_TRY(DW_GROW(&scratch->run, &scratch->run_capacity, n, "tokenizer", err));
    for (int32_t i = 0; i < (int32_t)n; i++) {
        if (!look_up(merges, scratch->symbols, i, &key)) continue;
        if (n >= WORTH_SORTING) {
            scratch->run[scratch->run_count++] = key;
        } else {
            heap_push(scratch, key);
        }
    }
    if (scratch->run_count > 0) sort_run(scratch, scratch->heap); /* which is empty */
    return DW_OK;
}

dw_status dw_merge_piece(const dw_merges *merges, dw_merge_scratch *scratch, int32_t *ids, int64_t *count, dw_error *err)
{
    const int64_t n = *count;
    int64_t kept = 0;
    if (n < 2) return DW_OK;
    if (n > INT32_MAX) {
        return dw_fail(err, DW_INPUT, "%lld characters of text without a place to split; at most %d can be handled",
                       (long long)n, INT32_MAX);
    }
    DW_TRY(start(merges, scratch, ids, n, err));
    while (!queue_is_empty(scratch)) DW_TRY(join(merges, scratch, next_key(scratch), err));
    for (int32_t i = 0; i >= 0; i = scratch->symbols[i].next) ids[kept++] = scratch->symbols[i].id;
    *count = kept;
    return DW_OK;
}
