/* What the coordinator drafts with: held keys exactly, the rest as one frozen key and value for each head. */
#include "attention/draft_cache.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "attention/mean_key.h"
#include "attention/scan.h"
#include "base/memory.h"
#include "tests/shared/must.h"

enum { KV_HEADS = 2, GROUP = 3, HEADS = KV_HEADS * GROUP, D = 16, N = 1000, SUPPORT = 64, TAIL_FIRST = 200, TAIL_END = 600 };

static const dw_shard_config shape = {
    .layers = 1, .kv_heads = KV_HEADS, .head_dim = D, .key_type = DW_F32, .value_type = DW_F32, .context = N, .ranks = 1};
static const int32_t value_exponent[KV_HEADS] = {0, 0};
static float k[N][KV_HEADS][D], v[N][KV_HEADS][D], q[HEADS][D];

/* In [-1, 1). */
static float next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((int32_t)(*state >> 40) - (1 << 23)) * 0x1p-23f;
}

/* Keys TAIL_FIRST .. TAIL_END - 1 are one and the same when `alike`. */
static void make(uint64_t seed, int alike)
{
    uint64_t state = seed;
    for (int p = 0; p < N; p++) {
        for (int i = 0; i < KV_HEADS * D; i++) {
            k[p][i / D][i % D] = 2 * next(&state);
            v[p][i / D][i % D] = next(&state);
        }
        if (alike && p > TAIL_FIRST && p < TAIL_END) memcpy(k[p], k[TAIL_FIRST], sizeof k[p]);
    }
}

static void make_query(uint64_t seed)
{
    uint64_t state = seed;
    for (int i = 0; i < HEADS * D; i++) q[i / D][i % D] = next(&state);
}

/* Attention over positions 0 .. last in double; log_z: bits of the sum of weights. */
static void dense(int last, float out[HEADS][D], float *log_z)
{
    for (int h = 0; h < HEADS; h++) {
        double sum = 0;
        double values[D] = {0};
        for (int p = 0; p <= last; p++) {
            double score = 0;
            double weight;
            for (int i = 0; i < D; i++) score += (double)q[h][i] * k[p][h / GROUP][i];
            weight = exp(score / sqrt(D));
            sum += weight;
            for (int i = 0; i < D; i++) values[i] += weight * v[p][h / GROUP][i];
        }
        for (int i = 0; i < D; i++) out[h][i] = (float)(values[i] / sum);
        log_z[h] = (float)log2(sum);
    }
}

static dw_draft_cache *cache;
static dw_pool *pool;

/* Holds the last DW_DRAFT_RECENT positions up to N - 1 and the support 0..63, TAIL_END..N; TAIL_FIRST.. is the tail. */
static void hold(void)
{
    static dw_missing_row missing[N];
    dw_pos support[N];
    int64_t count = 0;
    MUST(dw_pool_create(&pool, 2, 0, err));
    MUST(dw_draft_cache_create(&cache, dw_kernels_best(), pool, &shape, HEADS, N - TAIL_END + TAIL_FIRST, err));
    for (int p = N - DW_DRAFT_RECENT; p < N; p++) dw_draft_cache_put(cache, 0, p, k[p], v[p]);
    for (int p = 0; p < N; p++) {
        if (p < TAIL_FIRST || p >= TAIL_END) support[count++] = p;
    }
    for (int g = 0; g < KV_HEADS; g++) {
        const int64_t lacking = dw_draft_cache_support(cache, 0, g, support, count, missing);
        cr_assert_eq(lacking, count);
        for (int64_t i = 0; i < lacking; i++) {
            dw_draft_cache_fill(cache, &missing[i], k[missing[i].position][g], v[missing[i].position][g]);
        }
    }
}

static void release(void)
{
    dw_draft_cache_destroy(cache);
    dw_pool_destroy(pool);
}

/* Largest difference of the drafted output of q from dense attention's. */
static double difference(void)
{
    float exact[HEADS][D], drafted[HEADS][D], log_z[HEADS];
    double worst = 0;
    dense(N - 1, exact, log_z);
    dw_draft_cache_attend(cache, 0, (dw_visible){0, N - 1}, &q[0][0], value_exponent, &drafted[0][0]);
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < D; i++) worst = fmax(worst, fabs((double)drafted[h][i] - exact[h][i]));
    }
    return worst;
}

static void freeze(const float *key)
{
    float out[HEADS][D], log_z[HEADS];
    dense(N - 1, out, log_z);
    dw_draft_cache_freeze(cache, 0, (dw_visible){0, N - 1}, &q[0][0], value_exponent, &out[0][0], log_z, key);
}

/* The tail's value is a difference of rounded outputs over its share of the weight (more than 1/20 here): 20 * 2^-23, and sums of weights in
   float: 1e-5 is four times that. */
#define TOLERANCE 1e-5

Test(draft_cache, with_the_frozen_tail_the_row_that_it_was_taken_from_has_its_dense_output)
{
    for (uint64_t seed = 1; seed < 20; seed++) {
        make(seed, 0);
        make_query(seed + 100);
        hold();
        cr_assert_gt(difference(), 1e-3, "nothing is left out");
        freeze(NULL);
        cr_assert_lt(difference(), TOLERANCE, "seed %d: %g", (int)seed, difference());
        release();
    }
}

/* Then the weight of the tail changes with q exactly as first order says. */
Test(draft_cache, keys_that_are_alike_are_one_key_for_every_row)
{
    float key[HEADS][D];
    for (uint64_t seed = 1; seed < 20; seed++) {
        make(seed, 1);
        make_query(seed + 100);
        for (int h = 0; h < HEADS; h++) memcpy(key[h], k[TAIL_FIRST][h / GROUP], sizeof key[h]);
        hold();
        freeze(&key[0][0]);
        make_query(seed + 200);
        cr_assert_lt(difference(), TOLERANCE, "seed %d: %g", (int)seed, difference());
        freeze(NULL);
        make_query(seed + 300);
        cr_assert_gt(difference(), 100 * TOLERANCE, "seed %d: the key says nothing", (int)seed);
        release();
    }
}

/* ---- where the tail lies ---- */

Test(mean_key, it_is_the_mean_of_the_keys_that_are_not_held_by_their_weights)
{
    static const dw_pos held[KV_HEADS][3] = {{0, 64, 65}, {3, 500, 999}};
    static const int64_t counts[KV_HEADS] = {3, 2};
    const dw_held_positions lists = {&held[0][0], counts, 3};
    const dw_visible visible = {10, 700};
    float found[HEADS][D], log_z[HEADS];
    dw_shard *shard;
    dw_mean_key *mean;
    make(5, 0);
    make_query(6);
    for (int h = 0; h < HEADS; h++) log_z[h] = 8; /* any: it cancels */
    MUST(dw_pool_create(&pool, 2, 0, err));
    MUST(dw_shard_create(&shard, &shape, err));
    MUST(dw_mean_key_create(&mean, dw_kernels_best(), pool, &shape, HEADS, err));
    for (int p = 0; p < N; p++) {
        for (int g = 0; g < KV_HEADS; g++) dw_shard_put(shard, 0, g, p, k[p], v[p]);
    }
    dw_mean_key_find(mean, shard, 0, visible, &q[0][0], log_z, &lists, &found[0][0]);
    for (int h = 0; h < HEADS; h++) {
        double sum = 0;
        double keys[D] = {0};
        for (int p = 10; p <= 700; p++) {
            const float *key = k[p][h / GROUP];
            double score = 0;
            double weight;
            if (h / GROUP == 0 ? p == 64 || p == 65 : p == 500) continue;
            for (int i = 0; i < D; i++) score += (double)q[h][i] * key[i];
            weight = exp(score / sqrt(D));
            sum += weight;
            for (int i = 0; i < D; i++) keys[i] += weight * key[i];
        }
        for (int i = 0; i < D; i++) {
            cr_assert_float_eq(found[h][i], keys[i] / sum, 700 * 0x1p-23, "head %d, channel %d: %g, not %g", h, i, found[h][i],
                               keys[i] / sum);
        }
    }
    dw_mean_key_destroy(mean);
    dw_shard_destroy(shard);
    dw_pool_destroy(pool);
}
