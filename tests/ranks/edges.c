/* Edges of a run: numbers that are none, no room, no tokens, text that is cut anywhere. */
#define _GNU_SOURCE /* memmem */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "mpi/transport.h"
#include "tests/shared/dewpoint.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/gguf_writer.h"
#include "tests/shared/prompts.h"
#include "tokenizer/tokenizer.h"

/* The default fixture: hidden 64, heads of 16, vocabulary 320; F32 matrices. */
enum { HIDDEN = 64, HEAD_DIM = 16, VOCABULARY = 320 };

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

static const char *ids_file(int count)
{
    int32_t ids[128];
    cr_assert_leq(count, 128);
    prompt_random(ids, count, VOCABULARY);
    return prompt_file("ids", ids, count);
}

static const char *text_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    cr_assert(json_is_string(value), "%s is not a string", key);
    return json_string_value(value);
}

static const json_t *tokens_of(const json_t *object)
{
    const json_t *tokens = json_object_get(object, "tokens");
    cr_assert(json_is_array(tokens));
    return tokens;
}

/* ---- numbers that are none ---- */

/* Changes `count` numbers of a F32 tensor, from number `first` on: to `value`, or by that factor. */
typedef struct {
    const char *tensor;
    int64_t first, count;
    float value;
    int multiply;
} damage;

static const char *damaged_model(const damage *list, int count)
{
    const char *path = fixture_path("damaged.gguf");
    gguf_writer *writer = fixture_writer(&(fixture_spec){.tokenizer = 1});
    int64_t bytes;
    uint8_t *data = gguf_build(writer, &bytes);
    for (int i = 0; i < count; i++) {
        uint8_t *at = data + gguf_where(writer, GGUF_AT_DATA, list[i].tensor) + list[i].first * (int64_t)sizeof(float);
        for (int64_t n = 0; n < list[i].count; n++, at += sizeof(float)) {
            float number;
            memcpy(&number, at, sizeof number);
            number = list[i].multiply ? number * list[i].value : list[i].value;
            memcpy(at, &number, sizeof number);
        }
    }
    gguf_write(writer, path);
    gguf_free(writer);
    return path;
}

/* One line on stderr with `said` in it, nothing on stdout. */
static void fails_with(const dewpoint_result *result, int status, const char *said)
{
    const char *end = strchr(result->err, '\n');
    cr_assert_eq(result->status, status, "'%s': status %d: %s", said, result->status, result->err);
    cr_assert_str_empty(result->out);
    cr_assert(strncmp(result->err, "dewpoint: ", 10) == 0 && end != NULL && end[1] == '\0', "not one line: %s", result->err);
    cr_assert(strstr(result->err, said) != NULL, "'%s' is not in '%s'", said, result->err);
}

/* On one rank, and on three simulated ones, of which one is named. */
static void not_finite(const damage *list, int count, const char *mode, const char *said)
{
    const char *path = damaged_model(list, count);
    const char *ids = ids_file(12);
    char host[65], on_host[80];
    dewpoint_result result = DEWPOINT("generate", "-m", path, "--prompt-ids", ids, "-n", "2", "--json", "--attention", mode);
    fails_with(&result, 1, said);
    dewpoint_free(&result);
    result = DEWPOINT("logits", "-m", path, "--prompt-ids", ids, "--positions", "all", "--json", "--attention", mode,
                      "--simulate-ranks", "3");
    dw_host_name(host, sizeof host);
    snprintf(on_host, sizeof on_host, " on %s: ", host);
    fails_with(&result, 1, said);
    cr_assert(strncmp(result.err, "dewpoint: rank ", 15) == 0 && strstr(result.err, on_host) != NULL, "no rank: %s",
              result.err);
    dewpoint_free(&result);
}

#define ROWS_OF_HEAD(head) ((head)*HEAD_DIM * HIDDEN)

Test(edges, a_weight_that_is_no_number_is_an_error_that_names_layer_head_and_rank)
{
    const damage query = {"blk.1.attn_q.weight", ROWS_OF_HEAD(2), 1, NAN, 0};
    const damage key = {"blk.0.attn_k.weight", ROWS_OF_HEAD(1), 1, INFINITY, 0};
    const damage feed_forward = {"blk.0.ffn_down.weight", 0, 1, NAN, 0};
    const damage head = {"output.weight", 7 * HIDDEN, 1, INFINITY, 0};
    const damage last = {"blk.1.ffn_up.weight", 0, 1, NAN, 0};
    const char *const modes[] = {"dense", "condensate"};
    for (int i = 0; i < 2; i++) {
        not_finite(&query, 1, modes[i], "layer 1, head 2: query is not a number");
        not_finite(&key, 1, modes[i], "layer 0, KV head 1: key is not a number");
        not_finite(&feed_forward, 1, modes[i], "layer 1, head 0: query is not a number");
        not_finite(&head, 1, modes[i], "a logit is not a finite number");
        not_finite(&last, 1, modes[i], "a logit is not a finite number");
    }
}

/* Finite weights whose queries leave the range, or whose scores do (2^22 bits and more have no digits left). */
Test(edges, huge_weights_are_an_error_that_names_layer_head_and_rank)
{
    const damage query = {"blk.0.attn_q.weight", ROWS_OF_HEAD(3), HEAD_DIM * HIDDEN, 0x1p60f, 1};
    const damage scores[] = {{"blk.1.attn_q.weight", ROWS_OF_HEAD(3), HEAD_DIM * HIDDEN, 0x1p26f, 1},
                             {"blk.1.attn_k.weight", ROWS_OF_HEAD(1), HEAD_DIM * HIDDEN, 0x1p8f, 1}};
    const char *const modes[] = {"dense", "condensate"};
    for (int i = 0; i < 2; i++) {
        not_finite(&query, 1, modes[i], "layer 0, head 3: query is not a number or out of range");
        not_finite(scores, 2, modes[i], "layer 1, head 3: attention score is not a number or out of range");
    }
}

/* Of the three rows only the middle one is damaged, and rank 1 computes it. */
Test(edges, the_rank_whose_row_is_not_finite_is_named_under_mpirun)
{
    const damage embedding = {"token_embd.weight", 77 * HIDDEN, HIDDEN, NAN, 0};
    const int32_t ids[] = {5, 6, 5, 6, 5, 6, 5, 6, 5, 6, 77, 6, 5, 6, 5, 6, 5, 6, 5, 6, 5}; /* rows 7 to 13 are rank 1's */
    const char *const arguments[] = {
        "generate", "-m", damaged_model(&embedding, 1), "--prompt-ids", prompt_file("many", ids, 21), "-n", "2",
        "--quiet",  NULL};
    char host[65], expected[160];
    dewpoint_result result = dewpoint_run(3, NULL, arguments);
    dw_host_name(host, sizeof host);
    snprintf(expected, sizeof expected, "dewpoint: rank 1 on %s: layer 0, head 0: query is not a number", host);
    fails_with(&result, 1, expected);
    dewpoint_free(&result);
}

/* The prompt is sound; the first token that the model chooses has no usable embedding. */
Test(edges, a_row_that_is_not_finite_in_decoding_ends_all_ranks)
{
    const char *ids = ids_file(5);
    json_t *sound = DEWPOINT_JSON("generate", "-m", model(), "--prompt-ids", ids, "-n", "1", "--json", "--ignore-eos");
    const int64_t first = json_integer_value(json_array_get(tokens_of(sound), 0));
    const damage embedding = {"token_embd.weight", first * HIDDEN, HIDDEN, INFINITY, 0};
    const char *const arguments[] = {
        "generate", "-m", damaged_model(&embedding, 1), "--prompt-ids", ids, "-n", "9", "--json", "--ignore-eos", NULL};
    char host[65], expected[160];
    dewpoint_result result = dewpoint_run(2, NULL, arguments);
    dw_host_name(host, sizeof host);
    snprintf(expected, sizeof expected, "rank 0 on %s: layer 0, head 0: query", host);
    fails_with(&result, 1, expected);
    dewpoint_free(&result);
    json_decref(sound);
}

/* ---- no memory while it runs ---- */

/* Streams text on two MPI ranks while allocation n fails on rank 0; 0: none does. */
static dewpoint_result run_without(int n, const char *path)
{
    char value[32];
    const char *const arguments[] = {"generate", "-m",        path, "-p", "the dewpoint", "-n", "60", "--ignore-eos",
                                     "--quiet",  "--threads", "1",  NULL};
    snprintf(value, sizeof value, "%d@0", n);
    setenv("DEWPOINT_FAIL_ALLOC", value, 1);
    return dewpoint_run(2, NULL, arguments);
}

/* The last allocation of the run belongs to its decoding: the list of tokens grows. It is found by halving. */
Test(edges, an_allocation_that_fails_in_decoding_ends_all_ranks)
{
    const char *path = model();
    dewpoint_result result;
    int fails = 100; /* allocation of the start */
    int works = 1000;
    while (works - fails > 1) {
        const int middle = (fails + works) / 2;
        result = run_without(middle, path);
        cr_assert(result.status == 0 || result.status == 4, "status %d: %s", result.status, result.err);
        if (result.status == 0) works = middle;
        if (result.status != 0) fails = middle;
        dewpoint_free(&result);
    }
    result = run_without(fails, path);
    cr_assert_eq(result.status, 4, "status %d: %s", result.status, result.err);
    cr_assert(strlen(result.out) > 0, "the run had not begun to decode");
    cr_assert(strstr(result.err, "not enough memory for ") != NULL && strchr(result.err, '\n')[1] == '\0', "%s", result.err);
    dewpoint_free(&result);
}

/* ---- short contexts ---- */

/* Most of the eight ranks hold nothing and compute nothing. */
static void on_8_ranks(int prompt, int context, const char *mode)
{
    char size[16];
    const char *path = model();
    const char *ids = ids_file(prompt);
    json_t *one, *eight;
    snprintf(size, sizeof size, "%d", context);
    one = DEWPOINT_JSON("generate", "-m", path, "--prompt-ids", ids, "-c", size, "--json", "--ignore-eos", "--attention", mode);
    eight = DEWPOINT_JSON("generate", "-m", path, "--prompt-ids", ids, "-c", size, "--json", "--ignore-eos", "--attention",
                          mode, "--simulate-ranks", "8");
    cr_assert_eq(json_array_size(tokens_of(one)), (size_t)(context - prompt));
    cr_assert(json_equal(tokens_of(one), tokens_of(eight)), "context %d, prompt %d, %s", context, prompt, mode);
    cr_assert_str_eq(text_of(eight, "stop_reason"), "context");
    json_decref(one);
    json_decref(eight);
}

Test(edges, contexts_of_1_to_3_tokens_on_8_ranks)
{
    for (int context = 1; context <= 3; context++) {
        for (int prompt = 1; prompt <= context; prompt++) {
            on_8_ranks(prompt, context, "dense");
            on_8_ranks(prompt, context, "condensate");
        }
    }
}

Test(edges, a_context_of_1_token_on_8_mpi_ranks)
{
    const char *const arguments[] = {"logits", "-m", model(), "--prompt-ids", ids_file(1), "-c", "1", "--json", NULL};
    dewpoint_result eight = dewpoint_run(8, NULL, arguments);
    dewpoint_result one = dewpoint_run(0, NULL, arguments);
    cr_assert_eq(eight.status, 0, "%s", eight.err);
    cr_assert_str_eq(eight.out, one.out);
    dewpoint_free(&eight);
    dewpoint_free(&one);
}

Test(edges, a_prompt_of_exactly_the_context_is_read_and_one_more_is_refused)
{
    static const char *const ranks[] = {"1", "3"};
    const char *path = model_with(&(fixture_spec){.tokenizer = 1, .context = 64});
    const char *almost = ids_file(63);
    const char *full, *more;
    int32_t ids[65];
    prompt_random(ids, 65, VOCABULARY);
    full = prompt_file("full", ids, 64);
    more = prompt_file("more", ids, 65);
    for (int i = 0; i < 2; i++) {
        json_t *o = DEWPOINT_JSON("generate", "-m", path, "--prompt-ids", full, "-n", "5", "--json", "--simulate-ranks",
                                  ranks[i]);
        dewpoint_result refused = DEWPOINT("generate", "-m", path, "--prompt-ids", more, "-n", "0", "--simulate-ranks",
                                           ranks[i]);
        cr_assert_str_eq(text_of(o, "stop_reason"), "context");
        cr_assert_eq(json_array_size(tokens_of(o)), 0);
        fails_with(&refused, 3, "the prompt has 65 tokens, the context holds 64");
        json_decref(o);
        dewpoint_free(&refused);
        o = DEWPOINT_JSON("generate", "-m", path, "--prompt-ids", almost, "-n", "5", "--json", "--ignore-eos",
                          "--simulate-ranks", ranks[i]);
        cr_assert_eq(json_array_size(tokens_of(o)), 1);
        json_decref(o);
    }
}

/* ---- no tokens ---- */

/* All logits are 0, so that the first id is chosen: <|endoftext|>. */
static const char *model_that_ends(void)
{
    const damage norm = {"output_norm.weight", 0, HIDDEN, 0, 0};
    return damaged_model(&norm, 1);
}

Test(edges, an_end_token_at_once_gives_no_tokens_and_no_text)
{
    const char *path = model_that_ends();
    const char *const arguments[] = {"generate", "-m", path, "-p", "the dew", "--json", NULL};
    dewpoint_result plain = DEWPOINT("generate", "-m", path, "-p", "the dew", "--quiet");
    dewpoint_result mpi = dewpoint_run(2, NULL, arguments);
    json_t *o = json_loads(mpi.out, 0, NULL);
    json_t *ignored = DEWPOINT_JSON("generate", "-m", path, "-p", "the dew", "-n", "4", "--json", "--ignore-eos");
    cr_assert(plain.status == 0 && mpi.status == 0, "%s%s", plain.err, mpi.err);
    cr_assert_str_empty(plain.out);
    cr_assert_str_eq(text_of(o, "stop_reason"), "eos");
    cr_assert_str_empty(text_of(o, "text"));
    cr_assert_eq(json_array_size(tokens_of(o)), 0);
    cr_assert_eq(json_array_size(tokens_of(ignored)), 4);
    cr_assert_eq(json_integer_value(json_array_get(tokens_of(ignored), 3)), 0);
    json_decref(o);
    json_decref(ignored);
    dewpoint_free(&plain);
    dewpoint_free(&mpi);
}

Test(edges, no_tokens_asked_for_on_mpi_ranks_print_nothing)
{
    const char *const arguments[] = {"generate", "-m", model(), "-p", "the dew", "-n", "0", "--quiet", NULL};
    dewpoint_result result = dewpoint_run(3, NULL, arguments);
    cr_assert(result.status == 0 && *result.out == '\0' && *result.err == '\0', "status %d, '%s', '%s'", result.status,
              result.out, result.err);
    dewpoint_free(&result);
}

/* ---- text that comes in pieces ---- */

/* What a command prints into a pipe. Every read must give whole characters. */
typedef struct {
    char text[1 << 16];
    int64_t length;
    int pieces;
} stream;

static void read_pieces(stream *s, const char *command)
{
    FILE *pipe = popen(command, "re");
    ssize_t bytes;
    *s = (stream){.length = 0};
    cr_assert_not_null(pipe);
    while ((bytes = read(fileno(pipe), s->text + s->length, sizeof s->text - (size_t)s->length)) > 0) {
        cr_assert_eq(dw_utf8_check(s->text + s->length, bytes), -1, "piece %d is cut", s->pieces);
        s->length += bytes;
        s->pieces++;
    }
    cr_assert_eq(pclose(pipe), 0);
}

static const char replacement[] = "\xEF\xBF\xBD";

/* Characters of two and more bytes but U+FFFD; *replaced: how often that comes. */
static int count_characters(const stream *s, int *replaced)
{
    int count = 0;
    *replaced = 0;
    for (int64_t i = 0; i < s->length; i++) {
        const int is_replacement = s->length - i >= 3 && memcmp(s->text + i, replacement, 3) == 0;
        *replaced += is_replacement;
        count += (unsigned char)s->text[i] >= 0xC0 && !is_replacement;
    }
    return count;
}

/* At this temperature all tokens are nearly as likely, most of them single bytes: they form characters of two and three bytes
   now and then, and far more often beginnings of some. */
Test(edges, streamed_text_comes_in_whole_characters_and_equals_the_one_shot_text)
{
    static const char *const seeds[] = {"1", "2", "3"};
    static stream streamed;
    const char *path = model();
    for (int i = 0; i < 3; i++) {
        char command[1024];
        int whole, replaced;
        json_t *o = DEWPOINT_JSON("generate", "-m", path, "-p", "the", "-n", "3000", "--temperature", "1000", "--seed",
                                  seeds[i], "--ignore-eos", "--json");
        const json_t *text = json_object_get(o, "text");
        snprintf(command, sizeof command, "%s generate -m %s -p the -n 3000 --temperature 1000 --seed %s --ignore-eos --quiet",
                 dewpoint_program(), path, seeds[i]);
        read_pieces(&streamed, command);
        cr_assert_eq(streamed.length, (int64_t)json_string_length(text));
        cr_assert_eq(memcmp(streamed.text, json_string_value(text), (size_t)streamed.length), 0);
        whole = count_characters(&streamed, &replaced);
        cr_assert(streamed.pieces > 100 && whole > 30 && replaced > 300, "%d pieces, %d characters, %d replaced",
                  streamed.pieces, whole, replaced);
        json_decref(o);
    }
}

/* The bytes of generated tokens from..to (exclusive), as far as `out` holds them; a zero is put behind. */
static void join_tokens(const dw_tokenizer *tokenizer, const json_t *tokens, size_t from, size_t to, char *out, size_t capacity)
{
    size_t length = 0;
    for (size_t i = from; i < to; i++) {
        const dw_string bytes = dw_token_bytes(tokenizer, (int32_t)json_integer_value(json_array_get(tokens, i)), 0);
        for (int64_t b = 0; b < bytes.length && length + 1 < capacity; b++) out[length++] = bytes.data[b];
    }
    out[length] = '\0';
}

static int is_plain(const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text < 32 || *text > 126) return 0;
    }
    return 1;
}

/* Where a string begins in the text of an answer, which may hold U+0000. */
static size_t place_in(const json_t *answer, const char *part)
{
    const json_t *text = json_object_get(answer, "text");
    const char *found = memmem(json_string_value(text), json_string_length(text), part, strlen(part));
    cr_assert_not_null(found, "'%s' is not in the text", part);
    return (size_t)(found - json_string_value(text));
}

/* Three generated tokens in a row that say nothing but plain characters; returns the index of the first. */
static size_t find_plain_tokens(const char *model_path, const json_t *tokens, char *said, size_t capacity)
{
    size_t at = 1;
    dw_checkpoint *file;
    dw_tokenizer *tokenizer;
    dw_error err;
    cr_assert_eq(dw_checkpoint_open(&file, model_path, DW_FILE_MAP, &err), DW_OK);
    cr_assert_eq(dw_tokenizer_load(&tokenizer, file, &err), DW_OK);
    do {
        cr_assert_lt(++at + 3, json_array_size(tokens), "no three plain tokens in a row");
        join_tokens(tokenizer, tokens, at, at + 3, said, capacity);
    } while (strlen(said) < 3 || !is_plain(said));
    dw_tokenizer_free(tokenizer);
    dw_checkpoint_close(file);
    return at;
}

/* The stop string is what three tokens in a row say. */
Test(edges, a_stop_string_of_three_tokens_ends_streamed_and_one_shot_text_before_it)
{
#define COMMON "generate", "-m", path, "-p", "the", "-n", "300", "--temperature", "1000", "--ignore-eos"
    const char *path = model();
    json_t *whole = DEWPOINT_JSON(COMMON, "--json");
    const json_t *text = json_object_get(whole, "text");
    char stop[64];
    const size_t at = find_plain_tokens(path, tokens_of(whole), stop, sizeof stop);
    const size_t place = place_in(whole, stop);
    json_t *o = DEWPOINT_JSON(COMMON, "--json", "--stop", stop);
    dewpoint_result streamed = DEWPOINT(COMMON, "--quiet", "--stop", stop);
#undef COMMON
    const json_t *cut = json_object_get(o, "text");
    cr_assert_str_eq(text_of(o, "stop_reason"), "stop");
    cr_assert_eq(json_array_size(tokens_of(o)), at + 3, "stopped after %zu tokens", json_array_size(tokens_of(o)));
    cr_assert_eq(json_string_length(cut), place);
    cr_assert_eq(memcmp(json_string_value(text), json_string_value(cut), place), 0);
    cr_assert_eq(memcmp(streamed.out, json_string_value(cut), place), 0);
    cr_assert_eq(streamed.out[place], '\0');
    dewpoint_free(&streamed);
    json_decref(o);
    json_decref(whole);
}
