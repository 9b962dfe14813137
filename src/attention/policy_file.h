/* Attention policies from YAML files; the schema is docs/policies.md. Local. */
#ifndef DW_ATTENTION_POLICY_FILE_H
#define DW_ATTENTION_POLICY_FILE_H

#include "attention/policy.h"
#include "base/error.h"

/* Reads a file for a model with this many layers and query heads. defaults: the fields that an entry leaves out, and the policy of layers
   that no entry names; where nothing says a mode, a dense default means condensate. DW_INPUT with the file, the line and what is
   wrong. Free with dw_policy_plan_free. */
dw_status dw_policy_file_read(dw_policy_plan *plan, const char *path, const dw_policy *defaults, int64_t layers, int64_t heads,
                              dw_error *err);

/* Frees what a plan owns: the layers and their head_keys. */
void dw_policy_plan_free(dw_policy_plan *plan);

#endif
