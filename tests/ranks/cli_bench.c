/* What the benches of the program print. How fast anything is decides nothing here. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "kernels/kernels.h"
#include "tests/shared/dewpoint.h"
#include "tests/shared/fixtures.h"

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    cr_assert(json_is_number(value), "%s is not a number", key);
    return json_number_value(value);
}

/* The results with this kernel and type (NULL: none) and rows (0: any). */
static int count_of(const json_t *results, const char *kernel, const char *type, int rows)
{
    int count = 0;
    for (size_t i = 0; i < json_array_size(results); i++) {
        const json_t *result = json_array_get(results, i);
        const char *own_type = json_string_value(json_object_get(result, "type"));
        if (strcmp(json_string_value(json_object_get(result, "kernel")), kernel) != 0) continue;
        if (own_type == NULL ? type != NULL : type == NULL || strcmp(own_type, type) != 0) continue;
        count += rows == 0 || json_integer_value(json_object_get(result, "rows")) == rows;
    }
    return count;
}

/* The share is the rate over the roof that it names. */
static void check_share(const json_t *result, const json_t *roofs)
{
    const char *roof = json_string_value(json_object_get(result, "roof"));
    const double rate = number(result, strcmp(roof, "fma") == 0 ? "flops_per_second" : "bytes_per_second");
    const double share = rate / number(roofs, roof);
    cr_assert(share > 0 && fabs(share - number(result, "share")) <= 1e-9 * share, "%s: a share of %g, not %g", roof,
              number(result, "share"), share);
}

Test(cli_bench, kernels_measures_every_slot_and_its_share_of_a_roof_without_a_model)
{
    static const char *const cached[] = {"linear_tile", "weights", "add_limbs", "exp2", "silu_mul"};
    static const char *const cache_types[] = {"F32", "F16", "BF16"};
    json_t *answer = DEWPOINT_JSON("bench", "kernels", "--threads", "1", "--json");
    const json_t *results = json_object_get(answer, "results");
    const json_t *roofs = json_object_get(answer, "roofs");
    const char *isa = json_string_value(json_object_get(json_object_get(answer, "machine"), "kernels"));
    cr_assert_str_eq(isa, dw_kernels_best()->name);
    cr_assert(number(roofs, "fma") == number(json_object_get(roofs, "fma_of"), isa));
    cr_assert_gt(number(json_object_get(roofs, "fma_of"), "scalar"), 0);
    for (int t = 0; t < DW_TYPE_COUNT; t++) {
        const char *type = dw_types[t].name;
        cr_assert_eq(count_of(results, "linear", type, 1), 1, "%s", type);
        cr_assert_eq(count_of(results, "linear", type, DW_LINEAR_ROWS), 1, "%s", type);
        cr_assert_eq(count_of(results, "dequantize", type, 0), 1, "%s", type);
    }
    for (size_t i = 0; i < 3; i++) {
        cr_assert_eq(count_of(results, "scores", cache_types[i], 0), 3);
        cr_assert_eq(count_of(results, "values", cache_types[i], 0), 3);
    }
    for (size_t i = 0; i < 5; i++) cr_assert_eq(count_of(results, cached[i], NULL, 0), 1, "%s", cached[i]);
    for (size_t i = 0; i < json_array_size(results); i++) check_share(json_array_get(results, i), roofs);
    json_decref(answer);
}

Test(cli_bench, kernels_refuses_several_ranks_and_a_model)
{
    const char *const arguments[] = {"bench", "kernels", NULL};
    dewpoint_result several = dewpoint_run(2, NULL, arguments);
    dewpoint_result model = DEWPOINT("bench", "kernels", "-m", "x");
    cr_assert_eq(several.status, 2, "%d", several.status);
    cr_assert(strstr(several.err, "bench kernels measures one rank") != NULL, "%s", several.err);
    cr_assert_eq(model.status, 2, "%d", model.status);
    dewpoint_free(&several);
    dewpoint_free(&model);
}

/* The read bandwidth that was measured in the same run is the same for all results, so that quotients give it back. */
static void check_decode(const json_t *answer)
{
    const json_t *results = json_object_get(answer, "results");
    const json_t *first = json_array_get(results, 0);
    const double bandwidth = number(first, "read_bandwidth") / number(first, "bandwidth_share");
    cr_assert_eq(json_array_size(results), 2);
    cr_assert(bandwidth > 1e7 && bandwidth < 1e14, "memory is read at %g bytes a second", bandwidth);
    for (size_t i = 0; i < 2; i++) {
        const json_t *result = json_array_get(results, i);
        const double expected = number(result, "read_bandwidth") / bandwidth;
        cr_assert(expected > 0 && fabs(expected - number(result, "bandwidth_share")) <= 1e-9 * expected);
    }
}

Test(cli_bench, decode_gives_its_share_of_the_read_bandwidth_of_all_ranks)
{
    const char *path = fixture_path("model.gguf");
    json_t *one, *three;
    fixture_model(path, &(fixture_spec){0});
    one = DEWPOINT_JSON("bench", "decode", "-m", path, "--depths", "65", "--repeat", "1", "--json");
    three = DEWPOINT_JSON("bench", "decode", "-m", path, "--depths", "65", "--repeat", "1", "--json", "--simulate-ranks", "3");
    check_decode(one);
    check_decode(three);
    json_decref(one);
    json_decref(three);
}

/* Commas of a line. */
static int commas(const char *line, const char *end)
{
    int count = 0;
    for (; line < end; line++) count += *line == ',';
    return count;
}

Test(cli_bench, csv_has_as_many_columns_in_every_line_as_in_its_head)
{
    const char *path = fixture_path("model.gguf");
    dewpoint_result results[3];
    fixture_model(path, &(fixture_spec){0});
    results[0] = DEWPOINT("bench", "decode", "-m", path, "--depths", "0", "--repeat", "1", "--csv");
    results[1] = DEWPOINT("bench", "prefill", "-m", path, "--depths", "0", "--repeat", "1", "--csv");
    results[2] = DEWPOINT("bench", "kernels", "--csv");
    for (int i = 0; i < 3; i++) {
        const char *line = results[i].out;
        const int expected = commas(line, strchr(line, '\n'));
        int lines = 0;
        cr_assert(results[i].status == 0 && expected > 5, "%s", results[i].err);
        for (const char *end; (end = strchr(line, '\n')) != NULL; line = end + 1, lines++) {
            cr_assert(commas(line, end) == expected, "'%.100s'", line);
        }
        cr_assert(lines > 1 && *line == '\0');
        dewpoint_free(&results[i]);
    }
}

/* How many drafts are right is given, the rest follows: all of four make five tokens a pass, none makes one. */
Test(cli_bench, lossless_passes_accept_the_share_of_drafts_that_is_asked_for)
{
    static const char *const shares[] = {"0", "1"};
    const char *m = fixture_path("model.gguf");
    fixture_model(m, &(fixture_spec){.seed = 1});
    for (int i = 0; i < 2; i++) {
        json_t *answer = DEWPOINT_JSON("bench", "decode", "-m", m, "--depths", "700", "--attention", "dense,lossless",
                                       "--draft", "4", "--acceptance", shares[i], "--repeat", "1", "--simulate-ranks", "2",
                                       "--json");
        const json_t *results = json_object_get(answer, "results");
        const json_t *lossless = json_array_get(results, 1);
        cr_assert_eq(json_array_size(results), 2);
        cr_assert_str_eq(json_string_value(json_object_get(lossless, "mode")), "lossless");
        cr_assert_eq(number(lossless, "rows"), 5);
        cr_assert_eq(number(json_array_get(results, 0), "tokens_per_pass"), 1);
        cr_assert_eq(number(lossless, "tokens_per_pass"), i == 0 ? 1 : 5);
        json_decref(answer);
    }
}

Test(cli_bench, lossless_without_drafts_is_one_row_a_pass)
{
    const char *m = fixture_path("model.gguf");
    json_t *answer;
    fixture_model(m, &(fixture_spec){.seed = 1});
    answer = DEWPOINT_JSON("bench", "decode", "-m", m, "--depths", "100", "--attention", "lossless", "--draft", "0", "--repeat",
                           "1", "--json");
    cr_assert_eq(number(json_array_get(json_object_get(answer, "results"), 0), "tokens_per_pass"), 1);
    json_decref(answer);
}
