#include "mpi/handshake.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "cli/identity.h"
#include "mpi/collective.h"
#include "tests/shared/local_ranks.h"

enum { MOST_RANKS = 16 };
static const double LONG = 60; /* a deadline that is not meant to pass */

/* What each rank says, and how its own preparations went. */
typedef struct {
    dw_card card[MOST_RANKS];
    dw_status mine[MOST_RANKS];
} ranks_say;

static dw_status shake_hands(dw_transport *t, void *context, dw_error *err)
{
    const ranks_say *say = context;
    dw_status mine = say->mine[t->rank];
    if (mine != DW_OK) dw_fail(err, mine, "own failure");
    DW_TRY(dw_handshake(t, &say->card[t->rank], &mine, err));
    return dw_agree(t, mine, err);
}

static void equal_cards(ranks_say *say, int ranks)
{
    for (int r = 0; r < ranks; r++) {
        say->mine[r] = DW_OK;
        dw_card_start(&say->card[r]);
        dw_card_add(&say->card[r], DW_USAGE, "--keys", "%d", 32);
        dw_card_add(&say->card[r], DW_INPUT, "the model's weights", "%llx", 0x1234ull);
    }
}

/* Every rank must hear the same. */
static void all_hear(ranks_say *say, int ranks, dw_status status, const char *format, int rank)
{
    dw_error errors[MOST_RANKS] = {0};
    dw_error err = {0};
    char host[65], expected[512];
    dw_host_name(host, sizeof host);
    snprintf(expected, sizeof expected, "rank %d on %s: %s", rank, host, format);
    run_local_ranks(ranks, LONG, shake_hands, say, errors, &err);
    for (int r = 0; r < ranks; r++) {
        cr_assert_eq(errors[r].status, status, "rank %d of %d: status %d", r, ranks, errors[r].status);
        if (status != DW_OK) cr_assert_str_eq(errors[r].message, expected);
    }
}

Test(handshake, ranks_that_are_alike_may_start)
{
    static ranks_say say;
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
        equal_cards(&say, ranks);
        all_hear(&say, ranks, DW_OK, "", 0);
    }
}

Test(handshake, the_rank_that_differs_is_named_with_both_values_on_all_ranks)
{
    static ranks_say say;
    for (int ranks = 2; ranks <= MOST_RANKS; ranks++) {
        for (int r = 1; r < ranks; r++) {
            equal_cards(&say, ranks);
            snprintf(say.card[r].fact[2].value, sizeof say.card[r].fact[2].value, "5");
            all_hear(&say, ranks, DW_USAGE, "--keys differs between ranks: 5 here, 32 on rank 0", r);
            equal_cards(&say, ranks);
            snprintf(say.card[r].fact[3].value, sizeof say.card[r].fact[3].value, "99");
            all_hear(&say, ranks, DW_INPUT, "the model's weights differs between ranks: 99 here, 1234 on rank 0", r);
        }
    }
}

Test(handshake, another_version_or_protocol_comes_before_all_else)
{
    static ranks_say say;
    char expected[256];
    equal_cards(&say, 3);
    snprintf(say.card[2].fact[1].value, sizeof say.card[2].fact[1].value, "999");
    snprintf(say.card[2].fact[2].value, sizeof say.card[2].fact[2].value, "5");
    snprintf(expected, sizeof expected, "the protocol differs between ranks: 999 here, %d on rank 0", DW_PROTOCOL);
    all_hear(&say, 3, DW_RUNTIME, expected, 2);
    snprintf(say.card[2].fact[0].value, sizeof say.card[2].fact[0].value, "0.0.0");
    snprintf(expected, sizeof expected, "the version of dewpoint differs between ranks: 0.0.0 here, %s on rank 0", DW_VERSION);
    all_hear(&say, 3, DW_RUNTIME, expected, 2);
}

/* When rank 0 could not load its model it states none, and its own failure is the one to hear of. */
Test(handshake, a_failure_of_a_rank_s_own_comes_before_what_differs)
{
    static ranks_say say;
    equal_cards(&say, 4);
    say.card[0].count = 2;
    say.mine[0] = DW_RESOURCE;
    all_hear(&say, 4, DW_RESOURCE, "own failure", 0);
    equal_cards(&say, 4);
    snprintf(say.card[1].fact[2].value, sizeof say.card[1].fact[2].value, "5");
    say.mine[1] = DW_RESOURCE;
    all_hear(&say, 4, DW_RESOURCE, "own failure", 1);
}

Test(handshake, long_values_and_too_many_facts_are_cut)
{
    static ranks_say say;
    static const char digits[] = "0123456789012345678901234567890123456789012345678901234567890123456789"
                                 "01234567890123456789012345678901234567890123456789";
    for (int r = 0; r < 2; r++) {
        dw_card_start(&say.card[r]);
        for (int i = 0; i < 2 * DW_MAX_FACTS; i++) dw_card_add(&say.card[r], DW_USAGE, digits, "%s", digits);
        cr_assert_eq(say.card[r].count, DW_MAX_FACTS);
    }
    all_hear(&say, 2, DW_OK, "", 0);
}

/* ---- what the command line puts on the card ---- */

static dw_card card_of(const dw_options *options)
{
    dw_card card;
    dw_card_start(&card);
    dw_card_add_options(&card, options);
    cr_assert_lt(card.count, DW_MAX_FACTS - 3); /* definition and model follow */
    return card;
}

#define PARSE(options, ...) parse(options, (const char *const[]){"dewpoint", __VA_ARGS__, NULL})

static void parse(dw_options *options, const char *const *arguments)
{
    char *argv[16];
    int argc = 0;
    dw_error err;
    while (arguments[argc] != NULL) argc++;
    memcpy(argv, arguments, ((size_t)argc + 1) * sizeof *argv);
    cr_assert_eq(dw_options_parse(options, argc, argv, &err), DW_OK, "%s", err.message);
}

Test(handshake, every_option_that_all_ranks_act_on_is_on_the_card)
{
    static const char *const differ[][2] = {{"--rope-base", "500"}, {"--context", "9"},      {"--attention", "condensate"},
                                            {"--anchor", "2"},      {"--window", "9"},       {"--keys", "9"},
                                            {"--kv-type", "bf16"},  {"--kv-type", "f16,f32"}};
    static const char *const alike[][2] = {{"--threads", "3"}, {"--seed", "7"}, {"--tokens", "3"}, {"--deadline", "9"}};
    dw_options options;
    dw_card usual, card;
    PARSE(&options, "generate", "-m", "m", "-p", "x");
    usual = card_of(&options);
    for (size_t i = 0; i < sizeof differ / sizeof differ[0]; i++) {
        PARSE(&options, "generate", "-m", "m", "-p", "x", differ[i][0], differ[i][1]);
        card = card_of(&options);
        cr_assert(memcmp(&card, &usual, sizeof card) != 0, "%s is not on the card", differ[i][0]);
    }
    for (size_t i = 0; i < sizeof alike / sizeof alike[0]; i++) {
        PARSE(&options, "generate", "-m", "another/path", "-p", "y", alike[i][0], alike[i][1]);
        card = card_of(&options);
        cr_assert(memcmp(&card, &usual, sizeof card) == 0, "%s is on the card", alike[i][0]);
    }
    PARSE(&options, "logits", "-m", "m", "-p", "x");
    card = card_of(&options);
    cr_assert_neq(memcmp(&card, &usual, sizeof card), 0, "the command is not on the card");
    PARSE(&options, "generate", "--help");
    card = card_of(&options);
    cr_assert_neq(memcmp(&card, &usual, sizeof card), 0, "--help is not on the card");
}

Test(handshake, the_modes_of_a_bench_are_on_the_card)
{
    dw_options options;
    dw_card both, one;
    PARSE(&options, "bench", "decode", "-m", "m", "--attention", "dense,condensate");
    both = card_of(&options);
    PARSE(&options, "bench", "decode", "-m", "m", "--attention", "dense");
    one = card_of(&options);
    cr_assert_neq(memcmp(&both, &one, sizeof one), 0);
}
