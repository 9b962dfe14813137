/* The in-process transport by itself, and how a launch by MPI is recognized. The messages of both transports are checked in
   tests/shared/collective_checks.c. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "tests/shared/collective_checks.h"
#include "tests/shared/local_ranks.h"

static const double LONG = 60; /* a deadline that is not meant to pass */

static void on_1_to_16_ranks(collective_check *check)
{
    dw_error err = {0};
    cr_assert(check_on_simulated_ranks(check, 1, 16, &err) == DW_OK, "%s", err.message);
}

Test(transport_local, messages_of_a_pair_arrive_in_order_and_whole)
{
    on_1_to_16_ranks(check_order_and_sizes);
}

Test(transport_local, long_messages_arrive_whole)
{
    dw_error err = {0};
    cr_assert(check_on_simulated_ranks(check_long_messages, 2, 2, &err) == DW_OK, "%s", err.message);
}

Test(transport_local, exchange_in_a_ring_does_not_deadlock)
{
    on_1_to_16_ranks(check_exchange_ring);
}

Test(transport_local, a_message_longer_than_the_buffer_is_refused)
{
    on_1_to_16_ranks(check_too_long_message);
}

Test(transport_local, traffic_is_counted)
{
    on_1_to_16_ranks(check_traffic_counters);
}

/* Rank 0 waits for the last rank, every other one for its predecessor; the last rank ends the run. */
static dw_status wait_for_an_abort(dw_transport *t, void *context, dw_error *err)
{
    const int last = t->size - 1;
    char byte;
    int64_t bytes;
    (void)context;
    if (t->rank == last) {
        t->ops->abort(t, DW_INPUT);
        return DW_OK;
    }
    return dw_receive(t, t->rank == 0 ? last : t->rank - 1, &byte, 1, &bytes, err);
}

Test(transport_local, an_abort_ends_every_wait)
{
    for (int size = 2; size <= 16; size++) {
        dw_error errors[16] = {0};
        dw_error err = {0};
        char expected[64];
        snprintf(expected, sizeof expected, "rank %d ended the run", size - 1);
        run_local_ranks(size, LONG, wait_for_an_abort, NULL, errors, &err);
        for (int r = 0; r < size - 1; r++) {
            cr_assert_eq(errors[r].status, DW_RANK_LOST);
            cr_assert_str_eq(errors[r].message, expected);
        }
        cr_assert_eq(errors[size - 1].status, DW_OK);
    }
}

Test(transport_local, after_an_abort_nothing_is_sent_or_received)
{
    dw_transport *ranks[3];
    dw_error err = {0};
    char byte = 0;
    int64_t bytes;
    cr_assert_eq(dw_transport_local_create(ranks, 3, LONG, &err), DW_OK);
    ranks[1]->ops->abort(ranks[1], DW_RUNTIME);
    ranks[2]->ops->abort(ranks[2], DW_RUNTIME); /* the first one is named */
    cr_assert_eq(dw_send(ranks[0], 2, &byte, 1, &err), DW_RANK_LOST);
    cr_assert_str_eq(err.message, "rank 1 ended the run");
    cr_assert_eq(dw_receive(ranks[2], 0, &byte, 1, &bytes, &err), DW_RANK_LOST);
    cr_assert_eq(dw_exchange(ranks[2], 0, &byte, 1, 0, &byte, 1, &bytes, &err), DW_RANK_LOST);
    cr_assert_eq(ranks[0]->traffic.messages_sent, 0);
    for (int r = 0; r < 3; r++) dw_transport_destroy(ranks[r]);
}

Test(transport_local, a_deadline_names_the_rank_and_the_host)
{
    dw_transport *ranks[2];
    dw_error err = {0};
    char byte, host[65], expected[256];
    int64_t bytes;
    dw_host_name(host, sizeof host);
    snprintf(expected, sizeof expected, "rank 1 on %s did not answer for 0.05 seconds (rank 0 was waiting for rank 1)", host);
    cr_assert_eq(dw_transport_local_create(ranks, 2, 0.05, &err), DW_OK);
    cr_assert_eq(dw_receive(ranks[0], 1, &byte, 1, &bytes, &err), DW_RANK_LOST);
    cr_assert_str_eq(err.message, expected);
    cr_assert_geq(ranks[0]->traffic.wait_seconds, 0.05);
    cr_assert_eq(dw_send(ranks[1], 0, "x", 1, &err), DW_OK); /* late, but not lost */
    cr_assert_eq(dw_receive(ranks[0], 1, &byte, 1, &bytes, &err), DW_OK);
    cr_assert(byte == 'x' && bytes == 1);
    dw_transport_destroy(ranks[0]);
    dw_transport_destroy(ranks[1]);
}

/* Rank 0 waits for 1, which waits for 2, which does nothing. When rank 0's deadline passes before rank 1 has begun to wait,
   it is not wrong to name rank 1: rank 0 asks again. */
static dw_status wait_in_a_chain(dw_transport *t, void *context, dw_error *err)
{
    char byte;
    int64_t bytes;
    dw_status status = DW_OK;
    (void)context;
    if (t->rank == 2) return DW_OK;
    if (t->rank == 1) return dw_receive(t, 2, &byte, 1, &bytes, err);
    t->deadline = 0.05;
    for (int i = 0; i < 200; i++) {
        status = dw_receive(t, 1, &byte, 1, &bytes, err);
        if (strstr(err->message, "rank 2 on ") == err->message) break;
    }
    t->ops->abort(t, status);
    return status;
}

Test(transport_local, a_deadline_names_the_end_of_a_chain_of_waiting_ranks)
{
    dw_error errors[3] = {0};
    dw_error err = {0};
    run_local_ranks(3, LONG, wait_in_a_chain, NULL, errors, &err);
    cr_assert_eq(errors[0].status, DW_RANK_LOST);
    cr_assert(strstr(errors[0].message, "rank 2 on ") == errors[0].message, "%s", errors[0].message);
    cr_assert(strstr(errors[0].message, "(rank 0 was waiting for rank 1)") != NULL, "%s", errors[0].message);
}

Test(transport_local, a_rank_that_gave_up_waiting_is_not_the_lost_one)
{
    dw_transport *ranks[3];
    dw_error err = {0};
    char byte;
    int64_t bytes;
    cr_assert_eq(dw_transport_local_create(ranks, 3, 0.05, &err), DW_OK);
    cr_assert_eq(dw_receive(ranks[1], 2, &byte, 1, &bytes, &err), DW_RANK_LOST);
    cr_assert_eq(dw_receive(ranks[0], 1, &byte, 1, &bytes, &err), DW_RANK_LOST);
    cr_assert(strstr(err.message, "rank 2 on ") == err.message, "%s", err.message);
    for (int r = 0; r < 3; r++) dw_transport_destroy(ranks[r]);
}

/* 100 rounds of small messages each way; the first round may allocate. */
static dw_status ping_pong(dw_transport *t, void *context, dw_error *err)
{
    int64_t *allocations = context; /* of the rounds after the first, seen by rank 0 */
    unsigned char data[4096] = {0};
    int64_t bytes;
    for (int i = 0; i <= 100; i++) {
        if (i == 1 && t->rank == 0) *allocations = dw_memory_allocations();
        if (t->rank == 0) DW_TRY(dw_send(t, 1, data, 4096, err));
        DW_TRY(dw_receive(t, 1 - t->rank, data, 4096, &bytes, err));
        if (t->rank == 1) DW_TRY(dw_send(t, 0, data, 4096, err));
    }
    if (t->rank == 0) *allocations = dw_memory_allocations() - *allocations;
    return DW_OK;
}

Test(transport_local, messages_of_the_same_size_allocate_once)
{
    dw_error err = {0};
    int64_t allocations = -1;
    cr_assert_eq(run_local_ranks(2, LONG, ping_pong, &allocations, NULL, &err), DW_OK, "%s", err.message);
    cr_assert_eq(allocations, 0);
}

Test(transport_local, every_failing_allocation_of_the_start_is_an_error)
{
    dw_transport *ranks[3];
    dw_error err = {0};
    dw_status status = DW_RESOURCE;
    int failures = 0;
    for (; failures < 100; failures++) {
        dw_memory_fail_at(failures + 1);
        status = dw_transport_local_create(ranks, 3, LONG, &err);
        dw_memory_fail_at(0);
        if (status == DW_OK) break;
        cr_assert_eq(status, DW_RESOURCE);
        cr_assert(ranks[0] == NULL && ranks[1] == NULL && ranks[2] == NULL);
    }
    cr_assert_eq(status, DW_OK);
    cr_assert_eq(failures, 6); /* the shared part, its two arrays, three ranks */
    for (int r = 0; r < 3; r++) dw_transport_destroy(ranks[r]);
}

Test(transport_local, a_failing_allocation_of_a_message_is_an_error_and_sends_nothing)
{
    dw_transport *ranks[2];
    dw_error err = {0};
    char byte;
    int64_t bytes;
    cr_assert_eq(dw_transport_local_create(ranks, 2, LONG, &err), DW_OK);
    dw_memory_fail_at(1);
    cr_assert_eq(dw_send(ranks[0], 1, "a", 1, &err), DW_RESOURCE);
    cr_assert_eq(dw_send(ranks[0], 1, "b", 1, &err), DW_OK);
    cr_assert_eq(dw_receive(ranks[1], 0, &byte, 1, &bytes, &err), DW_OK);
    cr_assert_eq(byte, 'b');
    cr_assert_eq(ranks[0]->traffic.messages_sent, 1);
    dw_transport_destroy(ranks[0]);
    dw_transport_destroy(ranks[1]);
}

Test(transport_local, unread_messages_are_freed)
{
    dw_transport *ranks[2];
    dw_error err = {0};
    cr_assert_eq(dw_transport_local_create(ranks, 2, LONG, &err), DW_OK);
    for (int i = 0; i < 3; i++) cr_assert_eq(dw_send(ranks[0], 1, "abc", 3, &err), DW_OK);
    dw_transport_destroy(ranks[0]); /* the leak check of the sanitizer build decides */
    dw_transport_destroy(ranks[1]);
}

Test(host_name, fits_any_room)
{
    char name[65], shorter[4] = "###", none[1] = "#";
    dw_host_name(name, sizeof name);
    cr_assert_gt(strlen(name), 0);
    dw_host_name(shorter, 3);
    cr_assert_lt(strlen(shorter), 3);
    cr_assert_eq(strncmp(shorter, name, strlen(shorter)), 0);
    cr_assert_eq(shorter[3], '\0'); /* untouched: it was the end of the initial text */
    dw_host_name(none, 1);
    cr_assert_eq(none[0], '\0');
}

static const char *const launch_variables[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK",    "PMI_RANK",    "PMI_SIZE",
                                               "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_PROCID"};

/* settings: name, value, name, value, ..., NULL */
static int launched_with(const char *const *settings)
{
    for (size_t i = 0; i < sizeof launch_variables / sizeof launch_variables[0]; i++) unsetenv(launch_variables[i]);
    for (; *settings != NULL; settings += 2) setenv(settings[0], settings[1], 1);
    return dw_transport_mpi_launched();
}

#define LAUNCHED(...) launched_with((const char *const[]){__VA_ARGS__, NULL})

Test(launch, several_ranks_of_mpirun_or_srun_with_mpi_count)
{
    cr_assert(LAUNCHED("OMPI_COMM_WORLD_SIZE", "4", "PMIX_RANK", "0"), "mpirun -n 4");
    cr_assert(LAUNCHED("PMIX_RANK", "0", "SLURM_STEP_NUM_TASKS", "2", "SLURM_NTASKS", "2"), "srun --mpi=pmix -n 2");
    cr_assert(LAUNCHED("PMIX_RANK", "3"), "another launcher with PMIx");
    cr_assert(LAUNCHED("PMI_RANK", "1", "PMI_SIZE", "2"), "srun --mpi=pmi2 -n 2");
}

Test(launch, a_single_rank_or_slurm_without_mpi_does_not_count)
{
    cr_assert_not(launched_with((const char *const[]){NULL}), "a shell");
    cr_assert_not(LAUNCHED("OMPI_COMM_WORLD_SIZE", "1", "PMIX_RANK", "0"), "mpirun -n 1");
    cr_assert_not(LAUNCHED("SLURM_STEP_NUM_TASKS", "4", "SLURM_NTASKS", "4", "SLURM_PROCID", "1"), "srun --mpi=none -n 4");
    cr_assert_not(LAUNCHED("SLURM_NTASKS", "4"), "a shell of salloc -n 4");
    cr_assert_not(LAUNCHED("PMIX_RANK", "0", "SLURM_STEP_NUM_TASKS", "1", "SLURM_NTASKS", "4"), "interactive step of salloc");
    cr_assert_not(LAUNCHED("PMI_RANK", "0", "PMI_SIZE", "1"), "srun --mpi=pmi2 -n 1");
    cr_assert_not(LAUNCHED("OMPI_COMM_WORLD_SIZE", "", "PMIX_RANK", ""), "empty values");
}
