/* What the commands print, on a fixture model. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/shared/dewpoint.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/gguf_writer.h"

static const char *model_with(const fixture_spec *spec)
{
    const char *path = fixture_path("model.gguf");
    fixture_model(path, spec);
    return path;
}

static const char *model(void)
{
    return model_with(&(fixture_spec){.tokenizer = 1});
}

static json_int_t integer(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    cr_assert(json_is_integer(value), "%s is not an integer", key);
    return json_integer_value(value);
}

static const char *text_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    cr_assert(json_is_string(value), "%s is not a string", key);
    return json_string_value(value);
}

static json_int_t element(const json_t *array, size_t index)
{
    return json_integer_value(json_array_get(array, index));
}

/* The object must hold exactly these keys, in this order. */
static void has_keys(json_t *object, const char *const *keys)
{
    const char *key;
    json_t *value;
    int i = 0;
    json_object_foreach(object, key, value) {
        cr_assert(keys[i] != NULL && strcmp(key, keys[i]) == 0, "key '%s' instead of '%s'", key,
                  keys[i] == NULL ? "" : keys[i]);
        i++;
    }
    cr_assert_null(keys[i], "key '%s' is missing", keys[i]);
}

#define HAS_KEYS(object, ...) has_keys(object, (const char *const[]){__VA_ARGS__, NULL})

/* A pair of numbers 0 <= low <= high <= 1. */
static void is_interval(const json_t *pair)
{
    const double low = json_real_value(json_array_get(pair, 0));
    const double high = json_real_value(json_array_get(pair, 1));
    cr_assert_eq(json_array_size(pair), 2);
    cr_assert(0 <= low && low <= high && high <= 1, "[%g, %g]", low, high);
}

/* ---- generate ---- */

Test(cli_run, the_json_of_generate_has_the_shape_of_the_design)
{
    json_t *o = DEWPOINT_JSON("generate", "-m", model(), "-p", "the dewpoint and the dew", "-n", "5", "--json", "--attention",
                              "condensate", "--keys", "1", "--window", "2", "--simulate-ranks", "2", "--threads", "1");
    json_t *attention = json_object_get(o, "attention");
    json_t *mass = json_object_get(attention, "omitted_mass");
    json_t *memory = json_object_get(o, "memory");
    HAS_KEYS(o, "dewpoint", "model", "family", "ranks", "threads", "prompt_tokens", "restored_tokens", "tokens", "text",
             "stop_reason", "attention", "timings", "memory", "traffic");
    HAS_KEYS(attention, "mode", "anchor", "window", "keys", "tail", "exact", "omitted_mass", "drafted", "accepted",
             "dense_passes", "discovery");
    HAS_KEYS(mass, "mean", "max", "max_at");
    HAS_KEYS(json_object_get(mass, "max_at"), "position", "layer", "head");
    HAS_KEYS(json_object_get(o, "timings"), "load", "prefill", "decode", "tokens_per_second", "per_token");
    HAS_KEYS(json_object_get(json_object_get(o, "timings"), "per_token"), "linear", "score", "reduce", "attend", "wait");
    HAS_KEYS(json_array_get(memory, 1), "rank", "host", "weights", "kv", "screen", "buffers", "peak_rss");
    HAS_KEYS(json_object_get(o, "traffic"), "bytes_per_token", "rounds_per_token", "linear");
    cr_assert_str_eq(text_of(o, "family"), "llama");
    cr_assert(integer(o, "ranks") == 2 && integer(o, "threads") == 1 && integer(o, "restored_tokens") == 0);
    cr_assert_eq(json_array_size(json_object_get(o, "tokens")), 5);
    cr_assert_str_eq(text_of(o, "stop_reason"), "length");
    cr_assert_str_eq(text_of(attention, "mode"), "condensate");
    cr_assert(integer(attention, "anchor") == 1 && integer(attention, "window") == 2 && integer(attention, "keys") == 1);
    cr_assert(json_is_false(json_object_get(attention, "exact")));
    is_interval(json_object_get(mass, "mean"));
    is_interval(json_object_get(mass, "max"));
    cr_assert_gt(json_real_value(json_array_get(json_object_get(mass, "max"), 0)), 0);
    cr_assert(json_array_size(memory) == 2 && integer(json_array_get(memory, 1), "rank") == 1);
    cr_assert_gt(json_real_value(json_object_get(json_object_get(o, "traffic"), "bytes_per_token")), 0);
    json_decref(o);
}

Test(cli_run, dense_is_called_exact_and_counts_its_passes)
{
    json_t *o = DEWPOINT_JSON("generate", "-m", model(), "-p", "the dew", "-n", "4", "--json");
    json_t *attention = json_object_get(o, "attention");
    cr_assert(json_is_true(json_object_get(attention, "exact")));
    cr_assert(json_is_null(json_object_get(attention, "omitted_mass")));
    cr_assert_eq(integer(attention, "dense_passes"), 3); /* the last token needs none */
    json_decref(o);
}

Test(cli_run, text_streams_to_stdout_alone_and_equals_the_json)
{
    const char *path = model();
    dewpoint_result plain = DEWPOINT("generate", "-m", path, "-p", "the dew", "-n", "20");
    dewpoint_result quiet = DEWPOINT("generate", "-m", path, "-p", "the dew", "-n", "20", "--quiet");
    json_t *o = DEWPOINT_JSON("generate", "-m", path, "-p", "the dew", "-n", "20", "--json");
    cr_assert_eq(plain.status, 0);
    cr_assert_str_eq(plain.out, text_of(o, "text"));
    cr_assert_str_eq(plain.out, quiet.out);
    cr_assert(strstr(plain.err, "prefill: ") != NULL && strstr(plain.err, "exact") != NULL, "%s", plain.err);
    cr_assert_str_empty(quiet.err);
    json_decref(o);
    dewpoint_free(&plain);
    dewpoint_free(&quiet);
}

Test(cli_run, a_prompt_comes_from_argument_file_stdin_or_ids)
{
    const char *path = model();
    const char *file = fixture_path("text");
    const char *ids = fixture_path("ids");
    json_t *expected = DEWPOINT_JSON("generate", "-m", path, "-p", "the dew", "-n", "6", "--json");
    dewpoint_result tokens = DEWPOINT("tokenize", "-m", path, "-p", "the dew");
    const char *const from_stdin[] = {"generate", "-m", path, "-f", "-", "-n", "6", "--quiet", NULL};
    dewpoint_result piped = dewpoint_run(0, "the dew", from_stdin);
    json_t *o;
    write_file(file, "the dew", 7);
    write_file(ids, tokens.out, (int64_t)strlen(tokens.out));
    o = DEWPOINT_JSON("generate", "-m", path, "-f", file, "-n", "6", "--json");
    cr_assert(json_equal(json_object_get(o, "tokens"), json_object_get(expected, "tokens")));
    json_decref(o);
    o = DEWPOINT_JSON("generate", "-m", path, "--prompt-ids", ids, "-n", "6", "--json");
    cr_assert(json_equal(json_object_get(o, "tokens"), json_object_get(expected, "tokens")));
    cr_assert_str_eq(piped.out, text_of(expected, "text"));
    json_decref(o);
    json_decref(expected);
    dewpoint_free(&tokens);
    dewpoint_free(&piped);
}

Test(cli_run, generation_ends_at_length_or_context)
{
    const char *path = model();
    json_t *o = DEWPOINT_JSON("generate", "-m", path, "-p", "the dew", "-n", "0", "--json");
    const int prompt = (int)integer(o, "prompt_tokens");
    cr_assert_str_eq(text_of(o, "stop_reason"), "length");
    cr_assert(json_array_size(json_object_get(o, "tokens")) == 0 && *text_of(o, "text") == '\0');
    json_decref(o);
    o = DEWPOINT_JSON("generate", "-m", path, "-p", "the dew", "-c", "20", "--ignore-eos", "--json");
    cr_assert_str_eq(text_of(o, "stop_reason"), "context");
    cr_assert_eq((int)json_array_size(json_object_get(o, "tokens")), 20 - prompt);
    json_decref(o);
    o = DEWPOINT_JSON("generate", "-m", path, "-p", "the dew", "-c", "20", "-n", "3", "--json");
    cr_assert_str_eq(text_of(o, "stop_reason"), "length");
    json_decref(o);
}

Test(cli_run, a_stop_string_ends_the_text_before_it)
{
    const char *path = model();
    json_t *whole = DEWPOINT_JSON("generate", "-m", path, "-p", "the dew", "-n", "30", "--json");
    const char *text = text_of(whole, "text");
    char stop[4] = "";
    size_t length;
    json_t *o;
    while (((unsigned char)*text & 0xC0) == 0x80) text++;
    cr_assert_gt(strlen(text), 12);
    for (length = 6; ((unsigned char)text[length] & 0x80) || ((unsigned char)text[length + 1] & 0x80); length++) {
    }
    memcpy(stop, text + length, 2); /* two ASCII characters of the middle */
    length = (size_t)(strstr(text, stop) - text);
    o = DEWPOINT_JSON("generate", "-m", path, "-p", "the dew", "-n", "30", "--stop", "never", "--stop", stop, "--json");
    cr_assert_str_eq(text_of(o, "stop_reason"), "stop");
    cr_assert_eq(strlen(text_of(o, "text")), length, "'%s' stopped at '%s' is '%s'", text, stop, text_of(o, "text"));
    cr_assert_eq(strncmp(text_of(o, "text"), text, length), 0);
    json_decref(o);
    json_decref(whole);
}

/* At this temperature an end token (0 or 2 of 320) comes soon. */
Test(cli_run, an_end_token_ends_the_text_unless_it_is_ignored)
{
    const char *path = model();
    json_t *ended = DEWPOINT_JSON("generate", "-m", path, "-p", "the", "-n", "2000", "--temperature", "1000", "--json");
    json_t *ignored = DEWPOINT_JSON("generate", "-m", path, "-p", "the", "-n", "2000", "--temperature", "1000", "--json",
                                    "--ignore-eos");
    const json_t *few = json_object_get(ended, "tokens");
    const json_t *all = json_object_get(ignored, "tokens");
    const size_t count = json_array_size(few);
    int seen[320] = {0};
    int distinct = 0;
    cr_assert_str_eq(text_of(ended, "stop_reason"), "eos");
    cr_assert_str_eq(text_of(ignored, "stop_reason"), "length");
    cr_assert_eq(json_array_size(all), 2000);
    for (size_t i = 0; i < count; i++) cr_assert_eq(element(few, i), element(all, i));
    cr_assert(element(all, count) == 0 || element(all, count) == 2, "token %d ended the text", (int)element(all, count));
    for (size_t i = 0; i < 2000; i++) {
        distinct += !seen[element(all, i)];
        seen[element(all, i)] = 1;
    }
    cr_assert_gt(distinct, 300); /* nearly uniform: of 320, all but one in 500 come */
    json_decref(ended);
    json_decref(ignored);
}

Test(cli_run, the_seed_decides_what_is_sampled)
{
    const char *path = model();
    json_t *o[3];
    static const char *const seeds[] = {"5", "5", "6"};
    for (int i = 0; i < 3; i++) {
        o[i] = DEWPOINT_JSON("generate", "-m", path, "-p", "the", "-n", "30", "--temperature", "1", "--top-k", "50", "--top-p",
                             "0.95", "--min-p", "0.01", "--seed", seeds[i], "--json", "--simulate-ranks", i == 1 ? "3" : "1");
    }
    cr_assert(json_equal(json_object_get(o[0], "tokens"), json_object_get(o[1], "tokens")));
    cr_assert_not(json_equal(json_object_get(o[0], "tokens"), json_object_get(o[2], "tokens")));
    for (int i = 0; i < 3; i++) json_decref(o[i]);
}

/* The random numbers belong to absolute positions, so a text that is cut and continued goes on as before. */
Test(cli_run, a_continued_prompt_samples_the_same_tokens)
{
    const char *path = model();
    const char *ids = fixture_path("ids");
    char content[64] = "[10, 11, 12";
    json_t *whole, *rest;
    write_file(ids, "[10, 11, 12]", 12);
    whole = DEWPOINT_JSON("generate", "-m", path, "--prompt-ids", ids, "-n", "12", "--temperature", "1", "--ignore-eos",
                          "--json");
    for (size_t i = 0; i < 5; i++) {
        snprintf(content + strlen(content), 8, ",%d", (int)element(json_object_get(whole, "tokens"), i));
    }
    content[strlen(content)] = ']';
    write_file(ids, content, (int64_t)strlen(content));
    rest = DEWPOINT_JSON("generate", "-m", path, "--prompt-ids", ids, "-n", "7", "--temperature", "1", "--ignore-eos",
                         "--json");
    for (size_t i = 0; i < 7; i++) {
        cr_assert_eq(element(json_object_get(rest, "tokens"), i), element(json_object_get(whole, "tokens"), i + 5));
    }
    json_decref(whole);
    json_decref(rest);
}

Test(cli_run, mpi_ranks_and_simulated_ranks_print_the_same_text)
{
    const char *path = model();
    const char *const arguments[] = {"generate", "-m", path,     "-p", "the dewpoint", "-n", "20", "--attention", "condensate",
                                     "--window", "4",  "--keys", "3",  "--quiet",      NULL};
    dewpoint_result under_mpirun = dewpoint_run(3, NULL, arguments);
    dewpoint_result alone = dewpoint_run(0, NULL, arguments);
    cr_assert_eq(under_mpirun.status, 0, "%s", under_mpirun.err);
    cr_assert_str_eq(under_mpirun.out, alone.out);
    cr_assert_str_empty(under_mpirun.err);
    dewpoint_free(&under_mpirun);
    dewpoint_free(&alone);
}

Test(cli_run, a_model_without_tokenizer_works_with_ids)
{
    const char *path = model_with(&(fixture_spec){.seed = 3});
    const char *ids = fixture_path("ids");
    dewpoint_result plain;
    json_t *o;
    char expected[64];
    const json_t *tokens;
    write_file(ids, "5, 6 7", 6);
    o = DEWPOINT_JSON("generate", "-m", path, "--prompt-ids", ids, "-n", "3", "--json");
    plain = DEWPOINT("generate", "-m", path, "--prompt-ids", ids, "-n", "3", "--quiet");
    tokens = json_object_get(o, "tokens");
    cr_assert(json_is_null(json_object_get(o, "text")));
    cr_assert_eq(integer(o, "prompt_tokens"), 3);
    snprintf(expected, sizeof expected, "%d %d %d\n", (int)element(tokens, 0), (int)element(tokens, 1),
             (int)element(tokens, 2));
    cr_assert_str_eq(plain.out, expected);
    json_decref(o);
    dewpoint_free(&plain);
}

/* The line of rank r in the table of --verbose; fails without one. */
static const char *line_of_rank(const char *text, int rank)
{
    char start[16];
    const char *line;
    snprintf(start, sizeof start, "\n%5d ", rank);
    line = strstr(text, start);
    cr_assert_not_null(line, "no line of rank %d in: %s", rank, text);
    return line;
}

Test(cli_run, verbose_lists_every_rank)
{
    const char *path = model();
    dewpoint_result result;
    char host[61];
    int threads;
    char kernels[12];
    double weights, kv, buffers, peak;
    setenv("DEWPOINT_ISA", "scalar", 1);
    result = DEWPOINT("generate", "-m", path, "-p", "the dew", "-n", "2", "--verbose", "--quiet", "--simulate-ranks", "3",
                      "--threads", "2", "-c", "4K");
    cr_assert(strstr(result.err, "ranks 3 on hosts 1\n") != NULL, "%s", result.err);
    for (int r = 0; r < 3; r++) {
        const char *line = line_of_rank(result.err, r);
        cr_assert_eq(sscanf(line, "%*d %60s %d %11s %lf MB %lf MB %lf MB %lf MB\n", host, &threads, kernels, &weights, &kv,
                            &buffers, &peak),
                     7, "%s", line);
        cr_assert(threads == 2 && strcmp(kernels, "scalar") == 0, "%s", line);
        cr_assert(weights > 0.2 && kv > 0.2 && buffers > 0.1 && peak > kv, "%s", line);
    }
    dewpoint_free(&result);
}

/* ---- interruption ---- */

Test(cli_run, an_interrupt_ends_the_text_with_status_130)
{
    const char *path = model_with(&(fixture_spec){.tokenizer = 1, .context = 100000});
    const char *const arguments[] = {"generate", "-m", path, "-p", "the", "--ignore-eos", "--simulate-ranks", "2", NULL};
    dewpoint_result result = dewpoint_signalled(SIGINT, 1, arguments);
    cr_assert_eq(result.status, 130, "status %d: %s", result.status, result.err);
    cr_assert(strstr(result.err, "(interrupted)") != NULL, "%s", result.err);
    dewpoint_free(&result);
}

Test(cli_run, an_interrupted_run_still_prints_its_json)
{
    const char *path = model_with(&(fixture_spec){.tokenizer = 1, .context = 100000});
    const char *const arguments[] = {"generate",     "-m",     path,         "-p",     "the",
                                     "--ignore-eos", "--json", "--progress", "always", NULL};
    dewpoint_result result = dewpoint_signalled(SIGTERM, 2, arguments);
    json_t *o = json_loads(result.out, JSON_ALLOW_NUL, NULL);
    cr_assert_eq(result.status, 130, "status %d: %s", result.status, result.err);
    cr_assert(strstr(result.err, "prefill ") != NULL, "%s", result.err);
    cr_assert_str_eq(text_of(o, "stop_reason"), "interrupted");
    json_decref(o);
    dewpoint_free(&result);
}

/* ---- tokenize and logits ---- */

Test(cli_run, tokenize_and_decode_undo_each_other)
{
    static const char text[] = "the dewpoint \xC3\xA9 <|im_end|>\n\n of 1";
    const char *path = model();
    const char *ids = fixture_path("ids");
    dewpoint_result plain = DEWPOINT("tokenize", "-m", path, "-p", text, "--parse-special");
    json_t *o = DEWPOINT_JSON("tokenize", "-m", path, "-p", text, "--json");
    json_t *special = DEWPOINT_JSON("tokenize", "-m", path, "-p", text, "--json", "--parse-special");
    dewpoint_result back;
    HAS_KEYS(o, "ids");
    cr_assert_gt(json_array_size(json_object_get(o, "ids")), json_array_size(json_object_get(special, "ids")));
    write_file(ids, plain.out, (int64_t)strlen(plain.out));
    back = DEWPOINT("tokenize", "-m", path, "--decode", "--prompt-ids", ids);
    cr_assert_str_eq(back.out, text);
    json_decref(o);
    o = DEWPOINT_JSON("tokenize", "-m", path, "--decode", "--prompt-ids", ids, "--json");
    cr_assert_str_eq(text_of(o, "text"), text);
    json_decref(o);
    json_decref(special);
    dewpoint_free(&plain);
    dewpoint_free(&back);
}

Test(cli_run, an_empty_text_has_no_ids)
{
    const char *path = model();
    dewpoint_result plain = DEWPOINT("tokenize", "-m", path, "-p", "");
    json_t *o = DEWPOINT_JSON("tokenize", "-m", path, "-p", "", "--json");
    cr_assert(plain.status == 0 && strcmp(plain.out, "\n") == 0);
    cr_assert_eq(json_array_size(json_object_get(o, "ids")), 0);
    cr_assert(json_is_array(json_object_get(o, "ids")));
    json_decref(o);
    dewpoint_free(&plain);
}

static int largest(const json_t *row)
{
    size_t best = 0;
    for (size_t i = 1; i < json_array_size(row); i++) {
        if (json_number_value(json_array_get(row, i)) > json_number_value(json_array_get(row, best))) best = i;
    }
    return (int)best;
}

Test(cli_run, the_last_logits_choose_the_first_token)
{
    const char *path = model();
    json_t *tokens = DEWPOINT_JSON("generate", "-m", path, "-p", "the dewpoint", "-n", "1", "--json");
    json_t *o = DEWPOINT_JSON("logits", "-m", path, "-p", "the dewpoint", "--json");
    const json_t *rows = json_object_get(o, "logits");
    HAS_KEYS(o, "positions", "logits");
    cr_assert(json_array_size(rows) == 1 && json_array_size(json_array_get(rows, 0)) == 320);
    cr_assert_eq(element(json_object_get(o, "positions"), 0), integer(tokens, "prompt_tokens") - 1);
    cr_assert_eq(largest(json_array_get(rows, 0)), element(json_object_get(tokens, "tokens"), 0));
    json_decref(o);
    json_decref(tokens);
}

/* 700 positions, so that several passes are needed. */
Test(cli_run, logits_come_in_the_order_of_the_positions_asked_for)
{
    const char *path = model();
    const char *ids = fixture_path("ids");
    char content[4 * 700 + 1];
    json_t *all, *some;
    static const int wanted[] = {699, 3, 3, 300, 0, 301};
    for (int i = 0; i < 700; i++) snprintf(content + 4 * i, 5, "%03d ", (i * 37 + 11) % 320);
    write_file(ids, content, 4 * 700);
    for (int sparse = 0; sparse < 2; sparse++) {
        const char *mode = sparse ? "condensate" : "dense";
        all = DEWPOINT_JSON("logits", "-m", path, "--prompt-ids", ids, "--positions", "all", "--json", "--attention", mode);
        some = DEWPOINT_JSON("logits", "-m", path, "--prompt-ids", ids, "--positions", "699,3,3,300,0,301", "--json",
                             "--attention", mode, "--simulate-ranks", "3");
        cr_assert_eq(json_array_size(json_object_get(all, "logits")), 700);
        cr_assert_eq(json_array_size(json_object_get(some, "logits")), 6);
        for (size_t i = 0; i < 6; i++) {
            cr_assert_eq(element(json_object_get(some, "positions"), i), wanted[i]);
            cr_assert(json_equal(json_array_get(json_object_get(some, "logits"), i),
                                 json_array_get(json_object_get(all, "logits"), (size_t)wanted[i])),
                      "%s: position %d differs", mode, wanted[i]);
        }
        json_decref(all);
        json_decref(some);
    }
}

/* Rows before the first position asked for are dense. */
Test(cli_run, the_mode_of_logits_begins_at_the_first_position_asked_for)
{
    const char *path = model();
    static const char prompt[] = "the dewpoint of the dew and the point and the dew of the point in the wind";
    json_t *dense = DEWPOINT_JSON("logits", "-m", path, "-p", prompt, "--positions", "0,20", "--json");
    json_t *late = DEWPOINT_JSON("logits", "-m", path, "-p", prompt, "--positions", "20", "--json", "--attention", "condensate",
                                 "--window", "1", "--keys", "1");
    json_t *early = DEWPOINT_JSON("logits", "-m", path, "-p", prompt, "--positions", "0,20", "--json", "--attention",
                                  "condensate", "--window", "1", "--keys", "1");
    json_t *whole = DEWPOINT_JSON("logits", "-m", path, "-p", prompt, "--positions", "0,20", "--json", "--attention",
                                  "condensate", "--keys", "1K");
    const json_t *exact = json_array_get(json_object_get(dense, "logits"), 1);
    const json_t *of_late = json_array_get(json_object_get(late, "logits"), 0);
    const json_t *of_early = json_array_get(json_object_get(early, "logits"), 1);
    cr_assert_not(json_equal(exact, of_late));
    cr_assert_not(json_equal(of_early, of_late));
    cr_assert(json_equal(json_object_get(whole, "logits"), json_object_get(dense, "logits")), "all keys are not dense");
    json_decref(dense);
    json_decref(late);
    json_decref(early);
    json_decref(whole);
}

Test(cli_run, logits_without_json_are_one_line_a_position)
{
    dewpoint_result plain = DEWPOINT("logits", "-m", model(), "-p", "the dew", "--positions", "1,0");
    const char *second = strchr(plain.out, '\n');
    cr_assert_eq(plain.status, 0, "%s", plain.err);
    cr_assert(strncmp(plain.out, "1: ", 3) == 0 && strncmp(second, "\n0: ", 4) == 0);
    dewpoint_free(&plain);
}

/* ---- bench, help ---- */

Test(cli_run, the_benches_measure_every_depth_and_mode)
{
    const char *path = model();
    json_t *decode = DEWPOINT_JSON("bench", "decode", "-m", path, "--depths", "65", "--repeat", "1", "--json");
    json_t *prefill = DEWPOINT_JSON("bench", "prefill", "-m", path, "--depths", "0,65", "--repeat", "1", "--json",
                                    "--simulate-ranks", "2");
    json_t *results = json_object_get(decode, "results");
    json_t *sparse = json_array_get(results, 1);
    HAS_KEYS(decode, "machine", "results");
    HAS_KEYS(sparse, "depth", "rows", "tokens_per_pass", "mode", "ranks", "threads", "tokens_per_second", "seconds_per_token",
             "linear", "score", "reduce", "attend", "wait", "kv_bytes_read", "read_bandwidth", "bandwidth_share");
    cr_assert_eq(json_array_size(results), 2);
    cr_assert_str_eq(text_of(json_array_get(results, 0), "mode"), "dense");
    cr_assert_str_eq(text_of(sparse, "mode"), "condensate");
    cr_assert_eq(integer(sparse, "depth"), 65);
    /* 2 layers, 2 KV heads of 16 channels, keys and values of 2 bytes, on average 65 + 4.5 positions visible */
    cr_assert_eq(integer(json_array_get(results, 0), "kv_bytes_read"), (json_int_t)(69.5 * 2 * 2 * 16 * 2 * 2));
    cr_assert_gt(json_real_value(json_object_get(sparse, "tokens_per_second")), 0);
    results = json_object_get(prefill, "results");
    cr_assert_eq(json_array_size(results), 2);
    cr_assert_eq(integer(json_array_get(results, 1), "depth"), 65);
    cr_assert_eq(integer(json_array_get(results, 1), "ranks"), 2);
    json_decref(decode);
    json_decref(prefill);
}

Test(cli_run, help_and_version_end_with_0_and_once_under_mpirun)
{
    const char *const version[] = {"--version", NULL};
    dewpoint_result alone = dewpoint_run(0, NULL, version);
    dewpoint_result under_mpirun = dewpoint_run(3, NULL, version);
    dewpoint_result help = DEWPOINT("generate", "--help");
    cr_assert(alone.status == 0 && under_mpirun.status == 0 && help.status == 0);
    cr_assert_eq(strncmp(alone.out, "dewpoint ", 9), 0);
    cr_assert_str_eq(alone.out, under_mpirun.out);
    cr_assert(strstr(help.out, "--attention MODE") != NULL);
    dewpoint_free(&alone);
    dewpoint_free(&under_mpirun);
    dewpoint_free(&help);
}
