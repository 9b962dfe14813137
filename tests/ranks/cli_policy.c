/* The commands around policies: several ways in one compare, policy files, the screen, tune, perplexity, needle. */
#include <criterion/criterion.h>
#include <math.h>
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

static const char *file_of(const char *name, const char *text)
{
    const char *path = fixture_path(name);
    write_file(path, text, (int64_t)strlen(text));
    return path;
}

/* About 250 tokens. */
static const char *text(void)
{
    char words[1600] = "";
    for (int i = 0; i < 80; i++)
        snprintf(words + strlen(words), sizeof words - strlen(words), "the %c and %d ", 'a' + i % 26, i * 7);
    return file_of("text.txt", words);
}

static double number(const json_t *object, const char *outer, const char *inner)
{
    const json_t *value = json_object_get(inner == NULL ? object : json_object_get(object, outer),
                                          inner == NULL ? outer : inner);
    cr_assert(json_is_number(value), "%s %s", outer, inner == NULL ? "" : inner);
    return json_number_value(value);
}

#define SMALL "--anchor", "1", "--window", "4", "--keys", "8"

/* From one prefill, what each way would get from a prefill of its own. */
Test(cli_policy, several_ways_in_one_compare_are_the_same_as_one_by_one)
{
    const char *m = model();
    const char *t = text();
    const char *policy = file_of("p.yaml", "pillar: every 2\nlayers: [{range: all, window: 4, keys: 16}]\n");
    json_t *all = DEWPOINT_JSON("compare", "-m", m, "-f", t, "-n", "20", SMALL, "--attention", "condensate,mass,dense",
                                "--policy", policy, "--json");
    json_t *one[4];
    const json_t *results = json_object_get(all, "results");
    one[0] = DEWPOINT_JSON("compare", "-m", m, "-f", t, "-n", "20", SMALL, "--attention", "condensate", "--json");
    one[1] = DEWPOINT_JSON("compare", "-m", m, "-f", t, "-n", "20", SMALL, "--attention", "mass", "--json");
    one[2] = DEWPOINT_JSON("compare", "-m", m, "-f", t, "-n", "20", SMALL, "--attention", "dense", "--json");
    one[3] = DEWPOINT_JSON("compare", "-m", m, "-f", t, "-n", "20", SMALL, "--policy", policy, "--json", "--simulate-ranks",
                           "3");
    cr_assert_eq(json_array_size(results), 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *result = json_array_get(results, i);
        static const char *const keys[] = {"match",  "kl",   "perplexity",       "margin",
                                           "layers", "rows", "first_divergence", "attention"};
        for (int k = 0; k < 8; k++) {
            cr_assert(json_equal(json_object_get(result, keys[k]), json_object_get(one[i], keys[k])), "way %zu: %s", i,
                      keys[k]);
        }
        cr_assert_eq(json_array_size(json_object_get(result, "rows")), 19);
        json_decref(one[i]);
    }
    json_decref(all);
}

/* Layer 0 is the pillar of layer 1: its recall is 1, that of the other is measured. */
Test(cli_policy, recall_of_pillars_is_whole_and_of_the_layers_between_is_measured)
{
    const char *policy = file_of("p.yaml", "pillar: every 2\nlayers: [{range: all, anchor: 0, window: 1, keys: 16}]\n");
    json_t *o = DEWPOINT_JSON("compare", "-m", model(), "-f", text(), "-n", "20", "--policy", policy, "--json");
    const json_t *layers = json_object_get(o, "layers");
    const double between = number(json_array_get(layers, 1), "recall", NULL);
    cr_assert_eq(number(json_array_get(layers, 0), "recall", NULL), 1);
    cr_assert(between > 0 && between < 1, "%g", between);
    cr_assert_eq(json_array_size(json_object_get(json_array_get(layers, 1), "head_recall")), 4);
    json_decref(o);
}

Test(cli_policy, a_policy_file_that_says_what_options_say_gives_the_same_tokens_and_masses)
{
    const char *m = model();
    const char *t = text();
    const char *policy = file_of("p.yaml", "layers: [{range: all, anchor: 1, window: 4, keys: 8}]\n");
    json_t *options = DEWPOINT_JSON("generate", "-m", m, "-f", t, "-n", "12", SMALL, "--attention", "condensate", "--json");
    json_t *file = DEWPOINT_JSON("generate", "-m", m, "-f", t, "-n", "12", "--policy", policy, "--json", "--simulate-ranks",
                                 "3");
    const json_t *attention = json_object_get(file, "attention");
    cr_assert(json_equal(json_object_get(options, "tokens"), json_object_get(file, "tokens")));
    cr_assert(json_equal(json_object_get(json_object_get(options, "attention"), "omitted_mass"),
                         json_object_get(attention, "omitted_mass")));
    cr_assert_str_eq(json_string_value(json_object_get(attention, "mode")), "policy");
    json_decref(options);
    json_decref(file);
}

Test(cli_policy, a_wrong_policy_file_ends_with_3_and_one_line)
{
    const char *policy = file_of("wrong.yaml", "layers:\n  - range: 7\n");
    dewpoint_result r = DEWPOINT("generate", "-m", model(), "-p", "the", "--policy", policy);
    cr_assert_eq(r.status, 3);
    cr_assert(strstr(r.err, "wrong.yaml:2: layer 7 is outside the model, which has layers 0 to 1\n") != NULL, "%s", r.err);
    cr_assert_eq(r.out[0], '\0');
    dewpoint_free(&r);
}

/* The same tokens with the screen; fewer bytes of keys, and what it reports contains what is exact. */
Test(cli_policy, the_screen_gives_the_same_tokens_from_fewer_bytes)
{
    const char *m = model();
    const char *t = text();
    json_t *with = DEWPOINT_JSON("generate", "-m", m, "-f", t, "-n", "12", SMALL, "--attention", "condensate", "--screen",
                                 "always", "--json");
    json_t *without = DEWPOINT_JSON("generate", "-m", m, "-f", t, "-n", "12", SMALL, "--attention", "condensate", "--screen",
                                    "never", "--json", "--simulate-ranks", "2");
    const json_t *a = json_object_get(with, "attention");
    const json_t *b = json_object_get(without, "attention");
    const json_t *wide = json_object_get(json_object_get(a, "omitted_mass"), "mean");
    const json_t *exact = json_object_get(json_object_get(b, "omitted_mass"), "mean");
    cr_assert(json_equal(json_object_get(with, "tokens"), json_object_get(without, "tokens")));
    cr_assert(number(a, "discovery", "bytes_per_element") < 0.9 * number(b, "discovery", "bytes_per_element"));
    cr_assert(number(a, "discovery", "survivors") > 0 && number(b, "discovery", "survivors") == 0);
    cr_assert(json_number_value(json_array_get(wide, 0)) <= json_number_value(json_array_get(exact, 1)) &&
              json_number_value(json_array_get(exact, 0)) <= json_number_value(json_array_get(wide, 1)));
    cr_assert(number(json_array_get(json_object_get(with, "memory"), 0), "screen", NULL) > 0);
    json_decref(with);
    json_decref(without);
}

/* The policy that is written can be read, costs what it says, and a smaller epsilon costs more. */
Test(cli_policy, tune_writes_a_policy_whose_cost_grows_with_what_is_asked)
{
    const char *m = model();
    const char *t = text();
    const char *path = fixture_path("tuned.yaml");
    double keys[2], uniform[2];
    for (int i = 0; i < 2; i++) {
        json_t *o = DEWPOINT_JSON("tune", "-m", m, "-f", t, "-n", "24", "-o", path, "--epsilon", i == 0 ? "0.2" : "0.02",
                                  "--json", "--simulate-ranks", i == 0 ? "1" : "3");
        json_t *compared = DEWPOINT_JSON("compare", "-m", m, "-f", t, "-n", "24", "--policy", path, "--json");
        double mass = 0;
        keys[i] = number(o, "mean_keys", NULL);
        uniform[i] = number(o, "uniform_keys", NULL);
        cr_assert_leq(number(o, "omitted_mass", NULL), i == 0 ? 0.2 : 0.02);
        for (size_t l = 0; l < 2; l++) {
            const json_t *omitted = json_object_get(json_array_get(json_object_get(compared, "layers"), l), "omitted_mass");
            mass += json_number_value(json_array_get(json_object_get(omitted, "mean"), 1)) / 2;
        }
        cr_assert_leq(mass, i == 0 ? 0.2 : 0.02, "the same rows with the policy leave out %g", mass);
        cr_assert_leq(keys[i], uniform[i] + 1e-9);
        json_decref(o);
        json_decref(compared);
    }
    cr_assert_lt(keys[0], keys[1]);
}

/* exp of the mean of log-sum-exp less the logit of what comes next, from the logits command. */
Test(cli_policy, perplexity_is_what_the_logits_say_and_a_set_of_everything_changes_nothing)
{
    const char *m = model();
    const char *t = text();
    json_t *ids = DEWPOINT_JSON("tokenize", "-m", m, "-f", t, "--json");
    json_t *dense = DEWPOINT_JSON("perplexity", "-m", m, "-f", t, "-n", "100", "--json");
    json_t *whole = DEWPOINT_JSON("perplexity", "-m", m, "-f", t, "-n", "100", "--json", "--attention", "condensate", "--keys",
                                  "4K", "--simulate-ranks", "3");
    json_t *small = DEWPOINT_JSON("perplexity", "-m", m, "-f", t, "-n", "100", "--json", "--attention", "condensate", SMALL);
    json_t *o = DEWPOINT_JSON("logits", "-m", m, "-f", t, "--positions", "all", "--json");
    const json_t *rows = json_object_get(o, "logits");
    const json_t *list = json_object_get(ids, "ids");
    const size_t count = json_array_size(rows);
    const size_t shift = count - json_array_size(list); /* BOS */
    double sum = 0;
    for (size_t i = count - 101; i < count - 1; i++) {
        const json_t *row = json_array_get(rows, i);
        const size_t next = (size_t)json_integer_value(json_array_get(list, i + 1 - shift));
        double all = 0;
        for (size_t v = 0; v < json_array_size(row); v++) all += exp(json_number_value(json_array_get(row, v)));
        sum += log(all) - json_number_value(json_array_get(row, next));
    }
    cr_assert_float_eq(number(dense, "nll", "mean"), sum / 100, 1e-6);
    cr_assert_eq(number(dense, "perplexity", NULL), number(whole, "perplexity", NULL));
    cr_assert_neq(number(dense, "perplexity", NULL), number(small, "perplexity", NULL));
    cr_assert(json_is_null(json_object_get(json_object_get(dense, "attention"), "omitted_mass")));
    cr_assert_gt(json_number_value(json_array_get(
                     json_object_get(json_object_get(json_object_get(small, "attention"), "omitted_mass"), "mean"), 0)),
                 0);
    json_decref(ids);
    json_decref(dense);
    json_decref(whole);
    json_decref(small);
    json_decref(o);
}

Test(cli_policy, perplexity_and_needle_say_what_a_text_lacks)
{
    const char *m = model();
    dewpoint_result r = DEWPOINT("perplexity", "-m", m, "-p", "the", "-n", "50");
    cr_assert(r.status == 3 && strstr(r.err, "too few to predict 50 of them") != NULL, "%s", r.err);
    dewpoint_free(&r);
    r = DEWPOINT("perplexity", "-m", m, "-p", "the", "-n", "0");
    cr_assert(r.status == 2 && strstr(r.err, "needs 1 at least") != NULL, "%s", r.err);
    dewpoint_free(&r);
    r = DEWPOINT("needle", "-m", m, "-f", text(), "--lengths", "2K");
    cr_assert(r.status == 3 && strstr(r.err, "a text of 2048 with its needles and question needs") != NULL, "%s", r.err);
    dewpoint_free(&r);
    r = DEWPOINT("needle", "-m", m, "-f", text(), "--needle-depths", "101");
    cr_assert(r.status == 2 && strstr(r.err, "out of range (0..100)") != NULL, "%s", r.err);
    dewpoint_free(&r);
}

/* A way that sees everything finds exactly what dense attention finds; cells and needles are counted, on any ranks. */
Test(cli_policy, needle_asks_every_cell_and_a_set_of_everything_finds_what_dense_finds)
{
    const char *m = model();
    const char *t = text();
    json_t *grid = DEWPOINT_JSON("needle", "-m", m, "-f", t, "--lengths", "250,300", "--needle-depths", "0,50,100", "--keys",
                                 "4K", "--json");
    json_t *again = DEWPOINT_JSON("needle", "-m", m, "-f", t, "--lengths", "250,300", "--needle-depths", "0,50,100", "--keys",
                                  "4K", "--json", "--simulate-ranks", "3");
    json_t *many = DEWPOINT_JSON("needle", "-m", m, "-f", t, "--lengths", "300", "--needles", "2", "--attention", "dense,mass",
                                 "--json");
    const json_t *results = json_object_get(grid, "results");
    cr_assert_eq(json_array_size(results), 6);
    cr_assert(json_equal(results, json_object_get(again, "results")));
    for (size_t i = 0; i < 6; i++) {
        const json_t *cell = json_array_get(results, i);
        cr_assert_eq(number(cell, "length", NULL), i < 3 ? 250 : 300);
        cr_assert_eq(number(cell, "depth", NULL), (double)(i % 3) * 50);
        cr_assert_eq(json_number_value(json_array_get(json_object_get(cell, "found"), 0)), number(cell, "dense", NULL));
    }
    cr_assert_eq(json_array_size(json_object_get(many, "results")), 1);
    cr_assert_eq(json_array_size(json_object_get(json_array_get(json_object_get(many, "results"), 0), "found")), 2);
    json_decref(grid);
    json_decref(again);
    json_decref(many);
}
