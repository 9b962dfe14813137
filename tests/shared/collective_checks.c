#include "tests/shared/collective_checks.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tests/shared/local_ranks.h"

enum { MIB = 1 << 20 };

static const int64_t message_sizes[] = {0, 1, 7, 4096, 65537, MIB, 0, 3};
enum { MESSAGE_SIZES = sizeof message_sizes / sizeof message_sizes[0] };

/* A number that depends on its arguments and looks random. */
static uint64_t mix(int64_t a, int64_t b, int64_t c)
{
    uint64_t x = (uint64_t)a * 0x9E3779B97F4A7C15u + (uint64_t)b * 0xC2B2AE3D27D4EB4Fu + (uint64_t)c * 0x165667B19E3779F9u + 1;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    x ^= x >> 32;
    return x;
}

static void fill(unsigned char *data, int64_t bytes, int64_t seed)
{
    for (int64_t i = 0; i < bytes; i++) data[i] = (unsigned char)((uint64_t)(seed * 131 + i * 7 + (i >> 8)) & 255);
}

static dw_status verify(const unsigned char *data, int64_t bytes, int64_t seed, const char *what, dw_error *err)
{
    for (int64_t i = 0; i < bytes; i++) {
        if (data[i] == (unsigned char)((uint64_t)(seed * 131 + i * 7 + (i >> 8)) & 255)) continue;
        return dw_fail(err, DW_RUNTIME, "%s: byte %lld of %lld is wrong", what, (long long)i, (long long)bytes);
    }
    return DW_OK;
}

static dw_status expect(int64_t found, int64_t expected, const char *what, dw_error *err)
{
    if (found == expected) return DW_OK;
    return dw_fail(err, DW_RUNTIME, "%s is %lld instead of %lld", what, (long long)found, (long long)expected);
}

static dw_status send_all_sizes(dw_transport *t, int to, unsigned char *data, dw_error *err)
{
    for (int i = 0; i < MESSAGE_SIZES; i++) {
        fill(data, message_sizes[i], mix(t->rank, to, i) & 255);
        DW_TRY(dw_send(t, to, data, message_sizes[i], err));
        memset(data, 0, (size_t)message_sizes[i]); /* send is done with it */
    }
    return DW_OK;
}

static dw_status receive_all_sizes(dw_transport *t, int from, unsigned char *data, dw_error *err)
{
    for (int i = 0; i < MESSAGE_SIZES; i++) {
        int64_t bytes = -1;
        DW_TRY(dw_receive(t, from, data, MIB, &bytes, err));
        DW_TRY(expect(bytes, message_sizes[i], "length of a message", err));
        DW_TRY(verify(data, bytes, mix(from, t->rank, i) & 255, "a message", err));
    }
    return DW_OK;
}

dw_status check_order_and_sizes(dw_transport *t, dw_error *err)
{
    unsigned char *data;
    dw_status status = DW_OK;
    DW_TRY(DW_ALLOC(&data, MIB, "test data", err));
    for (int a = 0; a < t->size && status == DW_OK; a++) {
        for (int b = 0; b < t->size && status == DW_OK; b++) {
            if (a == b) continue;
            if (t->rank == a) status = send_all_sizes(t, b, data, err);
            if (t->rank == b) status = receive_all_sizes(t, a, data, err);
        }
    }
    dw_free(data);
    return status;
}

static dw_status pass_long_message(dw_transport *t, unsigned char *data, int64_t bytes, int64_t room, dw_error *err)
{
    int64_t received = 0;
    if (t->rank == 0) {
        fill(data, bytes, bytes);
        return dw_send(t, 1, data, bytes, err);
    }
    DW_TRY(dw_receive(t, 0, data, room, &received, err));
    DW_TRY(expect(received, bytes, "length of a long message", err));
    return verify(data, bytes, bytes, "a long message", err);
}

dw_status check_long_messages(dw_transport *t, dw_error *err)
{
    static const int64_t sizes[] = {16 * MIB - 1, 16 * MIB, 16 * MIB + 1, 32 * MIB, 40 * MIB};
    unsigned char *data;
    dw_status status = DW_OK;
    if (t->size < 2 || t->rank > 1) return DW_OK;
    DW_TRY(DW_ALLOC(&data, 48 * MIB, "test data", err));
    for (int i = 0; i < 5 && status == DW_OK; i++) {
        status = pass_long_message(t, data, sizes[i], sizes[i], err);
        if (status == DW_OK) status = pass_long_message(t, data, sizes[i], 48 * MIB, err);
    }
    dw_free(data);
    return status;
}

static dw_status exchange_with_neighbours(dw_transport *t, unsigned char *out, unsigned char *in, int64_t size, dw_error *err)
{
    const int from = (t->rank + t->size - 1) % t->size;
    int64_t bytes = -1;
    fill(out, size + t->rank, t->rank + size);
    DW_TRY(dw_exchange(t, (t->rank + 1) % t->size, out, size + t->rank, from, in, size + from, &bytes, err));
    DW_TRY(expect(bytes, size + from, "length of an exchanged message", err));
    return verify(in, bytes, from + size, "an exchanged message", err);
}

dw_status check_exchange_ring(dw_transport *t, dw_error *err)
{
    const int64_t room = MIB + t->size;
    unsigned char *data;
    dw_status status = DW_OK;
    if (t->size == 1) return DW_OK;
    DW_TRY(DW_ALLOC(&data, 2 * room, "test data", err));
    for (int i = 0; i < MESSAGE_SIZES && status == DW_OK; i++) {
        status = exchange_with_neighbours(t, data, data + room, message_sizes[i], err);
    }
    dw_free(data);
    return status;
}

/* Rank 1 offers too little room, sees the refusal, and then takes the message. */
static dw_status pass_too_long_message(dw_transport *t, unsigned char *data, int64_t bytes, int64_t room, dw_error *err)
{
    dw_error refusal = {0};
    int64_t received = 0;
    if (t->rank == 0) {
        fill(data, bytes, 5);
        return dw_send(t, 1, data, bytes, err);
    }
    memset(data, 0xEE, (size_t)bytes);
    DW_TRY(expect(dw_receive(t, 0, data, room, &received, &refusal), DW_RUNTIME, "status of a message that is too long", err));
    if (strstr(refusal.message, "message of rank 0 is longer than the") == NULL) {
        return dw_fail(err, DW_RUNTIME, "a message that is too long is reported as '%s'", refusal.message);
    }
    for (int64_t i = room; i < bytes; i++) DW_TRY(expect(data[i], 0xEE, "a byte behind the buffer", err));
    DW_TRY(dw_receive(t, 0, data, bytes, &received, err));
    DW_TRY(expect(received, bytes, "length of a message that was refused at first", err));
    return verify(data, received, 5, "a message that was refused at first", err);
}

dw_status check_too_long_message(dw_transport *t, dw_error *err)
{
    unsigned char *data;
    dw_status status;
    if (t->size < 2 || t->rank > 1) return DW_OK;
    DW_TRY(DW_ALLOC(&data, MIB, "test data", err));
    DW_TRY_GOTO(status, pass_too_long_message(t, data, 100, 99, err), done);
    DW_TRY_GOTO(status, pass_too_long_message(t, data, 1, 0, err), done);
    DW_TRY_GOTO(status, pass_too_long_message(t, data, MIB, 100000, err), done);
done:
    dw_free(data);
    return status;
}

dw_status check_traffic_counters(dw_transport *t, dw_error *err)
{
    const dw_traffic before = t->traffic;
    unsigned char data[1000] = {0};
    int64_t bytes;
    if (t->size < 2 || t->rank > 1) return DW_OK;
    if (t->rank == 0) {
        DW_TRY(dw_send(t, 1, data, 1000, err));
        DW_TRY(dw_send(t, 1, data, 0, err));
    } else {
        DW_TRY(dw_receive(t, 0, data, 1000, &bytes, err));
        DW_TRY(dw_receive(t, 0, data, 1000, &bytes, err));
    }
    DW_TRY(dw_exchange(t, 1 - t->rank, data, 10, 1 - t->rank, data + 100, 10, &bytes, err));
    DW_TRY(expect(t->traffic.bytes_sent - before.bytes_sent, t->rank == 0 ? 1010 : 10, "the count of bytes sent", err));
    DW_TRY(expect(t->traffic.messages_sent - before.messages_sent, t->rank == 0 ? 3 : 1, "the count of messages sent", err));
    return expect(t->traffic.wait_seconds > before.wait_seconds, 1, "that time was counted", err);
}

dw_status check_broadcast(dw_transport *t, dw_error *err)
{
    unsigned char *data;
    dw_status status = DW_OK;
    DW_TRY(DW_ALLOC(&data, MIB, "test data", err));
    for (int i = 0; i < MESSAGE_SIZES && status == DW_OK; i++) {
        const int64_t bytes = message_sizes[i];
        if (t->rank == 0) {
            fill(data, bytes, i);
        } else {
            memset(data, 0, MIB);
        }
        status = dw_broadcast(t, data, bytes, err);
        if (status == DW_OK) status = verify(data, bytes, i, "broadcast data", err);
    }
    dw_free(data);
    return status;
}

/* Gathers parts as long as offsets say, from the start `offsets[0]` on. */
static dw_status gather_parts(dw_transport *t, const int64_t *offsets, dw_error *err)
{
    unsigned char *data;
    dw_status status;
    DW_TRY(DW_ALLOC(&data, offsets[t->size], "test data", err));
    memset(data, 0, (size_t)offsets[t->size]);
    fill(data + offsets[t->rank], offsets[t->rank + 1] - offsets[t->rank], t->rank);
    status = dw_all_gather(t, data, offsets, err);
    for (int r = 0; r < t->size && status == DW_OK; r++) {
        status = verify(data + offsets[r], offsets[r + 1] - offsets[r], r, "a gathered part", err);
    }
    for (int64_t i = 0; i < offsets[0] && status == DW_OK; i++) status = expect(data[i], 0, "a byte before the parts", err);
    dw_free(data);
    return status;
}

dw_status check_all_gather(dw_transport *t, dw_error *err)
{
    int64_t offsets[65] = {0};
    const int n = t->size;
    for (int64_t scale = 1; scale <= 10000; scale *= 100) { /* uneven, some empty; long ones need a receiver that is ready */
        offsets[0] = 5;
        for (int r = 0; r < n; r++) offsets[r + 1] = offsets[r] + r * 37 % 11 * scale;
        DW_TRY(gather_parts(t, offsets, err));
    }
    for (int only = 0; only < n; only++) { /* a single rank contributes */
        for (int r = 0; r <= n; r++) offsets[r] = r > only ? 3000 : 0;
        DW_TRY(gather_parts(t, offsets, err));
    }
    memset(offsets, 0, sizeof offsets);
    return gather_parts(t, offsets, err); /* no rank */
}

enum { UNIVERSE = 3000 }; /* the lists hold numbers below this */

typedef struct {
    int32_t list[UNIVERSE];
    int32_t scratch[UNIVERSE];
    int32_t merged[UNIVERSE];
} union_buffers;

static int in_list(int rank, int64_t value)
{
    return rank % 3 != 2 && mix(rank, value, 1) % 17 == 0; /* every third rank has nothing to say */
}

/* Union of two ascending lists without repetitions. context: union_buffers. */
static dw_status unite(void *context, void *mine, int64_t *mine_bytes, int64_t capacity, const void *theirs,
                       int64_t theirs_bytes, dw_error *err)
{
    int32_t *a = mine;
    const int32_t *b = theirs;
    int32_t *merged = ((union_buffers *)context)->merged;
    const int64_t na = *mine_bytes / 4, nb = theirs_bytes / 4;
    int64_t n = 0;
    for (int64_t i = 0, j = 0; i < na || j < nb; n++) {
        const int32_t next = j >= nb || (i < na && a[i] < b[j]) ? a[i] : b[j];
        if (n * 4 >= capacity) return dw_fail(err, DW_RUNTIME, "a list is longer than all numbers");
        i += i < na && a[i] == next;
        j += j < nb && b[j] == next;
        merged[n] = next;
    }
    if (n > 0) memcpy(a, merged, (size_t)(n * 4));
    *mine_bytes = n * 4;
    return DW_OK;
}

static dw_status verify_union(const union_buffers *u, int64_t count, int ranks, dw_error *err)
{
    int64_t n = 0;
    for (int64_t value = 0; value < UNIVERSE; value++) {
        int present = 0;
        for (int r = 0; r < ranks; r++) present |= in_list(r, value);
        if (!present) continue;
        if (n >= count) return dw_fail(err, DW_RUNTIME, "the union lacks %lld", (long long)value);
        DW_TRY(expect(u->list[n++], value, "a number of the union", err));
    }
    return expect(n, count, "the length of the union", err);
}

dw_status check_reduce(dw_transport *t, dw_error *err)
{
    union_buffers *u;
    int64_t bytes = 0;
    dw_status status;
    DW_TRY(DW_ALLOC(&u, 1, "test data", err));
    for (int32_t value = 0; value < UNIVERSE; value++) {
        if (in_list(t->rank, value)) u->list[bytes++] = value;
    }
    bytes *= 4;
    status = dw_reduce(t, u->list, &bytes, (int64_t)sizeof u->list, u->scratch, unite, u, err);
    if (status == DW_OK && t->rank == 0) status = verify_union(u, bytes / 4, t->size, err);
    dw_free(u);
    return status;
}

static dw_status add_numbers(void *context, void *mine, int64_t *mine_bytes, int64_t capacity, const void *theirs,
                             int64_t theirs_bytes, dw_error *err)
{
    uint64_t *a = mine;
    const uint64_t *b = theirs;
    (void)context;
    DW_TRY(expect(theirs_bytes, *mine_bytes, "the length of a merged part", err));
    DW_TRY(expect(*mine_bytes <= capacity, 1, "that the part fits", err));
    for (int64_t i = 0; i < theirs_bytes / 8; i++) a[i] += b[i];
    return DW_OK;
}

/* Number i of rank r's data is mix(r, i, 2); offsets in bytes. */
static dw_status scatter_sums(dw_transport *t, const int64_t *offsets, dw_error *err)
{
    const int64_t n = offsets[t->size] / 8;
    uint64_t *data;
    dw_status status;
    DW_TRY(DW_ALLOC(&data, 2 * n, "test data", err));
    for (int64_t i = 0; i < n; i++) data[i] = mix(t->rank, i, 2);
    status = dw_reduce_scatter(t, data, offsets, data + n, add_numbers, NULL, err);
    for (int64_t i = offsets[t->rank] / 8; i < offsets[t->rank + 1] / 8 && status == DW_OK; i++) {
        uint64_t sum = 0;
        for (int r = 0; r < t->size; r++) sum += mix(r, i, 2);
        status = expect((int64_t)data[i], (int64_t)sum, "a sum", err);
    }
    dw_free(data);
    return status;
}

dw_status check_reduce_scatter(dw_transport *t, dw_error *err)
{
    int64_t offsets[65] = {0};
    const int n = t->size;
    for (int64_t scale = 1; scale <= 2000; scale *= 2000) { /* 8 bytes to 160 KB a part, some empty */
        offsets[0] = 8;
        for (int r = 0; r < n; r++) offsets[r + 1] = offsets[r] + 8 * (r * 37 % 11 * scale);
        DW_TRY(scatter_sums(t, offsets, err));
    }
    for (int only = 0; only < n; only++) {
        for (int r = 0; r <= n; r++) offsets[r] = r > only ? 3000 * 8 : 0;
        DW_TRY(scatter_sums(t, offsets, err));
    }
    return DW_OK;
}

dw_status check_gather(dw_transport *t, dw_error *err)
{
    static const int64_t sizes[] = {0, 1, 300, 100000};
    unsigned char *data;
    dw_status status = DW_OK;
    DW_TRY(DW_ALLOC(&data, 100000 * (t->size + 1), "test data", err));
    for (int i = 0; i < 4 && status == DW_OK; i++) {
        unsigned char *out = t->rank == 0 ? data + sizes[i] : NULL;
        fill(data, sizes[i], t->rank);
        status = dw_gather(t, data, sizes[i], out, err);
        for (int r = 0; r < t->size && out != NULL && status == DW_OK; r++) {
            status = verify(out + r * sizes[i], sizes[i], r, "a gathered part", err);
        }
    }
    dw_free(data);
    return status;
}

/* Ranks that fail, by bits, with the same message or one of their own. */
static dw_status agree_on(dw_transport *t, uint64_t failing, int alike, dw_error *err)
{
    dw_error verdict = {0};
    dw_status mine = DW_OK, result;
    char host[65], expected[256] = "";
    int first = 0;
    dw_host_name(host, sizeof host);
    while (failing >> first != 0 && (failing >> first & 1) == 0) first++;
    if (failing >> t->rank & 1) mine = dw_fail(&verdict, DW_INPUT, "no model %d", alike ? 0 : t->rank);
    result = dw_agree(t, mine, &verdict);
    DW_TRY(expect(result, failing == 0 ? DW_OK : DW_INPUT, "the agreed status", err));
    if (failing == 0) return DW_OK;
    if (t->size == 1 || (alike && failing == (1ull << t->size) - 1)) {
        snprintf(expected, sizeof expected, "no model 0");
    } else {
        snprintf(expected, sizeof expected, "rank %d on %s: no model %d", first, host, alike ? 0 : first);
    }
    if (strcmp(expected, verdict.message) == 0 && verdict.status == DW_INPUT) return DW_OK;
    return dw_fail(err, DW_RUNTIME, "agreed on '%s' instead of '%s'", verdict.message, expected);
}

dw_status check_agree(dw_transport *t, dw_error *err)
{
    const uint64_t all = (1ull << t->size) - 1;
    for (int alike = 0; alike <= 1; alike++) {
        DW_TRY(agree_on(t, 0, alike, err));
        DW_TRY(agree_on(t, all, alike, err));
        DW_TRY(agree_on(t, all & ~1ull, alike, err));
        DW_TRY(agree_on(t, all & 0xAAAAAAAAAAAAAAAAu, alike, err));
        for (int r = 0; r < t->size; r++) DW_TRY(agree_on(t, 1ull << r, alike, err));
    }
    return agree_on(t, 0, 0, err);
}

dw_status run_collective_checks(dw_transport *t, dw_error *err)
{
    static const struct {
        const char *name;
        collective_check *run;
    } checks[] = {
        {"order and sizes", check_order_and_sizes},
        {"long messages", check_long_messages},
        {"exchange in a ring", check_exchange_ring},
        {"a message that is too long", check_too_long_message},
        {"traffic counters", check_traffic_counters},
        {"broadcast", check_broadcast},
        {"all_gather", check_all_gather},
        {"reduce", check_reduce},
        {"reduce_scatter", check_reduce_scatter},
        {"gather", check_gather},
        {"agree", check_agree},
    };
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        if (checks[i].run(t, err) != DW_OK) return dw_fail_context(err, "%s", checks[i].name);
    }
    return DW_OK;
}

static dw_status run_or_abort(dw_transport *t, void *context, dw_error *err)
{
    collective_check *const *check = context;
    const dw_status status = (*check)(t, err);
    if (status != DW_OK) t->ops->abort(t, status);
    return status;
}

dw_status check_on_simulated_ranks(collective_check *check, int fewest, int most, dw_error *err)
{
    const double endless = 60; /* a deadline that is not meant to pass */
    for (int size = fewest; size <= most; size++) {
        const dw_status status = run_local_ranks(size, endless, run_or_abort, &check, NULL, err);
        if (status != DW_OK) return dw_fail_context(err, "%d ranks", size);
    }
    return DW_OK;
}
