/* Promise P1 for plans: with the screen, with budgets of layers and heads, and with selections that serve several layers or rows or are
   made by blocks, tokens, logits and reports are the same on any number of ranks and threads. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "tests/shared/fixtures.h"
#include "tests/shared/prompts.h"
#include "tests/shared/session_run.h"

enum { LAYERS = 5, HEADS = 4, COUNT = 330, SPARSE = 40, GENERATED = 4 };

static dw_model *make_model(int32_t *prompt)
{
    const char *path = fixture_path("model.gguf");
    dw_model *model;
    fixture_model(path, &(fixture_spec){.layers = LAYERS});
    model = session_model(path);
    prompt_random(prompt, COUNT, model->vocabulary);
    return model;
}

/* The prompt's last rows and a few more tokens; policy.mode says only that rows are sparse. */
static void answer(session_outcome *out, const dw_model *model, const int32_t *prompt, const dw_policy_plan *plan, int ranks,
                   int threads, const char *isa)
{
    const session_task task = {model, prompt, COUNT, SPARSE, SPARSE, GENERATED};
    const session_setup setup = {
        ranks,
        threads,
        isa,
        {.key_type = DW_F16, .value_type = DW_F16, .policy = {.mode = DW_CONDENSATE}, .plans = plan, .plan_count = 1}};
    session_run(out, &task, &setup);
}

static void expect_invariant(const dw_policy_plan *plan, const char *what)
{
    static int32_t prompt[COUNT];
    dw_model *model = make_model(prompt);
    session_outcome expected, actual;
    answer(&expected, model, prompt, plan, 1, 1, "scalar");
    for (int ranks = 1; ranks <= 16; ranks += ranks < 5 ? 1 : 11) {
        answer(&actual, model, prompt, plan, ranks, 1 + ranks % 3, NULL);
        session_expect_same(&expected, &actual, what);
        cr_assert_eq(expected.omitted.recall_sum, actual.omitted.recall_sum, "%s: recall on %d ranks", what, ranks);
        session_outcome_free(&actual);
    }
    session_outcome_free(&expected);
    dw_model_free(model);
}

static dw_policy small = {DW_CONDENSATE, 1, 8, 16};

static dw_policy_plan plan_of(int64_t pillar, int64_t reuse, dw_selector selector)
{
    return (dw_policy_plan){.layers = &small,
                            .layer_count = 1,
                            .pillar = pillar,
                            .reuse = reuse,
                            .selector = selector,
                            .is_audited = 1,
                            .screen_from = INT64_MAX};
}

Test(invariance_plans, screen)
{
    dw_policy_plan plan = plan_of(1, 1, DW_SELECT_TOKENS);
    plan.screen_from = 0;
    expect_invariant(&plan, "screen");
}

Test(invariance_plans, pillar_layers)
{
    const dw_policy_plan plan = plan_of(2, 1, DW_SELECT_TOKENS);
    expect_invariant(&plan, "pillar");
}

Test(invariance_plans, reuse)
{
    const dw_policy_plan plan = plan_of(1, 7, DW_SELECT_TOKENS);
    expect_invariant(&plan, "reuse");
}

Test(invariance_plans, blocks_with_pillars_and_reuse)
{
    const dw_policy_plan plan = plan_of(3, 4, DW_SELECT_BLOCKS);
    expect_invariant(&plan, "blocks");
}

Test(invariance_plans, budgets_of_layers_and_heads)
{
    int64_t keys[HEADS] = {0, 3, 40, 7};
    dw_policy layers[LAYERS] = {{DW_DENSE}, small, {DW_CONDENSATE, 0, 1, 40, 0, 0, keys}, {DW_MASS, .epsilon = 0.05}, small};
    const dw_policy_plan plan = {.layers = layers, .layer_count = LAYERS, .pillar = 1, .reuse = 1, .screen_from = INT64_MAX};
    layers[4].has_tail = 1;
    expect_invariant(&plan, "layers");
}

static void expect_same_rows(const dw_policy_plan *a, const dw_policy_plan *b, int is_same, const char *what)
{
    static int32_t prompt[COUNT];
    dw_model *model = make_model(prompt);
    session_outcome x, y;
    answer(&x, model, prompt, a, 2, 1, NULL);
    answer(&y, model, prompt, b, 3, 1, NULL);
    if (is_same) {
        session_expect_same_rows(&x, &y, what);
    } else {
        int differ = 0;
        for (int64_t i = 0; i < x.rows * x.vocabulary; i++) differ |= x.logits[i] != y.logits[i];
        cr_assert(differ, "%s: the plan changes nothing", what);
    }
    session_outcome_free(&x);
    session_outcome_free(&y);
    dw_model_free(model);
}

/* The screen finds the same sets; what else a plan says must show. */
Test(invariance_plans, the_screen_changes_no_bit_and_sharing_does)
{
    const dw_policy_plan plain = plan_of(1, 1, DW_SELECT_TOKENS);
    const dw_policy_plan pillar = plan_of(2, 1, DW_SELECT_TOKENS);
    const dw_policy_plan reuse = plan_of(1, 7, DW_SELECT_TOKENS);
    const dw_policy_plan blocks = plan_of(1, 1, DW_SELECT_BLOCKS);
    dw_policy_plan screened = plain;
    screened.screen_from = 0;
    expect_same_rows(&plain, &screened, 1, "screen");
    expect_same_rows(&plain, &pillar, 0, "pillar");
    expect_same_rows(&plain, &reuse, 0, "reuse");
    expect_same_rows(&plain, &blocks, 0, "blocks");
}

/* With budgets for all that is visible, reused selections, and those by block, hold everything: dense attention's bits (a reused
   selection lacks the rows since; the window has them). */
Test(invariance_plans, selections_that_hold_everything_are_dense_bit_for_bit)
{
    static dw_policy all = {DW_CONDENSATE, 0, 64, 512};
    static dw_policy dense = {DW_DENSE};
    const dw_policy_plan everything = {.layers = &dense, .layer_count = 1, .pillar = 1, .reuse = 1, .screen_from = INT64_MAX};
    dw_policy_plan plan = {.layers = &all, .layer_count = 1, .pillar = 2, .reuse = 30, .screen_from = INT64_MAX};
    expect_same_rows(&everything, &plan, 1, "tokens");
    plan.selector = DW_SELECT_BLOCKS;
    expect_same_rows(&everything, &plan, 1, "blocks");
    plan = (dw_policy_plan){.layers = &all, .layer_count = 1, .pillar = 1, .reuse = 1, .screen_from = 0};
    expect_same_rows(&everything, &plan, 1, "screen");
}

/* Unless it is audited, a reused selection does not know what it leaves out, and says so. */
Test(invariance_plans, what_is_not_measured_is_reported_as_anything_from_nothing_to_all)
{
    static int32_t prompt[COUNT];
    dw_model *model = make_model(prompt);
    dw_policy_plan plan = plan_of(1, 1, DW_SELECT_BLOCKS);
    session_outcome audited, blind;
    answer(&audited, model, prompt, &plan, 2, 1, NULL);
    plan.is_audited = 0;
    answer(&blind, model, prompt, &plan, 2, 1, NULL);
    session_expect_same_rows(&audited, &blind, "audit");
    cr_assert(blind.omitted.sum_low == 0 && blind.omitted.sum_high == (double)blind.omitted.count);
    cr_assert(audited.omitted.sum_low > 0 && audited.omitted.sum_high < (double)audited.omitted.count);
    cr_assert(audited.omitted.recall_sum > 0 && audited.omitted.recall_sum < (double)audited.omitted.recall_count);
    cr_assert_eq(blind.omitted.recall_count, 0);
    session_outcome_free(&audited);
    session_outcome_free(&blind);
    dw_model_free(model);
}
