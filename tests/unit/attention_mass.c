/* Mode mass: the set is the smallest of whole bins that certainly leaves out no more than epsilon, on any number of ranks and
   threads; the output is the softmax over it; a set of everything is dense attention. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "attention/mass.h"
#include "attention/partial.h"
#include "attention/scan.h"
#include "base/memory.h"
#include "kernels/f16.h"
#include "tests/shared/attention_case.h"
#include "tests/shared/must.h"

enum { MAX_HEADS = 9, MAX_D = 64, MAX_N = 1500, MAX_OUT = MAX_HEADS * MAX_D };

/* Attention of the row at n - 1 over the shards of some ranks. cuts: [heads]. */
static void run_mass(const attention_case *c, const dw_kernels *kernels, int ranks, int threads, int backwards, double epsilon,
                     float *out, dw_cut *cuts)
{
    const int64_t words = dw_partial_words(c->d + 1);
    const dw_visible visible = dw_visible_positions(c->n - 1, c->window);
    int32_t exponents[MAX_HEADS];
    int64_t bins[MAX_HEADS];
    int64_t bytes = c->heads * (int64_t)sizeof(dw_histogram);
    dw_histogram *all, *one;
    int64_t *sum, *part;
    dw_shard *shard[16];
    dw_mass *mass[16];
    dw_pool *pool;
    MUST(DW_ALLOC(&all, c->heads, "histograms", err));
    MUST(DW_ALLOC(&one, c->heads, "histograms", err));
    MUST(DW_ALLOC(&sum, c->heads * words, "partials", err));
    MUST(DW_ALLOC(&part, c->heads * words, "partials", err));
    MUST(dw_pool_create(&pool, threads, 0, err));
    for (int64_t g = 0; g < c->kv_heads; g++) exponents[g] = c->value_exponent;
    for (int i = 0; i < ranks; i++) {
        shard[i] = attention_case_shard(c, backwards ? ranks - 1 - i : i, ranks, DW_F16);
        MUST(dw_mass_create(&mass[i], kernels, pool, dw_shard_shape(shard[i]), c->heads, err));
        MUST(dw_mass_count(mass[i], shard[i], 0, visible, c->q, i == 0 ? all : one, err));
        if (i > 0) MUST(dw_histogram_merge(NULL, all, &bytes, bytes, one, bytes, err));
    }
    for (int64_t h = 0; h < c->heads; h++) {
        cuts[h] = dw_mass_cut(&all[h], epsilon, c->q + h * c->d, c->d);
        bins[h] = cuts[h].bin;
        dw_partial_clear(sum + h * words, c->d + 1);
    }
    for (int i = 0; i < ranks; i++) {
        dw_mass_attend(mass[i], bins, exponents, part);
        for (int64_t h = 0; h < c->heads; h++) dw_partial_merge(sum + h * words, part + h * words, c->d + 1);
        dw_mass_destroy(mass[i]);
        dw_shard_destroy(shard[i]);
    }
    for (int64_t h = 0; h < c->heads; h++) dw_partial_finish(sum + h * words, c->d + 1, c->value_exponent, out + h * c->d);
    dw_pool_destroy(pool);
    dw_free(all);
    dw_free(one);
    dw_free(sum);
    dw_free(part);
}

static float stored(float x)
{
    return dw_f32_of_f16(dw_f16_of_f32(x));
}

static dw_pos first_visible(const attention_case *c)
{
    return c->window > 0 && c->n > c->window ? c->n - c->window : 0;
}

/* Scores in bits, and the mass of keys whose bin is at least `bin`; *keys: how many. */
static double kept_mass(const attention_case *c, int64_t head, int64_t bin, int64_t *keys, double *out)
{
    const int64_t kv = head * c->kv_heads / c->heads;
    const double scale = 1.0 / sqrt((double)c->d) / log(2.0);
    double bits[MAX_N];
    double top = -INFINITY, all = 0, kept = 0;
    *keys = 0;
    memset(out, 0, (size_t)c->d * sizeof *out);
    for (dw_pos p = first_visible(c); p < c->n; p++) {
        float dot = 0; /* the definition's, for the bin */
        double exact = 0;
        for (int64_t i = 0; i < c->d; i++) {
            const float key = stored(c->k[(kv * c->n + p) * c->d + i]);
            dot = fmaf(c->q[head * c->d + i], key, dot);
            exact += (double)c->q[head * c->d + i] * (double)key;
        }
        bits[p] = exact * scale;
        if (bits[p] > top) top = bits[p];
        if (bin != DW_NO_BIN && floorf(dot * dw_score_scale(c->d) * 8.0f) < (float)bin) bits[p] += 1e9; /* marked as left out */
    }
    for (dw_pos p = first_visible(c); p < c->n; p++) {
        const int is_out = bits[p] > 5e8;
        const double weight = exp2(bits[p] - (is_out ? 1e9 : 0) - top);
        all += weight;
        if (is_out) continue;
        kept += weight;
        ++*keys;
        for (int64_t i = 0; i < c->d; i++) out[i] += weight * (double)stored(c->v[(kv * c->n + p) * c->d + i]);
    }
    for (int64_t i = 0; i < c->d; i++) out[i] /= kept;
    return kept / all;
}

/* The next higher bin that holds a key and is not in the cut's lowest: the cut without its lowest bin. */
static void check_head(const attention_case *c, int64_t head, double epsilon, const dw_cut *cut, const float *got)
{
    double out[MAX_D], unused[MAX_D];
    int64_t keys, fewer;
    const double omitted = 1 - kept_mass(c, head, cut->bin, &keys, out);
    cr_assert_eq(keys, cut->keys, "%lld keys are at or above the cut, not %lld", (long long)keys, (long long)cut->keys);
    /* 1e9 costs the marked scores some digits, so that the float64 mass is good to 1e-7 */
    cr_assert(omitted <= epsilon + 1e-7, "omitted %.9g of %g", omitted, epsilon);
    cr_assert(omitted >= cut->omitted.low - 1e-7 && omitted <= cut->omitted.high + 1e-7, "%.9g is not in [%.9g, %.9g]", omitted,
              cut->omitted.low, cut->omitted.high);
    if (cut->bin != DW_NO_BIN && epsilon > 0) { /* a cut one bin higher is not certain */
        const double more = 1 - kept_mass(c, head, cut->bin + 1, &fewer, unused);
        cr_assert(more > epsilon * 0.99 - 1e-5, "%lld keys leave out %.9g, which is below %g", (long long)fewer, more, epsilon);
    }
    for (int64_t i = 0; i < c->d; i++) {
        cr_assert(fabs(out[i] - (double)got[i]) <= 1e-5 * (double)c->value_amplitude, "channel %lld: %.9g, not %.9g",
                  (long long)i, (double)got[i], out[i]);
    }
}

static void make(attention_case *c, int64_t n, int64_t window, float q_amplitude)
{
    static const int64_t shapes[][3] = {{9, 3, 64}, {4, 4, 24}, {6, 2, 11}};
    const int64_t *s = shapes[(n + window) % 3];
    attention_case_random(c, s[0], s[1], s[2], n, (uint64_t)(n * 10 + window), q_amplitude, 2.0f, 1.0f);
    c->window = window;
}

static const int64_t lengths[] = {1, 2, 63, 64, 65, 205, 513, 1500};
static const int64_t windows[] = {0, 0, 100, 700};
static const double epsilons[] = {0, 1e-5, 1e-3, 0.02, 0.5, 1};

Test(attention_mass, the_set_is_certified_minimal_and_the_output_its_softmax)
{
    for (int i = 0; i < 8; i++) {
        for (int w = 0; w < 4; w++) {
            attention_case c;
            make(&c, lengths[i], windows[w], w % 2 == 0 ? 4.0f : 0.5f);
            for (int e = 0; e < 6; e++) {
                static float out[MAX_OUT];
                dw_cut cuts[MAX_HEADS];
                run_mass(&c, dw_kernels_best(), 1 + (i + e) % 4, 1 + e % 3, 0, epsilons[e], out, cuts);
                for (int64_t h = 0; h < c.heads; h++) check_head(&c, h, epsilons[e], &cuts[h], out + h * c.d);
            }
            attention_case_free(&c);
        }
    }
}

Test(attention_mass, ranks_threads_and_instruction_sets_change_no_bit)
{
    const dw_kernels *tables[] = {dw_kernels_best(), &dw_kernels_scalar, dw_kernels_named("avx2")};
    static const int ranks[] = {2, 3, 4, 8, 16};
    for (int i = 3; i < 8; i++) {
        for (int w = 1; w < 4; w++) {
            static float want[MAX_OUT], got[MAX_OUT];
            dw_cut want_cuts[MAX_HEADS], got_cuts[MAX_HEADS];
            attention_case c;
            make(&c, lengths[i], windows[w], 4.0f);
            run_mass(&c, dw_kernels_best(), 1, 1, 0, 1e-3, want, want_cuts);
            for (int n = 0; n < 5; n++) {
                const dw_kernels *kernels = tables[n % 3] != NULL ? tables[n % 3] : &dw_kernels_scalar;
                run_mass(&c, kernels, ranks[n], 1 + n % 3, n % 2, 1e-3, got, got_cuts);
                cr_assert(memcmp(want, got, (size_t)(c.heads * c.d) * sizeof *want) == 0, "other bits on %d ranks", ranks[n]);
                cr_assert(memcmp(want_cuts, got_cuts, (size_t)c.heads * sizeof *want_cuts) == 0, "other cuts on %d ranks",
                          ranks[n]);
            }
            attention_case_free(&c);
        }
    }
}

/* Also where scores spread over more bits than the bins hold: what lies below is then counted with as much as it can weigh. */
Test(attention_mass, nothing_left_out_is_dense_attention_bit_for_bit)
{
    static const float amplitudes[] = {0.5f, 4.0f, 128.0f, 4096.0f};
    for (int a = 0; a < 4; a++) {
        static float dense[MAX_OUT], out[MAX_OUT];
        dw_cut cuts[MAX_HEADS];
        attention_case c;
        make(&c, 513, 0, amplitudes[a]);
        attention_case_dense(&c, dw_kernels_best(), 2, 1, 0, DW_F16, dense, NULL);
        run_mass(&c, dw_kernels_best(), 3, 2, 0, 0, out, cuts);
        cr_assert_eq(memcmp(dense, out, (size_t)(c.heads * c.d) * sizeof *out), 0, "amplitude %g", (double)amplitudes[a]);
        for (int64_t h = 0; h < c.heads; h++) {
            cr_assert_eq(cuts[h].keys, 513);
            cr_assert(cuts[h].omitted.low == 0 && cuts[h].omitted.high == 0);
        }
        attention_case_free(&c);
    }
}

Test(attention_mass, equal_scores_stand_or_fall_together)
{
    static float out[MAX_OUT];
    dw_cut cuts[MAX_HEADS];
    attention_case c;
    make(&c, 513, 0, 1.0f);
    memset(c.q, 0, (size_t)(c.heads * c.d) * sizeof *c.q);
    run_mass(&c, dw_kernels_best(), 3, 2, 0, 0.5, out, cuts);
    for (int64_t h = 0; h < c.heads; h++) cr_assert_eq(cuts[h].keys, 513);
    attention_case_free(&c);
}

Test(attention_mass, a_score_out_of_range_is_reported)
{
    dw_histogram histograms[MAX_HEADS];
    attention_case c;
    dw_shard *shard;
    dw_mass *mass;
    dw_pool *pool;
    dw_error e;
    make(&c, 65, 0, 1.0f);
    for (int64_t i = 0; i < c.heads * c.d; i++) c.q[i] = 1e8f;
    shard = attention_case_shard(&c, 0, 1, DW_F16);
    MUST(dw_pool_create(&pool, 1, 0, err));
    MUST(dw_mass_create(&mass, dw_kernels_best(), pool, dw_shard_shape(shard), c.heads, err));
    cr_assert_eq(dw_mass_count(mass, shard, 0, dw_visible_positions(64, 0), c.q, histograms, &e), DW_RUNTIME);
    cr_assert_not_null(strstr(e.message, "layer 0, head "), "%s", e.message);
    dw_mass_destroy(mass);
    dw_pool_destroy(pool);
    dw_shard_destroy(shard);
    attention_case_free(&c);
}
