/* What one run of generate did, and how it is reported. */
#ifndef DW_CLI_GENERATION_H
#define DW_CLI_GENERATION_H

#include "cli/command.h"

typedef struct {
    int64_t prompt_tokens;
    const int32_t *tokens;
    int64_t count;
    const char *text; /* NULL: the model has no tokenizer */
    int64_t text_length;
    const char *stop_reason;

    double prefill_seconds;
    double decode_seconds;
    int is_split;    /* all ranks computed the linear layers of decoded rows */
    int64_t passes;  /* decode passes */
    int64_t decoded; /* tokens that came of them */
    int64_t drafted, accepted;
    dw_times times;     /* of these passes, rank 0 */
    dw_traffic traffic; /* of these passes, all ranks */
    dw_omitted omitted;
    const dw_rank_memory *memory; /* [ranks] */
} dw_generation;

/* One JSON object on stdout. */
dw_status dw_generation_json(const dw_rank *rank, const dw_generation *done, dw_error *err);

/* Statistics on stderr. */
void dw_generation_statistics(const dw_rank *rank, const dw_generation *done);

/* --verbose: build, ranks and hosts, and a table of the ranks, on stderr. memory: [ranks]. */
void dw_print_machine(const dw_rank *rank, const dw_rank_memory *memory);

#endif
