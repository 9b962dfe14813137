#include "decode/drafters.h"

#include <string.h>

#include "base/integers.h"
#include "base/memory.h"
#include "mpi/drafting.h"

enum {
    SHORTEST_REPEAT = 3,
    LONGEST_REPEAT = 8,
    STALE = 48, /* positions after which the support is chosen anew though no token was drafted by the model */
    FRESH = 8   /* positions for which a support is kept: choosing it costs a scan of all keys, and bytes */
};

dw_status dw_drafts_create(dw_drafts *d, dw_session *session, dw_sampler *sampler, int64_t vocabulary, int64_t longest,
                           int ways, dw_error *err)
{
    *d = (dw_drafts){.session = session,
                     .sampler = sampler,
                     .longest = dw_smaller(longest, DW_MAX_DRAFT),
                     .ways = ways,
                     .model = {0.8},
                     .text = {0.5},
                     .refreshed = -1};
    return DW_ALLOC(&d->logits, vocabulary, "logits", err);
}

void dw_drafts_free(dw_drafts *d)
{
    dw_free(d->logits);
    d->logits = NULL;
}

int64_t dw_find_repeat(const dw_history *h, int64_t length)
{
    const int32_t *last = h->ids + h->count - length;
    for (int64_t i = h->count - 1; i >= length; i--) {
        if (h->ids[i - 1] == last[length - 1] && memcmp(h->ids + i - length, last, (size_t)length * sizeof *last) == 0)
            return i;
    }
    return -1;
}

int64_t dw_draft_length(double share, int64_t longest)
{
    double chance = share;
    int64_t length = 1;
    while (length < longest && chance * share >= 0.25) {
        chance *= share;
        length++;
    }
    return length;
}

/* ---- from the text ---- */

static int64_t look_up(const dw_history *h, int64_t most, int32_t *out)
{
    for (int64_t length = LONGEST_REPEAT; length >= SHORTEST_REPEAT; length--) {
        const int64_t at = h->count > length ? dw_find_repeat(h, length) : -1;
        int64_t count;
        if (at < 0) continue;
        count = dw_smaller(most, h->count - at);
        memcpy(out, h->ids + at, (size_t)count * sizeof *out);
        return count;
    }
    return 0;
}

/* ---- by the model ---- */

static dw_status refresh(dw_drafts *d, int64_t first, dw_error *err)
{
    int done;
    DW_TRY(dw_session_refresh(d->session, dw_larger(0, first), &done, err));
    if (done) d->refreshed = dw_session_positions(d->session);
    return DW_OK;
}

/* Each draft is the token that would be sampled if the draft's logits were dense attention's. None before there is a support. */
static dw_status draft_by_model(dw_drafts *d, const dw_history *h, int64_t most, int32_t *out, int64_t *count, dw_error *err)
{
    const int64_t position = h->count - 1; /* of the pending token */
    int32_t id = h->ids[position];
    if (d->refreshed < 0 || position - d->refreshed > STALE) DW_TRY(refresh(d, position - 1, err));
    if (d->refreshed < 0) return DW_OK;
    for (*count = 0; *count < most; ++*count) {
        DW_TRY(dw_session_draft(d->session, id, *count, d->logits, err));
        id = dw_sample(d->sampler, d->logits, position + *count + 1);
        out[*count] = id;
    }
    return DW_OK;
}

dw_status dw_draft(void *context, const dw_history *h, int64_t most, int32_t *out, int64_t *count, dw_error *err)
{
    dw_drafts *d = context;
    const int64_t limit = dw_smaller(most, d->longest);
    *count = 0;
    if (limit == 0) return DW_OK;
    if ((d->ways & DW_DRAFT_BY_TEXT) && d->text.share >= d->model.share - 0.2)
        *count = look_up(h, dw_draft_length(d->text.share, limit), out);
    d->by_text = *count > 0;
    if (d->by_text || !(d->ways & DW_DRAFT_BY_MODEL)) return DW_OK;
    return draft_by_model(d, h, dw_draft_length(d->model.share, limit), out, count, err);
}

static void update(dw_acceptance *a, int64_t drafted, int64_t accepted)
{
    const double weight = 0.08;
    for (int64_t i = 0; i < drafted && i <= accepted; i++) a->share += weight * ((i < accepted) - a->share);
}

dw_status dw_drafts_outcome(void *context, const dw_history *h, int64_t drafted, int64_t accepted, dw_error *err)
{
    dw_drafts *d = context;
    update(d->by_text ? &d->text : &d->model, drafted, accepted);
    if (d->by_text) {
        d->model.share += 0.002 * (0.8 - d->model.share); /* what is not tried is forgotten slowly */
        return DW_OK;
    }
    d->text.share += 0.01 * (0.7 - d->text.share);
    if (!(d->ways & DW_DRAFT_BY_MODEL)) return DW_OK;
    if (d->refreshed >= 0 && dw_session_positions(d->session) - d->refreshed < FRESH) return DW_OK;
    return refresh(d, h->count - 1, err);
}
