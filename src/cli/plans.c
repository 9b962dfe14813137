#include "cli/plans.h"

#include <stdio.h>
#include <string.h>

#include "attention/policy_file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "cli/report.h"

/* The files follow the modes. */
static const char *file_of(const dw_options *options, int choice)
{
    return choice < options->mode_count ? NULL : options->policy_files[choice - options->mode_count];
}

/* What tune's rows leave out while it counts: next to nothing. */
#define TUNE_EPSILON 1e-4

/* Shorter caches are read as fast without it (docs/benchmarks.md). compare reports exact masses. */
static int64_t screen_from(const dw_options *options)
{
    if (options->screen == DW_AUTO && options->command != DW_COMMAND_COMPARE) return 65536;
    return options->screen == DW_ALWAYS ? 0 : INT64_MAX;
}

static dw_status create_plan(dw_policy_plan *plan, const dw_options *options, int choice, const dw_config *config,
                             dw_error *err)
{
    const char *file = file_of(options, choice);
    if (file != NULL) {
        DW_TRY(dw_policy_file_read(plan, file, &options->policy, config->layers, config->heads, err));
    } else {
        DW_TRY(DW_ALLOC(&plan->layers, 1, "policy", err));
        *plan = (dw_policy_plan){.layers = plan->layers, .layer_count = 1, .pillar = 1, .reuse = 1};
        plan->layers[0] = options->policy;
        plan->layers[0].mode = options->modes[choice] == DW_LOSSLESS ? DW_DENSE : options->modes[choice];
        if (options->command == DW_COMMAND_TUNE) plan->layers[0].epsilon = TUNE_EPSILON;
    }
    plan->screen_from = screen_from(options);
    plan->is_audited = options->command == DW_COMMAND_COMPARE;
    return DW_OK;
}

dw_status dw_plans_create(dw_plans *plans, const dw_options *options, const dw_config *config, dw_error *err)
{
    dw_status status = DW_OK;
    plans->count = options->mode_count + options->policy_count;
    DW_TRY(DW_ALLOC(&plans->plans, plans->count, "policies", err));
    for (int i = 0; i < plans->count && status == DW_OK; i++) status = create_plan(&plans->plans[i], options, i, config, err);
    if (status != DW_OK) dw_plans_free(plans);
    return status;
}

void dw_plans_free(dw_plans *plans)
{
    for (int64_t i = 0; plans->plans != NULL && i < plans->count; i++) dw_policy_plan_free(&plans->plans[i]);
    dw_free(plans->plans);
    *plans = (dw_plans){NULL, 0};
}

static uint64_t hash_layer(uint64_t hash, const dw_policy *p, const dw_config *config)
{
    const int64_t numbers[] = {(int64_t)p->mode, p->anchor, p->window, p->keys, p->has_tail, p->head_keys != NULL};
    uint64_t sum = dw_hash(hash, numbers, (int64_t)sizeof numbers);
    sum = dw_hash(sum, &p->epsilon, (int64_t)sizeof p->epsilon);
    if (p->head_keys == NULL) return sum;
    return dw_hash(sum, p->head_keys, config->heads * (int64_t)sizeof *p->head_keys);
}

uint64_t dw_plans_hash(const dw_plans *plans, const dw_config *config)
{
    uint64_t hash = 0;
    for (int64_t i = 0; i < plans->count; i++) {
        const dw_policy_plan *plan = &plans->plans[i];
        const int64_t numbers[] = {plan->layer_count, plan->pillar, plan->reuse, (int64_t)plan->selector, plan->screen_from};
        hash = dw_hash(hash, numbers, (int64_t)sizeof numbers);
        for (int64_t l = 0; l < plan->layer_count; l++) hash = hash_layer(hash, &plan->layers[l], config);
    }
    return hash;
}

void dw_choice_text(const dw_options *options, int choice, char text[DW_CHOICE_TEXT])
{
    const dw_policy *policy = &options->policy;
    if (file_of(options, choice) != NULL) {
        snprintf(text, DW_CHOICE_TEXT, "policy %s", file_of(options, choice));
    } else if (options->modes[choice] == DW_MASS) {
        snprintf(text, DW_CHOICE_TEXT, "mass %g", policy->epsilon);
    } else if (options->modes[choice] == DW_CONDENSATE) {
        snprintf(text, DW_CHOICE_TEXT, "condensate %lld+%lld+%lld (anchor + window + keys)%s", (long long)policy->anchor,
                 (long long)policy->window, (long long)policy->keys, policy->has_tail ? ", the rest as block means" : "");
    } else {
        snprintf(text, DW_CHOICE_TEXT, "%s", dw_mode_name(options->modes[choice]));
    }
}

static json_t *omitted_json(const dw_omitted *omitted)
{
    const dw_interval mean = dw_omitted_mean(omitted);
    if (omitted->count == 0) return json_null();
    return json_pack("{s:[f,f], s:[f,f], s:{s:I, s:I, s:I}}", "mean", mean.low, mean.high, "max", omitted->max_low,
                     omitted->max_high, "max_at", "position", (json_int_t)omitted->max_position, "layer",
                     (json_int_t)omitted->max_layer, "head", (json_int_t)omitted->max_head);
}

json_t *dw_discovery_json(const dw_omitted *omitted)
{
    if (omitted->key_elements == 0) return json_null();
    return json_pack("{s:f, s:f}", "bytes_per_element", (double)omitted->key_bytes / (double)omitted->key_elements, "survivors",
                     (double)omitted->survivors / (double)omitted->count);
}

json_t *dw_choice_json(const dw_options *options, int choice, const dw_omitted *omitted)
{
    const char *file = file_of(options, choice);
    const dw_policy *policy = &options->policy;
    const int exact = file == NULL && (options->modes[choice] == DW_DENSE || options->modes[choice] == DW_LOSSLESS);
    json_t *object;
    if (file != NULL) {
        return json_pack("{s:s, s:o, s:b, s:o}", "mode", "policy", "policy", dw_json_text(file, (int64_t)strlen(file)), "exact",
                         0, "omitted_mass", omitted_json(omitted));
    }
    object = json_pack("{s:s, s:I, s:I, s:I, s:s, s:b, s:o}", "mode", dw_mode_name(options->modes[choice]), "anchor",
                       (json_int_t)policy->anchor, "window", (json_int_t)policy->window, "keys", (json_int_t)policy->keys,
                       "tail", policy->has_tail ? "mean" : "none", "exact", exact, "omitted_mass", omitted_json(omitted));
    if (options->modes[choice] == DW_MASS && omitted->count > 0) {
        json_object_set_new(object, "epsilon", json_real(policy->epsilon));
        json_object_set_new(object, "keys", json_real((double)omitted->selected / (double)omitted->count));
    }
    return object;
}
