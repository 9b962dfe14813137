#include <criterion/criterion.h>
#include <string.h>

#include "base/memory.h"
#include "tokenizer/merge.h"

static dw_merges make(const dw_merge *list, int64_t count)
{
    dw_merges merges;
    dw_merge *copy;
    dw_error err;
    cr_assert_eq(DW_ALLOC(&copy, count, "merges", &err), DW_OK);
    if (count > 0) memcpy(copy, list, (size_t)count * sizeof *copy);
    cr_assert_eq(dw_merges_create(&merges, copy, count, &err), DW_OK, "%s", err.message);
    return merges;
}

static void expect(const dw_merge *list, int64_t merge_count, const char *piece, const char *result)
{
    dw_merges merges = make(list, merge_count);
    dw_merge_scratch scratch = {0};
    int32_t ids[32];
    char text[33] = {0};
    int64_t count = (int64_t)strlen(piece);
    dw_error err;
    for (int64_t i = 0; i < count; i++) ids[i] = (unsigned char)piece[i];
    cr_assert_eq(dw_merge_piece(&merges, &scratch, ids, &count, &err), DW_OK, "%s", err.message);
    for (int64_t i = 0; i < count; i++) text[i] = (char)ids[i];
    cr_assert_str_eq(text, result, "%s gives %s, not %s", piece, text, result);
    dw_merge_scratch_free(&scratch);
    dw_merges_free(&merges);
}

#define EXPECT(list, piece, result) expect((list), (int64_t)(sizeof(list) / sizeof *(list)), (piece), (result))

Test(tokenizer_merge, lowest_rank_is_joined_first_wherever_it_stands)
{
    static const dw_merge later_pair_first[] = {{'b', 'c', 'X', 0}, {'a', 'b', 'Y', 1}};
    static const dw_merge earlier_pair_first[] = {{'a', 'b', 'Y', 0}, {'b', 'c', 'X', 1}};
    EXPECT(later_pair_first, "abc", "aX");
    EXPECT(earlier_pair_first, "abc", "Yc");
}

Test(tokenizer_merge, leftmost_is_joined_first_on_ties)
{
    static const dw_merge doubles[] = {{'a', 'a', 'A', 0}, {'A', 'A', 'B', 1}};
    EXPECT(doubles, "aaa", "Aa");
    EXPECT(doubles, "aaaaaaa", "BAa");
    EXPECT(doubles, "aabaa", "AbA");
}

Test(tokenizer_merge, joined_symbols_are_joined_again_to_either_side)
{
    static const dw_merge chain[] = {{'b', 'c', 'X', 0}, {'a', 'X', 'Y', 1}, {'Y', 'd', 'Z', 2}};
    EXPECT(chain, "abcd", "Z");
    EXPECT(chain, "abcdabcd", "ZZ");
}

/* b c is offered before a b is joined; when its turn comes its left symbol is gone. */
Test(tokenizer_merge, a_pair_that_has_changed_since_is_passed_over)
{
    static const dw_merge overlap[] = {{'a', 'b', 'X', 0}, {'b', 'c', 'Y', 1}, {'c', 'b', 'Z', 2}};
    EXPECT(overlap, "abcbc", "XcY");
    EXPECT(overlap, "abc", "Xc");
    EXPECT(overlap, "bcb", "Yb");
}

Test(tokenizer_merge, of_equal_pairs_the_first_counts)
{
    static const dw_merge twice[] = {{'a', 'b', 'X', 0}, {'c', 'd', 'Y', 1}, {'a', 'b', 'Z', 2}};
    EXPECT(twice, "ab", "X");
}

Test(tokenizer_merge, nothing_to_join_leaves_the_piece)
{
    static const dw_merge one[] = {{'a', 'b', 'X', 0}};
    EXPECT(one, "", "");
    EXPECT(one, "a", "a");
    EXPECT(one, "ba", "ba");
    expect(one, 0, "ab", "ab");
}

/* The definition, quadratic: join the leftmost of the pairs of lowest rank until there is none. */
static void join_slowly(const dw_merge *list, int64_t merge_count, int32_t *ids, int64_t *count)
{
    for (;;) {
        int64_t best = merge_count, place = 0;
        for (int64_t i = 0; i + 1 < *count; i++) {
            for (int64_t rank = 0; rank < best; rank++) {
                if (list[rank].left == ids[i] && list[rank].right == ids[i + 1]) {
                    best = rank;
                    place = i;
                }
            }
        }
        if (best == merge_count) return;
        ids[place] = list[best].result;
        memmove(ids + place + 1, ids + place + 2, (size_t)(*count - place - 2) * sizeof *ids);
        --*count;
    }
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

Test(tokenizer_merge, random_pieces_equal_the_quadratic_definition)
{
    enum { MERGES = 40, LONGEST = 60 };
    uint64_t state = 1;
    dw_merge_scratch scratch = {0};
    int64_t joined = 0;
    for (int round = 0; round < 4000; round++) {
        dw_merge list[MERGES];
        int32_t fast[LONGEST], slow[LONGEST];
        int64_t fast_count = next_random(&state) % (LONGEST + 1), slow_count = fast_count;
        const int64_t piece_count = fast_count;
        dw_merges merges;
        dw_error err;
        /* Results are new symbols (as in a vocabulary, where longer strings result), pairs any earlier ones. */
        for (int32_t rank = 0; rank < MERGES; rank++) {
            list[rank] = (dw_merge){(int32_t)(next_random(&state) % (uint32_t)(3 + rank)),
                                    (int32_t)(next_random(&state) % (uint32_t)(3 + rank)), 3 + rank, rank};
        }
        for (int64_t i = 0; i < fast_count; i++) fast[i] = slow[i] = (int32_t)(next_random(&state) % 3);
        merges = make(list, MERGES);
        cr_assert_eq(dw_merge_piece(&merges, &scratch, fast, &fast_count, &err), DW_OK, "%s", err.message);
        join_slowly(list, MERGES, slow, &slow_count);
        cr_assert_eq(fast_count, slow_count, "round %d", round);
        cr_assert(memcmp(fast, slow, (size_t)fast_count * sizeof *fast) == 0, "round %d", round);
        joined += piece_count - fast_count;
        dw_merges_free(&merges);
    }
    cr_assert_gt(joined, 30000, "only %lld joins", (long long)joined);
    dw_merge_scratch_free(&scratch);
}

/* Long pieces are sorted before anything is joined. */
Test(tokenizer_merge, long_pieces_equal_the_quadratic_definition)
{
    enum { MERGES = 40, LENGTH = 3000 };
    uint64_t state = 2;
    int64_t joined = 0;
    for (int round = 0; round < 20; round++) {
        static int32_t fast[LENGTH], slow[LENGTH];
        dw_merge list[MERGES];
        int64_t fast_count = LENGTH, slow_count = LENGTH;
        dw_merge_scratch scratch = {0};
        dw_merges merges;
        dw_error err;
        for (int32_t rank = 0; rank < MERGES; rank++) {
            list[rank] = (dw_merge){(int32_t)(next_random(&state) % (uint32_t)(3 + rank)),
                                    (int32_t)(next_random(&state) % (uint32_t)(3 + rank)), 3 + rank, rank};
        }
        for (int64_t i = 0; i < LENGTH; i++) fast[i] = slow[i] = (int32_t)(next_random(&state) % 3);
        merges = make(list, MERGES);
        for (int32_t i = 0; i < MERGES; i++) merges.list[i].rank *= 123457; /* ranks of more than one byte */
        cr_assert_eq(dw_merge_piece(&merges, &scratch, fast, &fast_count, &err), DW_OK, "%s", err.message);
        join_slowly(list, MERGES, slow, &slow_count);
        cr_assert_eq(fast_count, slow_count, "round %d", round);
        cr_assert(memcmp(fast, slow, (size_t)fast_count * sizeof *fast) == 0, "round %d", round);
        joined += LENGTH - fast_count;
        dw_merge_scratch_free(&scratch);
        dw_merges_free(&merges);
    }
    cr_assert_gt(joined, 15000, "only %lld joins", (long long)joined);
}

/* Quadratic work would be 10^13 steps: this test ends because the work is n log n. */
Test(tokenizer_merge, a_piece_of_four_million_symbols_becomes_one)
{
    enum { LEVELS = 22 };
    dw_merge list[LEVELS];
    dw_merges merges;
    dw_merge_scratch scratch = {0};
    dw_error err;
    int32_t *ids;
    int64_t count = INT64_C(1) << LEVELS;
    for (int32_t i = 0; i < LEVELS; i++) list[i] = (dw_merge){i, i, i + 1, i};
    merges = make(list, LEVELS);
    cr_assert_eq(DW_ALLOC(&ids, count, "ids", &err), DW_OK, "%s", err.message);
    cr_assert_eq(dw_merge_piece(&merges, &scratch, ids, &count, &err), DW_OK, "%s", err.message);
    cr_assert_eq(count, 1);
    cr_assert_eq(ids[0], LEVELS);
    dw_free(ids);
    dw_merge_scratch_free(&scratch);
    dw_merges_free(&merges);
}
