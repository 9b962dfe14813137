/* Ranks that are not alike do not start: mpirun launches programs with other models or options side by side. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "mpi/transport.h"
#include "tests/shared/dewpoint.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/gguf_writer.h"
#include "tests/shared/mpirun.h"
#include "tests/shared/session_run.h"

/* Two ranks with the arguments of rank 0 and one more with other ones. */
typedef struct {
    const char *model;
    const char *option; /* NULL: none */
    const char *value;
} program;

static dewpoint_result run_together(const program *two, const program *third)
{
    const char *arguments[40] = {"generate", "-p", "the dewpoint", "-n", "3", "--quiet", "-m", two->model};
    const char *const others[] = {":", "-n",      "1",  dewpoint_program(), "generate", "-p", "the dewpoint", "-n",
                                  "3", "--quiet", "-m", third->model};
    int n = 8;
    if (two->option != NULL) {
        arguments[n++] = two->option;
        arguments[n++] = two->value;
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) arguments[n++] = others[i];
    if (third->option != NULL) {
        arguments[n++] = third->option;
        arguments[n++] = third->value;
    }
    return dewpoint_run(2, NULL, arguments);
}

/* One line on stderr that begins with the rank and its host; `said` is part of it. */
static void is_refused(const program *two, const program *third, int status, const char *said)
{
    char host[65], expected[128];
    dewpoint_result result = run_together(two, third);
    const char *end = strchr(result.err, '\n');
    dw_host_name(host, sizeof host);
    snprintf(expected, sizeof expected, "dewpoint: rank 2 on %s: ", host);
    cr_assert_eq(result.status, status, "%s: status %d: %s", said, result.status, result.err);
    cr_assert_str_empty(result.out);
    cr_assert(strncmp(result.err, expected, strlen(expected)) == 0, "'%s' does not begin with '%s'", result.err, expected);
    cr_assert(end != NULL && end[1] == '\0', "not one line: %s", result.err);
    cr_assert(strstr(result.err, said) != NULL, "'%s' is not in '%s'", said, result.err);
    dewpoint_free(&result);
}

static const char *model(const char *name, uint64_t seed)
{
    const char *path = fixture_path(name);
    fixture_model(path, &(fixture_spec){.tokenizer = 1, .seed = seed});
    return path;
}

Test(handshake, another_model_on_one_rank_ends_with_3_and_names_its_file)
{
    const program a = {model("a.gguf", 1), NULL, NULL};
    const program b = {model("b.gguf", 2), NULL, NULL};
    const char *path = fixture_path("c.gguf");
    const program c = {path, NULL, NULL};
    is_refused(&a, &b, 3, "/b.gguf: the model's weights differs between ranks");
    fixture_model(path, &(fixture_spec){.tokenizer = 1, .seed = 1, .rope_base = 20000});
    is_refused(&a, &c, 3, "/c.gguf: the model's metadata differs between ranks");
}

Test(handshake, another_option_on_one_rank_ends_with_2_and_shows_both_values)
{
    const program a = {model("a.gguf", 1), NULL, NULL};
    const program b = {a.model, "--kv-type", "f32"};
    is_refused(&a, &b, 2, "--kv-type differs between ranks: F32,F32 here, F16,F16 on rank 0");
}

Test(handshake, another_path_of_the_same_model_and_other_threads_are_accepted)
{
    const program a = {model("a.gguf", 1), "--threads", "1"};
    const program b = {model("b.gguf", 1), "--threads", "2"};
    dewpoint_result alone = DEWPOINT("generate", "-p", "the dewpoint", "-n", "3", "--quiet", "-m", a.model);
    dewpoint_result together = run_together(&a, &b);
    cr_assert_eq(together.status, 0, "%s", together.err);
    cr_assert_str_eq(together.out, alone.out);
    dewpoint_free(&alone);
    dewpoint_free(&together);
}

/* Every instruction set follows the same definition, so its ranks shake hands, and compute the same. */
Test(handshake, ranks_with_different_instruction_sets_print_what_one_process_prints)
{
    const char *path = model("a.gguf", 1);
    const char *const set[] = {"DEWPOINT_ISA=scalar", session_has_isa("avx2") ? "DEWPOINT_ISA=avx2" : "DEWPOINT_ISA=scalar",
                               session_has_isa("avx512") ? "DEWPOINT_ISA=avx512" : "DEWPOINT_ISA=scalar"};
    const char *const part[] = {dewpoint_program(),        "logits",      "-m",  path,    "-p",
                                "the dewpoint of the dew", "--positions", "all", "--json"};
    const char *argv[48];
    int n = 0;
    mpirun_result together;
    dewpoint_result alone = DEWPOINT("logits", "-m", path, "-p", "the dewpoint of the dew", "--positions", "all", "--json");
    dw_error err;
    for (int rank = 0; rank < 3; rank++) {
        if (rank > 0) {
            argv[n++] = ":";
            argv[n++] = "-n";
            argv[n++] = "1";
        }
        argv[n++] = "env";
        argv[n++] = set[rank];
        for (size_t i = 0; i < sizeof part / sizeof part[0]; i++) argv[n++] = part[i];
    }
    argv[n] = NULL;
    cr_assert_eq(mpirun(&together, 1, 60, argv, &err), DW_OK, "%s", err.message);
    cr_assert_eq(together.status, 0, "%s", together.err);
    cr_assert(alone.status == 0 && strlen(alone.out) > 1000);
    cr_assert_str_eq(together.out, alone.out);
    mpirun_free(&together);
    dewpoint_free(&alone);
}
