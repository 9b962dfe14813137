/* Texts whose beginning or line ends need care. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "cli/text_input.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/gguf_writer.h"

enum { BOS = 1 }; /* <|im_start|> of the fixture's vocabulary */

static dw_model *model;
static dw_tokenizer *tokenizer;

/* The fixture, but its model wants BOS in front of a prompt. */
static void load(void)
{
    const char *path = fixture_path("model.gguf");
    gguf_writer *writer = fixture_writer(&(fixture_spec){.tokenizer = 1});
    int64_t bytes;
    dw_error err;
    uint8_t *data = gguf_build(writer, &bytes);
    data[gguf_where(writer, GGUF_AT_VALUE, "tokenizer.ggml.add_bos_token")] = 1;
    gguf_write(writer, path);
    gguf_free(writer);
    cr_assert_eq(dw_model_load(&model, path, DW_FILE_MAP, &(dw_config_overrides){.rope_base = 0}, &err), DW_OK, "%s",
                 err.message);
    cr_assert_eq(dw_tokenizer_load(&tokenizer, model->checkpoint, &err), DW_OK, "%s", err.message);
}

static void unload(void)
{
    dw_tokenizer_free(tokenizer);
    dw_model_free(model);
}

TestSuite(prompt_text, .init = load, .fini = unload);

/* The ids of a prompt; returns their number (at most 32). */
static int64_t ids_of(const dw_options *options, int32_t *out)
{
    int32_t *ids;
    int64_t count;
    dw_error err;
    cr_assert_eq(dw_read_prompt(options, model, tokenizer, &ids, &count, &err), DW_OK, "%s", err.message);
    cr_assert_leq(count, 32);
    memcpy(out, ids, (size_t)count * sizeof *ids);
    dw_free(ids);
    return count;
}

Test(prompt_text, bos_comes_once_in_front_of_a_text)
{
    int32_t ids[32], marked[32];
    const int64_t count = ids_of(&(dw_options){.prompt = "the dew"}, ids);
    cr_assert(count > 1 && ids[0] == BOS && ids[1] != BOS);
    cr_assert_eq(ids_of(&(dw_options){.prompt = "<|im_start|>the dew", .parse_special = 1}, marked), count);
    cr_assert_eq(memcmp(ids, marked, (size_t)count * sizeof *ids), 0);
}

/* Only what is in front counts: a second BOS that the text holds is the text's. */
Test(prompt_text, bos_markup_that_is_not_parsed_is_text_and_a_second_one_stays)
{
    int32_t ids[32], plain[32];
    const int64_t length = ids_of(&(dw_options){.prompt = "<|im_start|>the"}, plain);
    int64_t count = ids_of(&(dw_options){.prompt = "<|im_start|><|im_start|>the", .parse_special = 1}, ids);
    cr_assert(plain[0] == BOS && plain[1] != BOS && length > 8, "the markup became %lld ids", (long long)length);
    cr_assert(count > 2 && ids[0] == BOS && ids[1] == BOS && ids[2] != BOS);
    count = ids_of(&(dw_options){.prompt = "<|im_start|>", .parse_special = 1}, ids);
    cr_assert(count == 1 && ids[0] == BOS);
}

Test(prompt_text, ids_are_taken_as_they_are)
{
    dw_options options = {.prompt_ids = fixture_path("ids")};
    int32_t ids[32];
    write_file(options.prompt_ids, "5 1 6", 5);
    cr_assert_eq(ids_of(&options, ids), 3);
    cr_assert(ids[0] == 5 && ids[1] == BOS);
}

/* ---- line ends ---- */

/* What reading the text writes to stderr (valid until the next call); *length: of the text that came out. */
static const char *said_about(dw_options options, const char *content, int64_t bytes, char *out, int64_t *length)
{
    static char said[1024];
    FILE *file = tmpfile();
    const int saved = dup(STDERR_FILENO);
    char *text;
    dw_error err;
    dw_status status;
    options.prompt_file = fixture_path("text");
    write_file(options.prompt_file, content, bytes);
    fflush(stderr);
    dup2(fileno(file), STDERR_FILENO);
    status = dw_read_text(&options, &text, length, &err);
    dup2(saved, STDERR_FILENO);
    cr_assert_eq(status, DW_OK, "%s", err.message);
    memcpy(out, text, (size_t)*length);
    dw_free(text);
    rewind(file);
    said[fread(said, 1, sizeof said - 1, file)] = '\0';
    fclose(file);
    close(saved);
    return said;
}

Test(prompt_text, crlf_is_kept_with_one_warning_that_names_the_source)
{
    static const char content[] = "a\r\nb\r\n\0c";
    char text[32];
    int64_t length;
    const char *said = said_about((dw_options){0}, content, sizeof content, text, &length);
    cr_assert(length == sizeof content && memcmp(text, content, sizeof content) == 0, "the text has changed");
    cr_assert(strncmp(said, "dewpoint: warning: ", 19) == 0 && strstr(said, "/text has lines that end with CR LF") != NULL,
              "'%s'", said);
    cr_assert(strchr(said, '\n') == said + strlen(said) - 1, "not one line: '%s'", said);
}

Test(prompt_text, other_line_ends_and_quiet_runs_warn_of_nothing)
{
    char text[32];
    int64_t length;
    cr_assert_str_empty(said_about((dw_options){0}, "a\nb\rc\n\rd", 8, text, &length));
    cr_assert_str_empty(said_about((dw_options){0}, "a\r", 2, text, &length));
    cr_assert_str_empty(said_about((dw_options){0}, "", 0, text, &length));
    cr_assert_str_empty(said_about((dw_options){.quiet = 1}, "a\r\nb", 4, text, &length));
}
