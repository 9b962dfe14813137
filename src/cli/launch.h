/* Starts the ranks: MPI processes, threads of this process (--simulate-ranks), or just one. */
#ifndef DW_CLI_LAUNCH_H
#define DW_CLI_LAUNCH_H

#include "cli/command.h"

/* Runs body on every rank of this process and returns the exit status of the process. parsed, with err if it is not DW_OK:
   how parsing of the options went; a failure is reported here, where it is known which rank reports. Prints errors: one line
   on stderr, by one rank. */
int dw_launch(const dw_options *options, dw_body *body, dw_status parsed, const dw_error *err);

#endif
