/* Ids of the real models' vocabularies against those of Hugging Face's tokenizers (../shared/reference/README.md). */
#include <criterion/criterion.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/reference.h"
#include "tokenizer/nfc.h"
#include "tokenizer/tokenizer.h"

#define SMOLLM2 "data/SmolLM2-135M-Instruct.Q4_1.gguf"
#define QWEN2 "data/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf"

static dw_tokenizer *load(const char *model)
{
    dw_checkpoint *file;
    dw_tokenizer *t;
    dw_error err;
    cr_assert_eq(dw_checkpoint_open(&file, model, DW_FILE_MAP, &err), DW_OK, "%s (make fetch-models gets it)", err.message);
    cr_assert_eq(dw_tokenizer_load(&t, file, &err), DW_OK, "%s", err.message);
    cr_assert_not_null(t);
    dw_checkpoint_close(file);
    return t;
}

typedef void line_check(const dw_tokenizer *t, const json_t *line, int number);

/* Runs check on every line of a file, and asserts that there are as many as the reference has. */
static void for_each_line(const char *model, const char *name, int expected_lines, line_check *check)
{
    const char *path = reference_path(name);
    FILE *file = fopen(path, "re");
    dw_tokenizer *t = load(model);
    int number = 0;
    cr_assert_not_null(file, "%s can not be read", path);
    for (;;) {
        json_error_t problem;
        json_t *line = json_loadf(file, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, &problem);
        if (line == NULL) break;
        check(t, line, ++number);
        json_decref(line);
    }
    cr_assert_eq(number, expected_lines, "%s: %d lines read, not %d", path, number, expected_lines);
    fclose(file);
    dw_tokenizer_free(t);
}

static void expect_ids(const dw_tokenizer *t, const char *text, int64_t length, int parse_special, const json_t *expected,
                       int number)
{
    int32_t *ids;
    int64_t count;
    dw_error err;
    cr_assert(json_is_array(expected), "line %d has no ids", number);
    cr_assert_eq(dw_tokenize(t, text, length, parse_special, &ids, &count, &err), DW_OK, "line %d: %s", number, err.message);
    cr_assert_eq(count, (int64_t)json_array_size(expected), "line %d: %lld ids, not %zu", number, (long long)count,
                 json_array_size(expected));
    for (int64_t i = 0; i < count; i++) {
        const json_int_t id = json_integer_value(json_array_get(expected, (size_t)i));
        cr_assert_eq(ids[i], id, "line %d: id %lld is %d, not %lld", number, (long long)i, ids[i], (long long)id);
    }
    dw_free(ids);
}

static void check_line(const dw_tokenizer *t, const json_t *line, int number)
{
    const json_t *text = json_object_get(line, "text");
    const int64_t length = (int64_t)json_string_length(text);
    expect_ids(t, json_string_value(text), length, 0, json_object_get(line, "ids_plain"), number);
    expect_ids(t, json_string_value(text), length, 1, json_object_get(line, "ids"), number);
}

Test(tokenizer_reference, smollm2_ids_equal_on_143_texts)
{
    for_each_line(SMOLLM2, "tokenizer/smollm2.jsonl", 143, check_line);
}

Test(tokenizer_reference, qwen2_ids_equal_on_143_texts)
{
    for_each_line(QWEN2, "tokenizer/qwen2.jsonl", 143, check_line);
}

/* Bytes of the "hex" field; returns how many. */
static int64_t read_hex(const json_t *line, char bytes[64])
{
    const char *hex = json_string_value(json_object_get(line, "hex"));
    const int64_t count = (int64_t)strlen(hex) / 2;
    cr_assert_leq(count, 64);
    for (int64_t i = 0; i < count; i++) {
        unsigned byte;
        cr_assert_eq(sscanf(hex + 2 * i, "%2x", &byte), 1);
        bytes[i] = (char)byte;
    }
    return count;
}

/* Valid bytes have the ids of the reference; others are refused, and with U+FFFD put in have the ids of the text that
   Python's decode("utf-8", "replace") makes of them. */
static void check_bytes(const dw_tokenizer *t, const json_t *line, int number)
{
    char bytes[64];
    const int64_t count = read_hex(line, bytes);
    dw_utf8_stream stream = {0};
    char *text = NULL;
    int64_t length = 0, capacity = 0, id_count;
    int32_t *ids;
    dw_error err;
    if (json_is_true(json_object_get(line, "valid"))) {
        expect_ids(t, bytes, count, 1, json_object_get(line, "ids"), number);
        return;
    }
    cr_assert_eq(dw_tokenize(t, bytes, count, 1, &ids, &id_count, &err), DW_INPUT, "line %d", number);
    cr_assert(strncmp(err.message, "invalid UTF-8 at byte ", 22) == 0, "line %d: %s", number, err.message);
    cr_assert_eq(dw_utf8_feed(&stream, bytes, count, 1, &text, &length, &capacity, &err), DW_OK, "%s", err.message);
    expect_ids(t, text, length, 1, json_object_get(line, "ids_replaced"), number);
    dw_free(text);
}

Test(tokenizer_reference, smollm2_ids_equal_on_35_byte_strings)
{
    for_each_line(SMOLLM2, "tokenizer/smollm2.bytes.jsonl", 35, check_bytes);
}

Test(tokenizer_reference, qwen2_ids_equal_on_35_byte_strings)
{
    for_each_line(QWEN2, "tokenizer/qwen2.bytes.jsonl", 35, check_bytes);
}

/* Bytes that SmolLM2's vocabulary has no token for. */
static int vanishes(unsigned char byte)
{
    static const unsigned char missing[] = "\x04\x06\x13\x14\x16\x1D\xC0\xC1\xF1\xF2";
    return byte >= 0xF5 || (byte != 0 && memchr(missing, byte, sizeof missing - 1) != NULL);
}

/* The tokens of ids give bytes back, whole and through the stream that generation prints by. */
static void expect_text(const dw_tokenizer *t, const json_t *ids, const char *expected, int64_t expected_length, int number)
{
    char *bytes = NULL, *whole = NULL, *streamed = NULL;
    int64_t byte_count = 0, byte_capacity = 0;
    int64_t whole_length = 0, whole_capacity = 0, length = 0, capacity = 0;
    dw_utf8_stream one_shot = {0}, stream = {0};
    dw_error err;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const dw_string token = dw_token_bytes(t, (int32_t)json_integer_value(json_array_get(ids, i)), 1);
        cr_assert_eq(DW_GROW(&bytes, &byte_capacity, byte_count + token.length, "text", &err), DW_OK);
        memcpy(bytes + byte_count, token.data, (size_t)token.length);
        byte_count += token.length;
        cr_assert_eq(dw_utf8_feed(&stream, token.data, token.length, 0, &streamed, &length, &capacity, &err), DW_OK);
    }
    cr_assert_eq(dw_utf8_feed(&stream, NULL, 0, 1, &streamed, &length, &capacity, &err), DW_OK);
    cr_assert_eq(dw_utf8_feed(&one_shot, bytes, byte_count, 1, &whole, &whole_length, &whole_capacity, &err), DW_OK);
    cr_assert(byte_count == expected_length && (byte_count == 0 || memcmp(bytes, expected, (size_t)byte_count) == 0),
              "line %d does not come back", number);
    cr_assert(length == whole_length && (length == 0 || memcmp(streamed, whole, (size_t)length) == 0),
              "line %d streams to another text", number);
    dw_free(bytes);
    dw_free(whole);
    dw_free(streamed);
}

static void smollm2_way_back(const dw_tokenizer *t, const json_t *line, int number)
{
    const json_t *text = json_object_get(line, "text");
    char *expected;
    int64_t expected_length = 0;
    dw_error err;
    cr_assert_eq(DW_ALLOC(&expected, (int64_t)json_string_length(text), "text", &err), DW_OK);
    for (size_t i = 0; i < json_string_length(text); i++) {
        const char byte = json_string_value(text)[i];
        if (!vanishes((unsigned char)byte)) expected[expected_length++] = byte;
    }
    expect_text(t, json_object_get(line, "ids"), expected, expected_length, number);
    dw_free(expected);
}

Test(tokenizer_reference, smollm2_tokens_give_their_text_back)
{
    for_each_line(SMOLLM2, "tokenizer/smollm2.jsonl", 143, smollm2_way_back);
}

static void qwen2_way_back(const dw_tokenizer *t, const json_t *line, int number)
{
    const json_t *text = json_object_get(line, "text");
    char *composed;
    int64_t length;
    dw_error err;
    cr_assert_eq(dw_nfc(json_string_value(text), (int64_t)json_string_length(text), &composed, &length, &err), DW_OK);
    expect_text(t, json_object_get(line, "ids"), composed != NULL ? composed : json_string_value(text),
                composed != NULL ? length : (int64_t)json_string_length(text), number);
    dw_free(composed);
}

Test(tokenizer_reference, qwen2_tokens_give_the_composed_text_back)
{
    for_each_line(QWEN2, "tokenizer/qwen2.jsonl", 143, qwen2_way_back);
}

/* ---- Hugging Face directories ---- */

static void link_into(const char *directory, const char *file)
{
    char real[PATH_MAX], to[PATH_MAX];
    cr_assert_not_null(realpath(reference_path(file), real));
    snprintf(to, sizeof to, "%s/%s", directory, strrchr(file, '/') + 1);
    cr_assert_eq(symlink(real, to), 0);
}

/* A directory with some model and the tokenizer `name` from one of its files, besides tokenizer_config.json. */
static const char *directory_of(const char *name, const char *tokenizer)
{
    const char *path = fixture_directory(name);
    char file[128];
    link_into(path, "models/gpt2-bare/config.json");
    link_into(path, "models/gpt2-bare/model.safetensors");
    snprintf(file, sizeof file, "tokenizer/%s/tokenizer_config.json", name);
    link_into(path, file);
    snprintf(file, sizeof file, "tokenizer/%s/%s", name, tokenizer);
    link_into(path, file);
    return path;
}

/* All lines of both files of a small tokenizer. */
static void equals_reference(const char *model, const char *name)
{
    char path[PATH_MAX], file[128];
    snprintf(path, sizeof path, "%s", model); /* reference_path gives another each time */
    snprintf(file, sizeof file, "tokenizer/%s.jsonl", name);
    for_each_line(path, file, 143, check_line);
    snprintf(file, sizeof file, "tokenizer/%s.bytes.jsonl", name);
    for_each_line(path, file, 35, check_bytes);
}

Test(tokenizer_reference, gpt2_from_tokenizer_json)
{
    equals_reference(directory_of("gpt2", "tokenizer.json"), "gpt2");
}

Test(tokenizer_reference, neox_from_tokenizer_json_with_added_runs_of_spaces)
{
    equals_reference(directory_of("neox", "tokenizer.json"), "neox");
}

Test(tokenizer_reference, qwen2_from_tokenizer_json_with_merges_as_pairs)
{
    equals_reference(directory_of("qwen2-small", "tokenizer.json"), "qwen2-small");
}

Test(tokenizer_reference, llama_from_tokenizer_json)
{
    equals_reference(directory_of("llama", "tokenizer.json"), "llama");
}

Test(tokenizer_reference, llama_from_the_file_of_sentencepiece)
{
    equals_reference(directory_of("llama", "tokenizer.model"), "llama");
}

Test(tokenizer_reference, llama_from_gguf)
{
    equals_reference(reference_path("tokenizer/llama/vocab.gguf"), "llama");
}

/* All three put BOS in front of a prompt, and end at </s>. */
Test(tokenizer_reference, llama_wants_bos_whatever_the_file)
{
    const char *const models[] = {directory_of("llama", "tokenizer.json"), reference_path("tokenizer/llama/vocab.gguf")};
    for (int i = 0; i < 2; i++) {
        dw_tokenizer *t = load(models[i]);
        cr_assert_eq(dw_tokenizer_size(t), 950);
        cr_assert_eq(dw_tokenizer_bos(t), 1);
        cr_assert(dw_tokenizer_is_end(t, 2) && !dw_tokenizer_is_end(t, 1) && !dw_tokenizer_is_end(t, 3));
        cr_assert(dw_tokenizer_drops_space(t));
        dw_tokenizer_free(t);
    }
}

/* A space stands in front of the whole, and is what dw_tokenizer_drops_space tells of. */
static void llama_way_back(const dw_tokenizer *t, const json_t *line, int number)
{
    const json_t *text = json_object_get(line, "text");
    const int64_t length = (int64_t)json_string_length(text);
    char *expected;
    dw_error err;
    if (length == 0) return;
    cr_assert_eq(DW_ALLOC(&expected, length + 1, "text", &err), DW_OK);
    expected[0] = ' ';
    memcpy(expected + 1, json_string_value(text), (size_t)length);
    for (int64_t i = 0; i <= length - 3; i++) { /* what a text writes as U+2581 comes back as a space */
        if (memcmp(expected + i, "\xE2\x96\x81", 3) == 0) number = 0;
    }
    if (number > 0) expect_text(t, json_object_get(line, "ids_plain"), expected, length + 1, number);
    dw_free(expected);
}

Test(tokenizer_reference, llama_tokens_give_their_text_back)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", reference_path("tokenizer/llama/vocab.gguf"));
    for_each_line(path, "tokenizer/llama.jsonl", 143, llama_way_back);
}

Test(tokenizer_reference, gemma3_ids_equal_sentencepiece_on_150_texts)
{
    for_each_line(reference_gemma3(), "tokenizer/gemma3.jsonl", 150, check_line);
}

/* ---- ends and long texts ---- */

/* Every id, but the two that close a document or a turn, is none to stop at. */
static void expect_ends(const char *model, int32_t size, int32_t document, int32_t turn)
{
    dw_tokenizer *t = load(model);
    cr_assert_eq(dw_tokenizer_size(t), size);
    cr_assert_eq(dw_tokenizer_bos(t), -1);
    for (int32_t id = 0; id < size; id++) {
        cr_assert_eq(dw_tokenizer_is_end(t, id), id == document || id == turn, "token %d", id);
    }
    cr_assert_eq(dw_token_bytes(t, turn, 0).length, 0);
    cr_assert_eq(dw_token_bytes(t, turn, 1).length, (int64_t)strlen("<|im_end|>"));
    cr_assert_eq(dw_token_bytes(t, document, 1).length, (int64_t)strlen("<|endoftext|>"));
    dw_tokenizer_free(t);
}

Test(tokenizer_reference, smollm2_ends_at_both_of_its_ends_and_wants_no_bos)
{
    expect_ends(SMOLLM2, 49152, 0, 2);
}

Test(tokenizer_reference, qwen2_ends_at_both_of_its_ends_and_wants_no_bos)
{
    expect_ends(QWEN2, 151936, 151643, 151645);
}

/* 5 MB without a place to split: as many tokens as the longest one divides it into, and the bytes come back. */
static void check_run(const dw_tokenizer *t, char fill)
{
    enum { LENGTH = 5000000 };
    char *text;
    int32_t *ids;
    int64_t count, length = 0;
    dw_error err;
    cr_assert_eq(DW_ALLOC(&text, LENGTH, "text", &err), DW_OK, "%s", err.message);
    memset(text, fill, LENGTH);
    cr_assert_eq(dw_tokenize(t, text, LENGTH, 0, &ids, &count, &err), DW_OK, "%s", err.message);
    for (int64_t i = 0; i < count; i++) {
        const dw_string token = dw_token_bytes(t, ids[i], 0);
        const int same = token.length <= LENGTH - length && memcmp(token.data, text + length, (size_t)token.length) == 0;
        cr_assert(same, "id %lld", (long long)i);
        length += token.length;
    }
    cr_assert_eq(length, LENGTH);
    cr_assert_leq(count, LENGTH / 4, "%lld tokens", (long long)count); /* aaaa and longer runs of spaces are tokens */
    dw_free(ids);
    dw_free(text);
}

static void check_runs(const char *model)
{
    dw_tokenizer *t = load(model);
    check_run(t, ' ');
    check_run(t, 'a');
    dw_tokenizer_free(t);
}

Test(tokenizer_reference, smollm2_five_megabytes_without_a_place_to_split)
{
    check_runs(SMOLLM2);
}

Test(tokenizer_reference, gemma3_five_megabytes_without_a_place_to_split)
{
    dw_tokenizer *t = load(reference_gemma3());
    check_run(t, ' ');
    check_run(t, 'a');
    dw_tokenizer_free(t);
}

Test(tokenizer_reference, qwen2_five_megabytes_without_a_place_to_split)
{
    check_runs(QWEN2);
}
