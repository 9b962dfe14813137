/* Promise P1 on real models and a real text: 8 greedy tokens and the logits that choose them, computed in several ways. One
   rank with two threads is the yardstick of each mode. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tests/shared/dewpoint.h"
#include "tests/shared/prompts.h"
#include "tests/shared/reference.h"
#include "tests/shared/session_run.h"

/* AddressSanitizer makes a prefill eight times slower and looks for something else: it gets a short prompt. */
#ifdef __SANITIZE_ADDRESS__
enum { LONG_PROMPT = 205 };
#else
enum { LONG_PROMPT = 2999 };
#endif
enum { SHORT_PROMPT = 205, GENERATED = 8 };

typedef struct {
    const char *path;
    dw_model *model;
    int64_t prompt;                       /* tokens */
    int32_t ids[LONG_PROMPT + GENERATED]; /* the prompt; behind it the tokens of `expected` */
    session_outcome expected;
} experiment;

static const dw_policy dense = {.mode = DW_DENSE};
static const dw_policy condensate = {DW_CONDENSATE, .anchor = 1, .window = 64, .keys = 32};

static void decode(session_outcome *out, const experiment *e, const dw_policy *policy, int ranks, int threads, const char *isa)
{
    const session_task task = {e->model, e->ids, e->prompt, .sparse = 0, .wanted = 1, GENERATED};
    const session_setup setup = {ranks, threads, isa, {.key_type = DW_F16, .value_type = DW_F16, .policy = *policy}};
    session_run(out, &task, &setup);
}

/* One rank, two threads. */
static void begin(experiment *e, const char *path, int64_t prompt, const dw_policy *policy)
{
    dw_tokenizer *tokenizer;
    dw_error err;
    e->path = path;
    e->prompt = prompt;
    e->model = session_model(path);
    cr_assert(dw_tokenizer_load(&tokenizer, e->model->checkpoint, &err) == DW_OK && tokenizer != NULL);
    prompt_king_james(e->ids, prompt, tokenizer);
    dw_tokenizer_free(tokenizer);
    decode(&e->expected, e, policy, 1, 2, NULL);
    memcpy(e->ids + prompt, e->expected.tokens, sizeof(int32_t) * GENERATED);
}

static void end(experiment *e)
{
    session_outcome_free(&e->expected);
    dw_model_free(e->model);
}

static void same_on_simulated_ranks(const experiment *e, int ranks, const char *isa, const char *what)
{
    session_outcome actual;
    decode(&actual, e, &dense, ranks, 1, isa);
    session_expect_same(&e->expected, &actual, what);
    session_outcome_free(&actual);
}

/* Checks that text begins with the logits of one row as the program prints them, and returns what follows. */
static const char *skip_row(const char *text, const float *logits, int64_t vocabulary, int64_t row)
{
    for (int64_t i = 0; i < vocabulary; i++) {
        char number[32];
        const int length = snprintf(number, sizeof number, "%s%.9g", i == 0 ? "[" : ", ", logits[i]);
        if (strncmp(text, number, (size_t)length) != 0) {
            cr_assert_fail("row %lld, logit %lld: '%.12s', not '%s'", (long long)row, (long long)i, text, number);
        }
        text += length;
    }
    return text;
}

/* `logits` on MPI ranks, from the row that chooses generated token `first` on; the tokens before are given. */
static void same_logits_on_mpi_ranks(const experiment *e, const char *mode, int ranks, int64_t first)
{
    const char *const path = prompt_file("generated", e->ids, e->prompt + GENERATED - 1);
    char positions[128] = "";
    dewpoint_result result;
    const char *at;
    for (int64_t i = first; i < GENERATED; i++) {
        const size_t length = strlen(positions);
        const long long position = e->prompt - 1 + i;
        snprintf(positions + length, sizeof positions - length, "%s%lld", i == first ? "" : ",", position);
    }
    const char *const arguments[] = {"logits",    "--json",      "-m",      e->path,       "--prompt-ids",
                                     path,        "--positions", positions, "--attention", mode,
                                     "--threads", "1",           NULL};
    result = dewpoint_run(ranks, NULL, arguments);
    cr_assert_eq(result.status, 0, "exit status %d, '%s'", result.status, result.err);
    at = strstr(result.out, "\"logits\": [");
    cr_assert_not_null(at, "%.200s", result.out);
    at += strlen("\"logits\": [");
    for (int64_t row = first; row < GENERATED; row++) {
        at = skip_row(at, e->expected.logits + row * e->expected.vocabulary, e->expected.vocabulary, row);
        at += strspn(at, "], ");
    }
    cr_assert_str_eq(at, "}\n", "after the last row: '%.60s'", at);
    dewpoint_free(&result);
}

/* `generate` on MPI ranks: the tokens and the omitted mass. */
static void same_tokens_on_mpi_ranks(const experiment *e, const char *mode, int ranks)
{
    const char *const path = prompt_file("prompt", e->ids, e->prompt);
    const char *const arguments[] = {"generate",     "--json", "--quiet",   "-m", e->path,
                                     "--prompt-ids", path,     "-n",        "8",  "--ignore-eos",
                                     "--attention",  mode,     "--threads", "1",  NULL};
    dewpoint_result result = dewpoint_run(ranks, NULL, arguments);
    json_error_t problem;
    json_t *answer, *attention, *tokens, *mean;
    double low, high;
    const dw_interval expected = dw_omitted_mean(&e->expected.omitted);
    cr_assert_eq(result.status, 0, "exit status %d, '%s'", result.status, result.err);
    answer = json_loads(result.out, 0, &problem);
    tokens = json_object_get(answer, "tokens");
    attention = json_object_get(answer, "attention");
    mean = json_object_get(json_object_get(attention, "omitted_mass"), "mean");
    cr_assert_eq(json_array_size(tokens), GENERATED, "%s", result.out);
    for (size_t i = 0; i < GENERATED; i++) {
        cr_assert_eq(json_integer_value(json_array_get(tokens, i)), e->expected.tokens[i], "token %zu", i);
    }
    low = json_number_value(json_array_get(mean, 0));
    high = json_number_value(json_array_get(mean, 1));
    cr_assert(low > 0 && low == expected.low && high == expected.high, "omitted mass [%.17g, %.17g], not [%.17g, %.17g]", low,
              high, expected.low, expected.high);
    json_decref(answer);
    dewpoint_free(&result);
}

Test(invariance, smollm2_dense_2999_tokens_on_1_rank_5_and_2_avx2_simulated_ranks_and_4_mpi_ranks)
{
    experiment e;
    begin(&e, reference_smollm2(), LONG_PROMPT, &dense);
    same_on_simulated_ranks(&e, 5, NULL, "5 simulated ranks");
    if (session_has_isa("avx2")) same_on_simulated_ranks(&e, 2, "avx2", "2 simulated ranks with AVX2 kernels");
    same_logits_on_mpi_ranks(&e, "dense", 4, 0);
    end(&e);
}

/* The row that chooses the first token attends densely, in generate and here. */
Test(invariance, smollm2_condensate_2999_tokens_on_1_rank_and_3_mpi_ranks)
{
    experiment e;
    begin(&e, reference_smollm2(), LONG_PROMPT, &condensate);
    same_tokens_on_mpi_ranks(&e, "condensate", 3);
    same_logits_on_mpi_ranks(&e, "condensate", 3, 1);
    end(&e);
}

/* Biases, grouped heads of 64 and four more types of weights. */
Test(invariance, qwen2_dense_205_tokens_on_1_rank_5_and_2_avx2_simulated_ranks_and_3_mpi_ranks)
{
    experiment e;
    begin(&e, reference_qwen05(), SHORT_PROMPT, &dense);
    same_on_simulated_ranks(&e, 5, NULL, "5 simulated ranks");
    if (session_has_isa("avx2")) same_on_simulated_ranks(&e, 2, "avx2", "2 simulated ranks with AVX2 kernels");
    same_logits_on_mpi_ranks(&e, "dense", 3, 0);
    end(&e);
}

Test(invariance, qwen2_condensate_205_tokens_on_1_rank_and_3_mpi_ranks)
{
    experiment e;
    begin(&e, reference_qwen05(), SHORT_PROMPT, &condensate);
    same_tokens_on_mpi_ranks(&e, "condensate", 3);
    same_logits_on_mpi_ranks(&e, "condensate", 3, 1);
    end(&e);
}
