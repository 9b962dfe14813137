/* Collective operations over a transport. Every function here is Collective: all ranks of the transport call it with
   matching arguments, and with one rank it only copies. Binomial trees: ceil(log2 N) steps. */
#ifndef DW_MPI_COLLECTIVE_H
#define DW_MPI_COLLECTIVE_H

#include "mpi/transport.h"

/* data of rank 0 is copied to every rank. bytes is the same on all. */
dw_status dw_broadcast(dw_transport *t, void *data, int64_t bytes, dw_error *err);

/* Rank r contributes the bytes offsets[r] .. offsets[r+1] of data (offsets has N+1 entries, the same on all ranks); afterwards
   every rank holds all of data. When only rank 0 contributes this is a broadcast (tree); otherwise a ring. */
dw_status dw_all_gather(dw_transport *t, void *data, const int64_t *offsets, dw_error *err);

/* Merges a received message into an own one: mine (*mine_bytes, room for capacity bytes) and theirs become mine. Must be
   associative and commutative. */
typedef dw_status dw_merge(void *context, void *mine, int64_t *mine_bytes, int64_t capacity, const void *theirs,
                           int64_t theirs_bytes, dw_error *err);

/* data of all ranks merged into rank 0's along a binomial tree; *bytes is each rank's own length on entry and, on rank 0, the
   merged length on return (other ranks: undefined, and data too). scratch: capacity bytes. */
dw_status dw_reduce(dw_transport *t, void *data, int64_t *bytes, int64_t capacity, void *scratch, dw_merge *merge,
                    void *context, dw_error *err);

/* data is cut by offsets (N+1 entries) into one part per rank; afterwards part r of rank r is the merge of all ranks' parts r.
   When only rank 0's part is not empty this is dw_reduce; otherwise N-1 pairwise exchanges. Merging must keep a part's
   length. scratch: as long as the longest part. */
dw_status dw_reduce_scatter(dw_transport *t, void *data, const int64_t *offsets, void *scratch, dw_merge *merge, void *context,
                            dw_error *err);

/* Rank r's `bytes` bytes land at out + r * bytes on rank 0 (out may be NULL on others). */
dw_status dw_gather(dw_transport *t, const void *data, int64_t bytes, void *out, dw_error *err);

/* The lowest-numbered failing rank's status and message (prefixed "rank R on HOST: " when there is more than one rank
   and not all fail with the very same message) become the result on every rank, with err->shared set; without it the failure
   is this rank's alone (agreeing failed). mine: this rank's status, with err holding its message if it failed. */
dw_status dw_agree(dw_transport *t, dw_status mine, dw_error *err);

#endif
