/* Nothing is allocated while tokens are decoded, in no mode. One rank: between simulated ranks a mailbox grows with its largest message, when the
   receiver is late. */
#include <criterion/criterion.h>

#include "base/memory.h"
#include "decode/drafters.h"
#include "mpi/drafting.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/local_ranks.h"
#include "tests/shared/prompts.h"
#include "tests/shared/session_run.h"

enum { PROMPT = 700, ROWS = 6, CONTEXT = 900, VOCABULARY = 320 };

typedef struct {
    const dw_model *model;
    dw_policy policy;
    int is_lossless;
    int64_t allocations; /* in the last ROWS rows or passes */
} task;

static dw_status decode_rows(const task *t, dw_session *session, int64_t rows, dw_error *err)
{
    static float logits[VOCABULARY];
    const int32_t id = 5;
    for (int64_t i = 0; i < rows; i++) {
        DW_TRY(dw_session_append(session, &id, 1, t->policy.mode != DW_DENSE, logits, 1, err));
    }
    return DW_OK;
}

static dw_status decode_passes(dw_lossless *lossless, int32_t *ids, int64_t passes, dw_error *err)
{
    for (int64_t i = 0; i < passes; i++) {
        const dw_history history = {ids, dw_session_positions(lossless->session) + 1};
        int64_t count;
        DW_TRY(dw_lossless_step(lossless, &history, 6, ids + history.count, &count, err));
    }
    return DW_OK;
}

/* The first rows may allocate. */
static dw_status count_rows(task *t, dw_session *session, dw_error *err)
{
    int64_t before;
    DW_TRY(decode_rows(t, session, 2, err));
    before = dw_memory_allocations();
    DW_TRY(decode_rows(t, session, ROWS, err));
    t->allocations = dw_memory_allocations() - before;
    return DW_OK;
}

static dw_status count_passes(task *t, dw_session *session, int32_t *ids, dw_error *err)
{
    static float logits[(DW_MAX_DRAFT + 1) * VOCABULARY];
    static const dw_sampling greedy = {.top_p = 1};
    dw_sampler *sampler = NULL;
    dw_drafts drafts = {0};
    dw_status status = dw_sampler_create(&sampler, &greedy, VOCABULARY, err);
    dw_lossless lossless = {session, sampler, VOCABULARY, logits, dw_draft, dw_drafts_outcome, &drafts, 0, 0, 0};
    if (status == DW_OK) status = dw_drafts_create(&drafts, session, sampler, VOCABULARY, 6, DW_DRAFT_BY_MODEL, err);
    if (status == DW_OK) status = decode_passes(&lossless, ids, 3, err);
    if (status == DW_OK) {
        const int64_t before = dw_memory_allocations();
        status = decode_passes(&lossless, ids, ROWS, err);
        t->allocations = dw_memory_allocations() - before;
        cr_assert_gt(lossless.drafted, 0);
    }
    dw_sampler_destroy(sampler);
    dw_drafts_free(&drafts);
    return status;
}

static dw_status coordinate(void *context, dw_session *session, dw_error *err)
{
    task *t = context;
    static int32_t ids[CONTEXT + 1];
    prompt_random(ids, PROMPT + 1, VOCABULARY);
    DW_TRY(dw_session_append(session, ids, PROMPT, 0, NULL, 0, err));
    DW_TRY(t->is_lossless ? count_passes(t, session, ids, err) : count_rows(t, session, err));
    return dw_session_finish(session, NULL, NULL, err);
}

static dw_status run_rank(dw_transport *transport, void *context, dw_error *err)
{
    task *t = context;
    const dw_session_config config = {.context = CONTEXT,
                                      .key_type = DW_F16,
                                      .value_type = DW_F16,
                                      .policy = t->policy,
                                      .has_screen = t->policy.mode == DW_CONDENSATE,
                                      .can_draft = t->is_lossless};
    return session_on_rank(transport, t->model, 2, NULL, &config, coordinate, t, err);
}

Test(allocations, decoding_allocates_nothing)
{
    static const task tasks[] = {
        {.policy = {DW_DENSE}},
        {.policy = {DW_CONDENSATE, 1, 64, 32}},
        {.policy = {DW_CONDENSATE, 1, 64, 32, .has_tail = 1}},
        {.policy = {DW_MASS, .epsilon = 0.01}},
        {.policy = {DW_DENSE}, .is_lossless = 1},
    };
    const char *path = fixture_path("model.gguf");
    dw_model *model;
    fixture_model(path, &(fixture_spec){0});
    model = session_model(path);
    for (size_t i = 0; i < sizeof tasks / sizeof tasks[0]; i++) {
        task t = tasks[i];
        dw_error err;
        t.model = model;
        t.allocations = -1;
        cr_assert_eq(run_local_ranks(1, 60, run_rank, &t, NULL, &err), DW_OK, "%s", err.message);
        cr_assert_eq(t.allocations, 0, "case %zu: %lld allocations", i, (long long)t.allocations);
    }
    dw_model_free(model);
}
