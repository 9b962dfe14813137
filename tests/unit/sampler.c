#include "decode/sampler.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/precise.h"

enum { TOKENS = 8 };

/* Probabilities .30 .25 .15 .10 .08 .06 .04 .02, out of order. */
static const double probability[TOKENS] = {.08, .30, .02, .25, .06, .15, .04, .10};

static void make_logits(float *logits)
{
    for (int i = 0; i < TOKENS; i++) logits[i] = (float)(log(probability[i]) + 5);
}

static dw_sampler *make(dw_sampling sampling, int64_t vocabulary)
{
    dw_sampler *sampler;
    dw_error err;
    cr_assert_eq(dw_sampler_create(&sampler, &sampling, vocabulary, &err), DW_OK, "%s", err.message);
    return sampler;
}

/* counts: [TOKENS] how often each token comes at positions 0..draws-1. */
static void draw(dw_sampling sampling, int draws, int *counts)
{
    float logits[TOKENS];
    dw_sampler *sampler = make(sampling, TOKENS);
    make_logits(logits);
    memset(counts, 0, TOKENS * sizeof *counts);
    for (int i = 0; i < draws; i++) counts[dw_sample(sampler, logits, i)]++;
    dw_sampler_destroy(sampler);
}

static double ulps(double value, double exact)
{
    return fabs(value - exact) / (nextafter(fabs(exact), INFINITY) - fabs(exact));
}

Test(sampler, own_logarithm_and_exponential_agree_with_libm_within_3_ulp)
{
    double worst_log = 0, worst_exp = 0;
    for (int i = 1; i <= 200000; i++) {
        const double x = i * 0x1.0102030405p-17;
        const double near_one = 1 - i * 0x1p-53;
        worst_log = fmax(worst_log, fmax(ulps(dw_log(x), log(x)), ulps(dw_log(near_one), log(near_one))));
        worst_exp = fmax(worst_exp, ulps(dw_exp(-x * 350), exp(-x * 350)));
    }
    for (int e = -1022; e < 1024; e++) worst_log = fmax(worst_log, e == 0 ? 0 : ulps(dw_log(ldexp(1, e)), log(ldexp(1, e))));
    cr_log_info("largest error: log %.2f ulp, exp %.2f ulp", worst_log, worst_exp);
    cr_assert_leq(worst_log, 3);
    cr_assert_leq(worst_exp, 3);
    cr_assert_eq(dw_log(1), 0);
    cr_assert_eq(dw_exp(0), 1);
}

/* The bits themselves, so that a machine with another idea of arithmetic is noticed. */
Test(sampler, own_logarithm_and_exponential_have_these_bits)
{
    cr_assert_eq(dw_log(10), 0x1.26bb1bbb55516p+1, "%a", dw_log(10));
    cr_assert_eq(dw_log(0x1.23456789abcdep-40), -0x1.b98c88d4d8bf7p+4, "%a", dw_log(0x1.23456789abcdep-40));
    cr_assert_eq(dw_exp(-1), 0x1.78b56362cef38p-2, "%a", dw_exp(-1));
    cr_assert_eq(dw_exp(-123.456), 0x1.da9fb9e4ee72p-179, "%a", dw_exp(-123.456));
}

Test(sampler, greedy_takes_the_largest_logit_and_the_lowest_id_on_ties)
{
    const float logits[TOKENS] = {-3, 2, 7, -INFINITY, 7, 6.999f, 7, 0};
    dw_sampler *sampler = make((dw_sampling){.top_p = 1, .top_k = 3, .seed = 9}, TOKENS);
    for (int position = 0; position < 100; position++) cr_assert_eq(dw_sample(sampler, logits, position), 2);
    dw_sampler_destroy(sampler);
}

/* Chi-square with 7 degrees of freedom: above 29.9 once in 10,000 seeds. */
Test(sampler, draws_follow_the_softmax_at_the_temperature)
{
    enum { DRAWS = 100000 };
    const double temperatures[] = {1, 0.5, 2};
    for (int t = 0; t < 3; t++) {
        int counts[TOKENS];
        double total = 0, chi_square = 0;
        for (int i = 0; i < TOKENS; i++) total += pow(probability[i], 1 / temperatures[t]);
        draw((dw_sampling){.temperature = temperatures[t], .top_p = 1, .seed = 42}, DRAWS, counts);
        for (int i = 0; i < TOKENS; i++) {
            const double expected = DRAWS * pow(probability[i], 1 / temperatures[t]) / total;
            chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
        }
        cr_assert_lt(chi_square, 29.9, "temperature %g: chi-square %g", temperatures[t], chi_square);
    }
}

/* 63 degrees of freedom: above 118 once in 30,000 seeds. Pairs of neighbouring positions, then of neighbouring seeds. */
Test(sampler, draws_at_neighbouring_positions_and_seeds_are_independent)
{
    enum { DRAWS = 100000 };
    float logits[TOKENS];
    make_logits(logits);
    for (int over_seeds = 0; over_seeds < 2; over_seeds++) {
        int pairs[TOKENS][TOKENS] = {{0}};
        double chi_square = 0;
        dw_sampler *first = make((dw_sampling){.temperature = 1, .top_p = 1, .seed = 7}, TOKENS);
        dw_sampler *second = make((dw_sampling){.temperature = 1, .top_p = 1, .seed = over_seeds ? 8 : 7}, TOKENS);
        for (int i = 0; i < DRAWS; i++) {
            const int64_t position = 2 * i;
            pairs[dw_sample(first, logits, position)][dw_sample(second, logits, over_seeds ? position : position + 1)]++;
        }
        for (int a = 0; a < TOKENS; a++) {
            for (int b = 0; b < TOKENS; b++) {
                const double expected = DRAWS * probability[a] * probability[b];
                chi_square += (pairs[a][b] - expected) * (pairs[a][b] - expected) / expected;
            }
        }
        cr_assert_lt(chi_square, 118, "%s: chi-square %g", over_seeds ? "seeds" : "positions", chi_square);
        dw_sampler_destroy(first);
        dw_sampler_destroy(second);
    }
}

Test(sampler, the_same_seed_and_position_give_the_same_token_in_any_order)
{
    enum { DRAWS = 500 };
    float logits[TOKENS];
    int32_t forward[DRAWS];
    int differs = 0;
    dw_sampler *one = make((dw_sampling){.temperature = 1, .top_p = 1, .seed = 3}, TOKENS);
    dw_sampler *same = make((dw_sampling){.temperature = 1, .top_p = 1, .seed = 3}, TOKENS);
    dw_sampler *other = make((dw_sampling){.temperature = 1, .top_p = 1, .seed = 4}, TOKENS);
    make_logits(logits);
    for (int i = 0; i < DRAWS; i++) forward[i] = dw_sample(one, logits, i);
    for (int i = DRAWS - 1; i >= 0; i--) {
        cr_assert_eq(dw_sample(same, logits, i), forward[i]);
        differs += dw_sample(other, logits, i) != forward[i];
    }
    cr_assert_gt(differs, DRAWS / 2);
    dw_sampler_destroy(one);
    dw_sampler_destroy(same);
    dw_sampler_destroy(other);
}

static void check_support(const char *name, dw_sampling sampling, const char *allowed)
{
    int counts[TOKENS];
    sampling.temperature = 1.5;
    draw(sampling, 5000, counts);
    for (int i = 0; i < TOKENS; i++) {
        const int expected = strchr(allowed, '0' + i) != NULL;
        cr_assert_eq(counts[i] > 0, expected, "%s: token %d was drawn %d times", name, i, counts[i]);
    }
}

/* By probability the ids are 1 (.30), 3 (.25), 5 (.15), 7 (.10), 0 (.08), 4 (.06), 6 (.04), 2 (.02). */
/* The definition, every candidate's logarithms taken: log of probability at the temperature plus Gumbel noise of hash(seed, position, id). */
static int32_t defined_draw(const float *logits, int64_t vocabulary, double temperature, uint64_t seed, int64_t position)
{
    const float best = logits[dw_greedy(logits, vocabulary)];
    double winning = -INFINITY;
    int32_t winner = -1;
    for (int64_t id = 0; id < vocabulary; id++) {
        const uint64_t part[3] = {seed, (uint64_t)position, (uint64_t)id};
        uint64_t z = 0;
        double value;
        for (int i = 0; i < 3; i++) {
            z += part[i] + 0x9E3779B97F4A7C15u;
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
            z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
            z ^= z >> 31;
        }
        value = ((double)logits[id] - best) / temperature - dw_log(-dw_log(((double)(z >> 12) + 0.5) * 0x1p-52));
        if (value <= winning) continue;
        winning = value;
        winner = (int32_t)id;
    }
    return winner;
}

/* Candidates that can not win are passed over: flat, peaked and nearly tied logits, hot and cold. */
Test(sampler, draws_are_those_of_the_definition)
{
    enum { MANY = 3000 };
    static float logits[MANY];
    static const double temperatures[] = {0.05, 0.8, 1, 30};
    static const float spreads[] = {0, 0.001f, 3, 40};
    int others = 0;
    for (int t = 0; t < 16; t++) {
        const double temperature = temperatures[t % 4];
        dw_sampler *sampler = make((dw_sampling){.temperature = temperature, .top_p = 1, .seed = (uint64_t)t}, MANY);
        for (int i = 0; i < MANY; i++) logits[i] = spreads[t / 4] * sinf((float)(i * i % 1009));
        for (int position = 0; position < 60; position++) {
            const int32_t id = dw_sample(sampler, logits, position);
            cr_assert_eq(id, defined_draw(logits, MANY, temperature, (uint64_t)t, position), "case %d, position %d", t,
                         position);
            others += id != dw_greedy(logits, MANY);
        }
        dw_sampler_destroy(sampler);
    }
    cr_assert_gt(others, 400, "only %d draws of 960 are not the best logit", others);
}

Test(sampler, cuts_leave_exactly_the_tokens_they_should)
{
    check_support("no cut", (dw_sampling){.top_p = 1}, "01234567");
    check_support("top-k 1", (dw_sampling){.top_k = 1, .top_p = 1}, "1");
    check_support("top-k 3", (dw_sampling){.top_k = 3, .top_p = 1}, "135");
    check_support("top-k beyond the vocabulary", (dw_sampling){.top_k = 100, .top_p = 1}, "01234567");
    check_support("top-p 0", (dw_sampling){.top_p = 0}, "1");
    check_support("top-p .29", (dw_sampling){.top_p = .29}, "1");
    check_support("top-p .54", (dw_sampling){.top_p = .54}, "13");
    check_support("top-p .56", (dw_sampling){.top_p = .56}, "135");
    check_support("min-p .32", (dw_sampling){.top_p = 1, .min_p = .32}, "1357");
    check_support("min-p 1", (dw_sampling){.top_p = 1, .min_p = 1}, "1");
    /* Shares of the two best alone are .545 and .455: one token has .54 of them, of the whole it would not. */
    check_support("top-k before top-p", (dw_sampling){.top_k = 2, .top_p = .54}, "1");
    check_support("top-p before min-p", (dw_sampling){.top_p = .56, .min_p = .2}, "135");
    check_support("all three", (dw_sampling){.top_k = 5, .top_p = .9, .min_p = .45}, "135");
}

Test(sampler, equal_logits_are_cut_by_id)
{
    const float logits[TOKENS] = {1, 5, 5, 5, 5, 1, 5, 5};
    int seen = 0;
    dw_sampler *sampler = make((dw_sampling){.temperature = 1, .top_k = 3, .top_p = 1}, TOKENS);
    for (int i = 0; i < 200; i++) seen |= 1 << dw_sample(sampler, logits, i);
    cr_assert_eq(seen, 1 << 1 | 1 << 2 | 1 << 3);
    dw_sampler_destroy(sampler);
}

/* The sorted and the unsorted way through a large vocabulary. */
Test(sampler, a_cut_that_cuts_nothing_changes_no_draw)
{
    enum { VOCABULARY = 5000 };
    static float logits[VOCABULARY];
    dw_sampler *plain = make((dw_sampling){.temperature = 1, .top_p = 1, .seed = 1}, VOCABULARY);
    dw_sampler *cut = make((dw_sampling){.temperature = 1, .top_k = VOCABULARY, .top_p = 1, .min_p = 1e-30, .seed = 1},
                           VOCABULARY);
    for (int i = 0; i < VOCABULARY; i++) logits[i] = (float)((i * 7919) % 997) / 300;
    for (int i = 0; i < 50; i++) cr_assert_eq(dw_sample(plain, logits, i), dw_sample(cut, logits, i));
    dw_sampler_destroy(plain);
    dw_sampler_destroy(cut);
}

Test(sampler, a_tiny_temperature_is_greedy)
{
    const float logits[TOKENS] = {-3e38f, 2, 6.5f, -3e38f, 7, 6.99f, 3e38f, 0};
    dw_sampler *sampler = make((dw_sampling){.temperature = 1e-300, .top_p = 1}, TOKENS);
    for (int i = 0; i < 100; i++) cr_assert_eq(dw_sample(sampler, logits, i), 6);
    dw_sampler_destroy(sampler);
}

Test(sampler, parameters_out_of_range_are_usage_errors_that_name_the_option)
{
    const struct {
        dw_sampling sampling;
        const char *option;
    } bad[] = {
        {{.temperature = -1, .top_p = 1}, "--temperature"},
        {{.temperature = NAN, .top_p = 1}, "--temperature"},
        {{.top_k = -1, .top_p = 1}, "--top-k"},
        {{.top_p = 1.01}, "--top-p"},
        {{.top_p = NAN}, "--top-p"},
        {{.top_p = 1, .min_p = -0.1}, "--min-p"},
        {{.top_p = 1, .min_p = NAN}, "--min-p"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        dw_sampler *sampler;
        dw_error err;
        cr_assert_eq(dw_sampler_create(&sampler, &bad[i].sampling, TOKENS, &err), DW_USAGE);
        cr_assert_null(sampler);
        cr_assert(strstr(err.message, bad[i].option) != NULL, "%s", err.message);
    }
}

Test(sampler, every_failing_allocation_is_reported)
{
    const dw_sampling sampling = {.temperature = 1, .top_p = 1};
    for (int n = 1; n <= 3; n++) {
        dw_sampler *sampler;
        dw_error err;
        dw_memory_fail_at(n);
        cr_assert_eq(dw_sampler_create(&sampler, &sampling, TOKENS, &err), DW_RESOURCE);
        cr_assert_null(sampler);
    }
    dw_memory_fail_at(0);
}
