#include "tests/shared/parity.h"

#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tests/shared/reference.h"
#include "tests/shared/session_run.h"

enum { CAPACITY = 4096 };

/* AddressSanitizer makes everything ten times slower and looks for something else: it gets short prompts and few tokens. */
#ifdef __SANITIZE_ADDRESS__
enum { LONGEST_PROMPT = 100, MOST_TOKENS = 4 };
#else
enum { LONGEST_PROMPT = CAPACITY, MOST_TOKENS = CAPACITY };
#endif

void parity_load(parity_model *m, const char *path)
{
    dw_error err;
    m->model = session_model(path);
    cr_assert(dw_tokenizer_load(&m->tokenizer, m->model->checkpoint, &err) == DW_OK && m->tokenizer != NULL, "%s", err.message);
}

void parity_unload(parity_model *m)
{
    dw_tokenizer_free(m->tokenizer);
    dw_model_free(m->model);
}

json_t *parity_runs(const char *name, size_t count)
{
    json_t *runs = reference_json(name);
    cr_assert_eq(json_array_size(runs), count, "%s has %zu runs, not %zu", name, json_array_size(runs), count);
    return runs;
}

/* real/ and gguf/ have different names for the same. */
static const json_t *either(const json_t *run, const char *in_real, const char *in_gguf)
{
    const json_t *value = json_object_get(run, in_real);
    return value != NULL ? value : json_object_get(run, in_gguf);
}

/* Appends the ids of a JSON array to ids [CAPACITY]; returns the new count. */
static int64_t append_ids(int32_t *ids, int64_t count, const json_t *array)
{
    const int64_t more = (int64_t)json_array_size(array);
    cr_assert(more > 0 && count + more <= CAPACITY);
    for (int64_t i = 0; i < more; i++) ids[count + i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    return count + more;
}

void parity_expect_ids(const parity_model *m, const char *name, size_t count)
{
    json_t *runs = parity_runs(name, count);
    for (size_t i = 0; i < count; i++) {
        const json_t *run = json_array_get(runs, i);
        const json_t *text = json_object_get(run, "text");
        int32_t expected[CAPACITY];
        const int64_t listed = append_ids(expected, 0, either(run, "ids", "prompt"));
        const int has_bos = expected[0] == dw_tokenizer_bos(m->tokenizer); /* which the prompt reader puts there */
        const int64_t expected_count = listed - has_bos;
        int32_t *ids;
        int64_t found;
        dw_error err;
        const int64_t bytes = (int64_t)json_string_length(text);
        cr_assert_eq(dw_tokenize(m->tokenizer, json_string_value(text), bytes, 1, &ids, &found, &err), DW_OK, "%s",
                     err.message);
        cr_assert(found == expected_count && memcmp(ids, expected + has_bos, (size_t)found * sizeof *ids) == 0,
                  "other ids for '%.60s'", json_string_value(text));
        dw_free(ids);
    }
    json_decref(runs);
}

/* ---- logits ---- */

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

static double mean_of(const float *logits, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (double)logits[i];
    return sum / (double)count;
}

static double log_sum_exp_of(const float *logits, int64_t count)
{
    const double largest = (double)logits[session_best(logits, count)];
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += exp((double)logits[i] - largest);
    return largest + log(sum);
}

/* Of one entry {"position", "top", "mean", "logsumexp"} of gguf/. */
static double error_of_entry(const float *logits, int64_t count, const json_t *entry)
{
    const double mean = fabs(mean_of(logits, count) - json_number_value(json_object_get(entry, "mean")));
    const double sum = fabs(log_sum_exp_of(logits, count) - json_number_value(json_object_get(entry, "logsumexp")));
    return fmax(error_of_top(logits, json_object_get(entry, "top")), fmax(mean, sum));
}

/* Largest error of the logits that a run lists. gguf/: four positions of the prompt, and one behind it, which counts if the
   tokens in front of it are the reference's: outcome then holds the rows of all positions. */
static double error_of_run(const json_t *run, const session_outcome *outcome, int64_t rows)
{
    const json_t *entries = json_object_get(run, "logits");
    double worst = 0;
    int compared = 0;
    if (entries == NULL) return error_of_top(outcome->logits, json_object_get(run, "last_prompt_logits_top5"));
    for (size_t i = 0; i < json_array_size(entries); i++) {
        const json_t *entry = json_array_get(entries, i);
        const int64_t row = json_integer_value(json_object_get(entry, "position"));
        if (row >= rows) continue;
        worst = fmax(worst, error_of_entry(outcome->logits + row * outcome->vocabulary, outcome->vocabulary, entry));
        compared++;
    }
    cr_assert_geq(compared, 4);
    return worst;
}

/* ---- greedy tokens ---- */

/* Of the best two logits where greedy token `token` was chosen; gguf/ states only the smallest of the run. */
static double margin_of(const json_t *run, int64_t token)
{
    const json_t *margins = json_object_get(run, "margins");
    return json_number_value(margins != NULL ? json_array_get(margins, (size_t)token) : json_object_get(run, "min_margin"));
}

/* How many tokens are the reference's. A message to stderr says what was not compared. */
static int64_t expect_greedy(const json_t *run, const session_outcome *outcome, const int32_t *greedy, double close_call)
{
    const char *text = json_string_value(json_object_get(run, "text"));
    const int64_t tokens = outcome->token_count;
    int64_t same = 0;
    double margin;
    while (same < tokens && outcome->tokens[same] == greedy[same]) same++;
    if (same == tokens) return same;
    margin = margin_of(run, same);
    cr_assert(margin < close_call, "'%.40s': token %lld is %d, not %d, where the best two logits are %.4g apart", text,
              (long long)same, outcome->tokens[same], greedy[same], margin);
    fprintf(stderr, "'%.40s': %lld of %lld tokens compared; then %d, not %d, where the best two logits are %.4g apart\n", text,
            (long long)same, (long long)tokens, outcome->tokens[same], greedy[same], margin);
    return same;
}

static double expect_run(const parity_model *m, const json_t *run, dw_type cache, double close_call)
{
    const session_setup setup = {.threads = 2,
                                 .config = {.key_type = cache, .value_type = cache, .policy = {.mode = DW_DENSE}}};
    int32_t ids[CAPACITY];
    const int64_t count = append_ids(ids, 0, either(run, "ids", "prompt"));
    const int64_t listed = append_ids(ids, count, json_object_get(run, "greedy")) - count;
    const int64_t tokens = listed < MOST_TOKENS ? listed : MOST_TOKENS;
    const int64_t wanted = json_object_get(run, "logits") != NULL ? count : 1;
    session_outcome outcome;
    int64_t same;
    double worst;
    if (count > LONGEST_PROMPT) {
        fprintf(stderr, "a prompt of %lld tokens: left out in a build with sanitizers\n", (long long)count);
        return 0;
    }
    session_run(&outcome, &(session_task){m->model, ids, count, 0, wanted, tokens}, &setup);
    same = expect_greedy(run, &outcome, ids + count, close_call);
    worst = error_of_run(run, &outcome, same < tokens ? count + same : outcome.rows);
    session_outcome_free(&outcome);
    return worst;
}

void parity_expect_runs(const parity_model *m, const char *name, size_t count, dw_type cache, double tolerance)
{
    json_t *runs = parity_runs(name, count);
    double worst = 0;
    for (size_t i = 0; i < count; i++) worst = fmax(worst, expect_run(m, json_array_get(runs, i), cache, 2 * tolerance));
    cr_log_info("%s with a cache of %s: largest error of a logit %.3g", name, dw_types[cache].name, worst);
    cr_assert_leq(worst, tolerance, "%s with a cache of %s: largest error of a logit %.3g", name, dw_types[cache].name, worst);
    json_decref(runs);
}
