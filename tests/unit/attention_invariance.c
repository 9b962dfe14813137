/* Attention of one row: the same bits on any number of ranks and threads, in any order of merging, on any instruction set; and
   a set that holds every key is dense attention. */
#include <criterion/criterion.h>
#include <string.h>

#include "attention/partial.h"
#include "base/memory.h"
#include "tests/shared/attention_case.h"

enum { MAX_OUT = 16 * 128, MAX_WORDS = 16 * (1 + 3 * 129) };

static const int64_t lengths[] = {1, 2, 63, 64, 65, 129, 205, 513, 1500};

static void make(attention_case *c, int64_t n, int shape, int equal)
{
    static const int64_t shapes[][3] = {{9, 3, 64}, {4, 4, 24}, {8, 1, 128}, {6, 2, 11}};
    attention_case_random(c, shapes[shape][0], shapes[shape][1], shapes[shape][2], n, (uint64_t)(n * 10 + shape), 4.0f, 2.0f,
                          1.0f);
    if (equal) memset(c->q, 0, (size_t)(c->heads * c->d) * sizeof *c->q);
}

static void check_dense(const attention_case *c, dw_type type)
{
    static float want[MAX_OUT], got[MAX_OUT];
    static int64_t want_sums[MAX_WORDS], got_sums[MAX_WORDS];
    static const int ranks[] = {1, 2, 3, 5, 16};
    const dw_kernels *avx2 = dw_kernels_named("avx2");
    attention_case_dense(c, dw_kernels_best(), 1, 1, 0, type, want, want_sums);
    for (int i = 0; i < 5; i++) {
        attention_case_dense(c, dw_kernels_best(), ranks[i], 1 + i % 3, i % 2, type, got, got_sums);
        cr_assert(memcmp(want, got, (size_t)(c->heads * c->d) * sizeof *want) == 0, "output, %lld keys on %d ranks",
                  (long long)c->n, ranks[i]);
        cr_assert(memcmp(want_sums, got_sums, (size_t)(c->heads * dw_partial_words(c->d + 1)) * sizeof *want_sums) == 0,
                  "integers, %lld keys on %d ranks", (long long)c->n, ranks[i]);
    }
    attention_case_dense(c, &dw_kernels_scalar, 2, 1, 0, type, got, NULL);
    cr_assert(memcmp(want, got, (size_t)(c->heads * c->d) * sizeof *want) == 0, "scalar, %lld keys", (long long)c->n);
    if (avx2 != NULL) {
        attention_case_dense(c, avx2, 2, 1, 0, type, got, NULL);
        cr_assert(memcmp(want, got, (size_t)(c->heads * c->d) * sizeof *want) == 0, "avx2, %lld keys", (long long)c->n);
    }
}

static void check_sparse(const attention_case *c, const dw_policy *policy)
{
    static float want[MAX_OUT], got[MAX_OUT];
    static const int ranks[] = {1, 2, 3, 5, 16};
    dw_interval want_omitted[16], got_omitted[16];
    attention_case_sparse(c, dw_kernels_best(), 1, 1, 0, DW_F16, policy, want, want_omitted, NULL);
    for (int i = 0; i < 6; i++) {
        const dw_kernels *kernels = i == 5 ? &dw_kernels_scalar : dw_kernels_best();
        attention_case_sparse(c, kernels, ranks[i % 5], 1 + i % 3, i % 2, DW_F16, policy, got, got_omitted, NULL);
        cr_assert(memcmp(want, got, (size_t)(c->heads * c->d) * sizeof *want) == 0, "output, %lld keys on %d ranks, k = %lld",
                  (long long)c->n, ranks[i % 5], (long long)policy->keys);
        cr_assert(memcmp(want_omitted, got_omitted, (size_t)c->heads * sizeof *want_omitted) == 0,
                  "omitted mass, %lld keys on %d ranks", (long long)c->n, ranks[i % 5]);
    }
}

Test(attention_invariance, dense_on_any_ranks_threads_and_instruction_sets)
{
    for (int i = 0; i < 9; i++) {
        for (int shape = 0; shape < 4; shape++) {
            attention_case c;
            make(&c, lengths[i], shape, 0);
            check_dense(&c, i % 3 == 0 ? DW_F32 : i % 3 == 1 ? DW_F16 : DW_BF16);
            attention_case_free(&c);
        }
    }
}

Test(attention_invariance, condensate_on_any_ranks_threads_and_instruction_sets)
{
    static const dw_policy policies[] = {{DW_CONDENSATE, 1, 64, 32, 0, 0}, {DW_CONDENSATE, 0, 0, 7, 0, 0},
                                         {DW_CONDENSATE, 70, 1, 0, 0, 0},  {DW_CONDENSATE, 4, 100, 200, 0, 0},
                                         {DW_CONDENSATE, 1, 0, 0, 0, 0},   {DW_CONDENSATE, 1, 64, 32, 0, 1},
                                         {DW_CONDENSATE, 1, 0, 0, 0, 1}};
    for (int i = 0; i < 9; i++) {
        for (int p = 0; p < 7; p++) {
            attention_case c;
            make(&c, lengths[i], (i + p) % 4, 0);
            check_sparse(&c, &policies[p]);
            attention_case_free(&c);
        }
    }
}

Test(attention_invariance, condensate_with_all_scores_equal_takes_the_first_positions_on_any_ranks)
{
    const dw_policy policy = {DW_CONDENSATE, 0, 0, 40, 0, 0};
    for (int i = 0; i < 9; i++) {
        static float out[MAX_OUT];
        static dw_pos top[16 * 40];
        dw_interval omitted[16];
        attention_case c;
        make(&c, lengths[i], 0, 1);
        check_sparse(&c, &policy);
        attention_case_sparse(&c, dw_kernels_best(), 3, 2, 1, DW_F16, &policy, out, omitted, top);
        const int64_t keys = c.n < 40 ? c.n : 40;
        for (int64_t h = 0; h < c.heads; h++) {
            for (int64_t n = 0; n < keys; n++) cr_assert_eq(top[h * keys + n], n, "ties go to the lower position");
        }
        attention_case_free(&c);
    }
}

Test(attention_invariance, a_set_of_all_keys_is_dense_attention_bit_for_bit)
{
    static const dw_policy policies[] = {{DW_CONDENSATE, 1, 64, 1500, 0, 0},
                                         {DW_CONDENSATE, 0, 0, 9999, 0, 0},
                                         {DW_CONDENSATE, 0, 2000, 0, 0, 0},
                                         {DW_CONDENSATE, 3000, 1, 1, 0, 0}};
    for (int i = 0; i < 9; i++) {
        for (int p = 0; p < 4; p++) {
            static float dense[MAX_OUT], sparse[MAX_OUT];
            dw_interval omitted[16];
            attention_case c;
            make(&c, lengths[i], (i + p) % 4, 0);
            attention_case_dense(&c, dw_kernels_best(), 2, 1, 0, DW_F16, dense, NULL);
            attention_case_sparse(&c, dw_kernels_best(), 3, 2, 0, DW_F16, &policies[p], sparse, omitted, NULL);
            cr_assert(memcmp(dense, sparse, (size_t)(c.heads * c.d) * sizeof *dense) == 0, "%lld keys, policy %d",
                      (long long)c.n, p);
            for (int64_t h = 0; h < c.heads; h++)
                cr_assert(omitted[h].low == 0.0 && omitted[h].high == 0.0, "nothing is left out");
            attention_case_free(&c);
        }
    }
}
