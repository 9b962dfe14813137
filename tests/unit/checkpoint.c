/* A model is a GGUF file or a Hugging Face directory; what is neither is refused with what was looked for. */
#include "model/checkpoint.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "model/json_file.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/safetensors_small.h"
#include "tests/unit/gguf_small.h"

static dw_error err;

static const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", small_directory(), name);
    return path;
}

static void check_refused(const char *path, const char *file, const char *words)
{
    dw_checkpoint *checkpoint;
    err.message[0] = '\0';
    cr_expect(dw_checkpoint_open(&checkpoint, path, DW_FILE_MAP, &err) == DW_INPUT && checkpoint == NULL, "%s", words);
    cr_expect(strstr(err.message, file) == err.message && strchr(err.message, '\n') == NULL, "\"%s\" of %s", err.message, file);
    cr_expect(strstr(err.message, words) != NULL, "\"%s\" lacks \"%s\"", err.message, words);
}

static dw_checkpoint *open_directory(dw_file_way way)
{
    dw_checkpoint *checkpoint;
    cr_assert_eq(dw_checkpoint_open(&checkpoint, small_directory(), way, &err), DW_OK, "%s", err.message);
    return checkpoint;
}

static void write_directory(void)
{
    small_shards();
    small_text("config.json", "{\"model_type\": \"none\"}\n");
}

Test(checkpoint, a_directory_has_a_configuration_and_tensors)
{
    write_directory();
    for (int w = 0; w < 2; w++) {
        dw_checkpoint *checkpoint = open_directory(w == 0 ? DW_FILE_MAP : DW_FILE_READ);
        cr_assert(checkpoint->gguf == NULL && checkpoint->file_count == 2 && checkpoint->tensors->count == 3);
        cr_assert_str_eq(checkpoint->path, small_directory());
        cr_assert_str_eq(json_string_value(json_object_get(checkpoint->config, "model_type")), "none");
        cr_assert(checkpoint->files[0].way == (w == 0 ? DW_FILE_MAP : DW_FILE_READ));
        cr_assert_eq(dw_tensors_find(checkpoint->tensors, "b")->file, &checkpoint->files[1]);
        dw_checkpoint_close(checkpoint);
    }
    check_no_leak();
}

Test(checkpoint, a_gguf_file_has_no_configuration)
{
    const char *path = fixture_path("small.gguf");
    gguf_writer *writer = gguf_small(3, 0, -1);
    dw_checkpoint *checkpoint;
    gguf_write(writer, path);
    gguf_free(writer);
    cr_assert_eq(dw_checkpoint_open(&checkpoint, path, DW_FILE_MAP, &err), DW_OK, "%s", err.message);
    cr_assert(checkpoint->gguf != NULL && checkpoint->config == NULL && checkpoint->config_hash == 0);
    cr_assert(checkpoint->file_count == 1 && checkpoint->tensors->count == 7);
    cr_assert(checkpoint->tensors == dw_gguf_tensors_of(checkpoint->gguf));
    dw_checkpoint_close(checkpoint);
    check_no_leak();
}

Test(checkpoint, what_is_no_model_is_refused_with_what_is_one)
{
    check_refused(path_of("absent"), path_of("absent"), "No such file or directory");
    check_refused(small_directory(), small_directory(),
                  "has no config.json; expected a .gguf file, or a directory with config.json and model.safetensors or "
                  "model.safetensors.index.json");
    small_shards();
    check_refused(small_directory(), small_directory(), "has no config.json");
    small_text("config.json", "{}");
    small_remove("model.safetensors.index.json");
    check_refused(small_directory(), small_directory(), "has neither model.safetensors nor model.safetensors.index.json");
    check_refused(path_of("one.safetensors"), path_of("one.safetensors"),
                  "a file of a Hugging Face directory; give the directory that it is in");
    check_refused(path_of("config.json"), path_of("config.json"), "give the directory that it is in");
    small_text("other", "PK");
    check_refused(path_of("other"), path_of("other"), "not a GGUF file (starts with \"PK\")");
    check_no_leak();
}

Test(checkpoint, damage_of_the_configuration_is_named_with_its_place)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "is empty; expected a JSON file"},
        {"[1]", "is no JSON object"},
        {"7", "line 1, column 1: '[' or '{' expected near '7'"},
        {"{\n\"a\": 1,\n\"b\": nan}", "line 3, column 8: invalid token near 'nan'"},
        {"{\"a\": 1, \"a\": 2}", "line 1, column 12: duplicate object key near '\"a\"'"},
        {"{\"a\": {\"b\": 1, \"b\": 1}}", "duplicate object key near '\"b\"'"},
        {"{\"a\": 1} {}", "line 1, column 10: end of file expected near '{'"},
        {"{\"a\": \"\xff\"}", "unable to decode byte 0xff"},
        {"{\"a\": 1e999}", "real number overflow"},
        {"{\"a\": 99999999999999999999}", "too big integer"},
    };
    small_shards();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        small_text("config.json", cases[i].text);
        check_refused(small_directory(), path_of("config.json"), cases[i].words);
    }
    check_no_leak();
}

Test(checkpoint, json_files_are_read_when_they_are_there)
{
    dw_checkpoint *checkpoint;
    json_t *json;
    char *path;
    write_directory();
    checkpoint = open_directory(DW_FILE_MAP);
    small_text("generation_config.json", "{\"eos_token_id\": [1, 2]}");
    cr_assert_eq(dw_checkpoint_json(checkpoint, "generation_config.json", 0, &json, &err), DW_OK, "%s", err.message);
    cr_assert_eq(json_array_size(json_object_get(json, "eos_token_id")), 2);
    json_decref(json);
    cr_assert_eq(dw_checkpoint_json(checkpoint, "tokenizer.json", 0, &json, &err), DW_OK);
    cr_assert_null(json);
    cr_assert_eq(dw_checkpoint_json(checkpoint, "tokenizer.json", 1, &json, &err), DW_INPUT);
    cr_assert(json == NULL && strstr(err.message, path_of("tokenizer.json")) == err.message, "%s", err.message);
    cr_assert(strstr(err.message, "No such file or directory") != NULL, "%s", err.message);
    small_text("tokenizer.json", "{\n]");
    cr_assert_eq(dw_checkpoint_json(checkpoint, "tokenizer.json", 0, &json, &err), DW_INPUT);
    cr_assert(json == NULL && strstr(err.message, "tokenizer.json: line 2, column 1: ") != NULL, "%s", err.message);
    cr_assert_eq(dw_checkpoint_file(checkpoint, "tokenizer.model", &path, &err), DW_OK);
    cr_assert_str_eq(path, path_of("tokenizer.model"));
    dw_free(path);
    dw_checkpoint_close(checkpoint);
    check_no_leak();
}

/* Also those that jansson makes. */
Test(checkpoint, a_failing_allocation_is_reported_and_leaves_nothing_behind)
{
    dw_checkpoint *checkpoint;
    int64_t allocations;
    dw_json_init();
    write_directory();
    allocations = dw_memory_allocations();
    checkpoint = open_directory(DW_FILE_READ);
    allocations = dw_memory_allocations() - allocations;
    dw_checkpoint_close(checkpoint);
    cr_assert_geq(allocations, 100);
    for (int64_t n = 1; n <= allocations; n++) {
        dw_memory_fail_at(n);
        cr_expect(dw_checkpoint_open(&checkpoint, small_directory(), DW_FILE_READ, &err) == DW_RESOURCE && checkpoint == NULL,
                  "allocation %lld: %s", (long long)n, err.message);
        cr_expect(strstr(err.message, "not enough memory") != NULL, "%s", err.message);
    }
    dw_memory_fail_at(0);
    check_no_leak();
}
