#include "cli/command.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "base/integers.h"
#include "cli/generation.h"
#include "mpi/collective.h"

dw_status dw_rank_agree(const dw_rank *rank, dw_status mine, dw_error *err)
{
    const dw_error own = mine == DW_OK ? (dw_error){0} : *err;
    const dw_status status = dw_agree(rank->transport, mine, err);
    if (status != DW_OK && err->shared && rank->transport->rank == 0 && (mine == DW_USAGE || mine == DW_INPUT)) {
        *err = own;
        err->shared = 1;
    }
    return status;
}

dw_status dw_check_context(const dw_options *options, int64_t trained, dw_error *err)
{
    if (options->context <= trained) return DW_OK;
    return dw_fail(err, DW_USAGE, "--context %lld is more than the %lld positions that the model was trained for",
                   (long long)options->context, (long long)trained);
}

dw_status dw_choose_context(const dw_rank *rank, int64_t prompt, int64_t tokens, int64_t *context, dw_error *err)
{
    const int64_t trained = rank->model->config.context;
    const int64_t wanted = rank->options->context;
    DW_TRY(dw_check_context(rank->options, trained, err));
    *context = wanted > 0 ? wanted : trained;
    if (prompt > *context) {
        return dw_fail(err, DW_INPUT, "the prompt has %lld tokens, the context holds %lld; use %sa shorter prompt",
                       (long long)prompt, (long long)*context, *context < trained ? "a larger --context or " : "");
    }
    if (wanted == 0 && tokens >= 0 && tokens < trained - prompt) *context = prompt + tokens;
    return DW_OK;
}

int dw_drafts_by_model(const dw_rank *rank)
{
    const dw_options *options = rank->options;
    int is_lossless = 0;
    for (int i = 0; i < options->mode_count; i++) is_lossless |= dw_is_lossless(options, i);
    if (!is_lossless || options->command != DW_COMMAND_GENERATE) return is_lossless;
    if (options->draft >= 0) return options->draft > 0;
    return rank->ranks_on_host < rank->transport->size;
}

dw_status dw_open_session(const dw_rank *rank, int64_t context, dw_session **out, dw_error *err)
{
    const dw_options *options = rank->options;
    dw_session_config config;
    *out = NULL;
    DW_TRY(dw_broadcast(rank->transport, &context, (int64_t)sizeof context, err));
    config = (dw_session_config){
        .context = context,
        .linear = options->linear,
        .ranks_on_host = rank->ranks_on_host,
        .key_type = options->key_type,
        .value_type = options->value_type,
        .plans = rank->plans->plans,
        .plan_count = rank->plans->count,
        .can_draft = dw_drafts_by_model(rank),
    };
    return dw_session_create(out, rank->model, rank->transport, rank->pool, rank->kernels, &config, err);
}

dw_status dw_run_session(dw_rank *rank, const dw_session_work *work, dw_error *err)
{
    const int coordinator = rank->transport->rank == 0;
    DW_TRY(dw_rank_agree(rank, coordinator ? work->prepare(work->run, err) : DW_OK, err));
    DW_TRY(dw_open_session(rank, *work->context, work->session, err));
    dw_catch_interrupts();
    return coordinator ? work->drive(work->run, err) : dw_session_serve(*work->session, err);
}

dw_status dw_end_session(dw_rank *rank, dw_session *session, dw_rank_memory *memory, dw_status status, dw_error *err)
{
    if (status != DW_OK && status != DW_INTERRUPTED) return status;
    DW_TRY(dw_session_finish(session, memory, NULL, err));
    rank->alone = 1;
    if (status == DW_OK && rank->options->verbose) dw_print_machine(rank, memory);
    return status;
}

static int progress_wanted(const dw_options *options)
{
    if (options->quiet || options->progress == DW_NEVER) return 0;
    return options->progress == DW_ALWAYS || isatty(STDERR_FILENO);
}

static void show_progress(int64_t done, int64_t count)
{
    fprintf(stderr, "\rprefill %lld/%lld tokens%s", (long long)done, (long long)count, done == count ? "\n" : "");
}

dw_status dw_prefill(const dw_rank *rank, dw_session *session, const int32_t *ids, int64_t count, float *logits, dw_error *err)
{
    enum { ROWS = 1024 };
    const int progress = progress_wanted(rank->options);
    for (int64_t done = 0; done < count && !dw_interrupted();) {
        const int64_t rows = dw_smaller(ROWS, count - done);
        const int last = done + rows == count && logits != NULL;
        DW_TRY(dw_session_append(session, ids + done, rows, 0, last ? logits : NULL, last, err));
        done += rows;
        if (progress) show_progress(done, count);
    }
    return DW_OK;
}

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

void dw_catch_interrupts(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)(SA_RESETHAND | SA_RESTART)};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int dw_interrupted(void)
{
    return interrupted;
}
