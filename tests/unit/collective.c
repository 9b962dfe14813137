/* Collective operations on simulated ranks; tests/ranks/collective.c runs the same checks on MPI ranks. */
#include "mpi/collective.h"

#include <criterion/criterion.h>

#include "tests/shared/collective_checks.h"
#include "tests/shared/local_ranks.h"

static const double LONG = 60; /* a deadline that is not meant to pass */

static void on_1_to_16_ranks(collective_check *check)
{
    dw_error err = {0};
    cr_assert(check_on_simulated_ranks(check, 1, 16, &err) == DW_OK, "%s", err.message);
}

Test(collective, broadcast_reaches_1_to_16_ranks)
{
    on_1_to_16_ranks(check_broadcast);
}

Test(collective, all_gather_of_uneven_empty_and_single_parts)
{
    on_1_to_16_ranks(check_all_gather);
}

Test(collective, reduce_of_lists_equals_the_serial_union)
{
    on_1_to_16_ranks(check_reduce);
}

Test(collective, reduce_scatter_of_uneven_empty_and_single_parts)
{
    on_1_to_16_ranks(check_reduce_scatter);
}

Test(collective, gather_in_rank_order)
{
    on_1_to_16_ranks(check_gather);
}

Test(collective, agree_on_the_lowest_failing_rank)
{
    on_1_to_16_ranks(check_agree);
}

/* Messages that all ranks together send. */
typedef struct {
    dw_status (*run)(dw_transport *t, dw_error *err);
    int64_t messages[16]; /* [rank] */
} counted;

static dw_status count_messages(dw_transport *t, void *context, dw_error *err)
{
    counted *c = context;
    const dw_status status = c->run(t, err);
    c->messages[t->rank] = t->traffic.messages_sent;
    if (status != DW_OK) t->ops->abort(t, status);
    return status;
}

static int64_t messages_of(int size, dw_status (*run)(dw_transport *, dw_error *))
{
    counted c = {.run = run};
    dw_error err = {0};
    int64_t sum = 0;
    cr_assert(run_local_ranks(size, LONG, count_messages, &c, NULL, &err) == DW_OK, "%s", err.message);
    for (int r = 0; r < size; r++) sum += c.messages[r];
    return sum;
}

static dw_status broadcast_something(dw_transport *t, dw_error *err)
{
    char data[10] = {0};
    return dw_broadcast(t, data, 10, err);
}

static dw_status gather_part_of_rank_0(dw_transport *t, dw_error *err)
{
    int64_t offsets[17];
    char data[10] = {0};
    for (int r = 0; r <= t->size; r++) offsets[r] = r == 0 ? 0 : 10;
    return dw_all_gather(t, data, offsets, err);
}

static dw_status gather_parts_of_all(dw_transport *t, dw_error *err)
{
    int64_t offsets[17];
    char data[17] = {0};
    for (int r = 0; r <= t->size; r++) offsets[r] = r;
    return dw_all_gather(t, data, offsets, err);
}

static dw_status keep_mine(void *context, void *mine, int64_t *mine_bytes, int64_t capacity, const void *theirs,
                           int64_t theirs_bytes, dw_error *err)
{
    (void)context;
    (void)mine;
    (void)mine_bytes;
    (void)capacity;
    (void)theirs;
    (void)theirs_bytes;
    (void)err;
    return DW_OK;
}

static dw_status reduce_part_of_rank_0(dw_transport *t, dw_error *err)
{
    int64_t offsets[17];
    char data[10] = {0}, scratch[10];
    for (int r = 0; r <= t->size; r++) offsets[r] = r == 0 ? 0 : 10;
    return dw_reduce_scatter(t, data, offsets, scratch, keep_mine, NULL, err);
}

static dw_status agree_that_all_is_well(dw_transport *t, dw_error *err)
{
    return dw_agree(t, DW_OK, err);
}

Test(collective, trees_send_one_message_a_rank_and_rings_one_a_step)
{
    cr_assert_eq(messages_of(13, broadcast_something), 12);
    cr_assert_eq(messages_of(13, gather_part_of_rank_0), 12); /* a broadcast */
    cr_assert_eq(messages_of(13, reduce_part_of_rank_0), 12); /* a reduction */
    cr_assert_eq(messages_of(13, gather_parts_of_all), 13 * 12);
    cr_assert_eq(messages_of(13, agree_that_all_is_well), 24); /* up and down */
    cr_assert_eq(messages_of(1, agree_that_all_is_well), 0);
}

static dw_status shrink(void *context, void *mine, int64_t *mine_bytes, int64_t capacity, const void *theirs,
                        int64_t theirs_bytes, dw_error *err)
{
    *mine_bytes -= 1;
    return keep_mine(context, mine, mine_bytes, capacity, theirs, theirs_bytes, err);
}

static dw_status refuse(void *context, void *mine, int64_t *mine_bytes, int64_t capacity, const void *theirs,
                        int64_t theirs_bytes, dw_error *err)
{
    keep_mine(context, mine, mine_bytes, capacity, theirs, theirs_bytes, err);
    return dw_fail(err, DW_INPUT, "refused");
}

/* context: dw_merge *. With two ranks both merge once, after the only exchange. */
static dw_status scatter_with(dw_transport *t, void *context, dw_error *err)
{
    dw_merge *const *merge = context;
    const int64_t offsets[3] = {0, 1, 2};
    char data[2] = {0}, scratch[1];
    return dw_reduce_scatter(t, data, offsets, scratch, *merge, NULL, err);
}

Test(collective, a_merge_that_fails_or_changes_a_part_s_length_is_an_error)
{
    dw_merge *merge = refuse;
    dw_error err = {0};
    cr_assert_eq(run_local_ranks(2, LONG, scatter_with, &merge, NULL, &err), DW_INPUT);
    cr_assert_str_eq(err.message, "rank 0: refused");
    merge = shrink;
    cr_assert_eq(run_local_ranks(2, LONG, scatter_with, &merge, NULL, &err), DW_RUNTIME);
    cr_assert_str_eq(err.message, "rank 0: rank 0: merging turned 1 bytes into 0");
}

/* Rank 0 expects 10 bytes, the others send 9. */
static dw_status gather_with_a_short_part(dw_transport *t, void *context, dw_error *err)
{
    char data[20] = {0}, out[40];
    (void)context;
    return dw_gather(t, data, t->rank == 0 ? 10 : 9, out, err);
}

Test(collective, ranks_that_disagree_on_a_length_are_told)
{
    dw_error err = {0};
    cr_assert_eq(run_local_ranks(2, LONG, gather_with_a_short_part, NULL, NULL, &err), DW_RUNTIME);
    cr_assert_str_eq(err.message, "rank 0: rank 1 sent 9 bytes to rank 0, which expected 10");
}
