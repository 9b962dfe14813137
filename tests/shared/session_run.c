#include "tests/shared/session_run.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tests/shared/local_ranks.h"

enum { DEADLINE_SECONDS = 600 }; /* of one wait: only a rank that is lost reaches it */

static const char *const isa_names[] = {"scalar", "avx2", "avx512"};
enum { ISAS = sizeof isa_names / sizeof isa_names[0] };

typedef struct {
    session_outcome *out;
    const session_task *task;
    const session_setup *setup;
    dw_session_config config;
} run;

dw_model *session_model(const char *path)
{
    dw_model *model;
    dw_error err;
    cr_assert_eq(dw_model_load(&model, path, DW_FILE_MAP, &(dw_config_overrides){.rope_base = 0}, &err), DW_OK, "%s",
                 err.message);
    return model;
}

/* A warning of Criterion would make its exit status that of a failure. */
int session_has_isa(const char *isa)
{
    if (dw_kernels_named(isa) != NULL) return 1;
    fprintf(stderr, "this CPU has no %s: not tested\n", isa);
    return 0;
}

int32_t session_best(const float *logits, int64_t vocabulary)
{
    int32_t best = 0;
    for (int32_t id = 1; id < vocabulary; id++) {
        if (logits[id] > logits[best]) best = id;
    }
    return best;
}

static const dw_kernels *kernels_of(const session_setup *setup, int rank)
{
    const dw_kernels *found[ISAS];
    int count = 0;
    if (setup->isa == NULL) return dw_kernels_best();
    if (strcmp(setup->isa, "mixed") != 0) return dw_kernels_named(setup->isa);
    for (int i = 0; i < ISAS; i++) {
        const dw_kernels *kernels = dw_kernels_named(isa_names[i]);
        if (kernels != NULL) found[count++] = kernels;
    }
    cr_assert_gt(count, 0);
    return found[rank % count];
}

/* Coordinator: the prompt in one call, then token by token. */
static dw_status decode(void *context, dw_session *session, dw_error *err)
{
    const run *r = context;
    const session_task *task = r->task;
    session_outcome *out = r->out;
    float *next = out->logits + (task->wanted - 1) * out->vocabulary;
    DW_TRY(dw_session_append(session, task->prompt, task->count, task->sparse, out->logits, task->wanted, err));
    while (out->token_count < task->tokens) {
        const int32_t id = session_best(next, out->vocabulary);
        out->tokens[out->token_count++] = id;
        if (out->token_count == task->tokens) break;
        next += out->vocabulary;
        DW_TRY(dw_session_append(session, &id, 1, r->config.policy.mode != DW_DENSE, next, 1, err));
    }
    dw_session_omitted(session, &out->omitted);
    return dw_session_finish(session, NULL, NULL, err);
}

dw_status session_on_rank(dw_transport *t, const dw_model *model, int threads, const dw_kernels *kernels,
                          const dw_session_config *config, session_body *coordinate, void *context, dw_error *err)
{
    const dw_kernels *chosen = kernels != NULL ? kernels : dw_kernels_best();
    dw_session *session = NULL;
    dw_pool *pool = NULL;
    dw_status status;
    dw_set_float_state();
    DW_TRY_GOTO(status, dw_pool_create(&pool, threads, 0, err), end);
    DW_TRY_GOTO(status, dw_session_create(&session, model, t, pool, chosen, config, err), end);
    status = t->rank == 0 ? coordinate(context, session, err) : dw_session_serve(session, err);
end:
    if (status != DW_OK) t->ops->abort(t, status);
    dw_session_destroy(session);
    dw_pool_destroy(pool);
    return status;
}

static dw_status run_rank(dw_transport *t, void *context, dw_error *err)
{
    const run *r = context;
    const int threads = r->setup->threads > 0 ? r->setup->threads : 1 + t->rank % 3;
    const dw_kernels *kernels = kernels_of(r->setup, t->rank);
    if (kernels == NULL) {
        t->ops->abort(t, DW_RUNTIME);
        return dw_fail(err, DW_RUNTIME, "this CPU has no %s", r->setup->isa);
    }
    return session_on_rank(t, r->task->model, threads, kernels, &r->config, decode, context, err);
}

void session_run(session_outcome *out, const session_task *task, const session_setup *setup)
{
    run r = {.out = out, .task = task, .setup = setup, .config = setup->config};
    const int ranks = setup->ranks > 0 ? setup->ranks : 1;
    dw_error err;
    cr_assert(task->wanted >= 1 && task->wanted <= task->count);
    if (r.config.context == 0) r.config.context = task->count + task->tokens;
    *out = (session_outcome){.rows = task->wanted + (task->tokens > 0 ? task->tokens - 1 : 0),
                             .vocabulary = task->model->vocabulary};
    cr_assert_eq(DW_ALLOC(&out->logits, out->rows * out->vocabulary, "logits", &err), DW_OK, "%s", err.message);
    cr_assert_eq(DW_ALLOC(&out->tokens, task->tokens, "tokens", &err), DW_OK, "%s", err.message);
    cr_assert_eq(run_local_ranks(ranks, DEADLINE_SECONDS, run_rank, &r, NULL, &err), DW_OK, "%s", err.message);
}

void session_outcome_free(session_outcome *outcome)
{
    dw_free(outcome->logits);
    dw_free(outcome->tokens);
}

void session_expect_same_rows(const session_outcome *expected, const session_outcome *actual, const char *what)
{
    const int64_t count = expected->rows * expected->vocabulary;
    int64_t same = 0;
    cr_assert_eq(count, actual->rows * actual->vocabulary, "%s: another number of logits", what);
    while (same < count && memcmp(&expected->logits[same], &actual->logits[same], sizeof(float)) == 0) same++;
    cr_assert(same == count, "%s: row %lld, logit %lld is %.9g, not %.9g", what, (long long)(same / expected->vocabulary),
              (long long)(same % expected->vocabulary), actual->logits[same], expected->logits[same]);
    cr_assert_eq(expected->token_count, actual->token_count, "%s: another number of tokens", what);
    cr_assert(memcmp(expected->tokens, actual->tokens, (size_t)expected->token_count * sizeof(int32_t)) == 0,
              "%s: other tokens", what);
}

void session_expect_same(const session_outcome *expected, const session_outcome *actual, const char *what)
{
    dw_omitted e = expected->omitted;
    dw_omitted a = actual->omitted;
    e.key_bytes = e.survivors = a.key_bytes = a.survivors = 0; /* every rank finds its own best keys */
    session_expect_same_rows(expected, actual, what);
    cr_assert(memcmp(&e, &a, sizeof e) == 0,
              "%s: omitted mass sums to [%.17g, %.17g], the worst is in [%.17g, %.17g]; not [%.17g, %.17g], [%.17g, %.17g]",
              what, a.sum_low, a.sum_high, a.max_low, a.max_high, e.sum_low, e.sum_high, e.max_low, e.max_high);
}
