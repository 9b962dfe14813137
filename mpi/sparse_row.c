#include "mpi/sparse_row.h"

#include <stdlib.h>
#include <string.h>

#include "attention/block_selector.h"
#include "attention/budget.h"
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

/* What a pillar layer selected, on every rank. */
typedef struct {
    dw_pos chosen_at; /* position of the row it was chosen for; -1: none */
    int64_t *count;   /* [heads] */
    dw_pos *position; /* [heads][keys] */
} kept_selection;

struct dw_sparse_row {
    dw_sparse_row_parts with;
    const dw_policy_plan *plan;
    int64_t heads;
    int64_t kv_heads;
    int64_t head_dim;
    int64_t layers;
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

    int has_screen;
    int is_shared;             /* selections serve other layers or rows, or are made by blocks; with it: */
    int64_t keys;              /* positions of one head in a selection, at most */
    kept_selection *kept;      /* [layers] of pillar layers */
    int64_t *travelling;       /* [heads][1 + keys] a selection on its way: counts and positions */
    int64_t *exact_mass;       /* [heads][DW_OUTSIDE_WORDS] of the audit */
    dw_block_selector *blocks; /* NULL: selections are by token */
    char *block_message;       /* dw_block_selector_capacity */

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

static dw_status create_kept(dw_sparse_row *r, int64_t layers, dw_error *err)
{
    DW_TRY(DW_ALLOC(&r->kept, layers, "selections", err));
    for (int64_t l = 0; l < layers; l++) {
        r->kept[l].chosen_at = -1;
        if (l % r->plan->pillar != 0 || dw_plan_layer(r->plan, l)->mode != DW_CONDENSATE) continue;
        DW_TRY(DW_ALLOC(&r->kept[l].count, r->heads, "selections", err));
        DW_TRY(DW_ALLOC(&r->kept[l].position, r->heads * r->keys, "selections", err));
    }
    return DW_OK;
}

/* What selections need that are kept, or made by blocks. */
static dw_status create_shared(dw_sparse_row *r, const dw_shard_config *config, dw_error *err)
{
    const dw_policy_plan *plan = r->plan;
    r->is_shared = plan->pillar > 1 || plan->reuse > 1 || plan->selector == DW_SELECT_BLOCKS;
    if (!r->is_shared) return DW_OK;
    r->keys = r->shape.keys;
    r->layers = config->layers;
    DW_TRY(create_kept(r, config->layers, err));
    DW_TRY(DW_ALLOC(&r->travelling, r->heads * (1 + r->keys), "selections", err));
    DW_TRY(DW_ALLOC(&r->exact_mass, r->heads * DW_OUTSIDE_WORDS, "selections", err));
    r->bytes += (config->layers / plan->pillar + 3) * r->heads * (1 + r->keys) * (int64_t)sizeof(dw_pos);
    if (plan->selector != DW_SELECT_BLOCKS) return DW_OK;
    DW_TRY(dw_block_selector_create(&r->blocks, r->with.kernels, r->with.pool, config, &r->shape, err));
    return dw_alloc_bytes((void **)&r->block_message, dw_block_selector_capacity(r->blocks), 1, "selections", err);
}

static dw_status create_condensate(dw_sparse_row *r, const dw_shard_config *config, dw_error *err)
{
    const dw_policy largest = largest_budgets(r->plan);
    r->has_condensate = 1;
    r->has_screen = r->plan->screen_from <= config->context;
    DW_TRY(dw_proposal_shape_create(&r->shape, config, r->heads, &largest, err));
    DW_TRY(dw_discovery_create(&r->discovery, r->with.kernels, r->with.pool, config, &largest, &r->shape, err));
    DW_TRY(dw_sparse_create(&r->sparse, r->with.kernels, r->with.pool, config, &r->shape, err));
    DW_TRY(dw_alloc_bytes(&r->proposal, r->shape.capacity, 1, "proposal buffer", err));
    DW_TRY(DW_ALLOC(&r->omitted, r->heads, "proposal buffer", err));
    r->bytes += 2 * r->shape.capacity;
    DW_TRY(create_shared(r, config, err));
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
    if (r->blocks != NULL) theirs = dw_larger(theirs, dw_block_selector_capacity(r->blocks));
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
    for (int64_t l = 0; r->kept != NULL && l < r->layers; l++) {
        dw_free(r->kept[l].count);
        dw_free(r->kept[l].position);
    }
    dw_free(r->kept);
    dw_free(r->travelling);
    dw_free(r->exact_mass);
    dw_block_selector_destroy(r->blocks);
    dw_free(r->block_message);
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
    if (r->blocks != NULL) dw_block_selector_forget(r->blocks, layer, first, count);
    if (r->is_shared && first <= r->kept[layer].chosen_at) r->kept[layer].chosen_at = -1;
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

/* Rank 0: attention over the merged proposals. is_measured: they hold the mass of all keys. */
static void attend_merged(dw_sparse_row *r, int is_measured, float *out, dw_omitted *omitted)
{
    count_reads(r, omitted);
    dw_sparse_attend(r->sparse, r->visible, r->q, r->layer->value_exponent, r->proposal,
                     r->policy->has_tail ? r->partials : NULL, is_measured, out, r->omitted);
    for (int64_t h = 0; h < r->heads; h++) dw_omitted_add(omitted, r->omitted[h], r->position, r->layer->index, h);
    lap(r, &r->times->attend);
}

static dw_status merge_proposals(dw_sparse_row *r, int64_t bytes, dw_error *err)
{
    lap(r, &r->times->score);
    DW_TRY(dw_reduce(r->with.transport, r->proposal, &bytes, r->shape.capacity, r->theirs, dw_proposal_merge, &r->shape, err));
    lap(r, &r->times->reduce);
    return DW_OK;
}

/* The best of all keys, merged, in r->proposal of rank 0. */
static dw_status propose(dw_sparse_row *r, dw_error *err)
{
    const int is_exact = r->policy->has_tail || (r->is_shared && r->plan->is_audited); /* every score is needed */
    dw_screen *screen = r->has_screen && !is_exact ? r->with.screen : NULL;
    int64_t bytes;
    DW_TRY(dw_discover(r->discovery, r->with.shard, screen, r->layer->index, r->policy, r->visible, r->q, r->proposal, &bytes,
                       err));
    return merge_proposals(r, bytes, err);
}

/* ---- selections that serve several layers or rows, or are made by blocks ---- */

/* Rank 0: the best keys of all heads of the merged proposals, ascending; count: [heads] stride words apart, positions likewise. */
static void list_best(const dw_sparse_row *r, int64_t *count, int64_t *positions, int64_t stride)
{
    char *at = r->proposal;
    for (int64_t g = 0; g < r->kv_heads; g++) {
        const dw_proposal section = dw_proposal_view(&r->shape, at);
        const dw_candidate *top = section.top;
        for (int64_t i = 0; i < r->shape.group; i++) {
            const int64_t h = g * r->shape.group + i;
            dw_pos *to = positions + h * stride;
            count[h * stride] = section.top_count[i];
            for (int64_t n = 0; n < section.top_count[i]; n++) to[n] = (top++)->position;
            qsort(to, (size_t)section.top_count[i], sizeof *to, dw_pos_compare);
        }
        at += *section.bytes;
    }
}

/* The best blocks of all ranks, as r->travelling of rank 0. */
static dw_status select_blocks(dw_sparse_row *r, dw_error *err)
{
    const int64_t stride = 1 + r->keys;
    int64_t bytes = dw_block_selector_capacity(r->blocks);
    DW_TRY(dw_block_select(r->blocks, r->with.shard, r->layer->index, r->visible, r->q, r->block_message, err));
    lap(r, &r->times->score);
    DW_TRY(dw_reduce(r->with.transport, r->block_message, &bytes, bytes, r->theirs, dw_block_selection_merge, r->blocks, err));
    for (int64_t h = 0; r->with.transport->rank == 0 && h < r->heads; h++) {
        int64_t *to = r->travelling + h * stride;
        to[0] = dw_block_selection_positions(r->blocks, r->block_message, h, to + 1);
    }
    return DW_OK;
}

/* Makes a selection for this row; then every rank has it. By token, r->proposal of rank 0 holds the merged proposals too. */
static dw_status make_selection(dw_sparse_row *r, kept_selection *kept, dw_error *err)
{
    const int64_t stride = 1 + r->keys;
    if (r->blocks != NULL) {
        DW_TRY(select_blocks(r, err));
    } else {
        DW_TRY(propose(r, err));
        if (r->with.transport->rank == 0) list_best(r, r->travelling, r->travelling + 1, stride);
    }
    DW_TRY(dw_broadcast(r->with.transport, r->travelling, r->heads * stride * (int64_t)sizeof *r->travelling, err));
    for (int64_t h = 0; h < r->heads; h++) {
        kept->count[h] = r->travelling[h * stride];
        memcpy(kept->position + h * r->keys, r->travelling + h * stride + 1, (size_t)kept->count[h] * sizeof(dw_pos));
    }
    kept->chosen_at = r->position;
    lap(r, &r->times->reduce);
    return DW_OK;
}

/* Share of the exact best keys, [exact_count] ascending, that a selection, ascending as well, holds. */
static double recall(const dw_pos *exact, int64_t exact_count, const dw_pos *selected, int64_t count)
{
    int64_t hits = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < exact_count; i++) {
        while (n < count && selected[n] < exact[i]) n++;
        hits += n < count && selected[n] == exact[i];
    }
    return exact_count == 0 ? 1.0 : (double)hits / (double)exact_count;
}

/* What the exact selection of this row would have been, and the mass of all keys. */
static dw_status audit(dw_sparse_row *r, const kept_selection *kept, dw_omitted *omitted, dw_error *err)
{
    char *at = r->proposal;
    DW_TRY(propose(r, err));
    if (r->with.transport->rank != 0) return DW_OK;
    for (int64_t g = 0; g < r->kv_heads; g++) {
        const dw_proposal section = dw_proposal_view(&r->shape, at);
        memcpy(r->exact_mass + g * r->shape.group * DW_OUTSIDE_WORDS, section.mass,
               (size_t)(r->shape.group * DW_OUTSIDE_WORDS) * sizeof *section.mass);
        at += *section.bytes;
    }
    list_best(r, r->travelling, r->travelling + 1, 1 + r->keys);
    for (int64_t h = 0; h < r->heads; h++) {
        const int64_t *exact = r->travelling + h * (1 + r->keys);
        dw_omitted_recall(omitted, recall(exact + 1, exact[0], kept->position + h * r->keys, kept->count[h]), r->layer->index,
                          h);
    }
    return DW_OK;
}

/* Puts the mass that the audit found into the merged proposals of rank 0. */
static void insert_mass(const dw_sparse_row *r)
{
    char *at = r->proposal;
    for (int64_t g = 0; g < r->kv_heads; g++) {
        const dw_proposal section = dw_proposal_view(&r->shape, at);
        memcpy(section.mass, r->exact_mass + g * r->shape.group * DW_OUTSIDE_WORDS,
               (size_t)(r->shape.group * DW_OUTSIDE_WORDS) * sizeof *section.mass);
        at += *section.bytes;
    }
}

/* Attends to a selection that is on every rank. */
static dw_status attend_given(dw_sparse_row *r, const kept_selection *kept, float *out, dw_omitted *omitted, dw_error *err)
{
    const dw_selection selection = {r->keys, kept->count, kept->position};
    int64_t bytes;
    if (r->plan->is_audited) DW_TRY(audit(r, kept, omitted, err));
    DW_TRY(dw_discover_given(r->discovery, r->with.shard, r->layer->index, r->policy, r->visible, r->q, &selection, r->proposal,
                             &bytes, err));
    DW_TRY(merge_proposals(r, bytes, err));
    if (r->with.transport->rank != 0) return DW_OK;
    if (r->plan->is_audited) insert_mass(r);
    attend_merged(r, r->plan->is_audited, out, omitted);
    return DW_OK;
}

static void add_full_recall(const dw_sparse_row *r, dw_omitted *omitted)
{
    for (int64_t h = 0; h < r->heads; h++) dw_omitted_recall(omitted, 1.0, r->layer->index, h);
}

static dw_status attend_shared(dw_sparse_row *r, float *out, dw_omitted *omitted, dw_error *err)
{
    kept_selection *kept = &r->kept[r->layer->index / r->plan->pillar * r->plan->pillar];
    const int is_pillar = r->layer->index % r->plan->pillar == 0;
    const int is_fresh = kept->chosen_at >= 0 && kept->chosen_at / r->plan->reuse == r->position / r->plan->reuse;
    if (!is_pillar || is_fresh) return attend_given(r, kept, out, omitted, err);
    DW_TRY(make_selection(r, kept, err));
    if (r->blocks != NULL) return attend_given(r, kept, out, omitted, err);
    if (r->with.transport->rank != 0) return DW_OK;
    add_full_recall(r, omitted);
    attend_merged(r, 1, out, omitted);
    return DW_OK;
}

/* ---- a condensate of its own ---- */

/* Propose, merge, attend over the merged set. */
static dw_status attend_condensate(dw_sparse_row *r, float *out, dw_omitted *omitted, dw_error *err)
{
    dw_proposal_shape_use(&r->shape, r->policy);
    if (r->is_shared) return attend_shared(r, out, omitted, err);
    DW_TRY(propose(r, err));
    if (r->policy->has_tail) DW_TRY(sum_tail(r, err));
    if (r->with.transport->rank != 0) return DW_OK;
    add_full_recall(r, omitted);
    attend_merged(r, 1, out, omitted);
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
        if (omitted->curves != NULL) dw_budget_curve_add(&omitted->curves[r->layer->index * r->heads + h], &r->histograms[h]);
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
