#include "decode/lossless.h"

#include <string.h>

#include "base/integers.h"
#include "mpi/drafting.h"

/* Rows: the pending token, then the drafts. Tokens that dense decoding chooses behind each row, until one is not the draft. */
static int64_t choose(const dw_lossless *l, int64_t position, const int32_t *rows, int64_t drafts, int32_t *ids)
{
    int64_t count = 0;
    for (int64_t j = 0; j <= drafts; j++) {
        ids[count++] = dw_sample(l->sampler, l->logits + j * l->vocabulary, position + j + 1);
        if (j < drafts && ids[j] != rows[j + 1]) break;
    }
    return count;
}

dw_status dw_lossless_step(dw_lossless *l, const dw_history *history, int64_t most, int32_t *ids, int64_t *count, dw_error *err)
{
    const int64_t position = dw_session_positions(l->session); /* of the pending token */
    int32_t rows[DW_MAX_DRAFT + 1];
    int64_t drafts = 0;
    rows[0] = history->ids[history->count - 1];
    if (most > 0) DW_TRY(l->draft(l->context, history, most, rows + 1, &drafts, err));
    DW_TRY(dw_session_append(l->session, rows, drafts + 1, 0, l->logits, drafts + 1, err));
    *count = choose(l, position, rows, drafts, ids);
    DW_TRY(dw_session_truncate(l->session, position + *count, err));
    l->passes++;
    l->drafted += drafts;
    l->accepted += *count - 1;
    return l->outcome == NULL ? DW_OK : l->outcome(l->context, history, drafts, *count - 1, err);
}
