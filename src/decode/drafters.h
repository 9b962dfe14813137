/* Drafters for lossless decoding: the model over what the coordinator holds, and the text itself (prompt lookup). */
#ifndef DW_DECODE_DRAFTERS_H
#define DW_DECODE_DRAFTERS_H

#include "decode/lossless.h"

/* How well the tokens of one kind of drafts are accepted: a running share. */
typedef struct {
    double share;
} dw_acceptance;

typedef enum { DW_DRAFT_BY_TEXT = 1, DW_DRAFT_BY_MODEL = 2 } dw_draft_ways;

typedef struct {
    dw_session *session;
    dw_sampler *sampler;
    float *logits;   /* [vocabulary] */
    int64_t longest; /* drafts, at most DW_MAX_DRAFT */
    int ways;        /* dw_draft_ways */
    dw_acceptance model, text;
    int by_text;       /* the last drafts were looked up */
    int64_t refreshed; /* positions of the sequence when the support was last chosen; -1: never */
} dw_drafts;

/* ways: a sum of dw_draft_ways; with both, the model drafts where the text has nothing. Starts with middling acceptance. By model the session
   must have been created with can_draft; sampler and session are borrowed. Free with dw_drafts_free. */
dw_status dw_drafts_create(dw_drafts *drafts, dw_session *session, dw_sampler *sampler, int64_t vocabulary, int64_t longest,
                           int ways, dw_error *err);
void dw_drafts_free(dw_drafts *drafts);

/* A dw_drafter and its dw_draft_outcome; context: dw_drafts. Drafts come from the text where the last tokens stood before and such drafts have been
   right often enough, else from the model. How many depends on how often they are right, never on time. */
dw_status dw_draft(void *context, const dw_history *history, int64_t most, int32_t *out, int64_t *count, dw_error *err);
dw_status dw_drafts_outcome(void *context, const dw_history *history, int64_t drafted, int64_t accepted, dw_error *err);

/* Where the last `length` ids of the history stood before, latest first: the index behind them, or -1. */
int64_t dw_find_repeat(const dw_history *history, int64_t length);

/* Drafts worth their price when a share `share` of them is right: the chance that the last of them is still right is at least 1/4. */
int64_t dw_draft_length(double share, int64_t longest);

#endif
