/* What a set leaves out, and what that would have added: o_full = (1 - e) o_C + e o_D, o_C attention over the set C alone, o_D over all
   other keys alone, e the omitted mass. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/pool.h"
#include "tests/shared/attention_case.h"

enum { MAX_OUT = 16 * 128, MAX_HEADS = 16, MAX_KEYS = 1500 };

/* Attention over the keys outside the set in double on the stored numbers; returns e. */
static double outside(const attention_case *c, const dw_policy *policy, int64_t head, const dw_pos *top, double *o)
{
    static double score[MAX_KEYS];
    static int is_in[MAX_KEYS];
    const int64_t kv = head * c->kv_heads / c->heads;
    double largest = -INFINITY, all = 0, left = 0;
    for (int64_t p = 0; p < c->n; p++) {
        score[p] = 0;
        for (int64_t i = 0; i < c->d; i++) {
            score[p] += (double)c->q[head * c->d + i] * (double)c->k[(kv * c->n + p) * c->d + i] / sqrt((double)c->d);
        }
        largest = fmax(largest, score[p]);
        is_in[p] = p < policy->anchor || p >= c->n - policy->window;
    }
    for (int64_t n = 0; n < policy->keys; n++) is_in[top[n]] = 1;
    memset(o, 0, (size_t)c->d * sizeof *o);
    for (int64_t p = 0; p < c->n; p++) {
        const double weight = exp(score[p] - largest);
        all += weight;
        if (is_in[p]) continue;
        left += weight;
        for (int64_t i = 0; i < c->d; i++) o[i] += weight * (double)c->v[(kv * c->n + p) * c->d + i];
    }
    for (int64_t i = 0; i < c->d; i++) o[i] /= left;
    return left / all;
}

/* With an f32 cache, so that the stored numbers are those of the case. */
Test(identity, full_attention_is_the_set_and_the_rest_by_their_masses)
{
    static float full[MAX_OUT], set[MAX_OUT];
    static dw_pos top[MAX_HEADS * 64];
    static const dw_policy policies[] = {{DW_CONDENSATE, 1, 64, 32}, {DW_CONDENSATE, 0, 1, 5}, {DW_CONDENSATE, 2, 30, 64}};
    int left_out = 0;
    dw_set_float_state();
    for (int p = 0; p < 3; p++) {
        for (int n = 400; n <= MAX_KEYS; n += 1100) {
            dw_interval omitted[MAX_HEADS];
            attention_case c;
            attention_case_random(&c, 9, 3, 64, n, (uint64_t)(n + p), 4.0f, 2.0f, 1.0f);
            attention_case_dense(&c, dw_kernels_best(), 2, 1, 0, DW_F32, full, NULL);
            attention_case_sparse(&c, dw_kernels_best(), 3, 2, 0, DW_F32, &policies[p], set, omitted, top);
            for (int64_t h = 0; h < c.heads; h++) {
                double rest[128];
                const double e = outside(&c, &policies[p], h, top + h * policies[p].keys, rest);
                cr_assert(omitted[h].low <= e && e <= omitted[h].high);
                left_out += e > 0.01;
                for (int64_t i = 0; i < c.d; i++) {
                    const double sum = (1 - e) * (double)set[h * c.d + i] + e * rest[i];
                    cr_assert(fabs(sum - (double)full[h * c.d + i]) <= 1e-6, "head %lld, channel %lld: %.9g, not %.9g",
                              (long long)h, (long long)i, sum, (double)full[h * c.d + i]);
                }
            }
            attention_case_free(&c);
        }
    }
    cr_assert_gt(left_out, 20, "the cases must leave something out");
}
