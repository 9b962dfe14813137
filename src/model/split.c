#include "model/split.h"

#include <string.h>

#include "base/memory.h"
#include "mpi/collective.h"

enum { STEP = 8 }; /* shares begin at multiples of this: the kernels take so many outputs at a time */

struct dw_split {
    dw_transport *transport;
    int64_t floats;
    float *wire;      /* [floats]: rank by rank, in it target by target, in it row by row */
    int64_t *offsets; /* [ranks + 1] bytes */
};

dw_status dw_split_create(dw_split **out, dw_transport *transport, int64_t floats, dw_error *err)
{
    dw_split *s;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&s, 1, "shared linear layers", err));
    s->transport = transport;
    s->floats = floats;
    DW_TRY_GOTO(status, DW_ALLOC(&s->wire, floats, "shared linear layers", err), failed);
    DW_TRY_GOTO(status, DW_ALLOC(&s->offsets, transport->size + 1, "shared linear layers", err), failed);
    *out = s;
    return DW_OK;
failed:
    dw_split_destroy(s);
    return status;
}

void dw_split_destroy(dw_split *s)
{
    if (s == NULL) return;
    dw_free(s->wire);
    dw_free(s->offsets);
    dw_free(s);
}

dw_share dw_split_share_of(int64_t outputs, int rank, int ranks)
{
    const int64_t steps = (outputs + STEP - 1) / STEP;
    const int64_t first = steps * rank / ranks * STEP;
    const int64_t end = rank + 1 == ranks ? outputs : steps * (rank + 1) / ranks * STEP;
    return (dw_share){first, end - first};
}

/* Copies a rank's shares between the targets and its part of the wire; returns where that part ends. */
static float *copy_shares(const dw_split *s, float *wire, int rank, const dw_split_target *targets, int count, int64_t rows,
                          int to_wire)
{
    for (int i = 0; i < count; i++) {
        const dw_share share = dw_split_share_of(targets[i].outputs, rank, s->transport->size);
        for (int64_t t = 0; t < rows; t++, wire += share.count) {
            float *y = targets[i].y + t * targets[i].stride + share.first;
            memcpy(to_wire ? wire : y, to_wire ? y : wire, (size_t)share.count * sizeof *y);
        }
    }
    return wire;
}

static void find_offsets(dw_split *s, const dw_split_target *targets, int count, int64_t rows)
{
    s->offsets[0] = 0;
    for (int r = 0; r < s->transport->size; r++) {
        int64_t floats = 0;
        for (int i = 0; i < count; i++) floats += dw_split_share_of(targets[i].outputs, r, s->transport->size).count;
        s->offsets[r + 1] = s->offsets[r] + rows * floats * (int64_t)sizeof *s->wire;
    }
}

static dw_status check_room(const dw_split *s, dw_error *err)
{
    if (s->offsets[s->transport->size] <= s->floats * (int64_t)sizeof *s->wire) return DW_OK;
    return dw_fail(err, DW_RUNTIME, "shared linear layers: %lld bytes of outputs, room for %lld",
                   (long long)s->offsets[s->transport->size], (long long)(s->floats * (int64_t)sizeof *s->wire));
}

dw_status dw_split_exchange(dw_split *s, const dw_split_target *targets, int count, int64_t rows, dw_error *err)
{
    const int own = s->transport->rank;
    find_offsets(s, targets, count, rows);
    if (count == 1 && rows == 1) return dw_all_gather(s->transport, targets[0].y, s->offsets, err); /* it is the wire */
    DW_TRY(check_room(s, err));
    copy_shares(s, s->wire + s->offsets[own] / (int64_t)sizeof *s->wire, own, targets, count, rows, 1);
    DW_TRY(dw_all_gather(s->transport, s->wire, s->offsets, err));
    for (int r = 0; r < s->transport->size; r++) {
        if (r != own) copy_shares(s, s->wire + s->offsets[r] / (int64_t)sizeof *s->wire, r, targets, count, rows, 0);
    }
    return DW_OK;
}

dw_status dw_split_collect(dw_split *s, const dw_split_target *target, int64_t rows, dw_error *err)
{
    const int own = s->transport->rank;
    find_offsets(s, target, 1, rows);
    DW_TRY(check_room(s, err));
    if (own != 0) {
        copy_shares(s, s->wire, own, target, 1, rows, 1);
        return dw_send(s->transport, 0, s->wire, s->offsets[own + 1] - s->offsets[own], err);
    }
    for (int r = 1; r < s->transport->size; r++) {
        const int64_t bytes = s->offsets[r + 1] - s->offsets[r];
        int64_t received;
        DW_TRY(dw_receive(s->transport, r, s->wire, bytes, &received, err));
        if (received != bytes) return dw_fail(err, DW_RUNTIME, "outputs of rank %d have the wrong length", r);
        copy_shares(s, s->wire, r, target, 1, rows, 0);
    }
    return DW_OK;
}
