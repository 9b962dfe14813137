#include "decode/session.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "cache/shard.h"
#include "model/forward.h"
#include "mpi/attend.h"
#include "mpi/collective.h"
#include "mpi/drafting.h"

/* The coordinator sends one command before each pass; every rank then runs the same pass. */
enum {
    DEFAULT_CHUNK_PER_RANK = 128, /* prefill rows that one rank computes in a pass */
    MAX_CHUNK = 1024,
    SPARSE_CHUNK = 16, /* sparse rows of one pass, all computed by rank 0 */
    FEW_ROWS = DW_MAX_DRAFT +
               1,   /* so many dense rows are all computed by rank 0: a message less each way for every other rank */
    INLINE_IDS = 18 /* ids that travel with the command itself */
};

typedef enum { RUN_ROWS, FILL, FINISH, COUNT_TRAFFIC, REFRESH, CHECKSUM } command_kind;

typedef struct {
    int64_t kind;
    int64_t first;  /* position of the first row */
    int64_t count;  /* rows */
    int64_t sparse; /* they attend by the plan, on rank 0 */
    int64_t plan;   /* its number */
    int64_t wanted; /* the last `wanted` rows' hidden states go to rank 0 */
    int64_t shared; /* all ranks compute the linear layers of all rows */
    int32_t ids[INLINE_IDS];
} command;

struct dw_session {
    const dw_model *model;
    dw_transport *transport;
    dw_pool *pool;
    const dw_kernels *kernels;
    dw_session_config config;
    dw_policy_plan uniform; /* config.policy as a plan */
    int64_t plan;           /* in use */
    dw_attention *attention;
    dw_drafting *drafting; /* NULL: config.can_draft is not set */
    dw_forward *forward;
    int64_t chunk;
    int64_t positions;
    int32_t *ids;     /* [chunk] of the present pass */
    int64_t *start;   /* [ranks + 1] */
    int is_split;     /* few rows are shared */
    float *logits;    /* rank 0: where the wanted rows' go, in a pass of shared rows */
    float *collected; /* rank 0: [chunk][hidden stride] hidden states whose logits are wanted */
    char *fill_row;   /* one K and one V row in cache type */
    dw_omitted omitted;
    uint64_t checksum; /* rank 0: of the last CHECKSUM */
};

/* The ranks of a host allocate at the same time, so each may have its part of what is free. */
static dw_status check_memory(const dw_session *s, const dw_shard_config *shape, dw_error *err)
{
    const int64_t ranks = s->config.ranks_on_host > 0 ? s->config.ranks_on_host : 1;
    const int64_t free_bytes = dw_memory_available();
    if (dw_shard_bytes(shape) <= free_bytes / ranks) return DW_OK;
    return dw_fail(err, DW_RESOURCE,
                   "a KV cache for %lld positions takes %lld bytes on each of %lld ranks of the host, which has %lld free; use "
                   "a smaller -c or "
                   "more hosts",
                   (long long)shape->context, (long long)dw_shard_bytes(shape), (long long)ranks, (long long)free_bytes);
}

static dw_status create_parts(dw_session *s, dw_error *err)
{
    const dw_model *m = s->model;
    const int ranks = s->transport->size;
    const dw_shard_config shape = {.layers = m->config.layers,
                                   .kv_heads = m->config.kv_heads,
                                   .head_dim = m->config.head_dim,
                                   .key_type = s->config.key_type,
                                   .value_type = s->config.value_type,
                                   .context = s->config.context,
                                   .rank = s->transport->rank,
                                   .ranks = ranks};
    const int64_t share = (s->chunk + ranks - 1) / ranks;
    const int may_share = ranks > 1 && s->config.linear != DW_LINEAR_REPLICATED;
    const int64_t max_own = (s->transport->rank == 0 || may_share) && share < FEW_ROWS ? FEW_ROWS : share;
    const int64_t max_rows = s->chunk > FEW_ROWS ? s->chunk : FEW_ROWS;
    DW_TRY(check_memory(s, &shape, err));
    DW_TRY(dw_attention_create(&s->attention, s->transport, s->pool, s->kernels, &shape, m->config.heads, max_rows,
                               s->config.plans, s->config.plan_count, err));
    if (s->config.can_draft) {
        DW_TRY(dw_drafting_create(&s->drafting, s->transport, s->pool, s->kernels, dw_attention_shard(s->attention),
                                  m->config.heads, m->config.window, err));
        dw_attention_use_drafting(s->attention, s->drafting);
    }
    DW_TRY(dw_forward_create(&s->forward, m, s->kernels, s->pool, s->attention, s->config.context, max_own, err));
    if (may_share) DW_TRY(dw_forward_use_split(s->forward, s->transport, FEW_ROWS, err));
    DW_TRY(DW_ALLOC(&s->ids, max_rows, "session", err));
    DW_TRY(DW_ALLOC(&s->start, ranks + 1, "session", err));
    DW_TRY(DW_ALLOC(&s->fill_row, dw_shard_key_row_bytes(&shape) + dw_shard_value_row_bytes(&shape), "session", err));
    if (s->transport->rank != 0) return DW_OK;
    return DW_ALLOC(&s->collected, max_rows * dw_forward_hidden_stride(s->forward), "session", err);
}

/* Collective. Shared linear layers save all but a rank's share of their time, and cost four messages to everybody more a layer (what attention
   returns, its projection, the inner activations, the output of the feed forward). A K and V row stands for such a message. */
static dw_status choose_split(dw_session *s, dw_error *err)
{
    enum { RUNS = 16, MORE_MESSAGES = 4 };
    const dw_shard_config *shape = dw_shard_shape(dw_attention_shard(s->attention));
    const int64_t bytes = dw_shard_key_row_bytes(shape) + dw_shard_value_row_bytes(shape);
    const int ranks = s->transport->size;
    double layer, start = 0;
    int64_t choice;
    s->is_split = ranks > 1 && s->config.linear == DW_LINEAR_SPLIT;
    if (ranks <= 1 || s->config.linear != DW_LINEAR_AUTO) return DW_OK;
    for (int r = 0; r <= ranks; r++) s->start[r] = bytes * r / ranks;
    layer = dw_forward_measure(s->forward);
    for (int i = 0; i <= RUNS; i++) {
        DW_TRY(dw_all_gather(s->transport, s->fill_row, s->start, err));
        if (i == 0)
            start = dw_now(); /* now all ranks have come. Only the mean counts: who is late waits for no first message */
    }
    choice = layer * (1 - 1.0 / ranks) > MORE_MESSAGES * (dw_now() - start) / RUNS;
    DW_TRY(dw_broadcast(s->transport, &choice, (int64_t)sizeof choice, err));
    s->is_split = (int)choice;
    return DW_OK;
}

dw_status dw_session_create(dw_session **out, const dw_model *model, dw_transport *transport, dw_pool *pool,
                            const dw_kernels *kernels, const dw_session_config *config, dw_error *err)
{
    dw_session *s = NULL;
    dw_status status = DW_ALLOC(&s, 1, "session", err);
    *out = NULL;
    if (status == DW_OK) {
        s->model = model;
        s->transport = transport;
        s->pool = pool;
        s->kernels = kernels;
        s->config = *config;
        if (config->plan_count == 0 && config->policy.mode != DW_DENSE) {
            s->uniform = (dw_policy_plan){.layers = &s->config.policy,
                                          .layer_count = 1,
                                          .pillar = 1,
                                          .reuse = 1,
                                          .screen_from = config->has_screen ? 0 : INT64_MAX};
            s->config.plans = &s->uniform;
            s->config.plan_count = 1;
        }
        s->chunk = config->chunk > 0 ? config->chunk : (int64_t)DEFAULT_CHUNK_PER_RANK * transport->size;
        if (s->chunk > MAX_CHUNK) s->chunk = MAX_CHUNK;
        if (s->chunk > config->context) s->chunk = config->context;
        if (s->chunk < 1) s->chunk = 1;
        status = create_parts(s, err);
    }
    status = dw_agree(transport, status, err);
    if (status == DW_OK) status = choose_split(s, err);
    if (status != DW_OK) {
        dw_session_destroy(s);
        return status;
    }
    *out = s;
    return DW_OK;
}

void dw_session_destroy(dw_session *s)
{
    if (s == NULL) return;
    dw_forward_destroy(s->forward);
    dw_attention_destroy(s->attention);
    dw_drafting_destroy(s->drafting);
    dw_free(s->ids);
    dw_free(s->start);
    dw_free(s->collected);
    dw_free(s->fill_row);
    dw_free(s);
}

/* Deals the rows of a pass: sparse rows and few dense ones to rank 0, many in equal consecutive parts. */
static dw_rows deal_rows(const dw_session *s, const command *c)
{
    const int ranks = s->transport->size;
    for (int r = 0; r <= ranks; r++) {
        s->start[r] = c->sparse || c->count <= FEW_ROWS ? (r == 0 ? 0 : c->count) : (c->count * r + ranks - 1) / ranks;
    }
    return (dw_rows){c->first, c->count, s->start, (int)c->shared};
}

/* Collective: rank 0 gets the hidden states of the last `wanted` rows into s->collected, in order. */
static dw_status collect_hidden(dw_session *s, const dw_rows *rows, int64_t wanted, dw_error *err)
{
    const int64_t stride = dw_forward_hidden_stride(s->forward);
    const int64_t first = rows->count - wanted;
    const int rank = s->transport->rank;
    for (int r = 0; r < s->transport->size; r++) {
        const int64_t from = rows->start[r] > first ? rows->start[r] : first;
        const int64_t bytes = (rows->start[r + 1] - from) * stride * (int64_t)sizeof(float);
        const float *own = dw_forward_hidden(s->forward) + (from - rows->start[r]) * stride;
        int64_t received;
        if (bytes <= 0) continue;
        if (r == 0) {
            if (rank == 0) memcpy(s->collected + (from - first) * stride, own, (size_t)bytes);
        } else if (rank == r) {
            DW_TRY(dw_send(s->transport, 0, own, bytes, err));
        } else if (rank == 0) {
            DW_TRY(dw_receive(s->transport, r, s->collected + (from - first) * stride, bytes, &received, err));
        }
    }
    return DW_OK;
}

static dw_status run_rows(dw_session *s, const command *c, dw_error *err)
{
    const dw_rows rows = deal_rows(s, c);
    if (c->count <= INLINE_IDS) {
        memcpy(s->ids, c->ids, (size_t)c->count * sizeof *s->ids);
    } else {
        DW_TRY(dw_broadcast(s->transport, s->ids, c->count * (int64_t)sizeof *s->ids, err));
    }
    dw_attention_use_plan(s->attention, c->plan);
    DW_TRY(dw_forward_rows(s->forward, &rows, s->transport->rank, s->ids, c->sparse ? DW_ATTEND_SPARSE : DW_ATTEND_DENSE,
                           c->wanted > 0, &s->omitted, err));
    s->positions = c->first + c->count;
    if (!c->shared) return collect_hidden(s, &rows, c->wanted, err);
    return c->wanted > 0 ? dw_forward_shared_logits(s->forward, c->count, c->wanted, s->logits, err) : DW_OK;
}

/* The generator of dw_session_fill: number i of a stream is splitmix64(seed + i), its top 24 bits mapped to [-amplitude,
   amplitude). */
static float fill_number(uint64_t seed, uint64_t i, float amplitude)
{
    const uint64_t z = dw_mix(seed + (i + 1) * DW_GOLDEN);
    return (float)((int32_t)(z >> 40) - (1 << 23)) * (amplitude / 8388608.0f);
}

/* Every rank fills the blocks that it owns; no communication. Keys lie in [-2, 2), values within their bound. */
static void fill(dw_session *s, int64_t first, int64_t count)
{
    dw_shard *shard = dw_attention_shard(s->attention);
    const dw_shard_config *shape = dw_shard_shape(shard);
    const int64_t floats = shape->kv_heads * shape->head_dim;
    char *value_row = s->fill_row + dw_shard_key_row_bytes(shape);
    for (int64_t layer = 0; layer < shape->layers; layer++) {
        for (dw_pos p = first; p < first + count; p++) {
            if (p / DW_BLOCK % shape->ranks != shape->rank) continue;
            for (int64_t i = 0; i < floats; i++) {
                const uint64_t n = (uint64_t)((p * shape->layers + layer) * floats + i);
                const float key = fill_number(1, n, 2.0f);
                const float value = fill_number(2, n, 0x1p-20f);
                dw_cache_round(s->fill_row + i * dw_types[shape->key_type].bytes, &key, 1, shape->key_type);
                dw_cache_round(value_row + i * dw_types[shape->value_type].bytes, &value, 1, shape->value_type);
            }
            for (int64_t g = 0; g < shape->kv_heads; g++) dw_shard_put(shard, layer, g, p, s->fill_row, value_row);
        }
    }
    s->positions = first + count;
}

static dw_status gather_traffic(dw_session *s, dw_traffic *sum, dw_error *err)
{
    dw_traffic all[256];
    const dw_traffic mine = s->transport->traffic;
    dw_traffic *each = all;
    dw_status status;
    if (s->transport->size > 256) DW_TRY(DW_ALLOC(&each, s->transport->size, "traffic", err));
    status = dw_gather(s->transport, &mine, (int64_t)sizeof mine, each, err);
    if (status == DW_OK && s->transport->rank == 0) {
        *sum = (dw_traffic){0};
        for (int r = 0; r < s->transport->size; r++) {
            sum->bytes_sent += each[r].bytes_sent;
            sum->messages_sent += each[r].messages_sent;
            sum->wait_seconds += each[r].wait_seconds;
        }
    }
    if (each != all) dw_free(each);
    return status;
}

static dw_status gather_memory(dw_session *s, dw_rank_memory *memory, dw_error *err)
{
    const dw_shard_config *shape = dw_shard_shape(dw_attention_shard(s->attention));
    dw_rank_memory mine = {.rank = s->transport->rank,
                           .threads = dw_pool_threads(s->pool),
                           .weights = dw_model_weight_bytes(s->model),
                           .kv = dw_shard_bytes(shape),
                           .screen = dw_attention_screen_bytes(s->attention),
                           .buffers = dw_attention_buffer_bytes(s->attention) + dw_forward_buffer_bytes(s->forward) +
                                      (s->drafting == NULL ? 0 : dw_drafting_bytes(s->drafting)),
                           .peak_rss = dw_memory_peak()};
    snprintf(mine.kernels, sizeof mine.kernels, "%s", s->kernels->name);
    dw_host_name(mine.host, (int64_t)sizeof mine.host);
    return dw_gather(s->transport, &mine, (int64_t)sizeof mine, memory, err);
}

/* Sum over all ranks, on rank 0. */
static dw_status sum_checksums(dw_session *s, dw_pos positions, dw_error *err)
{
    const uint64_t mine = dw_shard_checksum(dw_attention_shard(s->attention), positions);
    uint64_t *all;
    dw_status status;
    DW_TRY(DW_ALLOC(&all, s->transport->size, "checksums", err));
    status = dw_gather(s->transport, &mine, (int64_t)sizeof mine, all, err);
    s->checksum = 0;
    for (int r = 0; s->transport->rank == 0 && r < s->transport->size; r++) s->checksum += all[r];
    dw_free(all);
    return status;
}

/* What every rank does on a command. */
static dw_status obey(dw_session *s, const command *c, dw_traffic *traffic, dw_rank_memory *memory, dw_error *err)
{
    switch ((command_kind)c->kind) {
    case RUN_ROWS: return run_rows(s, c, err);
    case FILL: fill(s, c->first, c->count); return DW_OK;
    case REFRESH: return dw_drafting_refresh(s->drafting, c->first, c->first + c->count, err);
    case CHECKSUM: return sum_checksums(s, c->count, err);
    case COUNT_TRAFFIC: return gather_traffic(s, traffic, err);
    case FINISH: DW_TRY(gather_traffic(s, traffic, err)); return gather_memory(s, memory, err);
    }
    return dw_fail(err, DW_RUNTIME, "unknown command %lld from the coordinator", (long long)c->kind);
}

dw_status dw_session_serve(dw_session *s, dw_error *err)
{
    command c;
    do {
        DW_TRY(dw_broadcast(s->transport, &c, (int64_t)sizeof c, err));
        DW_TRY(obey(s, &c, NULL, NULL, err));
    } while (c.kind != FINISH);
    return DW_OK;
}

/* Coordinator: sends a command and takes part in it. */
static dw_status order(dw_session *s, command *c, dw_traffic *traffic, dw_rank_memory *memory, dw_error *err)
{
    DW_TRY(dw_broadcast(s->transport, c, (int64_t)sizeof *c, err));
    return obey(s, c, traffic, memory, err);
}

static dw_status check_append(const dw_session *s, const int32_t *ids, int64_t count, dw_error *err)
{
    if (count > s->config.context - s->positions) {
        return dw_fail(err, DW_USAGE, "the context is full: %lld of %lld positions are taken and %lld more are asked for",
                       (long long)s->positions, (long long)s->config.context, (long long)count);
    }
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] >= 0 && ids[i] < s->model->vocabulary) continue;
        return dw_fail(err, DW_USAGE, "token id %d (number %lld) is outside the vocabulary of %lld", ids[i], (long long)i,
                       (long long)s->model->vocabulary);
    }
    return DW_OK;
}

dw_status dw_session_append(dw_session *s, const int32_t *ids, int64_t count, int64_t sparse, float *logits, int64_t wanted,
                            dw_error *err)
{
    const int64_t dense = count - sparse;
    DW_TRY(check_append(s, ids, count, err));
    for (int64_t done = 0; done < count;) {
        const int is_sparse = done >= dense;
        const int64_t left = is_sparse ? count - done : dense - done;
        const int64_t limit = is_sparse ? SPARSE_CHUNK : s->chunk;
        command c = {.kind = RUN_ROWS,
                     .first = s->positions,
                     .count = left < limit ? left : limit,
                     .sparse = is_sparse,
                     .plan = s->plan};
        const int64_t end = done + c.count;
        c.wanted = end - (count - wanted) < c.count ? end - (count - wanted) : c.count;
        if (c.wanted < 0) c.wanted = 0;
        memcpy(s->ids, ids + done, (size_t)c.count * sizeof *ids);
        c.shared = s->is_split && c.count <= FEW_ROWS;
        if (c.count <= INLINE_IDS) memcpy(c.ids, s->ids, (size_t)c.count * sizeof *ids);
        s->logits = c.wanted > 0 ? logits + (end - c.wanted - (count - wanted)) * s->model->vocabulary : NULL;
        DW_TRY(order(s, &c, NULL, NULL, err));
        if (c.wanted > 0 && !c.shared) DW_TRY(dw_forward_logits(s->forward, s->collected, c.wanted, s->logits, err));
        done = end;
    }
    return DW_OK;
}

dw_status dw_session_draft(dw_session *s, int32_t id, int64_t ahead, float *logits, dw_error *err)
{
    const dw_rows rows = {s->positions + ahead, 1, s->start, 0};
    if (rows.first >= s->config.context) {
        return dw_fail(err, DW_USAGE, "the context is full: position %lld can not be drafted", (long long)rows.first);
    }
    for (int r = 0; r <= s->transport->size; r++) s->start[r] = r > 0;
    DW_TRY(dw_forward_rows(s->forward, &rows, 0, &id, DW_ATTEND_DRAFT, 1, NULL, err));
    return dw_forward_logits(s->forward, dw_forward_hidden(s->forward), 1, logits, err);
}

dw_status dw_session_refresh(dw_session *s, int64_t first, int *done, dw_error *err)
{
    command c = {.kind = REFRESH, .first = first, .count = s->positions - first};
    *done = dw_drafting_can_refresh(s->drafting, first, s->positions);
    return !*done ? DW_OK : order(s, &c, NULL, NULL, err);
}

dw_status dw_session_checksum(dw_session *s, uint64_t *sum, dw_error *err)
{
    command c = {.kind = CHECKSUM, .count = s->positions};
    DW_TRY(order(s, &c, NULL, NULL, err));
    *sum = s->checksum;
    return DW_OK;
}

dw_status dw_session_fill(dw_session *s, int64_t positions, dw_error *err)
{
    command c = {.kind = FILL, .first = s->positions, .count = positions - s->positions};
    if (positions > s->config.context) {
        return dw_fail(err, DW_USAGE, "can not fill %lld positions, the context holds %lld", (long long)positions,
                       (long long)s->config.context);
    }
    if (c.count <= 0) return DW_OK;
    return order(s, &c, NULL, NULL, err);
}

dw_status dw_session_truncate(dw_session *s, int64_t positions, dw_error *err)
{
    if (positions < 0 || positions > s->positions) {
        return dw_fail(err, DW_USAGE, "can not truncate %lld positions to %lld", (long long)s->positions, (long long)positions);
    }
    s->positions = positions; /* later rows are overwritten before any row can see them */
    return DW_OK;
}

dw_status dw_session_finish(dw_session *s, dw_rank_memory *memory, dw_traffic *traffic, dw_error *err)
{
    command c = {.kind = FINISH};
    dw_traffic unused;
    dw_rank_memory *all = memory;
    dw_status status;
    if (all == NULL) DW_TRY(DW_ALLOC(&all, s->transport->size, "memory report", err));
    status = order(s, &c, traffic == NULL ? &unused : traffic, all, err);
    if (memory == NULL) dw_free(all);
    return status;
}

dw_status dw_session_traffic(dw_session *s, dw_traffic *traffic, dw_error *err)
{
    command c = {.kind = COUNT_TRAFFIC};
    return order(s, &c, traffic, NULL, err);
}

int dw_session_is_split(const dw_session *s)
{
    return s->is_split;
}

int64_t dw_session_positions(const dw_session *s)
{
    return s->positions;
}

void dw_session_times(const dw_session *s, dw_times *times)
{
    dw_attend_times attend;
    dw_attention_times(s->attention, &attend);
    *times = (dw_times){.linear = dw_forward_linear_seconds(s->forward),
                        .score = attend.score,
                        .reduce = attend.reduce,
                        .attend = attend.attend,
                        .wait = attend.wait};
}

void dw_session_collect_heads(dw_session *s, dw_omitted *by_head)
{
    s->omitted = (dw_omitted){.by_head = by_head, .heads = s->model->config.heads};
}

void dw_session_collect_curves(dw_session *s, struct dw_budget_curve *curves)
{
    s->omitted.curves = curves;
}

void dw_session_use_plan(dw_session *s, int64_t plan)
{
    s->plan = plan;
}

void dw_session_omitted(const dw_session *s, dw_omitted *omitted)
{
    *omitted = s->omitted;
}
