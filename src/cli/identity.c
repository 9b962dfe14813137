#include "cli/identity.h"

#include "model/fingerprint.h"

void dw_card_add_options(dw_card *card, const dw_options *options)
{
    const dw_policy *policy = &options->policy;
    char modes[DW_MAX_CHOICES + 1] = "";
    dw_card_add(card, DW_USAGE, "the command", "%s%s%s", dw_command_name(options->command), options->help ? " --help" : "",
                options->version ? " --version" : "");
    if (options->help || options->version) return;
    dw_card_add(card, DW_USAGE, "--rope-base", "%.17g", options->rope_base);
    dw_card_add(card, DW_USAGE, "--rope-scaling", "%s", options->rope_scaling == NULL ? "" : options->rope_scaling);
    dw_card_add(card, DW_USAGE, "--context", "%lld", (long long)options->context);
    for (int i = 0; i < options->mode_count; i++) modes[i] = (char)('0' + options->modes[i]);
    dw_card_add(card, DW_USAGE, "--attention", "%s", modes);
    dw_card_add(card, DW_USAGE, "--policy", "%d", options->policy_count);
    dw_card_add(card, DW_USAGE, "--draft", "%lld", (long long)options->draft);
    dw_card_add(card, DW_USAGE, "--linear", "%s", dw_linear_name(options->linear));
    dw_card_add(card, DW_USAGE, "--screen", "%d", (int)options->screen);
    dw_card_add(card, DW_USAGE, "--anchor", "%lld", (long long)policy->anchor);
    dw_card_add(card, DW_USAGE, "--window", "%lld", (long long)policy->window);
    dw_card_add(card, DW_USAGE, "--keys", "%lld", (long long)policy->keys);
    dw_card_add(card, DW_USAGE, "--epsilon", "%.17g", policy->epsilon);
    dw_card_add(card, DW_USAGE, "--tail", "%s", policy->has_tail ? "mean" : "none");
    dw_card_add(card, DW_USAGE, "--kv-type", "%s,%s", dw_types[options->key_type].name, dw_types[options->value_type].name);
}

void dw_card_add_definition(dw_card *card, uint64_t definition)
{
    dw_card_add(card, DW_RUNTIME, "the definition's hash", "%016llx", (unsigned long long)definition);
}

void dw_card_add_plans(dw_card *card, const dw_plans *plans, const dw_config *config)
{
    dw_card_add(card, DW_INPUT, "the policies", "%016llx", (unsigned long long)dw_plans_hash(plans, config));
}

void dw_card_add_model(dw_card *card, const dw_model *model)
{
    const dw_fingerprint print = dw_fingerprint_of(model->checkpoint);
    dw_card_add(card, DW_INPUT, "the model's metadata", "%016llx", (unsigned long long)print.header);
    dw_card_add(card, DW_INPUT, "the model's weights", "%016llx", (unsigned long long)print.weights);
}
