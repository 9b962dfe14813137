/* dewpoint bench decode | prefill: speed at given depths of the cache, which is filled with random keys and values. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/integers.h"
#include "base/memory.h"
#include "cli/bench_drafts.h"
#include "cli/command.h"
#include "cli/machine.h"
#include "cli/report.h"
#include "kernels/types.h"

enum { DECODE_STEPS = 8, PREFILL_ROWS = 512, DRAFT_ROOM = 2048 /* positions that a measurement may take */ };

static const double least_seconds = 1.0; /* of one measurement */

typedef struct {
    int64_t depth;
    int choice;      /* of the options (cli/plans.h) */
    int64_t rows;    /* ids of a pass; lossless: at most */
    double tokens;   /* that come of a pass */
    double seconds;  /* per token */
    dw_times times;  /* per token */
    double kv_bytes; /* cache bytes read per token by all ranks */
} result;

typedef struct {
    dw_rank *rank;
    dw_session *session;
    int is_decode; /* passes of a few ids each; else of PREFILL_ROWS */
    int32_t ids[PREFILL_ROWS];
    float *logits; /* [vocabulary] */
    double roof;   /* bytes a second that the memory of all ranks can be read with; decode only, on rank 0 */
    result *results;
    int64_t count;
} bench;

static int64_t largest_depth(const dw_options *options)
{
    int64_t largest = 0;
    for (int i = 0; i < options->depth_count; i++) {
        if (options->depths[i] > largest) largest = options->depths[i];
    }
    return largest;
}

static const dw_policy_plan *plan_of(const bench *b, int choice)
{
    return &b->rank->plans->plans[choice];
}

static int64_t steps_of(const result *r)
{
    return r->rows < DECODE_STEPS ? DECODE_STEPS / r->rows : 1;
}

/* Bytes of K, or of V, that a token at this depth reads in all layers as their policies have it: all keys; all values when dense, those
   of each head's set otherwise. */
static double key_bytes(const bench *b, double visible)
{
    const dw_config *config = &b->rank->model->config;
    const double row = (double)dw_row_bytes(b->rank->options->key_type, config->kv_heads * config->head_dim);
    return (double)config->layers * visible * row;
}

static double value_bytes(const bench *b, double visible, int choice)
{
    const dw_config *config = &b->rank->model->config;
    const double row = (double)dw_row_bytes(b->rank->options->value_type, config->head_dim);
    double rows = 0;
    for (int64_t l = 0; l < config->layers; l++) {
        const dw_policy *policy = dw_plan_layer(plan_of(b, choice), l);
        const double set = ((double)policy->anchor + (double)policy->window + (double)policy->keys) * (double)config->heads;
        const double all = visible * (double)config->kv_heads;
        rows += policy->mode == DW_CONDENSATE && set < all ? set : all;
    }
    return rows * row;
}

/* Tokens of a pass that share one read of K and V. */
static double sharing(const bench *b, const result *r)
{
    return dw_plan_is_dense(plan_of(b, r->choice)) ? r->tokens : 1;
}

/* Keys: as counted, where every layer counts them. */
static double kv_bytes(const bench *b, const result *r, const dw_omitted *before, const dw_omitted *after, int64_t tokens)
{
    const dw_config *config = &b->rank->model->config;
    const double visible = (double)r->depth + (double)(r->rows * steps_of(r) + 1) / 2;
    const double elements = visible * (double)(config->layers * config->kv_heads * config->head_dim * tokens);
    const double counted = (double)(after->key_elements - before->key_elements);
    const double keys = counted > 0.99 * elements ? (double)(after->key_bytes - before->key_bytes) / (double)tokens
                                                  : key_bytes(b, visible) / sharing(b, r);
    return keys + value_bytes(b, visible, r->choice) / sharing(b, r);
}

static void add_times(dw_times *sum, const dw_times *t, double weight)
{
    sum->linear += t->linear * weight;
    sum->score += t->score * weight;
    sum->reduce += t->reduce * weight;
    sum->attend += t->attend * weight;
    sum->wait += t->wait * weight;
}

/* Passes that are measured together. */
typedef struct {
    int64_t passes;
    int64_t tokens;
    double clock;
    dw_times times;
} batch;

/* From here on it is measured. */
static void begin(const bench *b, batch *m)
{
    m->passes = m->tokens = 0;
    dw_session_times(b->session, &m->times);
    m->clock = dw_now();
}

static void end(const bench *b, batch *m)
{
    dw_times now;
    m->clock = dw_now() - m->clock;
    dw_session_times(b->session, &now);
    m->times = dw_times_since(&m->times, &now);
}

/* Some passes at one depth. */
static dw_status run_rows(bench *b, const result *what, batch *m, dw_error *err)
{
    const int64_t sparse = dw_plan_is_dense(plan_of(b, what->choice)) ? 0 : what->rows;
    begin(b, m);
    for (; m->passes < steps_of(what); m->passes++) {
        DW_TRY(dw_session_append(b->session, b->ids, what->rows, sparse, b->logits, 1, err));
    }
    m->tokens = what->rows * m->passes;
    end(b, m);
    return DW_OK;
}

/* Lossless passes; before them two that choose the first support, which are not counted. */
static dw_status run_drafts(bench *b, const result *what, batch *m, dw_error *err)
{
    enum { UNCOUNTED = 2 };
    dw_bench_drafts drafts;
    dw_status status = dw_bench_drafts_create(&drafts, b->session, b->rank, what->depth + DRAFT_ROOM, what->rows - 1, err);
    for (int i = 0; i < UNCOUNTED + DW_BENCH_PASSES && status == DW_OK; i++) {
        if (i <= UNCOUNTED) begin(b, m);
        status = dw_bench_drafts_pass(&drafts, &m->tokens, err);
        m->passes++;
    }
    dw_bench_drafts_free(&drafts);
    if (status == DW_OK) end(b, m);
    return status;
}

/* Passes at one depth until they have taken `least` seconds; then the cache ends at the depth again. *out: per token. */
static dw_status measure_once(bench *b, const result *what, double least, result *out, dw_error *err)
{
    const int is_lossless = dw_is_lossless(b->rank->options, what->choice);
    batch all = {0};
    dw_omitted before, after;
    dw_session_omitted(b->session, &before);
    *out = *what;
    do {
        batch m = {0};
        DW_TRY(is_lossless ? run_drafts(b, what, &m, err) : run_rows(b, what, &m, err));
        all.clock += m.clock;
        all.passes += m.passes;
        all.tokens += m.tokens;
        add_times(&all.times, &m.times, 1);
        DW_TRY(dw_session_truncate(b->session, what->depth, err));
    } while (all.clock < least);
    dw_session_omitted(b->session, &after);
    out->tokens = (double)all.tokens / (double)all.passes;
    out->kv_bytes = kv_bytes(b, out, &before, &after, all.tokens);
    out->seconds = all.clock / (double)all.tokens;
    out->times = (dw_times){0};
    add_times(&out->times, &all.times, 1 / (double)all.tokens);
    return DW_OK;
}

static int by_seconds(const void *a, const void *b)
{
    const double x = ((const result *)a)->seconds;
    const double y = ((const result *)b)->seconds;
    return (x > y) - (x < y);
}

/* The pending token and its drafts in a lossless pass, which --rows may limit. */
static int64_t pass_rows(const bench *b, int choice, int64_t rows)
{
    const int64_t longest = dw_longest_draft(b->rank->options) + 1;
    if (!dw_is_lossless(b->rank->options, choice)) return rows;
    return rows == 1 ? longest : dw_smaller(rows, DW_MAX_DRAFT + 1);
}

/* A warm-up, then --repeat measurements, of which the median by seconds counts. */
static dw_status measure(bench *b, int64_t depth, int choice, int64_t rows, result *median, dw_error *err)
{
    const int64_t repeat = b->rank->options->repeat;
    const result what = {.depth = depth, .choice = choice, .rows = pass_rows(b, choice, rows)};
    result *runs;
    result warm_up;
    dw_status status = DW_OK;
    if (dw_session_positions(b->session) > depth) DW_TRY(dw_session_truncate(b->session, depth, err));
    if (depth > 0) DW_TRY(dw_session_fill(b->session, depth, err));
    dw_session_use_plan(b->session, choice);
    DW_TRY(measure_once(b, &what, 0, &warm_up, err));
    DW_TRY(DW_ALLOC(&runs, repeat, "measurements", err));
    for (int64_t i = 0; i < repeat && status == DW_OK; i++) status = measure_once(b, &what, least_seconds, &runs[i], err);
    if (status == DW_OK) {
        qsort(runs, (size_t)repeat, sizeof *runs, by_seconds);
        *median = runs[repeat / 2];
    }
    dw_free(runs);
    return status;
}

/* ---- output ---- */

static double bandwidth(const result *r)
{
    return r->times.score > 0 ? r->kv_bytes / r->times.score : 0;
}

/* "dense", "condensate", "mass", or the path of a policy file. */
static const char *mode_of(const bench *b, const result *r)
{
    const dw_options *options = b->rank->options;
    if (r->choice < options->mode_count) return dw_mode_name(options->modes[r->choice]);
    return options->policy_files[r->choice - options->mode_count];
}

static json_t *result_json(const bench *b, const result *r)
{
    json_t *object = json_pack("{s:I, s:I, s:f, s:s, s:i, s:i, s:f, s:f}", "depth", (json_int_t)r->depth, "rows",
                               (json_int_t)r->rows, "tokens_per_pass", r->tokens, "mode", mode_of(b, r), "ranks",
                               b->rank->transport->size, "threads", dw_pool_threads(b->rank->pool), "tokens_per_second",
                               1 / r->seconds, "seconds_per_token", r->seconds);
    json_t *times = dw_json_times(&r->times, 1);
    int failed = json_object_update(object, times);
    if (b->is_decode) {
        failed |= json_object_set_new(object, "kv_bytes_read", json_integer((json_int_t)r->kv_bytes));
        failed |= json_object_set_new(object, "read_bandwidth", json_real(bandwidth(r)));
        failed |= json_object_set_new(object, "bandwidth_share", json_real(bandwidth(r) / b->roof));
    }
    json_decref(times);
    if (!failed) return object;
    json_decref(object);
    return NULL;
}

static dw_status print_json(const bench *b, dw_error *err)
{
    json_t *results = json_array();
    int failed = 0;
    for (int64_t i = 0; i < b->count; i++) failed |= json_array_append_new(results, result_json(b, &b->results[i]));
    if (failed) {
        json_decref(results);
        results = NULL;
    }
    return dw_print_json(json_pack("{s:o, s:o}", "machine", dw_machine_json(b->rank), "results", results), err);
}

static void print_csv(const bench *b)
{
    printf("depth,rows,tokens_per_pass,mode,ranks,threads,tokens_per_second,seconds_per_token,linear,score,reduce,attend,wait,"
           "kv_bytes_read,"
           "read_bandwidth,bandwidth_share\n");
    for (int64_t i = 0; i < b->count; i++) {
        const result *r = &b->results[i];
        printf("%lld,%lld,%.9g,%s,%d,%d,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,", (long long)r->depth, (long long)r->rows,
               r->tokens, mode_of(b, r), b->rank->transport->size, dw_pool_threads(b->rank->pool), 1 / r->seconds, r->seconds,
               r->times.linear, r->times.score, r->times.reduce, r->times.attend, r->times.wait);
        if (b->is_decode) printf("%.0f,%.9g,%.9g", r->kv_bytes, bandwidth(r), bandwidth(r) / b->roof);
        printf("%s\n", b->is_decode ? "" : ",,");
    }
}

static void print_table(const bench *b)
{
    printf("%10s %4s %6s %-10s %5s %7s %9s %9s %8s %8s %8s %8s %8s %8s %6s\n", "depth", "rows", "tokens", "mode", "ranks",
           "threads", "tokens/s", "ms/token", "linear", "score", "reduce", "attend", "wait", "kv GB/s", "share");
    for (int64_t i = 0; i < b->count; i++) {
        const result *r = &b->results[i];
        printf("%10lld %4lld %6.2f %-10s %5d %7d %9.2f %9.3f %8.3f %8.3f %8.3f %8.3f %8.3f ", (long long)r->depth,
               (long long)r->rows, r->tokens, mode_of(b, r), b->rank->transport->size, dw_pool_threads(b->rank->pool),
               1 / r->seconds, r->seconds * 1e3, r->times.linear * 1e3, r->times.score * 1e3, r->times.reduce * 1e3,
               r->times.attend * 1e3, r->times.wait * 1e3);
        if (b->is_decode) {
            printf("%8.2f %6.2f\n", bandwidth(r) / 1e9, bandwidth(r) / b->roof);
        } else {
            printf("%8s %6s\n", "-", "-");
        }
    }
}

static dw_status print_results(const bench *b, dw_error *err)
{
    if (b->rank->options->json) return print_json(b, err);
    if (b->rank->options->csv) {
        print_csv(b);
    } else {
        print_table(b);
    }
    return dw_flush_output(err);
}

/* ---- the run ---- */

static int row_counts(const bench *b)
{
    return b->is_decode ? b->rank->options->row_count : 1;
}

static dw_status prepare(bench *b, int choices, dw_error *err)
{
    const dw_model *model = b->rank->model;
    for (int i = 0; i < PREFILL_ROWS; i++) b->ids[i] = (int32_t)((i * 7919LL + 1) % model->vocabulary);
    b->count = (int64_t)choices * b->rank->options->depth_count * row_counts(b);
    DW_TRY(DW_ALLOC(&b->logits, model->vocabulary, "logits", err));
    return DW_ALLOC(&b->results, b->count, "results", err);
}

/* All ways to attend at one depth after the other, so that the cache is filled once; reported way by way. */
static dw_status drive(bench *b, int choices, dw_error *err)
{
    const dw_options *options = b->rank->options;
    const int counts = row_counts(b);
    for (int i = 0; i < options->depth_count; i++) {
        for (int c = 0; c < choices; c++) {
            for (int n = 0; n < counts; n++) {
                const int64_t rows = b->is_decode ? options->rows[n] : PREFILL_ROWS;
                result *const to = &b->results[(c * options->depth_count + i) * counts + n];
                DW_TRY(measure(b, options->depths[i], c, rows, to, err));
            }
        }
    }
    return dw_session_finish(b->session, NULL, NULL, err);
}

/* Collective. */
static dw_status measure_roof(bench *b, dw_error *err)
{
    dw_cold_memory memory;
    dw_status status = dw_rank_agree(b->rank, dw_cold_memory_create(&memory, b->rank, err), err);
    if (status == DW_OK) status = dw_read_bandwidth(b->rank, &memory, &b->roof, err);
    dw_cold_memory_destroy(&memory);
    return status;
}

static dw_status run(dw_rank *rank, int is_decode, int choices, dw_error *err)
{
    const int coordinator = rank->transport->rank == 0;
    const int64_t context = largest_depth(rank->options) + (is_decode ? DRAFT_ROOM : PREFILL_ROWS);
    bench b = {.rank = rank, .is_decode = is_decode};
    dw_status status = dw_rank_agree(rank, coordinator ? prepare(&b, choices, err) : DW_OK, err);
    if (status == DW_OK && is_decode) status = measure_roof(&b, err);
    if (status == DW_OK) status = dw_open_session(rank, context, &b.session, err);
    if (status == DW_OK) status = coordinator ? drive(&b, choices, err) : dw_session_serve(b.session, err);
    if (status == DW_OK) {
        rank->alone = 1;
        if (coordinator) status = print_results(&b, err);
    }
    dw_session_destroy(b.session);
    dw_free(b.logits);
    dw_free(b.results);
    return status;
}

dw_status dw_bench_decode(dw_rank *rank, dw_error *err)
{
    return run(rank, 1, (int)rank->plans->count, err);
}

/* Prefill is dense, whatever the modes. */
dw_status dw_bench_prefill(dw_rank *rank, dw_error *err)
{
    return run(rank, 0, 1, err);
}
