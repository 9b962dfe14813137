/* What dewpoint compare prints. */
#ifndef DW_CLI_COMPARISON_REPORT_H
#define DW_CLI_COMPARISON_REPORT_H

#include "cli/command.h"
#include "decode/comparison.h"

/* One way to attend against dense attention. */
typedef struct {
    dw_comparison sum;
    dw_compared_row *rows; /* [sum.rows] */
    dw_omitted omitted;    /* of all layers and heads */
    dw_omitted *by_head;   /* [layers][heads] */
} dw_compared;

typedef struct {
    const dw_rank *rank;
    int64_t prompt_tokens; /* behind which was compared */
    int64_t choices;
    const dw_compared *results; /* [choices] in the order of the options (cli/plans.h) */
} dw_compared_with;

/* One object; with several choices those are the list "results" in it. */
dw_status dw_comparison_json(const dw_compared_with *with, dw_error *err);
dw_status dw_comparison_table(const dw_compared_with *with, dw_error *err);

#endif
