/* dewpoint compare: identities that must hold, and agreement with what generate does. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/shared/dewpoint.h"
#include "tests/shared/fixtures.h"

static const char *model(void)
{
    const char *path = fixture_path("model.gguf");
    fixture_model(path, &(fixture_spec){.tokenizer = 1, .seed = 3});
    return path;
}

/* About 200 tokens. */
static const char *text(void)
{
    const char *path = fixture_path("text.txt");
    char words[1200] = "";
    for (int i = 0; i < 60; i++)
        snprintf(words + strlen(words), sizeof words - strlen(words), "the %c and %d ", 'a' + i % 26, i * 7);
    write_file(path, words, (int64_t)strlen(words));
    return path;
}

static double number(const json_t *object, const char *outer, const char *inner)
{
    const json_t *value = json_object_get(inner == NULL ? object : json_object_get(object, outer),
                                          inner == NULL ? outer : inner);
    cr_assert(json_is_number(value), "%s %s", outer, inner == NULL ? "" : inner);
    return json_number_value(value);
}

static void is_the_same(const json_t *o)
{
    cr_assert(json_is_null(json_object_get(o, "first_divergence")));
    cr_assert(number(o, "match", NULL) == 1 && number(o, "kl", "mean") == 0 && number(o, "kl", "max") == 0);
    cr_assert_eq(number(o, "perplexity", "dense"), number(o, "perplexity", "mode"));
    cr_assert_eq(number(o, "margin", "lost"), 0);
}

Test(cli_compare, dense_and_a_condensate_of_everything_change_nothing)
{
    const char *m = model();
    const char *t = text();
    json_t *dense = DEWPOINT_JSON("compare", "-m", m, "-f", t, "-n", "30", "--attention", "dense", "--json");
    json_t *whole = DEWPOINT_JSON("compare", "-m", m, "-f", t, "-n", "30", "--keys", "4K", "--json");
    const json_t *layers = json_object_get(whole, "layers");
    is_the_same(dense);
    is_the_same(whole);
    cr_assert_eq(json_array_size(json_object_get(dense, "layers")), 0);
    cr_assert_eq(json_array_size(layers), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *max = json_object_get(json_object_get(json_array_get(layers, i), "omitted_mass"), "max");
        cr_assert_eq(json_number_value(json_array_get(max, 1)), 0);
        cr_assert_eq(json_array_size(json_object_get(json_array_get(layers, i), "heads")), 4);
    }
    json_decref(dense);
    json_decref(whole);
}

#define SMALL "--anchor", "1", "--window", "4", "--keys", "2"

/* Where both generate another token for the first time is what compare says without generating twice. */
Test(cli_compare, the_first_divergence_is_that_of_two_generations)
{
    const char *m = model();
    const char *t = text();
    json_t *dense = DEWPOINT_JSON("generate", "-m", m, "-f", t, "-n", "40", "--ignore-eos", "--json");
    json_t *sparse = DEWPOINT_JSON("generate", "-m", m, "-f", t, "-n", "40", "--ignore-eos", "--attention", "condensate", SMALL,
                                   "--json");
    json_t *o = DEWPOINT_JSON("compare", "-m", m, "-f", t, "-n", "40", SMALL, "--json");
    const json_t *a = json_object_get(dense, "tokens");
    const json_t *b = json_object_get(sparse, "tokens");
    size_t first = 0;
    while (first < 40 && json_equal(json_array_get(a, first), json_array_get(b, first))) first++;
    cr_assert_lt(first, 40, "this budget changes nothing: the test proves nothing");
    cr_assert_eq(json_integer_value(json_object_get(o, "first_divergence")), (json_int_t)first);
    cr_assert(number(o, "match", NULL) < 1 && number(o, "kl", "mean") > 0 && number(o, "margin", "lost") > 0);
    json_decref(dense);
    json_decref(sparse);
    json_decref(o);
}

/* The omitted mass of the layers averages to what generate reports for the same rows. */
Test(cli_compare, ranks_change_nothing_and_text_mode_compares_the_last_tokens)
{
    const char *m = model();
    const char *t = text();
    json_t *one = DEWPOINT_JSON("compare", "-m", m, "-f", t, "-n", "50", "--on", "text", SMALL, "--json");
    dewpoint_result three = dewpoint_run(
        3, NULL, (const char *const[]){"compare", "-m", m, "-f", t, "-n", "50", "--on", "text", SMALL, "--json", NULL});
    json_error_t problem;
    json_t *other = json_loads(three.out, 0, &problem);
    cr_assert(three.status == 0 && other != NULL, "%s", three.err);
    cr_assert_eq(json_integer_value(json_object_get(one, "tokens")), 49);
    json_object_del(one, "ranks");
    json_object_del(other, "ranks");
    cr_assert(json_equal(one, other), "other results on three ranks");
    json_decref(one);
    json_decref(other);
    dewpoint_free(&three);
}

Test(cli_compare, what_can_not_be_compared_is_refused)
{
    static const struct {
        const char *tokens, *on;
        int status;
        const char *words;
    } cases[] = {
        {"1", "text", 2, "compare needs 2 at least"},
        {"4K", "text", 3, "too few to compare the last 4096"},
        {"4K", "continuation", 3, "are more than the context of 4096"},
        {"8", "both", 2, "--on 'both' is not continuation or text"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dewpoint_result result = DEWPOINT("compare", "-m", model(), "-f", text(), "-n", cases[i].tokens, "--on", cases[i].on);
        cr_assert(result.status == cases[i].status && strstr(result.err, cases[i].words) != NULL, "status %d: %s",
                  result.status, result.err);
        dewpoint_free(&result);
    }
}

/* Mode mass: at epsilon 0 nothing changes; at a small one what is left out stays below it and ranks change nothing. */
Test(cli_compare, mass_leaves_out_no_more_than_it_may)
{
    const char *m = model();
    const char *t = text();
    json_t *none = DEWPOINT_JSON("compare", "-m", m, "-f", t, "-n", "30", "--attention", "mass", "--epsilon", "0", "--json");
    json_t *little = DEWPOINT_JSON("compare", "-m", m, "-f", t, "-n", "30", "--attention", "mass", "--epsilon", "0.01",
                                   "--json");
    json_t *ranks = DEWPOINT_JSON("compare", "-m", m, "-f", t, "-n", "30", "--attention", "mass", "--epsilon", "0.01", "--json",
                                  "--simulate-ranks", "5", "--threads", "2");
    const json_t *layers = json_object_get(little, "layers");
    is_the_same(none);
    cr_assert(number(little, "kl", "max") > 0 && number(little, "match", NULL) > 0.9);
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const json_t *max = json_object_get(json_object_get(json_array_get(layers, i), "omitted_mass"), "max");
        cr_assert(json_number_value(json_array_get(max, 1)) <= 0.01 && json_number_value(json_array_get(max, 0)) > 0);
    }
    json_object_del(little, "ranks");
    json_object_del(ranks, "ranks");
    cr_assert(json_equal(little, ranks), "other results on five ranks");
    json_decref(none);
    json_decref(little);
    json_decref(ranks);
}

/* Means in place of nothing: the same set, a smaller divergence, on any ranks. */
Test(cli_compare, block_means_bring_the_condensate_closer_to_dense)
{
#define FEW "--anchor", "1", "--window", "16", "--keys", "16"
    const char *m = model();
    const char *t = text();
    json_t *none = DEWPOINT_JSON("compare", "-m", m, "-f", t, "-n", "60", "--on", "text", FEW, "--json");
    json_t *mean = DEWPOINT_JSON("compare", "-m", m, "-f", t, "-n", "60", "--on", "text", FEW, "--tail", "mean", "--json");
    json_t *ranks = DEWPOINT_JSON("compare", "-m", m, "-f", t, "-n", "60", "--on", "text", FEW, "--tail", "mean", "--json",
                                  "--simulate-ranks", "5", "--threads", "2");
    cr_assert_str_eq(json_string_value(json_object_get(json_object_get(mean, "attention"), "tail")), "mean");
    cr_assert(number(mean, "kl", "mean") < number(none, "kl", "mean") / 2, "%g, and %g without means",
              number(mean, "kl", "mean"), number(none, "kl", "mean"));
    cr_assert(number(mean, "kl", "mean") > 0, "nothing is left out: the test proves nothing");
    json_object_del(mean, "ranks");
    json_object_del(ranks, "ranks");
    cr_assert(json_equal(mean, ranks), "other results on five ranks");
    json_decref(none);
    json_decref(mean);
    json_decref(ranks);
}

Test(cli_compare, generate_says_how_many_keys_mass_took)
{
    dewpoint_result result = DEWPOINT("generate", "-m", model(), "-f", text(), "-n", "8", "--attention", "mass", "--epsilon",
                                      "0.05");
    json_t *o = DEWPOINT_JSON("generate", "-m", model(), "-f", text(), "-n", "8", "--attention", "mass", "--epsilon", "0.05",
                              "--json");
    const json_t *attention = json_object_get(o, "attention");
    cr_assert(result.status == 0 && strstr(result.err, "attention: mass 0.05, ") != NULL, "%s", result.err);
    cr_assert_not_null(strstr(result.err, " keys a head on average"));
    cr_assert_str_eq(json_string_value(json_object_get(attention, "mode")), "mass");
    cr_assert(json_is_false(json_object_get(attention, "exact")) && number(attention, "epsilon", NULL) == 0.05);
    cr_assert(number(attention, "keys", NULL) > 1 && number(attention, "keys", NULL) < 300);
    dewpoint_free(&result);
    json_decref(o);
}
