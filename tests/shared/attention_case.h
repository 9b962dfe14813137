/* Attention inputs from seeds, as ../shared/reference/README.md defines them, and the attention of one row over simulated
   shards. */
#ifndef DW_TESTS_ATTENTION_CASE_H
#define DW_TESTS_ATTENTION_CASE_H

#include <jansson.h>

#include "attention/omitted.h"
#include "attention/policy.h"
#include "attention/proposal.h"
#include "cache/shard.h"
#include "kernels/kernels.h"

typedef struct {
    const char *name;
    int64_t heads, kv_heads, d, n;
    float *q;               /* [heads][d] */
    float *k;               /* [kv_heads][n][d] */
    float *v;               /* [kv_heads][n][d] */
    int64_t window;         /* positions that the row sees; 0: all */
    int has_screen;         /* sparse rows find their best keys by the screen */
    int32_t value_exponent; /* |v| <= 2^value_exponent */
    float value_amplitude;
    json_t *expected; /* borrowed */
} attention_case;

/* Builds the arrays of one entry of attention/cases.json and checks its `first` values. Free with attention_case_free. */
void attention_case_load(attention_case *c, const json_t *entry);

/* Random arrays of the same generator. */
void attention_case_random(attention_case *c, int64_t heads, int64_t kv_heads, int64_t d, int64_t n, uint64_t seed, float q_amp,
                           float k_amp, float v_amp);
void attention_case_free(attention_case *c);

/* The shard of one of `ranks` ranks holding all n keys of the case; f32 or another cache type. Free with dw_shard_destroy. */
dw_shard *attention_case_shard(const attention_case *c, int rank, int ranks, dw_type type);

/* Attention of the row at position n - 1 over the shards of `ranks` ranks, each scanned with `threads` threads, merged in the
   order of ranks (or backwards). out: [heads][d]; partials: NULL or [heads][words], the merged integers. */
void attention_case_dense(const attention_case *c, const dw_kernels *kernels, int ranks, int threads, int backwards,
                          dw_type type, float *out, int64_t *partials);

/* What the ranks propose for that row, merged: one section per KV head. shape is set up; free it with dw_proposal_shape_free and
   the message with dw_free. */
void *attention_case_proposals(const attention_case *c, const dw_kernels *kernels, int ranks, int threads, int backwards,
                               dw_type type, const dw_policy *policy, dw_proposal_shape *shape);

/* Attention of the row over the condensate set; omitted: [heads]. top: NULL or [heads][keys] positions of the best keys, best first. */
void attention_case_sparse(const attention_case *c, const dw_kernels *kernels, int ranks, int threads, int backwards,
                           dw_type type, const dw_policy *policy, float *out, dw_interval *omitted, dw_pos *top);

#endif
