/* What a rank of the command line must share with the others (mpi/handshake.h). */
#ifndef DW_CLI_IDENTITY_H
#define DW_CLI_IDENTITY_H

#include "cli/options.h"
#include "cli/plans.h"
#include "model/model.h"
#include "mpi/handshake.h"

/* Local. The options that every rank acts on; the prompt, sampling and output are rank 0's alone, threads may differ. */
void dw_card_add_options(dw_card *card, const dw_options *options);

/* Local. definition: of dw_definition_check. */
void dw_card_add_definition(dw_card *card, uint64_t definition);

/* Local. Takes a few milliseconds. */
void dw_card_add_model(dw_card *card, const dw_model *model);

/* Local. */
void dw_card_add_plans(dw_card *card, const dw_plans *plans, const dw_config *config);

#endif
