/* attend(rows) in layers with a sliding window, on simulated ranks: right, and the same bits however the rows are cut into
   passes and whatever the ranks and threads. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/f16.h"
#include "mpi/attend.h"
#include "tests/shared/local_ranks.h"

enum {
    POSITIONS = 330,
    HEADS = 6,
    KV_HEADS = 2,
    D = 16,
    Q = HEADS * D,
    KV = KV_HEADS * D,
    MAX_ROWS = 17,
    LAYERS = 2,
    LAYER = 1
};

static float q[POSITIONS][Q], k[POSITIONS][KV], v[POSITIONS][KV]; /* |v| <= 1 */
static float other[POSITIONS][KV];                                /* values that are overwritten */

/* How the sequence is computed. Only kind, policy and window may change a bit. */
typedef struct {
    int ranks;
    int threads;
    int64_t rows; /* of a pass; 0: 1, 2, ... 17, 1, ... */
    dw_attend_kind kind;
    dw_policy policy;
    int64_t window;
    int again; /* the cache holds the sequence already, with other values */
} setup;

typedef struct {
    float out[POSITIONS][Q];
    dw_omitted omitted;
} outcome;

typedef struct {
    const setup *how;
    outcome *result;
} run;

static void generate(void)
{
    uint64_t state = 5;
    float *const arrays[] = {&q[0][0], &k[0][0], &v[0][0]};
    const int64_t counts[] = {POSITIONS * Q, POSITIONS * KV, POSITIONS * KV};
    const float amplitudes[] = {4.0f, 2.0f, 1.0f};
    for (int a = 0; a < 3; a++) {
        for (int64_t i = 0; i < counts[a]; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            arrays[a][i] = (float)((int64_t)(state >> 40) - (1 << 23)) * amplitudes[a] / 8388608.0f;
        }
    }
    for (int64_t i = 0; i < POSITIONS * KV; i++) other[i / KV][i % KV] = -v[i / KV][i % KV];
}

TestSuite(attend_window, .init = generate);

static dw_status attend_all(dw_transport *t, dw_attention *attention, const run *r, float (*values)[KV], dw_error *err)
{
    static const int32_t value_exponent[KV_HEADS] = {0, 0};
    const dw_attend_layer layer = {LAYER, r->how->window, value_exponent};
    int64_t start[65] = {0};
    int64_t pass = 0;
    for (dw_pos first = 0; first < POSITIONS; pass++) {
        const int64_t wanted = r->how->rows > 0 ? r->how->rows : 1 + pass % MAX_ROWS;
        const int64_t count = wanted < POSITIONS - first ? wanted : POSITIONS - first;
        const dw_rows rows = {first, count, start};
        dw_pos own;
        for (int i = 0; i <= t->size; i++) {
            start[i] = r->how->kind == DW_ATTEND_SPARSE ? (i == 0 ? 0 : count) : (count * i + t->size - 1) / t->size;
        }
        own = first + start[t->rank];
        if (own >= POSITIONS) own = 0; /* no row is this rank's */
        DW_TRY(dw_attend(attention, &layer, &rows, r->how->kind, q[own], k[own], values[own], r->result->out[own], Q,
                         &r->result->omitted, err));
        first += count;
    }
    return DW_OK;
}

static dw_status run_rank(dw_transport *t, void *context, dw_error *err)
{
    const run *r = context;
    const dw_shard_config config = {LAYERS, KV_HEADS, D, DW_F16, DW_F16, POSITIONS, t->rank, t->size};
    dw_policy policy = r->how->policy;
    const dw_policy_plan plan = {.layers = &policy, .layer_count = 1, .pillar = 1, .reuse = 1, .screen_from = INT64_MAX};
    dw_attention *attention = NULL;
    dw_pool *pool = NULL;
    dw_status status;
    dw_set_float_state();
    DW_TRY_GOTO(status, dw_pool_create(&pool, r->how->threads, 0, err), done);
    DW_TRY_GOTO(status,
                dw_attention_create(&attention, t, pool, dw_kernels_best(), &config, HEADS, MAX_ROWS, &plan,
                                    policy.mode != DW_DENSE, err),
                done);
    if (r->how->again) {
        DW_TRY_GOTO(status, attend_all(t, attention, r, other, err), done);
        if (t->rank == 0) r->result->omitted = (dw_omitted){0};
    }
    status = attend_all(t, attention, r, v, err);
done:
    if (status != DW_OK) t->ops->abort(t, status);
    dw_attention_destroy(attention);
    dw_pool_destroy(pool);
    return status;
}

static outcome *attend(const setup *how)
{
    run r = {how, NULL};
    dw_error err = {0};
    cr_assert(DW_ALLOC(&r.result, 1, "outcome", &err) == DW_OK);
    cr_assert(run_local_ranks(how->ranks, 60, run_rank, &r, NULL, &err) == DW_OK, "%s", err.message);
    return r.result;
}

/* Attention of one row and head over the positions first..last in double. */
static void exact(double *out, dw_pos first, dw_pos last, int64_t head)
{
    const int64_t g = head / (HEADS / KV_HEADS);
    double largest = -INFINITY;
    double sum = 0.0;
    double score[POSITIONS];
    for (dw_pos p = first; p <= last; p++) {
        score[p] = 0.0;
        for (int64_t c = 0; c < D; c++)
            score[p] += (double)q[last][head * D + c] * (double)dw_f32_of_f16(dw_f16_of_f32(k[p][g * D + c])) / sqrt(D);
        largest = fmax(largest, score[p]);
    }
    for (int64_t c = 0; c < D; c++) out[c] = 0.0;
    for (dw_pos p = first; p <= last; p++) {
        const double weight = exp(score[p] - largest);
        sum += weight;
        for (int64_t c = 0; c < D; c++) out[c] += weight * (double)dw_f32_of_f16(dw_f16_of_f32(v[p][g * D + c]));
    }
    for (int64_t c = 0; c < D; c++) out[c] /= sum;
}

static const int64_t windows[] = {1, 2, 63, 64, 65, 100, 130, 0};
enum { WINDOWS = sizeof windows / sizeof windows[0] };

/* Rounding of scores of some tens of bits in float: as in tests/reference/attention.c. */
Test(attend_window, dense_rows_are_within_4e_6_of_float64_over_the_last_positions)
{
    for (int w = 0; w < WINDOWS; w++) {
        const setup how = {.ranks = 1, .threads = 1, .window = windows[w]};
        outcome *got = attend(&how);
        for (dw_pos p = 0; p < POSITIONS; p++) {
            const dw_pos first = windows[w] > 0 && p + 1 > windows[w] ? p + 1 - windows[w] : 0;
            for (int64_t h = 0; h < HEADS; h++) {
                double want[D];
                exact(want, first, p, h);
                for (int64_t c = 0; c < D; c++) {
                    cr_assert(fabs((double)got->out[p][h * D + c] - want[c]) <= 4e-6,
                              "window %lld, row %lld, head %lld: %g, not %g", (long long)windows[w], (long long)p, (long long)h,
                              (double)got->out[p][h * D + c], want[c]);
                }
            }
        }
        dw_free(got);
    }
}

static void expect_same(const outcome *want, const outcome *got, const setup *how)
{
    for (dw_pos p = 0; p < POSITIONS; p++) {
        cr_assert(memcmp(want->out[p], got->out[p], sizeof want->out[p]) == 0,
                  "row %lld, window %lld: other bits on %d ranks, %d threads, %lld rows a pass", (long long)p,
                  (long long)how->window, how->ranks, how->threads, (long long)how->rows);
    }
    cr_assert(memcmp(&want->omitted, &got->omitted, sizeof want->omitted) == 0, "omitted mass, window %lld, %d ranks",
              (long long)how->window, how->ranks);
}

/* One row at a time on one rank and thread against everything else. */
static void check_invariance(dw_attend_kind kind, const dw_policy *policy)
{
    static const int ranks[] = {1, 2, 3, 4, 8};
    static const int64_t rows[] = {0, 17, 5, 1, 0};
    for (int w = 0; w < WINDOWS; w++) {
        setup how = {.ranks = 1, .threads = 1, .rows = 1, .kind = kind, .policy = *policy, .window = windows[w]};
        outcome *want = attend(&how);
        for (int i = 0; i < 5; i++) {
            outcome *got;
            how.ranks = ranks[i];
            how.threads = 1 + (i + w) % 3;
            how.rows = rows[i];
            got = attend(&how);
            expect_same(want, got, &how);
            dw_free(got);
        }
        dw_free(want);
    }
}

Test(attend_window, dense_rows_have_the_same_bits_in_any_passes_on_any_ranks_and_threads)
{
    const dw_policy policy = {DW_DENSE, 0, 0, 0, 0, 0};
    check_invariance(DW_ATTEND_DENSE, &policy);
}

Test(attend_window, sparse_rows_have_the_same_bits_in_any_passes_on_any_ranks_and_threads)
{
    static const dw_policy policies[] = {{DW_CONDENSATE, 1, 8, 32, 0, 0},
                                         {DW_CONDENSATE, 70, 1, 0, 0, 0},
                                         {DW_CONDENSATE, 0, 0, 7, 0, 0},
                                         {DW_CONDENSATE, 1, 8, 3, 0, 1},
                                         {DW_MASS, 0, 0, 0, 0.05, 0}};
    for (int p = 0; p < 5; p++) check_invariance(DW_ATTEND_SPARSE, &policies[p]);
}

/* A set of everything that a row sees is dense attention: so every mode sees what dense rows see. */
Test(attend_window, sparse_rows_whose_sets_hold_all_they_see_have_the_bits_of_dense_rows)
{
    static const dw_policy all[] = {{DW_CONDENSATE, 1, 8, POSITIONS, 0, 0},
                                    {DW_CONDENSATE, POSITIONS, 0, 0, 0, 0},
                                    {DW_CONDENSATE, 1, 8, POSITIONS, 0, 1},
                                    {DW_MASS, 0, 0, 0, 0, 0}};
    for (int w = 0; w < WINDOWS; w++) {
        setup how = {.ranks = 2, .threads = 1, .rows = 17, .kind = DW_ATTEND_DENSE, .window = windows[w]};
        outcome *want = attend(&how);
        how.kind = DW_ATTEND_SPARSE;
        for (int p = 0; p < 4; p++) {
            outcome *got;
            how.policy = all[p];
            got = attend(&how);
            cr_assert(memcmp(want->out, got->out, sizeof want->out) == 0, "policy %d, window %lld", p, (long long)windows[w]);
            cr_assert(got->omitted.count == (int64_t)POSITIONS * HEADS && got->omitted.max_high == 0.0,
                      "policy %d, window %lld", p, (long long)windows[w]);
            dw_free(got);
        }
        dw_free(want);
    }
}

/* As when a draft is taken back. */
Test(attend_window, nothing_is_left_of_rows_that_were_overwritten)
{
    for (int tail = 0; tail < 2; tail++) {
        setup how = {
            .ranks = 3, .threads = 2, .rows = 17, .kind = DW_ATTEND_SPARSE, .policy = {DW_CONDENSATE, 1, 8, 3, 0, tail}};
        outcome *want = attend(&how);
        outcome *got;
        how.again = 1;
        got = attend(&how);
        expect_same(want, got, &how);
        dw_free(want);
        dw_free(got);
    }
}

Test(attend_window, a_window_as_long_as_the_sequence_is_no_window)
{
    static const int64_t long_windows[] = {POSITIONS, POSITIONS + 1, 4096, INT64_MAX};
    for (int kind = 0; kind < 2; kind++) {
        setup how = {.ranks = 3, .threads = 2, .rows = 17, .kind = kind == 0 ? DW_ATTEND_DENSE : DW_ATTEND_SPARSE};
        outcome *want;
        outcome *shorter;
        how.policy = (dw_policy){DW_CONDENSATE, 1, 8, 32, 0, 0};
        want = attend(&how);
        for (int w = 0; w < 4; w++) {
            outcome *got;
            how.window = long_windows[w];
            got = attend(&how);
            expect_same(want, got, &how);
            dw_free(got);
        }
        how.window = POSITIONS - 1; /* only the last row loses a position */
        shorter = attend(&how);
        cr_assert(memcmp(want->out, shorter->out, (POSITIONS - 1) * sizeof want->out[0]) == 0);
        cr_assert(kind == 1 || memcmp(want->out[POSITIONS - 1], shorter->out[POSITIONS - 1], sizeof want->out[0]) != 0);
        dw_free(want);
        dw_free(shorter);
    }
}
