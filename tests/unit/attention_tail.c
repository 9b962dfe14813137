/* --tail mean: the keys outside the set weigh what they weigh, with the mean V row of their block in place of their own. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/partial.h"
#include "attention/tail.h"
#include "base/memory.h"
#include "kernels/f16.h"
#include "tests/shared/attention_case.h"
#include "tests/shared/must.h"

enum { MAX_HEADS = 9, MAX_D = 64, MAX_N = 1500, MAX_OUT = MAX_HEADS * MAX_D, MAX_WORDS = MAX_HEADS * (1 + 3 * (MAX_D + 1)) };

static const int64_t lengths[] = {1, 2, 63, 64, 65, 129, 205, 513, 1500};
static const int64_t windows[] = {0, 0, 100, 700};
static const dw_policy policies[] = {{DW_CONDENSATE, 1, 64, 32, 0, 1}, {DW_CONDENSATE, 1, 8, 5, 0, 1},
                                     {DW_CONDENSATE, 0, 0, 7, 0, 1},   {DW_CONDENSATE, 70, 1, 0, 0, 1},
                                     {DW_CONDENSATE, 1, 0, 0, 0, 1},   {DW_CONDENSATE, 4, 100, 200, 0, 1}};
enum { LENGTHS = 9, WINDOWS = 4, POLICIES = 6 };

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

static double stored(float x)
{
    return (double)dw_f32_of_f16(dw_f16_of_f32(x));
}

static dw_pos first_visible(const attention_case *c)
{
    return c->window > 0 && c->n > c->window ? c->n - c->window : 0;
}

/* ---- the definition, in float64 ---- */

static int compare(const void *a, const void *b)
{
    const dw_candidate *x = a;
    const dw_candidate *y = b;
    return dw_candidate_better(x, y) ? -1 : dw_candidate_better(y, x);
}

/* Which positions are in the head's set; scores: raw, as the definition's chain of FMAs gives them. */
static void find_set(const attention_case *c, int64_t head, const dw_policy *policy, float *scores, int *is_in)
{
    static dw_candidate keys[MAX_N];
    const dw_pos first = first_visible(c);
    int64_t count = 0;
    for (dw_pos p = first; p < c->n; p++) {
        const float *key = c->k + (head * c->kv_heads / c->heads * c->n + p) * c->d;
        scores[p] = 0.0f;
        for (int64_t i = 0; i < c->d; i++) scores[p] = fmaf(c->q[head * c->d + i], (float)stored(key[i]), scores[p]);
        keys[count++] = (dw_candidate){.position = p, .score = scores[p]};
        is_in[p] = p < policy->anchor || p >= c->n - policy->window;
    }
    if (policy->window == 0 && policy->keys == 0 && first >= policy->anchor) is_in[c->n - 1] = 1;
    qsort(keys, (size_t)count, sizeof *keys, compare);
    for (int64_t i = 0; i < count && i < policy->keys; i++) is_in[keys[i].position] = 1;
}

/* Channel `i` of V at p, or its mean over what the row sees of p's block. */
static double value_of(const attention_case *c, int64_t head, dw_pos p, int64_t i, int is_in)
{
    const float *v = c->v + head * c->kv_heads / c->heads * c->n * c->d + i;
    const dw_pos block = p / DW_BLOCK * DW_BLOCK;
    double sum = 0;
    int64_t count = 0;
    if (is_in) return stored(v[p * c->d]);
    for (dw_pos j = block; j < block + DW_BLOCK && j < c->n; j++) {
        if (j < first_visible(c)) continue;
        sum += stored(v[j * c->d]);
        count++;
    }
    return sum / (double)count;
}

static void check_head(const attention_case *c, int64_t head, const dw_policy *policy, const float *got)
{
    static float scores[MAX_N];
    static int is_in[MAX_N];
    double all = 0, top = -INFINITY, out[MAX_D] = {0};
    find_set(c, head, policy, scores, is_in);
    for (dw_pos p = first_visible(c); p < c->n; p++) top = fmax(top, (double)scores[p]);
    for (dw_pos p = first_visible(c); p < c->n; p++) {
        const double weight = exp(((double)scores[p] - top) / sqrt((double)c->d));
        all += weight;
        for (int64_t i = 0; i < c->d; i++) out[i] += weight * value_of(c, head, p, i, is_in[p]);
    }
    for (int64_t i = 0; i < c->d; i++) {
        cr_assert(fabs(out[i] / all - (double)got[i]) <= 1e-5 * (double)c->value_amplitude,
                  "%lld keys, window %lld, head %lld, channel %lld: %.9g, not %.9g", (long long)c->n, (long long)c->window,
                  (long long)head, (long long)i, (double)got[i], out[i] / all);
    }
}

Test(attention_tail, what_is_left_out_weighs_in_with_the_mean_of_its_block)
{
    for (int n = 0; n < LENGTHS; n++) {
        for (int w = 0; w < WINDOWS; w++) {
            attention_case c;
            make(&c, lengths[n], windows[w], w % 2);
            for (int p = 0; p < POLICIES; p++) {
                static float out[MAX_OUT];
                dw_interval omitted[MAX_HEADS];
                attention_case_sparse(&c, dw_kernels_best(), 1 + (n + p) % 4, 1 + p % 3, 0, DW_F16, &policies[p], out, omitted,
                                      NULL);
                for (int64_t h = 0; h < c.heads; h++) check_head(&c, h, &policies[p], out + h * c.d);
            }
            attention_case_free(&c);
        }
    }
}

/* ---- properties ---- */

Test(attention_tail, a_set_of_all_keys_is_dense_attention_bit_for_bit)
{
    static const dw_policy all[] = {{DW_CONDENSATE, 1, 64, 1500, 0, 1}, {DW_CONDENSATE, 0, 2000, 0, 0, 1}};
    for (int n = 0; n < LENGTHS; n++) {
        for (int p = 0; p < 2; p++) {
            static float dense[MAX_OUT], out[MAX_OUT];
            dw_interval omitted[MAX_HEADS];
            attention_case c;
            make(&c, lengths[n], windows[n % WINDOWS], p);
            attention_case_dense(&c, dw_kernels_best(), 2, 1, 0, DW_F16, dense, NULL);
            attention_case_sparse(&c, dw_kernels_best(), 3, 2, 0, DW_F16, &all[p], out, omitted, NULL);
            cr_assert_eq(memcmp(dense, out, (size_t)(c.heads * c.d) * sizeof *out), 0, "%lld keys", (long long)c.n);
            attention_case_free(&c);
        }
    }
}

/* Values that are the same throughout each block are represented exactly: only rounding separates it from dense attention. */
Test(attention_tail, blocks_of_equal_values_lose_nothing)
{
    static float dense[MAX_OUT], out[MAX_OUT];
    const dw_policy policy = {DW_CONDENSATE, 1, 8, 5, 0, 1};
    dw_interval omitted[MAX_HEADS];
    attention_case c;
    make(&c, 513, 0, 0);
    for (int64_t g = 0; g < c.kv_heads; g++) {
        for (int64_t p = 0; p < c.n; p++) {
            float *v = c.v + (g * c.n + p) * c.d;
            memcpy(v, v - p % DW_BLOCK * c.d, (size_t)c.d * sizeof *v);
        }
    }
    attention_case_dense(&c, dw_kernels_best(), 2, 1, 0, DW_F16, dense, NULL);
    attention_case_sparse(&c, dw_kernels_best(), 3, 2, 0, DW_F16, &policy, out, omitted, NULL);
    for (int64_t i = 0; i < c.heads * c.d; i++) {
        cr_assert(fabsf(dense[i] - out[i]) <= 2e-6f * c.value_amplitude, "%.9g, not %.9g", (double)out[i], (double)dense[i]);
    }
    for (int64_t h = 0; h < c.heads; h++) cr_assert_gt(omitted[h].low, 0.01, "nothing is left out: the test proves nothing");
    attention_case_free(&c);
}

/* Means are kept from row to row: those over rows that were overwritten must be found again. */
Test(attention_tail, rows_that_were_overwritten_count_with_their_new_values)
{
    static int64_t sums[3][MAX_WORDS];
    const dw_policy policy = {DW_CONDENSATE, 1, 8, 5, 0, 1};
    int32_t exponents[MAX_HEADS] = {0};
    dw_tail_cut cuts[MAX_HEADS];
    char row[4 * MAX_OUT] = {0}; /* of all heads */
    attention_case c;
    dw_shard *shard;
    dw_tail *kept, *fresh;
    dw_pool *pool;
    make(&c, 513, 0, 0);
    shard = attention_case_shard(&c, 0, 1, DW_F16);
    for (int64_t h = 0; h < c.heads; h++) cuts[h] = (dw_tail_cut){.score = INFINITY};
    MUST(dw_pool_create(&pool, 2, 0, err));
    MUST(dw_tail_create(&kept, dw_kernels_best(), pool, dw_shard_shape(shard), c.heads, err));
    MUST(dw_tail_create(&fresh, dw_kernels_best(), pool, dw_shard_shape(shard), c.heads, err));
    dw_tail_sum(kept, shard, 0, &policy, dw_visible_positions(512, 0), c.q, cuts, exponents, sums[0]);
    for (dw_pos p = 120; p < 140; p++) {
        for (int64_t g = 0; g < c.kv_heads; g++) dw_shard_put(shard, 0, g, p, row, row);
    }
    dw_tail_forget(kept, 0, 120, 20);
    dw_tail_sum(kept, shard, 0, &policy, dw_visible_positions(512, 0), c.q, cuts, exponents, sums[1]);
    dw_tail_sum(fresh, shard, 0, &policy, dw_visible_positions(512, 0), c.q, cuts, exponents, sums[2]);
    cr_assert_neq(memcmp(sums[0], sums[1], sizeof sums[0]), 0, "the new rows weigh the same: the test proves nothing");
    cr_assert_eq(memcmp(sums[1], sums[2], sizeof sums[1]), 0);
    dw_tail_destroy(kept);
    dw_tail_destroy(fresh);
    dw_pool_destroy(pool);
    dw_shard_destroy(shard);
    attention_case_free(&c);
}
