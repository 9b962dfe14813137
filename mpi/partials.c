#include "mpi/partials.h"

#include "attention/partial.h"

dw_status dw_merge_partials(void *context, void *mine, int64_t *mine_bytes, int64_t capacity, const void *theirs,
                            int64_t theirs_bytes, dw_error *err)
{
    const int64_t channels = *(const int64_t *)context + 1;
    const int64_t words = dw_partial_words(channels);
    (void)capacity;
    if (*mine_bytes != theirs_bytes) return dw_fail(err, DW_RUNTIME, "partial sums of another rank have the wrong length");
    for (int64_t at = 0; at < theirs_bytes / (int64_t)sizeof(int64_t); at += words) {
        dw_partial_merge((int64_t *)mine + at, (const int64_t *)theirs + at, channels);
    }
    return DW_OK;
}
