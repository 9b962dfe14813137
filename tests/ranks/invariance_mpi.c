/* Promise P1 on MPI ranks: what the program prints with --json under mpirun is, letter by letter, what one process prints.
   %.9g tells any two floats apart, 17 digits any two doubles. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "tests/shared/dewpoint.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/prompts.h"
#include "tests/shared/session_run.h"

enum { MOST_TOKENS = 205 };

/* How the program is launched. */
typedef struct {
    int mpi_ranks; /* 0: without mpirun */
    const char *threads;
    const char *simulated_ranks; /* NULL: not asked for */
} launch;

static const launch alone = {0, "1", NULL};

/* What it is asked. */
typedef struct {
    const char *model;
    const char *ids;  /* path */
    const char *mode; /* of --attention */
    const char *keys;
    const char *tokens; /* generate only */
} question;

/* SmolLM2's kinds of weights. */
static question make_question(const char *mode, int64_t count)
{
    const char *model = fixture_path("model.gguf");
    int32_t prompt[MOST_TOKENS];
    fixture_model(model, &(fixture_spec){.type = FIXTURE_MIXED, .layers = 3});
    prompt_random(prompt, count, 320);
    return (question){model, prompt_file("ids", prompt, count), mode, "32", "8"};
}

/* What the program prints. `command` is generate with -n, or logits of all positions. Free with dw_free. */
static char *run(const char *command, const question *q, const launch *l)
{
    const int generate = command[0] == 'g';
    const char *arguments[20] = {command,
                                 "--json",
                                 "--quiet",
                                 "-m",
                                 q->model,
                                 "--prompt-ids",
                                 q->ids,
                                 "--attention",
                                 q->mode,
                                 "--keys",
                                 q->keys,
                                 "--threads",
                                 l->threads,
                                 generate ? "-n" : "--positions",
                                 generate ? q->tokens : "all"};
    dewpoint_result result;
    if (l->simulated_ranks != NULL) {
        arguments[15] = "--simulate-ranks";
        arguments[16] = l->simulated_ranks;
    }
    result = dewpoint_run(l->mpi_ranks, NULL, arguments);
    cr_assert_eq(result.status, 0, "%s on %d MPI ranks: exit status %d, '%s'", command, l->mpi_ranks, result.status,
                 result.err);
    dw_free(result.err);
    return result.out;
}

/* The parts of generate's answer that P1 speaks of, as JSON text; free with free. */
static char *generated(const question *q, const launch *l)
{
    char *text = run("generate", q, l);
    json_error_t problem;
    json_t *answer = json_loads(text, 0, &problem);
    json_t *attention = json_object_get(answer, "attention");
    json_t *tokens = json_object_get(answer, "tokens");
    json_t *omitted = json_object_get(attention, "omitted_mass");
    json_t *reason = json_object_get(answer, "stop_reason");
    json_t *kept = json_pack("{s:O, s:O, s:O}", "tokens", tokens, "omitted_mass", omitted, "stop_reason", reason);
    char *result = json_dumps(kept, JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    cr_assert(result != NULL && json_array_size(tokens) > 0, "generate printed %s", text);
    cr_assert(json_is_object(omitted) == (q->mode[0] == 'c'), "omitted mass of %s: %s", q->mode, result);
    json_decref(kept);
    json_decref(answer);
    dw_free(text);
    return result;
}

static void expect_same_text(const char *expected, const char *actual, const char *what, const launch *l)
{
    size_t same = 0;
    while (expected[same] != '\0' && expected[same] == actual[same]) same++;
    cr_assert(expected[same] == actual[same], "%s on %d MPI ranks, %s simulated, %s threads: '%.60s', not '%.60s', at byte %zu",
              what, l->mpi_ranks, l->simulated_ranks != NULL ? l->simulated_ranks : "0", l->threads, actual + same,
              expected + same, same);
}

/* Compares a launch with one process of one thread. */
static void expect_same(const question *q, const launch *l)
{
    char *expected = generated(q, &alone);
    char *actual = generated(q, l);
    expect_same_text(expected, actual, "generate", l);
    free(expected);
    free(actual);
    expected = run("logits", q, &alone);
    actual = run("logits", q, l);
    expect_same_text(expected, actual, "logits", l);
    dw_free(expected);
    dw_free(actual);
}

static void expect_same_on(const char *mode, int ranks, const char *threads)
{
    const question q = make_question(mode, 205);
    expect_same(&q, &(launch){ranks, threads, NULL});
}

Test(invariance, dense_205_tokens_on_1_mpi_rank_have_the_logits_of_one_process)
{
    expect_same_on("dense", 1, "2");
}

Test(invariance, dense_205_tokens_on_2_mpi_ranks_have_the_logits_of_one_process)
{
    expect_same_on("dense", 2, "1");
}

Test(invariance, dense_205_tokens_on_3_mpi_ranks_have_the_logits_of_one_process)
{
    expect_same_on("dense", 3, "2");
}

Test(invariance, dense_205_tokens_on_4_mpi_ranks_have_the_logits_of_one_process)
{
    expect_same_on("dense", 4, "1");
}

Test(invariance, dense_205_tokens_on_8_mpi_ranks_have_the_logits_of_one_process)
{
    expect_same_on("dense", 8, "1");
}

Test(invariance, condensate_205_tokens_on_1_mpi_rank_have_the_logits_of_one_process)
{
    expect_same_on("condensate", 1, "2");
}

Test(invariance, condensate_205_tokens_on_2_mpi_ranks_have_the_logits_of_one_process)
{
    expect_same_on("condensate", 2, "1");
}

Test(invariance, condensate_205_tokens_on_3_mpi_ranks_have_the_logits_of_one_process)
{
    expect_same_on("condensate", 3, "2");
}

Test(invariance, condensate_205_tokens_on_4_mpi_ranks_have_the_logits_of_one_process)
{
    expect_same_on("condensate", 4, "1");
}

Test(invariance, condensate_205_tokens_on_8_mpi_ranks_have_the_logits_of_one_process)
{
    expect_same_on("condensate", 8, "1");
}

Test(invariance, simulated_ranks_print_what_mpi_ranks_and_one_process_print)
{
    const char *const modes[] = {"dense", "condensate"};
    for (int i = 0; i < 2; i++) {
        const question q = make_question(modes[i], 205);
        expect_same(&q, &(launch){0, "1", "3"});
        expect_same(&q, &(launch){0, "2", "8"});
        expect_same(&q, &(launch){3, "1", NULL});
    }
}

/* Most ranks then hold nothing. */
static void few_tokens_on_8_ranks(int64_t count)
{
    const char *const modes[] = {"dense", "condensate"};
    for (int i = 0; i < 2; i++) {
        question q = make_question(modes[i], count);
        q.tokens = "2";
        expect_same(&q, &(launch){8, "1", NULL});
    }
}

Test(invariance, prompt_of_1_token_on_8_mpi_ranks)
{
    few_tokens_on_8_ranks(1);
}

Test(invariance, prompt_of_2_tokens_on_8_mpi_ranks)
{
    few_tokens_on_8_ranks(2);
}

Test(invariance, prompt_of_3_tokens_on_8_mpi_ranks)
{
    few_tokens_on_8_ranks(3);
}

Test(invariance, keys_beyond_the_context_give_the_logits_of_dense_on_3_mpi_ranks)
{
    const question expected = make_question("dense", 205);
    question q = expected;
    char *dense, *sparse;
    q.mode = "condensate";
    q.keys = "5000";
    dense = run("logits", &expected, &alone);
    sparse = run("logits", &q, &(launch){3, "1", NULL});
    expect_same_text(dense, sparse, "logits", &(launch){3, "1", NULL});
    dw_free(dense);
    dw_free(sparse);
}

/* One process by the definition, MPI ranks by each instruction set. */
Test(invariance, instruction_sets_of_2_mpi_ranks_print_what_scalar_prints)
{
    const char *const sets[] = {"avx2", "avx512"};
    const question q = make_question("condensate", 205);
    const launch two = {2, "1", NULL};
    char *expected;
    setenv("DEWPOINT_ISA", "scalar", 1);
    expected = run("logits", &q, &alone);
    for (int i = 0; i < 2; i++) {
        char *actual;
        if (!session_has_isa(sets[i])) continue;
        setenv("DEWPOINT_ISA", sets[i], 1);
        actual = run("logits", &q, &two);
        expect_same_text(expected, actual, sets[i], &two);
        dw_free(actual);
    }
    dw_free(expected);
}
