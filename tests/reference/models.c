/* Small checkpoints of families llama and qwen2 against Hugging Face transformers in float32: ../shared/reference/README.md,
   models/. */
#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/shared/fixtures.h"
#include "tests/shared/reference.h"
#include "tests/shared/session_run.h"

/* Two float32 evaluations of the reference are up to 9.1e-5 apart, so that a third is within 2e-4; measured: 5.6e-5. */
#define TOLERANCE 2e-4

enum { CAPACITY = 512 };

static const int rank_counts[] = {1, 3, 4};

static int64_t append_ids(int32_t *ids, int64_t count, const json_t *array)
{
    const int64_t more = (int64_t)json_array_size(array);
    cr_assert(more > 0 && count + more <= CAPACITY);
    for (int64_t i = 0; i < more; i++) ids[count + i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    return count + more;
}

/* Largest error over the rows that the reference lists; outcome holds all rows. */
static double largest_error(const session_outcome *outcome, const json_t *expected)
{
    const json_t *positions = json_object_get(expected, "logits_positions");
    const json_t *rows = json_object_get(expected, "logits");
    double worst = 0;
    cr_assert_eq(json_array_size(positions), 10);
    for (size_t r = 0; r < json_array_size(positions); r++) {
        const int64_t position = json_integer_value(json_array_get(positions, r));
        const json_t *row = json_array_get(rows, r);
        cr_assert(position < outcome->rows && (int64_t)json_array_size(row) == outcome->vocabulary);
        for (int64_t i = 0; i < outcome->vocabulary; i++) {
            const double logit = (double)outcome->logits[position * outcome->vocabulary + i];
            worst = fmax(worst, fabs(logit - json_number_value(json_array_get(row, (size_t)i))));
        }
    }
    return worst;
}

/* Prompt in one prefill, then the greedy tokens one by one. */
static void equals_transformers(const char *name)
{
    char file[128], directory[512];
    int32_t ids[CAPACITY];
    const char *path = fixture_path("model.gguf");
    json_t *expected;
    dw_model *model;
    int64_t count, tokens;
    snprintf(file, sizeof file, "models/%s/expected.json", name);
    expected = reference_json(file);
    snprintf(directory, sizeof directory, "%s", reference_path(file));
    *strrchr(directory, '/') = '\0';
    fixture_from_safetensors(path, directory);
    model = session_model(path);
    count = append_ids(ids, 0, json_object_get(expected, "prompt"));
    tokens = append_ids(ids, count, json_object_get(expected, "greedy")) - count;
    cr_assert_eq(tokens, 48);
    for (size_t i = 0; i < sizeof rank_counts / sizeof rank_counts[0]; i++) {
        const session_setup setup = {.ranks = rank_counts[i],
                                     .threads = 1,
                                     .config = {.key_type = DW_F32, .value_type = DW_F32, .policy = {.mode = DW_DENSE}}};
        session_outcome outcome;
        double worst;
        session_run(&outcome, &(session_task){model, ids, count, 0, count, tokens}, &setup);
        cr_assert(memcmp(outcome.tokens, ids + count, (size_t)tokens * sizeof *ids) == 0, "other tokens on %d ranks",
                  rank_counts[i]);
        worst = largest_error(&outcome, expected);
        cr_log_info("%s on %d simulated ranks: largest error of a logit %.3g", name, rank_counts[i], worst);
        cr_assert_leq(worst, TOLERANCE, "largest error of a logit on %d ranks: %.3g", rank_counts[i], worst);
        session_outcome_free(&outcome);
    }
    dw_model_free(model);
    json_decref(expected);
}

Test(models, llama_with_heads_wider_than_hidden_over_heads_gives_the_tokens_and_logits_of_transformers)
{
    equals_transformers("llama-headdim");
}

Test(models, llama_stored_in_float16_gives_the_tokens_and_logits_of_transformers)
{
    equals_transformers("llama-float16");
}

Test(models, llama_stored_in_bfloat16_in_four_files_gives_the_tokens_and_logits_of_transformers)
{
    equals_transformers("llama-bf16-shards");
}

Test(models, qwen2_with_a_tied_head_and_three_heads_a_kv_head_gives_the_tokens_and_logits_of_transformers)
{
    equals_transformers("qwen2-tied");
}

Test(models, qwen2_with_a_head_of_its_own_gives_the_tokens_and_logits_of_transformers)
{
    equals_transformers("qwen2-untied");
}
