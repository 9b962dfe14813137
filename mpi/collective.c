#include "mpi/collective.h"

#include <stddef.h>
#include <string.h>

/* Receives a message whose length is known. */
static dw_status receive_exactly(dw_transport *t, int from, void *data, int64_t bytes, dw_error *err)
{
    int64_t received = 0;
    DW_TRY(dw_receive(t, from, data, bytes, &received, err));
    if (received == bytes) return DW_OK;
    return dw_fail(err, DW_RUNTIME, "rank %d sent %lld bytes to rank %d, which expected %lld", from, (long long)received,
                   t->rank, (long long)bytes);
}

/* Exchanges messages whose lengths are known. */
static dw_status exchange_exactly(dw_transport *t, int to, const void *out, int64_t out_bytes, int from, void *in,
                                  int64_t in_bytes, dw_error *err)
{
    int64_t received = 0;
    DW_TRY(dw_exchange(t, to, out, out_bytes, from, in, in_bytes, &received, err));
    if (received == in_bytes) return DW_OK;
    return dw_fail(err, DW_RUNTIME, "rank %d sent %lld bytes to rank %d, which expected %lld", from, (long long)received,
                   t->rank, (long long)in_bytes);
}

/* The parent of a rank in the binomial tree is the rank without its lowest set bit; its children add a lower bit. */
dw_status dw_broadcast(dw_transport *t, void *data, int64_t bytes, dw_error *err)
{
    int bit = 1;
    if (bytes == 0) return DW_OK;
    while (bit < t->size && (t->rank & bit) == 0) bit <<= 1;
    if (t->rank != 0) DW_TRY(receive_exactly(t, t->rank - bit, data, bytes, err));
    for (bit >>= 1; bit > 0; bit >>= 1) {
        if (t->rank + bit < t->size) DW_TRY(dw_send(t, t->rank + bit, data, bytes, err));
    }
    return DW_OK;
}

/* Step s passes on the part that came in step s - 1: part r - s leaves rank r, part r - s - 1 arrives. */
dw_status dw_all_gather(dw_transport *t, void *data, const int64_t *offsets, dw_error *err)
{
    const int n = t->size;
    unsigned char *bytes = data;
    if (offsets[1] == offsets[n]) return dw_broadcast(t, bytes + offsets[0], offsets[1] - offsets[0], err);
    for (int step = 0; step < n - 1; step++) {
        const int leaving = (t->rank - step + n) % n;
        const int arriving = (t->rank - step - 1 + n) % n;
        DW_TRY(exchange_exactly(t, (t->rank + 1) % n, bytes + offsets[leaving], offsets[leaving + 1] - offsets[leaving],
                                (t->rank + n - 1) % n, bytes + offsets[arriving], offsets[arriving + 1] - offsets[arriving],
                                err));
    }
    return DW_OK;
}

dw_status dw_reduce(dw_transport *t, void *data, int64_t *bytes, int64_t capacity, void *scratch, dw_merge *merge,
                    void *context, dw_error *err)
{
    for (int bit = 1; bit < t->size; bit <<= 1) {
        int64_t received = 0;
        if (t->rank & bit) return dw_send(t, t->rank - bit, data, *bytes, err);
        if (t->rank + bit >= t->size) continue;
        DW_TRY(dw_receive(t, t->rank + bit, scratch, capacity, &received, err));
        DW_TRY(merge(context, data, bytes, capacity, scratch, received, err));
    }
    return DW_OK;
}

/* Part `rank` of data: received from another rank into scratch, and merged. */
static dw_status merge_part(const dw_transport *t, void *part, int64_t bytes, const void *scratch, dw_merge *merge,
                            void *context, dw_error *err)
{
    int64_t merged = bytes;
    DW_TRY(merge(context, part, &merged, bytes, scratch, bytes, err));
    if (merged == bytes) return DW_OK;
    return dw_fail(err, DW_RUNTIME, "rank %d: merging turned %lld bytes into %lld", t->rank, (long long)bytes,
                   (long long)merged);
}

/* Step s: rank r gives rank r + s its part and gets its own from rank r - s. */
dw_status dw_reduce_scatter(dw_transport *t, void *data, const int64_t *offsets, void *scratch, dw_merge *merge, void *context,
                            dw_error *err)
{
    const int n = t->size;
    unsigned char *bytes = data;
    unsigned char *mine = bytes + offsets[t->rank];
    int64_t mine_bytes = offsets[t->rank + 1] - offsets[t->rank];
    if (offsets[1] == offsets[n]) {
        int64_t length = offsets[1] - offsets[0];
        return dw_reduce(t, bytes + offsets[0], &length, length, scratch, merge, context, err);
    }
    for (int step = 1; step < n; step++) {
        const int to = (t->rank + step) % n;
        DW_TRY(exchange_exactly(t, to, bytes + offsets[to], offsets[to + 1] - offsets[to], (t->rank - step + n) % n, scratch,
                                mine_bytes, err));
        if (mine_bytes > 0) DW_TRY(merge_part(t, mine, mine_bytes, scratch, merge, context, err));
    }
    return DW_OK;
}

dw_status dw_gather(dw_transport *t, const void *data, int64_t bytes, void *out, dw_error *err)
{
    unsigned char *parts = out;
    if (bytes == 0) return DW_OK;
    if (t->rank != 0) return dw_send(t, 0, data, bytes, err);
    memcpy(parts, data, (size_t)bytes);
    for (int r = 1; r < t->size; r++) DW_TRY(receive_exactly(t, r, parts + r * bytes, bytes, err));
    return DW_OK;
}

/* What a set of ranks knows about failures. Ranks without one send only the part before the texts. */
typedef struct {
    int32_t failures; /* failing ranks of the set */
    int32_t rank;     /* the lowest of them; its status, host and message follow */
    int32_t status;
    int32_t alike; /* all failing ranks of the set say the same */
    char host[65];
    char message[512];
} verdict;

static const int64_t verdict_head = offsetof(verdict, host);

static int64_t verdict_bytes(const verdict *v)
{
    return v->failures == 0 ? verdict_head : (int64_t)sizeof *v;
}

static dw_status merge_verdicts(void *context, void *mine, int64_t *mine_bytes, int64_t capacity, const void *theirs,
                                int64_t theirs_bytes, dw_error *err)
{
    verdict *a = mine;
    const verdict *b = theirs;
    verdict lower, merged;
    (void)context;
    (void)capacity;
    (void)theirs_bytes;
    (void)err;
    if (b->failures == 0) return DW_OK;
    lower = a->failures > 0 && a->rank < b->rank ? *a : *b;
    merged = lower;
    merged.failures = a->failures + b->failures;
    if (a->failures > 0) {
        merged.alike = a->alike && b->alike && a->status == b->status && strcmp(a->message, b->message) == 0;
    }
    *a = merged;
    *mine_bytes = verdict_bytes(a);
    return DW_OK;
}

dw_status dw_agree(dw_transport *t, dw_status mine, dw_error *err)
{
    verdict own = {.status = (int32_t)mine};
    verdict scratch;
    int64_t bytes;
    if (t->size == 1) return mine;
    if (mine != DW_OK) {
        own.failures = 1;
        own.rank = t->rank;
        own.alike = 1;
        dw_host_name(own.host, sizeof own.host);
        if (err != NULL) memcpy(own.message, err->message, sizeof own.message);
        own.message[sizeof own.message - 1] = '\0';
    }
    bytes = verdict_bytes(&own);
    DW_TRY(dw_reduce(t, &own, &bytes, (int64_t)sizeof own, &scratch, merge_verdicts, NULL, err));
    DW_TRY(dw_broadcast(t, &own, verdict_head, err));
    if (own.failures == 0) return DW_OK;
    DW_TRY(dw_broadcast(t, (unsigned char *)&own + verdict_head, (int64_t)sizeof own - verdict_head, err));
    dw_fail(err, (dw_status)own.status, "%s", own.message);
    if (own.failures < t->size || !own.alike) dw_fail_context(err, "rank %d on %s", own.rank, own.host);
    if (err != NULL) err->shared = 1;
    return (dw_status)own.status;
}
