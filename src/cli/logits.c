/* dewpoint logits: the logits at chosen positions of a prompt. Rows before the first chosen one attend densely, the rows from
   it on by the mode. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cli/command.h"
#include "cli/generation.h"
#include "cli/report.h"
#include "cli/text_input.h"

/* What rank 0 holds. */
typedef struct {
    dw_rank *rank;
    dw_session *session;
    int32_t *prompt;
    int64_t prompt_count;
    int64_t context;
    int64_t *positions; /* [count] as asked for */
    int64_t count;
    int64_t capacity;
    int64_t *rows; /* [row_count] the same, ascending and each once */
    int64_t row_count;
    float *logits;          /* [row_count][vocabulary] */
    dw_rank_memory *memory; /* [ranks] */
} run;

static dw_status add_position(run *r, int64_t position, dw_error *err)
{
    if (position >= r->prompt_count) {
        return dw_fail(err, DW_USAGE, "--positions: %lld is outside the prompt (0..%lld)", (long long)position,
                       (long long)r->prompt_count - 1);
    }
    DW_TRY(DW_GROW(&r->positions, &r->capacity, r->count + 1, "positions", err));
    r->positions[r->count++] = position;
    return DW_OK;
}

static dw_status read_positions(run *r, dw_error *err)
{
    const char *text = r->rank->options->positions;
    if (text == NULL || strcmp(text, "last") == 0) return add_position(r, r->prompt_count - 1, err);
    if (strcmp(text, "all") == 0) {
        for (int64_t p = 0; p < r->prompt_count; p++) DW_TRY(add_position(r, p, err));
        return DW_OK;
    }
    for (;;) {
        int64_t position;
        if (!dw_parse_size(&text, &position) || (*text != ',' && *text != '\0')) {
            return dw_fail(err, DW_USAGE, "--positions '%.200s' is not all, last or a list of positions (like 5,10)",
                           r->rank->options->positions);
        }
        DW_TRY(add_position(r, position, err));
        if (*text == '\0') return DW_OK;
        text++;
    }
}

static int ascending(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a;
    const int64_t y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static dw_status sort_rows(run *r, dw_error *err)
{
    DW_TRY(DW_ALLOC(&r->rows, r->count, "positions", err));
    memcpy(r->rows, r->positions, (size_t)r->count * sizeof *r->rows);
    qsort(r->rows, (size_t)r->count, sizeof *r->rows, ascending);
    for (int64_t i = 0; i < r->count; i++) {
        if (i == 0 || r->rows[i] != r->rows[r->row_count - 1]) r->rows[r->row_count++] = r->rows[i];
    }
    return DW_OK;
}

static dw_status prepare(run *r, dw_error *err)
{
    const dw_rank *rank = r->rank;
    const int64_t vocabulary = rank->model->vocabulary;
    DW_TRY(dw_read_prompt(rank->options, rank->model, rank->tokenizer, &r->prompt, &r->prompt_count, err));
    DW_TRY(dw_choose_context(rank, r->prompt_count, 0, &r->context, err));
    DW_TRY(read_positions(r, err));
    DW_TRY(sort_rows(r, err));
    DW_TRY(DW_ALLOC(&r->memory, rank->transport->size, "memory report", err));
    return dw_alloc_bytes((void **)&r->logits, r->row_count, vocabulary * (int64_t)sizeof *r->logits, "logits", err);
}

static void release(run *r)
{
    dw_session_destroy(r->session);
    dw_free(r->prompt);
    dw_free(r->positions);
    dw_free(r->rows);
    dw_free(r->logits);
    dw_free(r->memory);
}

/* From the first chosen row on: each pass ends with a run of neighbouring chosen rows. */
static dw_status compute(run *r, dw_error *err)
{
    enum { ROWS = 256, WANTED = 64 };
    const int sparse = !dw_plan_is_dense(&r->rank->plans->plans[0]);
    int64_t at = r->rows[0];
    DW_TRY(dw_prefill(r->rank, r->session, r->prompt, at, NULL, err));
    for (int64_t row = 0; row < r->row_count;) {
        int64_t wanted = 0;
        int64_t count = r->rows[row] - at;
        if (count >= ROWS) {
            count = ROWS;
        } else {
            while (wanted < WANTED && row + wanted < r->row_count && r->rows[row + wanted] == r->rows[row] + wanted) wanted++;
            count += wanted;
        }
        DW_TRY(dw_session_append(r->session, r->prompt + at, count, sparse ? count : 0,
                                 wanted > 0 ? r->logits + row * r->rank->model->vocabulary : NULL, wanted, err));
        at += count;
        row += wanted;
    }
    return DW_OK;
}

static const float *logits_of(const run *r, int64_t position)
{
    const int64_t *row = bsearch(&position, r->rows, (size_t)r->row_count, sizeof *r->rows, ascending);
    return r->logits + (row - r->rows) * r->rank->model->vocabulary;
}

/* Written row by row: a JSON tree of many rows would take ten times their memory. */
static dw_status print_json(const run *r, dw_error *err)
{
    printf("{\"positions\": [");
    for (int64_t i = 0; i < r->count; i++) printf("%s%lld", i == 0 ? "" : ", ", (long long)r->positions[i]);
    printf("], \"logits\": [");
    for (int64_t i = 0; i < r->count; i++) {
        const float *logits = logits_of(r, r->positions[i]);
        printf(i == 0 ? "[" : ", [");
        for (int64_t v = 0; v < r->rank->model->vocabulary; v++) printf("%s%.9g", v == 0 ? "" : ", ", logits[v]);
        printf("]");
    }
    puts("]}");
    return dw_flush_output(err);
}

static dw_status print_plain(const run *r, dw_error *err)
{
    for (int64_t i = 0; i < r->count; i++) {
        const float *logits = logits_of(r, r->positions[i]);
        printf("%lld:", (long long)r->positions[i]);
        for (int64_t v = 0; v < r->rank->model->vocabulary; v++) printf(" %.9g", logits[v]);
        printf("\n");
    }
    return dw_flush_output(err);
}

static dw_status drive(run *r, dw_error *err)
{
    DW_TRY(compute(r, err));
    DW_TRY(dw_session_finish(r->session, r->memory, NULL, err));
    r->rank->alone = 1;
    if (r->rank->options->verbose) dw_print_machine(r->rank, r->memory);
    return r->rank->options->json ? print_json(r, err) : print_plain(r, err);
}

dw_status dw_logits(dw_rank *rank, dw_error *err)
{
    run r = {.rank = rank};
    const int coordinator = rank->transport->rank == 0;
    dw_status status = dw_rank_agree(rank, coordinator ? prepare(&r, err) : DW_OK, err);
    if (status == DW_OK) status = dw_open_session(rank, r.context, &r.session, err);
    if (status == DW_OK) status = coordinator ? drive(&r, err) : dw_session_serve(r.session, err);
    release(&r);
    return status;
}
