#define _GNU_SOURCE /* sched_getaffinity */
#include "cli/launch.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "cli/identity.h"
#include "cli/report.h"
#include "kernels/definition.h"

/* What the ranks of this process share. */
typedef struct {
    const dw_options *options;
    dw_body *body;
    dw_status status; /* of parsing and loading; err says why it is not DW_OK */
    dw_error err;
    int ranks_here; /* ranks on this host */
    dw_card card;   /* what must be equal on all ranks */
    const dw_kernels *kernels;
    dw_model *model;
    dw_plans plans;
    dw_checkpoint *vocabulary; /* tokenize opens no more than the files */
    dw_tokenizer *tokenizer;
    double load_seconds;
    pthread_mutex_t lock; /* guards the rest */
    dw_status failure;    /* of the first rank that failed: the exit status */
    int reported;         /* its line is printed; with simulated ranks it causes the other failures */
} process;

/* ---- the machine ---- */

static int cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    const long online = sysconf(_SC_NPROCESSORS_ONLN); /* more cores than a cpu_set_t holds */
    return online > 0 ? (int)online : 1;
}

static int threads_of_a_rank(const process *p)
{
    const int share = cores() / p->ranks_here;
    if (p->options->threads > 0) return (int)p->options->threads;
    return share > 0 ? share : 1;
}

static int mpi_ranks_here(void)
{
    const char *text = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    const long ranks = text == NULL ? 1 : strtol(text, NULL, 10);
    return ranks > 0 && ranks < 1 << 20 ? (int)ranks : 1;
}

/* ---- loading ---- */

/* One process with ample memory copies the weights into large pages, which it reads faster; processes of one host share the
   pages of the mapped file. */
static dw_status choose_way(const process *p, dw_file_way *way, dw_error *err)
{
    const dw_when mmap = p->options->mmap;
    dw_checkpoint *checkpoint;
    int64_t bytes = 0;
    *way = mmap == DW_NEVER ? DW_FILE_READ : DW_FILE_MAP;
    if (mmap != DW_AUTO || mpi_ranks_here() > 1) return DW_OK;
    DW_TRY(dw_checkpoint_open(&checkpoint, p->options->model, DW_FILE_MAP, err));
    for (int64_t i = 0; i < checkpoint->file_count; i++) bytes += checkpoint->files[i].bytes;
    dw_checkpoint_close(checkpoint);
    if (bytes <= dw_memory_available() / 2) *way = DW_FILE_READ;
    return DW_OK;
}

static dw_status load_model(process *p, dw_error *err)
{
    const dw_options *options = p->options;
    const dw_config_overrides overrides = {options->rope_base, options->rope_scaling};
    dw_file_way way;
    uint64_t definition;
    DW_TRY(dw_definition_check(p->kernels, &definition, err));
    dw_card_add_definition(&p->card, definition);
    DW_TRY(choose_way(p, &way, err));
    DW_TRY(dw_model_load(&p->model, options->model, way, &overrides, err));
    dw_card_add_model(&p->card, p->model);
    DW_TRY(dw_plans_create(&p->plans, options, &p->model->config, err));
    dw_card_add_plans(&p->card, &p->plans, &p->model->config);
    return DW_OK;
}

static dw_status load_files(process *p, int rank, dw_error *err)
{
    const dw_options *options = p->options;
    const dw_checkpoint *checkpoint;
    p->kernels = dw_kernels_best();
    if (p->kernels == NULL) {
        return dw_fail(err, DW_USAGE, "DEWPOINT_ISA=%s is unknown or needs another CPU; there are scalar, avx2 and avx512",
                       getenv("DEWPOINT_ISA"));
    }
    if (options->command == DW_COMMAND_INSPECT) return DW_OK; /* it opens the file itself, which may be none that runs */
    if (options->command == DW_COMMAND_BENCH_KERNELS) return DW_OK;
    if (options->command == DW_COMMAND_TOKENIZE) {
        if (rank != 0) return DW_OK;
        DW_TRY(dw_checkpoint_open(&p->vocabulary, options->model, DW_FILE_MAP, err));
        checkpoint = p->vocabulary;
    } else {
        DW_TRY(load_model(p, err));
        checkpoint = p->model->checkpoint;
    }
    if (rank != 0 || (options->command & (DW_COMMAND_BENCH_DECODE | DW_COMMAND_BENCH_PREFILL))) return DW_OK;
    return dw_tokenizer_load(&p->tokenizer, checkpoint, err);
}

/* Sets status and err. rank: the lowest of this process. */
static void load(process *p, int rank)
{
    const double start = dw_now();
    const dw_options *options = p->options;
    dw_card_start(&p->card);
    if (p->status != DW_OK) return;
    dw_card_add_options(&p->card, options);
    if (options->help || options->version) return;
    dw_set_float_state();
    if (options->fail_allocation > 0 && (options->fail_rank < 0 || options->fail_rank == rank)) {
        dw_memory_fail_at(options->fail_allocation);
    }
    p->status = load_files(p, rank, &p->err);
    p->load_seconds = dw_now() - start;
}

static void unload(process *p)
{
    dw_tokenizer_free(p->tokenizer);
    dw_plans_free(&p->plans);
    dw_model_free(p->model);
    dw_checkpoint_close(p->vocabulary);
}

/* ---- one rank ---- */

static void print_failure(process *p, dw_status status, int print, const char *prefix, const char *message)
{
    pthread_mutex_lock(&p->lock);
    if (p->failure == DW_OK) p->failure = status;
    if (print && !p->reported) dw_report_error(prefix, message);
    p->reported |= print;
    pthread_mutex_unlock(&p->lock);
}

/* "rank R on HOST: ", unless the message begins like that or there is one rank only. */
static void rank_prefix(const dw_transport *t, const char *message, char *prefix, size_t capacity)
{
    char host[65];
    dw_host_name(host, (int64_t)sizeof host);
    prefix[0] = '\0';
    if (t->size > 1 && strncmp(message, "rank ", 5) != 0) snprintf(prefix, capacity, "rank %d on %s: ", t->rank, host);
}

/* When an MPI rank is lost every other rank notices; they speak in turn, and the first ends the rest. */
static void wait_for_turn(const dw_transport *t)
{
    const int turn = t->rank < 20 ? t->rank : 20;
    const struct timespec pause = {.tv_sec = turn / 10, .tv_nsec = turn % 10 * 100000000L};
    nanosleep(&pause, NULL);
}

static void report_failure(process *p, const dw_rank *rank, dw_status status, const dw_error *err)
{
    dw_transport *t = rank->transport;
    char prefix[128] = "";
    if (status == DW_INTERRUPTED) {
        print_failure(p, status, 0, "", "");
    } else if (err->shared) {
        print_failure(p, status, t->rank == 0, "", err->message);
    } else if (rank->alone) {
        print_failure(p, status, 1, "", err->message);
    } else {
        rank_prefix(t, err->message, prefix, sizeof prefix);
        if (status == DW_RANK_LOST && p->options->simulated_ranks == 0) wait_for_turn(t);
        print_failure(p, status, 1, prefix, err->message);
        if (t->size > 1) t->ops->abort(t, status);
    }
}

/* Collective. The ranks compare what they are and whether all are ready. */
static dw_status meet(const process *p, const dw_rank *rank, dw_status ready, dw_error *err)
{
    dw_status mine = ready;
    DW_TRY(dw_handshake(rank->transport, &p->card, &mine, err));
    if (ready == DW_OK && mine == DW_INPUT) dw_fail_context(err, "%s", p->options->model);
    return dw_rank_agree(rank, mine, err);
}

static void run_rank(process *p, dw_transport *transport)
{
    const int threads = threads_of_a_rank(p);
    const int spin = (int64_t)threads * p->ranks_here <= cores();
    dw_rank rank = {
        .options = p->options,
        .transport = transport,
        .kernels = p->kernels,
        .model = p->model,
        .plans = &p->plans,
        .tokenizer = p->tokenizer,
        .load_seconds = p->load_seconds,
        .ranks_on_host = p->ranks_here,
    };
    dw_error err = p->err;
    dw_status status = p->status;
    dw_set_float_state();
    if (status == DW_OK) status = dw_pool_create(&rank.pool, threads, spin, &err);
    status = meet(p, &rank, status, &err);
    if (status == DW_OK) status = p->body(&rank, &err);
    if (status != DW_OK) report_failure(p, &rank, status, &err);
    dw_pool_destroy(rank.pool);
}

/* ---- ranks that are MPI processes ---- */

static void run_mpi(process *p)
{
    dw_transport *transport;
    dw_error err;
    const dw_status status = dw_transport_mpi_create(&transport, p->options->deadline, &err);
    if (status != DW_OK) {
        p->failure = status;
        dw_report_error("", err.message);
        return;
    }
    p->ranks_here = mpi_ranks_here();
    if (p->status == DW_OK && p->options->simulated_ranks > 0 && transport->size > 1) {
        p->status = dw_fail(&p->err, DW_USAGE, "--simulate-ranks and mpirun with %d ranks exclude each other", transport->size);
    }
    load(p, transport->rank);
    run_rank(p, transport);
    dw_transport_destroy(transport);
}

/* ---- ranks that are threads of this process ---- */

typedef struct {
    process *p;
    dw_transport *transport;
    pthread_t handle;
} rank_thread;

static void *run_thread(void *argument)
{
    const rank_thread *thread = argument;
    run_rank(thread->p, thread->transport);
    return NULL;
}

/* Rank 0 is this thread. */
static void run_threads(process *p, rank_thread *threads, int count)
{
    int started = 1;
    for (; started < count; started++) {
        if (pthread_create(&threads[started].handle, NULL, run_thread, &threads[started]) != 0) break;
    }
    if (started < count) {
        dw_transport *t = threads[started].transport;
        print_failure(p, DW_RESOURCE, 1, "", "can not start a thread for every simulated rank");
        t->ops->abort(t, DW_RESOURCE);
    } else {
        run_rank(p, threads[0].transport);
    }
    for (int r = 1; r < started; r++) pthread_join(threads[r].handle, NULL);
}

static dw_status run_transports(process *p, int ranks, dw_error *err)
{
    dw_transport **transports;
    rank_thread *threads = NULL;
    dw_status status;
    DW_TRY(DW_ALLOC(&transports, ranks, "simulated ranks", err));
    DW_TRY_GOTO(status, dw_transport_local_create(transports, ranks, p->options->deadline, err), end);
    status = DW_ALLOC(&threads, ranks, "simulated ranks", err);
    if (status == DW_OK) {
        for (int r = 0; r < ranks; r++) threads[r] = (rank_thread){.p = p, .transport = transports[r]};
        run_threads(p, threads, ranks);
    }
    for (int r = 0; r < ranks; r++) dw_transport_destroy(transports[r]);
end:
    dw_free(threads);
    dw_free(transports);
    return status;
}

static void run_local(process *p, int ranks)
{
    p->ranks_here = ranks;
    load(p, 0);
    if (p->status == DW_OK) p->status = run_transports(p, ranks, &p->err);
    if (p->status == DW_OK) return;
    p->failure = p->status;
    dw_report_error("", p->err.message);
}

int dw_launch(const dw_options *options, dw_body *body, dw_status parsed, const dw_error *err)
{
    process p = {.options = options, .body = body, .status = parsed, .lock = PTHREAD_MUTEX_INITIALIZER};
    if (parsed != DW_OK) p.err = *err;
    dw_report_init();
    if (dw_transport_mpi_launched()) {
        run_mpi(&p);
    } else {
        run_local(&p, options->simulated_ranks > 0 ? (int)options->simulated_ranks : 1);
    }
    unload(&p);
    return (int)p.failure;
}
