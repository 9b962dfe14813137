#include "tests/shared/attention_case.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "attention/discovery.h"
#include "attention/partial.h"
#include "attention/scan.h"
#include "attention/sparse.h"
#include "attention/tail.h"
#include "base/memory.h"
#include "tests/shared/must.h"

static uint32_t mixed_bits(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z = z ^ (z >> 31);
    return (uint32_t)(z >> 40);
}

static float *generate(int64_t count, uint64_t seed, float amplitude, int grid)
{
    float *x;
    MUST(DW_ALLOC(&x, count, "case", err));
    for (int64_t i = 0; i < count; i++) {
        const int32_t m = (int32_t)mixed_bits(seed, (uint64_t)i);
        const int a = (int)amplitude;
        x[i] = grid ? (float)(m % (2 * a + 1) - a) : (float)(m - 8388608) * (amplitude / 8388608.0f);
    }
    return x;
}

static float number(const json_t *entry, const char *key)
{
    return (float)json_number_value(json_object_get(entry, key));
}

static void check_first(const json_t *first, const char *name, const float *x, int64_t count)
{
    const json_t *values = json_object_get(first, name);
    for (size_t i = 0; i < json_array_size(values) && (int64_t)i < count; i++) {
        cr_assert_eq(x[i], (float)json_number_value(json_array_get(values, i)), "%s[%zu] is not generated as the reference did",
                     name, i);
    }
}

void attention_case_load(attention_case *c, const json_t *entry)
{
    const uint64_t seed = (uint64_t)json_integer_value(json_object_get(entry, "seed"));
    const int grid = json_is_true(json_object_get(entry, "grid"));
    const json_t *q_first = json_object_get(entry, "q_first");
    const json_t *k_first = json_object_get(entry, "k_first");
    *c = (attention_case){.name = json_string_value(json_object_get(entry, "name")),
                          .expected = json_object_get(entry, "expected")};
    c->heads = json_integer_value(json_object_get(entry, "H"));
    c->kv_heads = json_integer_value(json_object_get(entry, "Hk"));
    c->d = json_integer_value(json_object_get(entry, "d"));
    c->n = json_integer_value(json_object_get(entry, "n"));
    c->value_amplitude = number(entry, "v_amp");
    c->value_exponent = (int32_t)ceilf(log2f(c->value_amplitude));
    c->q = generate(c->heads * c->d, seed, number(entry, "q_amp"), grid);
    c->k = generate(c->kv_heads * c->n * c->d, seed + 1, number(entry, "k_amp"), grid);
    c->v = generate(c->kv_heads * c->n * c->d, seed + 2, c->value_amplitude, grid);
    for (int64_t g = 0; json_is_true(json_object_get(entry, "equal_keys")) && g < c->kv_heads; g++) {
        float *rows = c->k + g * c->n * c->d;
        for (int64_t j = 1; j < c->n; j++) memcpy(rows + j * c->d, rows, (size_t)c->d * sizeof *rows);
    }
    for (int64_t h = 0; q_first != NULL && h < c->heads; h++) {
        memset(c->q + h * c->d, 0, (size_t)c->d * sizeof *c->q);
        c->q[h * c->d] = (float)json_number_value(json_array_get(q_first, (size_t)h));
    }
    for (int64_t g = 0; k_first != NULL && g < c->kv_heads; g++) {
        for (int64_t j = 0; j < c->n; j++) {
            c->k[(g * c->n + j) * c->d] = (float)json_number_value(json_array_get(k_first, (size_t)j));
        }
    }
    check_first(json_object_get(entry, "first"), "q", c->q, c->heads * c->d);
    check_first(json_object_get(entry, "first"), "k", c->k, c->kv_heads * c->n * c->d);
    check_first(json_object_get(entry, "first"), "v", c->v, c->kv_heads * c->n * c->d);
}

void attention_case_random(attention_case *c, int64_t heads, int64_t kv_heads, int64_t d, int64_t n, uint64_t seed, float q_amp,
                           float k_amp, float v_amp)
{
    *c = (attention_case){.name = "random", .heads = heads, .kv_heads = kv_heads, .d = d, .n = n, .value_amplitude = v_amp};
    c->value_exponent = (int32_t)ceilf(log2f(v_amp));
    c->q = generate(heads * d, seed, q_amp, 0);
    c->k = generate(kv_heads * n * d, seed + 1, k_amp, 0);
    c->v = generate(kv_heads * n * d, seed + 2, v_amp, 0);
}

void attention_case_free(attention_case *c)
{
    dw_free(c->q);
    dw_free(c->k);
    dw_free(c->v);
}

dw_shard *attention_case_shard(const attention_case *c, int rank, int ranks, dw_type type)
{
    const dw_shard_config config = {1, c->kv_heads, c->d, type, type, c->n, rank, ranks};
    const int64_t row = c->kv_heads * c->d;
    dw_shard *shard;
    float *wide;
    char *key;
    char *value;
    MUST(dw_shard_create(&shard, &config, err));
    MUST(DW_ALLOC(&wide, row, "row", err));
    MUST(DW_ALLOC(&key, row * 4, "row", err));
    MUST(DW_ALLOC(&value, row * 4, "row", err));
    for (int64_t j = 0; j < c->n; j++) {
        for (int64_t g = 0; g < c->kv_heads; g++)
            memcpy(wide + g * c->d, c->k + (g * c->n + j) * c->d, (size_t)c->d * sizeof *wide);
        dw_cache_round(key, wide, row, type);
        for (int64_t g = 0; g < c->kv_heads; g++)
            memcpy(wide + g * c->d, c->v + (g * c->n + j) * c->d, (size_t)c->d * sizeof *wide);
        dw_cache_round(value, wide, row, type);
        for (int64_t g = 0; g < c->kv_heads; g++) dw_shard_put(shard, 0, g, j, key, value);
    }
    dw_free(wide);
    dw_free(key);
    dw_free(value);
    return shard;
}

static int32_t *exponents(const attention_case *c)
{
    int32_t *each;
    MUST(DW_ALLOC(&each, c->kv_heads, "exponents", err));
    for (int64_t g = 0; g < c->kv_heads; g++) each[g] = c->value_exponent;
    return each;
}

void attention_case_dense(const attention_case *c, const dw_kernels *kernels, int ranks, int threads, int backwards,
                          dw_type type, float *out, int64_t *partials)
{
    const int64_t words = dw_partial_words(c->d + 1);
    const dw_queries queries = {1, c->n - 1, c->q, c->heads * c->d, c->window};
    int32_t *value_exponent = exponents(c);
    int64_t *sum;
    int64_t *one;
    dw_pool *pool;
    MUST(DW_ALLOC(&sum, c->heads * words, "partials", err));
    MUST(DW_ALLOC(&one, c->heads * words, "partials", err));
    MUST(dw_pool_create(&pool, threads, 0, err));
    for (int64_t h = 0; h < c->heads; h++) dw_partial_clear(sum + h * words, c->d + 1);
    for (int i = 0; i < ranks; i++) {
        dw_shard *shard = attention_case_shard(c, backwards ? ranks - 1 - i : i, ranks, type);
        dw_scan *scan;
        MUST(dw_scan_create(&scan, kernels, pool, dw_shard_shape(shard), c->heads, 1, err));
        MUST(dw_scan_dense(scan, shard, 0, &queries, value_exponent, one, err));
        for (int64_t h = 0; h < c->heads; h++) dw_partial_merge(sum + h * words, one + h * words, c->d + 1);
        dw_scan_destroy(scan);
        dw_shard_destroy(shard);
    }
    for (int64_t h = 0; h < c->heads; h++) dw_partial_finish(sum + h * words, c->d + 1, c->value_exponent, out + h * c->d);
    if (partials != NULL) memcpy(partials, sum, (size_t)(c->heads * words) * sizeof *sum);
    dw_pool_destroy(pool);
    dw_free(sum);
    dw_free(one);
    dw_free(value_exponent);
}

static void copy_top(const dw_proposal_shape *shape, void *message, dw_pos *top)
{
    char *at = message;
    for (int64_t g = 0; g < shape->kv_heads; g++) {
        const dw_proposal section = dw_proposal_view(shape, at);
        const dw_candidate *list = section.top;
        for (int64_t i = 0; i < shape->group; i++) {
            for (int64_t n = 0; n < section.top_count[i]; n++)
                top[(g * shape->group + i) * shape->keys + n] = (list++)->position;
        }
        at += *section.bytes;
    }
}

void *attention_case_proposals(const attention_case *c, const dw_kernels *kernels, int ranks, int threads, int backwards,
                               dw_type type, const dw_policy *policy, dw_proposal_shape *shape)
{
    const dw_shard_config config = {1, c->kv_heads, c->d, type, type, c->n, 0, ranks};
    const dw_visible visible = dw_visible_positions(c->n - 1, c->window);
    dw_pool *pool;
    void *sum;
    void *one;
    int64_t sum_bytes = 0;
    MUST(dw_pool_create(&pool, threads, 0, err));
    MUST(dw_proposal_shape_create(shape, &config, c->heads, policy, err));
    MUST(dw_alloc_bytes(&sum, shape->capacity, 1, "message", err));
    MUST(dw_alloc_bytes(&one, shape->capacity, 1, "message", err));
    for (int i = 0; i < ranks; i++) {
        dw_shard *shard = attention_case_shard(c, backwards ? ranks - 1 - i : i, ranks, type);
        dw_discovery *discovery;
        dw_screen *screen = NULL;
        int64_t bytes;
        if (c->has_screen) MUST(dw_screen_create(&screen, kernels, dw_shard_shape(shard), err));
        MUST(dw_discovery_create(&discovery, kernels, pool, dw_shard_shape(shard), policy, shape, err));
        MUST(dw_discover(discovery, shard, screen, 0, policy, visible, c->q, i == 0 ? sum : one, &bytes, err));
        if (i == 0) {
            sum_bytes = bytes;
        } else {
            MUST(dw_proposal_merge(shape, sum, &sum_bytes, shape->capacity, one, bytes, err));
        }
        dw_discovery_destroy(discovery);
        dw_screen_destroy(screen);
        dw_shard_destroy(shard);
    }
    dw_pool_destroy(pool);
    dw_free(one);
    return sum;
}

/* The tails of all ranks behind the merged set, summed: [heads][words]. */
static int64_t *tails(const attention_case *c, const dw_kernels *kernels, int ranks, int threads, int backwards, dw_type type,
                      const dw_policy *policy, const dw_proposal_shape *shape, void *proposals)
{
    const int64_t words = dw_partial_words(c->d + 1);
    int32_t *value_exponent = exponents(c);
    dw_tail_cut *cuts;
    int64_t *sum;
    int64_t *one;
    dw_pool *pool;
    MUST(DW_ALLOC(&cuts, c->heads, "cuts", err));
    MUST(DW_ALLOC(&sum, c->heads * words, "partials", err));
    MUST(DW_ALLOC(&one, c->heads * words, "partials", err));
    MUST(dw_pool_create(&pool, threads, 0, err));
    dw_tail_cuts(shape, proposals, cuts);
    for (int64_t h = 0; h < c->heads; h++) dw_partial_clear(sum + h * words, c->d + 1);
    for (int i = 0; i < ranks; i++) {
        dw_shard *shard = attention_case_shard(c, backwards ? ranks - 1 - i : i, ranks, type);
        dw_tail *tail;
        MUST(dw_tail_create(&tail, kernels, pool, dw_shard_shape(shard), c->heads, err));
        dw_tail_sum(tail, shard, 0, policy, dw_visible_positions(c->n - 1, c->window), c->q, cuts, value_exponent, one);
        for (int64_t h = 0; h < c->heads; h++) dw_partial_merge(sum + h * words, one + h * words, c->d + 1);
        dw_tail_destroy(tail);
        dw_shard_destroy(shard);
    }
    dw_pool_destroy(pool);
    dw_free(cuts);
    dw_free(one);
    dw_free(value_exponent);
    return sum;
}

void attention_case_sparse(const attention_case *c, const dw_kernels *kernels, int ranks, int threads, int backwards,
                           dw_type type, const dw_policy *policy, float *out, dw_interval *omitted, dw_pos *top)
{
    const dw_shard_config config = {1, c->kv_heads, c->d, type, type, c->n, 0, ranks};
    int32_t *value_exponent = exponents(c);
    dw_proposal_shape shape;
    void *proposals = attention_case_proposals(c, kernels, ranks, threads, backwards, type, policy, &shape);
    int64_t *tail = NULL;
    dw_sparse *sparse;
    dw_pool *pool;
    if (policy->has_tail) tail = tails(c, kernels, ranks, threads, backwards, type, policy, &shape, proposals);
    if (top != NULL) copy_top(&shape, proposals, top);
    MUST(dw_pool_create(&pool, threads, 0, err));
    MUST(dw_sparse_create(&sparse, kernels, pool, &config, &shape, err));
    dw_sparse_attend(sparse, dw_visible_positions(c->n - 1, c->window), c->q, value_exponent, proposals, tail, 1, out, omitted);
    dw_sparse_destroy(sparse);
    dw_proposal_shape_free(&shape);
    dw_pool_destroy(pool);
    dw_free(proposals);
    dw_free(tail);
    dw_free(value_exponent);
}
