/* Attention to the smallest set of keys that is certain to leave out no more than a given share of the softmax mass, head by head.
   Two rounds. First every rank counts its visible keys in bins of 1/8 bit of absolute score, with the sum of their weights; one
   reduction merges the histograms, and the coordinator picks the highest cut that is certified. Then every rank attends to its keys
   above the cut; one reduction merges partial sums. Counts and sums are integers: the cut and the result are the same on any number
   of ranks and threads. Local. */
#ifndef DW_ATTENTION_MASS_H
#define DW_ATTENTION_MASS_H

#include "attention/omitted.h"
#include "attention/visible.h"
#include "base/pool.h"
#include "cache/shard.h"

enum { DW_HISTOGRAM_BINS = 384 }; /* 48 bits: what lies lower weighs less than 2^-47 of the best key, each */

/* The keys of one head; also the message. Bin b (any integer) holds scores of [b/8, (b + 1)/8) bits; entry i of the arrays is bin
   top - i. weight: sum of rint(2^(30 + score - b/8)). */
typedef struct {
    int64_t top;     /* highest bin that holds a key; DW_NO_BIN: there is no key */
    int64_t below;   /* keys under the bins */
    double key_norm; /* largest |K|_2, upper bound */
    int64_t count[DW_HISTOGRAM_BINS];
    int64_t weight[DW_HISTOGRAM_BINS];
} dw_histogram;

#define DW_NO_BIN INT64_MIN

/* What the coordinator decides for a head: keys in bins >= bin; DW_NO_BIN: all. */
typedef struct {
    int64_t bin;
    int64_t keys;        /* how many those are */
    dw_interval omitted; /* the mass that this leaves out */
} dw_cut;

typedef struct dw_mass dw_mass;

/* Scratch for rows with `heads` query heads over a shard of this configuration. pool and kernels are borrowed. */
dw_status dw_mass_create(dw_mass **out, const dw_kernels *kernels, dw_pool *pool, const dw_shard_config *config, int64_t heads,
                         dw_error *err);
void dw_mass_destroy(dw_mass *mass);

/* Histograms of the keys of this shard that the row sees. q: [heads][head_dim]; histograms: [heads]. Keeps the scores for
   dw_mass_attend. DW_RUNTIME when a score is not a number or out of range. */
dw_status dw_mass_count(dw_mass *mass, const dw_shard *shard, int64_t layer, dw_visible visible, const float *q,
                        dw_histogram *histograms, dw_error *err);

/* A dw_merge (mpi/collective.h) of [heads] histograms; context is not used. */
dw_status dw_histogram_merge(void *context, void *mine, int64_t *mine_bytes, int64_t capacity, const void *theirs,
                             int64_t theirs_bytes, dw_error *err);

/* The highest cut whose omitted mass is certainly at most epsilon. all: merged histogram of all ranks; q: [d] of the head. */
dw_cut dw_mass_cut(const dw_histogram *all, double epsilon, const float *q, int64_t d);

/* partials: [heads][dw_partial_words(head_dim + 1)] of the keys of this shard at or above the cuts ([heads] bins), for the row of
   the last dw_mass_count. All keys: dense attention's integers. */
void dw_mass_attend(dw_mass *mass, const int64_t *bins, const int32_t *value_exponent, int64_t *partials);

/* Bytes of the buffers. */
int64_t dw_mass_bytes(const dw_mass *mass);

#endif
