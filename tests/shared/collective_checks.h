/* What every transport and every collective operation must do, as functions that all ranks of a transport run together: tests
   of simulated ranks call them from threads, a program under mpirun calls them from its ranks. Each returns DW_OK or says in
   err what is wrong. */
#ifndef DW_TESTS_COLLECTIVE_CHECKS_H
#define DW_TESTS_COLLECTIVE_CHECKS_H

#include "mpi/collective.h"

typedef dw_status collective_check(dw_transport *t, dw_error *err);

/* Point to point. */
collective_check check_order_and_sizes;  /* messages of every pair arrive in order, 0 bytes to 1 MiB */
collective_check check_long_messages;    /* lengths around multiples of 16 MiB, where MPI's are cut */
collective_check check_exchange_ring;    /* all at once, 0 bytes to 1 MiB */
collective_check check_too_long_message; /* is refused, writes nothing and can be received later */
collective_check check_traffic_counters;

/* Collective. Expected values are computed without any communication. */
collective_check check_broadcast;
collective_check check_all_gather;
collective_check check_reduce;
collective_check check_reduce_scatter;
collective_check check_gather;
collective_check check_agree;

/* All of the above, in this order; the failing one is named. */
dw_status run_collective_checks(dw_transport *t, dw_error *err);

/* One check on simulated ranks: first as few as `fewest`, at last as many as `most`. */
dw_status check_on_simulated_ranks(collective_check *check, int fewest, int most, dw_error *err);

#endif
