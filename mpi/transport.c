#include "mpi/transport.h"

#include <string.h>
#include <unistd.h>

#include "base/clock.h"

void dw_host_name(char *name, int64_t capacity)
{
    if (capacity < 1) return;
    if (gethostname(name, (size_t)capacity) != 0) name[0] = '\0';
    name[capacity - 1] = '\0'; /* POSIX leaves a cut name open-ended */
    if (name[0] == '\0' && capacity > 1) memcpy(name, "?", 2);
}

static dw_status count(dw_transport *t, dw_status status, int64_t bytes, int messages, double since)
{
    t->traffic.wait_seconds += dw_now() - since;
    if (status != DW_OK) return status;
    t->traffic.bytes_sent += bytes;
    t->traffic.messages_sent += messages;
    return DW_OK;
}

dw_status dw_send(dw_transport *t, int to, const void *data, int64_t bytes, dw_error *err)
{
    const double since = dw_now();
    return count(t, t->ops->send(t, to, data, bytes, err), bytes, 1, since);
}

dw_status dw_receive(dw_transport *t, int from, void *data, int64_t capacity, int64_t *bytes, dw_error *err)
{
    const double since = dw_now();
    return count(t, t->ops->receive(t, from, data, capacity, bytes, err), 0, 0, since);
}

dw_status dw_exchange(dw_transport *t, int to, const void *out, int64_t out_bytes, int from, void *in, int64_t capacity,
                      int64_t *in_bytes, dw_error *err)
{
    const double since = dw_now();
    return count(t, t->ops->exchange(t, to, out, out_bytes, from, in, capacity, in_bytes, err), out_bytes, 1, since);
}

void dw_transport_destroy(dw_transport *t)
{
    if (t != NULL) t->ops->destroy(t);
}
