/* Runs the same function on simulated ranks, each a thread with its transport. */
#ifndef DW_TESTS_LOCAL_RANKS_H
#define DW_TESTS_LOCAL_RANKS_H

#include "mpi/transport.h"

/* What one rank does; a rank that fails should call ops->abort first if others may wait for it. */
typedef dw_status rank_body(dw_transport *t, void *context, dw_error *err);

/* Runs body on `size` ranks and returns when all have ended. errors: [size] each rank's outcome (status DW_OK: it worked), or
   NULL. Returns the failure of the lowest failing rank, with "rank R: " in front of its message in err. */
dw_status run_local_ranks(int size, double deadline, rank_body *body, void *context, dw_error *errors, dw_error *err);

#endif
