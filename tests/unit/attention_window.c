/* Sliding windows: a row at p sees the positions max(0, p - window + 1) .. p. What it does not see is never proposed, scored or
   read, and changes nothing. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "attention/partial.h"
#include "attention/scan.h"
#include "attention/visible.h"
#include "base/memory.h"
#include "kernels/f16.h"
#include "tests/shared/attention_case.h"

enum { MAX_HEADS = 9, MAX_D = 64, MAX_N = 1500, MAX_OUT = MAX_HEADS * MAX_D, MAX_WORDS = MAX_HEADS * (1 + 3 * (MAX_D + 1)) };

static const int64_t lengths[] = {1, 2, 63, 64, 65, 129, 205, 513, 1500};
static const int64_t windows[] = {1, 2, 63, 64, 65, 100, 130, 700};
enum { LENGTHS = 9, WINDOWS = 8 };

static const dw_policy policies[] = {{DW_CONDENSATE, 1, 64, 32, 0, 0},   {DW_CONDENSATE, 1, 8, 32, 0, 0},
                                     {DW_CONDENSATE, 0, 0, 7, 0, 0},     {DW_CONDENSATE, 70, 1, 0, 0, 0},
                                     {DW_CONDENSATE, 4, 100, 200, 0, 0}, {DW_CONDENSATE, 1, 0, 0, 0, 0}};
enum { POLICIES = 6 };

/* tied: numbers are small integers, so that many scores are equal. */
static void make(attention_case *c, int64_t n, int64_t window, int tied)
{
    static const int64_t shapes[][3] = {{9, 3, 64}, {4, 4, 24}, {6, 2, 11}};
    const int64_t *s = shapes[(n + window) % 3];
    attention_case_random(c, s[0], s[1], s[2], n, (uint64_t)(n * 10 + window), 4.0f, 2.0f, 1.0f);
    c->window = window;
    for (int64_t i = 0; tied && i < c->heads * c->d; i++) c->q[i] = i % c->d < 4 ? rintf(c->q[i] / 2.0f) : 0.0f;
    for (int64_t i = 0; tied && i < c->kv_heads * n * c->d; i++) c->k[i] = rintf(c->k[i] / 2.0f);
}

static dw_pos first_visible(const attention_case *c)
{
    return c->window > 0 && c->n > c->window ? c->n - c->window : 0;
}

static float stored(float x)
{
    return dw_f32_of_f16(dw_f16_of_f32(x));
}

static const float *key_of(const attention_case *c, int64_t head, dw_pos position)
{
    return c->k + (head * c->kv_heads / c->heads * c->n + position) * c->d;
}

/* The definition's score: one FMA chain over the stored key. */
static float score(const attention_case *c, int64_t head, dw_pos position)
{
    const float *key = key_of(c, head, position);
    float dot = 0.0f;
    for (int64_t i = 0; i < c->d; i++) dot = fmaf(c->q[head * c->d + i], stored(key[i]), dot);
    return dot;
}

static int compare(const void *a, const void *b)
{
    const dw_candidate *x = a;
    const dw_candidate *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->position > y->position) - (x->position < y->position);
}

/* All visible keys of a head, best first. */
static int64_t rank_keys(const attention_case *c, int64_t head, dw_candidate *keys)
{
    int64_t count = 0;
    for (dw_pos p = first_visible(c); p < c->n; p++) keys[count++] = (dw_candidate){.position = p, .score = score(c, head, p)};
    qsort(keys, (size_t)count, sizeof *keys, compare);
    return count;
}

static int is_forced(const attention_case *c, const dw_policy *policy, dw_pos p)
{
    const int only_anchors = policy->window == 0 && policy->keys == 0;
    if (p < first_visible(c) || p >= c->n) return 0;
    if (only_anchors && policy->anchor <= first_visible(c)) return p == c->n - 1; /* the set would be empty */
    return p < policy->anchor || p >= c->n - policy->window;
}

/* One section of merged proposals against brute force. members[p]: how many heads of the group have p in their set. */
static void check_section(const attention_case *c, const dw_policy *policy, const dw_proposal *section, int64_t kv_head)
{
    static dw_candidate keys[MAX_N];
    static int members[MAX_N];
    const dw_candidate *top = section->top;
    const int64_t group = c->heads / c->kv_heads;
    int64_t forced = 0;
    int64_t values = 0;
    memset(members, 0, sizeof members);
    for (dw_pos p = 0; p < c->n; p++) {
        if (!is_forced(c, policy, p)) continue;
        cr_assert(forced < *section->forced_count && section->forced[forced] == p, "%lld keys, window %lld: %lld is missing",
                  (long long)c->n, (long long)c->window, (long long)p);
        for (int64_t i = 0; i < group; i++)
            cr_assert_eq(section->forced_scores[i * *section->forced_count + forced], score(c, kv_head * group + i, p));
        forced++;
        members[p]++;
    }
    cr_assert_eq(*section->forced_count, forced, "%lld keys, window %lld: too many anchor and window positions",
                 (long long)c->n, (long long)c->window);
    for (int64_t i = 0; i < group; i++) {
        const int64_t count = rank_keys(c, kv_head * group + i, keys);
        cr_assert_eq(section->top_count[i], count < policy->keys ? count : policy->keys);
        for (int64_t n = 0; n < section->top_count[i]; n++, top++) {
            cr_assert(top->position == keys[n].position && top->score == keys[n].score,
                      "%lld keys, window %lld: best key %lld is %lld, not %lld", (long long)c->n, (long long)c->window,
                      (long long)n, (long long)top->position, (long long)keys[n].position);
            members[top->position]++;
        }
    }
    for (dw_pos p = 0; p < c->n; p++) {
        if (members[p] == 0) continue;
        cr_assert(values < *section->value_count && section->value_positions[values] == p);
        values++;
    }
    cr_assert_eq(*section->value_count, values, "a V row that belongs to no set");
}

static void check_proposals(const attention_case *c, const dw_policy *policy, int ranks, int threads)
{
    dw_proposal_shape shape;
    void *message = attention_case_proposals(c, dw_kernels_best(), ranks, threads, 0, DW_F16, policy, &shape);
    char *at = message;
    for (int64_t g = 0; g < c->kv_heads; g++) {
        const dw_proposal section = dw_proposal_view(&shape, at);
        check_section(c, policy, &section, g);
        at += *section.bytes;
    }
    dw_free(message);
    dw_proposal_shape_free(&shape);
}

Test(attention_window, the_merged_proposals_are_anchor_window_and_best_keys_of_the_visible_positions_and_no_others)
{
    static const int ranks[] = {1, 2, 3, 4, 8};
    for (int i = 0; i < LENGTHS; i++) {
        for (int w = 0; w < WINDOWS; w++) {
            for (int tied = 0; tied < 2; tied++) {
                const int turn = i + w + tied;
                attention_case c;
                make(&c, lengths[i], windows[w], tied);
                check_proposals(&c, &policies[turn % POLICIES], ranks[turn % 5], 1 + turn % 3);
                check_proposals(&c, &policies[(turn + 2) % POLICIES], ranks[(turn + 3) % 5], 1 + (turn + 1) % 3);
                attention_case_free(&c);
            }
        }
    }
}

Test(attention_window, of_equal_scores_the_lowest_visible_positions_are_best)
{
    const dw_policy policy = {DW_CONDENSATE, 0, 0, 40, 0, 0};
    for (int w = 0; w < WINDOWS; w++) {
        static float out[MAX_OUT];
        static dw_pos top[MAX_HEADS * 40];
        dw_interval omitted[MAX_HEADS];
        attention_case c;
        make(&c, 513, windows[w], 0);
        memset(c.q, 0, (size_t)(c.heads * c.d) * sizeof *c.q);
        attention_case_sparse(&c, dw_kernels_best(), 3, 2, 1, DW_F16, &policy, out, omitted, top);
        for (int64_t n = 0; n < 40 && n < c.window; n++) cr_assert_eq(top[n], first_visible(&c) + n);
        attention_case_free(&c);
    }
}

static void check_dense(const attention_case *c)
{
    static float want[MAX_OUT], got[MAX_OUT];
    static int64_t want_sums[MAX_WORDS], got_sums[MAX_WORDS];
    static const int ranks[] = {2, 3, 4, 8, 16};
    const dw_kernels *tables[] = {dw_kernels_best(), &dw_kernels_scalar, dw_kernels_named("avx2")};
    attention_case_dense(c, dw_kernels_best(), 1, 1, 0, DW_F16, want, want_sums);
    for (int i = 0; i < 5; i++) {
        const dw_kernels *kernels = tables[i % 3] != NULL ? tables[i % 3] : &dw_kernels_scalar;
        attention_case_dense(c, kernels, ranks[i], 1 + i % 3, i % 2, DW_F16, got, got_sums);
        cr_assert(memcmp(want, got, (size_t)(c->heads * c->d) * sizeof *want) == 0 &&
                      memcmp(want_sums, got_sums, (size_t)(c->heads * dw_partial_words(c->d + 1)) * sizeof *want_sums) == 0,
                  "%lld keys, window %lld, %d ranks, %s", (long long)c->n, (long long)c->window, ranks[i], kernels->name);
    }
}

Test(attention_window, dense_has_the_same_integers_on_any_ranks_threads_and_instruction_sets)
{
    for (int i = 0; i < LENGTHS; i++) {
        for (int w = 0; w < WINDOWS; w++) {
            attention_case c;
            make(&c, lengths[i], windows[w], 0);
            check_dense(&c);
            attention_case_free(&c);
        }
    }
}

static void check_sparse(const attention_case *c, const dw_policy *policy)
{
    static float want[MAX_OUT], got[MAX_OUT];
    static const int ranks[] = {2, 3, 4, 8, 16};
    dw_interval want_omitted[MAX_HEADS], got_omitted[MAX_HEADS];
    attention_case_sparse(c, dw_kernels_best(), 1, 1, 0, DW_F16, policy, want, want_omitted, NULL);
    for (int i = 0; i < 5; i++) {
        const dw_kernels *kernels = i == 2 ? &dw_kernels_scalar : dw_kernels_best();
        attention_case_sparse(c, kernels, ranks[i], 1 + i % 3, i % 2, DW_F16, policy, got, got_omitted, NULL);
        cr_assert(memcmp(want, got, (size_t)(c->heads * c->d) * sizeof *want) == 0 &&
                      memcmp(want_omitted, got_omitted, (size_t)c->heads * sizeof *want_omitted) == 0,
                  "%lld keys, window %lld, %d ranks, %d threads", (long long)c->n, (long long)c->window, ranks[i], 1 + i % 3);
    }
}

Test(attention_window, condensate_has_the_same_bits_on_any_ranks_threads_and_instruction_sets)
{
    for (int i = 0; i < LENGTHS; i++) {
        for (int w = 0; w < WINDOWS; w++) {
            attention_case c;
            make(&c, lengths[i], windows[w], 0);
            check_sparse(&c, &policies[(i + w) % POLICIES]);
            attention_case_free(&c);
        }
    }
}

Test(attention_window, a_set_of_all_visible_keys_is_dense_attention_bit_for_bit_and_leaves_nothing_out)
{
    static const dw_policy all[] = {
        {DW_CONDENSATE, 1, 8, 700, 0, 0}, {DW_CONDENSATE, 0, 700, 0, 0, 0}, {DW_CONDENSATE, 1500, 0, 0, 0, 0}};
    for (int i = 0; i < LENGTHS; i++) {
        for (int w = 0; w < WINDOWS; w++) {
            static float dense[MAX_OUT], sparse[MAX_OUT];
            dw_interval omitted[MAX_HEADS];
            attention_case c;
            make(&c, lengths[i], windows[w], 0);
            attention_case_dense(&c, dw_kernels_best(), 2, 1, 0, DW_F16, dense, NULL);
            attention_case_sparse(&c, dw_kernels_best(), 3, 2, 0, DW_F16, &all[(i + w) % 3], sparse, omitted, NULL);
            cr_assert(memcmp(dense, sparse, (size_t)(c.heads * c.d) * sizeof *dense) == 0, "%lld keys, window %lld",
                      (long long)c.n, (long long)c.window);
            for (int64_t h = 0; h < c.heads; h++) cr_assert(omitted[h].low == 0.0 && omitted[h].high == 0.0);
            attention_case_free(&c);
        }
    }
}

/* Share of the visible weights outside the set of one head, in double on the stored keys. */
static double exact_omitted(const attention_case *c, const dw_policy *policy, int64_t head)
{
    static dw_candidate keys[MAX_N];
    const int64_t count = rank_keys(c, head, keys);
    double left_out = 0.0;
    double all = 0.0;
    for (int64_t n = 0; n < count; n++) {
        const float *key = key_of(c, head, keys[n].position);
        double dot = 0.0;
        for (int64_t i = 0; i < c->d; i++) dot += (double)c->q[head * c->d + i] * (double)stored(key[i]);
        const double weight = exp((dot - (double)keys[0].score) / sqrt((double)c->d));
        all += weight;
        if (n >= policy->keys && !is_forced(c, policy, keys[n].position)) left_out += weight;
    }
    return left_out / all;
}

/* The interval's width: sums err by 1e-5 at most, scores of some tens of bits by far less than 1e-4 bits. */
Test(attention_window, omitted_mass_is_the_share_of_what_the_row_sees_within_the_certified_interval)
{
    int left_out = 0;
    for (int i = 0; i < LENGTHS; i++) {
        for (int w = 0; w < WINDOWS; w++) {
            for (int p = 1; p < POLICIES; p++) {
                static float out[MAX_OUT];
                dw_interval omitted[MAX_HEADS];
                attention_case c;
                make(&c, lengths[i], windows[w], 0);
                attention_case_sparse(&c, dw_kernels_best(), 1 + (i + w) % 4, 1, 0, DW_F16, &policies[p], out, omitted, NULL);
                for (int64_t h = 0; h < c.heads; h++) {
                    const double e = exact_omitted(&c, &policies[p], h);
                    cr_assert(omitted[h].low <= e && e <= omitted[h].high,
                              "%lld keys, window %lld: %.17g not in [%.17g, %.17g]", (long long)c.n, (long long)c.window, e,
                              omitted[h].low, omitted[h].high);
                    cr_assert_leq(omitted[h].high - omitted[h].low, 2e-5 + 1e-3 * e);
                    left_out += e > 0.01;
                }
                attention_case_free(&c);
            }
        }
    }
    cr_assert_gt(left_out, 500, "the cases must leave something out");
}

/* What the row does not see: keys that would win by far, values as large as can be. */
static void change_the_invisible(attention_case *c)
{
    for (int64_t g = 0; g < c->kv_heads; g++) {
        for (dw_pos p = 0; p < first_visible(c); p++) {
            for (int64_t i = 0; i < c->d; i++) {
                c->k[(g * c->n + p) * c->d + i] = c->q[g * (c->heads / c->kv_heads) * c->d + i] * 50.0f;
                c->v[(g * c->n + p) * c->d + i] = -1.0f;
            }
        }
    }
}

Test(attention_window, keys_and_values_outside_the_window_do_not_change_a_bit)
{
    for (int i = 3; i < LENGTHS; i++) {
        for (int w = 0; w < WINDOWS; w++) {
            static float dense[2][MAX_OUT], sparse[2][MAX_OUT];
            dw_interval omitted[2][MAX_HEADS];
            const dw_policy *policy = &policies[(i + w) % POLICIES];
            attention_case c;
            make(&c, lengths[i], windows[w], 0);
            for (int changed = 0; changed < 2; changed++) {
                if (changed) change_the_invisible(&c);
                attention_case_dense(&c, dw_kernels_best(), 2, 2, 0, DW_F16, dense[changed], NULL);
                attention_case_sparse(&c, dw_kernels_best(), 2, 2, 0, DW_F16, policy, sparse[changed], omitted[changed], NULL);
            }
            cr_assert(memcmp(dense[0], dense[1], (size_t)(c.heads * c.d) * sizeof(float)) == 0, "dense, %lld keys, window %lld",
                      (long long)c.n, (long long)c.window);
            cr_assert(memcmp(sparse[0], sparse[1], (size_t)(c.heads * c.d) * sizeof(float)) == 0,
                      "condensate, %lld keys, window %lld", (long long)c.n, (long long)c.window);
            cr_assert(memcmp(omitted[0], omitted[1], (size_t)c.heads * sizeof(dw_interval)) == 0,
                      "omitted mass, %lld keys, window %lld", (long long)c.n, (long long)c.window);
            attention_case_free(&c);
        }
    }
}

Test(attention_window, a_set_of_anchors_that_are_out_of_sight_is_the_row_itself)
{
    static const dw_policy policy = {DW_CONDENSATE, 2, 0, 0, 0, 0};
    static float out[MAX_OUT];
    dw_interval omitted[MAX_HEADS];
    attention_case c;
    make(&c, 205, 64, 0);
    attention_case_sparse(&c, dw_kernels_best(), 3, 1, 0, DW_F16, &policy, out, omitted, NULL);
    for (int64_t h = 0; h < c.heads; h++) {
        const float *value = c.v + ((h * c.kv_heads / c.heads + 1) * c.n - 1) * c.d;
        for (int64_t i = 0; i < c.d; i++) cr_assert_float_eq(out[h * c.d + i], stored(value[i]), 1e-7f);
    }
    attention_case_free(&c);
}

/* Counts the blocks that kernels read. */
static atomic_int blocks_scored, blocks_weighed;

static void counted_scores(float *out, const float *q, int64_t q_stride, int n, const void *k, int d)
{
    atomic_fetch_add(&blocks_scored, 1);
    dw_kernels_scalar.scores[DW_F16](out, q, q_stride, n, k, d);
}

static void counted_values(float *out, const float *w, int n, const void *v, int d, int first, int last)
{
    atomic_fetch_add(&blocks_weighed, 1);
    dw_kernels_scalar.values[DW_F16](out, w, n, v, d, first, last);
}

static dw_kernels counting_kernels(void)
{
    dw_kernels kernels = dw_kernels_scalar;
    kernels.scores[DW_F16] = counted_scores;
    kernels.values[DW_F16] = counted_values;
    return kernels;
}

Test(attention_window, blocks_outside_the_window_are_not_read)
{
    const dw_kernels kernels = counting_kernels();
    for (int w = 0; w < WINDOWS; w++) {
        for (int ranks = 1; ranks <= 16; ranks *= 4) {
            static float out[MAX_OUT];
            dw_interval omitted[MAX_HEADS];
            attention_case c;
            make(&c, 1500, windows[w], 0);
            const int64_t seen = c.kv_heads * ((c.n - 1) / DW_BLOCK - first_visible(&c) / DW_BLOCK + 1);
            atomic_store(&blocks_scored, 0), atomic_store(&blocks_weighed, 0);
            attention_case_dense(&c, &kernels, ranks, 2, 0, DW_F16, out, NULL);
            cr_assert_eq(atomic_load(&blocks_scored), seen, "%d blocks of K read, not %lld", atomic_load(&blocks_scored),
                         (long long)seen);
            cr_assert_eq(atomic_load(&blocks_weighed), seen);
            atomic_store(&blocks_scored, 0);
            attention_case_sparse(&c, &kernels, ranks, 2, 0, DW_F16, &policies[0], out, omitted, NULL);
            cr_assert_eq(atomic_load(&blocks_scored), seen);
            attention_case_free(&c);
        }
    }
}

/* Blocks of K that one pass of 40 rows from position `first` on reads. */
static int blocks_of_pass(const attention_case *c, dw_pos first)
{
    const dw_kernels kernels = counting_kernels();
    const int32_t value_exponent[] = {0, 0, 0, 0};
    dw_shard *shard = attention_case_shard(c, 0, 1, DW_F16);
    dw_scan *scan;
    dw_pool *pool;
    float *q;
    int64_t *partials;
    cr_assert(DW_ALLOC(&q, 40 * c->heads * c->d, "q", NULL) == DW_OK);
    cr_assert(DW_ALLOC(&partials, 40 * c->heads * dw_partial_words(c->d + 1), "partials", NULL) == DW_OK);
    cr_assert(dw_pool_create(&pool, 1, 0, NULL) == DW_OK);
    cr_assert(dw_scan_create(&scan, &kernels, pool, dw_shard_shape(shard), c->heads, 40, NULL) == DW_OK);
    const dw_queries queries = {40, first, q, c->heads * c->d, c->window};
    atomic_store(&blocks_scored, 0);
    cr_assert(dw_scan_dense(scan, shard, 0, &queries, value_exponent, partials, NULL) == DW_OK);
    dw_scan_destroy(scan);
    dw_pool_destroy(pool);
    dw_shard_destroy(shard);
    dw_free(q);
    dw_free(partials);
    return atomic_load(&blocks_scored);
}

Test(attention_window, a_pass_costs_the_same_deep_in_the_context)
{
    for (int w = 0; w < WINDOWS - 1; w++) {
        attention_case c;
        make(&c, 1500, windows[w], 0);
        cr_assert_eq(blocks_of_pass(&c, 200), blocks_of_pass(&c, 200 + 20 * DW_BLOCK), "window %lld", (long long)c.window);
        c.window = 0;
        cr_assert_lt(blocks_of_pass(&c, 200), blocks_of_pass(&c, 200 + 20 * DW_BLOCK), "there is something to save");
        attention_case_free(&c);
    }
}

Test(attention_window, a_rank_without_visible_blocks_has_empty_sums)
{
    enum { RANKS = 16 };
    static int64_t partials[MAX_WORDS];
    const int32_t value_exponent[] = {0, 0, 0, 0};
    int64_t empty = 0;
    attention_case c;
    dw_pool *pool;
    make(&c, 1500, 100, 0);
    cr_assert(dw_pool_create(&pool, 2, 0, NULL) == DW_OK);
    for (int rank = 0; rank < RANKS; rank++) {
        const dw_queries queries = {1, c.n - 1, c.q, c.heads * c.d, c.window};
        dw_shard *shard = attention_case_shard(&c, rank, RANKS, DW_F16);
        dw_scan *scan;
        cr_assert(dw_scan_create(&scan, dw_kernels_best(), pool, dw_shard_shape(shard), c.heads, 1, NULL) == DW_OK);
        cr_assert(dw_scan_dense(scan, shard, 0, &queries, value_exponent, partials, NULL) == DW_OK);
        for (int64_t h = 0; h < c.heads; h++) empty += partials[h * dw_partial_words(c.d + 1)] == DW_PARTIAL_EMPTY;
        dw_scan_destroy(scan);
        dw_shard_destroy(shard);
    }
    cr_assert_eq(empty, c.heads * (RANKS - 3), "positions 1400..1499 lie in three blocks");
    dw_pool_destroy(pool);
    attention_case_free(&c);
}

Test(attention_window, key_norms_bound_the_visible_keys_alone)
{
    attention_case c;
    make(&c, 200, 0, 0);
    for (int64_t i = 0; i < c.kv_heads * c.n * c.d; i++) c.k[i] = 0.0f;
    for (dw_pos p = 0; p < c.n; p++) c.k[p * c.d] = (float)(1 + (p * 37) % 211); /* all different */
    dw_shard *shard = attention_case_shard(&c, 0, 1, DW_F16);
    for (int first = 0; first < DW_BLOCK; first += 7) {
        for (int last = first; last < DW_BLOCK; last++) {
            float largest = 0.0f;
            for (int j = first; j <= last; j++) largest = fmaxf(largest, c.k[(DW_BLOCK + j) * c.d]);
            const float bound = dw_shard_key_norm(shard, 0, 0, (dw_block_slot){1}, first, last);
            cr_assert(bound >= largest && bound <= largest * 1.00001f, "keys %d..%d: %g for %g", first, last, (double)bound,
                      (double)largest);
        }
    }
    dw_shard_destroy(shard);
    attention_case_free(&c);
}

Test(attention_window, visible_positions_blocks_and_masks_are_those_of_the_definition)
{
    static const int64_t some[] = {0, 1, 2, 63, 64, 65, 100, 130, 299, 300, 301, INT64_MAX};
    for (dw_pos p = 0; p < 300; p++) {
        for (int w = 0; w < 12; w++) {
            const dw_visible v = dw_visible_positions(p, some[w]);
            cr_assert(v.last == p && v.first == (some[w] > 0 && p + 1 > some[w] ? p + 1 - some[w] : 0));
            for (dw_pos start = v.first / DW_BLOCK * DW_BLOCK; start <= p; start += DW_BLOCK) {
                const uint64_t mask = dw_key_mask(dw_visible_keys(v, start));
                for (int j = 0; j < DW_BLOCK; j++)
                    cr_assert_eq((int)(mask >> j & 1), start + j >= v.first && start + j <= v.last);
            }
        }
    }
}
