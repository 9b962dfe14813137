/* Linear layers that all ranks share (--linear split): the bits of one rank that computes everything, in every family, for one row and for
   as many as a verification has, dense and sparse. */
#include <criterion/criterion.h>

#include "model/split.h"
#include "mpi/drafting.h"
#include "tests/shared/dewpoint.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/prompts.h"
#include "tests/shared/reference.h"
#include "tests/shared/session_run.h"

enum { MOST = 64, TOKENS = 5 };

static const dw_policy dense = {.mode = DW_DENSE};
static const dw_policy condensate = {DW_CONDENSATE, .anchor = 1, .window = 4, .keys = 3};

/* A prompt that is one pass of shared rows (or more than that), then token by token. */
static void expect_split(const dw_model *model, int64_t count, const dw_policy *policy, const char *what)
{
    static const int ranks[] = {2, 3, 5, 8, 16};
    int32_t prompt[MOST];
    const session_task task = {model, prompt, count, .sparse = 0, .wanted = count < 3 ? count : 3, TOKENS};
    session_setup setup = {1, 1, NULL, {.key_type = DW_F16, .value_type = DW_F16, .policy = *policy}};
    session_outcome alone, shared;
    prompt_random(prompt, count, model->vocabulary);
    session_run(&alone, &task, &setup);
    setup.config.linear = DW_LINEAR_SPLIT;
    setup.threads = 0;
    setup.isa = "mixed";
    for (int i = 0; i < 5; i++) {
        setup.ranks = ranks[i];
        session_run(&shared, &task, &setup);
        session_expect_same(&alone, &shared, what);
        session_outcome_free(&shared);
    }
    session_outcome_free(&alone);
}

static void model_is_split(dw_model *model, const char *what)
{
    expect_split(model, DW_MAX_DRAFT + 1, &dense, what);
    expect_split(model, 1, &dense, what);
    expect_split(model, 40, &condensate, what);
    dw_model_free(model);
}

Test(split, every_family_gives_the_bits_of_one_rank)
{
    static const char *const names[] = {"llama-float16",  "qwen2-tied", "gpt2",  "neox-parallel",    "neox-sequential",
                                        "mistral-window", "gemma3",     "qwen3", "llama-bf16-shards"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[80];
        snprintf(path, sizeof path, "models/%s", names[i]);
        model_is_split(session_model(reference_path(path)), names[i]);
    }
}

/* Widths that are no multiple of what a rank takes at a time; fewer outputs than ranks. */
Test(split, odd_shapes_and_quantised_weights_give_the_bits_of_one_rank)
{
    static const fixture_spec specs[] = {
        {.hidden = 75, .heads = 9, .kv_heads = 3, .head_dim = 22, .feed_forward = 101, .vocabulary = 331},
        {.layers = 3, .heads = 5, .kv_heads = 1, .head_dim = 64},
        {.hidden = 12, .heads = 1, .kv_heads = 1, .head_dim = 6, .feed_forward = 5},
        {.family = "qwen2", .type = FIXTURE_MIXED, .layers = 3, .heads = 14, .head_dim = 32},
    };
    const char *path = fixture_path("model.gguf");
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        fixture_model(path, &specs[i]);
        model_is_split(session_model(path), "fixture");
    }
}

Test(split, shares_cover_all_outputs_once)
{
    for (int64_t outputs = 0; outputs < 200; outputs += 1 + outputs / 7) {
        for (int ranks = 1; ranks <= 64; ranks++) {
            int64_t next = 0;
            for (int r = 0; r < ranks; r++) {
                const dw_share share = dw_split_share_of(outputs, r, ranks);
                cr_assert(share.first == next && share.count >= 0, "rank %d of %d, %lld outputs", r, ranks, (long long)outputs);
                next += share.count;
            }
            cr_assert_eq(next, outputs, "%d ranks", ranks);
        }
    }
}

/* Lossless decoding verifies shared rows; the way is reported. */
Test(split, the_program_gives_the_same_tokens_on_mpi_ranks)
{
    static const char *const ways[] = {"replicated", "split"};
    const char *m = fixture_path("model.gguf");
    json_t *tokens[2];
    fixture_model(m, &(fixture_spec){.tokenizer = 1, .seed = 3});
    for (int i = 0; i < 2; i++) {
        dewpoint_result r = dewpoint_run(3, NULL,
                                         (const char *const[]){"generate", "-m", m, "-p", "the dew and the window", "--json",
                                                               "-n", "40", "--ignore-eos", "--draft", "6", "--linear", ways[i],
                                                               NULL});
        json_t *answer = json_loads(r.out, 0, NULL);
        cr_assert(r.status == 0 && answer != NULL, "%s", r.err);
        cr_assert_str_eq(json_string_value(json_object_get(json_object_get(answer, "traffic"), "linear")), ways[i]);
        tokens[i] = json_deep_copy(json_object_get(answer, "tokens"));
        cr_assert_eq(json_array_size(tokens[i]), 40);
        json_decref(answer);
        dewpoint_free(&r);
    }
    cr_assert(json_equal(tokens[0], tokens[1]));
    json_decref(tokens[0]);
    json_decref(tokens[1]);
}
