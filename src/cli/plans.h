/* The ways to attend that the command line asks for, as plans of a model: the modes of --attention, then the files of --policy. */
#ifndef DW_CLI_PLANS_H
#define DW_CLI_PLANS_H

#include <jansson.h>

#include "attention/omitted.h"
#include "attention/policy.h"
#include "cli/options.h"
#include "model/config.h"
#include "mpi/drafting.h"

typedef struct {
    dw_policy_plan *plans; /* [count] */
    int64_t count;
} dw_plans;

/* Reads the policy files. DW_INPUT: one of them is wrong. */
dw_status dw_plans_create(dw_plans *plans, const dw_options *options, const dw_config *config, dw_error *err);
void dw_plans_free(dw_plans *plans);

/* Whether a choice drafts tokens and checks them. */
static inline int dw_is_lossless(const dw_options *options, int choice)
{
    return choice < options->mode_count && options->modes[choice] == DW_LOSSLESS;
}

/* Most tokens drafted at a time. */
static inline int64_t dw_longest_draft(const dw_options *options)
{
    return options->draft < 0 ? DW_MAX_DRAFT : options->draft;
}

/* Of all fields of all plans. */
uint64_t dw_plans_hash(const dw_plans *plans, const dw_config *config);

/* What choice number i of the options is called: "dense", "condensate 1+64+32 and block means", "mass 0.001", "policy FILE". */
enum { DW_CHOICE_TEXT = 160 };
void dw_choice_text(const dw_options *options, int choice, char text[DW_CHOICE_TEXT]);

/* {"mode", "anchor", "window", "keys", "tail", "exact", "omitted_mass", ...}; a policy file has mode "policy" and its path. keys of
   mode mass: how many a head attends to on average. */
json_t *dw_choice_json(const dw_options *options, int choice, const dw_omitted *omitted);

/* What finding the best keys has read: bytes an element of the visible keys, and keys that were scored again exactly, a head; null when
   no best keys were asked for. */
json_t *dw_discovery_json(const dw_omitted *omitted);

#endif
