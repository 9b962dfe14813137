#include "cli/bench_drafts.h"

#include <math.h>

#include "base/memory.h"
#include "mpi/drafting.h"

dw_status dw_bench_drafts_create(dw_bench_drafts *b, dw_session *session, const dw_rank *rank, int64_t context, int64_t longest,
                                 dw_error *err)
{
    static const dw_sampling greedy = {.top_p = 1};
    *b = (dw_bench_drafts){
        .session = session, .longest = longest, .vocabulary = rank->model->vocabulary, .acceptance = rank->options->acceptance};
    DW_TRY(dw_sampler_create(&b->sampler, &greedy, b->vocabulary, err));
    DW_TRY(dw_drafts_create(&b->drafts, session, b->sampler, b->vocabulary, longest, DW_DRAFT_BY_MODEL, err));
    b->drafts.model.share = b->acceptance;
    DW_TRY(DW_ALLOC(&b->ids, context + 1, "history", err));
    return DW_ALLOC(&b->logits, (longest + 1) * b->vocabulary, "logits", err);
}

void dw_bench_drafts_free(dw_bench_drafts *b)
{
    dw_sampler_destroy(b->sampler);
    dw_drafts_free(&b->drafts);
    dw_free(b->ids);
    dw_free(b->logits);
}

dw_status dw_bench_drafts_pass(dw_bench_drafts *b, int64_t *tokens, dw_error *err)
{
    const int64_t position = dw_session_positions(b->session); /* of the pending token */
    const dw_history history = {b->ids, position + 1};
    int32_t rows[DW_MAX_DRAFT + 1];
    int64_t drafts;
    int64_t count = 0;
    double chance = 1;
    b->luck = fmod(b->luck + 0.6180339887498949, 1); /* evenly spread over few passes */
    rows[0] = b->ids[position];
    DW_TRY(dw_draft(&b->drafts, &history, b->longest, rows + 1, &drafts, err));
    DW_TRY(dw_session_append(b->session, rows, drafts + 1, 0, b->logits, drafts + 1, err));
    do {
        b->ids[position + count + 1] = dw_sample(b->sampler, b->logits + count * b->vocabulary, position + count + 1);
        count++;
        chance *= b->acceptance;
    } while (count <= drafts && chance > b->luck);
    DW_TRY(dw_session_truncate(b->session, position + count, err));
    *tokens += count;
    return dw_drafts_outcome(&b->drafts, &history, drafts, count - 1, err);
}
