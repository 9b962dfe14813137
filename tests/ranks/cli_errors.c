/* Errors that users see: one line on stderr that names the thing, nothing on stdout, the documented exit status, every rank
   gone. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/memory.h"
#include "tests/shared/dewpoint.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/gguf_writer.h"

typedef struct {
    int status;
    const char *said; /* part of the line */
    const char *arguments[10];
} error_case;

/* A file that ends early, one of another format, and one whose family is none of ours. */
static const char *const damaged[] = {"truncated.gguf", "text.gguf", "family.gguf"};

static void write_damaged(const char *model)
{
    static const char key[] = "general.architecture";
    uint8_t *data;
    int64_t bytes;
    int64_t at = 0;
    read_file(model, &data, &bytes);
    write_file(fixture_path(damaged[0]), data, bytes / 2);
    write_file(fixture_path(damaged[1]), "Once upon a time there was no model here.", 41);
    while (at < bytes && memcmp(data + at, key, sizeof key - 1) != 0) at++;
    memcpy(data + at + sizeof key - 1 + 4 + 8, "grape", 5); /* behind kind and length: "llama" */
    write_file(fixture_path(damaged[2]), data, bytes);
    dw_free(data);
}

/* Exactly one line that begins with "dewpoint: ". */
static int is_one_line(const char *text)
{
    const char *end = strchr(text, '\n');
    return strncmp(text, "dewpoint: ", 10) == 0 && end != NULL && end[1] == '\0';
}

static void check(const dewpoint_result *result, int status, const char *said, const char *what)
{
    cr_assert_eq(result->status, status, "%s: status %d instead of %d; %s", what, result->status, status, result->err);
    cr_assert_str_empty(result->out, "%s: stdout is '%s'", what, result->out);
    cr_assert(is_one_line(result->err), "%s: stderr is '%s'", what, result->err);
    cr_assert(strstr(result->err, said) != NULL, "%s: '%s' is not in '%s'", what, said, result->err);
}

/* ranks: 0 no mpirun; simulated: 0 or the number of simulated ranks. */
static void check_case(const error_case *c, int ranks, int simulated)
{
    char count[16];
    const char *arguments[16];
    int n = 0;
    dewpoint_result result;
    snprintf(count, sizeof count, "%d", simulated);
    for (; c->arguments[n] != NULL; n++) arguments[n] = c->arguments[n];
    if (simulated > 0 && n > 0) {
        arguments[n++] = "--simulate-ranks";
        arguments[n++] = count;
    }
    arguments[n] = NULL;
    result = dewpoint_run(ranks, NULL, arguments);
    check(&result, c->status, c->said, c->said);
    dewpoint_free(&result);
}

/* A model of 64 positions; the names of its files are where[]. */
static const char *where[5];

static void write_models(void)
{
    where[0] = fixture_path("model.gguf");
    fixture_model(where[0], &(fixture_spec){.tokenizer = 1, .context = 64});
    write_damaged(where[0]);
    for (int i = 0; i < 3; i++) where[1 + i] = fixture_path(damaged[i]);
    where[4] = fixture_path("bad.txt");
    write_file(where[4], "abc\xFFxyz", 7);
}

/* 72 words, 73 tokens. */
#define TWELVE "the the the the the the the the the the the the"
static const char long_prompt[] = TWELVE " " TWELVE " " TWELVE " " TWELVE " " TWELVE " " TWELVE;

/* Each runs on one rank and on three simulated ones; the first `under_mpirun` under mpirun as well. */
static void check_all(const error_case *cases, int count, int under_mpirun)
{
    for (int i = 0; i < count; i++) {
        check_case(&cases[i], 0, 0);
        check_case(&cases[i], 0, 3);
        if (i < under_mpirun) check_case(&cases[i], 3, 0);
    }
}

Test(cli_errors, wrong_arguments_end_with_2)
{
    write_models();
    const error_case cases[] = {
        {2, "'--frobnicate'", {"generate", "-m", where[0], "-p", "x", "--frobnicate"}},
        {2, "4096", {"generate", "-m", where[0], "-p", "x", "-c", "4K"}},
        {2, "lossless", {"logits", "-m", where[0], "-p", "x", "--attention", "lossless"}},
        {2, "needs a model", {"generate", "-p", "x"}},
        {2, "--prompt", {"generate", "-m", where[0]}},
        {2, "--temperature", {"generate", "-m", where[0], "-p", "x", "--temperature", "-1"}},
        {2, "--positions: 999", {"logits", "-m", where[0], "-p", "x", "--positions", "0,999"}},
        {2, "--positions 'x'", {"logits", "-m", where[0], "-p", "x", "--positions", "x"}},
    };
    check_all(cases, sizeof cases / sizeof cases[0], 2);
}

Test(cli_errors, commands_that_do_not_exist_end_with_2)
{
    const error_case none = {2, "no command", {NULL}};
    const error_case unknown = {2, "'translate'", {"translate", "-m", "x"}};
    check_case(&none, 0, 0);
    check_case(&none, 3, 0);
    check_case(&unknown, 0, 0);
}

Test(cli_errors, mpirun_and_simulated_ranks_exclude_each_other)
{
    write_models();
    const error_case both = {2, "--simulate-ranks", {"generate", "-m", where[0], "-p", "x"}};
    check_case(&both, 2, 2);
}

Test(cli_errors, bad_models_end_with_3)
{
    write_models();
    const error_case cases[] = {
        {3, "/truncated.gguf", {"generate", "-m", where[1], "-p", "x"}},
        {3, "/nowhere/model.gguf", {"generate", "-m", "/nowhere/model.gguf", "-p", "x"}},
        {3, "/text.gguf", {"generate", "-m", where[2], "-p", "x"}},
        {3, "grape", {"generate", "-m", where[3], "-p", "x", "--json"}},
        {3, "/nowhere/model.gguf", {"tokenize", "-m", "/nowhere/model.gguf", "-p", "x"}},
        {3, "/truncated.gguf", {"bench", "decode", "-m", where[1]}},
    };
    check_all(cases, sizeof cases / sizeof cases[0], 2);
}

Test(cli_errors, bad_prompts_end_with_3)
{
    write_models();
    const error_case cases[] = {
        {3, "empty", {"generate", "-m", where[0], "-p", ""}},
        {3, "the context holds 64", {"generate", "-m", where[0], "-p", long_prompt}},
        {3, "/bad.txt: invalid UTF-8 at byte 3", {"generate", "-m", where[0], "-f", where[4]}},
        {3, "the prompt has 73 tokens, the context holds 64", {"generate", "-m", where[0], "-p", long_prompt, "-n", "1"}},
        {3, "the context holds 8", {"generate", "-m", where[0], "-p", long_prompt, "-c", "8", "--json"}},
        {3, "/bad.txt: byte 0", {"generate", "-m", where[0], "--prompt-ids", where[4]}},
        {3, "/nowhere/text", {"generate", "-m", where[0], "-f", "/nowhere/text"}},
        {3, "empty", {"logits", "-m", where[0], "-f", "-"}},
        {3, "/bad.txt: invalid UTF-8 at byte 3", {"tokenize", "-m", where[0], "-f", where[4]}},
    };
    check_all(cases, sizeof cases / sizeof cases[0], 3);
}

Test(cli_errors, an_id_outside_the_vocabulary_is_named_by_its_index)
{
    const char *ids = fixture_path("ids");
    write_models();
    write_file(ids, "[3, 4, 320]", 11);
    const error_case c = {3, "index 2", {"generate", "-m", where[0], "--prompt-ids", ids}};
    check_case(&c, 0, 0);
}

Test(cli_errors, control_characters_of_names_do_not_reach_the_terminal)
{
    dewpoint_result result = DEWPOINT("generate", "-m", "/nowhere/a\nb\x1B[31m\x7F\xC2\x9B", "-p", "x");
    check(&result, 3, "a\\x0Ab\\x1B[31m\\x7F\\xC2\\x9B", "name");
    cr_assert(strchr(result.err, '\x1B') == NULL);
    dewpoint_free(&result);
}

Test(cli_errors, an_unknown_instruction_set_ends_with_2)
{
    dewpoint_result result;
    write_models();
    setenv("DEWPOINT_ISA", "mmx", 1);
    result = DEWPOINT("generate", "-m", where[0], "-p", "x");
    check(&result, 2, "DEWPOINT_ISA=mmx", "ISA");
    dewpoint_free(&result);
}

Test(cli_errors, output_that_can_not_be_written_is_an_error)
{
    char command[1024];
    write_models();
    snprintf(command, sizeof command, "%s generate -m %s -p the -n 3 --json >/dev/full 2>/dev/null",
             getenv("DEWPOINT") != NULL ? getenv("DEWPOINT") : "./dewpoint", where[0]);
    cr_assert_eq(WEXITSTATUS(system(command)), 4);
}

/* Allocation after allocation fails; a few are of no consequence (the just-in-time compiler of PCRE2). */
static int fail_allocations(int first, int last, int step, const char *suffix, int ranks, const char *const *arguments)
{
    int failures = 0;
    for (int n = first; n <= last; n += step) {
        char value[32];
        dewpoint_result result;
        snprintf(value, sizeof value, "%d%s", n, suffix);
        setenv("DEWPOINT_FAIL_ALLOC", value, 1);
        result = dewpoint_run(ranks, NULL, arguments);
        if (result.status != 0) {
            failures++;
            check(&result, 4, "not enough memory", value);
        }
        dewpoint_free(&result);
    }
    return failures;
}

Test(cli_errors, any_failing_allocation_ends_with_4)
{
    write_models();
    const char *const one_rank[] = {"generate", "-m",        where[0], "-p", "the dewpoint", "-n", "3", "--json",
                                    "--quiet",  "--threads", "2",      NULL};
    const char *const three_ranks[] = {"generate",   "-m",      where[0],    "-p", "the dewpoint",     "-n", "3",
                                       "--json",     "--quiet", "--threads", "1",  "--simulate-ranks", "3",  "--attention",
                                       "condensate", NULL};
    cr_assert_gt(fail_allocations(1, 200, 3, "", 0, one_rank), 50);
    cr_assert_gt(fail_allocations(2, 400, 7, "", 0, three_ranks), 45);
}

Test(cli_errors, a_failing_allocation_on_one_mpi_rank_ends_all)
{
    write_models();
    const char *const arguments[] = {"generate", "-m", where[0], "-p", "the dewpoint", "-n", "3", "--json", "--quiet", NULL};
    cr_assert_eq(fail_allocations(1, 41, 10, "@1", 3, arguments), 5);
    cr_assert_eq(fail_allocations(90, 120, 30, "@0", 3, arguments), 2);
}
