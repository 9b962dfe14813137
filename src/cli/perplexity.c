/* dewpoint perplexity: how well the model expects a text when it attends in some way. The first part of the text is a dense prefill, then
   the last --tokens are predicted one by one, their rows by the mode. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "cli/command.h"
#include "cli/generation.h"
#include "cli/report.h"
#include "cli/text_input.h"
#include "decode/comparison.h"

enum { DENSE_ROWS = 64, SPARSE_ROWS = 16, DEFAULT_PREFIX = 512 };

/* What rank 0 holds. */
typedef struct {
    dw_rank *rank;
    dw_session *session;
    int32_t *prompt;
    int64_t prompt_count;
    int64_t tokens; /* that are predicted: the last of the prompt */
    int64_t context;
    float *logits;       /* [DENSE_ROWS][vocabulary] */
    double sum, squares; /* of negative log-likelihoods in nat */
    double prefill_seconds, seconds;
    dw_omitted omitted;
    dw_rank_memory *memory;
} run;

static dw_status prepare(void *context, dw_error *err)
{
    run *r = context;
    const dw_rank *rank = r->rank;
    const int64_t wanted = rank->options->tokens;
    DW_TRY(dw_read_prompt(rank->options, rank->model, rank->tokenizer, &r->prompt, &r->prompt_count, err));
    r->tokens = wanted >= 0 ? wanted : r->prompt_count - (r->prompt_count > (int64_t)2 * DEFAULT_PREFIX ? DEFAULT_PREFIX : 1);
    if (wanted == 0) return dw_fail(err, DW_USAGE, "--tokens 0: perplexity needs 1 at least");
    if (r->tokens < 1 || r->tokens >= r->prompt_count) {
        return dw_fail(err, DW_INPUT, "%s has %lld tokens: too few to predict %lld of them, with one before",
                       dw_prompt_source(rank->options), (long long)r->prompt_count, (long long)(wanted < 0 ? 1 : wanted));
    }
    DW_TRY(dw_choose_context(rank, r->prompt_count, 0, &r->context, err));
    DW_TRY(DW_ALLOC(&r->memory, rank->transport->size, "memory report", err));
    return dw_alloc_bytes((void **)&r->logits, DENSE_ROWS, rank->model->vocabulary * (int64_t)sizeof *r->logits, "logits", err);
}

static void release(run *r)
{
    dw_session_destroy(r->session);
    dw_free(r->prompt);
    dw_free(r->logits);
    dw_free(r->memory);
}

/* Row i computes token first + i and predicts the next one. */
static dw_status predict(run *r, dw_error *err)
{
    const int64_t vocabulary = r->rank->model->vocabulary;
    const int sparse = !dw_plan_is_dense(&r->rank->plans->plans[0]);
    const int64_t most = sparse ? SPARSE_ROWS : DENSE_ROWS;
    const int64_t first = r->prompt_count - r->tokens - 1;
    for (int64_t done = 0; done < r->tokens; done += most) {
        const int64_t rows = r->tokens - done < most ? r->tokens - done : most;
        if (dw_interrupted()) return DW_INTERRUPTED;
        DW_TRY(dw_session_append(r->session, r->prompt + first + done, rows, sparse ? rows : 0, r->logits, rows, err));
        for (int64_t i = 0; i < rows; i++) {
            const double nll = dw_nll(r->logits + i * vocabulary, vocabulary, r->prompt[first + done + i + 1]);
            r->sum += nll;
            r->squares += nll * nll;
        }
    }
    return DW_OK;
}

/* Of the mean, taking tokens for independent. */
static double standard_error(const run *r)
{
    const double n = (double)r->tokens;
    const double mean = r->sum / n;
    return n < 2 ? 0 : sqrt(fmax(0, r->squares / n - mean * mean) / (n - 1));
}

static dw_status print_json(const run *r, dw_error *err)
{
    const char *path = r->rank->model->checkpoint->path;
    const double mean = r->sum / (double)r->tokens;
    return dw_print_json(json_pack("{s:s, s:o, s:s, s:i, s:I, s:o, s:I, s:f, s:{s:f, s:f}, s:{s:f, s:f, s:f}}", "dewpoint",
                                   DW_VERSION, "model", dw_json_text(path, (int64_t)strlen(path)), "family",
                                   r->rank->model->config.family->name, "ranks", r->rank->transport->size, "prompt_tokens",
                                   (json_int_t)(r->prompt_count - r->tokens), "attention",
                                   dw_choice_json(r->rank->options, 0, &r->omitted), "tokens", (json_int_t)r->tokens,
                                   "perplexity", exp(mean), "nll", "mean", mean, "standard_error", standard_error(r), "timings",
                                   "load", r->rank->load_seconds, "prefill", r->prefill_seconds, "predict", r->seconds),
                         err);
}

static dw_status print_text(const run *r, dw_error *err)
{
    const double mean = r->sum / (double)r->tokens;
    const dw_interval omitted = dw_omitted_mean(&r->omitted);
    char text[DW_CHOICE_TEXT];
    dw_choice_text(r->rank->options, 0, text);
    printf("%s: %lld tokens behind %lld\n", text, (long long)r->tokens, (long long)(r->prompt_count - r->tokens));
    printf("perplexity  %.4f\n", exp(mean));
    printf("a token     %.4f nat, %.4f bits; standard error %.4f nat\n", mean, mean / log(2), standard_error(r));
    if (r->omitted.count > 0)
        printf("omitted     %.3g to %.3g %% of the attention mass\n", 100 * omitted.low, 100 * omitted.high);
    return dw_flush_output(err);
}

static dw_status drive(void *context, dw_error *err)
{
    run *r = context;
    double start = dw_now();
    dw_status status = dw_prefill(r->rank, r->session, r->prompt, r->prompt_count - r->tokens - 1, NULL, err);
    r->prefill_seconds = dw_now() - start;
    start = dw_now();
    if (status == DW_OK) status = dw_interrupted() ? DW_INTERRUPTED : predict(r, err);
    r->seconds = dw_now() - start;
    dw_session_omitted(r->session, &r->omitted);
    DW_TRY(dw_end_session(r->rank, r->session, r->memory, status, err));
    return r->rank->options->json ? print_json(r, err) : print_text(r, err);
}

dw_status dw_perplexity_command(dw_rank *rank, dw_error *err)
{
    run r = {.rank = rank};
    const dw_session_work work = {&r, prepare, drive, &r.context, &r.session};
    const dw_status status = dw_run_session(rank, &work, err);
    release(&r);
    return status;
}
