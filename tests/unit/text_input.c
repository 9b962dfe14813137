#include "cli/text_input.h"

#include <criterion/criterion.h>
#include <string.h>

#include "base/memory.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/gguf_writer.h"

/* --prompt-ids with this content. */
static dw_status read_ids(const char *content, int32_t **ids, int64_t *count, dw_error *err)
{
    dw_options options = {.prompt_ids = fixture_path("ids")};
    write_file(options.prompt_ids, content, (int64_t)strlen(content));
    return dw_read_ids(&options, 100, ids, count, err);
}

Test(text_input, ids_come_between_space_or_commas_or_as_json_array)
{
    static const char *const forms[] = {"5 0 99", "5,0,99\n", "[5, 0, 99]", "\n [ 5\n,0 ,99 ]\n", "5\t0\r\n00099"};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        int32_t *ids;
        int64_t count;
        dw_error err = {.message = ""};
        cr_assert_eq(read_ids(forms[i], &ids, &count, &err), DW_OK, "'%s': %s", forms[i], err.message);
        cr_assert_eq(count, 3, "'%s' gives %d ids", forms[i], (int)count);
        cr_assert(ids[0] == 5 && ids[1] == 0 && ids[2] == 99);
        dw_free(ids);
    }
}

Test(text_input, no_ids_are_no_error_here)
{
    static const char *const forms[] = {"", " \n", "[]"};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        int32_t *ids;
        int64_t count;
        dw_error err;
        cr_assert_eq(read_ids(forms[i], &ids, &count, &err), DW_OK);
        cr_assert_eq(count, 0);
        dw_free(ids);
    }
}

Test(text_input, bad_ids_are_named_with_their_place)
{
    static const struct {
        const char *content, *said;
    } cases[] = {
        {"1 2 100", "index 2"},  {"1 -2", "index 1"}, {"99999999999999999999999999", "index 0"},
        {"1 2x", "byte 2"},      {"1 - 2", "byte 2"}, {"1.5", "byte 0"},
        {"[1, 2", "not closed"}, {"[1] 2", "byte 4"}, {"[1]]", "byte 3"},
        {"1]", "byte 1"},        {"[[1]]", "byte 1"}, {"1[2]", "byte 0"},
        {"\"1\"", "byte 0"},     {"\xFF", "byte 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int32_t *ids;
        int64_t count;
        dw_error err = {.message = ""};
        cr_assert_eq(read_ids(cases[i].content, &ids, &count, &err), DW_INPUT, "'%s' is accepted", cases[i].content);
        cr_assert(strstr(err.message, cases[i].said) != NULL && strstr(err.message, "/ids: ") != NULL, "'%s': %s",
                  cases[i].content, err.message);
        cr_assert_null(ids);
    }
}

Test(text_input, invalid_text_is_refused_with_its_offset_or_replaced)
{
    dw_options options = {.prompt_file = fixture_path("text")};
    char *text;
    int64_t length;
    dw_error err;
    write_file(options.prompt_file, "ab\xE2\x82z\0\xFF", 7);
    cr_assert_eq(dw_read_text(&options, &text, &length, &err), DW_INPUT);
    cr_assert_null(text);
    cr_assert(strstr(err.message, "/text: invalid UTF-8 at byte 2") != NULL, "%s", err.message);
    options.lossy = 1;
    cr_assert_eq(dw_read_text(&options, &text, &length, &err), DW_OK);
    cr_assert_eq(length, 10);
    cr_assert_eq(memcmp(text, "ab\xEF\xBF\xBDz\0\xEF\xBF\xBD", 10), 0);
    dw_free(text);
}

Test(text_input, a_long_file_is_read_whole)
{
    enum { BYTES = 300000 };
    static char content[BYTES];
    dw_options options = {.prompt_file = fixture_path("text")};
    char *text;
    int64_t length;
    dw_error err;
    for (int i = 0; i < BYTES; i++) content[i] = (char)('a' + i % 23);
    write_file(options.prompt_file, content, BYTES);
    cr_assert_eq(dw_read_text(&options, &text, &length, &err), DW_OK);
    cr_assert_eq(length, BYTES);
    cr_assert_eq(memcmp(text, content, BYTES), 0);
    dw_free(text);
}

Test(text_input, files_that_can_not_be_read_are_named)
{
    dw_options options = {.prompt_file = "/nowhere/at-all"};
    char *text;
    int64_t length;
    dw_error err;
    cr_assert_eq(dw_read_text(&options, &text, &length, &err), DW_INPUT);
    cr_assert(strstr(err.message, "/nowhere/at-all: ") != NULL, "%s", err.message);
    options.prompt_file = "/";
    cr_assert_eq(dw_read_text(&options, &text, &length, &err), DW_INPUT);
    cr_assert(strstr(err.message, "directory") != NULL, "%s", err.message);
}

/* The fixture's tokenizer wants no BOS. */
Test(text_input, a_prompt_is_never_empty_and_needs_a_tokenizer_only_for_text)
{
    dw_model *model;
    dw_tokenizer *tokenizer;
    dw_options options = {.prompt = ""};
    int32_t *ids;
    int64_t count;
    dw_error err;
    const char *path = fixture_path("model.gguf");
    fixture_model(path, &(fixture_spec){.tokenizer = 1});
    cr_assert_eq(dw_model_load(&model, path, DW_FILE_MAP, &(dw_config_overrides){.rope_base = 0}, &err), DW_OK, "%s",
                 err.message);
    cr_assert_eq(dw_tokenizer_load(&tokenizer, model->checkpoint, &err), DW_OK, "%s", err.message);
    cr_assert_eq(dw_read_prompt(&options, model, tokenizer, &ids, &count, &err), DW_INPUT);
    cr_assert(strstr(err.message, "empty") != NULL, "%s", err.message);
    options.prompt = "the dewpoint";
    cr_assert_eq(dw_read_prompt(&options, model, NULL, &ids, &count, &err), DW_INPUT);
    cr_assert(strstr(err.message, "no tokenizer") != NULL, "%s", err.message);
    cr_assert_eq(dw_read_prompt(&options, model, tokenizer, &ids, &count, &err), DW_OK);
    cr_assert_gt(count, 0);
    dw_free(ids);
    options = (dw_options){.prompt_ids = fixture_path("ids")};
    write_file(options.prompt_ids, "[319]", 5);
    cr_assert_eq(dw_read_prompt(&options, model, NULL, &ids, &count, &err), DW_OK, "%s", err.message);
    cr_assert(count == 1 && ids[0] == 319);
    dw_free(ids);
    write_file(options.prompt_ids, "[]", 2);
    cr_assert_eq(dw_read_prompt(&options, model, NULL, &ids, &count, &err), DW_INPUT);
    dw_tokenizer_free(tokenizer);
    dw_model_free(model);
}
