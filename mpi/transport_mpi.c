/* Ranks that are MPI processes. The only file that includes mpi.h.
   Every transfer is non-blocking underneath, so that a rank can notice that it waits in vain. A message travels in pieces of
   PIECE bytes; a piece that is shorter, perhaps empty, is the last: a length above INT_MAX needs no header, and a message
   below PIECE costs nothing more.

   A rank whose deadline passes does not know who is missing: the rank it waits for may itself be waiting. It therefore calls
   the roll: it tells all ranks whom it waits for, and ranks that wait do the same when they hear of it. After ROLL_SECONDS
   every waiting rank knows the chain that ends at a silent one. A roll call is the end of the run. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "mpi/transport.h"

enum { PIECE = 1 << 24, HOST_BYTES = 65 };
enum { TAG_DATA, TAG_ROLL };
enum { SILENT = -1, EVERYONE = -2 }; /* besides ranks, in waits_for */

static const double ROLL_SECONDS = 1.0;
static const double LISTEN_SECONDS = 0.01;    /* between two looks for a roll call */
static const double PATIENCE_SECONDS = 0.005; /* before a waiting rank sleeps between two looks */

typedef struct {
    dw_transport base;
    MPI_Comm comm;
    char (*hosts)[HOST_BYTES]; /* [size] */
    int *waits_for;            /* [size]: what the roll call told; own entry: what this rank told */
    dw_error lost;             /* status DW_OK until a roll call; then the answer to every further call */
} mpi_transport;

/* One wait: from the first idle moment to the next piece of progress. */
typedef struct {
    double since; /* 0: not idle yet */
    double listen_at;
} idleness;

/* One direction of a transfer. */
typedef struct {
    MPI_Request request; /* of the present piece; null before it */
    int bytes;           /* of the present piece */
    unsigned char *data; /* of the present piece */
    int64_t room;        /* bytes left to send, or to fill, from data on */
    int64_t moved;       /* bytes of finished pieces */
    int peer;
    int receiving;
    int finished;
} stream;

static dw_status mpi_fail(const mpi_transport *m, int code, const char *what, dw_error *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return dw_fail(err, DW_RUNTIME, "rank %d on %s: %s: %s", m->base.rank, m->hosts[m->base.rank], what, text);
}

/* The rank at the end of the chain "who waits for whom" from peer (a rank or EVERYONE); the lowest silent one if the chain
   leads to no rank; else peer: all ranks live and wait in a circle. */
static int silent_rank(const mpi_transport *m, int peer)
{
    int suspect = peer;
    for (int i = 0; i < m->base.size && suspect >= 0; i++) {
        if (m->waits_for[suspect] == SILENT) return suspect;
        suspect = m->waits_for[suspect];
    }
    for (int r = 0; r < m->base.size; r++) {
        if (m->waits_for[r] == SILENT) return r;
    }
    return peer;
}

static dw_status name_the_lost(mpi_transport *m, int peer)
{
    const int suspect = silent_rank(m, peer);
    if (suspect == EVERYONE) {
        return dw_fail(&m->lost, DW_RANK_LOST, "the ranks did not meet within %.3g seconds", m->base.deadline);
    }
    if (peer == EVERYONE) {
        return dw_fail(&m->lost, DW_RANK_LOST, "rank %d on %s did not answer for %.3g seconds (rank %d was waiting for all)",
                       suspect, m->hosts[suspect], m->base.deadline, m->base.rank);
    }
    return dw_fail(&m->lost, DW_RANK_LOST, "rank %d on %s did not answer for %.3g seconds (rank %d was waiting for rank %d)",
                   suspect, m->hosts[suspect], m->base.deadline, m->base.rank, peer);
}

/* Always fails. The messages are a few bytes, which MPI delivers without the receiver's help. */
static dw_status call_roll(mpi_transport *m, int peer, dw_error *err)
{
    const double end = dw_now() + ROLL_SECONDS;
    int missing = m->base.size - 1;
    for (int r = 0; r < m->base.size; r++) m->waits_for[r] = SILENT;
    m->waits_for[m->base.rank] = peer;
    for (int r = 0; r < m->base.size; r++) {
        MPI_Request request;
        if (r == m->base.rank) continue;
        MPI_Isend(&m->waits_for[m->base.rank], 1, MPI_INT, r, TAG_ROLL, m->comm, &request);
        MPI_Request_free(&request); /* the transport outlives it */
    }
    while (missing > 0 && dw_now() < end) {
        MPI_Status status;
        int arrived = 0;
        MPI_Iprobe(MPI_ANY_SOURCE, TAG_ROLL, m->comm, &arrived, &status);
        if (arrived) {
            MPI_Recv(&m->waits_for[status.MPI_SOURCE], 1, MPI_INT, status.MPI_SOURCE, TAG_ROLL, m->comm, MPI_STATUS_IGNORE);
            missing--;
        }
    }
    name_the_lost(m, peer);
    if (err != NULL) *err = m->lost;
    return m->lost.status;
}

/* What a rank does that waits for peer and has found nothing to do: the one place where time passes. The core has been
   given away already, by MPI (mpi_yield_when_idle); a second sched_yield here makes a reduction on more ranks than cores
   take two to three times as long. Who has waited long will wait longer (the coordinator drafts, or reads a prompt): it sleeps, and
   answers at most two hundredths of the wait late. */
static dw_status idle(mpi_transport *m, idleness *wait, int peer, dw_error *err)
{
    const double now = dw_now();
    if (wait->since <= 0) *wait = (idleness){.since = now, .listen_at = now + LISTEN_SECONDS};
    if (now - wait->since > m->base.deadline) return call_roll(m, peer, err);
    if (now > wait->listen_at) {
        int called = 0;
        MPI_Iprobe(MPI_ANY_SOURCE, TAG_ROLL, m->comm, &called, MPI_STATUS_IGNORE);
        if (called) return call_roll(m, peer, err);
        wait->listen_at = now + LISTEN_SECONDS;
    }
    if (now - wait->since > PATIENCE_SECONDS) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    return DW_OK;
}

static dw_status stream_fail(const mpi_transport *m, const stream *s, int code, dw_error *err)
{
    mpi_fail(m, code, s->receiving ? "receiving failed" : "sending failed", err);
    return dw_fail_context(err, "message %s rank %d", s->receiving ? "of" : "to", s->peer);
}

/* A piece is received only after its length is known to fit: MPI reports a message that is too long, but Open MPI's
   single-copy path writes past the end of the buffer before it does. */
static dw_status start_receiving(const mpi_transport *m, stream *s, dw_error *err)
{
    MPI_Status status;
    int arrived = 0;
    int code = MPI_Iprobe(s->peer, TAG_DATA, m->comm, &arrived, &status);
    if (code == MPI_SUCCESS && arrived) {
        MPI_Get_count(&status, MPI_BYTE, &s->bytes);
        if (s->bytes > s->room) {
            return dw_fail(err, DW_RUNTIME, "rank %d: the message of rank %d is longer than the %lld bytes expected",
                           m->base.rank, s->peer, (long long)(s->moved + s->room));
        }
        code = MPI_Irecv(s->data, s->bytes, MPI_BYTE, s->peer, TAG_DATA, m->comm, &s->request);
    }
    return code == MPI_SUCCESS ? DW_OK : stream_fail(m, s, code, err);
}

static dw_status start_sending(const mpi_transport *m, stream *s, dw_error *err)
{
    int code;
    s->bytes = s->room < PIECE ? (int)s->room : PIECE;
    code = MPI_Isend(s->data, s->bytes, MPI_BYTE, s->peer, TAG_DATA, m->comm, &s->request);
    return code == MPI_SUCCESS ? DW_OK : stream_fail(m, s, code, err);
}

/* Starts the next piece when none is on its way; raises *progress when one is done. */
static dw_status advance(const mpi_transport *m, stream *s, int *progress, dw_error *err)
{
    int done = 0;
    int code;
    if (s->finished) return DW_OK;
    if (s->request == MPI_REQUEST_NULL) DW_TRY(s->receiving ? start_receiving(m, s, err) : start_sending(m, s, err));
    if (s->request == MPI_REQUEST_NULL) return DW_OK;
    code = MPI_Test(&s->request, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) return stream_fail(m, s, code, err);
    if (!done) return DW_OK;
    *progress = 1;
    s->data += s->bytes;
    s->room -= s->bytes;
    s->moved += s->bytes;
    s->finished = s->bytes < PIECE;
    return DW_OK;
}

/* A failure leaves requests behind: it ends the run, and MPI touches their memory only when it is called. */
static dw_status transfer(mpi_transport *m, stream *out, stream *in, dw_error *err)
{
    idleness wait = {0};
    if (m->lost.status != DW_OK) {
        if (err != NULL) *err = m->lost;
        return m->lost.status;
    }
    for (;;) {
        int progress = 0;
        DW_TRY(advance(m, in, &progress, err));
        DW_TRY(advance(m, out, &progress, err));
        if (in->finished && out->finished) return DW_OK;
        if (progress) {
            wait.since = 0;
        } else {
            DW_TRY(idle(m, &wait, in->finished ? out->peer : in->peer, err));
        }
    }
}

static const stream no_stream = {.request = MPI_REQUEST_NULL, .finished = 1};

static stream outgoing(int to, const void *data, int64_t bytes)
{
    /* MPI_Isend takes a pointer to const; only incoming data is written through the shared field. */
    return (stream){.request = MPI_REQUEST_NULL, .data = (unsigned char *)data, .room = bytes, .peer = to};
}

static stream incoming(int from, void *data, int64_t capacity)
{
    return (stream){.request = MPI_REQUEST_NULL, .data = data, .room = capacity, .peer = from, .receiving = 1};
}

static dw_status mpi_send(dw_transport *t, int to, const void *data, int64_t bytes, dw_error *err)
{
    stream out = outgoing(to, data, bytes);
    stream in = no_stream;
    return transfer((mpi_transport *)t, &out, &in, err);
}

static dw_status mpi_receive(dw_transport *t, int from, void *data, int64_t capacity, int64_t *bytes, dw_error *err)
{
    stream out = no_stream;
    stream in = incoming(from, data, capacity);
    DW_TRY(transfer((mpi_transport *)t, &out, &in, err));
    *bytes = in.moved;
    return DW_OK;
}

static dw_status mpi_exchange(dw_transport *t, int to, const void *out_data, int64_t out_bytes, int from, void *in_data,
                              int64_t capacity, int64_t *in_bytes, dw_error *err)
{
    stream out = outgoing(to, out_data, out_bytes);
    stream in = incoming(from, in_data, capacity);
    DW_TRY(transfer((mpi_transport *)t, &out, &in, err));
    *in_bytes = in.moved;
    return DW_OK;
}

static void mpi_abort(dw_transport *t, dw_status status)
{
    MPI_Abort(((mpi_transport *)t)->comm, (int)status);
}

/* Waits for a collective request of MPI itself: the start and the end of the run. */
static dw_status wait_for_all(mpi_transport *m, MPI_Request *request, dw_error *err)
{
    idleness wait = {0};
    for (;;) {
        int done = 0;
        const int code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) return mpi_fail(m, code, "the ranks can not meet", err);
        if (done) return DW_OK;
        DW_TRY(idle(m, &wait, EVERYONE, err));
    }
}

static void free_memory(mpi_transport *m)
{
    dw_free(m->hosts);
    dw_free(m->waits_for);
    dw_free(m);
}

/* MPI_Finalize waits for all ranks without a deadline, so they meet before it. A rank that does not come has no caller left
   to report it to: the line is written here. */
static void mpi_destroy(dw_transport *t)
{
    mpi_transport *m = (mpi_transport *)t;
    MPI_Request request;
    dw_error err = m->lost;
    if (err.status == DW_OK) {
        MPI_Ibarrier(m->comm, &request);
        if (wait_for_all(m, &request, &err) != DW_OK) fprintf(stderr, "dewpoint: %s\n", err.message);
    }
    if (err.status != DW_OK) MPI_Abort(m->comm, (int)err.status);
    MPI_Comm_free(&m->comm);
    MPI_Finalize();
    free_memory(m);
}

static const dw_transport_ops mpi_ops = {
    .send = mpi_send,
    .receive = mpi_receive,
    .exchange = mpi_exchange,
    .abort = mpi_abort,
    .destroy = mpi_destroy,
};

/* A number from the environment, or absent when there is none. */
static long number_of(const char *name, long absent)
{
    const char *text = getenv(name);
    char *end;
    long value;
    if (text == NULL) return absent;
    value = strtol(text, &end, 10);
    return end == text ? absent : value;
}

int dw_transport_mpi_launched(void)
{
    const long processes = number_of("OMPI_COMM_WORLD_SIZE", 0);
    if (processes > 0) return processes > 1;
    /* srun --mpi=pmix. The shell of an salloc may carry PMIX_RANK too, but its step has one task. */
    if (number_of("PMIX_RANK", -1) >= 0) return number_of("SLURM_STEP_NUM_TASKS", 2) > 1;
    return number_of("PMI_RANK", -1) >= 0 && number_of("PMI_SIZE", 0) > 1; /* srun --mpi=pmi2, Hydra */
}

/* Read by MPI_Init in this process; what the user or mpirun set stays. Binding and the number of ranks a core is mpirun's
   own decision and is made before this process starts. */
static void prefer(const char *name, const char *value)
{
    setenv(name, value, 0);
}

static dw_status start_mpi(dw_error *err)
{
    int provided = MPI_THREAD_SINGLE;
    prefer("OMPI_MCA_mpi_yield_when_idle", "1");
    prefer("OMPI_MCA_pml", "ob1");
    prefer("OMPI_MCA_btl_tcp_eager_limit", "524288"); /* larger messages ask first: a round trip more (docs/benchmarks.md) */
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        return dw_fail(err, DW_RUNTIME, "MPI does not start");
    }
    if (provided < MPI_THREAD_FUNNELED) return dw_fail(err, DW_RUNTIME, "this MPI does not allow threads");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    return DW_OK;
}

/* Until they meet, the communicator is the world's and the hosts of others are not known. */
static dw_status meet(mpi_transport *m, dw_error *err)
{
    MPI_Request request;
    MPI_Comm own;
    char host[HOST_BYTES];
    dw_host_name(host, HOST_BYTES);
    for (int r = 0; r < m->base.size; r++) {
        snprintf(m->hosts[r], HOST_BYTES, "%s", r == m->base.rank ? host : "an unknown host");
    }
    MPI_Comm_idup(MPI_COMM_WORLD, &own, &request);
    DW_TRY(wait_for_all(m, &request, err));
    m->comm = own;
    MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
    MPI_Iallgather(host, HOST_BYTES, MPI_CHAR, m->hosts, HOST_BYTES, MPI_CHAR, own, &request);
    return wait_for_all(m, &request, err);
}

/* After a failure MPI is left as it is: when this process ends, its launcher ends the others. */
dw_status dw_transport_mpi_create(dw_transport **out, double deadline, dw_error *err)
{
    mpi_transport *m;
    dw_status status;
    int rank, size;
    *out = NULL;
    DW_TRY(start_mpi(err));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    DW_TRY(DW_ALLOC(&m, 1, "MPI transport", err));
    m->base = (dw_transport){.ops = &mpi_ops, .rank = rank, .size = size, .deadline = deadline};
    m->comm = MPI_COMM_WORLD;
    DW_TRY_GOTO(status, DW_ALLOC(&m->hosts, size, "host names", err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&m->waits_for, size, "MPI transport", err), failed);
    DW_TRY_GOTO(status, meet(m, err), failed);
    *out = &m->base;
    return DW_OK;
failed:
    free_memory(m);
    return status;
}
