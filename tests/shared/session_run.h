/* Greedy decoding through dw_session on simulated ranks, for tests of what a session promises whatever the ranks, threads,
   kernels and chunks. For Criterion tests: anything that goes wrong fails the test. */
#ifndef DW_TESTS_SESSION_RUN_H
#define DW_TESTS_SESSION_RUN_H

#include "decode/session.h"

/* How a sequence is computed. Nothing here may change a bit, but config's policy and cache types. */
typedef struct {
    int ranks;       /* 0: 1 */
    int threads;     /* of every rank; 0: rank r has 1 + r mod 3 */
    const char *isa; /* "scalar", "avx2", "avx512"; "mixed": the ranks take turns among those that run here; NULL: best */
    dw_session_config config; /* context 0: what the sequence needs */
} session_setup;

/* What is computed. */
typedef struct {
    const dw_model *model;
    const int32_t *prompt;
    int64_t count;  /* ids of the prompt, >= 1 */
    int64_t sparse; /* the last rows of the prompt that attend by the policy; generated tokens attend by it anyway */
    int64_t wanted; /* the last rows of the prompt whose logits are kept, >= 1 */
    int64_t tokens; /* to generate */
} session_task;

typedef struct {
    int64_t rows; /* wanted + tokens - 1, or wanted when no token was asked for */
    int64_t vocabulary;
    float *logits;   /* [rows][vocabulary]: the wanted rows of the prompt, then one of each generated token but the last */
    int32_t *tokens; /* [task.tokens] */
    int64_t token_count;
    dw_omitted omitted;
} session_outcome;

/* Free the outcome with session_outcome_free. */
void session_run(session_outcome *out, const session_task *task, const session_setup *setup);
void session_outcome_free(session_outcome *outcome);

/* Fails the test unless both hold the same logits, bit for bit, and the same tokens. what: names the second. */
void session_expect_same_rows(const session_outcome *expected, const session_outcome *actual, const char *what);

/* The omitted mass has to be the same as well. */
void session_expect_same(const session_outcome *expected, const session_outcome *actual, const char *what);

/* What the coordinator does with its session; context is the caller's. */
typedef dw_status session_body(void *context, dw_session *session, dw_error *err);

/* For the rank_body of run_local_ranks: a session on this rank, which rank 0 drives by `coordinate` and the others serve; a rank that fails ends
   them all. kernels: NULL: best. */
dw_status session_on_rank(dw_transport *transport, const dw_model *model, int threads, const dw_kernels *kernels,
                          const dw_session_config *config, session_body *coordinate, void *context, dw_error *err);

/* Whether this CPU runs the instruction set; if not, a line on stderr says that it was not tested. */
int session_has_isa(const char *isa);

/* The largest logit's id, the lowest of equal ones. */
int32_t session_best(const float *logits, int64_t vocabulary);

/* Loads a model or fails the test. */
dw_model *session_model(const char *path);

#endif
