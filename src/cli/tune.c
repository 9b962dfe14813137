/* dewpoint tune: budgets of keys for each layer and head. The last tokens of a text attend by mass, which counts every head's keys by
   their scores; from that follows what each head would leave out with so many best keys, and keys are dealt where they take most mass
   away until the heads leave out --epsilon on average. The result is a policy file. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "attention/budget.h"
#include "base/memory.h"
#include "cli/command.h"
#include "cli/generation.h"
#include "cli/report.h"
#include "cli/text_input.h"

/* What rank 0 holds. */
typedef struct {
    dw_rank *rank;
    dw_session *session;
    int32_t *prompt;
    int64_t prompt_count;
    int64_t context;
    int64_t count; /* layers * heads */
    dw_omitted *by_head;
    dw_budget_curve *curves; /* [count] */
    int64_t *keys;           /* [count] */
    float *logits;           /* [vocabulary]: asked for, so that the last layer attends */
    dw_rank_memory *memory;
} run;

static dw_status prepare(void *context, dw_error *err)
{
    run *r = context;
    const dw_rank *rank = r->rank;
    const int64_t tokens = rank->options->tokens;
    r->count = rank->model->config.layers * rank->model->config.heads;
    DW_TRY(dw_read_prompt(rank->options, rank->model, rank->tokenizer, &r->prompt, &r->prompt_count, err));
    if (tokens < 1) return dw_fail(err, DW_USAGE, "--tokens %lld: tune needs 1 at least", (long long)tokens);
    if (r->prompt_count <= tokens) {
        return dw_fail(err, DW_INPUT, "%s has %lld tokens: too few to look at the last %lld", dw_prompt_source(rank->options),
                       (long long)r->prompt_count, (long long)tokens);
    }
    DW_TRY(dw_choose_context(rank, r->prompt_count, 0, &r->context, err));
    DW_TRY(DW_ALLOC(&r->by_head, r->count, "omitted mass", err));
    DW_TRY(DW_ALLOC(&r->curves, r->count, "budgets", err));
    DW_TRY(DW_ALLOC(&r->keys, r->count, "budgets", err));
    DW_TRY(DW_ALLOC(&r->logits, rank->model->vocabulary, "logits", err));
    return DW_ALLOC(&r->memory, rank->transport->size, "memory report", err);
}

static void release(run *r)
{
    dw_session_destroy(r->session);
    dw_free(r->prompt);
    dw_free(r->by_head);
    dw_free(r->curves);
    dw_free(r->keys);
    dw_free(r->logits);
    dw_free(r->memory);
}

static double mean_keys(const run *r)
{
    double sum = 0;
    for (int64_t i = 0; i < r->count; i++) sum += (double)r->keys[i];
    return sum / (double)r->count;
}

static void write_layer(FILE *file, const run *r, int64_t layer)
{
    const dw_options *options = r->rank->options;
    const int64_t heads = r->rank->model->config.heads;
    fprintf(file, "  - {range: %lld, mode: condensate, anchor: %lld, window: %lld, keys: [", (long long)layer,
            (long long)options->policy.anchor, (long long)options->policy.window);
    for (int64_t h = 0; h < heads; h++) {
        fprintf(file, "%s%lld", h == 0 ? "" : ", ", (long long)r->keys[layer * heads + h]);
    }
    fprintf(file, "]%s}\n", options->policy.has_tail ? ", tail: mean" : "");
}

/* An empty condensate is not a policy. */
static void keep_one_key(run *r)
{
    const dw_policy *policy = &r->rank->options->policy;
    for (int64_t i = 0; i < r->count && policy->anchor == 0 && policy->window == 0; i++) {
        if (r->keys[i] == 0) r->keys[i] = 1;
    }
}

static dw_status write_policy(run *r, double omitted, dw_error *err)
{
    const dw_options *options = r->rank->options;
    const char *name = strrchr(r->rank->model->checkpoint->path, '/');
    FILE *file = fopen(options->output, "w");
    int failed;
    if (file == NULL) return dw_fail(err, DW_INPUT, "%s: can not be written: %s", options->output, strerror(errno));
    fprintf(file,
            "# dewpoint tune --epsilon %g: %lld tokens behind %lld. On average %.1f best keys a head, which left out %.3g of "
            "the mass\n"
            "# there (the best keys alone; anchor and window leave out less). One budget for all heads would have to be %lld.\n"
            "model: '%s'\nlayers:\n",
            options->policy.epsilon, (long long)options->tokens, (long long)(r->prompt_count - options->tokens), mean_keys(r),
            omitted, (long long)dw_budget_uniform(r->curves, r->count, omitted),
            name == NULL ? r->rank->model->checkpoint->path : name + 1);
    for (int64_t l = 0; l < r->rank->model->config.layers; l++) write_layer(file, r, l);
    failed = ferror(file);
    failed |= fclose(file) != 0;
    if (failed) return dw_fail(err, DW_RESOURCE, "%s: can not be written to the end: %s", options->output, strerror(errno));
    return DW_OK;
}

/* Shares: of the keys within 2^-24 of the best one's weight; of the rows and heads with 97 scores that are not negative. */
static json_t *scores_json(const run *r)
{
    double keys = 0;
    double near = 0;
    double positive = 0;
    double rows = 0;
    for (int64_t i = 0; i < r->count; i++) {
        keys += (double)r->curves[i].keys;
        near += (double)r->curves[i].keys_near;
        positive += (double)r->curves[i].positive;
        rows += (double)r->curves[i].rows;
    }
    return json_pack("{s:f, s:f}", "keys_within_2^-24", near / keys, "rows_with_97_positive", positive / rows);
}

static dw_status report(run *r, dw_error *err)
{
    const dw_options *options = r->rank->options;
    double omitted = dw_budget_deal(r->curves, r->count, options->policy.epsilon, r->keys);
    const int64_t uniform = dw_budget_uniform(r->curves, r->count, omitted);
    keep_one_key(r);
    DW_TRY(write_policy(r, omitted, err));
    if (options->json) {
        return dw_print_json(json_pack("{s:s, s:s, s:f, s:f, s:f, s:I, s:o}", "dewpoint", DW_VERSION, "policy", options->output,
                                       "epsilon", options->policy.epsilon, "omitted_mass", omitted, "mean_keys", mean_keys(r),
                                       "uniform_keys", (json_int_t)uniform, "scores", scores_json(r)),
                             err);
    }
    printf("%s: %.1f best keys a head on average leave out %.3g of the mass; one budget for all heads: %lld\n", options->output,
           mean_keys(r), omitted, (long long)uniform);
    return dw_flush_output(err);
}

static dw_status drive(void *context, dw_error *err)
{
    run *r = context;
    const int64_t tokens = r->rank->options->tokens;
    const int64_t before = r->prompt_count - tokens;
    dw_status status = dw_prefill(r->rank, r->session, r->prompt, before, NULL, err);
    dw_session_collect_heads(r->session, r->by_head);
    dw_session_collect_curves(r->session, r->curves);
    for (int64_t i = 0; i < tokens && status == DW_OK; i++) {
        status = dw_interrupted() ? DW_INTERRUPTED
                                  : dw_session_append(r->session, &r->prompt[before + i], 1, 1, r->logits, 1, err);
    }
    DW_TRY(dw_end_session(r->rank, r->session, r->memory, status, err));
    return report(r, err);
}

dw_status dw_tune(dw_rank *rank, dw_error *err)
{
    run r = {.rank = rank};
    const dw_session_work work = {&r, prepare, drive, &r.context, &r.session};
    const dw_status status = dw_run_session(rank, &work, err);
    release(&r);
    return status;
}
