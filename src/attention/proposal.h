/* What a rank proposes for one sparse row: a message of flat memory, one section per KV head. A section holds, for the G query
   heads of the group, the mass of all keys of the ranks merged so far that are not forced, their best keys, the forced positions,
   which are in every set (anchor and window), and the V row of each position named, once per KV head. Merging is associative and
   commutative: the result names the same positions with the same scores whatever the order. Local. */
#ifndef DW_ATTENTION_PROPOSAL_H
#define DW_ATTENTION_PROPOSAL_H

#include "attention/outside.h"
#include "attention/policy.h"
#include "cache/shard.h"

/* A key by its raw score. Order of selection: score descending, then position ascending. */
typedef struct {
    dw_pos position;
    float score;
    dw_counted counted; /* how it is a part of the section's mass; not if it is a forced position */
} dw_candidate;

static inline int dw_candidate_better(const dw_candidate *a, const dw_candidate *b)
{
    return a->score > b->score || (a->score == b->score && a->position < b->position);
}

/* View of one section; the arrays point into the message. */
typedef struct {
    int64_t *bytes;          /* length of the section */
    int64_t *forced_count;   /* positions of anchor and window on these ranks */
    int64_t *value_count;    /* V rows */
    double *key_norm;        /* largest |K|_2 among visible keys, upper bound */
    int64_t *key_bytes;      /* that were read to find the best keys */
    int64_t *survivors;      /* keys that were scored again exactly, over all heads */
    int64_t *mass;           /* [G][DW_OUTSIDE_WORDS] of all visible keys but the forced ones (attention/outside.h) */
    int64_t *top_count;      /* [G] */
    dw_pos *forced;          /* [forced_count] ascending */
    float *forced_scores;    /* [G][forced_count] */
    dw_candidate *top;       /* G lists, one behind the other, each best first */
    dw_pos *value_positions; /* [value_count] ascending */
    char *values;            /* [value_count][value_stride] */
} dw_proposal;

/* Fixed numbers of a session, the same on all ranks, and scratch for merging. */
typedef struct {
    int64_t kv_heads;
    int64_t group;        /* G */
    int64_t keys;         /* longest list of best keys */
    int64_t *limit;       /* [heads] k of each query head in the layer at work (dw_proposal_shape_use) */
    int64_t value_bytes;  /* of one V row of one head */
    int64_t value_stride; /* rounded up to 8 */
    int64_t capacity;     /* longest message, bytes */
    dw_pos *positions;    /* [positions_capacity] scratch */
    int64_t positions_capacity;
    void *merged; /* [capacity] scratch */
} dw_proposal_shape;

/* Sets shape up for a policy on a cache of this configuration (all ranks together). Free with dw_proposal_shape_free. */
dw_status dw_proposal_shape_create(dw_proposal_shape *shape, const dw_shard_config *config, int64_t heads,
                                   const dw_policy *policy, dw_error *err);
void dw_proposal_shape_free(dw_proposal_shape *shape);
/* From now on messages are about a layer with this policy, none of whose budgets exceeds those the shape was made for. */
void dw_proposal_shape_use(const dw_proposal_shape *shape, const dw_policy *policy);

/* Pointers into the section that starts at `section`, whose counts are already written there. */
dw_proposal dw_proposal_view(const dw_proposal_shape *shape, void *section);

/* Where the counts of best keys of a section are, [G]. */
int64_t *dw_proposal_counts(const dw_proposal_shape *shape, void *section);

/* Starts a section with these counts (top_count: [G]) at `section` and returns its view; everything but the counts is still
   undefined. */
dw_proposal dw_proposal_begin(const dw_proposal_shape *shape, void *section, int64_t forced_count, const int64_t *top_count,
                              int64_t value_count);

/* The distinct positions among the forced ones and the best keys of a section, ascending, into out; returns their number. */
int64_t dw_proposal_positions(const dw_proposal_shape *shape, const dw_proposal *proposal, dw_pos *out);

/* Index of a position among the section's V rows, -1 if absent. */
int64_t dw_proposal_find(const dw_proposal *proposal, dw_pos position);

/* Merges message theirs into message mine (a dw_merge of mpi/collective.h; context: dw_proposal_shape). */
dw_status dw_proposal_merge(void *context, void *mine, int64_t *mine_bytes, int64_t capacity, const void *theirs,
                            int64_t theirs_bytes, dw_error *err);

#endif
