/* Promise P5 on MPI ranks: a rank that is stopped or killed in the middle of a run ends the job with a status that is not 0 and
   a message that names rank and host, and no process is left.

   The signal is sent once the output shows that the run is in its prefill or its decoding, which then would go on for minutes,
   so that it always strikes in the act. A stopped rank must be noticed within --deadline, one second of roll call and a tenth
   of a second a rank (two at most); a killed one is noticed by mpirun at once. A job that hangs is ended by mpirun after LIMIT
   seconds, with another status than those expected here. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "mpi/transport.h"
#include "tests/shared/dewpoint.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/mpirun.h"
#include "tests/shared/prompts.h"

enum { RANKS = 3, LIMIT = 60, LONG_PROMPT = 90000, KILLED_STATUS = 128 + SIGKILL };
static const char deadline[] = "2";

typedef enum { PREFILL, DECODE } phase;

/* A run of generate that never ends by itself; rank `rank` gets `signal` in the phase. */
static mpirun_result strike(int signal, int rank, phase when)
{
    const char *program = dewpoint_program();
    const char *model = fixture_path("model.gguf");
    const int64_t count = when == PREFILL ? LONG_PROMPT : 3;
    const mpirun_fault fault = {.sign = when == PREFILL ? "prefill 1024/" : NULL, .rank = rank, .signal = signal};
    int32_t *prompt;
    mpirun_result result;
    dw_error err;
    fixture_model(model, &(fixture_spec){.tokenizer = 1, .context = 200000});
    cr_assert_eq(DW_ALLOC(&prompt, count, "prompt", &err), DW_OK);
    prompt_random(prompt, count, 320);
    const char *const argv[] = {
        program,        "generate",  "-m", model,        "--prompt-ids", prompt_file("ids", prompt, count),
        "--ignore-eos", "--threads", "1",  "--progress", "always",       "--deadline",
        deadline,       NULL};
    cr_assert_eq(mpirun_with_fault(&result, RANKS, LIMIT, argv, &fault, &err), DW_OK, "%s", err.message);
    cr_assert_eq(result.left_processes, 0, "%d processes are left; %s", result.left_processes, result.err);
    dw_free(prompt);
    return result;
}

static void a_stopped_rank_is_named(int rank, phase when)
{
    char host[65], expected[128];
    mpirun_result result = strike(SIGSTOP, rank, when);
    dw_host_name(host, sizeof host);
    snprintf(expected, sizeof expected, "dewpoint: rank %d on %s did not answer for %s seconds", rank, host, deadline);
    cr_assert_eq(result.status, DW_RANK_LOST, "status %d, err '%s'", result.status, result.err);
    cr_assert_neq(strstr(result.err, expected), NULL, "'%s' is not in '%s'", expected, result.err);
    mpirun_free(&result);
}

Test(faults, a_rank_stopped_in_prefill_ends_the_job_and_is_named)
{
    a_stopped_rank_is_named(1, PREFILL);
}

Test(faults, a_coordinator_stopped_in_prefill_ends_the_job_and_is_named)
{
    a_stopped_rank_is_named(0, PREFILL);
}

Test(faults, a_rank_stopped_in_decoding_ends_the_job_and_is_named)
{
    a_stopped_rank_is_named(2, DECODE);
}

Test(faults, a_coordinator_stopped_in_decoding_ends_the_job_and_is_named)
{
    a_stopped_rank_is_named(0, DECODE);
}

/* mpirun ends the other ranks before they could notice; its own message names the rank. */
static void a_killed_rank_is_named(int rank, phase when)
{
    char host[65], expected[2][128];
    mpirun_result result = strike(SIGKILL, rank, when);
    dw_host_name(host, sizeof host);
    snprintf(expected[0], sizeof expected[0], "process rank %d with PID", rank);
    snprintf(expected[1], sizeof expected[1], "on node %s exited on signal %d", host, SIGKILL);
    cr_assert_eq(result.status, KILLED_STATUS, "status %d, err '%s'", result.status, result.err);
    for (int i = 0; i < 2; i++)
        cr_assert(strstr(result.err, expected[i]) != NULL, "'%s' is not in '%s'", expected[i], result.err);
    mpirun_free(&result);
}

Test(faults, a_rank_killed_in_prefill_ends_the_job_and_is_named)
{
    a_killed_rank_is_named(2, PREFILL);
}

Test(faults, a_coordinator_killed_in_prefill_ends_the_job_and_is_named)
{
    a_killed_rank_is_named(0, PREFILL);
}

Test(faults, a_rank_killed_in_decoding_ends_the_job_and_is_named)
{
    a_killed_rank_is_named(1, DECODE);
}

Test(faults, a_coordinator_killed_in_decoding_ends_the_job_and_is_named)
{
    a_killed_rank_is_named(0, DECODE);
}
