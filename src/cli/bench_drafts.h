/* The passes of lossless decoding over a filled cache, for bench decode. Pseudo-random keys say nothing about text, so how many drafts are right is
   not measured but given: each with a chance of --acceptance. All else is done as generate does it. */
#ifndef DW_CLI_BENCH_DRAFTS_H
#define DW_CLI_BENCH_DRAFTS_H

#include "cli/command.h"
#include "decode/drafters.h"

enum { DW_BENCH_PASSES = 8 }; /* measured together */

typedef struct {
    dw_session *session;
    dw_sampler *sampler;
    dw_drafts drafts;
    int64_t longest; /* drafts */
    int64_t vocabulary;
    float *logits;     /* [longest + 1][vocabulary] */
    int32_t *ids;      /* [context + 1], the last one that of the pending token */
    double acceptance; /* 0..1 */
    double luck;       /* of the last pass: its drafts are right as long as the chance is above it */
} dw_bench_drafts;

/* Coordinator. context: positions of the session, which is borrowed. */
dw_status dw_bench_drafts_create(dw_bench_drafts *bench, dw_session *session, const dw_rank *rank, int64_t context,
                                 int64_t longest, dw_error *err);
void dw_bench_drafts_free(dw_bench_drafts *bench);

/* Coordinator. One pass: drafts by the model, verifies, chooses the support anew when it is time. Adds the tokens that come of it to *tokens. */
dw_status dw_bench_drafts_pass(dw_bench_drafts *bench, int64_t *tokens, dw_error *err);

#endif
