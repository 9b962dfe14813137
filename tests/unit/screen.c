/* The int8 screen: its error bound holds, and discovery by it finds the same sets, scores and outputs as without. */
#include "cache/screen.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "attention/scan.h"
#include "base/memory.h"
#include "base/pool.h"
#include "tests/shared/attention_case.h"
#include "tests/shared/must.h"

enum { MAX_OUT = 16 * 128, MAX_HEADS = 16, MAX_KEYS = 1500 };

/* What may make a screen fail. */
typedef enum {
    PLAIN,
    OUTLIERS,   /* some channels of the keys far from 0, as by the biases of Qwen2 */
    ONE_GIANT,  /* one key a hundred times as long */
    HUGE,       /* scores that differ by thousands */
    EQUAL,      /* all keys of a block the same */
    ZERO_QUERY, /* all scores tie */
    TINY,       /* scores below what a screen counts */
    FAR_HEAD,   /* the first head's queries are a thousand times as long */
    KINDS
} kind;

static void change_keys(attention_case *c, kind what)
{
    for (int64_t i = 0; i < c->kv_heads * c->n * c->d; i++) {
        const int64_t channel = i % c->d;
        const int64_t position = i / c->d % c->n;
        if (what == OUTLIERS && channel % 7 == 2) c->k[i] += channel % 2 ? 90.0f : -200.0f;
        if (what == ONE_GIANT && position % 100 == 70) c->k[i] *= 100.0f;
        if (what == HUGE) c->k[i] *= 500.0f;
        if (what == EQUAL) c->k[i] = c->k[i - position % DW_BLOCK * c->d];
        if (what == TINY) c->k[i] *= 1e-4f;
    }
}

static void make(attention_case *c, kind what, int64_t n, int shape)
{
    static const int64_t shapes[][3] = {{9, 3, 64}, {4, 4, 24}, {8, 1, 128}, {6, 2, 11}};
    attention_case_random(c, shapes[shape][0], shapes[shape][1], shapes[shape][2], n,
                          (uint64_t)(n * 40 + shape * 10 + (int)what), 4.0f, 2.0f, 1.0f);
    change_keys(c, what);
    for (int64_t i = 0; i < c->heads * c->d; i++) {
        if (what == ZERO_QUERY) c->q[i] = 0.0f;
        if (what == TINY) c->q[i] *= 1e-28f;
        if (what == FAR_HEAD && i < c->d) c->q[i] *= 1000.0f;
    }
}

static float norm_of(const float *x, int64_t d)
{
    double sum = 0.0;
    for (int64_t c = 0; c < d; c++) sum += (double)x[c] * (double)x[c];
    return (float)(sqrt(sum) * (1.0 + 0x1p-20));
}

/* Of one head in one block. Returns the largest |screened - exact score| as a share of the bound. */
static double worst_error(const attention_case *c, const dw_shard *shard, dw_screen *screen, int64_t head, int64_t block)
{
    const dw_kernels *k = dw_kernels_best();
    const int64_t kv_head = head * c->kv_heads / c->heads;
    const dw_screen_block known = dw_screen_of(screen, shard, 0, kv_head, (dw_block_slot){block});
    const int n = (int)dw_screen_channels(dw_shard_shape(shard));
    float q[DW_MAX_HEAD_DIM] = {0}, exact[DW_BLOCK], screened[DW_BLOCK], row[DW_MAX_HEAD_DIM + DW_LANES], again;
    int16_t numbers[DW_MAX_HEAD_DIM];
    dw_screen_query query;
    double worst = 0.0;
    float error;
    memcpy(q, c->q + head * c->d, (size_t)c->d * sizeof *q);
    query = k->screen_query(numbers, q, known.scale, known.lowest, n);
    error = dw_screen_error(&known, &query, norm_of(q, c->d), c->d);
    k->screen_scores(screened, &query, numbers, 1, known.codes, n);
    k->scores[DW_F16](exact, q, c->d, 1, dw_shard_keys(shard, 0, kv_head, (dw_block_slot){block}), (int)c->d);
    for (int64_t j = 0; j < DW_BLOCK; j++) {
        k->dequantize[DW_F16](row, dw_screen_row(screen, 0, kv_head, block * DW_BLOCK + j), c->d);
        k->key_scores(&again, q, row, DW_MAX_HEAD_DIM, 1, (int)c->d);
        cr_assert_eq(again, exact[j], "the row of a key gives its score");
        const double off = fabs((double)screened[j] - (double)exact[j]);
        cr_assert(off <= (double)error, "key %lld: %g is off by %g, more than %g", (long long)j, (double)screened[j], off,
                  (double)error);
        if (error > 0.0f) worst = fmax(worst, off / (double)error);
    }
    return worst;
}

/* A bound that is never met by a quarter would be of little use; plain keys come nearer to it. */
Test(screen, the_error_bound_holds_and_is_not_far_off)
{
    dw_set_float_state();
    for (int what = 0; what < KINDS; what++) {
        double worst = 0.0;
        for (int shape = 0; shape < 4; shape++) {
            attention_case c;
            dw_shard *shard;
            dw_screen *screen;
            make(&c, (kind)what, 640, shape);
            shard = attention_case_shard(&c, 0, 1, DW_F16);
            MUST(dw_screen_create(&screen, dw_kernels_best(), dw_shard_shape(shard), err));
            for (int64_t h = 0; h < c.heads; h++) {
                for (int64_t b = 0; b < 10; b++) worst = fmax(worst, worst_error(&c, shard, screen, h, b));
            }
            dw_screen_destroy(screen);
            dw_shard_destroy(shard);
            attention_case_free(&c);
        }
        if (what == PLAIN || what == OUTLIERS) cr_assert_gt(worst, 0.25, "kind %d", what);
    }
}

static const dw_policy policies[] = {{DW_CONDENSATE, 1, 64, 32}, {DW_CONDENSATE, 0, 0, 7},   {DW_CONDENSATE, 1, 1, 97},
                                     {DW_CONDENSATE, 3, 200, 1}, {DW_CONDENSATE, 0, 1, 900}, {DW_CONDENSATE, 0, 0, MAX_KEYS}};
enum { POLICIES = sizeof policies / sizeof policies[0] };

static void check_same(attention_case *c, const dw_policy *policy, int ranks, int threads, const dw_kernels *kernels, int what)
{
    static float want[MAX_OUT], got[MAX_OUT];
    static dw_pos want_top[MAX_HEADS * MAX_KEYS], got_top[MAX_HEADS * MAX_KEYS];
    dw_interval exact[MAX_HEADS], screened[MAX_HEADS];
    const int64_t keys = policy->keys < c->n ? policy->keys : c->n;
    memset(want_top, 0, sizeof want_top);
    memset(got_top, 0, sizeof got_top);
    c->has_screen = 0;
    attention_case_sparse(c, dw_kernels_best(), 1, 1, 0, DW_F16, policy, want, exact, want_top);
    c->has_screen = 1;
    attention_case_sparse(c, kernels, ranks, threads, ranks % 2, DW_F16, policy, got, screened, got_top);
    cr_assert(memcmp(want_top, got_top, (size_t)(c->heads * keys) * sizeof *want_top) == 0,
              "kind %d, %lld keys, k %lld, %d ranks: other keys", what, (long long)c->n, (long long)policy->keys, ranks);
    cr_assert(memcmp(want, got, (size_t)(c->heads * c->d) * sizeof *want) == 0, "kind %d, %lld keys, k %lld, %d ranks: output",
              what, (long long)c->n, (long long)policy->keys, ranks);
    for (int64_t h = 0; h < c->heads; h++) {
        cr_assert(screened[h].low <= exact[h].high && exact[h].low <= screened[h].high,
                  "kind %d: the omitted mass [%g, %g] is not in [%g, %g]", what, exact[h].low, exact[h].high, screened[h].low,
                  screened[h].high);
    }
}

Test(screen, sets_scores_and_outputs_are_those_without_it)
{
    static const int64_t lengths[] = {1, 64, 65, 200, 513, 1500};
    static const int ranks[] = {1, 2, 3, 5, 16};
    dw_set_float_state();
    for (int what = 0; what < KINDS; what++) {
        for (int n = 0; n < 6; n++) {
            for (int p = 0; p < POLICIES; p++) {
                const int i = what + n + p;
                attention_case c;
                make(&c, (kind)what, lengths[n], i % 4);
                check_same(&c, &policies[p], ranks[i % 5], 1 + i % 3, dw_kernels_best(), what);
                if (n < 4) check_same(&c, &policies[p], ranks[(i + 1) % 5], 1, &dw_kernels_scalar, what);
                attention_case_free(&c);
            }
        }
    }
}

/* The report is the same on any number of ranks and threads. */
Test(screen, omitted_mass_does_not_depend_on_ranks_threads_or_instruction_sets)
{
    dw_set_float_state();
    for (int what = 0; what < KINDS; what++) {
        static float out[MAX_OUT];
        dw_interval want[MAX_HEADS], got[MAX_HEADS];
        attention_case c;
        make(&c, (kind)what, 1500, what % 4);
        c.has_screen = 1;
        attention_case_sparse(&c, dw_kernels_best(), 1, 1, 0, DW_F16, &policies[0], out, want, NULL);
        for (int ranks = 2; ranks <= 5; ranks++) {
            const dw_kernels *kernels = ranks == 5 ? &dw_kernels_scalar : dw_kernels_best();
            attention_case_sparse(&c, kernels, ranks, 1 + ranks % 3, ranks % 2, DW_F16, &policies[0], out, got, NULL);
            cr_assert(memcmp(want, got, (size_t)c.heads * sizeof *want) == 0, "kind %d, %d ranks", what, ranks);
        }
        attention_case_free(&c);
    }
}

/* Share of the weights outside the set, in double on the stored keys. */
static double exact_omitted(const attention_case *c, const dw_policy *policy, int64_t head, const dw_pos *top)
{
    const int64_t kv_head = head * c->kv_heads / c->heads;
    static double bits[MAX_KEYS];
    static int is_in[MAX_KEYS];
    double largest = -INFINITY;
    double outside = 0.0;
    double all = 0.0;
    for (int64_t p = 0; p < c->n; p++) {
        double dot = 0.0;
        for (int64_t i = 0; i < c->d; i++) {
            uint16_t half;
            float key;
            dw_cache_round(&half, &c->k[(kv_head * c->n + p) * c->d + i], 1, DW_F16);
            dw_cache_widen(&key, &half, 1, DW_F16);
            dot += (double)c->q[head * c->d + i] * (double)key;
        }
        bits[p] = dot / sqrt((double)c->d);
        largest = fmax(largest, bits[p]);
        is_in[p] = p < policy->anchor || p >= c->n - policy->window;
    }
    for (int64_t n = 0; n < policy->keys; n++) is_in[top[n]] = 1;
    for (int64_t p = 0; p < c->n; p++) {
        const double weight = exp(bits[p] - largest);
        all += weight;
        if (!is_in[p]) outside += weight;
    }
    return outside / all;
}

/* How wide the intervals are depends on the keys; on plain ones scores are off by less than 0.1. */
Test(screen, omitted_mass_is_within_the_certified_interval)
{
    static float out[MAX_OUT];
    static dw_pos top[MAX_HEADS * MAX_KEYS];
    int left_out = 0;
    dw_set_float_state();
    for (int what = 0; what < KINDS; what++) {
        for (int p = 0; p < 4; p++) {
            dw_interval omitted[MAX_HEADS];
            attention_case c;
            make(&c, (kind)what, 1500, (what + p) % 4);
            c.has_screen = 1;
            attention_case_sparse(&c, dw_kernels_best(), 3, 2, 0, DW_F16, &policies[p], out, omitted, top);
            for (int64_t h = 0; h < c.heads; h++) {
                const double e = exact_omitted(&c, &policies[p], h, top + h * policies[p].keys);
                cr_assert(omitted[h].low <= e && e <= omitted[h].high, "kind %d: %.9g is not in [%.9g, %.9g]", what, e,
                          omitted[h].low, omitted[h].high);
                if (what == PLAIN) cr_assert_leq(omitted[h].high - omitted[h].low, 1e-5 + 0.3 * e);
                left_out += e > 0.01;
            }
            attention_case_free(&c);
        }
    }
    cr_assert_gt(left_out, 80, "the cases must leave something out");
}

/* A block is screened anew when one of its rows was stored anew. */
Test(screen, rows_that_were_overwritten_count_with_their_new_keys)
{
    attention_case c;
    dw_shard *shard;
    dw_screen *screen;
    uint16_t row[8 * 128];
    dw_set_float_state();
    make(&c, PLAIN, 256, 0);
    shard = attention_case_shard(&c, 0, 1, DW_F16);
    MUST(dw_screen_create(&screen, dw_kernels_best(), dw_shard_shape(shard), err));
    for (int64_t b = 0; b < 4; b++) worst_error(&c, shard, screen, 0, b);
    for (int i = 0; i < 8 * 128; i++) row[i] = (uint16_t)(0x4000 + i); /* 2 and more */
    for (int64_t g = 0; g < c.kv_heads; g++) dw_shard_put(shard, 0, g, 70, row, row);
    dw_screen_forget(screen, 0, 70, 1);
    for (int64_t b = 0; b < 4; b++) worst_error(&c, shard, screen, 0, b);
    dw_screen_destroy(screen);
    dw_shard_destroy(shard);
    attention_case_free(&c);
}
