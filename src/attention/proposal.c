#include "attention/proposal.h"

#include <stdlib.h>
#include <string.h>

#include "base/integers.h"
#include "base/memory.h"

enum { HEADER_WORDS = 6, WORD = 8 };

static int64_t section_bytes(const dw_proposal_shape *shape, int64_t forced, int64_t top_total, int64_t values)
{
    return WORD * (HEADER_WORDS + shape->group * (DW_OUTSIDE_WORDS + 1)) + WORD * forced +
           dw_round_up(shape->group * forced * (int64_t)sizeof(float), WORD) + top_total * (int64_t)sizeof(dw_candidate) +
           WORD * values + values * shape->value_stride;
}

dw_status dw_proposal_shape_create(dw_proposal_shape *shape, const dw_shard_config *config, int64_t heads,
                                   const dw_policy *policy, dw_error *err)
{
    const int64_t forced = dw_smaller(dw_smaller(policy->anchor, config->context) + dw_smaller(policy->window, config->context),
                                      config->context);
    dw_status status;
    memset(shape, 0, sizeof *shape);
    shape->kv_heads = config->kv_heads;
    shape->group = heads / config->kv_heads;
    shape->keys = dw_smaller(policy->keys, config->context);
    shape->value_bytes = dw_row_bytes(config->value_type, config->head_dim);
    shape->value_stride = dw_round_up(shape->value_bytes, WORD);
    shape->positions_capacity = 2 * (forced + shape->group * shape->keys); /* a merge names those of both sides at most */
    shape->capacity = shape->kv_heads * section_bytes(shape, forced, shape->group * shape->keys,
                                                      dw_smaller(forced + shape->group * shape->keys, config->context));
    DW_TRY_GOTO(status, DW_ALLOC(&shape->limit, heads, "proposal scratch", err), failed);
    dw_proposal_shape_use(shape, policy);
    DW_TRY_GOTO(status, DW_ALLOC(&shape->positions, shape->positions_capacity, "proposal scratch", err), failed);
    DW_TRY_GOTO(status, dw_alloc_bytes(&shape->merged, shape->capacity, 1, "proposal scratch", err), failed);
    return DW_OK;
failed:
    dw_proposal_shape_free(shape);
    return status;
}

void dw_proposal_shape_use(const dw_proposal_shape *shape, const dw_policy *policy)
{
    for (int64_t h = 0; h < shape->kv_heads * shape->group; h++) {
        shape->limit[h] = dw_smaller(dw_policy_keys(policy, h), shape->keys);
    }
}

void dw_proposal_shape_free(dw_proposal_shape *shape)
{
    dw_free(shape->limit);
    dw_free(shape->positions);
    dw_free(shape->merged);
    shape->limit = NULL;
    shape->positions = NULL;
    shape->merged = NULL;
}

dw_proposal dw_proposal_view(const dw_proposal_shape *shape, void *section)
{
    int64_t *word = section;
    dw_proposal view = {.bytes = word,
                        .forced_count = word + 1,
                        .value_count = word + 2,
                        .key_norm = (double *)(void *)(word + 3),
                        .key_bytes = word + 4,
                        .survivors = word + 5};
    int64_t top_total = 0;
    char *at;
    view.mass = word + HEADER_WORDS;
    view.top_count = view.mass + shape->group * DW_OUTSIDE_WORDS;
    for (int64_t i = 0; i < shape->group; i++) top_total += view.top_count[i];
    view.forced = view.top_count + shape->group;
    view.forced_scores = (float *)(void *)(view.forced + *view.forced_count);
    at = (char *)view.forced_scores + dw_round_up(shape->group * *view.forced_count * (int64_t)sizeof(float), WORD);
    view.top = (dw_candidate *)(void *)at;
    view.value_positions = (dw_pos *)(void *)(view.top + top_total);
    view.values = (char *)(view.value_positions + *view.value_count);
    return view;
}

int64_t *dw_proposal_counts(const dw_proposal_shape *shape, void *section)
{
    return (int64_t *)section + HEADER_WORDS + shape->group * DW_OUTSIDE_WORDS;
}

dw_proposal dw_proposal_begin(const dw_proposal_shape *shape, void *section, int64_t forced_count, const int64_t *top_count,
                              int64_t value_count)
{
    int64_t *word = section;
    int64_t top_total = 0;
    for (int64_t i = 0; i < shape->group; i++) {
        dw_proposal_counts(shape, section)[i] = top_count[i];
        top_total += top_count[i];
    }
    word[0] = section_bytes(shape, forced_count, top_total, value_count);
    word[1] = forced_count;
    word[2] = value_count;
    return dw_proposal_view(shape, section);
}

/* Sorts and drops repetitions; returns what is left. */
static int64_t sort_unique(dw_pos *positions, int64_t count)
{
    int64_t kept = 0;
    qsort(positions, (size_t)count, sizeof *positions, dw_pos_compare);
    for (int64_t i = 0; i < count; i++) {
        if (kept == 0 || positions[kept - 1] != positions[i]) positions[kept++] = positions[i];
    }
    return kept;
}

int64_t dw_proposal_positions(const dw_proposal_shape *shape, const dw_proposal *proposal, dw_pos *out)
{
    int64_t count = *proposal->forced_count;
    const dw_candidate *top = proposal->top;
    memcpy(out, proposal->forced, (size_t)count * sizeof *out);
    for (int64_t i = 0; i < shape->group; i++) {
        for (int64_t j = 0; j < proposal->top_count[i]; j++) out[count++] = (top++)->position;
    }
    return sort_unique(out, count);
}

int64_t dw_proposal_find(const dw_proposal *proposal, dw_pos position)
{
    const int64_t count = *proposal->value_count;
    const int64_t at = dw_pos_lower_bound(proposal->value_positions, count, position);
    return at < count && proposal->value_positions[at] == position ? at : -1;
}

/* The forced positions of two ranks are distinct: merges them by position, scores alongside. */
static void merge_forced(const dw_proposal_shape *shape, const dw_proposal *a, const dw_proposal *b, const dw_proposal *out)
{
    const int64_t na = *a->forced_count;
    const int64_t nb = *b->forced_count;
    int64_t i = 0;
    int64_t j = 0;
    for (int64_t n = 0; n < na + nb; n++) {
        const int from_a = j == nb || (i < na && a->forced[i] < b->forced[j]);
        out->forced[n] = from_a ? a->forced[i] : b->forced[j];
        for (int64_t g = 0; g < shape->group; g++) {
            out->forced_scores[g * (na + nb) + n] = from_a ? a->forced_scores[g * na + i] : b->forced_scores[g * nb + j];
        }
        if (from_a) {
            i++;
        } else {
            j++;
        }
    }
}

/* The best `count` of two lists that are best first. */
static void merge_top(dw_candidate *out, int64_t count, const dw_candidate *a, int64_t na, const dw_candidate *b, int64_t nb)
{
    int64_t i = 0;
    int64_t j = 0;
    for (int64_t n = 0; n < count; n++) {
        out[n] = j == nb || (i < na && dw_candidate_better(&a[i], &b[j])) ? a[i++] : b[j++];
    }
}

/* V rows of the positions that the merged section still names. */
static void merge_values(const dw_proposal_shape *shape, const dw_proposal *a, const dw_proposal *b, const dw_proposal *out,
                         int64_t count)
{
    for (int64_t n = 0; n < count; n++) {
        const dw_pos position = shape->positions[n];
        const int64_t in_a = dw_proposal_find(a, position);
        const char *row = in_a >= 0 ? a->values + in_a * shape->value_stride
                                    : b->values + dw_proposal_find(b, position) * shape->value_stride;
        out->value_positions[n] = position;
        memcpy(out->values + n * shape->value_stride, row, (size_t)shape->value_stride);
    }
}

/* Merges one section of each side into `section`; returns its length. */
static int64_t merge_section(const dw_proposal_shape *shape, int64_t kv_head, const dw_proposal *a, const dw_proposal *b,
                             void *section)
{
    const int64_t *limit = shape->limit + kv_head * shape->group;
    const dw_candidate *top_a = a->top;
    const dw_candidate *top_b = b->top;
    dw_candidate *top;
    dw_proposal out;
    int64_t *counts = dw_proposal_counts(shape, section); /* where begin wants them anyway */
    int64_t values;
    for (int64_t g = 0; g < shape->group; g++) counts[g] = dw_smaller(limit[g], a->top_count[g] + b->top_count[g]);
    out = dw_proposal_begin(shape, section, *a->forced_count + *b->forced_count, counts, 0);
    *out.key_norm = *a->key_norm > *b->key_norm ? *a->key_norm : *b->key_norm;
    *out.key_bytes = *a->key_bytes + *b->key_bytes;
    *out.survivors = *a->survivors + *b->survivors;
    memcpy(out.mass, a->mass, (size_t)(shape->group * DW_OUTSIDE_WORDS) * sizeof *out.mass);
    merge_forced(shape, a, b, &out);
    top = out.top;
    for (int64_t g = 0; g < shape->group; g++) {
        dw_outside_merge(out.mass + g * DW_OUTSIDE_WORDS, b->mass + g * DW_OUTSIDE_WORDS);
        merge_top(top, counts[g], top_a, a->top_count[g], top_b, b->top_count[g]);
        top += counts[g];
        top_a += a->top_count[g];
        top_b += b->top_count[g];
    }
    values = dw_proposal_positions(shape, &out, shape->positions);
    out = dw_proposal_begin(shape, section, *out.forced_count, counts, values);
    merge_values(shape, a, b, &out, values);
    return *out.bytes;
}

dw_status dw_proposal_merge(void *context, void *mine, int64_t *mine_bytes, int64_t capacity, const void *theirs,
                            int64_t theirs_bytes, dw_error *err)
{
    const dw_proposal_shape *shape = context;
    char *a = mine;
    char *b = (char *)theirs; /* views are read-only here */
    char *out = shape->merged;
    for (int64_t g = 0; g < shape->kv_heads; g++) {
        const dw_proposal section_a = dw_proposal_view(shape, a);
        const dw_proposal section_b = dw_proposal_view(shape, b);
        out += merge_section(shape, g, &section_a, &section_b, out);
        a += *section_a.bytes;
        b += *section_b.bytes;
    }
    if (b - (const char *)theirs != theirs_bytes)
        return dw_fail(err, DW_RUNTIME, "a proposal of another rank has the wrong length");
    *mine_bytes = out - (char *)shape->merged;
    if (*mine_bytes > capacity) return dw_fail(err, DW_RUNTIME, "a merged proposal is longer than its buffer");
    memcpy(mine, shape->merged, (size_t)*mine_bytes);
    return DW_OK;
}
