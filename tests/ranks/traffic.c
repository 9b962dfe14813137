/* The bytes and messages of one decoded row against the formulas of docs/protocol.md. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "base/pool.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/local_ranks.h"
#include "tests/shared/prompts.h"
#include "tests/shared/session_run.h"

enum { LAYERS = 2, HEADS = 4, KV_HEADS = 2, G = HEADS / KV_HEADS, D = 16, COUNT = 200, CACHE = 2 /* bytes of an f16 */ };

typedef struct {
    const dw_model *model;
    const dw_policy_plan *plan;
    dw_linear_way linear;
    dw_traffic row; /* of all ranks, without the question for it */
} run;

static dw_status coordinate(void *context, dw_session *session, dw_error *err)
{
    run *r = context;
    static int32_t prompt[COUNT];
    static float logits[4096];
    dw_traffic before, idle, after;
    prompt_random(prompt, COUNT, r->model->vocabulary);
    DW_TRY(dw_session_append(session, prompt, COUNT, 0, NULL, 0, err));
    DW_TRY(dw_session_traffic(session, &before, err));
    DW_TRY(dw_session_traffic(session, &idle, err));
    DW_TRY(dw_session_append(session, prompt, 1, !dw_plan_is_dense(r->plan), logits, 1, err));
    DW_TRY(dw_session_traffic(session, &after, err));
    r->row.bytes_sent = after.bytes_sent - idle.bytes_sent - (idle.bytes_sent - before.bytes_sent);
    r->row.messages_sent = after.messages_sent - idle.messages_sent - (idle.messages_sent - before.messages_sent);
    return dw_session_finish(session, NULL, NULL, err);
}

static dw_status run_rank(dw_transport *t, void *context, dw_error *err)
{
    run *r = context;
    const dw_session_config config = {
        .context = COUNT + 2, .key_type = DW_F16, .value_type = DW_F16, .plans = r->plan, .plan_count = 1, .linear = r->linear};
    return session_on_rank(t, r->model, 1, NULL, &config, coordinate, r, err);
}

static dw_traffic row_of(const dw_policy_plan *plan, int ranks, dw_linear_way linear)
{
    const char *path = fixture_path("model.gguf");
    run r = {.plan = plan, .linear = linear};
    dw_model *model;
    dw_error err;
    fixture_model(path, &(fixture_spec){0});
    model = session_model(path);
    r.model = model;
    cr_assert_eq(run_local_ranks(ranks, 60, run_rank, &r, NULL, &err), DW_OK, "%s", err.message);
    dw_model_free(model);
    return r.row;
}

enum { COMMAND = 8 * 7 + 4 * 18 }; /* the command before a pass: seven numbers, 18 ids */

static int64_t round_up(int64_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* q, k and v of one row. */
static int64_t gathered_row(void)
{
    return round_up(4 * HEADS * D + KV_HEADS * D * (CACHE + CACHE));
}

static int64_t partial_sums(void)
{
    return HEADS * (8 + 24 * (D + 1));
}

/* Of all KV heads; forced and values: on the ranks merged so far. */
static int64_t proposal(int64_t forced, int64_t best, int64_t values)
{
    return KV_HEADS * (48 + 72 * G + 8 * forced + round_up(4 * G * forced) + 24 * best + (8 + CACHE * D) * values);
}

static dw_policy_plan plan_of(dw_policy *policy)
{
    return (dw_policy_plan){.layers = policy, .layer_count = 1, .pillar = 1, .reuse = 1, .screen_from = INT64_MAX};
}

static void expect(const dw_policy_plan *plan, int ranks, int64_t rounds, int64_t bytes_of_layer, const char *what)
{
    const dw_traffic row = row_of(plan, ranks, DW_LINEAR_REPLICATED);
    cr_assert_eq(row.messages_sent, (ranks - 1) * (1 + LAYERS * rounds), "%s on %d ranks: %lld messages", what, ranks,
                 (long long)row.messages_sent);
    cr_assert_eq(row.bytes_sent, (ranks - 1) * COMMAND + LAYERS * bytes_of_layer, "%s on %d ranks: %lld bytes, not %lld", what,
                 ranks, (long long)row.bytes_sent, (long long)((ranks - 1) * COMMAND + LAYERS * bytes_of_layer));
}

Test(traffic, dense_and_mass_send_what_the_formulas_say)
{
    static const int64_t histograms = HEADS * (24 + 16 * 384);
    for (int ranks = 2; ranks <= 5; ranks++) {
        dw_policy dense = {DW_DENSE};
        dw_policy mass = {DW_MASS, .epsilon = 0.01};
        const dw_policy_plan plans[] = {plan_of(&dense), plan_of(&mass)};
        expect(&plans[0], ranks, 2, (ranks - 1) * (gathered_row() + partial_sums()), "dense");
        expect(&plans[1], ranks, 4, (ranks - 1) * (gathered_row() + histograms + 8 * HEADS + partial_sums()), "mass");
    }
}

/* Linear layers that all ranks share: four all-gathers by a ring, and what attention returns, a layer; in the end the logits of the others. */
Test(traffic, shared_linear_layers_send_what_the_formula_says)
{
    enum { HIDDEN = 64, INNER = 96, VOCABULARY = 320 };
    dw_policy dense = {DW_DENSE};
    const dw_policy_plan plan = plan_of(&dense);
    for (int ranks = 2; ranks <= 5; ranks++) {
        const dw_traffic row = row_of(&plan, ranks, DW_LINEAR_SPLIT);
        const int64_t others = ranks - 1;
        const int64_t gathers = 4 * ((HEADS + 2 * KV_HEADS) * D + HIDDEN + INNER + HIDDEN);
        const int64_t logits = 4 * (VOCABULARY - VOCABULARY / 8 / ranks * 8);
        const int64_t bytes = others * COMMAND + LAYERS * others * (gathers + partial_sums() + 4 * HEADS * D) + logits;
        cr_assert_eq(row.messages_sent, others * (2 + LAYERS * (2 + 4 * ranks)), "%lld", (long long)row.messages_sent);
        cr_assert_eq(row.bytes_sent, bytes, "%d ranks: %lld bytes, not %lld", ranks, (long long)row.bytes_sent,
                     (long long)bytes);
    }
}

/* Sets without best keys have no value twice: what each rank of two sends is known. The row is at 200: of its window of 100 positions 101 to
   191 lie in blocks 1 and 2, the rest in block 3; rank 1 has blocks 1 and 3. */
Test(traffic, a_condensate_sends_what_the_formula_says)
{
    dw_policy window = {DW_CONDENSATE, 0, 100, 0};
    dw_policy tail = {DW_CONDENSATE, 0, 100, 0, 0, 1};
    const dw_policy_plan plans[] = {plan_of(&window), plan_of(&tail)};
    const int64_t on_rank_1 = (128 - 101) + (201 - 192);
    const int64_t sent = gathered_row() + proposal(on_rank_1, 0, on_rank_1);
    expect(&plans[0], 2, 2, sent, "window");
    expect(&plans[1], 2, 4, sent + 16 * HEADS + partial_sums(), "window with a tail");
}

/* With best keys a value travels once for all heads that name it. */
Test(traffic, best_keys_send_at_most_what_the_formula_says)
{
    dw_policy best = {DW_CONDENSATE, 0, 1, 8};
    const dw_policy_plan plan = plan_of(&best);
    const dw_traffic row = row_of(&plan, 2, DW_LINEAR_REPLICATED);
    const int64_t fixed = COMMAND + LAYERS * gathered_row();
    cr_assert_eq(row.messages_sent, 1 + LAYERS * 2);
    cr_assert_geq(row.bytes_sent, fixed + LAYERS * proposal(1, 8 * G, 8));
    cr_assert_leq(row.bytes_sent, fixed + LAYERS * proposal(1, 8 * G, 8 * G + 1));
}

/* A pillar tells every rank its selection: one more message each, H (1 + k) numbers; the layer behind it does not. */
Test(traffic, a_pillar_sends_its_selection_round)
{
    dw_policy best = {DW_CONDENSATE, 0, 1, 8};
    dw_policy_plan plan = plan_of(&best);
    dw_traffic row;
    plan.pillar = 2;
    row = row_of(&plan, 2, DW_LINEAR_REPLICATED);
    cr_assert_eq(row.messages_sent, 1 + 3 + 2);
    cr_assert_leq(row.bytes_sent, COMMAND + LAYERS * (gathered_row() + proposal(1, 8 * G, 8 * G + 1)) + 8 * HEADS * (1 + 8));
}
