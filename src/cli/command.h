/* What a command gets to work with, and the steps that commands share. A command is one function that every rank runs. */
#ifndef DW_CLI_COMMAND_H
#define DW_CLI_COMMAND_H

#include "base/pool.h"
#include "cli/options.h"
#include "cli/plans.h"
#include "decode/session.h"
#include "model/model.h"
#include "mpi/transport.h"
#include "tokenizer/tokenizer.h"

/* One rank of the run. The model and the tokenizer are shared by the ranks of a process. */
typedef struct {
    const dw_options *options;
    dw_transport *transport;
    dw_pool *pool;
    const dw_kernels *kernels;
    const dw_model *model;         /* NULL for tokenize and inspect */
    const dw_plans *plans;         /* as the options ask for, in their order; none where model is NULL */
    const dw_tokenizer *tokenizer; /* rank 0 only; NULL when the model has none, in benches and in inspect */
    double load_seconds;
    int ranks_on_host;
    int alone; /* no other rank needs this one any more: it may fail without ending them */
} dw_rank;

/* Returns DW_INTERRUPTED, without a message, when a signal ended the work early. */
typedef dw_status dw_body(dw_rank *rank, dw_error *err);

dw_body dw_generate, dw_tokenize_command, dw_logits, dw_compare, dw_perplexity_command, dw_needle, dw_tune, dw_inspect,
    dw_bench_decode, dw_bench_prefill, dw_bench_kernels;

/* Collective: dw_agree, but a wrong option or input that rank 0 has seen is reported without naming the rank: it alone
   reads the prompt. */
dw_status dw_rank_agree(const dw_rank *rank, dw_status mine, dw_error *err);

/* DW_USAGE when --context exceeds the trained context. */
dw_status dw_check_context(const dw_options *options, int64_t trained, dw_error *err);

/* Positions of the cache for a prompt and --tokens (-1: to the end). DW_USAGE when --context exceeds the trained context,
   DW_INPUT when the prompt is longer than it is. */
dw_status dw_choose_context(const dw_rank *rank, int64_t prompt, int64_t tokens, int64_t *context, dw_error *err);

/* A command that works on one session. run: the command's own, passed to all. */
typedef struct {
    void *run;
    dw_status (*prepare)(void *run, dw_error *err); /* rank 0: all that can fail because of what the user gave; sets *context */
    dw_status (*drive)(void *run, dw_error *err);   /* rank 0, with *session */
    const int64_t *context;                         /* positions of the session's cache */
    dw_session **session;
} dw_session_work;

/* Collective. Rank 0 prepares and drives, the others serve; Ctrl-C only sets dw_interrupted meanwhile. The session is left to the caller. */
dw_status dw_run_session(dw_rank *rank, const dw_session_work *work, dw_error *err);

/* Rank 0: lets the other ranks go, unless something but an interrupt went wrong (status), and prints their table with --verbose. memory:
   [ranks] scratch. Returns the status. */
dw_status dw_end_session(dw_rank *rank, dw_session *session, dw_rank_memory *memory, dw_status status, dw_error *err);

/* Collective. context: rank 0's counts. Sparse rows attend by rank->plans, the first unless dw_session_use_plan says otherwise. Agrees
   on failure. */
dw_status dw_open_session(const dw_rank *rank, int64_t context, dw_session **out, dw_error *err);

/* Whether lossless decoding drafts by the model: between hosts every round saved counts; on one host such drafts cost more than the dense rows
   that they save (docs/benchmarks.md), so there only the text is looked up unless --draft is given. A bench drafts always. */
int dw_drafts_by_model(const dw_rank *rank);

/* Coordinator: appends ids densely in passes of moderate size, with progress on stderr if that is wanted. logits: [vocabulary]
   after the last id, or NULL. Ends early, with DW_OK, when dw_interrupted. */
dw_status dw_prefill(const dw_rank *rank, dw_session *session, const int32_t *ids, int64_t count, float *logits, dw_error *err);

/* From now on SIGINT and SIGTERM only make dw_interrupted true; the second one ends the process. */
void dw_catch_interrupts(void);
int dw_interrupted(void);

#endif
