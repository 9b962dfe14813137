/* The transport and the collective operations on MPI ranks, through build/tests/ranks/programs/transport. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "mpi/transport.h"
#include "tests/shared/mpirun.h"

enum { TIMEOUT = 60 };

/* Runs the program with up to four arguments, of which the last may be NULL. */
static mpirun_result run(int ranks, const char *mode, const char *first, const char *second)
{
    char program[4096];
    const char *const argv[] = {program, mode, first, second, NULL};
    mpirun_result result;
    dw_error err = {0};
    cr_assert_eq(program_beside_this(program, sizeof program, "programs/transport", &err), DW_OK, "%s", err.message);
    cr_assert_eq(mpirun(&result, ranks, TIMEOUT, argv, &err), DW_OK, "%s", err.message);
    return result;
}

static void all_checks_on(int ranks)
{
    char expected[64];
    mpirun_result result = run(ranks, "checks", NULL, NULL);
    snprintf(expected, sizeof expected, "%d ranks agree\n", ranks);
    cr_assert(result.status == 0 && strcmp(result.out, expected) == 0, "status %d, out '%s', err '%s'", result.status,
              result.out, result.err);
    cr_assert_eq(result.left_processes, 0);
    mpirun_free(&result);
}

Test(mpi_transport, all_checks_on_1_rank)
{
    all_checks_on(1);
}

Test(mpi_transport, all_checks_on_2_ranks)
{
    all_checks_on(2);
}

Test(mpi_transport, all_checks_on_3_ranks)
{
    all_checks_on(3);
}

Test(mpi_transport, all_checks_on_4_ranks)
{
    all_checks_on(4);
}

Test(mpi_transport, all_checks_on_5_ranks)
{
    all_checks_on(5);
}

Test(mpi_transport, all_checks_on_8_ranks)
{
    all_checks_on(8);
}

Test(mpi_transport, an_abort_ends_all_ranks_with_its_status)
{
    mpirun_result result = run(4, "abort", "2", "4");
    cr_assert_eq(result.status, 4, "status %d, err '%s'", result.status, result.err);
    cr_assert_eq(result.left_processes, 0);
    mpirun_free(&result);
}

/* Every line that speaks of a silent rank must name the stopped one, whoever writes it first. */
static void a_stopped_rank(int ranks, int stopped, const char *where)
{
    char name[16], host[65], expected[128];
    int lines = 0;
    mpirun_result result;
    snprintf(name, sizeof name, "%d", stopped);
    dw_host_name(host, sizeof host);
    snprintf(expected, sizeof expected, ": rank %d on %s did not answer for ", stopped, host);
    result = run(ranks, "stop", name, where);
    cr_assert_eq(result.status, DW_RANK_LOST, "status %d, err '%s'", result.status, result.err);
    for (const char *at = result.err; (at = strstr(at, "did not answer")) != NULL; at++) lines++;
    for (const char *at = result.err; (at = strstr(at, expected)) != NULL; at++) lines--;
    cr_assert_eq(lines, 0, "another rank is named: %s", result.err);
    cr_assert_neq(strstr(result.err, expected), NULL, "no rank is named: %s", result.err);
    cr_assert_eq(result.left_processes, 0);
    mpirun_free(&result);
}

Test(mpi_transport, a_stopped_rank_is_named_by_ranks_that_wait_for_others)
{
    a_stopped_rank(4, 2, "ring");
}

Test(mpi_transport, a_stopped_rank_at_the_end_of_a_chain_is_named_and_not_a_busy_one)
{
    a_stopped_rank(4, 3, "chain");
}

Test(mpi_transport, a_stopped_coordinator_is_named)
{
    a_stopped_rank(4, 0, "ring");
}

Test(mpi_transport, a_stopped_receiver_is_named)
{
    a_stopped_rank(3, 1, "send");
}

Test(mpi_transport, a_rank_that_stops_before_the_end_is_named)
{
    a_stopped_rank(3, 2, "destroy");
}
