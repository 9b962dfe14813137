/* dewpoint compare: what other ways to attend change. One dense prefill; then the same tokens are computed from it densely and by each
   way (teacher forcing), and the logits compared row by row. Until the first row whose best token differs both would also generate
   the same text, so that row is where free-running decoding parts. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cli/command.h"
#include "cli/comparison_report.h"
#include "cli/generation.h"
#include "cli/report.h"
#include "cli/text_input.h"
#include "decode/comparison.h"
#include "decode/sampler.h"

/* What rank 0 holds. */
typedef struct {
    dw_rank *rank;
    dw_session *session;
    int32_t *prompt;
    int64_t prompt_count; /* of the dense prefill, without what is compared */
    int64_t context;
    int32_t *ids; /* [rows + 1]: row i computes ids[i], ids[i + 1] comes next */
    int64_t rows;
    float *dense;  /* [rows][vocabulary] */
    float *logits; /* [vocabulary] of one row */
    dw_rank_memory *memory;
    int64_t choices;
    dw_compared *results; /* [choices] */
} run;

static int on_text(const run *r)
{
    return strcmp(r->rank->options->on, "text") == 0;
}

static dw_status create_results(run *r, dw_error *err)
{
    const dw_config *config = &r->rank->model->config;
    r->choices = r->rank->plans->count;
    DW_TRY(DW_ALLOC(&r->results, r->choices, "results", err));
    for (int64_t c = 0; c < r->choices; c++) {
        DW_TRY(DW_ALLOC(&r->results[c].by_head, config->layers * config->heads, "omitted mass", err));
        DW_TRY(DW_ALLOC(&r->results[c].rows, r->rows, "results", err));
    }
    return DW_OK;
}

/* The prompt's last tokens are compared, or as many as dense attention will generate. */
static dw_status prepare(void *context, dw_error *err)
{
    run *r = context;
    const dw_rank *rank = r->rank;
    const int64_t tokens = rank->options->tokens;
    DW_TRY(dw_read_prompt(rank->options, rank->model, rank->tokenizer, &r->prompt, &r->prompt_count, err));
    if (tokens < 2) return dw_fail(err, DW_USAGE, "--tokens %lld: compare needs 2 at least", (long long)tokens);
    if (on_text(r) && r->prompt_count <= tokens) {
        return dw_fail(err, DW_INPUT, "%s has %lld tokens: too few to compare the last %lld", dw_prompt_source(rank->options),
                       (long long)r->prompt_count, (long long)tokens);
    }
    DW_TRY(dw_choose_context(rank, r->prompt_count, on_text(r) ? 0 : tokens, &r->context, err));
    r->rows = tokens - 1;
    if (!on_text(r) && r->prompt_count + r->rows > r->context) {
        return dw_fail(err, DW_INPUT, "%lld tokens behind a prompt of %lld are more than the context of %lld",
                       (long long)tokens, (long long)r->prompt_count, (long long)r->context);
    }
    DW_TRY(DW_ALLOC(&r->ids, tokens, "tokens", err));
    if (on_text(r)) {
        r->prompt_count -= tokens;
        memcpy(r->ids, r->prompt + r->prompt_count, (size_t)tokens * sizeof *r->ids);
    }
    DW_TRY(create_results(r, err));
    DW_TRY(DW_ALLOC(&r->logits, rank->model->vocabulary, "logits", err));
    DW_TRY(DW_ALLOC(&r->memory, rank->transport->size, "memory report", err));
    return dw_alloc_bytes((void **)&r->dense, r->rows, rank->model->vocabulary * (int64_t)sizeof *r->dense, "logits", err);
}

static void release(run *r)
{
    dw_session_destroy(r->session);
    dw_free(r->prompt);
    dw_free(r->ids);
    dw_free(r->dense);
    dw_free(r->logits);
    for (int64_t c = 0; r->results != NULL && c < r->choices; c++) {
        dw_free(r->results[c].by_head);
        dw_free(r->results[c].rows);
    }
    dw_free(r->results);
    dw_free(r->memory);
}

/* Fills dense, and the ids where they are dense attention's own. */
static dw_status run_dense(run *r, dw_error *err)
{
    const int64_t vocabulary = r->rank->model->vocabulary;
    DW_TRY(dw_prefill(r->rank, r->session, r->prompt, r->prompt_count, r->logits, err));
    if (on_text(r)) return dw_session_append(r->session, r->ids, r->rows, 0, r->dense, r->rows, err);
    r->ids[0] = dw_greedy(r->logits, vocabulary);
    for (int64_t i = 0; i < r->rows; i++) {
        if (dw_interrupted()) return DW_INTERRUPTED;
        DW_TRY(dw_session_append(r->session, &r->ids[i], 1, 0, r->dense + i * vocabulary, 1, err));
        r->ids[i + 1] = dw_greedy(r->dense + i * vocabulary, vocabulary);
    }
    return DW_OK;
}

/* The same rows another way, behind the same prefill. */
static dw_status run_choice(run *r, int64_t choice, dw_error *err)
{
    const int64_t vocabulary = r->rank->model->vocabulary;
    const int sparse = !dw_plan_is_dense(&r->rank->plans->plans[choice]);
    dw_compared *result = &r->results[choice];
    DW_TRY(dw_session_truncate(r->session, r->prompt_count, err));
    dw_session_use_plan(r->session, choice);
    dw_session_collect_heads(r->session, result->by_head);
    dw_comparison_start(&result->sum);
    for (int64_t i = 0; i < r->rows; i++) {
        if (dw_interrupted()) return DW_INTERRUPTED;
        DW_TRY(dw_session_append(r->session, &r->ids[i], 1, sparse, r->logits, 1, err));
        result->rows[i] = dw_comparison_add(&result->sum, r->dense + i * vocabulary, r->logits, vocabulary, r->ids[i + 1]);
    }
    dw_session_omitted(r->session, &result->omitted);
    return DW_OK;
}

static dw_status drive(void *context, dw_error *err)
{
    run *r = context;
    const dw_options *options = r->rank->options;
    const dw_compared_with with = {r->rank, r->prompt_count, r->choices, r->results};
    dw_status status = run_dense(r, err);
    for (int64_t c = 0; c < r->choices && status == DW_OK; c++) status = run_choice(r, c, err);
    DW_TRY(dw_end_session(r->rank, r->session, r->memory, status, err));
    return options->json ? dw_comparison_json(&with, err) : dw_comparison_table(&with, err);
}

dw_status dw_compare(dw_rank *rank, dw_error *err)
{
    run r = {.rank = rank};
    const dw_session_work work = {&r, prepare, drive, &r.context, &r.session};
    const dw_status status = dw_run_session(rank, &work, err);
    release(&r);
    return status;
}
