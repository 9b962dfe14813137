/* dewpoint bench kernels: how fast each kernel is, and which share that is of what the machine can do at most in the same
   minute: reading memory, reading the first cache, or multiplying and adding in registers (kernels/roof.h). */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "cli/command.h"
#include "cli/machine.h"
#include "cli/report.h"
#include "kernels/roof.h"

enum {
    INPUTS = 1280,   /* of a linear layer */
    OUTPUTS = 128,   /* of one call of linear[] */
    PANEL = 32,      /* outputs of one call of linear_tile, which lie in the L2 cache */
    TILE_ROWS = 512, /* rows of it */
    TILE_STRIDE = INPUTS + DW_LANES,
    HEAD_DIM = 64,
    MOST_VECTORS = 24, /* (row, head) pairs that share a block of K and V in prefill */
    CACHED = 4096,     /* floats that stay in the first cache */
    MOST_RESULTS = 80
};

static const char *const isa_names[] = {"scalar", "avx2", "avx512"};
enum { ISAS = sizeof isa_names / sizeof isa_names[0] };

static const double least_seconds = 0.05; /* of the passes of one kernel */

/* Scratch of one thread. */
typedef struct {
    float in[CACHED];             /* numbers between 0 and 1 */
    float out[TILE_ROWS * PANEL]; /* as long as the longest output of a task */
    int64_t limbs[2][HEAD_DIM];
    float panel[PANEL * TILE_STRIDE];
} scratch;

typedef struct bench bench;

/* What one result is about, and what a pass of it does. */
typedef struct {
    const char *kernel;
    int type; /* dw_type, or -1: none */
    int rows; /* rows or vectors a call; 0: does not apply */
    int64_t tasks;
    dw_task *run;
    double memory_bytes; /* read by a pass from memory, */
    double cache_bytes;  /* read and written in the first cache, */
    double flops;        /* floating-point operations; all of them 0 when they do not count */
} measurement;

/* What bounds a kernel. */
typedef enum { MEMORY, CACHE, FMA, ROOFS } roof_kind;
static const char *const roof_names[ROOFS] = {"memory", "cache", "fma"};

typedef struct {
    measurement what;
    double seconds; /* of the fastest pass */
    roof_kind roof; /* the nearest one */
    double share;   /* of it */
} result;

struct bench {
    dw_rank *rank;
    dw_cold_memory memory;
    scratch *scratch;    /* [threads] */
    float *x;            /* [TILE_ROWS][INPUTS] activations, between 0 and 1 */
    double roofs[ROOFS]; /* bytes and operations a second of all threads */
    double fma_of[ISAS]; /* operations a second in each instruction set; 0: not of this CPU */
    result results[MOST_RESULTS];
    int64_t count;

    /* The pass that runs. */
    const measurement *now;
    const uint8_t *slice;
    const dw_roof *isa; /* of fma_task */
};

/* ---- tasks ---- */

static int64_t row_bytes(const bench *b)
{
    return dw_row_bytes((dw_type)b->now->type, INPUTS);
}

static void linear_task(void *context, int64_t task, int thread)
{
    bench *b = context;
    const uint8_t *weights = b->slice + task * OUTPUTS * row_bytes(b);
    float *out = b->scratch[thread].out;
    b->rank->kernels->linear[b->now->type](out, OUTPUTS, weights, OUTPUTS, b->x, INPUTS, b->now->rows, INPUTS);
}

static void dequantize_task(void *context, int64_t task, int thread)
{
    bench *b = context;
    const uint8_t *rows = b->slice + task * OUTPUTS * row_bytes(b);
    for (int64_t o = 0; o < OUTPUTS; o++) {
        b->rank->kernels->dequantize[b->now->type](b->scratch[thread].out, rows + o * row_bytes(b), INPUTS);
    }
}

static void tile_task(void *context, int64_t task, int thread)
{
    bench *b = context;
    scratch *s = &b->scratch[thread];
    (void)task;
    b->rank->kernels->linear_tile(s->out, PANEL, s->panel, TILE_STRIDE, PANEL, b->x, INPUTS, TILE_ROWS, INPUTS);
}

enum { BLOCKS = 16 }; /* of a task of scores and values */

static int64_t block_bytes(dw_type type)
{
    return dw_row_bytes(type, HEAD_DIM) * DW_BLOCK;
}

static void scores_task(void *context, int64_t task, int thread)
{
    bench *b = context;
    scratch *s = &b->scratch[thread];
    const int64_t bytes = block_bytes((dw_type)b->now->type);
    for (int64_t i = 0; i < BLOCKS; i++) {
        const uint8_t *keys = b->slice + (task * BLOCKS + i) * bytes;
        b->rank->kernels->scores[b->now->type](s->out, s->in, HEAD_DIM, b->now->rows, keys, HEAD_DIM);
    }
}

static void values_task(void *context, int64_t task, int thread)
{
    bench *b = context;
    scratch *s = &b->scratch[thread];
    const int64_t bytes = block_bytes((dw_type)b->now->type);
    for (int64_t i = 0; i < BLOCKS; i++) {
        const uint8_t *values = b->slice + (task * BLOCKS + i) * bytes;
        b->rank->kernels->values[b->now->type](s->out, s->in, b->now->rows, values, HEAD_DIM, 0, DW_BLOCK - 1);
    }
}

enum { CALLS = 1024 }; /* of a task on cached data */

static void weights_task(void *context, int64_t task, int thread)
{
    bench *b = context;
    scratch *s = &b->scratch[thread];
    float maxima[DW_LANES];
    float sum;
    int32_t exponent;
    (void)task;
    for (int64_t i = 0; i < CALLS; i++) {
        b->rank->kernels->weights(s->out, s->in + i % 32 * DW_BLOCK, 4, UINT64_MAX, &exponent, &sum, maxima);
    }
}

static void add_limbs_task(void *context, int64_t task, int thread)
{
    bench *b = context;
    scratch *s = &b->scratch[thread];
    (void)task;
    for (int i = 0; i < CALLS; i++) b->rank->kernels->add_limbs(s->limbs[0], s->limbs[1], s->in, HEAD_DIM, 1 << 28, 5);
}

static void exp2_task(void *context, int64_t task, int thread)
{
    bench *b = context;
    scratch *s = &b->scratch[thread];
    (void)task;
    for (int i = 0; i < CALLS; i++) b->rank->kernels->exp2(s->out, s->in, INPUTS);
}

/* The gate becomes 0 after a while, which costs the same. */
static void silu_mul_task(void *context, int64_t task, int thread)
{
    bench *b = context;
    scratch *s = &b->scratch[thread];
    (void)task;
    for (int i = 0; i < CALLS; i++) b->rank->kernels->activate[DW_SILU](s->out, s->in, INPUTS);
}

static void cache_read_task(void *context, int64_t task, int thread)
{
    bench *b = context;
    (void)task;
    for (int i = 0; i < CALLS; i++) (void)b->isa->read(b->scratch[thread].in, CACHED);
}

enum { FMA_ROUNDS = 1 << 16 };

static void fma_task(void *context, int64_t task, int thread)
{
    bench *b = context;
    (void)task;
    (void)thread;
    (void)b->isa->fma(FMA_ROUNDS);
}

/* ---- measuring ---- */

static double fastest_pass(bench *b, const measurement *what)
{
    double fastest = 0;
    double sum = 0;
    b->now = what;
    for (int i = 0; i < 3 || sum < least_seconds; i++) {
        const double start = dw_now();
        double seconds;
        b->slice = dw_cold_memory_next(&b->memory);
        dw_pool_run(b->rank->pool, what->tasks, what->run, b);
        seconds = dw_now() - start;
        if (fastest <= 0 || seconds < fastest) fastest = seconds;
        sum += seconds;
    }
    return fastest;
}

static void measure(bench *b, const measurement *what)
{
    const double work[ROOFS] = {what->memory_bytes, what->cache_bytes, what->flops};
    result r = {.what = *what, .seconds = fastest_pass(b, what)};
    for (int i = 0; i < ROOFS; i++) {
        const double share = work[i] / r.seconds / b->roofs[i];
        if (share <= r.share) continue;
        r.share = share;
        r.roof = (roof_kind)i;
    }
    if (b->count < MOST_RESULTS) b->results[b->count++] = r;
}

/* Tasks that a pass over cached data gives every thread. */
static int64_t cached_tasks(const bench *b)
{
    return 4 * (int64_t)dw_pool_threads(b->rank->pool);
}

static dw_status measure_roofs(bench *b, dw_error *err)
{
    const measurement cache = {.tasks = cached_tasks(b), .run = cache_read_task};
    const measurement fma = {.tasks = cached_tasks(b), .run = fma_task};
    DW_TRY(dw_read_bandwidth(b->rank, &b->memory, &b->roofs[MEMORY], err));
    b->isa = dw_roof_named(b->rank->kernels->name);
    b->roofs[CACHE] = (double)cache.tasks * CALLS * CACHED * sizeof(float) / fastest_pass(b, &cache);
    for (int i = 0; i < ISAS; i++) {
        if (dw_kernels_named(isa_names[i]) == NULL) continue;
        b->isa = dw_roof_named(isa_names[i]);
        b->fma_of[i] = (double)fma.tasks * FMA_ROUNDS * b->isa->fma_flops / fastest_pass(b, &fma);
        if (strcmp(isa_names[i], b->rank->kernels->name) == 0) b->roofs[FMA] = b->fma_of[i];
    }
    return DW_OK;
}

static void measure_types(bench *b)
{
    static const int rows[] = {1, DW_LINEAR_ROWS};
    for (int type = 0; type < DW_TYPE_COUNT; type++) {
        const double bytes_of_task = (double)dw_row_bytes((dw_type)type, INPUTS) * OUTPUTS;
        const int64_t tasks = b->memory.slice_bytes / (int64_t)bytes_of_task;
        const double bytes = (double)tasks * bytes_of_task;
        const double weights = (double)tasks * OUTPUTS * INPUTS;
        for (int i = 0; i < 2; i++) {
            measure(b, &(measurement){"linear", type, rows[i], tasks, linear_task, bytes, 0, 2 * weights * rows[i]});
        }
        measure(b, &(measurement){"dequantize", type, 0, tasks, dequantize_task, bytes, 0, 0});
    }
}

static void measure_attention(bench *b)
{
    static const dw_type types[] = {DW_F32, DW_F16, DW_BF16};
    static const int vectors[] = {1, 4, MOST_VECTORS};
    for (int i = 0; i < 3; i++) {
        const double bytes_of_task = (double)block_bytes(types[i]) * BLOCKS;
        const int64_t tasks = b->memory.slice_bytes / (int64_t)bytes_of_task;
        const double bytes = (double)tasks * bytes_of_task;
        const double numbers = (double)tasks * BLOCKS * HEAD_DIM * DW_BLOCK;
        for (int k = 0; k < 3; k++) {
            const double flops = 2 * numbers * vectors[k];
            measure(b, &(measurement){"scores", (int)types[i], vectors[k], tasks, scores_task, bytes, 0, flops});
            measure(b, &(measurement){"values", (int)types[i], vectors[k], tasks, values_task, bytes, 0, flops});
        }
    }
}

/* Operations of exp2: rounding, difference, six FMAs. Of weights: maximum, FMA, exp2, sum. Of silu_mul: product, two clamps,
   exp2, sum, quotient, product. Of add_limbs 36 bytes a channel: two limbs read and written, a float read. */
static void measure_cached(bench *b)
{
    enum { EXP2 = 14, WEIGHTS = 1 + 2 + EXP2 + 1, SILU_MUL = 3 + EXP2 + 3, LIMB_BYTES = 36 };
    const int64_t tasks = cached_tasks(b);
    const double calls = (double)tasks * CALLS;
    measure(b, &(measurement){"linear_tile", -1, TILE_ROWS, tasks, tile_task, 0, 0,
                              2.0 * (double)tasks * TILE_ROWS * PANEL * INPUTS});
    measure(b, &(measurement){"weights", -1, 1, tasks, weights_task, 0, 0, calls * DW_BLOCK * WEIGHTS});
    measure(b, &(measurement){"add_limbs", -1, 1, tasks, add_limbs_task, 0, calls * HEAD_DIM * LIMB_BYTES, 0});
    measure(b, &(measurement){"exp2", -1, 1, tasks, exp2_task, 0, 0, calls * INPUTS * EXP2});
    measure(b, &(measurement){"silu_mul", -1, 1, tasks, silu_mul_task, 0, 0, calls * INPUTS * SILU_MUL});
}

/* ---- output ---- */

static double bandwidth(const result *r)
{
    return (r->what.memory_bytes + r->what.cache_bytes) / r->seconds;
}

static double flop_rate(const result *r)
{
    return r->what.flops / r->seconds;
}

static const char *type_name(const result *r)
{
    return r->what.type < 0 ? "" : dw_types[r->what.type].name;
}

/* null: does not apply. */
static json_t *number_or_null(double number)
{
    return number > 0 ? json_real(number) : json_null();
}

static json_t *result_json(const result *r)
{
    json_t *type = r->what.type < 0 ? json_null() : json_string(type_name(r));
    json_t *rows = r->what.rows > 0 ? json_integer(r->what.rows) : json_null();
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:s, s:f}", "kernel", r->what.kernel, "type", type, "rows", rows,
                     "bytes_per_second", number_or_null(bandwidth(r)), "flops_per_second", number_or_null(flop_rate(r)), "roof",
                     roof_names[r->roof], "share", r->share);
}

static json_t *roofs_json(const bench *b)
{
    json_t *rates = json_object();
    int failed = 0;
    for (int i = 0; i < ISAS; i++) {
        if (b->fma_of[i] > 0) failed |= json_object_set_new(rates, isa_names[i], json_real(b->fma_of[i]));
    }
    if (failed) {
        json_decref(rates);
        return NULL;
    }
    return json_pack("{s:f, s:f, s:f, s:o}", "memory", b->roofs[MEMORY], "cache", b->roofs[CACHE], "fma", b->roofs[FMA],
                     "fma_of", rates);
}

static dw_status print_json(const bench *b, dw_error *err)
{
    json_t *results = json_array();
    int failed = 0;
    for (int64_t i = 0; i < b->count; i++) failed |= json_array_append_new(results, result_json(&b->results[i]));
    if (failed) {
        json_decref(results);
        results = NULL;
    }
    return dw_print_json(json_pack("{s:o, s:i, s:o, s:o}", "machine", dw_machine_json(b->rank), "threads",
                                   dw_pool_threads(b->rank->pool), "roofs", roofs_json(b), "results", results),
                         err);
}

static void print_csv(const bench *b)
{
    printf("kernel,type,rows,bytes_per_second,flops_per_second,roof,share\n");
    for (int i = 0; i < ROOFS; i++) {
        printf("roof,,,%s%.9g%s,%s,1\n", i == FMA ? "," : "", b->roofs[i], i == FMA ? "" : ",", roof_names[i]);
    }
    for (int64_t i = 0; i < b->count; i++) {
        const result *r = &b->results[i];
        printf("%s,%s,", r->what.kernel, type_name(r));
        if (r->what.rows > 0) printf("%d", r->what.rows);
        printf(",");
        if (bandwidth(r) > 0) printf("%.9g", bandwidth(r));
        printf(",");
        if (flop_rate(r) > 0) printf("%.9g", flop_rate(r));
        printf(",%s,%.9g\n", roof_names[r->roof], r->share);
    }
}

/* A rate in units of 10^9, or a dash where it does not apply. */
static void print_rate(double rate)
{
    if (rate > 0) {
        printf(" %9.2f", rate / 1e9);
    } else {
        printf(" %9s", "-");
    }
}

static void print_table(const bench *b)
{
    printf("%d threads, %s kernels\nmemory %.1f GB/s, first cache %.1f GB/s, FMA", dw_pool_threads(b->rank->pool),
           b->rank->kernels->name, b->roofs[MEMORY] / 1e9, b->roofs[CACHE] / 1e9);
    for (int i = 0; i < ISAS; i++) {
        if (b->fma_of[i] > 0) printf(" %s %.1f", isa_names[i], b->fma_of[i] / 1e9);
    }
    printf(" GFLOP/s\n\n");
    printf("%-12s %-7s %5s %9s %9s  %-7s %6s\n", "kernel", "type", "rows", "GB/s", "GFLOP/s", "roof", "share");
    for (int64_t i = 0; i < b->count; i++) {
        const result *r = &b->results[i];
        char rows[16] = "-";
        if (r->what.rows > 0) snprintf(rows, sizeof rows, "%d", r->what.rows);
        printf("%-12s %-7s %5s", r->what.kernel, r->what.type < 0 ? "-" : type_name(r), rows);
        print_rate(bandwidth(r));
        print_rate(flop_rate(r));
        printf("  %-7s %6.2f\n", roof_names[r->roof], r->share);
    }
}

/* ---- the run ---- */

static void fill(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = (float)((i * 7919 + 1) % 1021) / 1021;
}

static dw_status prepare(bench *b, dw_error *err)
{
    const int threads = dw_pool_threads(b->rank->pool);
    if (b->rank->transport->size > 1) return dw_fail(err, DW_USAGE, "bench kernels measures one rank; start it without mpirun");
    DW_TRY(dw_cold_memory_create(&b->memory, b->rank, err));
    DW_TRY(DW_ALLOC(&b->scratch, threads, "scratch of the threads", err));
    DW_TRY(DW_ALLOC(&b->x, (int64_t)TILE_ROWS * INPUTS, "activations", err));
    fill(b->x, (int64_t)TILE_ROWS * INPUTS);
    for (int i = 0; i < threads; i++) {
        fill(b->scratch[i].in, CACHED);
        fill(b->scratch[i].panel, (int64_t)PANEL * TILE_STRIDE);
    }
    return DW_OK;
}

static dw_status run(bench *b, dw_error *err)
{
    const dw_options *options = b->rank->options;
    DW_TRY(dw_rank_agree(b->rank, prepare(b, err), err));
    DW_TRY(measure_roofs(b, err));
    measure_types(b);
    measure_attention(b);
    measure_cached(b);
    b->rank->alone = 1;
    if (options->json) return print_json(b, err);
    if (options->csv) {
        print_csv(b);
    } else {
        print_table(b);
    }
    return dw_flush_output(err);
}

dw_status dw_bench_kernels(dw_rank *rank, dw_error *err)
{
    bench b = {.rank = rank};
    const dw_status status = run(&b, err);
    dw_cold_memory_destroy(&b.memory);
    dw_free(b.scratch);
    dw_free(b.x);
    return status;
}
