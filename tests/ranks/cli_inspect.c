/* dewpoint inspect: what it says of models that run, and of files that do not. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/shared/dewpoint.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/gguf_writer.h"
#include "tests/shared/reference.h"
#include "tests/shared/safetensors_small.h"

/* The file of a fixture with a u32 overwritten. */
static const char *patched(const fixture_spec *spec, gguf_field field, const char *name, uint32_t value)
{
    const char *path = fixture_path("patched.gguf");
    gguf_writer *writer = fixture_writer(spec);
    int64_t bytes;
    uint8_t *data = gguf_build(writer, &bytes);
    memcpy(data + gguf_where(writer, field, name), &value, sizeof value);
    gguf_write(writer, path);
    gguf_free(writer);
    return path;
}

/* A model of a family that is not ours: llama's, under another name. */
static const char *other_family(void)
{
    const char *path = fixture_path("grape.gguf");
    gguf_writer *writer = gguf_new(3);
    const int64_t size[2] = {8, 4};
    const float data[32] = {0};
    gguf_put_string(writer, "general.architecture", "grape");
    gguf_put_u32(writer, "grape.block_count", 3);
    gguf_put_u32(writer, "grape.embedding_length", 64);
    gguf_put_u32(writer, "grape.attention.head_count", 8);
    gguf_put_u32(writer, "grape.attention.head_count_kv", 2);
    gguf_put_tensor(writer, "blk.0.seed", 0, 2, size, data, sizeof data);
    gguf_put_tensor(writer, "blk.0.skin", 24, 2, size, data, 32); /* I8 */
    gguf_put_tensor(writer, "blk.0.stem", 99, 2, size, data, 32);
    gguf_write(writer, path);
    gguf_free(writer);
    return path;
}

static const char *text_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text == NULL ? "" : text;
}

static json_int_t number_at(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    cr_assert(json_is_integer(value), "%s is not an integer", key);
    return json_integer_value(value);
}

/* Not supported, for a reason that holds `words`. */
static void check_problem(const json_t *o, const char *words)
{
    cr_assert(json_is_false(json_object_get(o, "supported")));
    cr_assert(strstr(text_at(o, "problem"), words) != NULL, "'%s' lacks '%s'", text_at(o, "problem"), words);
}

Test(cli_inspect, shape_types_and_metadata_are_those_of_the_file)
{
    const char *path = fixture_path("model.gguf");
    json_t *o, *types, *tensor;
    fixture_model(path, &(fixture_spec){.type = FIXTURE_MIXED, .tokenizer = 1, .rope_base = 5000});
    o = DEWPOINT_JSON("inspect", "-m", path, "--json");
    types = json_object_get(o, "types");
    cr_assert(json_is_true(json_object_get(o, "supported")) && json_is_null(json_object_get(o, "problem")));
    cr_assert_str_eq(text_at(o, "family"), "llama");
    cr_assert_str_eq(text_at(o, "tokenizer"), "gpt2");
    cr_assert(number_at(o, "layers") == 2 && number_at(o, "hidden") == 64 && number_at(o, "feed_forward") == 96);
    cr_assert(number_at(o, "heads") == 4 && number_at(o, "kv_heads") == 2 && number_at(o, "head_dim") == 16);
    cr_assert(number_at(o, "vocabulary") == 320 && number_at(o, "context") == 4096);
    cr_assert_eq(json_real_value(json_object_get(o, "rope_base")), 5000);
    /* Q, K, V, output: 2 (64 64 + 2 32 64 + 64 64); gate, up, down: 2 3 64 96; norms: 5 64; embedding: 320 64 */
    cr_assert_eq(number_at(o, "parameters"), 24576 + 36864 + 320 + 20480);
    cr_assert_eq(json_array_size(types), 3);
    cr_assert_str_eq(text_at(json_array_get(types, 0), "type"), "F32");
    cr_assert_eq(number_at(json_array_get(types, 0), "tensors"), 5);
    cr_assert_eq(number_at(json_array_get(types, 0), "bytes"), 4 * 320);
    cr_assert_str_eq(text_at(json_array_get(types, 1), "type"), "Q4_1");
    cr_assert_eq(number_at(json_array_get(types, 1), "tensors"), 14);
    cr_assert_eq(number_at(json_array_get(types, 1), "bytes"), (24576 + 36864) / 32 * 20);
    cr_assert_eq(number_at(json_array_get(types, 2), "bytes"), 20480 / 32 * 34);
    tensor = json_array_get(json_object_get(o, "tensors"), 1);
    cr_assert_str_eq(text_at(tensor, "name"), "blk.0.attn_norm.weight");
    cr_assert_eq(json_integer_value(json_array_get(json_object_get(tensor, "shape"), 0)), 64);
    cr_assert_eq(number_at(json_object_get(o, "metadata"), "llama.context_length"), 4096);
    cr_assert_str_eq(text_at(json_object_get(o, "metadata"), "tokenizer.ggml.pre"), "smollm");
    cr_assert_eq(number_at(json_object_get(json_object_get(o, "metadata"), "tokenizer.ggml.tokens"), "elements"), 320);
    json_decref(o);
}

/* 1,000 positions are 16 blocks; of 3 ranks the first has 6, the others 5. */
Test(cli_inspect, the_memory_is_what_a_run_takes)
{
    static const char *const types[] = {"f16", "f32,bf16"};
    const char *path = fixture_path("model.gguf");
    fixture_model(path, &(fixture_spec){.tokenizer = 1});
    for (int t = 0; t < 2; t++) {
        json_t *seen = DEWPOINT_JSON("inspect", "-m", path, "-c", "1000", "--kv-type", types[t], "--simulate-ranks", "3",
                                     "--json");
        json_t *run = DEWPOINT_JSON("generate", "-m", path, "-p", "the dew", "-n", "2", "-c", "1000", "--kv-type", types[t],
                                    "--simulate-ranks", "3", "--json");
        const json_t *memory = json_object_get(seen, "memory");
        const json_t *host = json_array_get(json_object_get(memory, "hosts"), 0);
        json_int_t kv = 0;
        cr_assert_eq(number_at(memory, "context"), 1000);
        for (size_t r = 0; r < 3; r++) {
            const json_t *planned = json_array_get(json_object_get(memory, "ranks"), r);
            const json_t *used = json_array_get(json_object_get(run, "memory"), r);
            cr_assert_str_eq(text_at(planned, "host"), text_at(used, "host"));
            cr_assert_eq(number_at(planned, "weights"), number_at(used, "weights"));
            cr_assert_eq(number_at(planned, "kv"), number_at(used, "kv"), "rank %d", (int)r);
            kv += number_at(used, "kv");
        }
        cr_assert_eq(json_array_size(json_object_get(memory, "hosts")), 1);
        cr_assert(number_at(host, "ranks") == 3 && number_at(host, "kv") == kv);
        cr_assert_eq(number_at(host, "need"), kv + number_at(host, "weights"));
        cr_assert(json_is_true(json_object_get(host, "fits")) && number_at(host, "free") > number_at(host, "need"));
        /* 2 layers, 2 KV heads of 16 channels */
        cr_assert_eq(number_at(json_object_get(seen, "kv"), "bytes_per_token"), 2 * 2 * 16 * (t == 0 ? 2 + 2 : 4 + 2));
        json_decref(seen);
        json_decref(run);
    }
}

Test(cli_inspect, ranks_of_mpirun_are_counted_and_one_prints)
{
    const char *path = fixture_path("model.gguf");
    const char *const arguments[] = {"inspect", "-m", path, "--json", NULL};
    dewpoint_result result;
    json_t *o;
    fixture_model(path, &(fixture_spec){.context = 640});
    result = dewpoint_run(3, NULL, arguments);
    cr_assert_eq(result.status, 0, "%s", result.err);
    o = json_loads(result.out, 0, NULL);
    cr_assert(json_is_object(o), "%s", result.out);
    cr_assert_eq(json_array_size(json_object_get(json_object_get(o, "memory"), "ranks")), 3);
    cr_assert_eq(number_at(json_object_get(o, "memory"), "context"), 640); /* the trained one */
    json_decref(o);
    dewpoint_free(&result);
}

Test(cli_inspect, the_condensate_is_compared_with_the_whole_cache)
{
    const char *path = fixture_path("model.gguf");
    json_t *o, *c;
    fixture_model(path, &(fixture_spec){.kv_heads = 2, .heads = 4});
    o = DEWPOINT_JSON("inspect", "-m", path, "-c", "4000", "--window", "50", "--keys", "49", "--json");
    c = json_object_get(o, "condensate");
    cr_assert(number_at(c, "positions") == 100 && number_at(c, "anchor") == 1);
    cr_assert_eq(number_at(c, "bytes"), 2 * 4 * 100 * 16 * 2 * 2); /* layers, heads, positions, channels, K and V, f16 */
    cr_assert_eq(number_at(c, "full_bytes"), 2 * 2 * 4000 * 16 * 2 * 2);
    cr_assert_eq(json_real_value(json_object_get(c, "share")), 0.05);
    json_decref(o);
    o = DEWPOINT_JSON("inspect", "-m", path, "-c", "40", "--keys", "1M", "--json");
    c = json_object_get(o, "condensate");
    cr_assert(number_at(c, "positions") == 40 && number_at(c, "bytes") == number_at(c, "full_bytes"));
    json_decref(o);
}

Test(cli_inspect, a_context_that_no_host_can_hold_does_not_fit)
{
    const char *path = patched(&(fixture_spec){0}, GGUF_AT_VALUE, "llama.context_length", 1u << 31);
    json_t *o = DEWPOINT_JSON("inspect", "-m", path, "--json", "--simulate-ranks", "7");
    dewpoint_result text = DEWPOINT("inspect", "-m", path);
    const json_t *host = json_array_get(json_object_get(json_object_get(o, "memory"), "hosts"), 0);
    cr_assert(json_is_false(json_object_get(host, "fits")), "%lld bytes are free", (long long)number_at(host, "free"));
    cr_assert(text.status == 0 && strstr(text.out, "does not fit") != NULL, "%s", text.out);
    json_decref(o);
    dewpoint_free(&text);
}

Test(cli_inspect, another_family_is_shown_and_named)
{
    const char *path = other_family();
    json_t *o = DEWPOINT_JSON("inspect", "-m", path, "-c", "128", "--json");
    dewpoint_result text = DEWPOINT("inspect", "-m", path, "--verbose");
    const json_t *types = json_object_get(o, "types");
    check_problem(o, "architecture 'grape' is not supported");
    cr_assert_str_eq(text_at(o, "family"), "grape");
    cr_assert(number_at(o, "layers") == 3 && number_at(o, "kv_heads") == 2 && number_at(o, "head_dim") == 8);
    cr_assert(json_is_null(json_object_get(o, "context")) && json_is_null(json_object_get(o, "vocabulary")));
    cr_assert_eq(number_at(json_object_get(o, "kv"), "bytes_per_token"), 3 * 2 * 8 * 2 * 2);
    cr_assert_eq(number_at(json_object_get(o, "memory"), "context"), 128);
    cr_assert(json_is_true(json_object_get(json_array_get(types, 0), "supported")));
    cr_assert(json_is_false(json_object_get(json_array_get(types, 1), "supported")));
    cr_assert_str_eq(text_at(json_array_get(types, 1), "type"), "I8");
    cr_assert(json_is_null(json_object_get(json_array_get(types, 2), "type")));
    cr_assert_eq(number_at(json_array_get(types, 2), "id"), 99);
    cr_assert(text.status == 0 && strstr(text.out, "NOT SUPPORTED: architecture 'grape'") != NULL, "%s", text.out);
    cr_assert(strstr(text.out, "blk.0.stem") != NULL && strstr(text.out, "grape.block_count") != NULL, "%s", text.out);
    json_decref(o);
    dewpoint_free(&text);
}

Test(cli_inspect, what_a_run_would_refuse_is_named)
{
    const fixture_spec plain = {.tokenizer = 1};
    const char *path = patched(&plain, GGUF_AT_TYPE, "blk.1.ffn_up.weight", 24);
    json_t *o = DEWPOINT_JSON("inspect", "-m", path, "--json");
    gguf_writer *writer;
    check_problem(o, "tensor blk.1.ffn_up.weight has type I8");
    json_decref(o);

    writer = fixture_writer(&(fixture_spec){0});
    gguf_put_string(writer, "tokenizer.ggml.model", "bert");
    gguf_write(writer, path);
    gguf_free(writer);
    o = DEWPOINT_JSON("inspect", "-m", path, "--json");
    check_problem(o, "tokenizer.ggml.model");
    cr_assert_str_eq(text_at(o, "tokenizer"), "bert");
    json_decref(o);

    writer = fixture_writer(&(fixture_spec){0});
    gguf_put_u32(writer, "llama.expert_count", 8);
    gguf_write(writer, path);
    gguf_free(writer);
    o = DEWPOINT_JSON("inspect", "-m", path, "--json");
    check_problem(o, "llama.expert_count is 8; only 0 is supported");
    json_decref(o);
}

Test(cli_inspect, a_file_without_any_of_the_keys_is_still_listed)
{
    const char *path = fixture_path("bare.gguf");
    gguf_writer *writer = gguf_new(2);
    json_t *o;
    dewpoint_result text;
    gguf_put_f32(writer, "\xC3\xA9", 0.5f);
    gguf_put_raw(writer, "large", GGUF_U64, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 8);
    gguf_put_bool(writer, "yes", 1);
    gguf_write(writer, path);
    gguf_free(writer);
    o = DEWPOINT_JSON("inspect", "-m", path, "--json");
    text = DEWPOINT("inspect", "-m", path, "--verbose", "-c", "8K");
    check_problem(o, "general.architecture is missing");
    cr_assert(json_is_null(json_object_get(o, "family")) && json_is_null(json_object_get(o, "memory")));
    cr_assert(json_is_null(json_object_get(o, "condensate")) && json_array_size(json_object_get(o, "types")) == 0);
    cr_assert_eq(json_real_value(json_object_get(json_object_get(o, "metadata"), "\xC3\xA9")), 0.5);
    cr_assert_eq(json_real_value(json_object_get(json_object_get(o, "metadata"), "large")), 0x1p64);
    cr_assert(json_is_true(json_object_get(json_object_get(o, "metadata"), "yes")));
    cr_assert(text.status == 0 && strstr(text.out, "layers      unknown") != NULL, "%s", text.out);
    json_decref(o);
    dewpoint_free(&text);
}

/* Numbers that no model has must neither overflow nor be believed. */
Test(cli_inspect, absurd_hyperparameters_are_unknown)
{
    static const char *const keys[] = {"llama.block_count", "llama.attention.head_count", "llama.attention.head_count_kv",
                                       "llama.attention.key_length", "llama.embedding_length"};
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        const char *path = patched(&(fixture_spec){0}, GGUF_AT_VALUE, keys[k], UINT32_MAX);
        json_t *o = DEWPOINT_JSON("inspect", "-m", path, "--json");
        check_problem(o, "4294967295");
        json_decref(o);
    }
}

Test(cli_inspect, errors_are_those_of_the_other_commands)
{
    const char *path = fixture_path("model.gguf");
    dewpoint_result result;
    fixture_model(path, &(fixture_spec){.context = 64});
    result = DEWPOINT("inspect", "-m", path, "-c", "65");
    cr_assert(result.status == 2 && strstr(result.err, "more than the 64 positions") != NULL, "%s", result.err);
    cr_assert_str_empty(result.out);
    dewpoint_free(&result);
    write_file(path, "GGUF and no more", 16);
    result = DEWPOINT("inspect", "-m", path, "--simulate-ranks", "3", "--json");
    cr_assert(result.status == 3 && strncmp(result.err, "dewpoint: ", 10) == 0 && strstr(result.err, path) != NULL, "%s",
              result.err);
    cr_assert_str_empty(result.out);
    dewpoint_free(&result);
}

/* ---- directories ---- */

/* Path of a reference model; good until the next four calls. */
static const char *model_directory(const char *name)
{
    static char paths[4][512];
    static int next;
    char file[128];
    snprintf(file, sizeof file, "models/%s", name);
    next = (next + 1) % 4;
    snprintf(paths[next], sizeof paths[next], "%s", reference_path(file));
    return paths[next];
}

Test(cli_inspect, a_directory_is_shown_as_its_config_and_its_files_say)
{
    json_t *o = DEWPOINT_JSON("inspect", "-m", model_directory("neox-float16"), "--json", "-c", "100");
    json_t *config = reference_json("models/neox-float16/config.json");
    const json_t *types = json_object_get(o, "types");
    cr_assert(json_is_true(json_object_get(o, "supported")), "%s", text_at(o, "problem"));
    cr_assert_str_eq(text_at(o, "format"), "safetensors");
    cr_assert_str_eq(text_at(o, "family"), "gpt_neox");
    cr_assert(number_at(o, "files") == 1 && json_is_null(json_object_get(o, "tokenizer")));
    cr_assert(number_at(o, "layers") == 3 && number_at(o, "hidden") == 80 && number_at(o, "feed_forward") == 160);
    cr_assert(number_at(o, "heads") == 5 && number_at(o, "kv_heads") == 5 && number_at(o, "head_dim") == 16);
    cr_assert(number_at(o, "vocabulary") == 320 && number_at(o, "context") == 512);
    cr_assert_eq(json_real_value(json_object_get(o, "rope_base")), 10000);
    cr_assert(json_equal(json_object_get(o, "metadata"), config));
    /* Masks and rotary frequencies are stored, too, and not used. */
    cr_assert_eq(json_array_size(types), 2);
    cr_assert_str_eq(text_at(json_array_get(types, 0), "type"), "BOOL");
    cr_assert(json_is_false(json_object_get(json_array_get(types, 0), "supported")));
    cr_assert(json_is_null(json_object_get(json_array_get(types, 0), "id")));
    cr_assert_str_eq(text_at(json_array_get(types, 1), "type"), "F16");
    cr_assert(json_is_true(json_object_get(json_array_get(types, 1), "supported")));
    cr_assert_eq(number_at(json_object_get(o, "kv"), "bytes_per_token"), 3 * 5 * 16 * (2 + 2));
    cr_assert_eq(number_at(json_object_get(o, "memory"), "context"), 100);
    json_decref(config);
    json_decref(o);
}

Test(cli_inspect, all_files_of_a_directory_are_counted)
{
    json_t *o = DEWPOINT_JSON("inspect", "-m", model_directory("llama-bf16-shards"), "--json");
    dewpoint_result text = DEWPOINT("inspect", "-m", model_directory("llama-bf16-shards"), "--verbose");
    cr_assert_eq(number_at(o, "files"), 4);
    /* Of the index: total_parameters, total_size. */
    cr_assert_eq(number_at(o, "parameters"), 232240);
    cr_assert_eq(number_at(json_array_get(json_object_get(o, "types"), 0), "bytes"), 464480);
    cr_assert_gt(number_at(o, "bytes"), 464480);
    cr_assert(text.status == 0 && strstr(text.out, " in 4 files") != NULL, "%s", text.out);
    cr_assert(strstr(text.out, "  model_type ") != NULL && strstr(text.out, "\"llama\"") != NULL, "%s", text.out);
    cr_assert(strstr(text.out, "  model.embed_tokens.weight") != NULL, "%s", text.out);
    dewpoint_free(&text);
    json_decref(o);
}

Test(cli_inspect, a_directory_of_another_family_is_shown_and_named)
{
    json_t *o;
    small_shards();
    small_text("config.json", "{\"model_type\": \"grape\", \"hidden_size\": 64, \"rope_scaling\": {\"type\": \"sour\"}}");
    small_text("tokenizer.model", "");
    o = DEWPOINT_JSON("inspect", "-m", small_directory(), "--json");
    check_problem(o, "grape");
    cr_assert(strstr(text_at(o, "problem"), "config.json") != NULL, "%s", text_at(o, "problem"));
    cr_assert_str_eq(text_at(o, "family"), "grape");
    cr_assert_str_eq(text_at(o, "tokenizer"), "tokenizer.model");
    cr_assert(json_is_null(json_object_get(o, "layers")) && json_is_null(json_object_get(o, "memory")));
    cr_assert_eq(json_array_size(json_object_get(o, "tensors")), 3);
    cr_assert_eq(json_array_size(json_object_get(json_array_get(json_object_get(o, "tensors"), 2), "shape")), 0);
    cr_assert_str_eq(text_at(json_object_get(json_object_get(o, "metadata"), "rope_scaling"), "type"), "sour");
    json_decref(o);
}

Test(cli_inspect, a_split_file_is_one_model)
{
    static const char *const names[] = {"split-00001-of-00002.gguf", "split-00002-of-00002.gguf"};
    json_t *o;
    for (int part = 0; part < 2; part++) {
        const int64_t size = 8;
        const float numbers[8] = {0};
        gguf_writer *writer = part == 0 ? fixture_writer(&(fixture_spec){.without = "output_norm.weight"}) : gguf_new(3);
        gguf_put_u32(writer, "split.no", (uint32_t)part);
        gguf_put_u32(writer, "split.count", 2);
        if (part == 1) gguf_put_tensor(writer, "extra", 0, 1, &size, numbers, sizeof numbers);
        gguf_write(writer, fixture_path(names[part]));
        gguf_free(writer);
    }
    o = DEWPOINT_JSON("inspect", "-m", fixture_path(names[1]), "--json");
    cr_assert(number_at(o, "files") == 2 && number_at(o, "layers") == 2);
    cr_assert_str_eq(text_at(o, "format"), "gguf");
    check_problem(o, "output_norm.weight is missing");
    json_decref(o);
}
