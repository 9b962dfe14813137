/* Promise P1 on simulated ranks: tokens, logits and omitted mass are the same bit for bit, however many ranks, threads and
   rows a pass there are, and whatever the instruction set. Every run is compared with the definition: one rank, one thread,
   scalar kernels. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "tests/shared/fixtures.h"
#include "tests/shared/prompts.h"
#include "tests/shared/session_run.h"

enum { MOST_TOKENS = 2100, GENERATED = 4 };

static const dw_policy dense = {.mode = DW_DENSE};
static const dw_policy condensate = {DW_CONDENSATE, .anchor = 1, .window = 64, .keys = 32}; /* the defaults of the program */

/* Ways to compute the same. ranks, threads, isa: as in session_setup. chunk: rows of a pass, 0: default. */
typedef struct {
    int ranks, threads;
    const char *isa;
    int64_t chunk;
} variant;

static const variant variants[] = {
    {1, 1, "avx2", 0},   {1, 1, "avx512", 0}, {1, 2, NULL, 1},  {1, 3, NULL, 7},      {1, 2, NULL, 64},
    {2, 1, NULL, 7},     {3, 2, "avx2", 0},   {4, 1, NULL, 64}, {5, 3, NULL, 64},     {7, 1, "scalar", 0},
    {8, 2, "avx512", 7}, {13, 1, NULL, 1},    {16, 1, NULL, 0}, {16, 0, "mixed", 64},
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

static const variant few_variants[] = {{1, 2, "avx2", 0}, {1, 3, "avx512", 7}, {3, 1, NULL, 64}, {16, 0, "mixed", 0}};
enum { FEW = sizeof few_variants / sizeof few_variants[0] };

/* A prompt of random ids and a random model. */
typedef struct {
    dw_model *model;
    int32_t prompt[MOST_TOKENS];
} fixture;

static fixture make_fixture(const fixture_spec *spec)
{
    const char *path = fixture_path("model.gguf");
    fixture f;
    fixture_model(path, spec);
    f.model = session_model(path);
    prompt_random(f.prompt, MOST_TOKENS, f.model->vocabulary);
    return f;
}

static session_setup setup_of(const variant *v, const dw_policy *policy, dw_type key_type, dw_type value_type)
{
    return (session_setup){.ranks = v->ranks,
                           .threads = v->threads,
                           .isa = v->isa,
                           .config = {.key_type = key_type, .value_type = value_type, .policy = *policy, .chunk = v->chunk}};
}

static int runs_here(const variant *v)
{
    const char *isa = v->isa;
    return isa == NULL || isa[0] == 'm' || session_has_isa(isa);
}

/* All rows of the prompt and GENERATED tokens. */
typedef struct {
    const fixture *fixture;
    int64_t count;  /* tokens of the prompt, all of whose logits are compared */
    int64_t sparse; /* last rows of it that attend by the policy */
    dw_policy policy;
    dw_type key_type, value_type;
} question;

static void answer(session_outcome *out, const question *q, const variant *v)
{
    const session_task task = {q->fixture->model, q->fixture->prompt, q->count, q->sparse, q->count, GENERATED};
    const session_setup setup = setup_of(v, &q->policy, q->key_type, q->value_type);
    session_run(out, &task, &setup);
}

/* Compares every variant with the first one. */
static void expect_same(const question *q, const variant *first, const variant *list, int count)
{
    session_outcome expected;
    answer(&expected, q, first);
    for (int i = 0; i < count; i++) {
        const variant *v = &list[i];
        session_outcome actual;
        char what[128];
        if (!runs_here(v)) continue;
        snprintf(what, sizeof what, "%d ranks, %d threads, %s kernels, chunk %lld", v->ranks, v->threads,
                 v->isa != NULL ? v->isa : "best", (long long)v->chunk);
        answer(&actual, q, v);
        session_expect_same(&expected, &actual, what);
        session_outcome_free(&actual);
    }
    session_outcome_free(&expected);
}

static const variant definition = {1, 1, "scalar", 0};

static void expect_invariant(const question *q, const variant *list, int count)
{
    expect_same(q, &definition, list, count);
}

/* Any number of ranks from 1 to 16. */
static void expect_invariant_on_1_to_16_ranks(const question *q)
{
    variant list[16];
    for (int i = 0; i < 16; i++) list[i] = (variant){.ranks = i + 1, .threads = 1 + i % 2};
    expect_invariant(q, list, 16);
}

static void dense_prompt_of(int64_t count)
{
    const fixture f = make_fixture(&(fixture_spec){0});
    expect_invariant(&(question){&f, count, 0, dense, DW_F16, DW_F16}, variants, VARIANTS);
    dw_model_free(f.model);
}

/* Every row of the prompt attends sparsely. */
static void condensate_prompt_of(int64_t count, const dw_policy *policy)
{
    const fixture f = make_fixture(&(fixture_spec){0});
    expect_invariant(&(question){&f, count, count, *policy, DW_F16, DW_F16}, variants, VARIANTS);
    dw_model_free(f.model);
}

Test(invariance, dense_prompt_of_1_token_gives_the_same_bits_on_any_ranks_threads_kernels_and_chunks)
{
    dense_prompt_of(1);
}

Test(invariance, dense_prompt_of_63_tokens_gives_the_same_bits_on_any_ranks_threads_kernels_and_chunks)
{
    dense_prompt_of(63);
}

Test(invariance, dense_prompt_of_64_tokens_gives_the_same_bits_on_any_ranks_threads_kernels_and_chunks)
{
    dense_prompt_of(64);
}

Test(invariance, dense_prompt_of_65_tokens_gives_the_same_bits_on_any_ranks_threads_kernels_and_chunks)
{
    dense_prompt_of(65);
}

Test(invariance, dense_prompt_of_205_tokens_gives_the_same_bits_on_any_ranks_threads_kernels_and_chunks)
{
    dense_prompt_of(205);
}

Test(invariance, dense_prompt_of_513_tokens_gives_the_same_bits_on_any_ranks_threads_kernels_and_chunks)
{
    dense_prompt_of(513);
}

Test(invariance, condensate_of_1_token_gives_the_same_bits_on_any_ranks_threads_kernels_and_chunks)
{
    condensate_prompt_of(1, &condensate);
}

Test(invariance, condensate_of_63_tokens_gives_the_same_bits_on_any_ranks_threads_kernels_and_chunks)
{
    condensate_prompt_of(63, &condensate);
}

Test(invariance, condensate_of_64_tokens_gives_the_same_bits_on_any_ranks_threads_kernels_and_chunks)
{
    condensate_prompt_of(64, &condensate);
}

Test(invariance, condensate_of_65_tokens_gives_the_same_bits_on_any_ranks_threads_kernels_and_chunks)
{
    condensate_prompt_of(65, &condensate);
}

Test(invariance, condensate_of_205_tokens_gives_the_same_bits_on_any_ranks_threads_kernels_and_chunks)
{
    condensate_prompt_of(205, &condensate);
}

Test(invariance, condensate_of_513_tokens_gives_the_same_bits_on_any_ranks_threads_kernels_and_chunks)
{
    condensate_prompt_of(513, &condensate);
}

Test(invariance, dense_205_tokens_on_1_to_16_ranks_have_the_bits_of_the_definition)
{
    const fixture f = make_fixture(&(fixture_spec){0});
    expect_invariant_on_1_to_16_ranks(&(question){&f, 205, 0, dense, DW_F16, DW_F16});
    dw_model_free(f.model);
}

Test(invariance, condensate_205_tokens_on_1_to_16_ranks_have_the_bits_of_the_definition)
{
    const fixture f = make_fixture(&(fixture_spec){0});
    expect_invariant_on_1_to_16_ranks(&(question){&f, 205, 205, condensate, DW_F16, DW_F16});
    dw_model_free(f.model);
}

/* As generate does it. */
Test(invariance, condensate_decoding_after_a_dense_prefill_of_205_tokens_on_1_to_16_ranks_has_the_bits_of_the_definition)
{
    const fixture f = make_fixture(&(fixture_spec){0});
    expect_invariant_on_1_to_16_ranks(&(question){&f, 205, 0, condensate, DW_F16, DW_F16});
    dw_model_free(f.model);
}

/* Two threads and more cut a shard of 8 blocks or more into slices when there are few rows. The definition is too slow
   here; the best kernels on one thread are the yardstick. */
static void slices_change_nothing(int64_t sparse, const dw_policy *policy)
{
    static const variant one_thread = {1, 1, NULL, 0};
    static const variant sliced[] = {
        {1, 2, NULL, 1}, {1, 3, NULL, 0}, {2, 2, NULL, 0}, {2, 3, NULL, 7}, {3, 3, NULL, 0}, {4, 0, "mixed", 0},
    };
    const fixture f = make_fixture(&(fixture_spec){0});
    expect_same(&(question){&f, 2100, sparse, *policy, DW_F16, DW_F16}, &one_thread, sliced, sizeof sliced / sizeof sliced[0]);
    dw_model_free(f.model);
}

Test(invariance, dense_prompt_of_2100_tokens_whose_shards_are_cut_into_slices_for_threads)
{
    slices_change_nothing(0, &dense);
}

Test(invariance, condensate_of_2100_tokens_whose_shards_are_cut_into_slices_for_threads)
{
    slices_change_nothing(100, &condensate);
}

Test(invariance, condensate_without_anchor_and_with_a_window_of_the_row_alone)
{
    condensate_prompt_of(205, &(dw_policy){DW_CONDENSATE, .anchor = 0, .window = 1, .keys = 3});
}

Test(invariance, condensate_of_best_keys_only)
{
    condensate_prompt_of(205, &(dw_policy){DW_CONDENSATE, .anchor = 0, .window = 0, .keys = 5});
}

Test(invariance, condensate_of_anchor_and_window_only)
{
    condensate_prompt_of(205, &(dw_policy){DW_CONDENSATE, .anchor = 3, .window = 17, .keys = 0});
}

Test(invariance, condensate_whose_anchor_window_and_keys_span_blocks_and_overlap)
{
    condensate_prompt_of(205, &(dw_policy){DW_CONDENSATE, .anchor = 70, .window = 130, .keys = 40});
}

Test(invariance, equal_scores_of_all_keys_are_broken_by_position_on_any_ranks)
{
    const fixture f = make_fixture(&(fixture_spec){.equal_scores = 1});
    const dw_policy three_keys = {DW_CONDENSATE, .anchor = 0, .window = 1, .keys = 3};
    expect_invariant(&(question){&f, 205, 0, dense, DW_F16, DW_F16}, variants, VARIANTS);
    expect_invariant(&(question){&f, 205, 205, condensate, DW_F16, DW_F16}, variants, VARIANTS);
    expect_invariant(&(question){&f, 205, 205, three_keys, DW_F16, DW_F16}, variants, VARIANTS);
    dw_model_free(f.model);
}

/* With a policy that names every visible position, all rows sparse, on several ranks. */
static void equals_dense(const fixture *f, int64_t count, const dw_policy *policy, const char *what)
{
    session_outcome expected;
    answer(&expected, &(question){f, count, 0, dense, DW_F16, DW_F16}, &definition);
    for (int i = 0; i < FEW; i++) {
        session_outcome actual;
        if (!runs_here(&few_variants[i])) continue;
        answer(&actual, &(question){f, count, count, *policy, DW_F16, DW_F16}, &few_variants[i]);
        session_expect_same_rows(&expected, &actual, what);
        cr_assert(actual.omitted.count > 0 && actual.omitted.max_low <= 0, "%s: all keys are in the set", what);
        session_outcome_free(&actual);
    }
    session_outcome_free(&expected);
}

Test(invariance, condensate_with_keys_beyond_the_context_is_dense_bit_for_bit)
{
    const fixture f = make_fixture(&(fixture_spec){0});
    equals_dense(&f, 65, &(dw_policy){DW_CONDENSATE, .anchor = 1, .window = 64, .keys = 1000}, "65 tokens, 1+64+1000");
    equals_dense(&f, 205, &(dw_policy){DW_CONDENSATE, .anchor = 0, .window = 1, .keys = 1000}, "205 tokens, 0+1+1000");
    equals_dense(&f, 513, &(dw_policy){DW_CONDENSATE, .anchor = 0, .window = 0, .keys = 517}, "513 tokens, 0+0+517");
    dw_model_free(f.model);
}

Test(invariance, condensate_with_a_window_or_an_anchor_beyond_the_context_is_dense_bit_for_bit)
{
    const fixture f = make_fixture(&(fixture_spec){0});
    equals_dense(&f, 205, &(dw_policy){DW_CONDENSATE, .anchor = 0, .window = 1000, .keys = 0}, "window");
    equals_dense(&f, 205, &(dw_policy){DW_CONDENSATE, .anchor = 1000, .window = 0, .keys = 0}, "anchor");
    dw_model_free(f.model);
}

/* Both modes on a model with other weights or of another shape. */
static void model_is_invariant(const fixture_spec *spec)
{
    const fixture f = make_fixture(spec);
    expect_invariant(&(question){&f, 130, 0, dense, DW_F16, DW_F16}, variants, VARIANTS);
    expect_invariant(&(question){&f, 130, 130, condensate, DW_F16, DW_F16}, few_variants, FEW);
    dw_model_free(f.model);
}

Test(invariance, q8_0_weights)
{
    model_is_invariant(&(fixture_spec){.type = FIXTURE_Q8_0});
}

Test(invariance, q4_1_weights)
{
    model_is_invariant(&(fixture_spec){.type = FIXTURE_Q4_1});
}

Test(invariance, q4_1_weights_and_a_q8_0_embedding_that_is_the_head_too)
{
    model_is_invariant(&(fixture_spec){.type = FIXTURE_MIXED});
}

Test(invariance, sizes_that_fill_no_vector_register_and_three_heads_a_kv_head)
{
    model_is_invariant(
        &(fixture_spec){.hidden = 75, .heads = 9, .kv_heads = 3, .head_dim = 22, .feed_forward = 101, .vocabulary = 331});
}

Test(invariance, one_kv_head)
{
    model_is_invariant(&(fixture_spec){.layers = 3, .heads = 5, .kv_heads = 1, .head_dim = 64});
}

/* Biases of Q, K and V, and rotation pairs in halves. */
Test(invariance, qwen2)
{
    model_is_invariant(&(fixture_spec){.family = "qwen2"});
}

Test(invariance, qwen2_with_q4_1_weights_and_a_q8_0_embedding_that_is_the_head_too)
{
    model_is_invariant(&(fixture_spec){.family = "qwen2", .type = FIXTURE_MIXED, .layers = 3, .heads = 14, .head_dim = 32});
}

Test(invariance, qwen2_of_sizes_that_fill_no_vector_register)
{
    model_is_invariant(&(fixture_spec){
        .family = "qwen2", .hidden = 75, .heads = 9, .kv_heads = 3, .head_dim = 22, .feed_forward = 101, .vocabulary = 331});
}

Test(invariance, qwen2_dense_205_tokens_on_1_to_16_ranks_have_the_bits_of_the_definition)
{
    const fixture f = make_fixture(&(fixture_spec){.family = "qwen2"});
    expect_invariant_on_1_to_16_ranks(&(question){&f, 205, 0, dense, DW_F16, DW_F16});
    dw_model_free(f.model);
}

static void cache_is_invariant(dw_type key_type, dw_type value_type)
{
    const fixture f = make_fixture(&(fixture_spec){0});
    expect_invariant(&(question){&f, 130, 0, dense, key_type, value_type}, few_variants, FEW);
    expect_invariant(&(question){&f, 130, 130, condensate, key_type, value_type}, few_variants, FEW);
    dw_model_free(f.model);
}

Test(invariance, f32_cache)
{
    cache_is_invariant(DW_F32, DW_F32);
}

Test(invariance, bf16_cache)
{
    cache_is_invariant(DW_BF16, DW_BF16);
}

Test(invariance, f16_keys_and_f32_values)
{
    cache_is_invariant(DW_F16, DW_F32);
}
