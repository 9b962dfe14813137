/* The program on other kinds of models than a llama in one GGUF file: directories, split files, chat templates, other RoPE settings. */
#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/shared/dewpoint.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/reference.h"

static const char *ids_file(const json_t *ids)
{
    const char *path = fixture_path("ids.json");
    char *text = json_dumps(ids, 0);
    cr_assert_not_null(text);
    write_file(path, text, (int64_t)strlen(text));
    free(text);
    return path;
}

static json_t *json_of(const dewpoint_result *result)
{
    json_error_t problem;
    json_t *object = json_loads(result->out, 0, &problem);
    cr_assert(result->status == 0 && object != NULL, "status %d: %s", result->status, result->err);
    return object;
}

/* Prompt and greedy tokens of a reference model, from its directory, on three MPI ranks. */
static void generates_reference(const char *name, const char *family)
{
    char file[128], directory[PATH_MAX];
    json_t *expected, *answer;
    dewpoint_result result;
    snprintf(file, sizeof file, "models/%s/expected.json", name);
    expected = reference_json(file);
    snprintf(directory, sizeof directory, "%s", reference_path(file));
    *strrchr(directory, '/') = '\0';
    result = dewpoint_run(3, NULL,
                          (const char *const[]){"generate", "-m", directory, "--prompt-ids",
                                                ids_file(json_object_get(expected, "prompt")), "-n", "48", "--kv-type", "f32",
                                                "--json", NULL});
    answer = json_of(&result);
    cr_assert(json_equal(json_object_get(answer, "tokens"), json_object_get(expected, "greedy")), "%s: other tokens", name);
    cr_assert_str_eq(json_string_value(json_object_get(answer, "family")), family);
    cr_assert(json_is_null(json_object_get(answer, "text")));
    json_decref(answer);
    json_decref(expected);
    dewpoint_free(&result);
}

Test(cli_models, directories_generate_the_reference_tokens_under_mpirun)
{
    generates_reference("mistral-window", "mistral");
    generates_reference("neox-parallel", "gpt_neox");
    generates_reference("llama-bf16-shards", "llama");
}

/* With a window of 64 no position outside it is left out or attended to: a condensate of 64 or more is exact. */
Test(cli_models, a_condensate_as_wide_as_the_sliding_window_is_dense)
{
    char directory[PATH_MAX];
    json_t *expected = reference_json("models/mistral-window/expected.json");
    const char *ids = ids_file(json_object_get(expected, "prompt"));
    json_t *sparse, *omitted;
    snprintf(directory, sizeof directory, "%s", reference_path("models/mistral-window"));
    sparse = DEWPOINT_JSON("generate", "-m", directory, "--prompt-ids", ids, "-n", "48", "--kv-type", "f32", "--attention",
                           "condensate", "--window", "64", "--json");
    cr_assert(json_equal(json_object_get(sparse, "tokens"), json_object_get(expected, "greedy")));
    omitted = json_object_get(json_object_get(json_object_get(sparse, "attention"), "omitted_mass"), "max");
    cr_assert(json_number_value(json_array_get(omitted, 0)) == 0 && json_number_value(json_array_get(omitted, 1)) == 0);
    json_decref(sparse);
    json_decref(expected);
}

Test(cli_models, weights_that_are_mapped_or_read_give_the_same)
{
    const char *path = fixture_path("model.gguf");
    json_t *mapped, *read;
    fixture_model(path, &(fixture_spec){.tokenizer = 1});
    mapped = DEWPOINT_JSON("generate", "-m", path, "-p", "the", "-n", "20", "--mmap", "always", "--json");
    read = DEWPOINT_JSON("generate", "-m", path, "-p", "the", "-n", "20", "--mmap", "never", "--json");
    cr_assert(json_equal(json_object_get(mapped, "tokens"), json_object_get(read, "tokens")));
    json_decref(mapped);
    json_decref(read);
}

Test(cli_models, rope_scaling_changes_the_run_and_extends_the_context)
{
    const char *path = fixture_path("model.gguf");
    json_t *plain, *none, *scaled;
    dewpoint_result result;
    fixture_model(path, &(fixture_spec){.tokenizer = 1, .context = 64});
    plain = DEWPOINT_JSON("logits", "-m", path, "-p", "the lamp of the keeper", "--json");
    none = DEWPOINT_JSON("logits", "-m", path, "-p", "the lamp of the keeper", "--rope-scaling", "none", "--json");
    scaled = DEWPOINT_JSON("logits", "-m", path, "-p", "the lamp of the keeper", "--rope-scaling", "linear:4", "-c", "256",
                           "--json");
    cr_assert(json_equal(plain, none) && !json_equal(plain, scaled));
    result = DEWPOINT("logits", "-m", path, "-p", "the", "-c", "256");
    cr_assert(result.status == 2 && strstr(result.err, "--context 256 is more than the 64 positions") != NULL, "%s",
              result.err);
    dewpoint_free(&result);
    result = DEWPOINT("logits", "-m", path, "-p", "the", "--rope-scaling", "su:4");
    cr_assert(result.status == 2 && strstr(result.err, "--rope-scaling 'su:4'") != NULL, "%s", result.err);
    dewpoint_free(&result);
    json_decref(plain);
    json_decref(none);
    json_decref(scaled);
}

/* ---- chat ---- */

static const char *model_with_template(const char *jinja)
{
    const char *path = fixture_path("chat.gguf");
    gguf_writer *writer = fixture_writer(&(fixture_spec){.tokenizer = 1});
    if (jinja != NULL) gguf_put_string(writer, "tokenizer.chat_template", jinja);
    gguf_write(writer, path);
    gguf_free(writer);
    return path;
}

#define CHATML                                                                                                                 \
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"       \
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

static json_int_t prompt_tokens(json_t *answer)
{
    const json_int_t count = json_integer_value(json_object_get(answer, "prompt_tokens"));
    json_decref(answer);
    return count;
}

/* What is said is data: markup in it has as many tokens as it has as plain text. */
Test(cli_models, chat_writes_the_format_of_the_template_and_says_which)
{
    const char *path = model_with_template(CHATML);
    const char *const text = "<|im_start|>user\nthe<|im_end|>\n<|im_start|>assistant\n";
    const json_int_t raw = prompt_tokens(
        DEWPOINT_JSON("generate", "-m", path, "-p", text, "--parse-special", "-n", "0", "--json"));
    const json_int_t chat = prompt_tokens(DEWPOINT_JSON("generate", "-m", path, "--chat", "-p", "the", "-n", "0", "--json"));
    const json_int_t sly = prompt_tokens(
        DEWPOINT_JSON("generate", "-m", path, "--chat", "-p", "<|im_end|>", "-n", "0", "--json"));
    const json_int_t plain = prompt_tokens(DEWPOINT_JSON("generate", "-m", path, "-p", "<|im_end|>", "-n", "0", "--json"));
    const json_int_t the = prompt_tokens(DEWPOINT_JSON("generate", "-m", path, "-p", "the", "-n", "0", "--json"));
    dewpoint_result result = DEWPOINT("generate", "-m", path, "--chat", "--system", "the", "-p", "the", "-n", "1");
    cr_assert_eq(chat, raw);
    cr_assert_eq(sly - chat, plain - the, "markup that the user says was taken for markup");
    cr_assert(result.status == 0 && strstr(result.err, "chat format: ChatML\n") != NULL, "%s", result.err);
    dewpoint_free(&result);
}

Test(cli_models, chat_without_a_template_that_is_known_is_refused_with_the_way_out)
{
    static const struct {
        const char *jinja, *words;
    } cases[] = {{NULL, "has no chat template; give a raw prompt, without --chat"}, {"{{ messages }}", "leave out --chat"}};
    for (int i = 0; i < 2; i++) {
        dewpoint_result result = DEWPOINT("generate", "-m", model_with_template(cases[i].jinja), "--chat", "-p", "the");
        cr_assert(result.status == 3 && strstr(result.err, cases[i].words) != NULL && result.out[0] == '\0', "%s", result.err);
        dewpoint_free(&result);
    }
}
