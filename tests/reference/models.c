/* Small checkpoints of every family against Hugging Face transformers in float32 (../shared/reference/README.md, models/; those of
   make_extra.py in tests/reference/data): from both forms of their config.json, as GGUF files, on 1, 3 and 4 ranks. */
#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/shared/fixtures.h"
#include "tests/shared/reference.h"
#include "tests/shared/session_run.h"

/* Two float32 evaluations of the reference are up to 1.4e-4 apart, so that a third is within 2e-4; measured: 1.12e-4. */
#define TOLERANCE 2e-4

enum { CAPACITY = 512 };

static const int rank_counts[] = {1, 3, 4};

typedef enum { ALSO_GGUF, NO_GGUF } gguf_form; /* NO_GGUF: the format has no words for it */

static int64_t append_ids(int32_t *ids, int64_t count, const json_t *array)
{
    const int64_t more = (int64_t)json_array_size(array);
    cr_assert(more > 0 && count + more <= CAPACITY);
    for (int64_t i = 0; i < more; i++) ids[count + i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    return count + more;
}

/* Largest error over the rows that the reference lists; outcome holds all rows. */
static double largest_error(const session_outcome *outcome, const json_t *expected)
{
    const json_t *positions = json_object_get(expected, "logits_positions");
    const json_t *rows = json_object_get(expected, "logits");
    double worst = 0;
    cr_assert_eq(json_array_size(positions), 10);
    for (size_t r = 0; r < json_array_size(positions); r++) {
        const int64_t position = json_integer_value(json_array_get(positions, r));
        const json_t *row = json_array_get(rows, r);
        cr_assert(position < outcome->rows && (int64_t)json_array_size(row) == outcome->vocabulary);
        for (int64_t i = 0; i < outcome->vocabulary; i++) {
            const double logit = (double)outcome->logits[position * outcome->vocabulary + i];
            worst = fmax(worst, fabs(logit - json_number_value(json_array_get(row, (size_t)i))));
        }
    }
    return worst;
}

/* Prompt in one prefill, then the greedy tokens one by one. form: for the log. */
static void expect_reference(const char *path, const char *name, const char *form, const json_t *expected)
{
    int32_t ids[CAPACITY];
    dw_model *model = session_model(path);
    const int64_t count = append_ids(ids, 0, json_object_get(expected, "prompt"));
    const int64_t tokens = append_ids(ids, count, json_object_get(expected, "greedy")) - count;
    double worst = 0;
    cr_assert_eq(tokens, 48);
    for (size_t i = 0; i < sizeof rank_counts / sizeof rank_counts[0]; i++) {
        const session_setup setup = {.ranks = rank_counts[i],
                                     .threads = 1,
                                     .config = {.key_type = DW_F32, .value_type = DW_F32, .policy = {.mode = DW_DENSE}}};
        session_outcome outcome;
        session_run(&outcome, &(session_task){model, ids, count, 0, count, tokens}, &setup);
        cr_assert(memcmp(outcome.tokens, ids + count, (size_t)tokens * sizeof *ids) == 0, "%s: other tokens on %d ranks", form,
                  rank_counts[i]);
        worst = fmax(worst, largest_error(&outcome, expected));
        cr_assert_leq(worst, TOLERANCE, "%s: largest error of a logit on %d ranks: %.3g", form, rank_counts[i], worst);
        session_outcome_free(&outcome);
    }
    cr_log_info("parity | %s | %s | %s | %s | 1, 3, 4 | %.1e | 48 of 48",
                json_string_value(json_object_get(expected, "family")), name, form,
                json_string_value(json_object_get(expected, "stored")), worst);
    dw_model_free(model);
}

/* Links to the files of a model, with one of the two forms of its configuration. */
static const char *linked_directory(const char *source, const char *config)
{
    const char *path = fixture_directory(config);
    char from[PATH_MAX], to[PATH_MAX + 300], real[PATH_MAX];
    const struct dirent *entry;
    DIR *directory;
    directory = opendir(source);
    cr_assert_not_null(directory);
    while ((entry = readdir(directory)) != NULL) {
        const int is_config = strncmp(entry->d_name, "config", 6) == 0;
        if (entry->d_name[0] == '.' || (is_config && strcmp(entry->d_name, config) != 0)) continue;
        snprintf(from, sizeof from, "%s/%s", source, entry->d_name);
        cr_assert_not_null(realpath(from, real));
        snprintf(to, sizeof to, "%s/%s", path, is_config ? "config.json" : entry->d_name);
        cr_assert_eq(symlink(real, to), 0);
    }
    closedir(directory);
    return path;
}

static void equals_transformers(const char *name, gguf_form form)
{
    static const char *const configs[] = {"config.json", "config.alt.json"};
    char file[128], directory[PATH_MAX];
    const char *gguf = fixture_path("model.gguf");
    json_t *expected;
    snprintf(file, sizeof file, "models/%s/expected.json", name);
    expected = reference_json(file);
    snprintf(directory, sizeof directory, "%s", reference_path(file));
    *strrchr(directory, '/') = '\0';
    for (int i = 0; i < 2; i++) expect_reference(linked_directory(directory, configs[i]), name, configs[i], expected);
    if (form == ALSO_GGUF) {
        fixture_from_safetensors(gguf, directory);
        expect_reference(gguf, name, "GGUF", expected);
    }
    json_decref(expected);
}

#define MODEL(test, name, form)                                                                                                \
    Test(models, test)                                                                                                         \
    {                                                                                                                          \
        equals_transformers(name, form);                                                                                       \
    }

MODEL(gpt2_with_learned_positions_and_gelu_new, "gpt2", ALSO_GGUF)
MODEL(gpt2_with_bare_names_masks_and_heads_of_11, "gpt2-bare", ALSO_GGUF)
MODEL(gpt2_with_a_head_of_its_own_and_another_inner_width, "gpt2-untied", ALSO_GGUF)
MODEL(neox_with_parallel_residual_partial_rotation_and_exact_gelu, "neox-parallel", ALSO_GGUF)
MODEL(neox_with_sequential_residual_and_gelu_new, "neox-sequential", ALSO_GGUF)
MODEL(neox_in_float16_with_tensors_to_ignore, "neox-float16", ALSO_GGUF)
MODEL(neox_with_sequential_residual_and_partial_rotation, "neox-partial", ALSO_GGUF)
MODEL(qwen2_with_a_tied_head_and_three_heads_a_kv_head, "qwen2-tied", ALSO_GGUF)
MODEL(qwen2_with_a_head_of_its_own, "qwen2-untied", ALSO_GGUF)
MODEL(qwen2_with_windows_in_some_layers, "qwen2-window", NO_GGUF)
MODEL(qwen2_with_yarn_and_an_attention_factor, "qwen2-yarn", NO_GGUF)
MODEL(qwen3_with_norms_of_heads, "qwen3", ALSO_GGUF)
MODEL(llama_with_heads_wider_than_hidden_over_heads, "llama-headdim", ALSO_GGUF)
MODEL(llama_with_llama3_scaling_and_rope_factors_in_gguf, "llama-llama3", ALSO_GGUF)
MODEL(llama_with_linear_scaling_by_the_older_key, "llama-linear", ALSO_GGUF)
MODEL(llama_with_yarn, "llama-yarn", ALSO_GGUF)
MODEL(llama_with_dynamic_scaling_beyond_its_context, "llama-dynamic", NO_GGUF)
MODEL(llama_in_bfloat16_in_four_files, "llama-bf16-shards", ALSO_GGUF)
MODEL(llama_in_float16, "llama-float16", ALSO_GGUF)
MODEL(mistral_with_a_window_of_64_of_300_tokens, "mistral-window", ALSO_GGUF)
MODEL(mistral_with_mixed_types_and_no_tensor_aligned, "mistral-mixed", ALSO_GGUF)
MODEL(gemma3_with_a_query_scale_and_linear_scaling_of_global_layers, "gemma3", NO_GGUF)
MODEL(gemma3_as_published_270m_files, "gemma3-plain", ALSO_GGUF)
