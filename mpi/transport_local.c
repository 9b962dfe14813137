/* Ranks that are threads of one process: one mailbox for each ordered pair of ranks, a queue of copied messages.
   Sending never waits, so an exchange is a send and a receive; how much may lie in the queues is bounded by the protocol
   above, whose ranks answer each other. A mailbox keeps one small emptied message for the next, so that the steady state
   of decoding allocates nothing. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "mpi/transport.h"

enum { NOBODY = -1, KEPT_BYTES = 1 << 16 };

typedef struct message {
    struct message *next;
    int64_t bytes;
    int64_t capacity;
    unsigned char data[];
} message;

typedef struct {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t arrived;
    message *first;
    message *last;
    message *spare;
} mailbox;

/* What the ranks share; freed by the last one. */
typedef struct {
    int size;
    atomic_int users;
    atomic_int ended_by;   /* the first rank that called abort, or NOBODY */
    atomic_int *waits_for; /* [size]: the rank that each is waiting for, or NOBODY */
    mailbox *boxes;        /* [to][from] */
    char host[65];
} world;

typedef struct {
    dw_transport base;
    world *world;
} local_transport;

static mailbox *box_of(const world *w, int to, int from)
{
    return &w->boxes[(int64_t)to * w->size + from];
}

static void destroy_world(world *w)
{
    for (int64_t i = 0; w->boxes != NULL && i < (int64_t)w->size * w->size; i++) {
        mailbox *box = &w->boxes[i];
        while (box->first != NULL) {
            message *m = box->first;
            box->first = m->next;
            dw_free(m);
        }
        dw_free(box->spare);
        pthread_mutex_destroy(&box->lock);
        pthread_cond_destroy(&box->arrived);
    }
    dw_free(w->boxes);
    dw_free(w->waits_for);
    dw_free(w);
}

static dw_status create_world(world **out, int size, dw_error *err)
{
    pthread_condattr_t monotonic;
    world *w;
    DW_TRY(DW_ALLOC(&w, 1, "simulated ranks", err));
    w->size = size;
    atomic_init(&w->users, size);
    atomic_init(&w->ended_by, NOBODY);
    dw_host_name(w->host, sizeof w->host);
    if (DW_ALLOC(&w->waits_for, size, "simulated ranks", err) != DW_OK ||
        DW_ALLOC(&w->boxes, (int64_t)size * size, "mailboxes of simulated ranks", err) != DW_OK) {
        destroy_world(w);
        return DW_RESOURCE;
    }
    for (int r = 0; r < size; r++) atomic_init(&w->waits_for[r], NOBODY);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    for (int64_t i = 0; i < (int64_t)size * size; i++) {
        pthread_mutex_init(&w->boxes[i].lock, NULL);
        pthread_cond_init(&w->boxes[i].arrived, &monotonic);
    }
    pthread_condattr_destroy(&monotonic);
    *out = w;
    return DW_OK;
}

static dw_status check_alive(const world *w, dw_error *err)
{
    const int ended_by = atomic_load(&w->ended_by);
    if (ended_by == NOBODY) return DW_OK;
    return dw_fail(err, DW_RANK_LOST, "rank %d ended the run", ended_by);
}

/* The rank at the end of the chain "who waits for whom" that starts at from; from itself when the chain is a circle. */
static int silent_rank(const world *w, int from)
{
    int suspect = from;
    for (int i = 0; i < w->size; i++) {
        const int next = atomic_load(&w->waits_for[suspect]);
        if (next == NOBODY) return suspect;
        suspect = next;
    }
    return from;
}

static dw_status lost(const dw_transport *t, const world *w, int from, dw_error *err)
{
    return dw_fail(err, DW_RANK_LOST, "rank %d on %s did not answer for %.3g seconds (rank %d was waiting for rank %d)",
                   silent_rank(w, from), w->host, t->deadline, t->rank, from);
}

static struct timespec moment(double seconds)
{
    const double whole = seconds < 1e12 ? seconds : 1e12; /* an endless deadline still fits time_t */
    struct timespec t = {.tv_sec = (time_t)whole};
    t.tv_nsec = (long)((whole - (double)t.tv_sec) * 1e9);
    return t;
}

/* Waits, box locked, until the box holds a message. */
static dw_status wait_for_message(const dw_transport *t, world *w, mailbox *box, int from, dw_error *err)
{
    const struct timespec until = moment(dw_now() + t->deadline);
    dw_status status = DW_OK;
    int code = 0;
    atomic_store(&w->waits_for[t->rank], from);
    while (status == DW_OK && box->first == NULL) {
        status = check_alive(w, err);
        if (status == DW_OK && code == ETIMEDOUT) status = lost(t, w, from, err);
        if (status == DW_OK) code = pthread_cond_timedwait(&box->arrived, &box->lock, &until);
    }
    if (status == DW_OK) atomic_store(&w->waits_for[t->rank], NOBODY); /* else others may still follow the chain */
    return status;
}

/* An emptied message of the box that is large enough, or a fresh one; NULL when there is no memory for it. */
static message *take_message(mailbox *box, int64_t bytes, dw_error *err)
{
    const int64_t header = (int64_t)sizeof(message);
    message *m = NULL;
    pthread_mutex_lock(&box->lock);
    if (box->spare != NULL && box->spare->capacity >= bytes) {
        m = box->spare;
        box->spare = NULL;
    }
    pthread_mutex_unlock(&box->lock);
    if (m == NULL) {
        const int64_t size = bytes > INT64_MAX - header ? INT64_MAX : header + bytes; /* the former is refused below */
        if (dw_alloc_bytes((void **)&m, size, 1, "a message between simulated ranks", err) != DW_OK) return NULL;
        m->capacity = bytes;
    }
    m->next = NULL;
    m->bytes = bytes;
    return m;
}

/* Keeps a message that has been read for the next send; a larger one replaces a smaller. */
static void keep_message(mailbox *box, message *m)
{
    message *surplus = m;
    pthread_mutex_lock(&box->lock);
    if (m->capacity <= KEPT_BYTES && (box->spare == NULL || box->spare->capacity < m->capacity)) {
        surplus = box->spare;
        box->spare = m;
    }
    pthread_mutex_unlock(&box->lock);
    dw_free(surplus);
}

static dw_status local_send(dw_transport *t, int to, const void *data, int64_t bytes, dw_error *err)
{
    world *w = ((local_transport *)t)->world;
    mailbox *box = box_of(w, to, t->rank);
    message *m;
    DW_TRY(check_alive(w, err));
    m = take_message(box, bytes, err);
    if (m == NULL) return DW_RESOURCE;
    if (bytes > 0) memcpy(m->data, data, (size_t)bytes);
    pthread_mutex_lock(&box->lock);
    if (box->first == NULL) {
        box->first = m;
    } else {
        box->last->next = m;
    }
    box->last = m;
    pthread_cond_signal(&box->arrived);
    pthread_mutex_unlock(&box->lock);
    return DW_OK;
}

static dw_status local_receive(dw_transport *t, int from, void *data, int64_t capacity, int64_t *bytes, dw_error *err)
{
    world *w = ((local_transport *)t)->world;
    mailbox *box = box_of(w, t->rank, from);
    message *m = NULL;
    dw_status status;
    pthread_mutex_lock(&box->lock);
    status = wait_for_message(t, w, box, from, err);
    if (status == DW_OK && box->first->bytes > capacity) {
        status = dw_fail(err, DW_RUNTIME, "rank %d: the message of rank %d is longer than the %lld bytes expected", t->rank,
                         from, (long long)capacity);
    } else if (status == DW_OK) {
        m = box->first;
        box->first = m->next;
    }
    pthread_mutex_unlock(&box->lock);
    if (m == NULL) return status;
    if (m->bytes > 0) memcpy(data, m->data, (size_t)m->bytes);
    *bytes = m->bytes;
    keep_message(box, m);
    return DW_OK;
}

static dw_status local_exchange(dw_transport *t, int to, const void *out, int64_t out_bytes, int from, void *in,
                                int64_t capacity, int64_t *in_bytes, dw_error *err)
{
    DW_TRY(local_send(t, to, out, out_bytes, err));
    return local_receive(t, from, in, capacity, in_bytes, err);
}

/* The status is for processes; threads learn that the run is over from their next wait. */
static void local_abort(dw_transport *t, dw_status status)
{
    world *w = ((local_transport *)t)->world;
    int nobody = NOBODY;
    (void)status;
    atomic_compare_exchange_strong(&w->ended_by, &nobody, t->rank);
    for (int64_t i = 0; i < (int64_t)w->size * w->size; i++) {
        pthread_mutex_lock(&w->boxes[i].lock); /* a waiter is now before its check or inside its wait */
        pthread_cond_broadcast(&w->boxes[i].arrived);
        pthread_mutex_unlock(&w->boxes[i].lock);
    }
}

static void local_destroy(dw_transport *t)
{
    world *w = ((local_transport *)t)->world;
    dw_free(t);
    if (atomic_fetch_sub(&w->users, 1) == 1) destroy_world(w);
}

static const dw_transport_ops local_ops = {
    .send = local_send,
    .receive = local_receive,
    .exchange = local_exchange,
    .abort = local_abort,
    .destroy = local_destroy,
};

dw_status dw_transport_local_create(dw_transport **out, int size, double deadline, dw_error *err)
{
    world *w;
    for (int r = 0; r < size; r++) out[r] = NULL;
    DW_TRY(create_world(&w, size, err));
    for (int r = 0; r < size; r++) {
        local_transport *t;
        if (DW_ALLOC(&t, 1, "simulated ranks", err) != DW_OK) {
            for (int q = 0; q < r; q++) {
                dw_free(out[q]);
                out[q] = NULL;
            }
            destroy_world(w);
            return DW_RESOURCE;
        }
        t->base = (dw_transport){.ops = &local_ops, .rank = r, .size = size, .deadline = deadline};
        t->world = w;
        out[r] = &t->base;
    }
    return DW_OK;
}
