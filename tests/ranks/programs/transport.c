/* Run under mpirun by tests/ranks/collective.c:
     transport checks               every check of collective_checks.h; rank 0 prints "N ranks agree"
     transport abort RANK STATUS    RANK ends the run while the others wait
     transport stop RANK WHERE      RANK stops (SIGSTOP) while the others are in WHERE: ring, send, destroy, chain
   A rank that fails prints its one line and ends the run. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "tests/shared/collective_checks.h"

static dw_status run_checks(dw_transport *t, dw_error *err)
{
    DW_TRY(run_collective_checks(t, err));
    if (t->rank == 0) printf("%d ranks agree\n", t->size);
    return DW_OK;
}

static dw_status run_abort(dw_transport *t, int rank, dw_status result, dw_error *err)
{
    char byte;
    int64_t bytes;
    if (t->rank == rank) t->ops->abort(t, result);
    return dw_receive(t, rank, &byte, 1, &bytes, err);
}

static dw_status ring(dw_transport *t, dw_error *err)
{
    int64_t offsets[65];
    unsigned char data[64] = {0};
    for (int r = 0; r <= t->size; r++) offsets[r] = r;
    return dw_all_gather(t, data, offsets, err);
}

/* Too long for MPI to take it without the receiver. */
static dw_status send_to(dw_transport *t, int rank, dw_error *err)
{
    unsigned char *data;
    dw_status status;
    DW_TRY(DW_ALLOC(&data, 1 << 20, "test data", err));
    status = dw_send(t, rank, data, 1 << 20, err);
    dw_free(data);
    return status;
}

/* Rank 0 waits for rank 1, which waits for the stopped one and has no deadline of its own; the others are too busy to speak. */
static dw_status chain(dw_transport *t, int stopped, dw_error *err)
{
    char byte;
    int64_t bytes;
    if (t->rank > 1) pause();
    if (t->rank == 1) t->deadline = 1000;
    return dw_receive(t, t->rank == 0 ? 1 : stopped, &byte, 1, &bytes, err);
}

static dw_status run_stop(dw_transport *t, int rank, const char *where, dw_error *err)
{
    if (t->rank == rank) raise(SIGSTOP);
    if (strcmp(where, "ring") == 0) return ring(t, err);
    if (strcmp(where, "send") == 0) return t->rank == rank ? DW_OK : send_to(t, rank, err);
    if (strcmp(where, "chain") == 0) return chain(t, rank, err);
    return DW_OK; /* destroy follows */
}

int main(int count, char **arguments)
{
    const char *mode = count > 1 ? arguments[1] : "";
    const int rank = count > 2 ? (int)strtol(arguments[2], NULL, 10) : 0;
    dw_error err = {0};
    dw_transport *t;
    dw_status status;
    if (!dw_transport_mpi_launched() && strcmp(mode, "checks") != 0) return DW_USAGE;
    status = dw_transport_mpi_create(&t, strcmp(mode, "stop") == 0 ? 2.0 : 60.0, &err);
    if (status == DW_OK && strcmp(mode, "checks") == 0) status = run_checks(t, &err);
    if (status == DW_OK && strcmp(mode, "abort") == 0) {
        status = run_abort(t, rank, (dw_status)strtol(arguments[3], NULL, 10), &err);
    }
    if (status == DW_OK && strcmp(mode, "stop") == 0) status = run_stop(t, rank, arguments[3], &err);
    if (status != DW_OK) {
        fprintf(stderr, "rank %d: %s\n", t == NULL ? -1 : t->rank, err.message);
        if (t != NULL) t->ops->abort(t, status);
    }
    dw_transport_destroy(t);
    return status;
}
