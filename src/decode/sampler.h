/* The next token from logits. Deterministic: the random number of a candidate is a hash of (seed, position, id), so that the
   same logits at the same position give the same token whoever asks (Gumbel-max: argmax of logit / temperature + noise). */
#ifndef DW_DECODE_SAMPLER_H
#define DW_DECODE_SAMPLER_H

#include <stdint.h>

#include "base/error.h"

typedef struct {
    double temperature; /* 0: greedy */
    int64_t top_k;      /* candidates: the best top_k logits; 0: all */
    double top_p;       /* the smallest best set with this much probability; 1: all */
    double min_p;       /* tokens with at least this share of the best one's probability; 0: all */
    uint64_t seed;
} dw_sampling;

typedef struct dw_sampler dw_sampler;

/* Room for vocabulary logits. DW_USAGE for parameters out of range, naming option and legal values. */
dw_status dw_sampler_create(dw_sampler **out, const dw_sampling *sampling, int64_t vocabulary, dw_error *err);
void dw_sampler_destroy(dw_sampler *sampler);

/* The largest logit's id, the lowest of equal ones. */
int32_t dw_greedy(const float *logits, int64_t vocabulary);

/* Candidates are ordered by (logit descending, id ascending) and cut by top_k, then top_p, then min_p (the chain of llama.cpp;
   probabilities of the softmax at temperature 1 over what the cut before left); then Gumbel-max at `temperature`.
   position: absolute position that the token will take. */
int32_t dw_sample(dw_sampler *sampler, const float *logits, int64_t position);

#endif
