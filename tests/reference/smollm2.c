/* SmolLM2-135M-Instruct (Q4_1) against float32 programs of others: ../shared/reference/README.md, gguf/ and real/. */
#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tests/shared/reference.h"
#include "tests/shared/session_run.h"
#include "tokenizer/tokenizer.h"

/* Largest errors of a logit. They are the same on every machine (promise P1), so that little room is needed.
   f32 cache: the files give logits to 1e-4, which is an error of 5e-5, and two float32 evaluations of the reference are up
   to 4.4e-5 apart: 1.4e-4 if the program is another such evaluation; measured: 6.6e-5. f16 cache: every key and value is
   rounded by up to 2^-11 of it; measured: 7.8e-3. */
#define TOLERANCE_F32 1.5e-4
#define TOLERANCE_F16 1e-2

/* A token may differ only where the best two logits are closer than twice the error of one. */
#define CLOSE_CALL 0.02

static dw_model *model;
static dw_tokenizer *tokenizer;

static void load(void)
{
    dw_error err;
    model = session_model(reference_smollm2());
    cr_assert(dw_tokenizer_load(&tokenizer, model->file, &err) == DW_OK && tokenizer != NULL, "%s", err.message);
}

static void unload(void)
{
    dw_tokenizer_free(tokenizer);
    dw_model_free(model);
}

TestSuite(smollm2, .init = load, .fini = unload);

/* Appends the ids of a JSON array to ids [capacity]; returns the new count. */
static int64_t append_ids(int32_t *ids, int64_t count, int64_t capacity, const json_t *array)
{
    const int64_t more = (int64_t)json_array_size(array);
    cr_assert(more > 0 && count + more <= capacity);
    for (int64_t i = 0; i < more; i++) ids[count + i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    return count + more;
}

enum { CAPACITY = 4096 };

static void expect_ids(const json_t *run, const char *key)
{
    const json_t *text = json_object_get(run, "text");
    int32_t expected[CAPACITY];
    const int64_t expected_count = append_ids(expected, 0, CAPACITY, json_object_get(run, key));
    int32_t *ids;
    int64_t count;
    dw_error err;
    cr_assert_eq(dw_tokenize(tokenizer, json_string_value(text), (int64_t)json_string_length(text), 1, &ids, &count, &err),
                 DW_OK, "%s", err.message);
    cr_assert(count == expected_count && memcmp(ids, expected, (size_t)count * sizeof *ids) == 0, "other ids for '%.60s'",
              json_string_value(text));
    dw_free(ids);
}

/* margins: array of one number a token, or a number below all of them. */
static double margin_of(const json_t *margins, int64_t token)
{
    return json_number_value(json_is_array(margins) ? json_array_get(margins, (size_t)token) : margins);
}

static session_setup setup_of(dw_type cache)
{
    return (session_setup){.threads = 2, .config = {.key_type = cache, .value_type = cache, .policy = {.mode = DW_DENSE}}};
}

/* The default cache. A close call may go the other way; what follows it is another text, and is not compared. */
static void expect_greedy(const json_t *run, const char *prompt, const json_t *margins)
{
    const session_setup setup = setup_of(DW_F16);
    const char *text = json_string_value(json_object_get(run, "text"));
    int32_t ids[CAPACITY];
    const int64_t count = append_ids(ids, 0, CAPACITY, json_object_get(run, prompt));
    const int32_t *greedy = ids + count;
    const int64_t tokens = append_ids(ids, count, CAPACITY, json_object_get(run, "greedy")) - count;
    session_outcome outcome;
    int64_t same = 0;
    session_run(&outcome, &(session_task){model, ids, count, 0, 1, tokens}, &setup);
    while (same < tokens && outcome.tokens[same] == greedy[same]) same++;
    if (same < tokens) {
        const double margin = margin_of(margins, same);
        cr_assert(margin < CLOSE_CALL, "'%.40s': token %lld is %d, not %d, where the best two logits are %.4g apart", text,
                  (long long)same, outcome.tokens[same], greedy[same], margin);
        fprintf(stderr, "'%.40s': %lld of %lld tokens compared; then %d, not %d, where the best two logits are %.4g apart\n",
                text, (long long)same, (long long)tokens, outcome.tokens[same], greedy[same], margin);
    }
    session_outcome_free(&outcome);
}

/* Largest |logit - expected| over [[id, logit], ...]. */
static double error_of_top(const float *logits, const json_t *top)
{
    double worst = 0;
    cr_assert_gt(json_array_size(top), 0);
    for (size_t i = 0; i < json_array_size(top); i++) {
        const json_t *pair = json_array_get(top, i);
        const double logit = (double)logits[json_integer_value(json_array_get(pair, 0))];
        worst = fmax(worst, fabs(logit - json_number_value(json_array_get(pair, 1))));
    }
    return worst;
}

static double mean_of(const float *logits)
{
    double sum = 0;
    for (int64_t i = 0; i < model->vocabulary; i++) sum += (double)logits[i];
    return sum / (double)model->vocabulary;
}

static double log_sum_exp_of(const float *logits)
{
    const double largest = (double)logits[session_best(logits, model->vocabulary)];
    double sum = 0;
    for (int64_t i = 0; i < model->vocabulary; i++) sum += exp((double)logits[i] - largest);
    return largest + log(sum);
}

/* Of one entry {"position", "top", "mean", "logsumexp"}. */
static double error_of_entry(const float *logits, const json_t *entry)
{
    const double mean = fabs(mean_of(logits) - json_number_value(json_object_get(entry, "mean")));
    const double sum = fabs(log_sum_exp_of(logits) - json_number_value(json_object_get(entry, "logsumexp")));
    return fmax(error_of_top(logits, json_object_get(entry, "top")), fmax(mean, sum));
}

/* Logits of all rows of prompt + greedy tokens of one run of gguf/, in one prefill. */
static double error_of_gguf_run(const json_t *run, dw_type cache)
{
    const session_setup setup = setup_of(cache);
    const json_t *entries = json_object_get(run, "logits");
    int32_t ids[CAPACITY];
    const int64_t prompt = append_ids(ids, 0, CAPACITY, json_object_get(run, "prompt"));
    const int64_t count = append_ids(ids, prompt, CAPACITY, json_object_get(run, "greedy"));
    session_outcome outcome;
    double worst = 0;
    cr_assert_eq(json_array_size(entries), 5);
    session_run(&outcome, &(session_task){model, ids, count, 0, count, 0}, &setup);
    for (size_t i = 0; i < json_array_size(entries); i++) {
        const json_t *entry = json_array_get(entries, i);
        const int64_t position = json_integer_value(json_object_get(entry, "position"));
        cr_assert(position < count);
        worst = fmax(worst, error_of_entry(outcome.logits + position * model->vocabulary, entry));
    }
    session_outcome_free(&outcome);
    return worst;
}

/* Logits after the prompt of one run of real/. */
static double error_of_real_run(const json_t *run, dw_type cache)
{
    const session_setup setup = setup_of(cache);
    int32_t ids[CAPACITY];
    const int64_t count = append_ids(ids, 0, CAPACITY, json_object_get(run, "ids"));
    session_outcome outcome;
    double worst;
    session_run(&outcome, &(session_task){model, ids, count, 0, 1, 0}, &setup);
    worst = error_of_top(outcome.logits, json_object_get(run, "last_prompt_logits_top5"));
    session_outcome_free(&outcome);
    return worst;
}

static json_t *runs_of(const char *name)
{
    json_t *runs = reference_json(name);
    cr_assert_eq(json_array_size(runs), 3, "%s has three runs", name);
    return runs;
}

Test(smollm2, ids_of_the_prompts_equal_the_reference)
{
    json_t *real = runs_of("real/smollm2.json");
    json_t *gguf = runs_of("gguf/smollm2.json");
    for (size_t i = 0; i < 3; i++) expect_ids(json_array_get(real, i), "ids");
    for (size_t i = 0; i < 3; i++) expect_ids(json_array_get(gguf, i), "prompt");
    json_decref(real);
    json_decref(gguf);
}

Test(smollm2, greedy_tokens_of_long_runs_equal_the_float32_reference)
{
    json_t *runs = runs_of("real/smollm2.json");
    for (size_t i = 0; i < 3; i++) {
        const json_t *run = json_array_get(runs, i);
        expect_greedy(run, "ids", json_object_get(run, "margins"));
    }
    json_decref(runs);
}

Test(smollm2, greedy_tokens_of_short_runs_equal_the_float32_reference)
{
    json_t *runs = runs_of("gguf/smollm2.json");
    for (size_t i = 0; i < 3; i++) {
        const json_t *run = json_array_get(runs, i);
        expect_greedy(run, "prompt", json_object_get(run, "min_margin"));
    }
    json_decref(runs);
}

static void logits_are_within(dw_type cache, double tolerance)
{
    json_t *gguf = runs_of("gguf/smollm2.json");
    json_t *real = runs_of("real/smollm2.json");
    double worst = 0;
    for (size_t i = 0; i < 3; i++) worst = fmax(worst, error_of_gguf_run(json_array_get(gguf, i), cache));
    for (size_t i = 0; i < 3; i++) worst = fmax(worst, error_of_real_run(json_array_get(real, i), cache));
    cr_log_info("largest error of a logit: %.3g", worst);
    cr_assert_leq(worst, tolerance, "largest error of a logit: %.3g", worst);
    json_decref(gguf);
    json_decref(real);
}

Test(smollm2, logits_with_an_f32_cache_equal_the_float32_reference_but_for_its_noise)
{
    logits_are_within(DW_F32, TOLERANCE_F32);
}

Test(smollm2, logits_with_the_default_f16_cache_are_close_to_the_float32_reference)
{
    logits_are_within(DW_F16, TOLERANCE_F16);
}
