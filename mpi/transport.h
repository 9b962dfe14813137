/* How ranks talk: point-to-point messages, nothing else. Two implementations carry the same protocol code
   (mpi/collective.h and everything above it): MPI, and ranks that are threads of one process.
   A transport belongs to one rank and is used by one thread of it. */
#ifndef DW_MPI_TRANSPORT_H
#define DW_MPI_TRANSPORT_H

#include <stdint.h>

#include "base/error.h"

typedef struct dw_transport dw_transport;

/* What this rank has sent and how long it has waited since the start. */
typedef struct {
    int64_t bytes_sent; /* payload */
    int64_t messages_sent;
    double wait_seconds; /* inside send, receive and exchange */
} dw_traffic;

typedef struct {
    /* Sends bytes to rank `to` (not itself); returns when data may be reused. Messages of one pair of ranks arrive in order. */
    dw_status (*send)(dw_transport *, int to, const void *data, int64_t bytes, dw_error *);
    /* Receives the next message of rank `from`, at most `capacity` bytes; *bytes = its length. A longer one is DW_RUNTIME: it
       writes nothing behind data and stays the next message. */
    dw_status (*receive)(dw_transport *, int from, void *data, int64_t capacity, int64_t *bytes, dw_error *);
    /* Both at once, so that a ring of ranks that all call it does not deadlock. */
    dw_status (*exchange)(dw_transport *, int to, const void *out, int64_t out_bytes, int from, void *in, int64_t capacity,
                          int64_t *in_bytes, dw_error *);
    /* Ends every rank: all waits of others fail (in-process) or their processes end with `status` (MPI, does not return). */
    void (*abort)(dw_transport *, dw_status status);
    void (*destroy)(dw_transport *);
} dw_transport_ops;

struct dw_transport {
    const dw_transport_ops *ops;
    int rank;
    int size;
    double deadline; /* seconds that one wait may take; then DW_RANK_LOST naming the silent rank: the one waited for, or the one
                        that it waits for in turn */
    dw_traffic traffic;
};

/* Ranks of this process. out: size transports, each to be used by a thread of its own; the last one destroyed frees what
   they share. Waits of other ranks fail with DW_RANK_LOST once one rank has called abort. size >= 1. */
dw_status dw_transport_local_create(dw_transport **out, int size, double deadline, dw_error *err);

/* True when a launcher (mpirun, srun with an MPI plugin) started this process as one of several ranks, judged by the
   environment. */
int dw_transport_mpi_launched(void);

/* Collective over all processes of the launch: MPI_Init with Dewpoint's settings (yield when idle, pml ob1 unless the
   environment says otherwise), a communicator of its own. destroy is Collective too, and finalizes MPI. After a failure here
   the process must end: its launcher then ends the others. */
dw_status dw_transport_mpi_create(dw_transport **out, double deadline, dw_error *err);

/* Name of the host of this process, for messages. At most capacity - 1 characters. */
void dw_host_name(char *name, int64_t capacity);

/* Shorthands that forward to ops and keep the traffic counters. */
dw_status dw_send(dw_transport *t, int to, const void *data, int64_t bytes, dw_error *err);
dw_status dw_receive(dw_transport *t, int from, void *data, int64_t capacity, int64_t *bytes, dw_error *err);
dw_status dw_exchange(dw_transport *t, int to, const void *out, int64_t out_bytes, int from, void *in, int64_t capacity,
                      int64_t *in_bytes, dw_error *err);
void dw_transport_destroy(dw_transport *t);

#endif
