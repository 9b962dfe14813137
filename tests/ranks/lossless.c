/* Promise P2: lossless decoding gives the tokens of dense decoding and leaves the same cache, whatever the drafter, the drafts, the ranks, the
   threads and the sampling. docs/lossless.md says which of its conditions each test breaks when it is broken. */
#include "decode/lossless.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "decode/drafters.h"
#include "mpi/drafting.h"
#include "tests/shared/dewpoint.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/local_ranks.h"
#include "tests/shared/prompts.h"
#include "tests/shared/session_run.h"

enum { MOST_TOKENS = 900, MOST_PROMPT = 2000 };

/* Who drafts. */
typedef enum { NOBODY, MODEL, RANDOM, PERFECT, WRONG_AFTER_TWO } drafter_kind;

typedef struct {
    const dw_model *model;
    const int32_t *prompt;
    int64_t count;
    int64_t tokens; /* to generate */
    drafter_kind kind;
    int64_t longest; /* drafts */
    int ranks, threads;
    dw_sampling sampling;
    int64_t more_context;    /* positions of the cache behind those that are needed */
    const int32_t *expected; /* of PERFECT and WRONG_AFTER_TWO */

    int32_t out[MOST_TOKENS];
    uint64_t checksum;
    int64_t drafted, accepted, passes;
    uint64_t random;
} task;

static uint64_t next_bits(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Drafts that have nothing to do with the model. */
static dw_status draft_otherwise(void *context, const dw_history *history, int64_t most, int32_t *out, int64_t *count,
                                 dw_error *err)
{
    task *t = context;
    const int64_t limit = most < t->longest ? most : t->longest;
    (void)err;
    *count = t->kind == RANDOM ? (int64_t)(next_bits(&t->random) % (uint64_t)(limit + 1)) : limit;
    for (int64_t i = 0; i < *count; i++) {
        const int64_t at = history->count - t->count + i; /* of the token in the text that dense decoding gives */
        out[i] = (int32_t)(next_bits(&t->random) % (uint64_t)t->model->vocabulary);
        if (t->kind == PERFECT || (t->kind == WRONG_AFTER_TWO && i < 2)) out[i] = t->expected[at];
        if (t->kind == WRONG_AFTER_TWO && i >= 2) out[i] = (t->expected[at] + 1) % (int32_t)t->model->vocabulary;
    }
    return DW_OK;
}

static dw_status generate(task *t, dw_session *session, dw_sampler *sampler, dw_drafts *drafts, float *logits, int32_t *history,
                          dw_error *err)
{
    const int by_model = t->kind == MODEL;
    dw_lossless l = {session,
                     sampler,
                     t->model->vocabulary,
                     logits,
                     by_model ? dw_draft : draft_otherwise,
                     by_model ? dw_drafts_outcome : NULL,
                     by_model ? (void *)drafts : (void *)t,
                     0,
                     0,
                     0};
    int64_t made = 0;
    memcpy(history, t->prompt, (size_t)t->count * sizeof *history);
    DW_TRY(dw_session_append(session, t->prompt, t->count, 0, logits, 1, err));
    t->out[made++] = history[t->count] = dw_sample(sampler, logits, t->count);
    while (made < t->tokens) {
        const dw_history h = {history, t->count + made};
        int32_t ids[DW_MAX_DRAFT + 1];
        int64_t count;
        int64_t most = t->kind == NOBODY ? 0 : t->tokens - made - 1;
        if (most > DW_MAX_DRAFT) most = DW_MAX_DRAFT;
        DW_TRY(dw_lossless_step(&l, &h, most, ids, &count, err));
        cr_assert(count >= 1 && count <= most + 1);
        for (int64_t i = 0; i < count; i++) {
            t->out[made] = history[t->count + made] = ids[i];
            made++;
        }
    }
    cr_assert_eq(made, t->tokens);
    cr_assert_eq(dw_session_positions(session), t->count + t->tokens - 1);
    t->drafted = l.drafted;
    t->accepted = l.accepted;
    t->passes = l.passes;
    DW_TRY(dw_session_checksum(session, &t->checksum, err));
    return dw_session_finish(session, NULL, NULL, err);
}

static dw_status coordinate(void *context, dw_session *session, dw_error *err)
{
    task *t = context;
    dw_sampler *sampler = NULL;
    dw_drafts drafts = {0};
    float *logits = NULL;
    int32_t *history = NULL;
    dw_status status = dw_sampler_create(&sampler, &t->sampling, t->model->vocabulary, err);
    if (status == DW_OK)
        status = dw_drafts_create(&drafts, session, sampler, t->model->vocabulary, t->longest,
                                  DW_DRAFT_BY_TEXT | DW_DRAFT_BY_MODEL, err);
    if (status == DW_OK) status = DW_ALLOC(&logits, (DW_MAX_DRAFT + 1) * t->model->vocabulary, "logits", err);
    if (status == DW_OK) status = DW_ALLOC(&history, t->count + t->tokens + 1, "history", err);
    if (status == DW_OK) status = generate(t, session, sampler, &drafts, logits, history, err);
    dw_sampler_destroy(sampler);
    dw_drafts_free(&drafts);
    dw_free(logits);
    dw_free(history);
    return status;
}

static dw_status run_rank(dw_transport *transport, void *context, dw_error *err)
{
    task *t = context;
    const dw_session_config config = {.context = t->count + t->tokens + t->more_context,
                                      .key_type = DW_F16,
                                      .value_type = DW_F16,
                                      .can_draft = t->kind == MODEL};
    return session_on_rank(transport, t->model, t->threads, NULL, &config, coordinate, t, err);
}

static void run(task *t)
{
    dw_error err;
    t->random = 5;
    cr_assert_eq(run_local_ranks(t->ranks, 60, run_rank, t, NULL, &err), DW_OK, "%s", err.message);
}

/* Dense decoding, one row a pass. */
static void run_dense(task *dense, const task *like)
{
    *dense = *like;
    dense->kind = NOBODY;
    dense->ranks = dense->threads = 1;
    run(dense);
    cr_assert_eq(dense->drafted, 0);
}

static void expect_same(const task *dense, const task *t, const char *what)
{
    int64_t same = 0;
    while (same < t->tokens && dense->out[same] == t->out[same]) same++;
    cr_assert_eq(same, t->tokens, "%s: token %lld is %d, not %d", what, (long long)same, t->out[same], dense->out[same]);
    cr_assert_eq(dense->checksum, t->checksum, "%s: another cache", what);
    cr_assert_eq(t->accepted + t->passes, t->tokens - 1, "%s: every pass gives its accepted drafts and one token", what);
}

static dw_model *make_model(uint64_t seed, int32_t *prompt)
{
    const char *path = fixture_path("model.gguf");
    dw_model *model;
    fixture_model(path, &(fixture_spec){.layers = 3, .seed = seed});
    model = session_model(path);
    prompt_random(prompt, MOST_PROMPT, model->vocabulary);
    return model;
}

/* Over ranks, threads, lengths of drafts and prompts, sampling: the model drafts. Prompts beyond what the coordinator holds, so that drafts are
   wrong now and then. */
Test(lossless, tokens_and_cache_are_those_of_dense_whatever_is_drafted_by_the_model)
{
    static int32_t prompt[MOST_PROMPT];
    static task t, dense;
    static const int ranks[] = {1, 2, 3, 4, 8, 16};
    uint64_t state = 1;
    int64_t accepted = 0;
    int64_t rejected = 0;
    for (int trial = 0; trial < 12; trial++) {
        dw_model *model = make_model(1 + next_bits(&state) % 4, prompt);
        char what[120];
        t = (task){.model = model,
                   .prompt = prompt,
                   .count = trial % 3 == 0 ? 1 + (int64_t)(next_bits(&state) % 60) : 1300 + (int64_t)(next_bits(&state) % 700),
                   .tokens = 40 + (int64_t)(next_bits(&state) % 60),
                   .kind = MODEL,
                   .longest = 1 + (int64_t)(next_bits(&state) % DW_MAX_DRAFT),
                   .ranks = ranks[trial % 6],
                   .threads = 1 + trial % 2,
                   .more_context = (int64_t)(next_bits(&state) % 70),
                   .sampling = {.temperature = trial % 2 ? 0.7 : 0, .top_p = 1, .seed = (uint64_t)trial}};
        snprintf(what, sizeof what, "trial %d: %lld ids, drafts of %lld, %d ranks", trial, (long long)t.count,
                 (long long)t.longest, t.ranks);
        run_dense(&dense, &t);
        run(&t);
        expect_same(&dense, &t, what);
        accepted += t.accepted;
        rejected += t.drafted - t.accepted;
        dw_model_free(model);
    }
    cr_assert(accepted > 200 && rejected > 50, "%lld accepted, %lld rejected: the test proves little", (long long)accepted,
              (long long)rejected);
}

/* A drafter that knows nothing, one that knows everything, one that is wrong from the third token on. */
Test(lossless, any_drafter_gives_the_same_tokens_and_the_same_cache)
{
    static int32_t prompt[MOST_PROMPT];
    static task t, dense;
    static const drafter_kind kinds[] = {RANDOM, PERFECT, WRONG_AFTER_TWO};
    dw_model *model = make_model(2, prompt);
    for (int k = 0; k < 3; k++) {
        for (int ranks = 1; ranks <= 4; ranks++) {
            char what[80];
            snprintf(what, sizeof what, "drafter %d on %d ranks", k, ranks);
            t = (task){.model = model,
                       .prompt = prompt,
                       .count = 130,
                       .tokens = 120,
                       .kind = kinds[k],
                       .longest = 7,
                       .ranks = ranks,
                       .threads = 1,
                       .sampling = {.top_p = 1}};
            run_dense(&dense, &t);
            t.expected = dense.out;
            run(&t);
            expect_same(&dense, &t, what);
            if (kinds[k] == PERFECT) cr_assert_eq(t.accepted, t.drafted, "%s", what);
            if (kinds[k] == PERFECT) cr_assert_eq(t.passes, 15, "%lld passes for 119 tokens, 8 a pass", (long long)t.passes);
            if (kinds[k] == WRONG_AFTER_TWO) cr_assert(t.accepted > 60 && t.drafted - t.accepted > 100);
            if (kinds[k] == RANDOM) cr_assert(t.drafted > 200 && t.accepted < 20);
        }
    }
    dw_model_free(model);
}

/* Models whose scores are all equal: drafts over the same keys are right, and ties go the same way. */
Test(lossless, everything_that_is_held_is_drafted_right)
{
    static int32_t prompt[MOST_PROMPT];
    static task t, dense;
    dw_model *model = make_model(3, prompt);
    t = (task){.model = model,
               .prompt = prompt,
               .count = 100,
               .tokens = 100,
               .kind = MODEL,
               .longest = 8,
               .ranks = 2,
               .threads = 1,
               .sampling = {.top_p = 1}};
    run_dense(&dense, &t);
    run(&t);
    expect_same(&dense, &t, "short");
    cr_assert_geq(t.accepted, t.drafted * 9 / 10, "%lld of %lld", (long long)t.accepted, (long long)t.drafted);
    dw_model_free(model);
}

/* ---- the program ---- */

static const char *model_with_text(void)
{
    const char *path = fixture_path("model.gguf");
    fixture_model(path, &(fixture_spec){.tokenizer = 1, .seed = 3});
    return path;
}

#define PROMPT "the dewpoint and the dew and the window of the cluster"

static void expect_equal(json_t *dense, json_t *lossless, const char *what)
{
    static const char *const keys[] = {"tokens", "text", "stop_reason"};
    for (int i = 0; i < 3; i++) {
        cr_assert(json_equal(json_object_get(dense, keys[i]), json_object_get(lossless, keys[i])), "%s: %s differ", what,
                  keys[i]);
    }
    cr_assert(json_is_true(json_object_get(json_object_get(lossless, "attention"), "exact")));
    json_decref(dense);
    json_decref(lossless);
}

#define BOTH(what, ...)                                                                                                        \
    expect_equal(DEWPOINT_JSON("generate", "-m", m, "-p", PROMPT, "--json", "--attention", "dense", __VA_ARGS__),              \
                 DEWPOINT_JSON("generate", "-m", m, "-p", PROMPT, "--json", "--draft", "5", __VA_ARGS__), what)

Test(lossless, the_program_ends_where_dense_decoding_ends)
{
    const char *m = model_with_text();
    BOTH("length", "-n", "50", "--ignore-eos");
    BOTH("one token", "-n", "1");
    BOTH("no token", "-n", "0");
    BOTH("end of text", "-n", "300");
    BOTH("context", "-c", "64", "--ignore-eos");
    BOTH("sampling", "-n", "60", "--ignore-eos", "--temperature", "0.8", "--top-p", "0.9", "--seed", "7");
    BOTH("top-k", "-n", "60", "--ignore-eos", "--temperature", "1.5", "--top-k", "20", "--min-p", "0.01", "--seed", "8");
    BOTH("ranks", "-n", "50", "--ignore-eos", "--simulate-ranks", "5");
}

/* A stop string that stands somewhere in what is generated. */
Test(lossless, stop_strings_end_the_text_at_the_same_token)
{
    const char *m = model_with_text();
    json_t *o = DEWPOINT_JSON("generate", "-m", m, "-p", PROMPT, "--json", "--attention", "dense", "-n", "60", "--ignore-eos");
    const char *text = json_string_value(json_object_get(o, "text"));
    char stop[8] = "";
    size_t at = strlen(text) / 2;
    while ((text[at] & 0xC0) == 0x80) at++; /* whole characters */
    for (size_t n = at; text[n] != '\0' && strlen(stop) < 2; n++) {
        if ((unsigned char)text[n] < 0x80)
            strncat(stop, text + n, 1);
        else if (strlen(stop) > 0)
            break;
    }
    cr_assert_gt(strlen(stop), 0, "nothing to stop at in '%s'", text);
    json_decref(o);
    BOTH("stop", "-n", "60", "--ignore-eos", "--stop", stop);
}

Test(lossless, on_mpi_ranks_it_is_dense_too)
{
    const char *m = model_with_text();
    json_t *dense = DEWPOINT_JSON("generate", "-m", m, "-p", PROMPT, "--json", "--attention", "dense", "-n", "60",
                                  "--ignore-eos");
    dewpoint_result r = dewpoint_run(
        3, NULL,
        (const char *const[]){"generate", "-m", m, "-p", PROMPT, "--json", "--draft", "6", "-n", "60", "--ignore-eos", NULL});
    json_t *lossless = json_loads(r.out, 0, NULL);
    cr_assert(r.status == 0 && lossless != NULL, "%s", r.err);
    cr_assert_gt(json_integer_value(json_object_get(json_object_get(lossless, "attention"), "drafted")), 0);
    expect_equal(dense, lossless, "three MPI ranks");
    dewpoint_free(&r);
}
