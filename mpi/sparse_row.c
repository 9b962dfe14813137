#include "mpi/sparse_row.h"

#include <string.h>

#include "attention/discovery.h"
#include "attention/mass.h"
#include "attention/partial.h"
#include "attention/sparse.h"
#include "attention/tail.h"
#include "base/clock.h"
#include "base/integers.h"
#include "base/memory.h"
#include "mpi/collective.h"
#include "mpi/partials.h"

struct dw_sparse_row {
    dw_sparse_row_parts with;
    const dw_policy_plan *plan;
    int64_t heads;
    int64_t kv_heads;
    int64_t head_dim;
    int64_t partial_bytes; /* of [heads] partial sums */
    int64_t bytes;         /* of all buffers */
    void *theirs;          /* a message of another rank */
    int64_t *partials;     /* [heads][words] */

    int has_condensate; /* some layer does; with it: */
    dw_proposal_shape shape;
    dw_discovery *discovery;
    dw_sparse *sparse;
    void *proposal;       /* [shape.capacity] */
    dw_interval *omitted; /* [heads] */
    dw_tail *tail;        /* NULL: no layer has one; with [heads]: */
    dw_tail_cut *cuts;

    dw_mass *mass; /* NULL: no layer is of mode mass; with [heads]: */
    dw_histogram *histograms;
    int64_t *bins;

    /* The row at work. */
    const dw_attend_layer *layer;
    const dw_policy *policy;
    dw_pos position;
    dw_visible visible;
    const float *q;
    dw_attend_times *times;
    double clock;
};

/* The largest budgets of all layers that are condensates; has_tail: one of them has a tail. */
static dw_policy largest_budgets(const dw_policy_plan *plan)
{
    dw_policy largest = {.mode = DW_CONDENSATE};
    for (int64_t l = 0; l < plan->layer_count; l++) {
        const dw_policy *policy = &plan->layers[l];
        if (policy->mode != DW_CONDENSATE) continue;
        largest.anchor = dw_larger(largest.anchor, policy->anchor);
        largest.window = dw_larger(largest.window, policy->window);
        largest.keys = dw_larger(largest.keys, policy->keys);
        largest.has_tail |= policy->has_tail;
    }
    return largest;
}

static int has_mode(const dw_policy_plan *plan, dw_attention_mode mode)
{
    for (int64_t l = 0; l < plan->layer_count; l++) {
        if (plan->layers[l].mode == mode) return 1;
    }
    return 0;
}

static dw_status create_condensate(dw_sparse_row *r, const dw_shard_config *config, dw_error *err)
{
    const dw_policy largest = largest_budgets(r->plan);
    r->has_condensate = 1;
    DW_TRY(dw_proposal_shape_create(&r->shape, config, r->heads, &largest, err));
    DW_TRY(dw_discovery_create(&r->discovery, r->with.kernels, r->with.pool, config, &largest, &r->shape, err));
    DW_TRY(dw_sparse_create(&r->sparse, r->with.kernels, r->with.pool, config, &r->shape, err));
    DW_TRY(dw_alloc_bytes(&r->proposal, r->shape.capacity, 1, "proposal buffer", err));
    DW_TRY(DW_ALLOC(&r->omitted, r->heads, "proposal buffer", err));
    r->bytes += 2 * r->shape.capacity;
    if (!largest.has_tail) return DW_OK;
    DW_TRY(DW_ALLOC(&r->cuts, r->heads, "proposal buffer", err));
    DW_TRY(dw_tail_create(&r->tail, r->with.kernels, r->with.pool, config, r->heads, err));
    r->bytes += dw_tail_bytes(r->tail);
    return DW_OK;
}

static dw_status create_mass(dw_sparse_row *r, const dw_shard_config *config, dw_error *err)
{
    DW_TRY(DW_ALLOC(&r->histograms, r->heads, "histograms", err));
    DW_TRY(DW_ALLOC(&r->bins, r->heads, "histograms", err));
    DW_TRY(dw_mass_create(&r->mass, r->with.kernels, r->with.pool, config, r->heads, err));
    r->bytes += dw_mass_bytes(r->mass) + r->heads * (int64_t)sizeof *r->histograms;
    return DW_OK;
}

static dw_status create_parts(dw_sparse_row *r, dw_error *err)
{
    const dw_shard_config *config = dw_shard_shape(r->with.shard);
    int64_t theirs = r->partial_bytes;
    if (has_mode(r->plan, DW_CONDENSATE)) DW_TRY(create_condensate(r, config, err));
    if (has_mode(r->plan, DW_MASS)) DW_TRY(create_mass(r, config, err));
    if (r->has_condensate) theirs = dw_larger(theirs, r->shape.capacity);
    if (r->mass != NULL) theirs = dw_larger(theirs, r->heads * (int64_t)sizeof *r->histograms);
    DW_TRY(dw_alloc_bytes(&r->theirs, theirs, 1, "partial sums", err));
    DW_TRY(dw_alloc_bytes((void **)&r->partials, r->partial_bytes, 1, "partial sums", err));
    r->bytes += theirs + r->partial_bytes;
    return DW_OK;
}

dw_status dw_sparse_row_create(dw_sparse_row **out, const dw_sparse_row_parts *parts, int64_t heads, const dw_policy_plan *plan,
                               dw_error *err)
{
    const dw_shard_config *config = dw_shard_shape(parts->shard);
    dw_sparse_row *r;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&r, 1, "attention", err));
    r->with = *parts;
    r->plan = plan;
    r->heads = heads;
    r->kv_heads = config->kv_heads;
    r->head_dim = config->head_dim;
    r->partial_bytes = heads * dw_partial_words(config->head_dim + 1) * (int64_t)sizeof(int64_t);
    status = create_parts(r, err);
    if (status != DW_OK) {
        dw_sparse_row_destroy(r);
        return status;
    }
    *out = r;
    return DW_OK;
}

void dw_sparse_row_destroy(dw_sparse_row *r)
{
    if (r == NULL) return;
    dw_discovery_destroy(r->discovery);
    dw_sparse_destroy(r->sparse);
    dw_proposal_shape_free(&r->shape);
    dw_free(r->proposal);
    dw_free(r->omitted);
    dw_tail_destroy(r->tail);
    dw_free(r->cuts);
    dw_mass_destroy(r->mass);
    dw_free(r->histograms);
    dw_free(r->bins);
    dw_free(r->theirs);
    dw_free(r->partials);
    dw_free(r);
}

int64_t dw_sparse_row_bytes(const dw_sparse_row *r)
{
    return r->bytes;
}

void dw_sparse_row_forget(dw_sparse_row *r, int64_t layer, dw_pos first, int64_t count)
{
    if (r->tail != NULL) dw_tail_forget(r->tail, layer, first, count);
}

/* Adds the seconds since the last call to *part. */
static void lap(dw_sparse_row *r, double *part)
{
    const double now = dw_now();
    *part += now - r->clock;
    r->clock = now;
}

/* ---- condensate ---- */

/* The second round of a row with a tail: where the sets end goes out, sums of what lies behind come back into r->partials. */
static dw_status sum_tail(dw_sparse_row *r, dw_error *err)
{
    dw_transport *transport = r->with.transport;
    int64_t bytes = r->partial_bytes;
    if (transport->rank == 0) dw_tail_cuts(&r->shape, r->proposal, r->cuts);
    DW_TRY(dw_broadcast(transport, r->cuts, r->heads * (int64_t)sizeof *r->cuts, err));
    lap(r, &r->times->reduce);
    dw_tail_sum(r->tail, r->with.shard, r->layer->index, r->policy, r->visible, r->q, r->cuts, r->layer->value_exponent,
                r->partials);
    lap(r, &r->times->score);
    DW_TRY(dw_reduce(transport, r->partials, &bytes, bytes, r->theirs, dw_merge_partials, &r->head_dim, err));
    lap(r, &r->times->reduce);
    return DW_OK;
}

static void count_reads(const dw_sparse_row *r, dw_omitted *omitted)
{
    char *at = r->proposal;
    for (int64_t g = 0; g < r->kv_heads; g++) {
        const dw_proposal section = dw_proposal_view(&r->shape, at);
        dw_omitted_read(omitted, *section.key_bytes, dw_visible_count(r->visible) * r->head_dim, *section.survivors);
        at += *section.bytes;
    }
}

/* Propose, merge, attend over the merged set. */
static dw_status attend_condensate(dw_sparse_row *r, float *out, dw_omitted *omitted, dw_error *err)
{
    const int64_t layer = r->layer->index;
    dw_screen *screen = r->plan->has_screen && !r->policy->has_tail ? r->with.screen : NULL;
    int64_t bytes;
    dw_proposal_shape_use(&r->shape, r->policy);
    DW_TRY(dw_discover(r->discovery, r->with.shard, screen, layer, r->policy, r->visible, r->q, r->proposal, &bytes, err));
    lap(r, &r->times->score);
    DW_TRY(dw_reduce(r->with.transport, r->proposal, &bytes, r->shape.capacity, r->theirs, dw_proposal_merge, &r->shape, err));
    lap(r, &r->times->reduce);
    if (r->policy->has_tail) DW_TRY(sum_tail(r, err));
    if (r->with.transport->rank != 0) return DW_OK;
    count_reads(r, omitted);
    dw_sparse_attend(r->sparse, r->visible, r->q, r->layer->value_exponent, r->proposal,
                     r->policy->has_tail ? r->partials : NULL, out, r->omitted);
    for (int64_t h = 0; h < r->heads; h++) dw_omitted_add(omitted, r->omitted[h], r->position, layer, h);
    lap(r, &r->times->attend);
    return DW_OK;
}

/* ---- mass ---- */

/* The coordinator's choice for every head. */
static void choose_cuts(dw_sparse_row *r, dw_omitted *omitted)
{
    for (int64_t h = 0; h < r->heads; h++) {
        const dw_cut cut = dw_mass_cut(&r->histograms[h], r->policy->epsilon, r->q + h * r->head_dim, r->head_dim);
        r->bins[h] = cut.bin;
        dw_omitted_add(omitted, cut.omitted, r->position, r->layer->index, h);
        dw_omitted_count(omitted, cut.keys, dw_visible_count(r->visible));
    }
}

/* Count, reduce, cut, broadcast, attend above the cut, reduce. */
static dw_status attend_mass(dw_sparse_row *r, float *out, dw_omitted *omitted, dw_error *err)
{
    dw_transport *transport = r->with.transport;
    const int64_t words = dw_partial_words(r->head_dim + 1);
    int64_t bytes = r->heads * (int64_t)sizeof *r->histograms;
    DW_TRY(dw_mass_count(r->mass, r->with.shard, r->layer->index, r->visible, r->q, r->histograms, err));
    lap(r, &r->times->score);
    DW_TRY(dw_reduce(transport, r->histograms, &bytes, bytes, r->theirs, dw_histogram_merge, NULL, err));
    if (transport->rank == 0) choose_cuts(r, omitted);
    DW_TRY(dw_broadcast(transport, r->bins, r->heads * (int64_t)sizeof *r->bins, err));
    lap(r, &r->times->reduce);
    dw_mass_attend(r->mass, r->bins, r->layer->value_exponent, r->partials);
    lap(r, &r->times->attend);
    bytes = r->partial_bytes;
    DW_TRY(dw_reduce(transport, r->partials, &bytes, bytes, r->theirs, dw_merge_partials, &r->head_dim, err));
    for (int64_t h = 0; transport->rank == 0 && h < r->heads; h++) {
        dw_partial_finish(r->partials + h * words, r->head_dim + 1, r->layer->value_exponent[h * r->kv_heads / r->heads],
                          out + h * r->head_dim);
    }
    lap(r, &r->times->reduce);
    return DW_OK;
}

dw_status dw_sparse_row_attend(dw_sparse_row *r, const dw_attend_layer *layer, dw_pos position, const float *q, float *out,
                               dw_omitted *omitted, dw_attend_times *times, dw_error *err)
{
    r->layer = layer;
    r->policy = dw_plan_layer(r->plan, layer->index);
    r->position = position;
    r->visible = dw_visible_positions(position, layer->window);
    r->q = q;
    r->times = times;
    r->clock = dw_now();
    return r->policy->mode == DW_MASS ? attend_mass(r, out, omitted, err) : attend_condensate(r, out, omitted, err);
}
