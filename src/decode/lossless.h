/* Lossless decoding: a drafter guesses the tokens that follow, dense attention verifies all of them in one pass, and only what dense decoding would
   have chosen is kept. Why the tokens are equal: docs/lossless.md. */
#ifndef DW_DECODE_LOSSLESS_H
#define DW_DECODE_LOSSLESS_H

#include "decode/sampler.h"
#include "decode/session.h"

/* The sequence so far: ids of all positions of the session, then the pending token, which is chosen but not appended: ids[count - 1] belongs
   to position count - 1. */
typedef struct {
    const int32_t *ids;
    int64_t count;
} dw_history;

/* Guesses up to `most` tokens behind the history into out; *count of them, 0 is allowed. Must not change what is stored for the
   sequence. */
typedef dw_status dw_drafter(void *context, const dw_history *history, int64_t most, int32_t *out, int64_t *count,
                             dw_error *err);

/* Tells the drafter that `accepted` of the `drafted` tokens it gave last were right. The session holds the verified rows now. May be
   NULL. */
typedef dw_status dw_draft_outcome(void *context, const dw_history *history, int64_t drafted, int64_t accepted, dw_error *err);

typedef struct {
    dw_session *session;
    dw_sampler *sampler;
    int64_t vocabulary;
    float *logits; /* [DW_MAX_DRAFT + 1][vocabulary] */
    dw_drafter *draft;
    dw_draft_outcome *outcome;
    void *context;                     /* of both */
    int64_t drafted, accepted, passes; /* so far */
} dw_lossless;

/* Coordinator. One pass: drafts at most `most` tokens (0 .. DW_MAX_DRAFT) behind the history, verifies them, and gives the tokens that dense decoding
   chooses next: ids [most + 1], *count >= 1. All but the last are appended to the session; the last is the new pending token. The session must
   have room for the pending token. */
dw_status dw_lossless_step(dw_lossless *lossless, const dw_history *history, int64_t most, int32_t *ids, int64_t *count,
                           dw_error *err);

#endif
