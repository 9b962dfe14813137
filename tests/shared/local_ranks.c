#include "tests/shared/local_ranks.h"

#include <pthread.h>

#include "base/memory.h"

typedef struct {
    pthread_t thread;
    dw_transport *transport;
    rank_body *body;
    void *context;
    dw_error outcome;
} rank;

static void *run(void *argument)
{
    rank *r = argument;
    r->outcome.status = r->body(r->transport, r->context, &r->outcome);
    return NULL;
}

dw_status run_local_ranks(int size, double deadline, rank_body *body, void *context, dw_error *errors, dw_error *err)
{
    dw_transport **transports = NULL;
    rank *ranks = NULL;
    int started = 0;
    dw_status status;
    DW_TRY_GOTO(status, DW_ALLOC(&transports, size, "ranks of a test", err), done);
    DW_TRY_GOTO(status, DW_ALLOC(&ranks, size, "ranks of a test", err), done);
    DW_TRY_GOTO(status, dw_transport_local_create(transports, size, deadline, err), done);
    for (; started < size; started++) {
        rank *r = &ranks[started];
        *r = (rank){.transport = transports[started], .body = body, .context = context};
        if (pthread_create(&r->thread, NULL, run, r) != 0) {
            status = dw_fail(err, DW_RESOURCE, "can not start the thread of rank %d", started);
            transports[started]->ops->abort(transports[started], status);
            break;
        }
    }
    for (int r = 0; r < started; r++) pthread_join(ranks[r].thread, NULL);
    for (int r = 0; r < size; r++) dw_transport_destroy(transports[r]);
    for (int r = started - 1; r >= 0; r--) {
        if (errors != NULL) errors[r] = ranks[r].outcome;
        if (ranks[r].outcome.status != DW_OK) {
            status = dw_fail(err, ranks[r].outcome.status, "rank %d: %s", r, ranks[r].outcome.message);
        }
    }
done:
    dw_free(transports);
    dw_free(ranks);
    return status;
}
