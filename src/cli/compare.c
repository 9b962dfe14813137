/* dewpoint compare: what a mode changes. One dense prefill; then the same tokens are computed twice from it, densely and by the mode
   (teacher forcing), and the logits compared row by row. Until the first row whose best token differs both would also generate
   the same text, so that row is where free-running decoding parts. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cli/command.h"
#include "cli/generation.h"
#include "cli/report.h"
#include "cli/text_input.h"
#include "decode/comparison.h"

/* What rank 0 holds. */
typedef struct {
    dw_rank *rank;
    dw_session *session;
    int32_t *prompt;
    int64_t prompt_count; /* of the dense prefill, without what is compared */
    int64_t context;
    int32_t *ids; /* [rows + 1]: row i computes ids[i], ids[i + 1] comes next */
    int64_t rows;
    float *dense;        /* [rows][vocabulary] */
    float *logits;       /* [vocabulary] of one row */
    dw_omitted omitted;  /* of all layers and heads */
    dw_omitted *by_head; /* [layers][heads] */
    dw_rank_memory *memory;
    dw_comparison result;
} run;

static int on_text(const run *r)
{
    return strcmp(r->rank->options->on, "text") == 0;
}

/* The prompt's last tokens are compared, or as many as dense attention will generate. */
static dw_status prepare(run *r, dw_error *err)
{
    const dw_rank *rank = r->rank;
    const int64_t tokens = rank->options->tokens;
    const int64_t layers = rank->model->config.layers;
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
    DW_TRY(DW_ALLOC(&r->by_head, layers * rank->model->config.heads, "omitted mass", err));
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
    dw_free(r->by_head);
    dw_free(r->memory);
}

static int32_t best_of(const float *logits, int64_t vocabulary)
{
    int32_t best = 0;
    for (int32_t id = 1; id < (int32_t)vocabulary; id++) best = logits[id] > logits[best] ? id : best;
    return best;
}

/* Fills dense, and the ids where they are dense attention's own. */
static dw_status run_dense(run *r, dw_error *err)
{
    const int64_t vocabulary = r->rank->model->vocabulary;
    DW_TRY(dw_prefill(r->rank, r->session, r->prompt, r->prompt_count, r->logits, err));
    if (on_text(r)) return dw_session_append(r->session, r->ids, r->rows, 0, r->dense, r->rows, err);
    r->ids[0] = best_of(r->logits, vocabulary);
    for (int64_t i = 0; i < r->rows; i++) {
        if (dw_interrupted()) return DW_INTERRUPTED;
        DW_TRY(dw_session_append(r->session, &r->ids[i], 1, 0, r->dense + i * vocabulary, 1, err));
        r->ids[i + 1] = best_of(r->dense + i * vocabulary, vocabulary);
    }
    return DW_OK;
}

/* The same rows by the mode, behind the same prefill. */
static dw_status run_mode(run *r, dw_error *err)
{
    const int64_t vocabulary = r->rank->model->vocabulary;
    const int sparse = r->rank->options->policy.mode != DW_DENSE;
    DW_TRY(dw_session_truncate(r->session, r->prompt_count, err));
    dw_session_collect_heads(r->session, r->by_head);
    dw_comparison_start(&r->result);
    for (int64_t i = 0; i < r->rows; i++) {
        if (dw_interrupted()) return DW_INTERRUPTED;
        DW_TRY(dw_session_append(r->session, &r->ids[i], 1, sparse, r->logits, 1, err));
        dw_comparison_add(&r->result, r->dense + i * vocabulary, r->logits, vocabulary, r->ids[i + 1]);
    }
    dw_session_omitted(r->session, &r->omitted);
    return DW_OK;
}

/* ---- what is printed ---- */

static double mean_keys(const run *r)
{
    return r->omitted.count == 0 ? 0 : (double)r->omitted.selected / (double)r->omitted.count;
}

static double share_of_keys(const run *r)
{
    return r->omitted.visible == 0 ? 0 : (double)r->omitted.selected / (double)r->omitted.visible;
}

/* Mean and worst omitted mass of one layer. */
static dw_omitted layer_of(const run *r, int64_t layer)
{
    const int64_t heads = r->rank->model->config.heads;
    dw_omitted sum = {0};
    for (int64_t h = 0; h < heads; h++) {
        const dw_omitted *head = &r->by_head[layer * heads + h];
        sum.count += head->count;
        sum.sum_low += head->sum_low;
        sum.sum_high += head->sum_high;
        sum.max_low = head->max_low > sum.max_low ? head->max_low : sum.max_low;
        sum.max_high = head->max_high > sum.max_high ? head->max_high : sum.max_high;
    }
    return sum;
}

/* recall: of the exact best keys, which a condensate's selection is by construction. heads: middle of the mean's interval. */
static json_t *layers_json(const run *r)
{
    const int64_t heads = r->rank->model->config.heads;
    json_t *list = json_array();
    for (int64_t layer = 0; r->rank->options->policy.mode != DW_DENSE && layer < r->rank->model->config.layers; layer++) {
        const dw_omitted omitted = layer_of(r, layer);
        const dw_interval mean = dw_omitted_mean(&omitted);
        json_t *by_head = json_array();
        for (int64_t h = 0; h < heads; h++) {
            const dw_interval one = dw_omitted_mean(&r->by_head[layer * heads + h]);
            json_array_append_new(by_head, json_real((one.low + one.high) / 2));
        }
        json_array_append_new(list, json_pack("{s:I, s:{s:[f,f], s:[f,f]}, s:f, s:o}", "layer", (json_int_t)layer,
                                              "omitted_mass", "mean", mean.low, mean.high, "max", omitted.max_low,
                                              omitted.max_high, "recall", 1.0, "heads", by_head));
    }
    return list;
}

static dw_status print_json(const run *r, dw_error *err)
{
    const dw_comparison *c = &r->result;
    const dw_policy *policy = &r->rank->options->policy;
    const double rows = (double)c->rows;
    const char *path = r->rank->model->checkpoint->path;
    json_t *divergence = c->first_difference < 0 ? json_null() : json_integer((json_int_t)c->first_difference + 1);
    json_t *attention = json_pack("{s:s, s:I, s:I, s:I, s:s, s:f}", "mode", dw_mode_name(policy->mode), "anchor",
                                  (json_int_t)policy->anchor, "window", (json_int_t)policy->window, "keys",
                                  (json_int_t)policy->keys, "tail", policy->has_tail ? "mean" : "none", "epsilon",
                                  policy->epsilon);
    if (policy->mode == DW_MASS) json_object_set_new(attention, "keys", json_real(mean_keys(r)));
    return dw_print_json(
        json_pack("{s:s, s:o, s:s, s:i, s:I, s:s, s:o, s:I, s:o, s:f, s:{s:f, s:f}, s:{s:f, s:f}, s:{s:f, s:f, s:f}, s:o}",
                  "dewpoint", DW_VERSION, "model", dw_json_text(path, (int64_t)strlen(path)), "family",
                  r->rank->model->config.family->name, "ranks", r->rank->transport->size, "prompt_tokens",
                  (json_int_t)r->prompt_count, "on", r->rank->options->on, "attention", attention, "tokens",
                  (json_int_t)c->rows, "first_divergence", divergence, "match", (double)c->matches / rows, "kl", "mean",
                  c->kl_sum / rows, "max", c->kl_max, "perplexity", "dense", dw_perplexity(c->reference_nll_sum, c->rows),
                  "mode", dw_perplexity(c->other_nll_sum, c->rows), "margin", "mean", c->margin_sum / rows, "min",
                  c->margin_min, "lost", c->margin_lost, "layers", layers_json(r)),
        err);
}

static dw_status print_table(const run *r, dw_error *err)
{
    const dw_comparison *c = &r->result;
    const dw_policy *policy = &r->rank->options->policy;
    const double rows = (double)c->rows;
    printf("%s", dw_mode_name(policy->mode));
    if (policy->mode == DW_MASS) {
        printf(" %g (%.0f keys a head, %.1f %% of what it sees)", policy->epsilon, mean_keys(r), 100 * share_of_keys(r));
    } else if (policy->mode == DW_CONDENSATE) {
        printf(" %lld+%lld+%lld%s", (long long)policy->anchor, (long long)policy->window, (long long)policy->keys,
               policy->has_tail ? " and block means" : "");
    }
    printf(" against dense: %lld tokens behind %lld (%s)\n", (long long)c->rows, (long long)r->prompt_count,
           on_text(r) ? "of the text" : "that dense generates");
    if (c->first_difference < 0) {
        printf("first divergence  none\n");
    } else {
        printf("first divergence  token %lld\n", (long long)c->first_difference + 1);
    }
    printf("best token equal  %.2f %%; the largest margin lost is %.3g (margins: mean %.3g, least %.3g)\n",
           100 * (double)c->matches / rows, c->margin_lost, c->margin_sum / rows, c->margin_min);
    printf("KL                mean %.3g, max %.3g nat\n", c->kl_sum / rows, c->kl_max);
    printf("perplexity        dense %.4f, %s %.4f\n", dw_perplexity(c->reference_nll_sum, c->rows), dw_mode_name(policy->mode),
           dw_perplexity(c->other_nll_sum, c->rows));
    for (int64_t layer = 0; policy->mode != DW_DENSE && layer < r->rank->model->config.layers; layer++) {
        const dw_omitted omitted = layer_of(r, layer);
        const dw_interval mean = dw_omitted_mean(&omitted);
        printf("layer %3lld  omitted mass: mean %6.2f %%, worst %6.2f %%\n", (long long)layer, 50 * (mean.low + mean.high),
               100 * omitted.max_high);
    }
    return dw_flush_output(err);
}

static dw_status drive(run *r, dw_error *err)
{
    const dw_options *options = r->rank->options;
    dw_status status = run_dense(r, err);
    if (status == DW_OK) status = run_mode(r, err);
    if (status != DW_OK && status != DW_INTERRUPTED) return status;
    DW_TRY(dw_session_finish(r->session, r->memory, NULL, err));
    r->rank->alone = 1;
    if (status != DW_OK) return status;
    if (options->verbose) dw_print_machine(r->rank, r->memory);
    return options->json ? print_json(r, err) : print_table(r, err);
}

dw_status dw_compare(dw_rank *rank, dw_error *err)
{
    run r = {.rank = rank};
    const int coordinator = rank->transport->rank == 0;
    dw_status status = dw_rank_agree(rank, coordinator ? prepare(&r, err) : DW_OK, err);
    if (status == DW_OK) status = dw_open_session(rank, r.context, rank->options->policy.mode, &r.session, err);
    if (status == DW_OK) {
        dw_catch_interrupts();
        status = coordinator ? drive(&r, err) : dw_session_serve(r.session, err);
    }
    release(&r);
    return status;
}
