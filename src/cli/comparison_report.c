#include "cli/comparison_report.h"

#include <stdio.h>
#include <string.h>

#include "cli/plans.h"
#include "cli/report.h"

/* Mean and worst omitted mass of one layer, and recall. */
static dw_omitted layer_of(const dw_compared_with *w, const dw_compared *c, int64_t layer)
{
    const int64_t heads = w->rank->model->config.heads;
    dw_omitted sum = {0};
    for (int64_t h = 0; h < heads; h++) {
        const dw_omitted *head = &c->by_head[layer * heads + h];
        sum.count += head->count;
        sum.sum_low += head->sum_low;
        sum.sum_high += head->sum_high;
        sum.max_low = head->max_low > sum.max_low ? head->max_low : sum.max_low;
        sum.max_high = head->max_high > sum.max_high ? head->max_high : sum.max_high;
        sum.recall_sum += head->recall_sum;
        sum.recall_count += head->recall_count;
    }
    return sum;
}

/* Null where there is no set of best keys to be found (dense, mass). */
static json_t *recall_json(const dw_omitted *omitted)
{
    return omitted->recall_count == 0 ? json_null() : json_real(omitted->recall_sum / (double)omitted->recall_count);
}

/* heads: middle of the mean's interval, and recall. */
static json_t *layer_json(const dw_compared_with *w, const dw_compared *c, int64_t layer)
{
    const int64_t heads = w->rank->model->config.heads;
    const dw_omitted omitted = layer_of(w, c, layer);
    const dw_interval mean = dw_omitted_mean(&omitted);
    json_t *by_head = json_array();
    json_t *recalls = json_array();
    for (int64_t h = 0; h < heads; h++) {
        const dw_interval one = dw_omitted_mean(&c->by_head[layer * heads + h]);
        json_array_append_new(by_head, json_real((one.low + one.high) / 2));
        json_array_append_new(recalls, recall_json(&c->by_head[layer * heads + h]));
    }
    return json_pack("{s:I, s:{s:[f,f], s:[f,f]}, s:[f,f], s:o, s:o, s:o}", "layer", (json_int_t)layer, "omitted_mass", "mean",
                     mean.low, mean.high, "max", omitted.max_low, omitted.max_high, "captured_mass", 1 - mean.high,
                     1 - mean.low, "recall", recall_json(&omitted), "heads", by_head, "head_recall", recalls);
}

static json_t *layers_json(const dw_compared_with *w, const dw_compared *c)
{
    json_t *list = json_array();
    for (int64_t layer = 0; c->omitted.count > 0 && layer < w->rank->model->config.layers; layer++) {
        json_array_append_new(list, layer_json(w, c, layer));
    }
    return list;
}

static json_t *rows_json(const dw_compared *c)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < c->sum.rows; i++) {
        json_array_append_new(
            list, json_pack("{s:f, s:b, s:f}", "kl", c->rows[i].kl, "same", c->rows[i].is_same, "margin", c->rows[i].margin));
    }
    return list;
}

static json_t *choice_json(const dw_compared_with *w, int64_t choice)
{
    const dw_compared *result = &w->results[choice];
    const dw_comparison *c = &result->sum;
    const double rows = (double)c->rows;
    json_t *divergence = c->first_difference < 0 ? json_null() : json_integer((json_int_t)c->first_difference + 1);
    return json_pack("{s:o, s:I, s:o, s:f, s:{s:f, s:f}, s:{s:f, s:f}, s:{s:f, s:f, s:f}, s:o, s:o, s:o}", "attention",
                     dw_choice_json(w->rank->options, (int)choice, &result->omitted), "tokens", (json_int_t)c->rows,
                     "first_divergence", divergence, "match", (double)c->matches / rows, "kl", "mean", c->kl_sum / rows, "max",
                     c->kl_max, "perplexity", "dense", dw_perplexity(c->reference_nll_sum, c->rows), "mode",
                     dw_perplexity(c->other_nll_sum, c->rows), "margin", "mean", c->margin_sum / rows, "min", c->margin_min,
                     "lost", c->margin_lost, "layers", layers_json(w, result), "rows", rows_json(result), "discovery",
                     dw_discovery_json(&result->omitted));
}

dw_status dw_comparison_json(const dw_compared_with *w, dw_error *err)
{
    const char *path = w->rank->model->checkpoint->path;
    json_t *object = json_pack("{s:s, s:o, s:s, s:i, s:I, s:s}", "dewpoint", DW_VERSION, "model",
                               dw_json_text(path, (int64_t)strlen(path)), "family", w->rank->model->config.family->name,
                               "ranks", w->rank->transport->size, "prompt_tokens", (json_int_t)w->prompt_tokens, "on",
                               w->rank->options->on);
    json_t *results = w->choices == 1 ? choice_json(w, 0) : json_array();
    int failed = object == NULL || results == NULL;
    if (w->choices == 1) {
        failed |= json_object_update(object, results);
        json_decref(results);
    } else {
        for (int64_t c = 0; c < w->choices; c++) failed |= json_array_append_new(results, choice_json(w, c));
        failed |= json_object_set_new(object, "results", results);
    }
    if (failed) {
        json_decref(object);
        object = NULL;
    }
    return dw_print_json(object, err);
}

static double per(double total, double count)
{
    return count > 0 ? total / count : 0;
}

static void print_choice(const dw_compared_with *w, int64_t choice)
{
    const dw_compared *result = &w->results[choice];
    const dw_comparison *c = &result->sum;
    const double rows = (double)c->rows;
    char text[DW_CHOICE_TEXT];
    dw_choice_text(w->rank->options, (int)choice, text);
    printf("%s", text);
    if (result->omitted.selected > 0) {
        printf(" (%.0f keys a head, %.1f %% of what it sees)",
               per((double)result->omitted.selected, (double)result->omitted.count),
               per(100 * (double)result->omitted.selected, (double)result->omitted.visible));
    }
    printf(" against dense: %lld tokens behind %lld (%s)\n", (long long)c->rows, (long long)w->prompt_tokens,
           strcmp(w->rank->options->on, "text") == 0 ? "of the text" : "that dense generates");
    if (c->first_difference < 0) {
        printf("first divergence  none\n");
    } else {
        printf("first divergence  token %lld\n", (long long)c->first_difference + 1);
    }
    printf("best token equal  %.2f %%; the largest margin lost is %.3g (margins: mean %.3g, least %.3g)\n",
           100 * (double)c->matches / rows, c->margin_lost, c->margin_sum / rows, c->margin_min);
    printf("KL                mean %.3g, max %.3g nat\n", c->kl_sum / rows, c->kl_max);
    printf("perplexity        dense %.4f, here %.4f\n", dw_perplexity(c->reference_nll_sum, c->rows),
           dw_perplexity(c->other_nll_sum, c->rows));
    for (int64_t layer = 0; result->omitted.count > 0 && layer < w->rank->model->config.layers; layer++) {
        const dw_omitted omitted = layer_of(w, result, layer);
        const dw_interval mean = dw_omitted_mean(&omitted);
        printf("layer %3lld  omitted mass: mean %6.2f %%, worst %6.2f %%", (long long)layer, 50 * (mean.low + mean.high),
               100 * omitted.max_high);
        if (omitted.recall_count > 0 && omitted.recall_sum < (double)omitted.recall_count) {
            printf("; %.1f %% of the best keys", 100 * omitted.recall_sum / (double)omitted.recall_count);
        }
        printf("\n");
    }
}

dw_status dw_comparison_table(const dw_compared_with *w, dw_error *err)
{
    for (int64_t c = 0; c < w->choices; c++) {
        if (c > 0) printf("\n");
        print_choice(w, c);
    }
    return dw_flush_output(err);
}
