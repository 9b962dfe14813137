/* Partial sums of attention heads as messages. */
#ifndef DW_MPI_PARTIALS_H
#define DW_MPI_PARTIALS_H

#include "mpi/collective.h"

/* A dw_merge of any number of heads, each dw_partial_words(head_dim + 1) words. context: const int64_t *, the head_dim. */
dw_status dw_merge_partials(void *context, void *mine, int64_t *mine_bytes, int64_t capacity, const void *theirs,
                            int64_t theirs_bytes, dw_error *err);

#endif
