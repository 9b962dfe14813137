#include <criterion/criterion.h>
#include <string.h>

#include "base/memory.h"
#include "tests/shared/fixtures.h"
#include "tokenizer/tokenizer.h"

enum { TOKENS = 320, FIRST_BYTE = 3 };

static dw_status load(gguf_writer *writer, dw_tokenizer **t, dw_error *err)
{
    const char *path = fixture_path("vocabulary.gguf");
    dw_checkpoint *file;
    dw_status status;
    gguf_write(writer, path);
    gguf_free(writer);
    cr_assert_eq(dw_checkpoint_open(&file, path, DW_FILE_MAP, err), DW_OK, "%s", err->message);
    status = dw_tokenizer_load(t, file, err);
    dw_checkpoint_close(file); /* the tokenizer keeps nothing of the file */
    return status;
}

Test(tokenizer_load, every_byte_has_its_token_and_text_comes_back)
{
    gguf_writer *writer = gguf_new(3);
    dw_tokenizer *t;
    dw_error err;
    int32_t *ids;
    int64_t count;
    fixture_tokenizer(writer, TOKENS);
    cr_assert_eq(load(writer, &t, &err), DW_OK, "%s", err.message);
    cr_assert_eq(dw_tokenizer_size(t), TOKENS);
    cr_assert_eq(dw_tokenizer_bos(t), -1);
    for (int32_t id = 0; id < TOKENS; id++) cr_assert_eq(dw_tokenizer_is_end(t, id), id == 0 || id == 2, "token %d", id);
    for (int byte = 0; byte < 256; byte++) {
        const dw_string text = dw_token_bytes(t, FIRST_BYTE + byte, 0);
        cr_assert(text.length == 1 && (unsigned char)text.data[0] == byte, "byte %d", byte);
    }
    cr_assert_eq(dw_tokenize(t, "the<|im_end|> the", 17, 1, &ids, &count, &err), DW_OK, "%s", err.message);
    cr_assert_eq(count, 4); /* t he <|im_end|> the */
    cr_assert_eq(ids[0], FIRST_BYTE + 't');
    cr_assert_eq(ids[2], 2);
    dw_free(ids);
    dw_tokenizer_free(t);
}

Test(tokenizer_load, a_file_without_tokenizer_gives_none)
{
    gguf_writer *writer = gguf_new(3);
    dw_tokenizer *t = (dw_tokenizer *)writer;
    dw_error err;
    gguf_put_string(writer, "general.architecture", "llama");
    cr_assert_eq(load(writer, &t, &err), DW_OK, "%s", err.message);
    cr_assert_null(t);
}

static void expect_refused(gguf_writer *writer, const char *named)
{
    dw_tokenizer *t;
    dw_error err;
    cr_assert_eq(load(writer, &t, &err), DW_INPUT, "no error about %s", named);
    cr_assert_null(t);
    cr_assert_not_null(strstr(err.message, named), "'%s' does not say '%s'", err.message, named);
    cr_assert_not_null(strstr(err.message, "vocabulary.gguf: "), "'%s' does not name the file", err.message);
}

/* A vocabulary of one token a; merge and the id of eos as given. */
static gguf_writer *tiny(const char *pre, int types, const char *merge, uint32_t eos)
{
    static const char *const tokens[] = {"a"};
    static const int32_t type[] = {1, 1};
    gguf_writer *writer = gguf_new(3);
    gguf_put_string(writer, "tokenizer.ggml.model", "gpt2");
    if (pre != NULL) gguf_put_string(writer, "tokenizer.ggml.pre", pre);
    gguf_put_strings(writer, "tokenizer.ggml.tokens", tokens, 1);
    gguf_put_array(writer, "tokenizer.ggml.token_type", GGUF_I32, 4, type, types);
    gguf_put_strings(writer, "tokenizer.ggml.merges", &merge, merge != NULL);
    gguf_put_u32(writer, "tokenizer.ggml.eos_token_id", eos);
    return writer;
}

Test(tokenizer_load, what_a_file_gets_wrong_is_named)
{
    gguf_writer *writer = gguf_new(3);
    gguf_put_string(writer, "tokenizer.ggml.model", "bert");
    expect_refused(writer, "tokenizer \"bert\" (tokenizer.ggml.model) is not known");
    expect_refused(tiny(NULL, 1, NULL, 0), "tokenizer.ggml.pre");
    expect_refused(tiny("qwen9", 1, NULL, 0), "\"qwen9\"");
    expect_refused(tiny("smollm", 2, NULL, 0), "1 tokens (tokenizer.ggml.tokens), but 2 types");
    expect_refused(tiny("smollm", 1, "a a", 0), "\"aa\" is not a token");
    expect_refused(tiny("smollm", 1, NULL, 1), "tokenizer.ggml.eos_token_id is 1");
}

Test(tokenizer_load, bos_and_eot_are_read)
{
    gguf_writer *writer = tiny("smollm", 1, NULL, 0xFFFFFFFF);
    dw_tokenizer *t;
    dw_error err;
    expect_refused(writer, "tokenizer.ggml.eos_token_id is 4294967295");
    writer = tiny("smollm", 1, NULL, 0);
    gguf_put_u32(writer, "tokenizer.ggml.bos_token_id", 0);
    gguf_put_bool(writer, "tokenizer.ggml.add_bos_token", 1);
    cr_assert_eq(load(writer, &t, &err), DW_OK, "%s", err.message);
    cr_assert_eq(dw_tokenizer_bos(t), 0);
    dw_tokenizer_free(t);
    writer = tiny("smollm", 1, NULL, 0);
    gguf_put_u32(writer, "tokenizer.ggml.eot_token_id", 5);
    expect_refused(writer, "tokenizer.ggml.eot_token_id is 5");
}

/* SentencePiece: tokens <unk> <s> and two more, of which one is the sign for a space. */
static gguf_writer *sentencepiece(int scores)
{
    static const char *const tokens[] = {"<unk>", "<s>", "\xE2\x96\x81", "a"};
    static const int32_t type[] = {2, 3, 1, 1};
    static const float score[] = {0, 0, -1, -2, -3};
    gguf_writer *writer = gguf_new(3);
    gguf_put_string(writer, "tokenizer.ggml.model", "llama");
    gguf_put_strings(writer, "tokenizer.ggml.tokens", tokens, 4);
    gguf_put_array(writer, "tokenizer.ggml.token_type", GGUF_I32, 4, type, 4);
    if (scores > 0) gguf_put_array(writer, "tokenizer.ggml.scores", GGUF_F32, 4, score, scores);
    gguf_put_u32(writer, "tokenizer.ggml.bos_token_id", 1);
    gguf_put_u32(writer, "tokenizer.ggml.unknown_token_id", 0);
    return writer;
}

static void expect_ids(gguf_writer *writer, const char *text, int32_t bos, const int32_t *expected, int64_t expected_count)
{
    dw_tokenizer *t;
    int32_t *ids;
    int64_t count;
    dw_error err;
    cr_assert_eq(load(writer, &t, &err), DW_OK, "%s", err.message);
    cr_assert_eq(dw_tokenizer_bos(t), bos);
    cr_assert_eq(dw_tokenize(t, text, (int64_t)strlen(text), 0, &ids, &count, &err), DW_OK, "%s", err.message);
    cr_assert_eq(count, expected_count, "%d ids", (int)count);
    for (int64_t i = 0; i < count; i++) cr_assert_eq(ids[i], expected[i], "id %d is %d", (int)i, ids[i]);
    dw_free(ids);
    dw_tokenizer_free(t);
}

/* Absent keys: BOS is added, and a space in front. */
Test(tokenizer_load, sentencepiece_has_the_defaults_of_its_kind)
{
    static const int32_t prefixed[] = {2, 3, 0};
    gguf_writer *writer = sentencepiece(4);
    expect_ids(writer, "axy", 1, prefixed, 3);
    writer = sentencepiece(4);
    gguf_put_bool(writer, "tokenizer.ggml.add_space_prefix", 0);
    gguf_put_bool(writer, "tokenizer.ggml.add_bos_token", 0);
    gguf_put_bool(writer, "tokenizer.ggml.remove_extra_whitespaces", 0);
    gguf_put_array(writer, "tokenizer.ggml.precompiled_charsmap", GGUF_U8, 1, NULL, 0);
    expect_ids(writer, "axy", -1, prefixed + 1, 2);
}

Test(tokenizer_load, what_sentencepiece_files_get_wrong_is_named)
{
    static const char map[] = "map";
    static const float infinite[] = {0, 0, 0, -__builtin_inff()};
    static const float no_number[] = {0, 0, 0, __builtin_nanf("")};
    gguf_writer *writer = sentencepiece(4);
    expect_refused(sentencepiece(0), "tokenizer.ggml.scores");
    expect_refused(sentencepiece(5), "4 tokens (tokenizer.ggml.tokens), but 5 scores (tokenizer.ggml.scores)");
    gguf_put_array(writer, "tokenizer.ggml.precompiled_charsmap", GGUF_U8, 1, map, 3);
    expect_refused(writer, "tokenizer.ggml.precompiled_charsmap");
    writer = sentencepiece(4);
    gguf_put_bool(writer, "tokenizer.ggml.remove_extra_whitespaces", 1);
    expect_refused(writer, "tokenizer.ggml.remove_extra_whitespaces");
    writer = sentencepiece(0);
    gguf_put_array(writer, "tokenizer.ggml.scores", GGUF_F32, 4, no_number, 4);
    expect_refused(writer, "the score of token 3 is not a number");
    writer = sentencepiece(0);
    gguf_put_array(writer, "tokenizer.ggml.scores", GGUF_F32, 4, infinite, 4);
    expect_ids(writer, "", 1, NULL, 0);
}
